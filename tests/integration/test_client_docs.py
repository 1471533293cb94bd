"""The examples in the docstrings of the clients do what they say, with asyncio and without."""

from __future__ import annotations

import asyncio
import doctest
import importlib
import queue
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from mq.client import Admin, Producer, public
from tests.support.broker_process import BrokerProcess

# What the examples say, and a user has.
ADDRESS = "127.0.0.1:8081"


class Scene(NamedTuple):
    """Names of a face, for its examples, and where their broker is."""

    names: dict[str, Any]
    address: str


@pytest.fixture(scope="module", params=["mq.client", "mq.client.aio"])
def scene(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """A broker for each face: their examples use the same topics and groups."""
    face: ModuleType = importlib.import_module(request.param)
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        with Admin(broker.address) as admin, Producer(broker.address) as producer:
            admin.create_topic("greetings", queues=1)
            producer.send_batch("greetings", [b"hello", b"world"])
        names = {name: getattr(face, name) for name in face.__all__}
        names |= {"asyncio": asyncio, "queue": queue, "servers": broker.address}
        yield Scene(names, broker.address)


@pytest.mark.parametrize("name", sorted(public.SYNC))
def test_examples_do_what_they_say(name: str, scene: Scene) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF)
    examples = 0
    for test in doctest.DocTestFinder().find(scene.names[name], name, globs=scene.names):
        for example in test.examples:
            example.source = example.source.replace(ADDRESS, scene.address)
        examples += len(test.examples)
        report: list[str] = []
        runner.run(test, out=report.append)
        assert runner.failures == 0, "".join(report)
    # A Replier is in the example of a Requester.
    assert examples > 0 or name not in public.CLIENTS or name == "Replier"
