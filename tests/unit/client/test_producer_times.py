"""How long a producer waits, and for whom: leaders that are silent, slow, frozen or not there."""

from __future__ import annotations

import asyncio

import pytest

from mq.errors import NoLeader, Unreachable
from mq.wire.v1 import status_pb2 as wire
from mq.wire.v1.message_pb2 import Batch
from mq.wire.v1.producer_pb2 import BatchResult
from tests.unit.client.publish_side import BrokerSide, Silence, refusal
from tests.unit.client.virtual_time import run

THREE = ("a:1", "b:2", "c:3")


async def time_s() -> float:
    return asyncio.get_running_loop().time()


def test_a_second_without_a_leader_is_waited_for_whatever_retries_says() -> None:
    async def scenario() -> None:
        side = BrokerSide(THREE)
        async with side.producer(retries=0, timeout_s=3.0) as producer:
            await producer.send("t", "1")
            side.leading = ""
            side.fail("a:1")
            loop = asyncio.get_running_loop()
            loop.call_later(1.5, lambda: setattr(side, "leading", "c:3"))
            began_s = await time_s()
            await producer.send("t", "2")
            assert 1.5 <= await time_s() - began_s < 2.2
        assert side.bodies() == ["1", "2"]

    run(scenario())


def test_when_nobody_leads_until_the_end_the_error_says_so() -> None:
    async def scenario() -> None:
        side = BrokerSide(THREE)
        async with side.producer(timeout_s=2.0) as producer:
            await producer.send("t", "1")
            side.leading = ""
            began_s = await time_s()
            with pytest.raises(NoLeader):
                await producer.send("t", "2")
            assert 2.0 <= await time_s() - began_s < 2.3

    run(scenario())


def test_when_nobody_is_there_the_error_names_who_was_asked() -> None:
    async def scenario() -> None:
        side = BrokerSide(THREE)
        async with side.producer(timeout_s=1.0) as producer:
            await producer.send("t", "1")
            for address in THREE:
                side.fail(address)
            began_s = await time_s()
            with pytest.raises(
                Unreachable, match=r"tried a:1 \(UNAVAILABLE\), b:2 \(UNAVAILABLE\), c:3 \("
            ):
                await producer.send("t", "2")
            assert 1.0 <= await time_s() - began_s < 1.3

    run(scenario())


def test_a_silent_broker_fails_a_message_in_time() -> None:
    def script(_side: BrokerSide, _batch: Batch) -> BatchResult | None:
        raise Silence

    async def scenario() -> None:
        side = BrokerSide(script=script)
        producer = side.producer(timeout_s=3.0)
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
        side = BrokerSide(THREE)
        async with side.producer(timeout_s=3.0) as producer:
            await producer.send("t", "1")
            side.frozen.add("a:1")
            asyncio.get_running_loop().call_later(0.8, lambda: setattr(side, "leading", "c:3"))
            await producer.send("t", "2")
        assert side.bodies() == ["1", "2"]
        assert [call.address for call in side.calls] == ["a:1", "c:3"]

    run(scenario())


def test_a_connection_that_does_not_come_about_is_given_up() -> None:
    async def scenario() -> None:
        side = BrokerSide(THREE)
        async with side.producer(timeout_s=10) as producer:
            await producer.send("t", "1")
            side.fail("a:1")
            side.leading = "b:2"
            side.frozen.add("b:2")
            asyncio.get_running_loop().call_later(2.5, lambda: setattr(side, "leading", "c:3"))
            await producer.send("t", "2")
        assert [call.address for call in side.calls][-1] == "c:3"
        assert all(call.has_ended for call in side.calls)

    run(scenario())


def test_a_leader_that_was_not_needed_for_long_is_not_suspected() -> None:
    async def scenario() -> None:
        side = BrokerSide(THREE)
        side.answer_s = 0.5
        async with side.producer() as producer:
            await producer.send("t", "1")
            asked = len(side.asked)
            await asyncio.sleep(4)
            await producer.send("t", "2")
            assert len(side.asked) == asked

    run(scenario())


def test_an_answer_that_comes_too_late_changes_nothing() -> None:
    async def scenario() -> None:
        side = BrokerSide()
        side.answer_s = 2.0
        async with side.producer(timeout_s=1.0) as producer:
            with pytest.raises(Unreachable):
                await producer.send("t", "late", queue_id=0)
            side.answer_s = 0.001
            await producer.send("t", "next", queue_id=0)
            await asyncio.sleep(5)
            result = await producer.send("t", "last", queue_id=0)
            assert producer._core is not None
            assert producer._core.accumulator.is_empty
        assert side.bodies() == ["late", "next", "last"]
        assert result.queue_offset == 2

    run(scenario())


