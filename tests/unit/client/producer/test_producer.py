"""A producer and a broker set that answers: results, batches, the end."""

from __future__ import annotations

import asyncio
import logging

import pytest

from mq.client.encode import MESSAGE_BYTES_MAX
from mq.client.messages import Message, SendResult
from mq.errors import (
    IllegalTopic,
    Internal,
    MessageTooLarge,
    PermissionDenied,
    TopicNotFound,
    Unreachable,
)
from mq.hashing import text_hash
from mq.wire.v1 import status_pb2 as wire
from mq.wire.v1.message_pb2 import Batch
from mq.wire.v1.producer_pb2 import BatchResult
from tests.unit.client.producer.scripted_brokers import ScriptedBrokers, Silence, answers, refusal
from tests.unit.client.virtual_time import run


def test_a_result_says_where_the_message_is() -> None:
    async def scenario() -> tuple[ScriptedBrokers, list[SendResult]]:
        brokers = ScriptedBrokers()
        async with brokers.producer() as producer:
            futures = [await producer.send_async("t", f"{n}" * n) for n in range(5)]
            return brokers, [await future for future in futures]

    brokers, results = run(scenario())
    assert [result.message_id for result in results] == [
        f"set-0:{one.frame_log_offset}" for one in brokers.stored
    ]
    assert [(one.queue_id, one.queue_offset) for one in results] == [
        (one.queue_id, one.queue_offset) for one in brokers.stored
    ]
    assert {(one.topic, one.status, one.stored_at_ms) for one in results} == {("t", "SEND_OK", 7)}
    assert not any(result.is_duplicate for result in results)


def test_messages_that_are_sent_at_once_share_a_request() -> None:
    async def scenario() -> ScriptedBrokers:
        brokers = ScriptedBrokers()
        async with brokers.producer() as producer:
            await asyncio.gather(*(producer.send("t", f"{n}") for n in range(100)))
        return brokers

    brokers = run(scenario())
    assert sorted(brokers.bodies(), key=int) == [f"{n}" for n in range(100)]
    assert len(brokers.requests) <= 2


def test_a_queue_has_one_batch_under_way() -> None:
    async def scenario() -> ScriptedBrokers:
        brokers = ScriptedBrokers()
        async with brokers.producer(batch_bytes=40) as producer:
            futures = [await producer.send_async("t", f"{n:02}") for n in range(60)]
            await asyncio.gather(*futures)
        return brokers

    brokers = run(scenario())
    assert sorted(brokers.bodies()) == [f"{n:02}" for n in range(60)]
    for request in brokers.requests:
        queues = [batch.queue_id for batch in request.batches]
        assert len(set(queues)) == len(queues)


def test_requests_without_an_answer_are_bounded() -> None:
    async def scenario(in_flight_max: int) -> int:
        brokers = ScriptedBrokers()
        brokers.topics["t"] = 8
        brokers.answer_s = 0.1
        async with brokers.producer(in_flight_max=in_flight_max) as producer:
            sends = []
            for queue_id in range(8):
                sends.append(asyncio.create_task(producer.send("t", b"", queue_id=queue_id)))
                await asyncio.sleep(0.001)
            await asyncio.gather(*sends)
        [call] = brokers.calls
        return call.unanswered_max

    assert run(scenario(3)) == 3
    assert run(scenario(32)) == 8


def test_messages_of_a_key_stand_in_one_queue_in_order() -> None:
    async def scenario() -> ScriptedBrokers:
        brokers = ScriptedBrokers()
        async with brokers.producer(batch_bytes=100) as producer:
            for n in range(200):
                await producer.send_async("t", Message(f"{n}".encode(), ordering_key=f"k{n % 7}"))
        return brokers

    brokers = run(scenario())
    for key in range(7):
        mine = [one for one in brokers.stored if one.ordering_key == f"k{key}"]
        assert [int(one.body) for one in mine] == list(range(key, 200, 7))
        assert {one.queue_id for one in mine} == {text_hash(f"k{key}") % 4}


def test_a_batch_of_messages_is_one_batch() -> None:
    async def scenario() -> tuple[ScriptedBrokers, list[SendResult]]:
        brokers = ScriptedBrokers()
        async with brokers.producer(batch_bytes=50) as producer:
            assert await producer.send_batch("t", []) == []
            return brokers, await producer.send_batch("t", [f"{n:02}" for n in range(20)])

    brokers, results = run(scenario())
    [request] = brokers.requests
    [batch] = request.batches
    assert [message.body.decode() for message in batch.messages] == [f"{n:02}" for n in range(20)]
    assert [result.queue_offset for result in results] == list(range(20))


