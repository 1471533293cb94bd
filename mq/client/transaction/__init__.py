"""Messages that are seen when a local transaction succeeds."""
