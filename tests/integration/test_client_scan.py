"""Ranges of queues as pages, from real brokers: complete, exact, and through a fail-over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mq.client import QueueRef, Tags
from mq.client.lowlevel import QueueScanner
from mq.errors import TopicNotFound
from mq.wire.v1 import consumer_pb2 as wire
from mq.wire.v1.consumer_pb2 import PullResponse
from mq.wire.v1.message_pb2 import Message
from tests.support.broker_process import BrokerProcess
from tests.support.broker_set import BrokerSet
from tests.support.topics import create_topic, send

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from mq.client.decode import Page

SET = "set-0"
# Two of them are more than a page.
LARGE_BYTES = 2 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker.address


def offsets_in(pages: Iterable[Page]) -> list[int]:
    return [
        run.queue_offset + at
        for page in pages
        for run in PullResponse.FromString(page.data).runs
        for at in range(len(run.messages))
    ]


def test_a_range_comes_complete_and_ends_where_it_should(server: str) -> None:
    create_topic(server, "ranges", 1)
    ref = QueueRef("ranges", 0, SET)
    for at in range(20):
        send(server, "ranges", 0, [Message(body=b"x", tag="ab"[at % 2])] * 10)
    with QueueScanner(server) as scanner:
        assert offsets_in(scanner.scan(ref, 0, 200)) == list(range(200))
        # In the middle of batches.
        assert offsets_in(scanner.scan(ref, 13, 97)) == list(range(13, 97))
        tagged = [at for at in range(200) if at // 10 % 2]
        assert offsets_in(scanner.scan(ref, 0, 200, Tags("b"))) == tagged
        assert offsets_in(scanner.scan(ref, 0, 200, Tags("nobody"))) == []
        (beyond,) = scanner.scan(ref, 300, 310)
        assert (beyond.status, beyond.end) == (wire.PULL_TOO_LARGE, 200)
        with pytest.raises(TopicNotFound):
            list(scanner.scan(QueueRef("nowhere", 0, SET), 0, 10))


def test_large_messages_come_one_a_page(server: str) -> None:
    create_topic(server, "large", 1)
    for _ in range(3):
        send(server, "large", 0, [bytes(LARGE_BYTES)])
    with QueueScanner(server) as scanner:
        pages = list(scanner.scan(QueueRef("large", 0, SET), 0, 3))
    assert [offsets_in([page]) for page in pages] == [[0], [1], [2]]


def test_a_fail_over_in_the_middle_of_a_range_loses_and_repeats_nothing(tmp_path: Path) -> None:
    with BrokerSet(tmp_path) as brokers:
        address = brokers.address(brokers.leader())
        create_topic(address, "t", 1)
        for _ in range(12):
            send(address, "t", 0, [bytes(LARGE_BYTES // 2)] * 2)
        with QueueScanner(brokers.servers) as scanner:
            pages = scanner.scan(QueueRef("t", 0, SET), 0, 24)
            seen = [next(pages)]
            brokers.kill_leader()
            seen += pages
    assert offsets_in(seen) == list(range(24))
