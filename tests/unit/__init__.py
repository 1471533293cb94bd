"""Unit tests: they mirror mq, without sockets or sleeps."""
