"""A batch that comes again is stored once and answered as the first one was: on one stream, on
another, while the first is under way, after a restart, and after kill -9.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from mq.wire.v1.producer_pb2 import ACK_LEADER, ACK_QUORUM, BatchResult
from tests.conformance.calls import Calls, code_of, numbers, prepared
from tests.conformance.streams import PublishStream
from tests.support.broker_process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def place(result: BatchResult) -> tuple[Any, ...]:
    return result.queue_id, result.queue_offset, result.log_offset, result.stored_at_ms


def test_a_repeated_batch_is_answered_with_the_place_of_the_first(
    calls: Calls, channel: grpc.Channel, topic: str
) -> None:
    batches = [prepared(topic, b"%d" % n, producer_id=topic, sequence=n) for n in range(1, 21)]
    with PublishStream(channel) as stream:
        firsts = [stream.result(batch) for batch in batches]
        again = [stream.result(batch) for batch in batches]
    with PublishStream(channel) as stream:
        on_another = [stream.result(batch) for batch in batches]
    assert not any(one.is_duplicate for one in firsts)
    assert all(one.is_duplicate for one in again + on_another)
    assert [place(one) for one in again] == [place(one) for one in firsts]
    assert [place(one) for one in on_another] == [place(one) for one in firsts]
    assert calls.ends(topic)[0] == 20


def test_one_that_comes_again_while_the_first_is_under_way_is_stored_once(
    calls: Calls, channel: grpc.Channel, topic: str
) -> None:
    batch = prepared(topic, b"x", producer_id=topic, sequence=1)
    with PublishStream(channel) as stream:
        for number in range(50):
            stream.publish(batch, batch, ack=ACK_LEADER if number % 2 else ACK_QUORUM)
        results = [result for _ in range(50) for result in stream.next().results]
    assert {code_of(one) for one in results} == {"SEND_OK"}
    assert {one.queue_offset for one in results} <= {0, -1}
    assert calls.bodies(topic) == [b"x"]


def test_sequences_may_come_in_any_order(calls: Calls, channel: grpc.Channel, topic: str) -> None:
    with PublishStream(channel) as stream:
        for sequence in (5, 1, 3, 2, 4, 3, 5, 1):
            batch = prepared(topic, b"%d" % sequence, producer_id=topic, sequence=sequence)
            assert code_of(stream.result(batch)) == "SEND_OK"
    assert calls.bodies(topic) == [b"5", b"1", b"3", b"2", b"4"]


def test_an_old_duplicate_is_known_though_its_place_is_not(
    calls: Calls, channel: grpc.Channel, topic: str
) -> None:
    with PublishStream(channel) as stream:
        for sequence in range(1, 301):
            stream.publish(prepared(topic, b"x", producer_id=topic, sequence=sequence))
        for _ in range(300):
            stream.next()
        old = stream.result(prepared(topic, b"x", producer_id=topic, sequence=1))
        recent = stream.result(prepared(topic, b"x", producer_id=topic, sequence=250))
    assert (code_of(old), old.is_duplicate, old.queue_offset) == ("SEND_OK", True, -1)
    assert (recent.is_duplicate, recent.queue_offset) == (True, 249)
    assert calls.ends(topic)[0] == 300


def test_a_batch_that_failed_has_not_used_up_its_sequence(
    channel: grpc.Channel, topic: str
) -> None:
    with PublishStream(channel) as stream:
        bad = prepared(topic, b"x", queue_id=9, producer_id=topic, sequence=1)
        assert code_of(stream.result(bad)) == "QUEUE_NOT_FOUND"
        good = stream.result(prepared(topic, b"x", producer_id=topic, sequence=1))
    assert (code_of(good), good.is_duplicate) == ("SEND_OK", False)


def test_the_topic_may_be_gone_when_it_comes_again(
    calls: Calls, channel: grpc.Channel, topic: str
) -> None:
    batch = prepared(topic, b"x", producer_id=topic, sequence=1)
    with PublishStream(channel) as stream:
        stream.result(batch)
        calls("DeleteTopic", topic=topic)
        calls.create(topic)
        assert stream.result(batch).is_duplicate
    assert calls.bodies(topic, queue_offset=1) == []


# -- over restarts ---------------------------------------------------------------------------------


@contextlib.contextmanager
def publishing(broker: BrokerProcess) -> Iterator[tuple[PublishStream, Calls]]:
    with grpc.insecure_channel(broker.address) as channel, PublishStream(channel) as stream:
        yield stream, Calls(channel)


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_a_broker_that_comes_back_knows_what_it_has(tmp_path: Path, is_killed: bool) -> None:
    """Twice: once from the log, once from whatever the first run left."""
    batches = [
        prepared("t", body, producer_id="p", sequence=at + 1) for at, body in enumerate(numbers(40))
    ]
    with BrokerProcess(tmp_path / "data") as broker:
        with publishing(broker) as (stream, calls):
            calls.create("t", 1)
            firsts = [stream.result(batch) for batch in batches[:30]]
            # In flight when the broker dies: whether it is stored is unknown.
            for batch in batches[30:]:
                stream.publish(batch)
            stream.next()
        for _ in range(2):
            if is_killed:
                broker.kill()
            else:
                assert broker.stop() == 0
            broker.start()
            with publishing(broker) as (stream, calls):
                again = [stream.result(batch) for batch in batches]
                assert all(one.is_duplicate for one in again[:31])
                assert [place(one) for one in again[:30]] == [place(one) for one in firsts]
                assert calls.bodies("t") == numbers(40)


def test_messages_after_a_topic_was_deleted_and_recreated_survive_a_kill(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with grpc.insecure_channel(broker.address) as channel:
            calls = Calls(channel)
            calls.create("t", 1)
            calls.send("t", b"old", b"older")
            calls("DeleteTopic", topic="t")
            calls.create("t", 1)
            calls.send("t", b"new")
        broker.kill()
        broker.start()
        with grpc.insecure_channel(broker.address) as channel:
            calls = Calls(channel)
            (queue,) = calls("DescribeTopic", topic="t").queues
            assert (queue.start, queue.end) == (2, 3)
            assert calls.bodies("t", queue_offset=2) == [b"new"]
