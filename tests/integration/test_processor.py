"""Consume, process, produce: each input has its effect once, whichever process dies in the
middle.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

import grpc
import pytest

from mq.client import (
    Admin,
    Message,
    Processor,
    Producer,
    PullConsumer,
    ReceivedMessage,
    aio,
)
from mq.errors import IllegalConfig, IllegalTopic, NotAssigned, TopicNotFound, Unreachable
from mq.wire.v1.consumer_pb2 import QueuePosition
from mq.wire.v1.message_pb2 import Batch
from mq.wire.v1.message_pb2 import Message as WireMessage
from mq.wire.v1.producer_pb2 import AtomicRequest, AtomicResponse
from tests.support.broker_process import BrokerProcess
from tests.support.topics import call, committed, create_topic, fill, send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

QUEUES = 4
DEADLINE_S = 90.0
Made = list[tuple[str, Message]]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as process:
        yield process


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process.address


def read_all(server: str, topic: str) -> list[list[bytes]]:
    """The bodies of each queue."""
    found: list[list[bytes]] = []
    with PullConsumer(server) as consumer, contextlib.suppress(TopicNotFound):
        for _, queue_id, broker_set in consumer.queues(topic):
            bodies: list[bytes] = []
            while True:
                result = consumer.pull(
                    topic, queue_id, len(bodies), max_messages=1_000, broker_set=broker_set
                )
                if not result.messages:
                    break
                bodies += [one.body for one in result.messages]
            found.append(bodies)
    return found


def effects(server: str, topic: str) -> Counter[bytes]:
    return Counter(body for queue in read_all(server, topic) for body in queue)


def until(question: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not question():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def echo(topic: str) -> Callable[[list[ReceivedMessage]], Made]:
    def handle(messages: list[ReceivedMessage]) -> Made:
        return [(topic, Message(b"%d/%d" % (one.queue_id, one.queue_offset))) for one in messages]

    return handle


def has_two(*processors: Processor) -> bool:
    return all(len(one.assignment) == 2 for one in processors)


def is_done(server: str, group: str, topic: str, count: int) -> bool:
    return sum(committed(server, group, topic).values()) == count


class Child:
    """A processor to be killed."""

    def __init__(self, server: str) -> None:
        self.batches = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.processor_process", server, "g", "in", "out"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for _ in self._process.stdout:
            self.batches += 1

    def kill(self) -> None:
        self._process.kill()
        self._reader.join()
        self._process.communicate()


class Feeder:
    """Sends all the time, also without a consumer."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        queue_id = 0
        while not self._stop.wait(0.01):
            with contextlib.suppress(grpc.RpcError):  # the broker is dead just now
                send(self._server, "in", queue_id, [b"."] * 10)
            queue_id = (queue_id + 1) % QUEUES

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def test_each_input_has_its_effect_once_whichever_process_is_killed(broker: BrokerProcess) -> None:
    server = broker.address
    create_topic(server, "in", QUEUES)
    create_topic(server, "out", 3)
    children = [Child(server), Child(server)]
    try:
        with Feeder(server):
            for kills_broker in (False, True):
                until(lambda: all(one.batches > 4 for one in children), "nobody works")
                children.pop(0).kill()
                if kills_broker:
                    broker.kill()
                    broker.start()
                children.append(Child(server))
            until(lambda: all(one.batches > 4 for one in children), "nobody works")
        wanted = {
            b"%d/%d" % (queue_id, at): 1
            for queue_id, bodies in enumerate(read_all(server, "in"))
            for at in range(len(bodies))
        }
        until(lambda: is_done(server, "g", "in", len(wanted)), "not all is processed")
    finally:
        for child in children:
            child.kill()
    assert effects(server, "out") == wanted


def test_a_handler_that_fails_is_called_again_and_nothing_of_it_is_seen(
    server: str, name: str
) -> None:
    create_topic(server, name, 1)
    send(server, name, 0, [b"%d" % n for n in range(10)])
    calls = []

    def handle(messages: list[ReceivedMessage]) -> Iterator[tuple[str, bytes]]:
        calls.append(len(messages))
        for at, message in enumerate(messages):
            if at == 3 and len(calls) < 3:
                # Also one that would mean something if it came from the broker.
                raise (ConnectionError, NotAssigned)[len(calls) - 1]("the bank does not answer")
            yield f"{name}-out", message.body

    with Processor(server, name, name, handle, start="earliest", retry_delay_s=0.01):
        until(lambda: is_done(server, name, name, 10), "not all is processed")
    assert calls == [10, 10, 10]
    assert sorted(effects(server, f"{name}-out").values()) == [1] * 10


