"""Faults of machines, disks and networks against three real brokers: `make faults`."""
