"""Finding brokers and asking them: channels, sets, leaders, routes."""