@pytest.mark.parametrize("tag", ["", "odd"])
def test_a_message_that_always_fails_is_a_dead_letter_and_the_others_have_their_effect(
    server: str, name: str, tag: str
) -> None:
    create_topic(server, name, 1)
    with Producer(server) as producer:
        for n in range(100):
            producer.send_async(name, Message(b"%d" % n, tag="odd" if n % 2 else "even"))
    poison = {b"%d" % n for n in (1, 33, 35, 99)}
    calls: Counter[bytes] = Counter()

    def handle(messages: list[ReceivedMessage]) -> Made:
        if len(messages) == 1:
            calls[messages[0].body] += 1
        if any(one.body in poison for one in messages):
            raise ValueError("it is poison")
        return [(f"{name}-out", Message(one.body)) for one in messages]

    options: dict[str, Any] = {"start": "earliest", "retry_delay_s": 0.01, "max_attempts": 3}
    with Processor(server, name, {name: tag or None}, handle, **options), Admin(server) as admin:
        until(lambda: is_done(server, name, name, 100), "not all is processed")
        letters = [one.message for one in admin.list_dead_letters(name).messages]
    assert {one.body for one in letters} == poison
    assert len(letters) == len(poison)
    assert {(one.origin.attempts, one.origin.reason) for one in letters} == {
        (3, "ValueError: it is poison")
    }
    assert {calls[body] for body in poison} == {3}
    wanted = {b"%d" % n for n in range(100) if n % 2 or not tag} - poison
    assert effects(server, f"{name}-out") == dict.fromkeys(wanted, 1)


def test_failures_that_pass_by_themselves_make_no_dead_letters(server: str, name: str) -> None:
    create_topic(server, name, 1)
    send(server, name, 0, [b"x"])
    failures = iter([Unreachable("no broker answers")] * 5)

    def handle(messages: list[ReceivedMessage]) -> Made:
        for failure in failures:
            raise failure
        return [(f"{name}-out", Message(one.body)) for one in messages]

    options: dict[str, Any] = {"start": "earliest", "retry_delay_s": 0.01, "max_attempts": 1}
    with Processor(server, name, name, handle, **options), Admin(server) as admin:
        until(lambda: is_done(server, name, name, 1), "it is not processed")
        with pytest.raises(TopicNotFound):
            admin.list_dead_letters(name)
    assert effects(server, f"{name}-out") == {b"x": 1}


def test_messages_of_which_nothing_is_made_are_done_too(server: str, name: str) -> None:
    fill(server, name, 2, 3_000)  # more than the broker sends without a word of progress
    with Processor(server, name, name, lambda _: None, start="earliest", batch_messages=100):
        until(lambda: is_done(server, name, name, 6_000), "not all is processed")


def test_a_filter_leaves_gaps_which_are_passed_over(server: str, name: str) -> None:
    create_topic(server, name, 1)
    with Producer(server) as producer:
        for n in range(200):
            producer.send_async(name, Message(b"%d" % n, tag="odd" if n % 2 else "even"))
    handler = echo(f"{name}-out")
    with Processor(server, name, {name: "odd"}, handler, start="earliest", batch_messages=3):
        until(lambda: sum(effects(server, f"{name}-out").values()) == 100, "not all is processed")
        until(lambda: is_done(server, name, name, 200), "the offset stays behind")
    assert set(effects(server, f"{name}-out")) == {b"0/%d" % n for n in range(1, 200, 2)}


def test_members_that_come_and_go_do_nothing_twice_and_in_order(server: str, name: str) -> None:
    create_topic(server, f"{name}-out", 1)
    fill(server, name, QUEUES, 500)

    def handle(messages: list[ReceivedMessage]) -> Made:
        time.sleep(0.002)
        return echo(f"{name}-out")(messages)

    total = QUEUES * 500
    with Processor(server, name, name, handle, start="earliest", batch_messages=5) as first:
        for _ in range(3):
            with Processor(server, name, name, handle, start="earliest", batch_messages=9) as one:
                until(functools.partial(has_two, first, one), "queues are not shared")
        until(lambda: is_done(server, name, name, total), "not all is processed")
    (made,) = read_all(server, f"{name}-out")
    for queue_id in range(QUEUES):
        own = [body for body in made if body.startswith(b"%d/" % queue_id)]
        assert own == [b"%d/%d" % (queue_id, at) for at in range(500)]


def test_a_group_that_an_operator_sets_back_works_again(server: str, name: str) -> None:
    create_topic(server, name, 1)
    send(server, name, 0, [b"%d" % n for n in range(300)])
    handler = echo(f"{name}-out")
    with (
        Processor(server, name, name, handler, start="earliest", batch_messages=10),
        Admin(server) as admin,
    ):
        until(lambda: is_done(server, name, name, 300), "not all is processed")
        assert set(effects(server, f"{name}-out").values()) == {1}
        admin.reset_offsets(name, name, to="earliest")
        until(lambda: sum(effects(server, f"{name}-out").values()) >= 600, "not again")
        until(lambda: is_done(server, name, name, 300), "not all is processed again")
    assert set(effects(server, f"{name}-out").values()) == {2}


