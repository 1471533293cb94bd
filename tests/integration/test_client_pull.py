"""Reading queues by hand against a real broker, and the examples in the documentation."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from mq.client import Consumer, PullConsumer, PullStatus, QueueRef, ReceivedMessage
from mq.errors import (
    GroupNotEmpty,
    IllegalRequest,
    TopicNotFound,
)
from mq.wire.v1.message_pb2 import Message
from tests.support.broker_process import BrokerProcess
from tests.support.topics import (
    DEADLINE_S,
    create_topic,
    fill,
    send,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

# The broker set of a broker that was told of none.
SET = "set-0"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker.address


def take(consumer: Consumer, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count}: {found}"
        found += consumer.poll(count - len(found))
    return found


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return [one.body for one in messages]


def test_pulling_says_where_the_queue_begins_and_ends(server: str, name: str) -> None:
    fill(server, name, queues=1, each=10)
    with PullConsumer(server) as puller:
        assert puller.queues(name) == [QueueRef(name, 0, SET)]
        found = puller.pull(name, 0, 3, max_messages=2)
        assert (found.status, bodies(found.messages)) == (PullStatus.FOUND, [b"0-3", b"0-4"])
        assert (found.next_offset, found.start, found.end) == (5, 0, 10)
        assert puller.pull(name, 0, 10).status is PullStatus.END
        too_far = puller.pull(name, 0, 11)
        assert (too_far.status, too_far.next_offset) == (PullStatus.TOO_LARGE, 10)
        with pytest.raises(TopicNotFound):
            puller.queues("no-such")
        assert puller.pull(name, 0, 9, broker_set=SET).messages[0].queue == QueueRef(name, 0, SET)
        with pytest.raises(IllegalRequest, match=f"no broker set 'typo'; there are: {SET}"):
            puller.pull(name, 0, 9, broker_set="typo")


def test_pulling_waits_for_messages(server: str, name: str) -> None:
    create_topic(server, name, 1)
    with PullConsumer(server) as puller:
        sender = threading.Timer(0.1, lambda: send(server, name, 0, [Message(body=b"x", tag="a")]))
        sender.start()
        found = puller.pull(name, 0, 0, filter="a || b", wait_ms=20_000)
        assert bodies(found.messages) == [b"x"]
        sender.join()
        nothing = puller.pull(name, 0, 0, filter="b", wait_ms=10)
        assert (nothing.status, nothing.next_offset) == (PullStatus.END, 1)


def test_offsets_are_found_and_committed_by_hand(server: str, name: str) -> None:
    fill(server, name, queues=2, each=10)
    first, second = QueueRef(name, 0, SET), QueueRef(name, 1, SET)
    with PullConsumer(server, name) as puller:
        assert puller.find_offsets(name, "earliest") == {first: 0, second: 0}
        assert puller.find_offsets(name, "latest") == {first: 10, second: 10}
        assert puller.find_offsets(name, 0) == {first: 0, second: 0}
        assert puller.committed() == {}
        puller.commit({(name, 0): 4, (name, 1): 5})
        puller.commit({second: 6})
        assert puller.committed() == {first: 4, second: 6}
        assert puller.committed([first]) == {first: 4}
        with Consumer(server, name, name) as consumer:
            assert len(take(consumer, 10)) == 10
            with pytest.raises(GroupNotEmpty):
                puller.commit({(name, 0): 0})
