"""ProducerService/Publish: batches one after the other, an answer for each request."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from mq.wire.v1.message_pb2 import Batch, Message, RawBatch
from mq.wire.v1.producer_pb2 import ACK_LEADER, ACK_NONE, ACK_QUORUM, PublishRequest
from tests.conformance.calls import (
    Calls,
    code_of,
    numbers,
    path_of,
    plain,
    prepared,
    publish_request,
    until,
)
from tests.conformance.streams import PublishStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.broker_process import BrokerProcess


MAKERS = [pytest.param(plain, id="plain"), pytest.param(prepared, id="prepared")]


@pytest.fixture
def stream(channel: grpc.Channel) -> Iterator[PublishStream]:
    with PublishStream(channel) as opened:
        yield opened


@pytest.mark.parametrize("make", MAKERS)
def test_a_batch_is_answered_with_where_it_is(
    calls: Calls, stream: PublishStream, topic: str, make: Callable[..., Batch]
) -> None:
    messages = [Message(body=bytes(size), tag="t", keys=["k", "l"]) for size in (0, 100, 40_000)]
    result = stream.result(make(topic, messages=messages, queue_id=1))
    assert code_of(result) == "SEND_OK"
    assert (result.text, result.queue_id, result.queue_offset) == ("", 1, 0)
    assert result.stored_at_ms > 0
    assert not result.is_duplicate
    # Broker set and log offset are the id; the next one's is larger by the frame's size.
    log_offset = result.log_offset
    for at, message in enumerate(messages):
        found = calls("GetMessage", message_id=f"set-0:{log_offset}")
        assert (found.queue_offset, found.message) == (at, message)
        log_offset += len(Batch(messages=[message]).SerializeToString())


@pytest.mark.parametrize("make", MAKERS)
def test_messages_are_found_by_tag_and_key_whichever_side_prepared_them(
    calls: Calls, stream: PublishStream, topic: str, make: Callable[..., Batch]
) -> None:
    messages = [Message(body=b"1", tag="new", keys=["a", "b"]), Message(body=b"2", tag="paid")]
    stream.result(make(topic, messages=messages))
    by_tag = calls("Pull", topic=topic, filter={"tags": "paid"})
    assert [one.body for run in by_tag.runs for one in run.messages] == [b"2"]
    by_key = calls("QueryMessages", topic=topic, key="b").messages
    assert [one.message.body for one in by_key] == [b"1"]


@pytest.mark.every_client("order in a stream")
def test_five_hundred_requests_under_way_are_answered_and_stored_in_their_order(
    calls: Calls, stream: PublishStream, topic: str
) -> None:
    bodies = numbers(500)
    for number, body in enumerate(bodies):
        stream.publish(prepared(topic, body, queue_id=number % 4))
    answers = [stream.next() for _ in bodies]
    assert [one.request_id for one in answers] == list(range(1, 501))
    results = [result for answer in answers for result in answer.results]
    assert {code_of(one) for one in results} == {"SEND_OK"}
    for queue_id in range(4):
        assert [one.queue_offset for one in results[queue_id::4]] == list(range(125))
        assert calls.bodies(topic, queue_id) == bodies[queue_id::4]


@pytest.mark.every_client("half-close")
def test_a_half_close_ends_the_stream_after_every_answer(
    calls: Calls, stream: PublishStream, topic: str
) -> None:
    for body in numbers(300):
        stream.publish(plain(topic, body))
    stream.half_close()
    assert [one.request_id for one in stream.rest()] == list(range(1, 301))
    assert calls.bodies(topic) == numbers(300)


@pytest.mark.every_client("a stream without a message")
def test_a_stream_without_a_word_ends_well(stream: PublishStream) -> None:
    stream.half_close()
    assert stream.rest() == []


@pytest.mark.every_client("flow control")
def test_a_client_that_does_not_read_its_answers_is_not_read_either(
    calls: Calls, broker: BrokerProcess, connect: Callable[..., Any], topic: str
) -> None:
    """Its answers would fill the broker's memory. When it reads them, all come."""
    total = 800
    # What is refused is answered at length.
    batches = [plain(topic, b"x"), *[plain("ä" * 200, b"x")] * 20]
    request = publish_request(1, *batches).SerializeToString()
    # A connection of its own: what others have read has widened the window of theirs.
    with connect(broker.address) as own:
        call = own.stream_stream(path_of("ProducerService/Publish"))(iter([request] * total))
        end = until(lambda: stable(lambda: calls.ends(topic)[0]), "nothing moves any more")
        assert 0 < end < total
        assert sum(1 for _ in call) == total
    assert calls.ends(topic)[0] == total


