"""Who may do what: keys, passwords and policies as values, without a clock, a log or a socket."""
