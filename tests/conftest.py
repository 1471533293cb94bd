"""For all tests."""

from __future__ import annotations

from hypothesis import settings

from tests.support.signals import give_defaults_to_children

# Before anything is started, also in the processes of pytest-xdist.
give_defaults_to_children()

# Machines are shared and noisy: no test is about how long an example takes.
settings.register_profile("mq", deadline=None)
settings.load_profile("mq")
