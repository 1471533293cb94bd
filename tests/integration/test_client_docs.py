"""The examples in the docstrings of producers and administration do what they say."""

from __future__ import annotations

import doctest
import importlib
from collections.abc import Iterator

import pytest

from tests.support.broker_process import BrokerProcess

MODULES = [
    "model",
    "producing.producer_sync",
    "producing.producer_aio",
    "transacting.transactions_sync",
    "transacting.transactions_aio",
    "administering.admin_sync",
    "administering.admin",
]
# What the examples say, and a user has.
ADDRESS = "127.0.0.1:8081"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


@pytest.mark.parametrize("name", MODULES)
def test_examples_do_what_they_say(name: str, broker: BrokerProcess) -> None:
    module = importlib.import_module(f"mq.client.{name}")
    runner = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF)
    examples = 0
    for test in doctest.DocTestFinder().find(module):
        for example in test.examples:
            example.source = example.source.replace(ADDRESS, broker.address)
        examples += len(test.examples)
        report: list[str] = []
        runner.run(test, out=report.append)
        assert runner.failures == 0, "".join(report)
    assert examples > 0
