"""One broker that is killed, or stopped, between every two things that its clients do, and at any
moment under load: their history has no hole, nothing twice, and nothing out of order.
"""

from __future__ import annotations

import os
import random
import threading
from typing import TYPE_CHECKING

import grpc
import pytest

from mq.client import Admin, PullConsumer, ReceivedMessage
from tests.conformance.calls import Calls, code_of, prepared
from tests.conformance.streams import PublishStream
from tests.support.broker_process import BrokerProcess
from tests.support.history import History, Outcome, Queue
from tests.support.raft_cluster import free_port
from tests.support.recorded_clients import (
    PATIENCE_S,
    Load,
    RecordedConsumer,
    RecordedProducer,
    ask_offsets,
    drain,
    patiently,
    polling,
    pushing,
    read_to_end,
    sending_many,
    sending_one_by_one,
    told_with,
    wait_read,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

TOPIC = "orders"
QUEUES = 4
POLLED, PUSHED, BY_HAND = "polled", "pushed", "by-hand"
# KILL_SEEDS=100 for a long run.
SEEDS = range(int(os.environ.get("KILL_SEEDS", "3")))


class Stage:
    """A broker, and what is known of it."""

    def __init__(self, directory: Path, title: str, *flags: str) -> None:
        flags = ("--metrics-enabled", "no", *flags)
        self.broker = BrokerProcess(directory / "data", *flags, port=free_port())
        self.history = History(title)
        self.address = self.broker.address

    def restart(self, *, is_killed: bool) -> None:
        if is_killed:
            self.history.note("kill -9")
            self.broker.kill()
        else:
            self.history.note("SIGTERM")
            assert self.broker.stop() == 0
        self.broker.start()
        self.history.note("it is back")

    def producer(self, name: str) -> RecordedProducer:
        return RecordedProducer(self.history, self.address, name, TOPIC)

    def consumer(self, group: str, member: str) -> RecordedConsumer:
        return RecordedConsumer(self.history, self.address, group, TOPIC, member)

    def pushing(
        self, member: str, work_on: Callable[[ReceivedMessage], object] = lambda _: None
    ) -> AbstractContextManager[object]:
        return pushing(self.history, self.address, PUSHED, TOPIC, member, work_on)

    def ask_offsets(self) -> None:
        for group in self.history.groups:
            ask_offsets(self.history, self.address, group)

    def ends(self) -> dict[Queue, int]:
        return drain(History("to count only"), self.address, TOPIC)


# -- between every two steps: each yield is a moment to die ----------------------------------------


def tell(stage: Stage) -> Iterator[str]:
    with Admin(stage.address, timeout_s=PATIENCE_S) as admin:
        admin.create_topic(TOPIC, QUEUES)
        yield "a topic"
        assert admin.describe_topic(TOPIC).info.write_queues == QUEUES
        with stage.producer("p") as producer:
            yield from produce(producer)
            yield from consume(stage)
            yield from push(stage)
            yield from count_by_hand(stage)
            yield from alter(admin, producer)
            assert producer.errors == []


def produce(producer: RecordedProducer) -> Iterator[str]:
    for queue_id in range(QUEUES):
        producer.send(queue_id=queue_id)
        producer.send(key=f"k{queue_id}")
    producer.send()
    yield "single messages"
    for queue_id in range(QUEUES):
        producer.send_batch(5, queue_id=queue_id)
    producer.send_batch(5, key="k1")
    yield "batches"
    # Some have their answer when the broker dies, some are on their way.
    futures = [producer.send_async(queue_id=at % QUEUES) for at in range(200)]
    yield "messages that nobody waits for"
    for future in futures:
        future.result(PATIENCE_S)
    yield "their answers"


def consume(stage: Stage) -> Iterator[str]:
    history = stage.history
    history.group(POLLED, [TOPIC], "member")
    with stage.consumer(POLLED, "first") as consumer:
        consumer.take(20)
        yield "a poll"
        consumer.commit()
        yield "its commit"
        consumer.take(20)
        consumer.take(20)
        yield "two polls"
        consumer.commit()
        # It held them all the time: nothing came twice, whatever became of the broker.
        assert history.repeats(POLLED) == []
        consumer.take(10)
        yield "a poll without a commit"
        assert consumer.errors == []
    yield "the end of a consumer"
    with stage.consumer(POLLED, "second") as consumer:
        consumer.take(30)
        yield "the next consumer"
        consumer.take(sum(stage.ends().values()) - 60 - 30)
        consumer.commit()
        assert len(history.repeats(POLLED)) == 10
        assert consumer.errors == []


def push(stage: Stage) -> Iterator[str]:
    """Handlers are at work when the broker dies, and go on without it."""
    stage.history.group(PUSHED, [TOPIC], "none")
    begun, gate = threading.Semaphore(0), threading.Event()

    def work_on(_: ReceivedMessage) -> None:
        begun.release()
        gate.wait(PATIENCE_S)

    with stage.pushing("pushed", work_on):
        for _ in range(6):
            assert begun.acquire(timeout=PATIENCE_S)
        yield "handlers at work"
        gate.set()
        wait_read(stage.history, PUSHED, stage.ends())
        yield "handlers that are through"
    assert stage.history.repeats(PUSHED) == []


def count_by_hand(stage: Stage) -> Iterator[str]:
    """A reader without membership reads a queue, and keeps the group's offset."""
    stage.history.group(BY_HAND, [], "member")
    queue = Queue(TOPIC, 0)
    with PullConsumer(stage.address, BY_HAND) as consumer:
        found = patiently(lambda: consumer.pull(*queue, 0, max_messages=3))
        yield "a pull"
        for message in found.messages:
            stage.history.finished(stage.history.took(BY_HAND, "hand", message))
        patiently(lambda: consumer.commit({(TOPIC, 0): 3}))
        stage.history.committed(BY_HAND, {queue: 3})
        yield "the commit of an offset"


def alter(admin: Admin, producer: RecordedProducer) -> Iterator[str]:
    admin.alter_topic(TOPIC, write_queues=6, read_queues=6)
    yield "more queues"
    assert admin.describe_topic(TOPIC).info.read_queues == 6
    producer.send(queue_id=5)
    futures = [producer.send_async(key=f"k{at % 7}") for at in range(200)]
    admin.alter_topic(TOPIC, write_queues=2)
    yield "fewer queues, while messages are on their way"
    for future in futures:
        future.result(PATIENCE_S)
    producer.send(key="k6")


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
def test_a_broker_that_ends_between_every_two_steps_keeps_its_promises(
    tmp_path: Path, is_killed: bool
) -> None:
    stage = Stage(tmp_path, "killed between steps" if is_killed else "stopped between steps")
    history = stage.history
    with stage.broker, told_with(history, stage.broker.output, tmp_path / "history"):
        for step in tell(stage):
            history.note(f"so far: {step}")
            stage.restart(is_killed=is_killed)
            stage.ask_offsets()
        ends = drain(history, stage.address, TOPIC)
        for group in (POLLED, PUSHED):
            read_to_end(history, stage.address, group, TOPIC, ends)
        history.check()
        assert history.count(Outcome.ACKNOWLEDGED) == sum(ends.values())


def test_a_repeated_batch_is_known_although_its_queue_is_read_only(
    tmp_path: Path,
) -> None:
    batch = prepared(TOPIC, b"x", queue_id=3, producer_id="p", sequence=1)
    with BrokerProcess(tmp_path / "data") as broker:
        for attempt in range(2):
            with grpc.insecure_channel(broker.address) as channel:
                calls = Calls(channel)
                if attempt == 0:
                    calls.create(TOPIC, QUEUES)
                with PublishStream(channel) as stream:
                    result = stream.result(batch)
                assert (code_of(result), result.is_duplicate) == ("SEND_OK", attempt == 1)
                assert (result.queue_id, result.queue_offset) == (3, 0)
                calls("AlterTopic", topic=TOPIC, write_queues=2)
            broker.kill()
            broker.start()


# -- at any moment, under load ---------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_a_broker_that_is_killed_at_any_moment_keeps_its_promises(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    # Small files: a kill may hit the moment in which the next one is begun, or a checkpoint.
    stage = Stage(
        tmp_path,
        f"seed {seed}",
        *("--store-segment-bytes", "64KiB", "--store-entry-bytes-max", "16KiB"),
        *("--store-message-bytes-max", "8KiB", "--store-checkpoint-log-bytes", "64KiB"),
    )
    history = stage.history
    history.group(POLLED, [TOPIC], "member")
    history.group(PUSHED, [TOPIC], "none")
    with stage.broker, told_with(history, stage.broker.output, tmp_path / "history"):
        with Admin(stage.address) as admin:
            admin.create_topic(TOPIC, QUEUES)
        consumer = stage.consumer(POLLED, "polling")
        producers = [stage.producer("single"), stage.producer("many")]
        works = [
            sending_one_by_one(producers[0], QUEUES, seed),
            sending_many(producers[1], QUEUES, seed),
            polling(consumer, seed),
        ]
        with stage.pushing("pushed"):
            with consumer, producers[0], producers[1], Load(history, *works) as load:
                for _ in range(3):
                    load.wait_for_more(rng.choice([1, 50, 300]))
                    stage.ask_offsets()
                    stage.restart(is_killed=rng.random() < 0.8)
                    stage.ask_offsets()
                load.wait_for_more(20)
            # Live members come back with the messages they hold.
            assert history.repeats(POLLED) == history.repeats(PUSHED) == []
        ends = drain(history, stage.address, TOPIC)
        for group in (POLLED, PUSHED):
            read_to_end(history, stage.address, group, TOPIC, ends)
        history.check()
        assert [error for one in producers for error in one.errors] == []
