"""Receive and acknowledge."""
