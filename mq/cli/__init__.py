"""The command line: a client of the brokers like any other, and tools for their files."""
