"""Access as values: keys, passwords and policies, without a clock, a log or a socket."""
