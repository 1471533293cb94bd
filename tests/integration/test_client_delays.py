"""Delayed messages from a client to a real broker: their time, their recall, and brokers that are
killed, stopped and cleaned up while they wait.
"""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from typing import TYPE_CHECKING

import pytest

from mq.client import Admin, Consumer, Message, Producer, SendResult, aio
from mq.errors import IllegalDelay, IllegalRequest, MessageNotFound
from tests.support.broker_process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mq.wire.v1.admin_pb2 import StoredMessage

DEADLINE_S = 60.0
SMALL_LOG = (
    "--store-message-bytes-max=64KiB",
    "--store-entry-bytes-max=128KiB",
    "--store-segment-bytes=256KiB",
    "--store-checkpoint-log-bytes=256KiB",
    "--retention-bytes=512KiB",
    "--retention-check-ms=50",
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def until(question: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not question():
        assert time.monotonic() < deadline_s, f"waited in vain until {what}"
        time.sleep(0.02)


def found_in(admin: Admin, topic: str) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    for queue in admin.describe_topic(topic).queues:
        at = queue.start
        while at < queue.end:
            page = admin.browse_messages(topic, queue.queue_id, at, max_messages=1000).messages
            found += page
            at += len(page)
    return found


def ends(admin: Admin, topic: str) -> int:
    return sum(queue.end for queue in admin.describe_topic(topic).queues)


def check_on_time(found: list[StoredMessage], sent: dict[bytes, SendResult]) -> None:
    """Each of them once, and none early."""
    assert sorted(one.message.body for one in found) == sorted(sent)
    for one in found:
        assert one.stored_at_ms >= sent[one.message.body].deliver_at_ms


def test_messages_come_when_their_time_has_come(broker: BrokerProcess) -> None:
    topic = "on-time"
    with Producer(broker.address) as producer, Admin(broker.address) as admin:
        sent: dict[bytes, SendResult] = {}
        at_ms = now_ms() + 3_000
        messages = [
            Message(b"seconds", delay_s=0.8, tag="a", keys=["k"], properties={"p": "v"}),
            Message(b"moment", deliver_at_ms=at_ms),
            Message(b"level", delay_level=1, ordering_key="o"),
        ]
        for message in messages:
            sent[message.body] = producer.send(topic, message)
        futures = [
            producer.send_async(topic, Message(b"%d" % n, delay_s=1 + n % 3 / 10))
            for n in range(300)
        ]
        sent |= {b"%d" % n: future.result() for n, future in enumerate(futures)}
        one_batch = [Message(b"batch %d" % n, deliver_at_ms=at_ms) for n in range(3)]
        results = producer.send_batch(topic, one_batch, queue_id=2)
        sent |= {one.body: result for one, result in zip(one_batch, results, strict=True)}
        assert sent[b"moment"].deliver_at_ms == at_ms
        assert {(one.queue_offset, one.status) for one in sent.values()} == {(-1, "SEND_OK")}
        assert len({one.message_id for one in sent.values()}) == len(sent)
        plain = producer.send(topic, b"now")
        assert (plain.deliver_at_ms, plain.queue_offset >= 0) == (0, True)
        until(lambda: ends(admin, topic) == len(sent) + 1, "all are there")
        found = [one for one in found_in(admin, topic) if one.message.body != b"now"]
        check_on_time(found, sent)
        first = next(one.message for one in found if one.message.body == b"seconds")
        assert (first.tag, list(first.keys), dict(first.properties)) == ("a", ["k"], {"p": "v"})


def test_a_consumer_gets_them_as_any_other(broker: BrokerProcess) -> None:
    with (
        Producer(broker.address) as producer,
        Consumer(broker.address, "delays", "consumed", start="earliest") as consumer,
    ):
        sent = {
            b"%d" % n: producer.send("consumed", Message(b"%d" % n, delay_s=0.5)) for n in (1, 2)
        }
        came: dict[bytes, int] = {}
        deadline_s = time.monotonic() + DEADLINE_S
        while len(came) < len(sent) and time.monotonic() < deadline_s:
            for message in consumer.poll(10, timeout_s=0.2):
                came[message.body] = now_ms()
                # It stands elsewhere now, and has another id.
                assert message.message_id != sent[message.body].message_id
        assert came.keys() == sent.keys()
        assert all(at_ms >= sent[body].deliver_at_ms for body, at_ms in came.items())


def test_a_message_is_taken_back(broker: BrokerProcess) -> None:
    topic = "recalled"
    with Producer(broker.address) as producer, Admin(broker.address) as admin:
        results = [producer.send(topic, Message(b"%d" % n, delay_s=3)) for n in range(4)]
        producer.recall(results[0])
        second = results[1]
        producer.recall(
            topic=topic, message_id=second.message_id, deliver_at_ms=second.deliver_at_ms
        )
        with pytest.raises(MessageNotFound):
            producer.recall(second)
        with pytest.raises(IllegalRequest):
            producer.recall(producer.send(topic, b"now"))

        async def take_back() -> None:
            async with aio.Producer(broker.address) as other:
                await other.recall(results[2])
                with pytest.raises(MessageNotFound):
                    await other.recall(results[2])

        asyncio.run(take_back())
        until(lambda: ends(admin, topic) == 2, "the others are there")
        assert sorted(one.message.body for one in found_in(admin, topic)) == [b"3", b"now"]
        with pytest.raises(MessageNotFound):
            producer.recall(results[3])


def test_an_illegal_delay_is_refused(broker: BrokerProcess) -> None:
    far_ms = now_ms() + 41 * 86_400_000
    with Producer(broker.address) as producer:
        for wrong in (
            Message(b"", delay_s=-1),
            Message(b"", delay_level=19),
            Message(b"", delay_s=1, delay_level=1),
            Message(b"", deliver_at_ms=far_ms),
        ):
            with pytest.raises(IllegalDelay):
                producer.send("refused", wrong)
        with pytest.raises(IllegalDelay):
            producer.send_batch("refused", [Message(b"", delay_s=1), b"now"])
        assert producer.send("refused", b"fine").queue_offset == 0


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_delayed_messages_survive_a_broker_restart(tmp_path: Path, how: str) -> None:
    """Some of it is due while the broker is down, some is being delivered when it ends."""
    topic = "waiting"
    with BrokerProcess(tmp_path / "data", *SMALL_LOG) as broker:
        with Producer(broker.address) as producer:
            futures = {}
            first_ms = now_ms() + 1_500
            for n in range(400):
                # A quarter is due in one moment, others around the end of the broker.
                at_ms = first_ms if n % 4 == 0 else first_ms - 500 + 5 * n
                message = Message(b"%d" % n, deliver_at_ms=at_ms)
                futures[message.body] = producer.send_async(topic, message)
            sent = {body: future.result() for body, future in futures.items()}
            producer.recall(gone := sent.pop(b"399"))
        time.sleep(max(0.0, (first_ms - now_ms()) / 1_000))
        broker.kill() if how == "kill" else broker.stop()
        broker.start()
        with Admin(broker.address) as admin, Producer(broker.address) as producer:
            with pytest.raises(MessageNotFound):
                producer.recall(gone)
            delayed = [one for one in sent.values() if one.deliver_at_ms]
            assert len(delayed) > 100
            until(lambda: ends(admin, topic) >= len(sent), "all are there")
            check_on_time(found_in(admin, topic), sent)


def test_delayed_messages_survive_retention_of_their_segment(tmp_path: Path) -> None:
    topic, traffic = "outlives", "traffic"
    with (
        BrokerProcess(tmp_path / "data", *SMALL_LOG) as broker,
        Producer(broker.address) as producer,
        Admin(broker.address) as admin,
    ):
        at_ms = now_ms() + 4_000
        sent = {
            b"%d" % n: producer.send(topic, Message(b"%d" % n, deliver_at_ms=at_ms))
            for n in range(20)
        }
        late = producer.send(topic, Message(b"late", delay_s=3_600))

        def is_its_log_gone() -> bool:
            for _ in range(20):
                producer.send_one_way(traffic, b"x" * 10_000)
            producer.flush()
            oldest = [log_offset(one.message_id) for one in found_in(admin, traffic)]
            return min(oldest, default=0) > log_offset(late.message_id)

        until(is_its_log_gone, "the log that they were written to is gone")
        producer.recall(late)
        until(lambda: ends(admin, topic) == len(sent), "all are there")
        check_on_time(found_in(admin, topic), sent)
        assert timing(broker) == {"messages": 0.0, "delivered_total": 20.0, "dropped_total": 0.0}


def log_offset(message_id: str) -> int:
    return int(message_id.rpartition(":")[2])


def timing(broker: BrokerProcess) -> dict[str, float]:
    url = f"http://127.0.0.1:{broker.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
        text = answer.read().decode()
    found = re.findall(r"^mq_timing_(\w+) ([0-9.e+]+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}
