"""Handlers that fail against a real broker: messages come back, are given up, and are sent again,
also when the broker is killed in between.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import urllib.request
from collections import Counter
from queue import Queue
from typing import TYPE_CHECKING, Any

import pytest

from mq.client import (
    Admin,
    Consumer,
    Message,
    MessageBatch,
    Nack,
    Producer,
    PushConsumer,
    ReceivedMessage,
    aio,
)
from mq.client.messages import QueueRef
from mq.errors import PermissionDenied, UnknownMember
from mq.wire.v1.admin_pb2 import LETTER_RESULT_ALREADY_RESENT, LETTER_RESULT_GONE
from tests.support.broker_process import BrokerProcess
from tests.support.topics import committed, create_topic, eventually, fill, send
from tests.support.warm_process import run_mq

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


@pytest.fixture
def server(broker: BrokerProcess) -> str:
    return broker.address


class Seen:
    """The calls of a handler; it fails as often as it is told to."""

    def __init__(self, failures: int = 0, nack: Nack | None = None) -> None:
        self.messages: list[ReceivedMessage] = []
        self._failures = failures
        self._nack = nack
        self._lock = threading.Lock()

    def __call__(self, message: ReceivedMessage) -> None:
        with self._lock:
            self.messages.append(message)
        if message.attempt <= self._failures:
            raise self._nack or ValueError(f"attempt {message.attempt}")

    @property
    def attempts(self) -> list[int]:
        return [one.attempt for one in self.messages]


def test_a_failed_message_comes_back_with_its_attempt_and_origin(server: str, name: str) -> None:
    create_topic(server, name, 2)
    message = Message(b"order", tag="paid", keys=["k"], properties={"a": "b"}, ordering_key="c")
    send(server, name, 1, [b"first"])
    with Producer(server) as producer:
        sent = producer.send(name, message)
    seen = Seen(failures=2)
    options: dict[str, Any] = {"start": "earliest", "retry_delay_s": [0, 0.2]}
    with PushConsumer(server, name, {name: "paid"}, seen, **options) as consumer:
        eventually(lambda: len(seen.messages) == 3)
        assert QueueRef(f"%RETRY%{name}", 0, "set-0") in consumer.assignment
        # The work on the topic itself is done when the broker has the message back.
        eventually(lambda: sum(committed(server, name, name).values()) == 2)
        eventually(lambda: committed(server, name, f"%RETRY%{name}") == {0: 2})
    assert seen.attempts == [1, 2, 3]
    first, *others = seen.messages
    assert first.origin is None
    for one in others:
        assert (one.topic, one.body, one.tag, one.keys) == (name, b"order", "paid", ("k",))
        assert (one.properties, one.ordering_key) == ({"a": "b"}, "c")
        assert one.queue == QueueRef(f"%RETRY%{name}", 0, "set-0")
        assert one.origin is not None
        assert one.origin.message_id == sent.message_id == first.message_id
        assert (one.origin.topic, one.origin.queue_offset) == (name, sent.queue_offset)
        assert one.origin.stored_at_ms == first.stored_at_ms
    assert [one.origin.reason for one in others if one.origin] == [
        "ValueError: attempt 1",
        "ValueError: attempt 2",
    ]
    later_ms = others[1].stored_at_ms - others[0].stored_at_ms
    assert later_ms >= 200


def test_a_failing_message_delays_no_other(server: str, name: str) -> None:
    sent = fill(server, name, queues=2, each=200)
    handled: list[bytes] = []

    def handle(message: ReceivedMessage) -> None:
        if message.queue_offset % 10 == 0 and message.origin is None:
            raise Nack("later", delay_s=3600)
        handled.append(message.body)

    with PushConsumer(server, name, name, handle, start="earliest", threads=4):
        eventually(lambda: len(handled) == 360)
        eventually(lambda: committed(server, name, name) == {0: 200, 1: 200})
    assert len(set(handled)) == 360
    assert set(handled) < sent
    with Admin(server) as admin:
        assert admin.describe_group(name).summary.lag == 0


def test_after_too_many_attempts_it_is_a_dead_letter_and_comes_again_when_resent(
    server: str, broker: BrokerProcess, name: str
) -> None:
    create_topic(server, name, 1)
    send(server, name, 0, [b"poison"])
    seen = Seen(failures=3, nack=Nack("bad", delay_s=0))
    with Admin(server) as admin:
        assert admin.alter_group(name, retries_max=2).retries_max == 2
        with PushConsumer(server, name, name, seen, start="earliest"):
            eventually(lambda: name in [one.group for one in admin.count_dead_letters()])
            assert seen.attempts == [1, 2, 3]
            (letter,) = admin.list_dead_letters(name).messages
            assert (letter.message.body, letter.message.origin.attempts) == (b"poison", 3)
            assert letter.message.origin.reason == "bad"
            url = f"http://127.0.0.1:{broker.metrics_port}/metrics"
            text = urllib.request.urlopen(url).read().decode()
            assert f'mq_dlq_messages_total{{group="{name}"}} 1.0' in text
            assert f'mq_retry_messages_total{{group="{name}"}} 2.0' in text
            # Counted from 0 again, so that it fails as often again.
            assert admin.resend_dead_letters(name) == 1
            eventually(lambda: seen.attempts == [1, 2, 3, 1, 2, 3])
            eventually(lambda: len(admin.list_dead_letters(name).messages) == 1)
        assert admin.purge_dead_letters(name) == 1
        assert admin.list_dead_letters(name).messages[:] == []


def test_a_batch_fails_as_a_whole_and_its_messages_end_as_dead_letters(
    server: str, name: str
) -> None:
    sent = fill(server, name, queues=2, each=30)
    handled: list[ReceivedMessage] = []
    failed: Counter[bytes] = Counter()

    def handle(batch: MessageBatch) -> None:
        assert len(batch) <= 10
        assert len({one.queue for one in batch}) == 1
        if any(body.startswith(b"0-1") for body in batch.bodies):
            failed.update(batch.bodies)
            raise Nack("bad", delay_s=0)
        handled.extend(batch)

    with Admin(server) as admin:
        admin.alter_group(name, retries_max=2)
        with PushConsumer(
            server, name, name, handle, start="earliest", threads=1, batch_messages=10
        ):
            eventually(
                lambda: any(
                    one.group == name and one.messages >= 11 for one in admin.count_dead_letters()
                )
            )
            eventually(lambda: committed(server, name, name) == {0: 30, 1: 30})
            eventually(lambda: admin.describe_group(name).summary.lag == 0)
        letters = admin.list_dead_letters(name, max_messages=100).messages
    dead = {one.message.body for one in letters}
    assert {one.message.origin.attempts for one in letters} == {3}
    # A message that was in a batch with one of them may have come through later.
    assert {b"0-1", *(b"0-1%d" % at for at in range(10))} <= dead
    assert all(failed[body] == 3 for body in dead)
    assert sorted(dead | {one.body for one in handled}) == sorted(sent)
    assert len(dead) + len(handled) == len(sent)
    of_good_queue = [one.body for one in handled if one.body.startswith(b"1-")]
    assert of_good_queue == [b"1-%d" % at for at in range(30)]


def test_a_close_finishes_the_batch_at_work(server: str, name: str) -> None:
    fill(server, name, queues=1, each=30)
    begun, gate = threading.Event(), threading.Event()
    seen: list[int] = []

    def handle(batch: MessageBatch) -> None:
        begun.set()
        gate.wait(30)
        seen.extend(batch.offsets)

    consumer = PushConsumer(
        server, name, name, handle, start="earliest", threads=1, batch_messages=20
    )
    consumer.start()
    assert begun.wait(30)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    gate.set()
    closing.join(30)
    assert seen == list(range(20))
    assert committed(server, name, name) == {0: 20}


def test_a_consumer_that_polls_gives_messages_back(server: str, name: str) -> None:
    create_topic(server, name, 1)
    send(server, name, 0, [b"0", b"1", b"2"])
    with Consumer(server, name, name, start="earliest", auto_commit=False) as consumer:
        found: list[ReceivedMessage] = []
        while len(found) < 3:
            found += consumer.poll(timeout_s=10)
        consumer.nack(found[1], delay_s=0, reason="not now")
        consumer.done(found[0], found[2])
        consumer.commit([])
        assert committed(server, name, name) == {0: 3}
        (again,) = consumer.poll(timeout_s=30)
        assert (again.body, again.attempt, again.topic) == (b"1", 2, name)
        assert again.origin is not None
        assert again.origin.reason == "not now"
        consumer.commit()
        assert committed(server, name, f"%RETRY%{name}") == {0: 1}


def test_an_ordered_group_retries_in_place_and_holds_its_queue(server: str, name: str) -> None:
    create_topic(server, name, 1)
    send(server, name, 0, [b"%d" % at for at in range(5)])

    async def story() -> list[tuple[bytes, int]]:
        seen: list[tuple[bytes, int]] = []

        async def handle(message: ReceivedMessage) -> Nack | None:
            seen.append((message.body, message.attempt))
            return Nack(delay_s=0) if message.body == b"2" and message.attempt < 3 else None

        options: dict[str, Any] = {"mode": "ordered", "start": "earliest"}
        async with aio.PushConsumer(server, name, name, handle, **options):
            async with asyncio.timeout(60):
                while len(seen) < 7:  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(0.01)
        return seen

    first = [(b"0", 1), (b"1", 1), (b"2", 1), (b"2", 2), (b"2", 3), (b"3", 1), (b"4", 1)]
    assert asyncio.run(story()) == first
    with Admin(server) as admin:
        topics = [one.info.topic for one in admin.list_topics(include_internal=True)]
    assert f"%RETRY%{name}" not in topics


def test_a_member_of_an_ordered_group_that_hangs_is_seen_and_can_be_sent_away(
    server: str, name: str
) -> None:
    create_topic(server, name, 1)
    send(server, name, 0, [b"%d" % at for at in range(5)])
    hangs, goes_on, done = threading.Event(), threading.Event(), Queue[bytes]()

    def hang(message: ReceivedMessage) -> None:
        if message.body == b"2":
            hangs.set()
            assert goes_on.wait(60)

    options: dict[str, Any] = {"mode": "ordered", "start": "earliest"}
    with (
        Admin(server) as admin,
        PushConsumer(server, name, name, hang, member_id="stuck", **options) as stuck,
        PushConsumer(
            server, name, name, lambda one: done.put(one.body), member_id="next", **options
        ),
    ):
        assert hangs.wait(60)
        # It lives, and keeps its queue.
        eventually(lambda: committed(server, name, name) == {0: 2})
        stalled = {one.member_id: one.stalled_ms for one in admin.describe_group(name).members}
        assert stalled.keys() == {"stuck", "next"}
        assert stalled["stuck"] > 0
        assert stalled["next"] == 0
        assert done.empty()
        admin.evict_member(name, "stuck", "its handler hangs")
        assert [done.get(timeout=60) for _ in range(3)] == [b"2", b"3", b"4"]
        with pytest.raises(UnknownMember):
            admin.evict_member(name, "stuck", "again")
        eventually(lambda: committed(server, name, name) == {0: 5})
        goes_on.set()
        with pytest.raises(PermissionDenied, match="its handler hangs"):
            stuck.join(timeout_s=60)
        # What it says when it goes on counts for nothing, and it does not come back.
        assert [one.member_id for one in admin.describe_group(name).members] == ["next"]
        assert committed(server, name, name) == {0: 5}


def test_a_broker_that_is_killed_in_between_loses_nothing(tmp_path: Path, name: str) -> None:
    count = 200
    with BrokerProcess(tmp_path / "data") as broker:
        server = broker.address
        create_topic(server, name, 2)
        bodies = {b"%d-%d" % (queue, at) for queue in range(2) for at in range(count)}
        for queue in range(2):
            send(server, name, queue, [b"%d-%d" % (queue, at) for at in range(count)])
        done: list[bytes] = []
        failed = threading.Event()
        lock = threading.Lock()

        def handle(message: ReceivedMessage) -> None:
            if message.origin is None and int(message.body.split(b"-")[1]) % 2:
                failed.set()
                raise Nack(delay_s=0.2)
            with lock:
                done.append(message.body)

        with PushConsumer(server, name, name, handle, start="earliest", threads=4) as consumer:
            assert failed.wait(30)
            broker.kill()
            broker.start()
            eventually(lambda: set(done) == bodies)
            eventually(lambda: not any(consumer._client._session.buffer.cached_messages.values()))
        with Admin(server) as admin:
            assert admin.describe_group(name).summary.lag == 0
        # What was under way when it was killed may come twice; what the broker has is once.
        assert len(done) < 2 * len(bodies)


# -- the commands ---------------------------------------------------------------------------------


def mq(server: str, *arguments: str, exit_code: int = 0) -> str:
    environment = {**os.environ, "MQ_SERVER": server, "COLUMNS": "80"}
    done = run_mq(*arguments, environment=environment)
    assert done.returncode == exit_code, (done.stdout + done.stderr).decode()
    assert b"Traceback" not in done.stderr
    return (done.stdout if exit_code == 0 else done.stderr).decode()


def test_operators_see_resend_and_purge_dead_letters(server: str, name: str) -> None:
    create_topic(server, name, 1)
    send(server, name, 0, [b"0", b"1", b"2"])
    assert "0 times" in mq(server, "group", "set", name, "--retries", "0")
    seen = Seen(failures=1)
    with PushConsumer(server, name, name, seen, start="earliest"), Admin(server) as admin:
        eventually(lambda: (name, 3) in [(c.group, c.messages) for c in admin.count_dead_letters()])
    text = mq(server, "dlq", "list", name)
    assert "3 dead letters" in text
    assert max(map(len, text.splitlines())) <= 80
    shown = json.loads(mq(server, "dlq", "show", name, "1", "--json"))
    assert (shown["origin"]["topic"], shown["origin"]["attempts"]) == (name, 1)
    assert shown["origin"]["reason"] == "ValueError: attempt 1"
    assert "retries" in mq(server, "group", "describe", name)
    assert "MESSAGE_NOT_FOUND" in mq(server, "dlq", "show", name, "9", exit_code=1)
    resent = mq(server, "dlq", "resend", name, "1")
    assert "1 dead letter of 1 sent again" in resent
    assert "set-0:" in resent
    mq(server, "dlq", "resend", name, "0", "1", "7", exit_code=1)
    with Admin(server) as admin:
        outcomes = admin.settle_dead_letters(name, [0, 1, 7], "resend")
        page = admin.list_dead_letters(name)
    assert [one.result for one in outcomes] == [
        LETTER_RESULT_ALREADY_RESENT,
        LETTER_RESULT_ALREADY_RESENT,
        LETTER_RESULT_GONE,
    ]
    assert [one.message_id in page.resent_ids for one in page.messages] == [True, True, False]
    dropped = json.loads(mq(server, "dlq", "purge", name, "2", "--yes", "--json"))
    assert [(one["queue_offset"], one["result"]) for one in dropped] == [(2, "purged")]
    assert "Sent 2 dead letters" in mq(server, "dlq", "resend", name, "--all")
    assert json.loads(mq(server, "dlq", "purge", name, "--yes", "--json"))["purged"] == 0
    described = json.loads(mq(server, "group", "describe", name, "--json"))
    (retry,) = [one for one in described["queues"] if one["topic"] == f"%RETRY%{name}"]
    assert (retry["lag"], described["settings"]["retries_max"]) == (4, 0)
