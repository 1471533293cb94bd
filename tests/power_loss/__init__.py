"""Brokers under load whose machines lose power, again and again: `make power-loss`."""
