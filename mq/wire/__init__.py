"""Messages of the wire and of the log, generated from proto/."""
