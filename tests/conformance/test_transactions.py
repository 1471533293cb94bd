"""Transactions by any client: half messages, ends and questions on a raw stream."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from mq.wire.v1 import status_pb2
from mq.wire.v1.message_pb2 import Half, Message
from mq.wire.v1.transaction_pb2 import (
    RESOLUTION_COMMIT,
    RESOLUTION_ROLLBACK,
    RESOLUTION_UNKNOWN,
    EndTransactionRequest,
    TransactRequest,
    TransactResponse,
    TransactStart,
)
from tests.conformance.calls import Calls, plain, prepared, refusal_of, until
from tests.conformance.streams import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conformance.calls import Refusal

COMMIT, ROLLBACK = RESOLUTION_COMMIT, RESOLUTION_ROLLBACK


class TransactStream(Stream):
    def __init__(self, channel: grpc.Channel, group: str, **fields: Any) -> None:
        super().__init__(channel, "TransactionService/Transact", TransactResponse.FromString)
        fields.setdefault("producer_id", "p")
        fields.setdefault("answers_checks", True)
        self.group = group
        self._next_id = 7
        start = TransactStart(producer_group=group, **fields)
        self.send(TransactRequest(request_id=7, start=start))

    def started(self) -> TransactStream:
        answer = self.next()
        assert (answer.request_id, answer.WhichOneof("kind")) == (7, "started")
        return self

    def ask(self, **kind: Any) -> Any:
        """The answer to one request."""
        self._next_id += 1
        self.send(TransactRequest(request_id=self._next_id, **kind))
        answer = self.next()
        assert answer.request_id == self._next_id, answer
        return answer

    def begin(self, topic: str, *bodies: bytes, **fields: Any) -> str:
        fields.setdefault("half", self.half())
        make = fields.pop("make", plain)
        answer = self.ask(half=make(topic, *(bodies or (b"order",)), **fields))
        assert answer.WhichOneof("kind") == "half", answer
        return str(answer.half.transaction_id)

    def half(self, **fields: Any) -> Half:
        return Half(producer_group=self.group, **fields)

    def end(self, transaction_id: str, resolution: Any) -> Any:
        return self.ask(
            end=EndTransactionRequest(transaction_id=transaction_id, resolution=resolution)
        )

    def code(self, **kind: Any) -> str:
        answer = self.ask(**kind)
        assert answer.WhichOneof("kind") == "failed", answer
        assert answer.failed.text
        return status_pb2.Code.Name(answer.failed.code)

    def end_code(self, transaction_id: str, resolution: Any) -> str:
        return self.code(
            end=EndTransactionRequest(transaction_id=transaction_id, resolution=resolution)
        )

    def question(self) -> Any:
        answer = self.next()
        assert answer.WhichOneof("kind") == "check", answer
        return answer.check

    def answer(self, transaction_id: str, resolution: Any) -> None:
        checked = EndTransactionRequest(transaction_id=transaction_id, resolution=resolution)
        self.send(TransactRequest(checked=checked))

    def failure(self) -> Refusal:
        """The failure of the stream."""
        while not isinstance(answer := self._answers.get(timeout=30), grpc.RpcError):
            assert isinstance(answer, TransactResponse), answer
        return refusal_of(answer)


@pytest.fixture
def transact(
    channel: grpc.Channel, new_name: Callable[[], str]
) -> Iterator[Callable[..., TransactStream]]:
    opened: list[TransactStream] = []
    own = new_name()

    def open_stream(group: str = own, **fields: Any) -> TransactStream:
        opened.append(TransactStream(channel, group, **fields).started())
        return opened[-1]

    yield open_stream
    for stream in opened:
        stream.call.cancel()


def open_ones(calls: Calls, group: str) -> Any:
    return calls("ListTransactions", producer_group=group)


@pytest.mark.parametrize("make", [plain, prepared])
def test_a_half_message_is_seen_when_it_is_committed_once_as_it_was_sent(
    calls: Calls, topic: str, transact: Callable[..., TransactStream], make: Any
) -> None:
    stream = transact()
    sent = Message(body=b"order", tag="a", keys=["k"], properties={"x": "y"})
    one = stream.begin(topic, messages=[sent], queue_id=2, make=make)
    assert calls.ends(topic) == [0, 0, 0, 0]
    ended = stream.end(one, COMMIT).ended
    assert (ended.queue_id, ended.queue_offset) == (2, 0)
    assert stream.end(one, COMMIT).ended == ended
    assert calls("EndTransaction", transaction_id=one, resolution=COMMIT) == ended
    (run,) = calls("Pull", topic=topic, queue_id=2).runs
    assert list(run.messages) == [sent]
    assert run.log_offset == ended.log_offset
    (found,) = calls("QueryMessages", topic=topic, key="k", end_ms=1 << 60).messages
    assert found.message == sent
    assert stream.end_code(one, ROLLBACK) == "TRANSACTION_NOT_FOUND"


def test_a_rollback_leaves_nothing(
    calls: Calls, topic: str, transact: Callable[..., TransactStream]
) -> None:
    stream = transact()
    one = stream.begin(topic, b"a", b"b")
    assert stream.end(one, ROLLBACK).ended.queue_offset == -1
    assert stream.end(one, ROLLBACK).ended.queue_offset == -1
    assert stream.end_code(one, COMMIT) == "TRANSACTION_NOT_FOUND"
    refusal = calls.refused("EndTransaction", transaction_id=one, resolution=COMMIT)
    assert (refusal.code, refusal.grpc_code) == (
        "TRANSACTION_NOT_FOUND",
        grpc.StatusCode.NOT_FOUND,
    )
    assert "was rolled back" in refusal.text
    assert calls.ends(topic) == [0, 0, 0, 0]


def test_a_half_message_sent_again_is_the_same_transaction(
    calls: Calls, topic: str, transact: Callable[..., TransactStream], new_name: Callable[[], str]
) -> None:
    stream, producer_id = transact(), new_name()
    batch = plain(topic, b"x", half=stream.half(), producer_id=producer_id, sequence=1)
    first, again = stream.ask(half=batch).half, stream.ask(half=batch).half
    assert first.transaction_id == again.transaction_id
    assert (first.is_duplicate, again.is_duplicate) == (False, True)
    assert open_ones(calls, stream.group).open == 1
    stream.end(first.transaction_id, COMMIT)
    assert stream.ask(half=batch).half.transaction_id == first.transaction_id
    assert open_ones(calls, stream.group).open == 0
    assert calls.bodies(topic) == [b"x"]
    # A number that was used for a plain batch makes no transaction.
    calls.send(topic, b"plain", producer_id=producer_id, sequence=2)
    batch = plain(topic, b"x", half=stream.half(), producer_id=producer_id, sequence=2)
    assert stream.code(half=batch) == "ILLEGAL_REQUEST"


def test_when_no_word_comes_a_living_producer_of_the_group_is_asked(
    calls: Calls, topic: str, transact: Callable[..., TransactStream]
) -> None:
    maker = transact(producer_id="maker")
    half = maker.half(first_check_ms=100, check_interval_ms=200)
    one = maker.begin(topic, b"order", half=half, queue_id=1)
    maker.half_close()
    maker.rest()
    transact(producer_id="deaf", answers_checks=False)
    other = transact(producer_id="other")
    asked = other.question()
    assert (asked.transaction_id, asked.topic, asked.queue_id) == (one, topic, 1)
    assert asked.check >= 1
    assert [each.body for each in asked.messages] == [b"order"]
    other.answer(one, RESOLUTION_UNKNOWN)
    again = other.question()
    assert again.check == asked.check + 1
    other.answer(one, COMMIT)
    until(lambda: calls.bodies(topic, 1) == [b"order"], "it is committed")
    assert open_ones(calls, other.group).open == 0


def test_without_an_answer_it_is_kept_in_the_give_up_topic(
    calls: Calls, topic: str, transact: Callable[..., TransactStream], new_name: Callable[[], str]
) -> None:
    stream, body = transact(), new_name().encode()
    half = stream.half(first_check_ms=1, check_interval_ms=1, checks_max=1)
    one = stream.begin(topic, body, half=half)
    until(lambda: open_ones(calls, stream.group).open == 0, "it is given up")
    assert body in calls.bodies("%SYS%GIVE_UP")
    assert calls.ends(topic) == [0, 0, 0, 0]
    stream.question()
    assert stream.end_code(one, COMMIT) == "TRANSACTION_NOT_FOUND"
    stream.end(one, ROLLBACK)


def test_operators_see_what_is_open_and_ask_now(
    calls: Calls, topic: str, transact: Callable[..., TransactStream]
) -> None:
    stream = transact(producer_id="living")
    ids = [stream.begin(topic, b"a", b"b") for _ in range(3)]
    listed = calls("ListTransactions", producer_group=stream.group, transactions_max=2)
    assert (listed.open, [each.transaction_id for each in listed.transactions]) == (3, ids[:2])
    (first, _) = listed.transactions
    assert (first.topic, first.messages, first.checks, first.checks_max) == (topic, 2, 0, 15)
    assert (first.next_check_ms - first.stored_at_ms, first.producers) == (6_000, 1)
    answer = calls("CheckTransactionNow", transaction_id=ids[1])
    assert answer.producer_id == "living"
    assert stream.question().transaction_id == ids[1]
    for one in ids:
        calls("EndTransaction", transaction_id=one, resolution=ROLLBACK)
    assert open_ones(calls, stream.group).open == 0
    refused = calls.refused("ListTransactions", transactions_max=1_001)
    assert refused.code == "ILLEGAL_REQUEST"
    assert calls.refused("ListTransactions", producer_group="/").code == "ILLEGAL_GROUP"
    refused = calls.refused("CheckTransactionNow", transaction_id=ids[0])
    assert refused.code == "TRANSACTION_NOT_FOUND"


def test_without_a_connected_producer_a_check_is_refused(
    calls: Calls, topic: str, transact: Callable[..., TransactStream]
) -> None:
    stream = transact()
    one = stream.begin(topic)
    stream.half_close()
    stream.rest()
    refused = calls.refused("CheckTransactionNow", transaction_id=one)
    assert refused.code == "GROUP_NOT_FOUND"
    calls("EndTransaction", transaction_id=one, resolution=ROLLBACK)


@pytest.mark.parametrize(
    ("transaction_id", "resolution", "code"),
    [
        ("set-0:99999999999", COMMIT, "TRANSACTION_NOT_FOUND"),
        ("set-0:99999999999", ROLLBACK, "TRANSACTION_NOT_FOUND"),
        ("set-0:9999999999999999999", ROLLBACK, "TRANSACTION_NOT_FOUND"),
        ("set-1:5", COMMIT, "TRANSACTION_NOT_FOUND"),
        ("nonsense", COMMIT, "ILLEGAL_REQUEST"),
        ("", ROLLBACK, "ILLEGAL_REQUEST"),
        ("set-0:5", RESOLUTION_UNKNOWN, "ILLEGAL_REQUEST"),
        ("set-0:5", 17, "ILLEGAL_REQUEST"),
    ],
)
def test_ends_that_make_no_sense_are_refused_and_the_stream_goes_on(
    calls: Calls,
    topic: str,
    transact: Callable[..., TransactStream],
    transaction_id: str,
    resolution: Any,
    code: str,
) -> None:
    stream = transact()
    assert stream.end_code(transaction_id, resolution) == code
    refused = calls.refused("EndTransaction", transaction_id=transaction_id, resolution=resolution)
    assert refused.code == code
    stream.answer(transaction_id, resolution)
    stream.end(stream.begin(topic), ROLLBACK)


def test_halves_that_make_no_sense_are_refused_and_the_stream_goes_on(
    calls: Calls, topic: str, transact: Callable[..., TransactStream]
) -> None:
    stream = transact()
    half = stream.half()
    wrong = [
        (plain(topic, b"x"), "ILLEGAL_REQUEST"),
        (plain(topic, b"x", half=Half(producer_group="others")), "ILLEGAL_REQUEST"),
        (plain(topic, b"x", half=half, delay_ms=5), "ILLEGAL_REQUEST"),
        (plain(topic, half=half), "MALFORMED_BATCH"),
        (prepared(topic, b"x", half=half, tag_hashes=[5]), "MALFORMED_BATCH"),
        (plain(topic, messages=[Message(tag="a||b")], half=half), "ILLEGAL_REQUEST"),
        (plain("no/topic", b"x", half=half), "ILLEGAL_TOPIC"),
        (plain("%SYS%HALF", b"x", half=half), "TOPIC_NOT_FOUND"),
        (plain(topic, b"x", half=half, queue_id=99), "QUEUE_NOT_FOUND"),
        (plain(topic, b"x", half=half, sequence=5), "ILLEGAL_REQUEST"),
        (plain(topic, b"x", half=half, origin_log_offset=5), "MALFORMED_BATCH"),
        (plain(topic, b"x", half=stream.half(checks_max=10_000)), "ILLEGAL_REQUEST"),
        (plain(topic, b"x", half=stream.half(first_check_ms=1 << 31)), "ILLEGAL_REQUEST"),
    ]
    for batch, code in wrong:
        found = stream.code(half=batch)
        # With topics that are created when they are used, an internal one is refused by its name.
        assert found == code or (code, found) == ("TOPIC_NOT_FOUND", "PERMISSION_DENIED"), batch
    assert open_ones(calls, stream.group).open == 0
    stream.end(stream.begin(topic), ROLLBACK)


def test_another_group_cannot_end_it_by_its_stream(
    calls: Calls, topic: str, transact: Callable[..., TransactStream], new_name: Callable[[], str]
) -> None:
    stream, other = transact(), transact(new_name())
    one = stream.begin(topic)
    assert other.end_code(one, COMMIT) == "TRANSACTION_NOT_FOUND"
    other.answer(one, COMMIT)
    assert other.end_code(one, ROLLBACK) == "TRANSACTION_NOT_FOUND"
    assert open_ones(calls, stream.group).open == 1
    assert stream.end(one, ROLLBACK).WhichOneof("kind") == "ended"


@pytest.mark.every_client("status without answers")
@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "ILLEGAL_REQUEST"),
        (b"\xff\xff\xff", "ILLEGAL_REQUEST"),
        (b"\x08\x01", "ILLEGAL_REQUEST"),
        (b"\x12\x7f", "ILLEGAL_REQUEST"),
        (b"\x12\x02\xff\xff", "ILLEGAL_REQUEST"),
        (TransactRequest(end=EndTransactionRequest()).SerializeToString(), "ILLEGAL_REQUEST"),
        (
            TransactRequest(start=TransactStart(producer_id="p")).SerializeToString(),
            "ILLEGAL_GROUP",
        ),
        (
            TransactRequest(start=TransactStart(producer_group="g")).SerializeToString(),
            "ILLEGAL_REQUEST",
        ),
    ],
)
def test_a_stream_that_starts_with_nonsense_ends_with_a_typed_status(
    channel: grpc.Channel, data: bytes, code: str
) -> None:
    stream = TransactStream.__new__(TransactStream)
    Stream.__init__(stream, channel, "TransactionService/Transact", TransactResponse.FromString)
    stream.send_bytes(data)
    assert stream.failure().code == code


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff",
        b"\x22\x02\xff\xff",
        TransactRequest(start=TransactStart(producer_group="g")).SerializeToString(),
    ],
)
def test_nonsense_later_ends_the_stream_after_what_came_before_was_answered(
    calls: Calls, topic: str, transact: Callable[..., TransactStream], data: bytes
) -> None:
    stream = transact()
    for request_id in range(20, 30):
        batch = plain(topic, b"x", half=stream.half())
        stream.send(TransactRequest(request_id=request_id, half=batch))
    stream.send_bytes(data)
    ids: dict[int, str] = {}
    while len(ids) < 10:
        answer = stream.next()
        ids[answer.request_id] = answer.half.transaction_id
    assert sorted(ids) == list(range(20, 30))
    assert stream.failure().code == "ILLEGAL_REQUEST"
    for one in ids.values():
        calls("EndTransaction", transaction_id=one, resolution=ROLLBACK)


@pytest.mark.every_client("half-close, flow control")
def test_a_half_closed_stream_gets_all_answers(
    calls: Calls, topic: str, transact: Callable[..., TransactStream]
) -> None:
    stream = transact()
    count = 600  # more than are under way at once
    for request_id in range(count):
        batch = plain(topic, b"x", half=stream.half())
        stream.send(TransactRequest(request_id=100 + request_id, half=batch))
    stream.half_close()
    answers = stream.rest()
    assert sorted(each.request_id for each in answers) == list(range(100, 100 + count))
    ids = [each.half.transaction_id for each in answers]
    threads = [
        threading.Thread(
            target=lambda part: [
                calls("EndTransaction", transaction_id=one, resolution=COMMIT) for one in part
            ],
            args=(ids[start::8],),
        )
        for start in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls.ends(topic) == [count, 0, 0, 0]


@pytest.mark.every_client("order in a stream")
def test_several_requests_and_answers_may_travel_together(
    calls: Calls, topic: str, transact: Callable[..., TransactStream]
) -> None:
    stream = transact(reads_more=True)
    half = plain(topic, b"x", half=stream.half())
    count = 50
    more = [TransactRequest(request_id=100 + at, half=half) for at in range(1, count)]
    stream.send(TransactRequest(request_id=100, half=half, more=more))
    answers: dict[int, Any] = {}
    messages = 0
    while len(answers) < count:
        messages += 1
        answer = stream.next()
        answers |= {each.request_id: each for each in (answer.more or [answer])}
    assert sorted(answers) == list(range(100, 100 + count))
    assert messages < count
    ends = [
        EndTransactionRequest(transaction_id=each.half.transaction_id, resolution=COMMIT)
        for each in answers.values()
    ]
    more = [TransactRequest(request_id=200 + at, end=end) for at, end in enumerate(ends)]
    stream.send(TransactRequest(more=more))
    stream.half_close()
    rest = [each for answer in stream.rest() for each in (answer.more or [answer])]
    assert sorted(each.ended.queue_offset for each in rest) == list(range(count))
    assert calls.ends(topic) == [count, 0, 0, 0]


def test_a_client_that_does_not_read_several_at_once_gets_one_by_one(
    topic: str, transact: Callable[..., TransactStream]
) -> None:
    stream = transact()
    half = plain(topic, b"x", half=stream.half())
    more = [TransactRequest(request_id=100 + at, half=half) for at in range(20)]
    stream.send(TransactRequest(more=more))
    ids = [stream.next().half.transaction_id for _ in range(20)]
    for one in ids:
        assert stream.end(one, ROLLBACK).HasField("ended")


@pytest.mark.parametrize(
    "request_",
    [
        TransactRequest(more=[TransactRequest(more=[TransactRequest(request_id=1)])]),
        TransactRequest(more=[TransactRequest(request_id=1)]),
        TransactRequest(more=[TransactRequest(start=TransactStart(producer_group="g"))]),
        TransactRequest(request_id=5),
    ],
)
def test_requests_together_that_make_no_sense_end_the_stream(
    transact: Callable[..., TransactStream], request_: TransactRequest
) -> None:
    stream = transact()
    stream.send(request_)
    assert stream.failure().code == "ILLEGAL_REQUEST"


def test_a_deleted_topic_refuses_the_commit_and_not_the_rollback(
    calls: Calls, topic: str, transact: Callable[..., TransactStream]
) -> None:
    stream = transact()
    one = stream.begin(topic)
    calls("DeleteTopic", topic=topic)
    assert stream.end_code(one, COMMIT) == "TOPIC_NOT_FOUND"
    assert stream.end(one, ROLLBACK).WhichOneof("kind") == "ended"
