"""A producer whose topic changes under it: what waits moves on, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from mq.client.messages import Message
from mq.errors import IllegalRequest
from mq.hashing import text_hash
from mq.wire.v1 import status_pb2 as wire
from tests.unit.client.producer.scripted_brokers import ScriptedBrokers, cluster, refusal
from tests.unit.client.virtual_time import run

if TYPE_CHECKING:
    from mq.wire.v1.message_pb2 import Batch
    from mq.wire.v1.producer_pb2 import BatchResult


def test_flush_and_close_end_when_batches_that_wait_move_with_the_one_that_was_refused() -> None:
    async def scenario() -> None:
        a, b = cluster("a", "b")
        # One that leads to b, of two sets with four queues each.
        key = next(key for key in map(str, range(99)) if text_hash(key) % 8 >= 4)
        producer = a.producer(batch_bytes=100)
        await producer.send("t", Message(b"first", ordering_key=key))
        b.closed.add("t")
        futures = [await producer.send_async("t", Message(b"%d" % n, ordering_key=key))
                   for n in range(50)]  # fmt: skip
        async with asyncio.timeout(10):
            await producer.flush()
            assert all(future.done() for future in futures)
            await producer.close()
        assert a.bodies() == [f"{n}" for n in range(50)]

    run(scenario())


def test_a_topic_that_comes_back_with_fewer_priorities_takes_what_waits_for_more() -> None:
    async def scenario() -> None:
        [brokers] = cluster("a")
        brokers.priorities = 3
        async with brokers.producer() as producer:
            await producer.send("t", Message(b"first", ordering_key="k", priority=2))
            brokers.priorities, brokers.topics["t"] = 2, 2

            def is_gone(brokers: ScriptedBrokers, _batch: Batch) -> BatchResult | None:
                brokers.script = None
                return refusal(wire.QUEUE_NOT_FOUND)

            brokers.script = is_gone
            async with asyncio.timeout(10):
                await producer.send("t", Message(b"second", ordering_key="k", priority=2))
        assert brokers.stored[-1].queue_id % 2 == 1, "the highest that there is now"

    run(scenario())


def test_a_queue_of_a_set_that_has_just_got_the_topic_is_found() -> None:
    async def scenario() -> None:
        a, b = cluster("a", "b")
        del b.topics["t"]
        async with a.producer() as producer:
            await producer.send("t", "first")
            b.topics["t"] = 4
            result = await producer.send("t", "x", queue_id=1, broker_set="b")
            assert (result.broker_set, result.queue_id) == ("b", 1)
            for _ in range(2):
                with pytest.raises(IllegalRequest, match="no queues in broker set 'c'"):
                    await producer.send_batch("t", ["x"], queue_id=1, broker_set="c")
                await asyncio.sleep(2)

    run(scenario())