def stable(question: Callable[[], int]) -> int:
    """The answer, when it is the same for a while and not zero."""
    answer = question()
    for _ in range(20):
        time.sleep(0.02)
        if question() != answer:
            return 0
    return answer


def test_a_request_has_a_result_for_each_batch_in_their_order(
    calls: Calls, stream: PublishStream, topic: str
) -> None:
    batches = [
        prepared(topic, b"a", queue_id=3),
        plain(topic, b"b", b"c", queue_id=0),
        prepared(topic, b"d", queue_id=3),
    ]
    stream.publish(*batches)
    results = stream.next().results
    assert [(one.queue_id, one.queue_offset) for one in results] == [(3, 0), (0, 0), (3, 1)]
    assert calls.bodies(topic, 3) == [b"a", b"d"]
    assert calls.bodies(topic, 0) == [b"b", b"c"]


def test_leader_ack_is_answered_and_the_message_is_there(
    calls: Calls, stream: PublishStream, topic: str
) -> None:
    for body in numbers(50):
        stream.publish(prepared(topic, body), ack=ACK_LEADER)
    results = [stream.next().results[0] for _ in range(50)]
    assert {code_of(one) for one in results} == {"SEND_OK"}
    # Known only when it was committed by then.
    for at, one in enumerate(results):
        assert (one.queue_offset, one.log_offset) == (-1, -1) or one.queue_offset == at
    until(lambda: calls.bodies(topic) == numbers(50))


def test_no_ack_is_never_answered(calls: Calls, stream: PublishStream, topic: str) -> None:
    for number, body in enumerate(numbers(100)):
        stream.publish(prepared(topic, body), ack=ACK_NONE if number % 2 else ACK_QUORUM)
    # Nor is one that fails.
    stream.publish(prepared(topic, b"x", queue_id=9), ack=ACK_NONE)
    stream.half_close()
    assert [one.request_id for one in stream.rest()] == list(range(1, 101, 2))
    until(lambda: calls.bodies(topic) == numbers(100))


def test_request_ids_come_back_as_they_are(stream: PublishStream, topic: str) -> None:
    for request_id in (0, 7, 7, (1 << 64) - 1):
        stream.send(publish_request(request_id, prepared(topic, b"x")))
        assert stream.next().request_id == request_id


def test_a_first_batch_creates_its_topic(
    calls: Calls, stream: PublishStream, new_name: Callable[[], str]
) -> None:
    topic = new_name()
    assert code_of(stream.result(prepared(topic, b"x", queue_id=7))) == "SEND_OK"
    assert len(calls.ends(topic)) == 8


# -- one bad batch ---------------------------------------------------------------------------------


def _bad_sizes(topic: str) -> Batch:
    batch = prepared(topic, b"abc", b"def")
    batch.frame_sizes[0] += 1
    batch.frame_sizes[1] -= 1
    return batch


def _missing_hash(topic: str) -> Batch:
    batch = prepared(topic, b"abc", b"def")
    del batch.tag_hashes[1]
    return batch


def _missing_key(topic: str) -> Batch:
    batch = prepared(topic, messages=[Message(keys=["a", "b"])])
    del batch.key_hashes[1]
    return batch


def _wrong_tag(topic: str) -> Batch:
    batch = prepared(topic, messages=[Message(tag="paid"), Message(tag="shipped", body=b"x")])
    batch.tag_hashes[1] = batch.tag_hashes[0]
    return batch


def _wrong_key(topic: str) -> Batch:
    batch = prepared(topic, messages=[Message(keys=["a", "b"])])
    batch.key_hashes[1] += 1
    return batch


def _two_words(make: Callable[..., Batch]) -> Callable[[str], Batch]:
    return lambda topic: make(topic, messages=[Message(body=b"x"), Message(tag="two words")])


