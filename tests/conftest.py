"""For all tests."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.support.signals import give_defaults_to_children
from tests.support.work_units import UnitScheduling, in_order

# Before anything is started, also in the processes of pytest-xdist: tests pass as a background job.
give_defaults_to_children()

# Nor does a terminal, a CI's wish for colours or variables of a running broker change results.
_OF_THE_SHELL = {"COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"}
for _name in list(os.environ):
    if _name in _OF_THE_SHELL or (_name[:3] == "MQ_" and _name != "MQ_MODEL_EXAMPLES"):
        del os.environ[_name]
# Nor does a nearly full disk: brokers would delete the oldest messages of a test.
for _name, _ratio in (("CLEAN_EXPIRED", 0.98), ("CLEAN_OLDEST", 0.99), ("REFUSE_WRITES", 1)):
    os.environ[f"MQ_RETENTION_{_name}_RATIO"] = str(_ratio)
# Nor do the profiles of whoever runs them.
os.environ["XDG_CONFIG_HOME"] = str(Path(tempfile.gettempdir()) / "mq-tests-config")

# Tests start hundreds of processes: each would compile all modules where the shell forbids to keep
# what was compiled, which takes as long as the rest of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Machines are shared and noisy: no test is about how long an example takes.
settings.register_profile("mq", deadline=None)
settings.load_profile("mq")
# Of `make check`: pytest --hypothesis-profile quick.
settings.register_profile("quick", deadline=None, max_examples=20)

_TESTS = Path(__file__).parent
# Longer than in `pyproject.toml`: on a busy machine Java and sets of processes start slowly, many
# simulations are one test, and the first run on a machine builds clients in other languages.
_TIMEOUTS_S = {
    **dict.fromkeys(("browser", "cluster", "conformance", "faults", "rocketmq", "spark"), 400),
    "sim": 600,
    **dict.fromkeys(("chaos", "power_loss"), 1000),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every-client",
        action="store_true",
        help="tests/conformance, tests/rocketmq: all with the clients in Java and Node.js, too",
    )


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> UnitScheduling | None:
    return UnitScheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # a process of pytest-xdist
        items[:] = [items[place] for place in in_order([item.nodeid for item in items])]
    for item in items:
        timeout_s = _TIMEOUTS_S.get(item.path.relative_to(_TESTS).parts[0])
        if timeout_s is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(timeout_s))
