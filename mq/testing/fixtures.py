"""Fixtures for pytest: `pytest_plugins = ["mq.testing.fixtures"]` in a conftest.py.

One broker serves a whole run, because topics and groups keep tests apart: `mq_name` gives a test a
name that no other has.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from mq.testing import Broker


@pytest.fixture(scope="session")
def mq_broker() -> Iterator[Broker]:
    """A broker in a process of its own, for all tests of the run."""
    with Broker() as broker:
        yield broker


@pytest.fixture
def mq_name(request: pytest.FixtureRequest) -> str:
    """A name for a topic or a group of this test alone."""
    test = "".join(one if one.isalnum() else "-" for one in request.node.name if one.isascii())
    return f"{test[:80].strip('-')}-{uuid.uuid4().hex[:8]}"