BAD_BATCHES = [
    pytest.param(lambda _: plain("a b", b"x"), "ILLEGAL_TOPIC", "a b", id="topic"),
    pytest.param(lambda _: prepared("", b"x"), "ILLEGAL_TOPIC", "''", id="no topic"),
    pytest.param(lambda _: plain("%SYS%OP", b"x"), "PERMISSION_DENIED", "%SYS%OP", id="internal"),
    pytest.param(lambda t: plain(t, b"x", queue_id=4), "QUEUE_NOT_FOUND", "queue 4", id="queue"),
    pytest.param(plain, "MALFORMED_BATCH", "no messages", id="empty"),
    pytest.param(_bad_sizes, "MALFORMED_BATCH", "frame_sizes", id="frame sizes"),
    pytest.param(_missing_hash, "MALFORMED_BATCH", "tag hashes", id="tag hashes"),
    pytest.param(_missing_key, "MALFORMED_BATCH", "key counts", id="key counts"),
    pytest.param(_wrong_tag, "MALFORMED_BATCH", "tag_hashes", id="a wrong tag hash"),
    pytest.param(_wrong_key, "MALFORMED_BATCH", "key_hashes", id="a wrong key hash"),
    pytest.param(_two_words(plain), "ILLEGAL_REQUEST", "two words", id="a plain batch's tag"),
    pytest.param(_two_words(prepared), "ILLEGAL_REQUEST", "two words", id="a prepared one's tag"),
    pytest.param(
        lambda t: plain(t, bytes((4 << 20) + 1)), "MESSAGE_TOO_LARGE", "4194304", id="a body"
    ),
    pytest.param(
        lambda t: prepared(t, bytes((4 << 20) + 1)),
        "MESSAGE_TOO_LARGE",
        "a body of 4194305 bytes",
        id="a prepared body",
    ),
    pytest.param(
        lambda t: prepared(t, *[bytes(3 << 20)] * 2), "MESSAGE_TOO_LARGE", "entry", id="entry"
    ),
    pytest.param(lambda t: plain(t, b"x", sequence=1), "ILLEGAL_REQUEST", "producer", id="nobody"),
    pytest.param(
        lambda t: prepared(t, b"x", producer_id="p"), "ILLEGAL_REQUEST", "from 1", id="zero"
    ),
]


@pytest.mark.parametrize(("bad", "code", "text"), BAD_BATCHES)
def test_a_bad_batch_fails_alone(
    calls: Calls,
    stream: PublishStream,
    topic: str,
    bad: Callable[[str], Batch],
    code: str,
    text: str,
) -> None:
    """Between requests, and between the batches of one request."""
    stream.publish(prepared(topic, b"1"))
    stream.publish(bad(topic))
    stream.publish(prepared(topic, b"2"), bad(topic), prepared(topic, b"3"))
    stream.publish(prepared(topic, b"4"))
    answers = [[code_of(one) for one in stream.next().results] for _ in range(3)]
    assert answers == [["SEND_OK"], [code], ["SEND_OK", code, "SEND_OK"]]
    result = stream.result(bad(topic)) if stream.next() else None
    assert result is not None
    assert text in result.text
    assert (result.queue_offset, result.log_offset) == (-1, -1)
    assert calls.bodies(topic) == [b"1", b"2", b"3", b"4"]
    assert calls.ends(topic) == [4, 0, 0, 0]


def test_bytes_that_are_no_batch_fail_alone(
    calls: Calls, stream: PublishStream, topic: str
) -> None:
    garbage = b"\x7a\x05\xff\xff\xff\xff\xff"
    stream.send_bytes(publish_request(1, plain(topic, b"x")).SerializeToString() + garbage)
    assert [code_of(one) for one in stream.next().results] == ["SEND_OK", "MALFORMED_BATCH"]
    assert calls.bodies(topic) == [b"x"]


@pytest.mark.every_client("large messages")
@pytest.mark.parametrize("make", MAKERS)
def test_a_body_of_exactly_the_limit_is_taken(
    calls: Calls, stream: PublishStream, topic: str, make: Callable[..., Batch]
) -> None:
    message = Message(body=bytes(4 << 20), tag="t", keys=["k"], born_at_ms=1 << 40)
    assert code_of(stream.result(make(topic, messages=[message]))) == "SEND_OK"
    assert calls.bodies(topic) == [message.body]


