"""What goes over the wire and into the log, generated from proto/."""
