"""Tests of mq."""
