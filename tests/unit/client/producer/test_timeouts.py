"""How long a producer waits for leaders that are silent, slow, frozen or down, and its errors."""

from __future__ import annotations

import asyncio

import pytest

from mq.errors import NoLeader, Unreachable
from mq.wire.v1.message_pb2 import Batch
from mq.wire.v1.producer_pb2 import BatchResult
from tests.unit.client.producer.scripted_brokers import ScriptedBrokers, Silence
from tests.unit.client.virtual_time import run

THREE = ("a:1", "b:2", "c:3")


async def time_s() -> float:
    return asyncio.get_running_loop().time()


def test_a_second_without_a_leader_does_not_use_up_retries() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers(THREE)
        async with brokers.producer(retries=0, timeout_s=3.0) as producer:
            await producer.send("t", "1")
            brokers.leading = ""
            brokers.fail("a:1")
            loop = asyncio.get_running_loop()
            loop.call_later(1.5, lambda: setattr(brokers, "leading", "c:3"))
            began_s = await time_s()
            await producer.send("t", "2")
            assert 1.5 <= await time_s() - began_s < 2.2
        assert brokers.bodies() == ["1", "2"]

    run(scenario())


def test_without_a_leader_until_the_end_the_error_says_so() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers(THREE)
        async with brokers.producer(timeout_s=2.0) as producer:
            await producer.send("t", "1")
            brokers.leading = ""
            began_s = await time_s()
            with pytest.raises(NoLeader):
                await producer.send("t", "2")
            assert 2.0 <= await time_s() - began_s < 2.3

    run(scenario())


def test_when_no_broker_is_reached_the_error_names_all_that_were_tried() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers(THREE)
        async with brokers.producer(timeout_s=1.0) as producer:
            await producer.send("t", "1")
            for address in THREE:
                brokers.fail(address)
            began_s = await time_s()
            with pytest.raises(
                Unreachable, match=r"tried a:1 \(UNAVAILABLE\), b:2 \(UNAVAILABLE\), c:3 \("
            ):
                await producer.send("t", "2")
            assert 1.0 <= await time_s() - began_s < 1.3

    run(scenario())


def test_a_silent_broker_fails_a_message_in_time() -> None:
    def script(_brokers: ScriptedBrokers, _batch: Batch) -> BatchResult | None:
        raise Silence

    async def scenario() -> None:
        brokers = ScriptedBrokers(script=script)
        producer = brokers.producer(timeout_s=3.0)
        began_s = await time_s()
        with pytest.raises(Unreachable, match="may have been stored"):
            await producer.send("t", "x", timeout_s=1.0)
        assert 1.0 <= await time_s() - began_s < 1.2
        futures = [await producer.send_async("t", "y") for _ in range(3)]
        await producer.close()
        assert 4.0 <= await time_s() - began_s < 7.5
        assert all(isinstance(future.exception(), Unreachable) for future in futures)

    run(scenario())


def test_a_frozen_leader_is_left_when_the_others_have_a_new_one() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers(THREE)
        async with brokers.producer(timeout_s=3.0) as producer:
            await producer.send("t", "1")
            brokers.frozen.add("a:1")
            asyncio.get_running_loop().call_later(0.8, lambda: setattr(brokers, "leading", "c:3"))
            await producer.send("t", "2")
        assert brokers.bodies() == ["1", "2"]
        assert [call.address for call in brokers.calls] == ["a:1", "c:3"]

    run(scenario())


def test_an_answer_that_comes_too_late_changes_nothing() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers()
        brokers.answer_s = 2.0
        async with brokers.producer(timeout_s=1.0) as producer:
            with pytest.raises(Unreachable):
                await producer.send("t", "late", queue_id=0)
            brokers.answer_s = 0.001
            await producer.send("t", "next", queue_id=0)
            await asyncio.sleep(5)
            result = await producer.send("t", "last", queue_id=0)
            assert producer._core is not None
            assert producer._core.accumulator.is_empty
        assert brokers.bodies() == ["late", "next", "last"]
        assert result.queue_offset == 2

    run(scenario())


def test_a_backlog_that_is_being_answered_does_not_time_out() -> None:
    """Ten seconds' worth of messages, three seconds a message."""

    async def scenario() -> None:
        brokers = ScriptedBrokers()
        brokers.topics["t"] = 1
        brokers.answer_s = 0.1
        async with brokers.producer(timeout_s=3.0, batch_bytes=1) as producer:
            futures = [await producer.send_async("t", f"{n}") for n in range(100)]
            began_s = await time_s()
            await asyncio.gather(*futures)
            assert await time_s() - began_s > 9
        assert brokers.bodies() == [f"{n}" for n in range(100)]

    run(scenario())


def test_send_returns_in_time_even_behind_a_backlog() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers()
        brokers.topics["t"] = 1
        brokers.answer_s = 0.1
        async with brokers.producer(timeout_s=3.0, batch_bytes=1) as producer:
            for n in range(50):
                await producer.send_async("t", f"{n}")
            began_s = await time_s()
            with pytest.raises(Unreachable, match="sent before it"):
                await producer.send("t", "late", timeout_s=1.0)
            assert await time_s() - began_s < 1.5

    run(scenario())


def test_a_broker_that_reads_no_more_fails_messages_in_time_and_is_used_when_it_does() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers()
        async with brokers.producer(ack="none", timeout_s=1.0) as producer:
            await producer.send("t", "1")
            brokers.unblocked["a:1"] = asyncio.Event()
            began_s = await time_s()
            with pytest.raises(Unreachable):
                await producer.send("t", "2")
            assert await time_s() - began_s < 1.5
            brokers.unblocked["a:1"].set()
            await producer.send("t", "3")
        assert brokers.bodies()[-1] == "3"

    run(scenario())


def test_each_caller_of_close_waits_for_the_end() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers()
        brokers.answer_s = 1.0
        producer = brokers.producer()
        future = await producer.send_async("t", "x")
        first = asyncio.create_task(producer.close())
        await asyncio.sleep(0.01)
        await producer.close()
        assert future.done()
        assert first.done()

    run(scenario())


def test_a_trouble_that_is_over_is_not_the_reason_of_the_next_one() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers(THREE)
        async with brokers.producer(timeout_s=2.0) as producer:
            await producer.send("t", "1")
            brokers.leading = ""
            with pytest.raises(NoLeader):
                await producer.send("t", "2")
            brokers.leading = "b:2"
            await producer.send("t", "3")
            brokers.frozen.update(THREE)
            with pytest.raises(Unreachable) as caught:
                await producer.send("t", "4")
            assert type(caught.value) is Unreachable

    run(scenario())
