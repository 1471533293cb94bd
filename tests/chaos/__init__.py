"""A cluster under load for minutes, while everything that can fail does: `make chaos`."""
