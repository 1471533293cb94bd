"""What a producer does when a broker set fails over, breaks off, is silent or refuses."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from mq.client.messages import Message, SendResult
from mq.errors import (
    DiskFull,
    FlowControl,
    IllegalSequence,
    MessageTooLarge,
    MqError,
    OutcomeUnknown,
    QueueNotFound,
    TopicNotFound,
)
from mq.hashing import text_hash
from mq.wire.v1 import status_pb2 as wire
from mq.wire.v1.message_pb2 import Batch
from mq.wire.v1.producer_pb2 import BatchResult
from tests.unit.client.producer.scripted_brokers import (
    Break,
    Script,
    ScriptedBrokers,
    answers,
    refusal,
)
from tests.unit.client.virtual_time import run

THREE = ("a:1", "b:2", "c:3")


async def time_s() -> float:
    return asyncio.get_running_loop().time()


def test_a_redirect_to_the_leader_is_no_retry() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers(THREE)
        async with brokers.producer(retries=0) as producer:
            await producer.send("t", "1")
            brokers.leading = "b:2"
            began_s = await time_s()
            result = await producer.send("t", "2")
            assert await time_s() - began_s < 0.05
        assert not result.is_duplicate
        assert brokers.bodies() == ["1", "2"]
        assert [call.address for call in brokers.calls] == ["a:1", "b:2"]
        # The first stream was ended, not broken off.
        assert brokers.calls[0].is_half_closed

    run(scenario())


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_batch_whose_answer_was_lost_is_stored_once(is_stored: bool) -> None:
    breaks = [True]

    def script(brokers: ScriptedBrokers, batch: Batch) -> BatchResult | None:
        if breaks:
            breaks.clear()
            if is_stored:
                brokers.store(batch)
            raise Break
        return None

    async def scenario() -> None:
        brokers = ScriptedBrokers(script=script)
        async with brokers.producer(retries=0) as producer:
            result = await producer.send("t", "x")
        assert result.is_duplicate is is_stored
        [stored] = brokers.stored
        assert result.message_id == f"set-0:{stored.frame_log_offset}"
        assert len({batch.sequence for one in brokers.requests for batch in one.batches}) == 1

    run(scenario())


def test_without_idempotence_a_lost_answer_stores_a_batch_twice() -> None:
    breaks = [True]

    def script(brokers: ScriptedBrokers, batch: Batch) -> BatchResult | None:
        brokers.store(batch)
        if breaks:
            breaks.clear()
            raise Break
        return BatchResult(queue_offset=0, log_offset=0)

    async def scenario() -> None:
        brokers = ScriptedBrokers(script=script)
        async with brokers.producer(idempotent=False) as producer:
            await producer.send("t", "x")
        assert brokers.bodies() == ["x", "x"]
        assert {one.producer_id for one in brokers.stored} == {""}

    run(scenario())


@pytest.mark.parametrize(
    ("code", "kind"), [(wire.OUTCOME_UNKNOWN, OutcomeUnknown), (wire.DISK_FULL, DiskFull)]
)
def test_answers_that_are_a_matter_of_luck_count(code: int, kind: type[MqError]) -> None:
    async def scenario(refusals: int) -> ScriptedBrokers:
        brokers = ScriptedBrokers(script=answers(*[code] * refusals))
        async with brokers.producer(retries=2) as producer:
            await producer.send("t", "x")
        return brokers

    brokers = run(scenario(2))
    assert brokers.bodies() == ["x"]
    sent = [batch for request in brokers.requests for batch in request.batches]
    assert len({(batch.producer_id, batch.sequence) for batch in sent}) == 1
    # Without a key, each attempt was made in another queue.
    assert len({batch.queue_id for batch in sent}) == 3
    with pytest.raises(kind):
        run(scenario(3))


def test_a_batch_in_doubt_does_not_give_its_number_away() -> None:
    async def scenario() -> ScriptedBrokers:
        brokers = ScriptedBrokers(script=answers(wire.REPLICATION_TIMEOUT))
        async with brokers.producer(retries=0) as producer:
            with pytest.raises(MqError):
                await producer.send("t", "lost")
            await producer.send("t", "next")
        return brokers

    assert [one.sequence for one in run(scenario()).stored] == [2]


def test_a_batch_that_was_on_its_way_when_the_stream_broke_is_in_doubt_for_good() -> None:
    attempts: list[int] = []

    def script(brokers: ScriptedBrokers, batch: Batch) -> BatchResult | None:
        attempts.append(batch.sequence)
        if len(attempts) == 1:
            brokers.store(batch)
            raise Break
        return refusal(wire.MESSAGE_TOO_LARGE) if len(attempts) == 2 else None

    async def scenario() -> ScriptedBrokers:
        brokers = ScriptedBrokers(script=script)
        async with brokers.producer() as producer:
            with pytest.raises(MessageTooLarge):
                await producer.send("t", "stored, and refused")
            result = await producer.send("t", "next")
            assert not result.is_duplicate
        return brokers

    assert [one.sequence for one in run(scenario()).stored] == [1, 2]


def test_a_busy_broker_is_waited_for_as_long_as_it_asks_and_that_does_not_count() -> None:
    left = [refusal(wire.FLOW_CONTROL, retry_after_ms=400)] * 5

    def script(_brokers: ScriptedBrokers, _batch: Batch) -> BatchResult | None:
        return left.pop() if left else None

    async def scenario() -> None:
        brokers = ScriptedBrokers(script=script)
        async with brokers.producer(retries=0) as producer:
            began_s = await time_s()
            await producer.send("t", "x")
            assert 2.0 <= await time_s() - began_s < 2.2
            left.extend([refusal(wire.FLOW_CONTROL, retry_after_ms=400)] * 100)
            with pytest.raises(FlowControl):
                await producer.send("t", "y")

    run(scenario())


def test_a_retried_batch_is_not_overtaken_by_messages_of_its_key() -> None:
    async def scenario() -> ScriptedBrokers:
        brokers = ScriptedBrokers(script=answers(*[wire.OUTCOME_UNKNOWN] * 2))
        async with brokers.producer(batch_bytes=1) as producer:
            for n in range(5):
                await producer.send_async("t", Message(f"{n}".encode(), ordering_key="k"))
        return brokers

    brokers = run(scenario())
    assert brokers.bodies() == ["0", "1", "2", "3", "4"]
    assert {one.queue_id for one in brokers.stored} == {text_hash("k") % 4}


def test_a_stream_that_ends_with_the_name_of_the_leader_is_followed_there() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers(THREE)
        async with brokers.producer() as producer:
            await producer.send("t", "1")
            asked = len(brokers.asked)
            brokers.leading = "b:2"
            brokers.calls[0].break_off("b:2")
            await producer.send("t", "2")
        assert [call.address for call in brokers.calls] == ["a:1", "b:2"]
        assert len(brokers.asked) == asked

    run(scenario())


def test_a_queue_that_is_gone_is_replaced() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers()
        brokers.topics["t"] = 8
        async with brokers.producer() as producer:
            await producer.send("t", "first")
            brokers.topics["t"] = 2
            keyed = [Message(f"{n}".encode(), ordering_key=f"{n}") for n in range(20)]
            await asyncio.gather(
                *(producer.send("t", message) for message in keyed),
                *(producer.send("t", "free") for _ in range(20)),
            )
        for one in brokers.stored[1:]:
            assert one.queue_id < 2
            assert not one.ordering_key or one.queue_id == text_hash(one.ordering_key) % 2
        assert Counter(brokers.bodies())["free"] == 20
        assert len(brokers.stored) == 41

    run(scenario())


def test_a_queue_that_the_user_chose_is_not_replaced() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers()
        async with brokers.producer() as producer:
            with pytest.raises(QueueNotFound):
                await producer.send("t", "x", queue_id=4)

    run(scenario())


@pytest.mark.parametrize("key", ["", "k"])
def test_a_route_that_does_not_help_is_not_asked_for_again_and_again(key: str) -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers(script=answers(*[wire.QUEUE_NOT_FOUND] * 100))
        async with brokers.producer() as producer:
            with pytest.raises(QueueNotFound):
                await producer.send("t", Message(b"", ordering_key=key))
        assert len(brokers.requests) == 2

    run(scenario())


@pytest.mark.parametrize("is_created", [True, False])
def test_a_topic_that_was_deleted_is_created_again_where_that_is_allowed(is_created: bool) -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers()
        async with brokers.producer() as producer:
            await producer.send("t", "1")
            del brokers.topics["t"]
            brokers.creates_topics = is_created
            if is_created:
                await producer.send("t", "2")
            else:
                with pytest.raises(TopicNotFound):
                    await producer.send("t", "2")
        assert brokers.bodies() == (["1", "2"] if is_created else ["1"])

    run(scenario())


def test_flush_waits_for_messages_that_went_to_other_queues() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers()
        brokers.topics["t"] = 8
        async with brokers.producer(linger_ms=60_000) as producer:
            await producer.send("t", "first")
            brokers.topics["t"] = 1
            futures = [
                await producer.send_async("t", Message(b"", ordering_key=f"{n}")) for n in range(20)
            ]
            await producer.flush()
            assert all(future.done() for future in futures)
        assert len(brokers.stored) == 21

    run(scenario())


def test_a_producer_with_too_many_gaps_takes_another_name() -> None:
    async def scenario(producer_id: str | None) -> ScriptedBrokers:
        brokers = ScriptedBrokers(script=answers(wire.ILLEGAL_SEQUENCE))
        async with brokers.producer(producer_id=producer_id) as producer:
            await producer.send("t", "x")
        return brokers

    brokers = run(scenario(None))
    names = [batch.producer_id for request in brokers.requests for batch in request.batches]
    assert len(set(names)) == 2
    with pytest.raises(IllegalSequence):
        run(scenario("mine"))


def troubles(dice: random.Random) -> Script:
    """Half of all batches meet one."""

    def script(brokers: ScriptedBrokers, batch: Batch) -> BatchResult | None:
        match dice.randrange(12):
            case 0:
                brokers.store(batch)
                raise Break
            case 1:
                raise Break
            case 2:
                brokers.store(batch)
                return refusal(wire.OUTCOME_UNKNOWN)
            case 3:
                return refusal(dice.choice([wire.REPLICATION_TIMEOUT, wire.DISK_FULL]))
            case 4:
                return refusal(wire.FLOW_CONTROL, retry_after_ms=dice.randrange(100))
            case 5:
                brokers.leading = dice.choice(THREE)
                return refusal(wire.NOT_LEADER, leader_address=dice.choice(["", brokers.leading]))
        return None

    return script


@pytest.mark.parametrize("seed", range(40))
def test_acknowledged_messages_are_stored_once_and_in_order_under_any_faults(seed: int) -> None:
    dice = random.Random(seed)
    keys = ["", "k1", "k2", "k3"]
    sent = [Message(f"{n}".encode(), ordering_key=dice.choice(keys)) for n in range(300)]

    async def scenario() -> tuple[ScriptedBrokers, list[SendResult]]:
        brokers = ScriptedBrokers(THREE, troubles(dice))
        async with brokers.producer(batch_bytes=200, retries=50, timeout_s=60) as producer:
            futures = []
            for message in sent:
                futures.append(await producer.send_async("t", message))
                if dice.random() < 0.1:
                    await asyncio.sleep(dice.random() * 0.02)
            return brokers, await asyncio.gather(*futures)

    brokers, results = run(scenario())
    assert Counter(brokers.bodies()) == Counter(message.body.decode() for message in sent)
    places = {one.body: (one.queue_id, one.queue_offset) for one in brokers.stored}
    for message, result in zip(sent, results, strict=True):
        assert places[message.body.decode()] == (result.queue_id, result.queue_offset)
    for key in keys[1:]:
        numbers = [int(one.body) for one in brokers.stored if one.ordering_key == key]
        assert numbers == sorted(numbers)
