"""Exactly once: messages in, messages out."""