def test_a_batch_whose_keys_lead_to_several_queues_is_parted_and_answers_are_in_order() -> None:
    sent = [Message(f"{n}".encode(), ordering_key=f"k{n}" if n % 3 else "") for n in range(12)]

    async def scenario() -> tuple[ScriptedBrokers, list[SendResult]]:
        brokers = ScriptedBrokers()
        async with brokers.producer() as producer:
            return brokers, await producer.send_batch("t", sent)

    brokers, results = run(scenario())
    places = {one.body: (one.queue_id, one.queue_offset) for one in brokers.stored}
    assert [(one.queue_id, one.queue_offset) for one in results] == [
        places[message.body.decode()] for message in sent
    ]
    assert len({queue_id for queue_id, _ in places.values()}) > 1


def test_one_key_keeps_a_batch_together() -> None:
    async def scenario() -> ScriptedBrokers:
        brokers = ScriptedBrokers()
        async with brokers.producer() as producer:
            await producer.send_batch("t", [b"a", Message(b"b", ordering_key="k"), b"c"])
        return brokers

    brokers = run(scenario())
    assert [len(batch.messages) for request in brokers.requests for batch in request.batches] == [3]
    assert {one.queue_id for one in brokers.stored} == {text_hash("k") % 4}
    assert brokers.bodies() == ["a", "b", "c"]


def test_a_batch_of_one_message_may_be_as_large_as_a_message() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers()
        async with brokers.producer(compress_above_bytes=1 << 30) as producer:
            await producer.send_batch("t", [b"x" * MESSAGE_BYTES_MAX])
        assert len(brokers.stored) == 1

    run(scenario())


def test_a_batch_that_no_entry_could_hold_is_refused() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers()
        async with brokers.producer(compress_above_bytes=1 << 30) as producer:
            with pytest.raises(MessageTooLarge, match="in parts"):
                await producer.send_batch("t", [b"x" * (1 << 20)] * 5)
            await producer.flush()
        assert brokers.stored == []

    run(scenario())


def test_a_missing_topic_that_is_not_created_is_an_error() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers()
        brokers.creates_topics = False
        async with brokers.producer() as producer:
            with pytest.raises(TopicNotFound, match="other"):
                await producer.send("other", b"")
            with pytest.raises(IllegalTopic):
                await producer.send("no spaces", b"")
            with pytest.raises(PermissionDenied):
                await producer.send("%RETRY%group", b"")

    run(scenario())


def test_an_error_of_one_batch_is_its_own() -> None:
    def script(_brokers: ScriptedBrokers, batch: Batch) -> BatchResult | None:
        return refusal(wire.MESSAGE_TOO_LARGE) if batch.messages[0].body == b"bad" else None

    async def scenario() -> None:
        brokers = ScriptedBrokers(script=script)
        async with brokers.producer(batch_bytes=1) as producer:
            futures = [await producer.send_async("t", body) for body in ("a", "bad", "b")]
            results = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(result) for result in results] == [SendResult, MessageTooLarge, SendResult]
        assert sorted(brokers.bodies()) == ["a", "b"]

    run(scenario())


def test_each_message_of_a_failed_batch_has_an_error_of_its_own() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers(script=answers(wire.MESSAGE_TOO_LARGE))
        async with brokers.producer() as producer:
            futures = [await producer.send_async("t", f"{n}") for n in range(3)]
            errors = await asyncio.gather(*futures, return_exceptions=True)
        assert all(isinstance(error, MessageTooLarge) for error in errors)
        assert len({id(error) for error in errors}) == 3
        assert len({str(error) for error in errors}) == 1

    run(scenario())


def test_the_numbers_of_batches_that_were_refused_leave_no_gaps() -> None:
    async def scenario() -> ScriptedBrokers:
        brokers = ScriptedBrokers(script=answers(*[wire.MESSAGE_TOO_LARGE] * 5))
        async with brokers.producer() as producer:
            for _ in range(5):
                with pytest.raises(MessageTooLarge):
                    await producer.send("t", b"")
            for n in range(5):
                await producer.send("t", f"{n}")
        return brokers

    assert sorted(one.sequence for one in run(scenario()).stored) == [1, 2, 3, 4, 5]


def test_a_send_beyond_the_buffer_waits_and_nothing_is_lost() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers()
        async with brokers.producer(buffer_bytes=400, linger_ms=0) as producer:
            futures = [await producer.send_async("t", f"{n:03}") for n in range(300)]
            waiting = [future for future in futures if not future.done()]
            assert 0 < len(waiting) <= 16
            await asyncio.gather(*futures)
        assert sorted(brokers.bodies()) == [f"{n:03}" for n in range(300)]

    run(scenario())


