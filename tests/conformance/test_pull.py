"""ConsumerService/Pull: messages of one queue from an offset on, and the wait for some."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from mq.wire.v1.consumer_pb2 import (
    PULL_END,
    PULL_FOUND,
    PULL_TOO_LARGE,
    PULL_TOO_SMALL,
    PullResponse,
)
from mq.wire.v1.message_pb2 import Batch, Message
from tests.conformance.calls import (
    DEADLINE_S,
    Calls,
    bodies_in,
    numbers,
    prepared,
    refusal_of,
    until,
)
from tests.conformance.streams import PublishStream

if TYPE_CHECKING:
    from collections.abc import Callable

INVALID = grpc.StatusCode.INVALID_ARGUMENT


def fill(calls: Calls, topic: str) -> list[Message]:
    """Thirty messages in runs of different lengths."""
    messages = [
        Message(
            body=b"%d" % number,
            tag=("new", "paid", "")[number % 3],
            properties={"number": str(number), "region": "EU" if number % 2 else "US"},
        )
        for number in range(30)
    ]
    for start, end in ((0, 1), (1, 11), (11, 30)):
        calls.send(topic, messages=messages[start:end])
    return messages


def test_a_pull_has_all_from_its_offset_on(calls: Calls, topic: str) -> None:
    messages = fill(calls, topic)
    for queue_offset in (0, 5, 29):
        answer = calls("Pull", topic=topic, queue_offset=queue_offset)
        assert (answer.status, answer.next_offset) == (PULL_FOUND, 30)
        assert (answer.start, answer.end) == (0, 30)
        found = [message for run in answer.runs for message in run.messages]
        assert found == messages[queue_offset:]


def test_a_run_tells_where_each_message_is(calls: Calls, topic: str) -> None:
    fill(calls, topic)
    answer = calls("Pull", topic=topic)
    queue_offset = 0
    for run in answer.runs:
        assert run.queue_offset == queue_offset
        sizes = [len(Batch(messages=[one]).SerializeToString()) for one in run.messages]
        assert list(run.frame_sizes) == sizes
        log_offset = run.log_offset
        for message, size in zip(run.messages, sizes, strict=True):
            stored = calls("GetMessage", message_id=f"set-0:{log_offset}")
            assert (stored.queue_offset, stored.message) == (queue_offset, message)
            assert stored.stored_at_ms == run.stored_at_ms
            log_offset += size
            queue_offset += 1
    assert queue_offset == 30


def test_messages_max_and_bytes_max_bound_an_answer(calls: Calls, topic: str) -> None:
    fill(calls, topic)
    by_count = calls("Pull", topic=topic, messages_max=7)
    assert (len(bodies_in(by_count.runs)), by_count.next_offset) == (7, 7)
    by_size = calls("Pull", topic=topic, bytes_max=200)
    assert 0 < sum(sum(run.frame_sizes) for run in by_size.runs) <= 200
    assert by_size.next_offset == len(bodies_in(by_size.runs)) < 30


def test_at_least_one_message_comes_however_large(calls: Calls, topic: str) -> None:
    calls.send(topic, bytes(10_000), bytes(10_000))
    answer = calls("Pull", topic=topic, bytes_max=1)
    assert (len(bodies_in(answer.runs)), answer.next_offset) == (1, 1)


@pytest.mark.every_client("large messages")
def test_an_answer_fits_what_grpc_clients_take_by_default(calls: Calls, topic: str) -> None:
    for _ in range(6):
        calls.send(topic, bytes(1 << 20))
    for bytes_max in (0, (1 << 32) - 1):
        answer = calls("Pull", topic=topic, bytes_max=bytes_max)
        assert answer.ByteSize() < 4 << 20
        assert answer.next_offset == 2


def test_pulls_one_after_the_other_see_each_message_once(calls: Calls, topic: str) -> None:
    fill(calls, topic)
    at, found = 0, []
    while (answer := calls("Pull", topic=topic, queue_offset=at, messages_max=4)).runs:
        found += bodies_in(answer.runs)
        at = answer.next_offset
    assert found == [b"%d" % number for number in range(30)]
    assert (answer.status, answer.next_offset) == (PULL_END, 30)


def test_an_offset_outside_of_the_queue_gets_the_nearest_one(calls: Calls, topic: str) -> None:
    calls.send(topic, b"1", b"2")
    for beyond in (3, 1 << 40, (1 << 64) - 1):
        answer = calls("Pull", topic=topic, queue_offset=beyond, wait_ms=10_000)
        assert (answer.status, answer.next_offset) == (PULL_TOO_LARGE, 2)
    # Created again, the queues count on.
    calls("DeleteTopic", topic=topic)
    calls.create(topic)
    answer = calls("Pull", topic=topic, queue_offset=1)
    assert (answer.status, answer.next_offset) == (PULL_TOO_SMALL, 2)
    assert (answer.start, answer.end) == (2, 2)


def test_an_unused_queue_is_empty(calls: Calls, topic: str) -> None:
    answer = calls("Pull", topic=topic, queue_id=3)
    assert answer == PullResponse(status=PULL_END)
    assert calls("Pull", topic=topic, queue_id=3, queue_offset=1).status == PULL_TOO_LARGE


# -- filters ---------------------------------------------------------------------------------------

FILTERS = [
    ({"tags": "*"}, lambda _: True),
    ({"tags": ""}, lambda _: True),
    ({"sql": " "}, lambda _: True),
    ({"tags": "paid"}, lambda number: number % 3 == 1),
    ({"tags": " new || paid || new "}, lambda number: number % 3 != 2),
    ({"tags": "nothing"}, lambda _: False),
    ({"sql": "region = 'EU'"}, lambda number: number % 2),
    ({"sql": "number BETWEEN 5 AND 8 OR number = 29"}, lambda number: number in (5, 6, 7, 8, 29)),
    ({"sql": "TAGS = 'paid' AND region = 'US'"}, lambda number: number % 6 == 4),
    ({"sql": "absent IS NOT NULL"}, lambda _: False),
]


@pytest.mark.parametrize(("wanted", "passes"), FILTERS)
@pytest.mark.parametrize("messages_max", [0, 2])
def test_a_filter_lets_through_what_it_says(
    calls: Calls,
    topic: str,
    wanted: dict[str, str],
    passes: Callable[[int], Any],
    messages_max: int,
) -> None:
    fill(calls, topic)
    at, found = 0, []
    while at < 30:
        answer = calls(
            "Pull", topic=topic, queue_offset=at, filter=wanted, messages_max=messages_max
        )
        assert answer.next_offset > at
        assert bool(answer.runs) == (answer.status == PULL_FOUND)
        for run in answer.runs:
            places = [run.queue_offset + place for place in range(len(run.messages))]
            assert [b"%d" % place for place in places] == [one.body for one in run.messages]
            found += places
        at = answer.next_offset
    assert found == [number for number in range(30) if passes(number)]


# -- the long poll ---------------------------------------------------------------------------------


@pytest.mark.every_client("many calls at a time")
def test_a_pull_that_waits_wakes_with_the_first_message(
    calls: Calls, channel: grpc.Channel, topic: str
) -> None:
    with ThreadPoolExecutor(8) as pool:
        waiting = [
            pool.submit(calls, "Pull", topic=topic, queue_id=number % 2, wait_ms=15_000)
            for number in range(8)
        ]
        time.sleep(0.2)
        assert not any(one.done() for one in waiting)
        began_s = time.monotonic()
        with PublishStream(channel) as stream:
            stream.result(prepared(topic, b"for 0"))
            answers = [one.result() for one in waiting[::2]]
            assert [bodies_in(one.runs) for one in answers] == [[b"for 0"]] * 4
            # No call waits longer than it must, and none is woken by another queue.
            assert time.monotonic() - began_s < 10
            assert not any(one.done() for one in waiting[1::2])
            stream.result(prepared(topic, b"for 1", queue_id=1))
        assert {one.result().status for one in waiting} == {PULL_FOUND}


def test_a_pull_waits_as_long_as_it_says(calls: Calls, topic: str) -> None:
    for wait_ms in (0, 300):
        began_s = time.monotonic()
        answer = calls("Pull", topic=topic, wait_ms=wait_ms)
        assert (answer.status, answer.next_offset) == (PULL_END, 0)
        assert time.monotonic() - began_s >= wait_ms / 1000


def test_filtered_messages_do_not_end_the_wait(calls: Calls, topic: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(
            calls, "Pull", topic=topic, wait_ms=15_000, filter={"sql": "wanted = 'yes'"}
        )
        time.sleep(0.1)
        calls.send(topic, b"a", b"b")
        time.sleep(0.2)
        assert not waiting.done()
        calls.send(topic, messages=[Message(body=b"c", properties={"wanted": "yes"})])
        answer = waiting.result()
    assert (bodies_in(answer.runs), answer.next_offset) == ([b"c"], 3)


def test_a_wait_in_vain_says_how_far_the_filter_has_looked(calls: Calls, topic: str) -> None:
    calls.send(topic, *numbers(5))
    answer = calls("Pull", topic=topic, wait_ms=100, filter={"tags": "none"})
    assert (answer.status, answer.next_offset) == (PULL_END, 5)


def test_a_wait_outlives_its_topic_no_longer_than_it_said(calls: Calls, topic: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(calls, "Pull", topic=topic, wait_ms=500)
        time.sleep(0.1)
        calls("DeleteTopic", topic=topic)
        error = waiting.exception(timeout=DEADLINE_S)
    assert error is None or refusal_of(error).code == "TOPIC_NOT_FOUND"


@pytest.mark.every_client("cancellation")
def test_a_cancelled_pull_leaves_nothing_behind(
    calls: Calls, channel: grpc.Channel, topic: str
) -> None:
    pull = channel.unary_unary("/mq.v1.ConsumerService/Pull")
    request = b"\x0a" + bytes([len(topic)]) + topic.encode() + b"\x38\xe0\xd4\x03"  # wait a minute
    for _ in range(50):
        call = pull.future(request)
        threading.Event().wait(0.002)
        call.cancel()
    calls.send(topic, b"x")
    until(lambda: calls.bodies(topic) == [b"x"])


# -- refusals --------------------------------------------------------------------------------------

REFUSALS = [
    pytest.param(
        {"topic": "nowhere"}, "TOPIC_NOT_FOUND", grpc.StatusCode.NOT_FOUND, "nowhere", id="topic"
    ),
    pytest.param({"topic": "a/b"}, "ILLEGAL_TOPIC", INVALID, "a/b", id="name"),
    pytest.param(
        {"queue_id": 4}, "QUEUE_NOT_FOUND", grpc.StatusCode.NOT_FOUND, "queue 4", id="queue"
    ),
    pytest.param({"filter": {"tags": "a b"}}, "ILLEGAL_FILTER", INVALID, "a b", id="tags"),
    pytest.param({"filter": {"tags": "a || *"}}, "ILLEGAL_FILTER", INVALID, "*", id="star"),
    pytest.param({"filter": {"sql": "a ="}}, "ILLEGAL_FILTER", INVALID, "", id="sql"),
    pytest.param({"filter": {"sql": "(" * 9_000}}, "ILLEGAL_FILTER", INVALID, "", id="depth"),
    pytest.param({"filter": {"tags": "x" * 5_000}}, "ILLEGAL_FILTER", INVALID, "5000", id="long"),
]


@pytest.mark.parametrize(("fields", "code", "grpc_code", "text"), REFUSALS)
def test_a_bad_pull_is_refused_by_name(
    calls: Calls, topic: str, fields: dict[str, Any], code: str, grpc_code: Any, text: str
) -> None:
    refusal = calls.refused("Pull", **{"topic": topic, "wait_ms": 10_000, **fields})
    assert (refusal.code, refusal.grpc_code) == (code, grpc_code)
    assert text in refusal.text


def test_a_node_alone_redirects_no_reader(calls: Calls, topic: str) -> None:
    calls.send(topic, *numbers(3))
    for zone in ("", "far-away"):
        answer = calls("Pull", topic=topic, any_replica=True, zone=zone)
        assert (bodies_in(answer.runs), answer.read_from) == (numbers(3), "")
    end = calls("Pull", topic=topic, queue_offset=3, wait_ms=10, any_replica=True)
    assert (end.status, end.read_from) == (PULL_END, "")
    beyond = calls("Pull", topic=topic, queue_offset=9, any_replica=True)
    assert beyond.status == PULL_TOO_LARGE
    assert calls.refused("Pull", topic="none-such", any_replica=True).code == "TOPIC_NOT_FOUND"


def test_a_topic_that_is_switched_off_is_not_read(calls: Calls, topic: str) -> None:
    calls.send(topic, b"x")
    calls("AlterTopic", topic=topic, is_readable=False)
    refusal = calls.refused("Pull", topic=topic)
    assert refusal.code == "PERMISSION_DENIED"
    assert topic in refusal.text
    calls("AlterTopic", topic=topic, is_readable=True)
    assert calls.bodies(topic) == [b"x"]
