"""State that entries make: the same on every replica."""