def test_close_sends_everything_and_waits_for_the_answers() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers()
        producer = brokers.producer(linger_ms=60_000)
        futures = [await producer.send_async("t", f"{n}") for n in range(50)]
        for n in range(50, 60):
            await producer.send_one_way("t", f"{n}")
        await producer.close()
        assert all(future.done() for future in futures)
        assert sorted(brokers.bodies(), key=int) == [f"{n}" for n in range(60)]
        assert [(call.is_half_closed, call.has_ended) for call in brokers.calls] == [(True, True)]
        with pytest.raises(RuntimeError, match="closed"):
            await producer.send_async("t", b"")
        await producer.close()

    run(scenario())


def test_a_producer_that_was_never_used_closes() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers()
        async with brokers.producer() as producer:
            await producer.flush()
        assert brokers.calls == []
        with pytest.raises(RuntimeError, match="closed"):
            await producer.send("t", b"")

    run(scenario())


def test_flush_waits_for_what_was_sent_before_and_not_for_what_comes_after() -> None:
    def script(_brokers: ScriptedBrokers, batch: Batch) -> BatchResult | None:
        if batch.messages[0].body == b"late":
            raise Silence
        return None

    async def scenario() -> None:
        brokers = ScriptedBrokers(script=script)
        producer = brokers.producer(linger_ms=60_000)
        early = await producer.send_async("t", "early", queue_id=0)
        flush = asyncio.create_task(producer.flush())
        await asyncio.sleep(0)
        late = await producer.send_async("t", "late", queue_id=1)
        await flush
        assert early.done()
        assert not late.done()
        with pytest.raises(Unreachable, match="1 batches have no answer"):
            await producer.flush(timeout_s=0.5)
        await producer.close()
        assert isinstance(late.exception(), Unreachable)

    run(scenario())


def test_without_acknowledgement_everything_has_arrived_when_close_returns() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers()
        async with brokers.producer(ack="none", batch_bytes=60) as producer:
            result = await producer.send("t", "first")
            assert (result.status, result.message_id, result.queue_offset) == ("SENT", "", -1)
            for n in range(50):
                await producer.send_one_way("t", f"{n}")
            await producer.flush()
        assert len(brokers.stored) == 51
        assert {request.ack for request in brokers.requests} == {2}
        assert all(call.has_ended for call in brokers.calls)

    run(scenario())


def test_an_answer_before_the_place_is_known_has_no_place() -> None:
    def script(brokers: ScriptedBrokers, batch: Batch) -> BatchResult | None:
        brokers.store(batch)
        return BatchResult(queue_id=batch.queue_id, queue_offset=-1, log_offset=-1)

    async def scenario() -> SendResult:
        async with ScriptedBrokers(script=script).producer(ack="leader") as producer:
            return await producer.send("t", b"x", queue_id=3)

    assert run(scenario()) == SendResult("", "t", 3, -1, 0, broker_set="set-0")


def test_a_one_way_message_that_fails_is_a_warning_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with ScriptedBrokers(script=answers(wire.MESSAGE_TOO_LARGE)).producer() as producer:
            await producer.send_one_way("t", b"")
            await producer.send_one_way("t", b"")

    with caplog.at_level(logging.WARNING, "mq.client"):
        run(scenario())
    [record] = caplog.records
    assert "2 one-way messages to t were not sent" in record.getMessage()


def test_a_cancelled_future_disturbs_no_other() -> None:
    async def scenario() -> None:
        brokers = ScriptedBrokers()
        async with brokers.producer() as producer:
            futures = [await producer.send_async("t", f"{n}") for n in range(3)]
            futures[1].cancel()
            await asyncio.gather(futures[0], futures[2])
        assert len(brokers.stored) == 3

    run(scenario())


def test_a_topic_that_grows_is_noticed() -> None:
    async def scenario() -> set[int]:
        brokers = ScriptedBrokers()
        brokers.topics["t"] = 1
        async with brokers.producer() as producer:
            await producer.send("t", b"")
            brokers.topics["t"] = 3
            for _ in range(40):
                await producer.send("t", b"")
                await asyncio.sleep(1)
        return {one.queue_id for one in brokers.stored}

    assert run(scenario()) == {0, 1, 2}


def test_an_unexpected_exception_fails_all_messages(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistake(*_: object) -> bytes:
        raise ZeroDivisionError

    async def scenario() -> None:
        brokers = ScriptedBrokers()
        producer = brokers.producer()
        await producer.send("t", b"")
        monkeypatch.setattr("mq.client.encode.request", mistake)
        futures = [await producer.send_async("t", b"") for _ in range(3)]
        errors = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(error) for error in errors] == [Internal] * 3
        with pytest.raises(RuntimeError, match="closed"):
            await producer.send("t", b"")
        await producer.close()

    run(scenario())
    assert "a mistake of its own" in caplog.text
