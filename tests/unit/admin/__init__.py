"""Unit tests of mq.admin."""