UNREADABLE = [
    pytest.param(b"\xff\xff", id="no message"),
    pytest.param(b"\x12\x02\xff\xff", id="a tag that is not UTF-8"),
    pytest.param(b"\x22\x06\x0a\x01a\x12\x01\xff", id="a property that is not UTF-8"),
    pytest.param(b"\x0a\x09cut", id="a body that is cut"),
]


@pytest.mark.parametrize("bad", UNREADABLE)
def test_a_message_that_no_client_could_read_is_not_stored(
    calls: Calls, stream: PublishStream, topic: str, bad: bytes
) -> None:
    """Sent as a producer that prepares its batches itself can; a consumer is generated code."""
    good = Message(body=b"good").SerializeToString()
    batch = RawBatch(
        topic=topic,
        frame_sizes=b"".join((2 + len(one)).to_bytes(4, "little") for one in (good, bad)),
        tag_hashes=bytes(16),
        messages=[good, bad],
    ).SerializeToString()
    stream.send_bytes(b"\x08\x01\x7a" + bytes([len(batch)]) + batch)
    (result,) = stream.next().results
    assert code_of(result) == "MALFORMED_BATCH"
    assert "message 2 of 2 of the batch is no Message" in result.text
    stream.publish(prepared(topic, b"after"))
    assert code_of(stream.next().results[0]) == "SEND_OK"
    assert calls.bodies(topic) == [b"after"]


# -- what ends the stream --------------------------------------------------------------------------

GARBAGE = [
    pytest.param(b"\xff\xff\xff\xff", id="noise"),
    pytest.param(b"", id="nothing"),
    pytest.param(PublishRequest(request_id=5).SerializeToString(), id="no batches"),
    pytest.param(b"\x7a\x7f", id="cut short"),
    pytest.param(b"\x7a", id="no length"),
    pytest.param(b"\x08", id="no id"),
    pytest.param(b"\x08" + b"\xff" * 9 + b"\x7f\x7a\x00", id="an id of 70 bits"),
    pytest.param(b"\x08" + b"\xff" * 11, id="an id without an end"),
    pytest.param(b"\x10\x09\x7a\x00", id="no such ack"),
]


@pytest.mark.every_client("status after answers")
@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_ends_the_stream_after_the_answers_before_it(
    calls: Calls, stream: PublishStream, topic: str, garbage: bytes
) -> None:
    for body in numbers(20):
        stream.publish(prepared(topic, body))
    stream.send_bytes(garbage)
    stream.publish(prepared(topic, b"too late"))
    answers, refusal = stream.refusal()
    assert [one.request_id for one in answers] == list(range(1, 21))
    assert {code_of(result) for one in answers for result in one.results} == {"SEND_OK"}
    assert refusal.code == "ILLEGAL_REQUEST"
    assert calls.bodies(topic) == numbers(20)


@pytest.mark.every_client("large messages")
def test_a_request_beyond_all_limits_is_refused_and_the_broker_lives(
    calls: Calls, stream: PublishStream, topic: str
) -> None:
    stream.publish(prepared(topic, bytes(20 << 20)))
    with pytest.raises(AssertionError, match="RESOURCE_EXHAUSTED"):
        stream.next()
    assert calls.ends(topic) == [0, 0, 0, 0]


@pytest.mark.every_client("cancellation")
def test_a_client_that_goes_away_leaves_nothing_behind(
    calls: Calls, channel: grpc.Channel, topic: str
) -> None:
    for number in range(20):
        with PublishStream(channel) as stream:
            stream.publish(prepared(topic, b"%d" % number, producer_id=topic, sequence=number + 1))
    # Its batch may be stored or not; sent again, it is stored once.
    with PublishStream(channel) as stream:
        for number in range(20):
            batch = prepared(topic, b"%d" % number, producer_id=topic, sequence=number + 1)
            assert code_of(stream.result(batch)) == "SEND_OK"
    assert sorted(calls.bodies(topic), key=int) == [b"%d" % number for number in range(20)]


def test_switched_off_in_the_middle_of_a_stream(
    calls: Calls, stream: PublishStream, topic: str
) -> None:
    def sent() -> Any:
        return code_of(stream.result(prepared(topic, b"x")))

    assert sent() == "SEND_OK"
    calls("AlterTopic", topic=topic, is_writable=False)
    assert sent() == "PERMISSION_DENIED"
    calls("AlterTopic", topic=topic, is_writable=True)
    assert sent() == "SEND_OK"
