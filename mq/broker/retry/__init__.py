"""Messages that failed: back after a while, or dead letters."""