def test_output_that_does_not_fit_an_entry_goes_in_parts(server: str, name: str) -> None:
    create_topic(server, name, 1)
    send(server, name, 0, [b"%d" % n for n in range(16)])

    def handle(messages: list[ReceivedMessage]) -> Made:
        size = 1 << 20
        return [(f"{name}-out", Message(one.body.ljust(size, b"."))) for one in messages]

    options = {"start": "earliest", "compress_above_bytes": 1 << 30}
    with Processor(server, name, name, handle, **options):  # type: ignore[arg-type]
        until(lambda: is_done(server, name, name, 16), "not all is processed")
    made = effects(server, f"{name}-out")
    assert {body.rstrip(b"."): count for body, count in made.items()} == {
        b"%d" % n: 1 for n in range(16)
    }


def test_a_ghost_does_nothing_with_effect(server: str, name: str) -> None:
    """While its handler was at work another has done the work."""
    create_topic(server, name, 1)
    create_topic(server, f"{name}-out", 1)
    send(server, name, 0, [b"%d" % n for n in range(10)])
    is_at_work, may_go_on = threading.Event(), threading.Event()

    def slow(messages: list[ReceivedMessage]) -> Made:
        is_at_work.set()
        may_go_on.wait(DEADLINE_S)
        return echo(f"{name}-out")(messages)

    with Processor(server, name, name, slow, start="earliest") as ghost:
        assert is_at_work.wait(DEADLINE_S)
        done = [WireMessage(body=b"0/%d" % n) for n in range(7)]
        request = AtomicRequest(
            group=name,
            member_id=ghost._client._session.options.member,
            positions=[QueuePosition(topic=name, queue_id=0, queue_offset=7)],
            batches=[Batch(topic=f"{name}-out", producer_id=name, sequence=1, messages=done)],
        )
        call(server, "ProducerService/SendAtomically", request, AtomicResponse)
        may_go_on.set()
        send(server, name, 0, [b"%d" % n for n in range(10)])
        until(lambda: is_done(server, name, name, 20), "not all is processed")
    assert effects(server, f"{name}-out") == Counter({b"0/%d" % n: 1 for n in range(20)})


def test_a_queue_whose_messages_fail_can_be_had_by_another(server: str, name: str) -> None:
    fill(server, name, QUEUES, 10)
    sick = threading.Event()
    sick.set()

    def handle(messages: list[ReceivedMessage]) -> Made:
        if sick.is_set():
            raise ConnectionError("the bank does not answer")
        return echo(f"{name}-out")(messages)

    options: dict[str, Any] = {"start": "earliest", "retry_delay_s": 0.05, "threads": QUEUES}
    with Processor(server, name, name, handle, **options) as first:
        until(lambda: len(first.assignment) == QUEUES, "it has not all queues")
        with Processor(server, name, name, echo(f"{name}-out"), **options) as second:
            until(lambda: has_two(second), "queues are not shared")
            sick.clear()
            until(lambda: is_done(server, name, name, 10 * QUEUES), "not all is processed")
    assert sorted(effects(server, f"{name}-out").values()) == [1] * 10 * QUEUES


def test_wrong_use_is_refused(server: str, name: str) -> None:
    with pytest.raises(IllegalConfig):
        Processor(server, name, name, lambda _: None, batch_messages=0)
    with pytest.raises(IllegalConfig):
        Processor(server, name, name, lambda _: None, max_attempts=0)
    with pytest.raises(IllegalTopic):
        Processor(server, name, "not/a/topic", lambda _: None)
    create_topic(server, name, 1)
    closed = Processor(server, name, name, lambda _: None)
    closed.close()
    with pytest.raises(RuntimeError):
        closed.start()


def test_with_asyncio(server: str, name: str) -> None:
    create_topic(server, name, 1)
    send(server, name, 0, [b"%d" % n for n in range(10)])

    async def handle(messages: list[ReceivedMessage]) -> list[tuple[str, bytes]]:
        await asyncio.sleep(0)
        return [(f"{name}-out", one.body) for one in messages]

    async def serve() -> None:
        async with aio.Processor(server, name, name, handle, start="earliest") as processor:
            assert len(processor.assignment) == 1
            await asyncio.to_thread(
                until, lambda: is_done(server, name, name, 10), "not all is processed"
            )
        await processor.join()
        with pytest.raises(RuntimeError):
            await processor.start()

    asyncio.run(asyncio.wait_for(serve(), 60))
    assert set(effects(server, f"{name}-out").values()) == {1}
