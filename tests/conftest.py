"""For all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.signals import give_defaults_to_children

# Before anything is started, also in the processes of pytest-xdist.
give_defaults_to_children()

# Machines are shared and noisy: no test is about how long an example takes.
settings.register_profile("mq", deadline=None)
settings.load_profile("mq")

_TESTS = Path(__file__).parent
# Longer than in `pyproject.toml`: Java and clusters of processes start slowly on a busy machine.
_TIMEOUTS_S = {"cluster": 400, "spark": 400, "chaos": 1000}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        timeout_s = _TIMEOUTS_S.get(item.path.relative_to(_TESTS).parts[0])
        if timeout_s is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(timeout_s))
