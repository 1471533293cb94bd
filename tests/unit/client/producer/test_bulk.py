"""`send_many`: each message has its result, or fails alone; errors name their message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from mq.client.messages import Message
from mq.errors import (
    ClientClosed,
    DiskFull,
    IllegalDelay,
    MessageTooLarge,
    TopicNotFound,
    Unreachable,
)
from mq.wire.v1 import status_pb2 as wire
from tests.unit.client.producer.scripted_brokers import ScriptedBrokers, cluster, refusal
from tests.unit.client.virtual_time import run

if TYPE_CHECKING:
    from mq.client.producer.bulk import SendResults
    from mq.wire.v1.message_pb2 import Batch
    from mq.wire.v1.producer_pb2 import BatchResult

MAKERS: list[Callable[[int], bytes | str | Message]] = [
    lambda n: b"%d" % n,
    lambda n: Message(b"%d" % n),
    str,
    lambda n: Message(b"%d" % n, tag="even" if n % 2 == 0 else ""),
]


def check_places(brokers: ScriptedBrokers, results: SendResults) -> None:
    """Each result points at its message, whose body is its index."""
    places = {(one.queue_id, one.queue_offset): one for one in brokers.stored}
    assert len(places) == len(results)
    for number, result in enumerate(results):
        stored = places[result.queue_id, result.queue_offset]
        assert (stored.body, result) == (f"{number}", result)
        assert result.message_id.endswith(f":{stored.frame_log_offset}")


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("batch_bytes", [1, 100, 2_000, 1 << 20])
def test_every_message_is_stored_once_and_has_its_result(
    make: Callable[[int], bytes | str | Message], batch_bytes: int
) -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers()
        async with brokers.producer(batch_bytes=batch_bytes, buffer_bytes=4_000) as producer:
            results = await producer.send_many("t", [make(n) for n in range(3_000)])
        check_places(brokers, results)
        assert results[-1] == results[2_999]
        assert results[5:8] == [results[5], results[6], results[7]]
        assert results.errors == {}
        with pytest.raises(IndexError):
            results[3_000]

    run(scenario())


def test_batches_of_bodies_are_full_and_spread_over_the_queues() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers()
        async with brokers.producer(batch_bytes=10_000) as producer:
            await producer.send_many("t", [bytes(100)] * 2_000)
            batches = [batch for request in brokers.requests for batch in request.batches]
            assert {batch.queue_id for batch in batches} == {0, 1, 2, 3}
            assert [len(batch.messages) for batch in batches] == [80] * 25
            await producer.send_many("t", [b"1", b"2"], queue_id=3)
        assert brokers.bodies(3)[-2:] == ["1", "2"]

    run(scenario())


def test_messages_of_one_key_keep_their_order_among_bodies() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers()
        async with brokers.producer(batch_bytes=500) as producer:
            await producer.send_many(
                "t",
                [
                    Message(b"%d" % n, ordering_key="k") if n % 3 == 0 else b"%d" % n
                    for n in range(999)
                ],
            )
        keyed = [int(one.body) for one in brokers.stored if one.ordering_key]
        assert keyed == list(range(0, 999, 3))

    run(scenario())


def test_nothing_to_send_has_no_results() -> None:
    async def scenario() -> None:
        async with ScriptedBrokers().producer() as producer:
            results = await producer.send_many("t", [])
        assert (len(results), list(results)) == (0, [])

    run(scenario())


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (bytes((4 << 20) + 1), MessageTooLarge, "message 2 of 5: a body of"),
        (Message(b"", delay_level=99), IllegalDelay, "message 2 of 5: delay level"),
        (7, TypeError, "message 2 of 5: the body of a message is bytes or str, not int"),
    ],
)
def test_an_illegal_message_is_named_and_the_others_are_sent(
    wrong: bytes, error: type[Exception], text: str
) -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers()
        messages = [b"0", b"1", wrong, b"3", wrong]
        async with brokers.producer() as producer:
            with pytest.raises(error, match=text):
                await producer.send_many("t", messages)
            assert brokers.bodies() == ["0", "1", "3"]
            results = await producer.send_many("t", messages, return_exceptions=True)
        assert {at: type(one) for at, one in results.errors.items()} == {2: error, 4: error}
        assert results[3].status == "SEND_OK"
        with pytest.raises(error):
            results[2]

    run(scenario())


def test_a_batch_that_is_refused_fails_its_messages_alone() -> None:
    def script(_: ScriptedBrokers, batch: Batch) -> BatchResult | None:
        is_full = any(message.body == b"50" for message in batch.messages)
        return refusal(wire.DISK_FULL) if is_full else None

    async def scenario() -> None:
        brokers = ScriptedBrokers(script=script)
        async with brokers.producer(batch_bytes=300, retries=0) as producer:
            messages = [b"%d" % n for n in range(100)]
            results = await producer.send_many("t", messages, return_exceptions=True)
            failed = sorted(results.errors)
            assert 50 in failed
            assert failed == list(range(failed[0], failed[-1] + 1))
            assert sorted(map(int, brokers.bodies())) == [n for n in range(100) if n not in failed]
            with pytest.raises(DiskFull, match=r"message \d+ of 100: "):
                await producer.send_many("t", messages)

    run(scenario())


def test_a_topic_that_is_not_there_fails_all_of_them() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers()
        brokers.creates_topics = False
        async with brokers.producer(timeout_s=1.0) as producer:
            with pytest.raises(TopicNotFound, match="message 0 of 9000"):
                await producer.send_many("missing", [b"x"] * 9_000)

    run(scenario())


def test_it_does_not_wait_for_one_batch_after_the_other_when_no_broker_answers() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers()
        brokers.down.update(brokers.addresses)
        began_s = asyncio.get_running_loop().time()
        async with brokers.producer(timeout_s=2.0, batch_bytes=100) as producer:
            with pytest.raises(Unreachable, match="message 0 of 1000"):
                await producer.send_many("t", [b"x"] * 1_000)
        assert asyncio.get_running_loop().time() - began_s < 10.0

    run(scenario())


def test_a_closed_producer_sends_nothing() -> None:
    async def scenario() -> None:
        producer = ScriptedBrokers().producer()
        await producer.close()
        with pytest.raises(ClientClosed):
            await producer.send_many("t", [b"x"])

    run(scenario())


def test_batches_move_when_their_set_takes_no_messages_any_more() -> None:
    async def scenario() -> None:
        a, b = cluster("a", "b")
        async with a.producer(batch_bytes=200) as producer:
            await producer.send_many("t", [b"first"] * 8)
            b.closed.add("t")
            results = await producer.send_many("t", [b"%d" % n for n in range(500)])
            assert {result.broker_set for result in results} == {"a"}
        assert sorted(int(one) for one in a.bodies() if one != "first") == list(range(500))

    run(scenario())
