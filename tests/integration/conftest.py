"""A name for the topic and the group of a test."""

from __future__ import annotations

import re

import pytest


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Each test has its own. With dots, as users of Kafka and NATS name things."""
    return re.sub(r"[^A-Za-z0-9]+", ".", request.node.name)[:90].strip(".")
