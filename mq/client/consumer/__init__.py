"""Consumers: members of groups, and reads of single queues."""
