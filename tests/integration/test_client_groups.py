"""Groups of consumers against a real broker: members come, go and die, and the broker with them."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

import pytest

from mq.client import Consumer, PushConsumer, QueueRef, ReceivedMessage
from tests.support.broker_process import BrokerProcess
from tests.support.topics import committed, create_topic, eventually, fill, send

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

QUEUES = 8


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """In an ordered group a member is gone after it was silent for so long, and not before."""
    times = ("--broker-heartbeat-ms", "1000", "--broker-member-expires-ms", "8000")
    with BrokerProcess(tmp_path / "data", *times) as process:
        yield process


class Ledger:
    """The handled messages, and how often; handlers of all members write to it."""

    def __init__(self, pause_s: float = 0.001) -> None:
        self.handled: Counter[tuple[int, int]] = Counter()
        self.order: dict[int, list[int]] = {}
        self._at_work: Counter[int] = Counter()
        self.most_at_work = 0
        self._pause_s = pause_s
        self._lock = threading.Lock()

    def handle(self, message: ReceivedMessage) -> None:
        with self._lock:
            self._at_work[message.queue_id] += 1
            self.most_at_work = max(self.most_at_work, self._at_work[message.queue_id])
        time.sleep(self._pause_s)
        with self._lock:
            self._at_work[message.queue_id] -= 1
            self.handled[message.queue_id, message.queue_offset] += 1
            self.order.setdefault(message.queue_id, []).append(message.queue_offset)

    def has(self, count: int) -> bool:
        with self._lock:
            return len(self.handled) >= count


class Load:
    """Sends to all queues until it is told to stop."""

    def __init__(self, address: str, topic: str) -> None:
        self._address = address
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent = 0

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            send(self._address, self._topic, self.sent // 5 % QUEUES, [b"."] * 5)
            self.sent += 5

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class Crew:
    """Starts members, and closes at the end of a test those that it left open."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._members: list[PushConsumer] = []

    def member(self, ledger: Ledger, **options: Any) -> PushConsumer:
        settings: dict[str, Any] = {"start": "earliest", "threads": 4} | options
        consumer = PushConsumer(self._address, "g", "t", ledger.handle, **settings)
        self._members.append(consumer)
        consumer.start()
        return consumer

    def close(self) -> None:
        for one in self._members:
            one.close(timeout_s=5)


@pytest.fixture
def crew(broker: BrokerProcess) -> Iterator[Crew]:
    members = Crew(broker.address)
    yield members
    members.close()


def is_even(members: list[PushConsumer]) -> bool:
    """All queues are assigned, and no member has two more than another."""
    sizes = [len(one.assignment) for one in members]
    return sum(sizes) == QUEUES and max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("mode", ["clustering", "ordered"])
def test_members_that_come_and_go_lose_nothing_and_repeat_nothing(
    broker: BrokerProcess, crew: Crew, mode: str
) -> None:
    create_topic(broker.address, "t", QUEUES)
    ledger = Ledger()
    members = [crew.member(ledger, mode=mode)]
    with Load(broker.address, "t") as load:
        for _ in range(3):
            members.append(crew.member(ledger, mode=mode))
            eventually(lambda: is_even(members), f"{[one.assignment for one in members]}")
        for _ in range(3):
            members.pop(0).close()
            eventually(lambda: is_even(members), f"{[one.assignment for one in members]}")
    eventually(lambda: ledger.has(load.sent))
    members.pop().close()
    assert len(ledger.handled) == load.sent > 0
    assert set(ledger.handled.values()) == {1}
    assert sum(committed(broker.address, "g", "t").values()) == load.sent
    if mode == "ordered":
        assert ledger.most_at_work == 1
        assert all(one == sorted(one) for one in ledger.order.values())


