"""What operators use: the command line. Thin: it decodes, calls and prints."""
