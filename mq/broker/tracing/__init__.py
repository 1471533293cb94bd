"""The life of a message, read from the log."""
