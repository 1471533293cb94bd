"""Unit tests of mq.console."""