def test_a_slow_leader_is_kept_when_the_others_have_no_new_one() -> None:
    slow = [True]

    def script(side: BrokerSide, batch: Batch) -> BatchResult | None:
        if slow:
            slow.clear()
            loop, call = asyncio.get_running_loop(), side.calls[-1]
            result = side.store(batch)
            response = side.response_of_last(result)
            loop.call_later(2.0, call._answer, response)
            raise Silence
        return None

    async def scenario() -> None:
        side = BrokerSide(THREE, script)
        async with side.producer(timeout_s=3.0) as producer:
            result = await producer.send("t", "1")
        assert not result.is_duplicate
        assert len(side.calls) == 1

    run(scenario())


def test_a_backlog_that_is_being_answered_does_not_time_out() -> None:
    """Ten seconds' worth of messages, three seconds a message."""

    async def scenario() -> None:
        side = BrokerSide()
        side.topics["t"] = 1
        side.answer_s = 0.1
        async with side.producer(timeout_s=3.0, batch_bytes=1) as producer:
            futures = [await producer.send_async("t", f"{n}") for n in range(100)]
            began_s = await time_s()
            await asyncio.gather(*futures)
            assert await time_s() - began_s > 9
        assert side.bodies() == [f"{n}" for n in range(100)]

    run(scenario())


def test_send_returns_in_time_even_behind_a_backlog() -> None:
    async def scenario() -> None:
        side = BrokerSide()
        side.topics["t"] = 1
        side.answer_s = 0.1
        async with side.producer(timeout_s=3.0, batch_bytes=1) as producer:
            for n in range(50):
                await producer.send_async("t", f"{n}")
            began_s = await time_s()
            with pytest.raises(Unreachable, match="sent before it"):
                await producer.send("t", "late", timeout_s=1.0)
            assert await time_s() - began_s < 1.5

    run(scenario())


def test_a_former_leader_that_falls_silent_is_left_for_good() -> None:
    """It said of one batch that it does not lead, and nothing of the other."""
    said: list[str] = []

    def script(side: BrokerSide, batch: Batch) -> BatchResult | None:
        body = batch.messages[0].body.decode()
        if body in said or side.calls[-1].address != "a:1":
            return None
        said.append(body)
        if body == "silent":
            raise Silence
        side.leading = "b:2"
        return refusal(wire.NOT_LEADER, leader_address="b:2")

    async def scenario() -> None:
        side = BrokerSide(THREE, script)
        async with side.producer() as producer:
            silent = asyncio.create_task(producer.send("t", "silent", queue_id=0))
            await asyncio.sleep(0.0005)
            await producer.send("t", "refused", queue_id=1)
            await silent
        assert sorted(side.bodies()) == ["refused", "silent"]
        assert [call.address for call in side.calls] == ["a:1", "b:2"]

    run(scenario())


def test_a_broker_that_reads_no_more_fails_messages_in_time_and_is_used_when_it_does() -> None:
    async def scenario() -> None:
        side = BrokerSide()
        async with side.producer(ack="none", timeout_s=1.0) as producer:
            await producer.send("t", "1")
            side.unblocked["a:1"] = asyncio.Event()
            began_s = await time_s()
            with pytest.raises(Unreachable):
                await producer.send("t", "2")
            assert await time_s() - began_s < 1.5
            side.unblocked["a:1"].set()
            await producer.send("t", "3")
        assert side.bodies()[-1] == "3"

    run(scenario())


def test_everybody_who_closes_waits_for_the_end() -> None:
    async def scenario() -> None:
        side = BrokerSide()
        side.answer_s = 1.0
        producer = side.producer()
        future = await producer.send_async("t", "x")
        first = asyncio.create_task(producer.close())
        await asyncio.sleep(0.01)
        await producer.close()
        assert future.done()
        assert first.done()

    run(scenario())


def test_a_trouble_that_is_over_is_not_the_reason_of_the_next_one() -> None:
    async def scenario() -> None:
        side = BrokerSide(THREE)
        async with side.producer(timeout_s=2.0) as producer:
            await producer.send("t", "1")
            side.leading = ""
            with pytest.raises(NoLeader):
                await producer.send("t", "2")
            side.leading = "b:2"
            await producer.send("t", "3")
            side.frozen.update(THREE)
            with pytest.raises(Unreachable) as caught:
                await producer.send("t", "4")
            assert type(caught.value) is Unreachable

    run(scenario())