def test_a_queue_moves_when_its_handler_is_through(broker: BrokerProcess) -> None:
    fill(broker.address, "t", QUEUES, 5)
    gate, begun, seen = threading.Event(), threading.Event(), Counter[bytes]()

    def handle(message: ReceivedMessage) -> None:
        seen[message.body] += 1
        begun.set()
        gate.wait(30)

    first = PushConsumer(broker.address, "g", "t", handle, start="earliest", threads=QUEUES * 5)
    first.start()
    eventually(lambda: len(seen) == QUEUES * 5)
    second = Consumer(broker.address, "g", "t")
    assert second.poll(timeout_s=0.3) == []
    assert len(first.assignment) == QUEUES // 2
    assert second.assignment == set()
    gate.set()
    eventually(lambda: len(second.assignment) == QUEUES // 2)
    assert second.poll(timeout_s=0.3) == []
    first.close()
    second.close()
    assert set(seen.values()) == {1}


class Child:
    """A consumer in a process of its own."""

    def __init__(self, address: str, mode: str = "clustering") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.consumer_process", address, "g", "t", mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.handled: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self.handled.extend(line.rstrip("\n") for line in self._process.stdout)

    def kill(self) -> None:
        self._process.kill()
        self._end()

    def leave(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._end()

    def _end(self) -> None:
        self._process.wait(30)
        self._reader.join(30)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.mark.parametrize("mode", ["clustering", "ordered"])
def test_a_member_that_is_killed_is_replaced_and_nothing_is_lost(
    broker: BrokerProcess, crew: Crew, mode: str
) -> None:
    sent = fill(broker.address, "t", QUEUES, 50)
    child = Child(broker.address, mode)
    eventually(lambda: sum(committed(broker.address, "g", "t").values()) > 0)
    ledger = Ledger()
    other = crew.member(ledger, mode=mode)
    child.kill()
    handled = {tuple(map(int, line.split("-"))) for line in child.handled}
    eventually(lambda: len(handled | set(ledger.handled)) == len(sent))
    eventually(lambda: len(other.assignment) == QUEUES)
    send(broker.address, "t", 3, [b"after"])
    eventually(lambda: ledger.handled[3, 50] == 1)
    other.close()
    assert committed(broker.address, "g", "t") == {at: 50 + (at == 3) for at in range(QUEUES)}
    assert set(ledger.handled.values()) == {1}


def test_a_member_that_leaves_leaves_nothing_half_done(broker: BrokerProcess, crew: Crew) -> None:
    sent = fill(broker.address, "t", QUEUES, 200)
    child = Child(broker.address)
    eventually(lambda: sum(committed(broker.address, "g", "t").values()) > 0)
    child.leave()
    ledger = Ledger(0.0)
    with crew.member(ledger):
        eventually(lambda: len(child.handled) + len(ledger.handled) >= len(sent))
    by_ledger = {f"{queue_id}-{at}" for queue_id, at in ledger.handled}
    assert len(child.handled) == len(set(child.handled))
    assert by_ledger.isdisjoint(child.handled)
    assert len(by_ledger) + len(child.handled) == len(sent)


@pytest.mark.parametrize("ending", ["stop", "kill"])
@pytest.mark.parametrize("mode", ["clustering", "ordered"])
def test_a_broker_that_comes_back_finds_its_members_where_they_were(
    broker: BrokerProcess, crew: Crew, ending: str, mode: str
) -> None:
    """Messages in flight are finished once; and nothing is delivered a second time."""
    fill(broker.address, "t", QUEUES, 100)
    ledger = Ledger(0.01)
    members = [crew.member(ledger, mode=mode) for _ in range(2)]
    eventually(lambda: is_even(members) and ledger.has(30))
    before = [one.assignment for one in members]
    if ending == "stop":
        assert broker.stop() == 0
    else:
        broker.kill()
    broker.start()
    for queue_id in range(QUEUES):
        assert send(broker.address, "t", queue_id, [b"later"] * 10) == 100
    eventually(lambda: ledger.has(QUEUES * 110))
    assert [one.assignment for one in members] == before
    assert set(ledger.handled.values()) == {1}
    # All of it is committed while the members live.
    eventually(lambda: set(committed(broker.address, "g", "t").values()) == {110})
    for one in members:
        one.close()
    if mode == "ordered":
        assert ledger.most_at_work == 1
        assert all(one == list(range(110)) for one in ledger.order.values())


def is_connected(consumer: Consumer) -> bool:
    """Whether there is a stream to each set of its topics."""
    memberships = consumer._client._session._memberships.values()
    return bool(memberships) and all(one.is_connected for one in memberships)


def test_messages_in_flight_over_a_broker_restart_are_committed_when_done(
    broker: BrokerProcess,
) -> None:
    fill(broker.address, "t", 1, 10)
    with Consumer(broker.address, "g", "t", start="earliest", auto_commit=False) as consumer:
        found = consumer.poll(10, timeout_s=30)
        assert len(found) == 10
        broker.kill()
        broker.start()
        eventually(lambda: is_connected(consumer))
        consumer.done(*found)
        eventually(lambda: committed(broker.address, "g", "t") == {0: 10})


def test_a_queue_that_was_leaving_when_the_broker_restarted_is_let_go_of(
    broker: BrokerProcess,
) -> None:
    """The member that finishes its handler under the next leader releases the queue there."""
    fill(broker.address, "t", 2, 1)
    with Consumer(
        broker.address, "g", "t", start="earliest", mode="ordered", auto_commit=False
    ) as first:
        found = first.poll(2, timeout_s=30)
        found += first.poll(2, timeout_s=30) if len(found) == 1 else []
        with Consumer(broker.address, "g", "t", mode="ordered") as second:
            second.poll(timeout_s=0.1)
            eventually(lambda: len(first.assignment) == 1)
            broker.kill()
            broker.start()
            eventually(lambda: is_connected(first) and is_connected(second))
            first.done(*found)
            eventually(lambda: len(second.assignment) == 1)
            assert second.poll(timeout_s=0.2) == []
            assert first.assignment | second.assignment == {
                QueueRef("t", at, "set-0") for at in range(2)
            }


def test_consumers_that_start_before_their_broker_find_it(tmp_path: Path) -> None:
    first = BrokerProcess(tmp_path / "data")
    with first:
        fill(first.address, "t", 1, 3)
        address = first.address
        assert first.stop() == 0
        consumer = Consumer(address, "g", "t", start="earliest")
        assert consumer.poll(timeout_s=0.2) == []
        first.start()
        assert len(consumer.poll(timeout_s=30)) == 3
        consumer.close()
