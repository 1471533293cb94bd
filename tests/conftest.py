"""For all tests."""

from __future__ import annotations

from hypothesis import settings

# Machines are shared and noisy: no test is about how long an example takes.
settings.register_profile("mq", deadline=None)
settings.load_profile("mq")
