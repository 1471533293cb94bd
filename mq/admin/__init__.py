"""What a node says of itself and lets operators do: control, metrics."""
