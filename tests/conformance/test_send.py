"""ProducerService/Send: some messages to one queue, one answer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from mq.wire.v1 import producer_pb2
from mq.wire.v1.message_pb2 import COMPRESSION_LZ4, Message
from tests.conformance.calls import Calls, text_hash, until

if TYPE_CHECKING:
    from collections.abc import Callable

INVALID = grpc.StatusCode.INVALID_ARGUMENT


def test_messages_of_one_send_follow_each_other_and_each_has_an_id(
    calls: Calls, topic: str
) -> None:
    calls.send(topic, b"before", queue_id=2)
    answer = calls.send(topic, b"a", b"b", b"c", queue_id=2)
    assert (answer.queue_id, answer.queue_offset, answer.is_duplicate) == (2, 1, False)
    assert answer.stored_at_ms > 0
    found = [calls("GetMessage", message_id=one) for one in answer.message_ids]
    assert [one.queue_offset for one in found] == [1, 2, 3]
    assert [one.message.body for one in found] == [b"a", b"b", b"c"]
    assert {(one.topic, one.queue_id) for one in found} == {(topic, 2)}
    assert [one.message_id for one in found] == list(answer.message_ids)


@pytest.mark.every_client("unary calls")
def test_every_field_of_a_message_comes_back_as_it_was_sent(calls: Calls, topic: str) -> None:
    sent = Message(
        body=bytes(range(256)),
        tag="paid",
        keys=["order-1", "käufer-2"],
        properties={"region": "EU", "": "no name", "leer": ""},
        ordering_key="customer-7",
        born_at_ms=-1,
        compression=COMPRESSION_LZ4,
    )
    calls.send(topic, messages=[sent, Message()])
    pulled = calls("Pull", topic=topic)
    assert [message for run in pulled.runs for message in run.messages] == [sent, Message()]


@pytest.mark.every_client("many calls at a time")
def test_sends_at_the_same_time_are_each_stored_once_and_answered_for_themselves(
    calls: Calls, topic: str
) -> None:
    """They may be stored together; the one that is wrong is refused alone."""

    def send(n: int) -> Any:
        message = Message(body=b"%d" % n, tag="two words" if n % 50 == 7 else "one")
        request = {"topic": topic, "queue_id": n % 2, "messages": [message]}
        if n % 50 == 7:
            return calls.refused("Send", **request).code
        return calls("Send", **request)

    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(send, range(200)))
    assert [one for one in answers if isinstance(one, str)] == ["ILLEGAL_REQUEST"] * 4
    places = {}
    for n, answer in enumerate(answers):
        if not isinstance(answer, str):
            found = calls("GetMessage", message_id=answer.message_ids[0])
            assert (found.message.body, found.queue_offset) == (b"%d" % n, answer.queue_offset)
            places[answer.queue_id, answer.queue_offset] = n
    assert sorted(places) == [(q, n) for q, end in enumerate((100, 96)) for n in range(end)]
    assert calls.ends(topic) == [100, 96, 0, 0]


@pytest.mark.parametrize("tag", ["two words", "a||b", "*", " paid", "paid\n"])
def test_a_tag_that_no_filter_can_ask_for_is_refused(calls: Calls, topic: str, tag: str) -> None:
    refusal = calls.refused("Send", topic=topic, messages=[Message(tag="good"), Message(tag=tag)])
    assert (refusal.code, refusal.grpc_code) == ("ILLEGAL_REQUEST", INVALID)
    assert repr(tag) in refusal.text
    assert sum(calls.ends(topic)) == 0


def test_without_a_queue_the_broker_takes_them_in_turn(calls: Calls, topic: str) -> None:
    def sent_to() -> int:
        return int(calls("Send", topic=topic, messages=[Message()]).queue_id)

    assert sorted(sent_to() for _ in range(8)) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_without_a_queue_an_ordering_key_has_one_queue(calls: Calls, topic: str) -> None:
    for key in ("a", "b", "customer-7"):
        answers = [
            calls("Send", topic=topic, messages=[Message(ordering_key=key)]) for _ in range(3)
        ]
        assert {one.queue_id for one in answers} == {text_hash(key) % 4}


def test_a_first_message_creates_its_topic(calls: Calls, new_name: Callable[[], str]) -> None:
    with_queue, without = new_name(), new_name()
    calls.send(with_queue, b"x", queue_id=7)
    calls("Send", topic=without, messages=[Message(body=b"x")])
    assert len(calls.ends(with_queue)) == len(calls.ends(without)) == 8


def test_leader_ack_knows_no_offset_and_the_message_is_there(calls: Calls, topic: str) -> None:
    answer = calls.send(topic, b"x", ack=producer_pb2.ACK_LEADER)
    if answer.queue_offset == -1:
        assert not answer.message_ids
    until(lambda: calls.bodies(topic) == [b"x"])


def test_no_ack_is_answered_at_once_and_the_message_comes(calls: Calls, topic: str) -> None:
    answer = calls.send(topic, b"x", ack=producer_pb2.ACK_NONE)
    assert (answer.queue_offset, list(answer.message_ids)) == (-1, [])
    until(lambda: calls.bodies(topic) == [b"x"])


def test_the_same_sequence_is_stored_once_and_answered_as_the_first_was(
    calls: Calls, topic: str
) -> None:
    first = calls.send(topic, b"a", b"b", producer_id=topic, sequence=1)
    # To whichever queue.
    again = calls.send(topic, b"a", b"b", queue_id=3, producer_id=topic, sequence=1)
    assert again.is_duplicate
    again.is_duplicate = False
    assert again == first
    assert calls.ends(topic) == [2, 0, 0, 0]


def test_two_producers_may_use_the_same_sequence(calls: Calls, topic: str) -> None:
    for producer_id in ("one", "other"):
        answer = calls.send(topic, b"x", producer_id=topic + producer_id, sequence=1)
        assert not answer.is_duplicate
    assert calls.ends(topic)[0] == 2


# -- refusals --------------------------------------------------------------------------------------

TOO_LARGE = [Message(body=bytes((4 << 20) + 1))]
REFUSALS = [
    pytest.param({"topic": ""}, "ILLEGAL_TOPIC", INVALID, "''", id="no topic"),
    pytest.param({"topic": "a b"}, "ILLEGAL_TOPIC", INVALID, "a b", id="space"),
    pytest.param({"topic": "../up"}, "ILLEGAL_TOPIC", INVALID, "../up", id="path"),
    pytest.param({"topic": "ä"}, "ILLEGAL_TOPIC", INVALID, "ä", id="letter"),
    pytest.param({"topic": "x" * 128}, "ILLEGAL_TOPIC", INVALID, "xxx", id="long name"),
    pytest.param(
        {"topic": "%SYS%HALF"},
        "PERMISSION_DENIED",
        grpc.StatusCode.PERMISSION_DENIED,
        "%SYS%HALF",
        id="internal",
    ),
    pytest.param(
        {"queue_id": 4}, "QUEUE_NOT_FOUND", grpc.StatusCode.NOT_FOUND, "queue 4", id="queue"
    ),
    pytest.param({"queue_id": 65_536}, "ILLEGAL_TOPIC", INVALID, "65536", id="high queue"),
    pytest.param({"messages": []}, "MALFORMED_BATCH", INVALID, "no messages", id="nothing"),
    pytest.param({"messages": TOO_LARGE}, "MESSAGE_TOO_LARGE", INVALID, "4194304", id="size"),
    pytest.param({"ack": 3}, "ILLEGAL_REQUEST", INVALID, "unknown ack 3", id="ack"),
    pytest.param({"sequence": 1}, "ILLEGAL_REQUEST", INVALID, "producer_id", id="anonymous"),
    pytest.param({"producer_id": "p"}, "ILLEGAL_REQUEST", INVALID, "from 1 on", id="uncounted"),
    pytest.param(
        {"producer_id": "p" * 128, "sequence": 1}, "ILLEGAL_REQUEST", INVALID, "127", id="long id"
    ),
    pytest.param(
        {"producer_id": "a\nb", "sequence": 1}, "ILLEGAL_REQUEST", INVALID, "printable", id="line"
    ),
    pytest.param(
        {"producer_id": "p", "sequence": 1 << 63},
        "ILLEGAL_REQUEST",
        INVALID,
        str(1 << 63),
        id="endless",
    ),
]


@pytest.mark.every_client("status and trailers")
@pytest.mark.parametrize(("fields", "code", "grpc_code", "text"), REFUSALS)
def test_a_bad_send_is_refused_by_name_and_changes_nothing(
    calls: Calls, topic: str, fields: dict[str, Any], code: str, grpc_code: Any, text: str
) -> None:
    topics = len(calls("ListTopics").topics)
    request = {"topic": topic, "queue_id": 0, "messages": [Message(body=b"x")], **fields}
    refusal = calls.refused("Send", **request)
    assert (refusal.code, refusal.grpc_code) == (code, grpc_code)
    assert text in refusal.text
    assert calls.ends(topic) == [0, 0, 0, 0]
    assert len(calls("ListTopics").topics) == topics


def test_a_topic_that_is_switched_off_takes_nothing(calls: Calls, topic: str) -> None:
    calls("AlterTopic", topic=topic, is_writable=False)
    refusal = calls.refused("Send", topic=topic, queue_id=0, messages=[Message()])
    assert refusal.code == "PERMISSION_DENIED"
    assert topic in refusal.text
    calls("AlterTopic", topic=topic, is_writable=True)
    calls.send(topic, b"x")


def test_a_producer_that_leaves_too_many_gaps_hears_of_it(calls: Calls, topic: str) -> None:
    for number in range(256):
        calls.send(topic, b"x", producer_id=topic, sequence=2 * number + 1)
    refusal = calls.refused(
        "Send", topic=topic, queue_id=0, messages=[Message()], producer_id=topic, sequence=999
    )
    assert (refusal.code, refusal.grpc_code) == ("ILLEGAL_SEQUENCE", INVALID)
    assert topic in refusal.text
    # What fills a gap, or follows, goes on.
    assert not calls.send(topic, b"x", producer_id=topic, sequence=2).is_duplicate
    assert not calls.send(topic, b"x", producer_id=topic, sequence=512).is_duplicate
    assert calls.send(topic, b"x", producer_id=topic, sequence=511).is_duplicate


@pytest.mark.every_client("large messages")
def test_the_largest_message_is_taken(calls: Calls, topic: str) -> None:
    """The limit is that of the body; what stands beside it has a limit of its own."""
    body = bytes(4 << 20)
    calls.send(topic, messages=[Message(body=body, tag="t", keys=["k"], born_at_ms=1)])
    calls.send(topic, messages=[Message(body=body, keys=["k" * 60_000])])
    assert calls.bodies(topic) == [body, body]
    more = calls.refused("Send", topic=topic, messages=[Message(body=body, keys=["k" * 65_536])])
    assert (more.code, more.grpc_code) == ("MESSAGE_TOO_LARGE", INVALID)
    assert "4194304 are allowed for its body and 65536 beside it" in more.text
