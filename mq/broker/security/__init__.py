"""Identities, what they may do and how much: decided over the replicated state."""
