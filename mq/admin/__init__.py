"""What a node says of itself and lets operators do. `mq.rpc.admin` is its face on the wire."""
