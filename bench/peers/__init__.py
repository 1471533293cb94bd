"""Our broker and client beside others, each with its own tools: `python -m bench.peers`."""
