"""Unit tests of mq.cli."""
