"""Connections to the cluster: channels, broker sets, leaders, routes, retries."""
