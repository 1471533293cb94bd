"""The SimpleConsumer against real brokers: sharing a queue, coming again, brokers that die."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from mq.client import Admin, ReceivedMessage, SimpleConsumer, aio
from mq.errors import (
    GroupNotEmpty,
    IllegalConfig,
    IllegalHandle,
    SubscriptionMismatch,
)
from mq.wire.v1.message_pb2 import COMPRESSION_LZ4, Message
from tests.support.broker_process import BrokerProcess
from tests.support.topics import (
    DEADLINE_S,
    committed,
    create_topic,
    eventually,
    fill,
    send,
    send_prepared,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker.address


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return [one.body for one in messages]


def test_more_consumers_than_queues_share_the_work_and_nothing_comes_twice(
    server: str, name: str
) -> None:
    expected = fill(server, name, 1, 400)
    seen: list[bytes] = []
    workers: set[int] = set()
    begin = threading.Barrier(5)

    def work(at: int) -> None:
        with SimpleConsumer(server, name, name, start="earliest") as consumer:
            begin.wait(DEADLINE_S)
            while messages := consumer.receive(16, wait_s=0.5):
                workers.add(at)
                seen.extend(bodies(messages))
                consumer.ack(messages)

    threads = [threading.Thread(target=work, args=[at]) for at in range(5)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(2 * DEADLINE_S)
    assert sorted(seen) == sorted(expected)
    assert len(workers) > 1
    assert committed(server, name, name) == {0: 400}


def test_a_batch_that_is_acknowledged_is_not_delivered_again(server: str, name: str) -> None:
    expected = fill(server, name, 4, 50)
    with SimpleConsumer(server, name, name, start="earliest") as consumer:
        seen: list[bytes] = []
        while batch := consumer.receive_batch(64, wait_s=0.5):
            assert len(batch) <= 64
            assert bodies(batch.messages) == batch.bodies
            seen += batch.bodies
            batch.ack()
        assert sorted(seen) == sorted(expected)
        eventually(lambda: committed(server, name, name) == dict.fromkeys(range(4), 50))


def test_messages_of_a_batch_that_are_not_acknowledged_are_delivered_again(
    server: str, name: str
) -> None:
    expected = fill(server, name, 2, 20)

    async def check() -> None:
        async with aio.SimpleConsumer(server, name, name, start="earliest") as consumer:
            first = await consumer.receive_batch(20, wait_s=10)
            await first.ack()
            second = await consumer.receive_batch(wait_s=10)
            assert {*first.bodies, *second.bodies} == expected
            with pytest.raises(IllegalHandle, match="20 of 20"):
                await first.ack()
            await consumer.nack(second, delay_s=0)
            again = await consumer.receive_batch(wait_s=10)
            assert sorted(again.bodies) == sorted(second.bodies)
            assert {one.attempt for one in again} == {2}
            await again.ack()
            assert len(await consumer.receive_batch(wait_s=0)) == 0

    asyncio.run(check())


def test_a_message_comes_again_after_a_nack_with_its_attempt(server: str, name: str) -> None:
    create_topic(server, name, 1)
    with SimpleConsumer(server, name, name, start="earliest") as consumer:
        send(server, name, 0, [b"a", b"b"])
        first = consumer.receive(wait_s=10)
        assert [one.attempt for one in first] == [1, 1]
        consumer.nack(first[0], delay_s=0, reason="not yet")
        consumer.ack(first[1])
        (again,) = consumer.receive(wait_s=10)
        assert (again.body, again.attempt, again.message_id) == (b"a", 2, first[0].message_id)
        with pytest.raises(IllegalHandle, match="1 of 1"):
            consumer.ack(first[0])
        consumer.change_invisible(again, 30)
        consumer.ack(again)
        with pytest.raises(IllegalHandle, match="2 of 2"):
            consumer.ack(first)
        assert consumer.receive(wait_s=0) == []


def test_of_neighbours_only_those_are_refused_that_are_done(server: str, name: str) -> None:
    create_topic(server, name, 1)
    send(server, name, 0, [b"%d" % at for at in range(6)])
    with SimpleConsumer(server, name, name, start="earliest") as consumer:
        messages = consumer.receive(wait_s=10)
        consumer.ack(messages[2])
        with pytest.raises(IllegalHandle, match="1 of 6"):
            consumer.ack(messages)
        assert committed(server, name, name) == {0: 6}


def test_messages_of_a_killed_consumer_go_to_another_one(server: str, name: str) -> None:
    create_topic(server, name, 1)
    send(server, name, 0, [b"a", b"b", b"c"])
    script = (
        "import sys, time\n"
        "from mq.client import SimpleConsumer\n"
        f"consumer = SimpleConsumer({server!r}, {name!r}, {name!r}, start='earliest')\n"
        "messages = consumer.receive(invisible_s=10, wait_s=30)\n"
        "consumer.ack(messages[1])\n"
        "print('received', flush=True)\n"
        "time.sleep(600)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "received\n"
    finally:
        child.kill()
        child.communicate()
    with SimpleConsumer(server, name, name) as consumer:
        assert consumer.receive(wait_s=0) == []
        again = consumer.receive(wait_s=40)
        assert bodies(again) == [b"a", b"c"]
        assert {one.attempt for one in again} == {2}


def test_leases_outlive_a_broker_that_is_killed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        expected = fill(broker.address, "t", 2, 50)
        with SimpleConsumer(broker.address, "g", "t", start="earliest") as consumer:
            first = consumer.receive(60, wait_s=10)
            consumer.ack(first[:20])
            broker.kill()
            asked: list[list[ReceivedMessage]] = []
            waiting = threading.Thread(
                target=lambda: asked.append(consumer.receive(100, wait_s=30))
            )
            waiting.start()
            broker.start()
            # It stayed in flight, and its handles are good.
            consumer.ack(first[20:40])
            waiting.join(2 * DEADLINE_S)
            (rest,) = asked
            consumer.ack(rest)
            # Without a reload of what was acknowledged: only these 20 come again.
            consumer.nack(first[40:], delay_s=0)
            again = consumer.receive(100, wait_s=30)
            assert {one.attempt for one in again} == {2}
            assert sorted(bodies(again)) == sorted(bodies(first[40:]))
            consumer.ack(again)
            assert set(bodies(first) + bodies(rest)) == expected
            assert consumer.receive(wait_s=0) == []


def test_an_acknowledgement_without_an_answer_that_is_made_again_is_no_error(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        create_topic(broker.address, "t", 1)
        send(broker.address, "t", 0, [b"a"])

        async def check() -> None:
            async with aio.SimpleConsumer(broker.address, "g", "t", start="earliest") as consumer:
                (message,) = await consumer.receive(wait_s=10)
                await consumer.ack(message)
                # As if the answer had been lost with the broker: the same once more.
                broker.kill()
                call = asyncio.ensure_future(consumer.ack(message))
                await asyncio.sleep(0.2)
                await asyncio.to_thread(broker.start)
                await call

        asyncio.run(check())


def test_messages_of_a_key_come_in_order_to_any_consumer(server: str, name: str) -> None:
    create_topic(server, name, 2)
    keys = [f"k{at % 5}" for at in range(100)]
    for queue_id in range(2):
        messages = [
            Message(body=b"%d" % at, ordering_key=key)
            for at, key in enumerate(keys)
            if int(key[1]) % 2 == queue_id
        ]
        send(server, name, queue_id, messages)
    lock = threading.Lock()
    seen: dict[str, list[int]] = {}
    in_hand: set[str] = set()
    overtaken: list[str] = []

    def work() -> None:
        with SimpleConsumer(server, name, name, start="earliest", is_ordered=True) as consumer:
            deadline = time.monotonic() + DEADLINE_S
            while sum(map(len, seen.values())) < 100 and time.monotonic() < deadline:
                for message in consumer.receive(4, wait_s=0.5):
                    key = message.ordering_key
                    with lock:
                        if key in in_hand:
                            overtaken.append(key)
                        in_hand.add(key)
                        seen.setdefault(key, []).append(int(message.body))
                    time.sleep(0.001)
                    with lock:
                        in_hand.discard(key)
                    consumer.ack(message)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(2 * DEADLINE_S)
    assert sorted(number for one in seen.values() for number in one) == list(range(100))
    assert all(one == sorted(one) for one in seen.values())
    assert overtaken == []


def test_a_consumer_that_was_there_before_its_topic_has_its_first_messages(
    server: str, name: str
) -> None:
    with SimpleConsumer(server, name, name) as consumer:
        assert consumer.receive(wait_s=0.0) == []
        with Admin(server) as admin:
            assert admin.route([name]).topics == []
        # Between two receives, of a group that starts at the end of the topic.
        send(server, name, 0, [b"first"])
        assert bodies(consumer.receive(wait_s=DEADLINE_S)) == [b"first"]


def test_several_topics_at_once(server: str, name: str) -> None:
    topics = [f"{name}-{at}" for at in range(3)]
    for topic in topics:
        create_topic(server, topic, 1)
    with SimpleConsumer(server, name, topics, start="earliest") as consumer:
        assert consumer.receive(wait_s=0) == []
        sender = threading.Timer(0.3, send, [server, topics[2], 0, [b"late"]])
        sender.start()
        (late,) = consumer.receive(wait_s=20)
        sender.join()
        assert (late.topic, late.body) == (topics[2], b"late")
        consumer.ack(late)
        for topic in topics:
            send(server, topic, 0, [b"x"] * 5)
        assert len(consumer.receive(2, wait_s=10)) == 2
        assert len(consumer.receive(100, wait_s=10)) == 13


def test_messages_that_cannot_be_read_are_passed_over_and_done(server: str, name: str) -> None:
    create_topic(server, name, 1)
    good = Message(body=b"good").SerializeToString()
    bad = Message(body=b"this is no LZ4", compression=COMPRESSION_LZ4).SerializeToString()
    send_prepared(server, name, 0, [good, bad, good])
    with SimpleConsumer(server, name, name, start="earliest") as consumer:
        messages = consumer.receive(wait_s=10)
        assert bodies(messages) == [b"good", b"good"]
        assert consumer.unreadable_messages == 1
        consumer.ack(messages)
    eventually(lambda: committed(server, name, name) == {0: 3})


def test_misuse_raises_an_error_that_names_it(server: str, name: str) -> None:
    create_topic(server, name, 1)
    with SimpleConsumer(server, name, name) as one, SimpleConsumer(server, name, name) as other:
        one.receive(wait_s=0)
        with pytest.raises(SubscriptionMismatch):
            SimpleConsumer(server, name, {name: "a"}).receive(wait_s=0)
        with pytest.raises(IllegalConfig):
            other.receive(0)
        with pytest.raises(IllegalConfig):
            other.receive(wait_s=-1)
        foreign = ReceivedMessage(name, 0, 0, "set-0:1", 0, 0, b"", "", (), {}, "")
        with pytest.raises(IllegalHandle, match="set-0:1"):
            other.ack(foreign)


def test_a_consumer_that_is_closed_has_left_its_group(server: str, name: str) -> None:
    create_topic(server, name, 1)
    with SimpleConsumer(server, name, name) as consumer, Admin(server) as admin:
        consumer.receive(wait_s=0)
        with pytest.raises(GroupNotEmpty):
            admin.delete_group(name)
        consumer.close()
        with SimpleConsumer(server, name, {name: "other"}) as other:
            other.receive(wait_s=0)
        admin.delete_group(name)


def test_dead_letters_that_are_resent_come_again(server: str, name: str) -> None:
    create_topic(server, name, 1)
    send(server, name, 0, [b"a"])
    with Admin(server) as admin:
        admin.alter_group(name, retries_max=1)
        with SimpleConsumer(server, name, name, start="earliest") as consumer:
            for attempt in (1, 2):
                (message,) = consumer.receive(wait_s=10)
                assert message.attempt == attempt
                consumer.nack(message, delay_s=0, reason="no luck")
            assert consumer.receive(wait_s=0) == []
        assert admin.resend_dead_letters(name) == 1
        with SimpleConsumer(server, name, name) as consumer:
            (message,) = consumer.receive(wait_s=10)
            assert message.origin is not None
            assert (message.body, message.topic, message.attempt) == (b"a", name, 1)
            assert message.origin.reason == "no luck"
            consumer.ack(message)
            assert consumer.receive(wait_s=0) == []
