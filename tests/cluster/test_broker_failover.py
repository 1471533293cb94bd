"""A broker set loses its leader, as its clients see it: a pause, and nothing else."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Self

import grpc
import pytest

from mq.client import Admin, ReceivedMessage
from mq.wire.v1.producer_pb2 import SendResponse
from tests.conformance.calls import Calls, code_of, prepared
from tests.conformance.streams import PublishStream
from tests.support.broker_set import BrokerSet
from tests.support.history import History, Outcome, Queue
from tests.support.raft_cluster import poll
from tests.support.recorded_clients import (
    PATIENCE_S,
    RecordedConsumer,
    RecordedProducer,
    ask_offsets,
    drain,
    pushing,
    told_with,
    wait_read,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TOPIC = "orders"
QUEUES = 4
PUSHED = "pushed"


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[BrokerSet]:
    with BrokerSet(tmp_path) as started:
        with Admin(started.servers, timeout_s=PATIENCE_S) as admin:
            admin.create_topic(TOPIC, QUEUES)
        yield started


class Load:
    """Whatever shall be done again and again, each on a thread of its own."""

    def __init__(self, *works: Callable[[], object]) -> None:
        self._is_over = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in works]

    def _run(self, work: Callable[[], object]) -> None:
        try:
            while not self._is_over.is_set():
                work()
        except BaseException as error:  # noqa: BLE001 - shown by the thread that waits
            self._failures.append(error)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        assert self._failures == []

    def wait_until(self, is_so: Callable[[], object], what: str) -> None:
        poll(lambda: self._failures or is_so(), what)
