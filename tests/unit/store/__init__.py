"""Unit tests of mq.store."""
