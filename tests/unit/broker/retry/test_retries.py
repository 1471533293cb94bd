"""The time at which a failed message comes back, and the content of its copy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq import names
from mq.broker.retry import retries
from mq.broker.retry.origins import REASON_CHARACTERS_MAX
from mq.store.lookup import StoredMessage
from mq.wire.v1.message_pb2 import Message, Origin

S, M, H = 1_000, 60_000, 3_600_000
LEVELS = "10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
UNITS = {"s": S, "m": M, "h": H}


def stored(topic: str = "t", **fields: object) -> StoredMessage:
    return StoredMessage(topic, 3, 7, 4_711, 1_000, Message(body=b"x", **fields))  # type: ignore[arg-type]


def test_waits_are_the_levels_that_users_know() -> None:
    expected = [int(text[:-1]) * UNITS[text[-1]] for text in LEVELS.split()]
    assert [retries.wait_ms(attempt) for attempt in range(1, 17)] == expected
    assert retries.wait_ms(17) == retries.wait_ms(1_000) == 2 * H


@pytest.mark.parametrize(
    ("attempts", "retries_max", "wanted_ms", "step"),
    [
        (1, 16, None, 10 * S),
        (2, 16, None, 30 * S),
        (16, 16, None, 2 * H),
        (17, 16, None, None),
        (17, 17, None, 2 * H),
        (1, 0, None, None),
        (1, 1, None, 10 * S),
        (2, 1, None, None),
        (1, 16, 0, 0),
        (3, 16, 1_234, 1_234),
        (17, 16, 0, None),
        (1, 0, 5, None),
    ],
)
def test_next_step(
    attempts: int, retries_max: int, wanted_ms: int | None, step: int | None
) -> None:
    assert retries.next_step(attempts, retries_max, wanted_ms) == step


@given(st.integers(0, 1_000))
def test_a_message_is_tried_again_as_often_as_allowed_and_then_given_up(retries_max: int) -> None:
    steps = [retries.next_step(attempts, retries_max) for attempts in range(1, retries_max + 3)]
    assert None not in steps[:retries_max]
    assert steps[retries_max:] == [None, None]


def test_only_the_retry_topic_of_the_group_knows_of_attempts() -> None:
    origin = Origin(topic="t", attempts=9)
    assert retries.attempts_before("g", stored("%RETRY%g", origin=origin)) == 9
    for topic in ("t", "%RETRY%other", "%DLQ%g"):
        assert retries.attempts_before("g", stored(topic, origin=origin)) == 0
    assert retries.attempts_before("g", stored("%RETRY%g")) == 0


def test_a_copy_says_where_the_message_stood() -> None:
    message = stored(tag="a", keys=["k"], properties={"p": "v"}, born_at_ms=5)
    copy = retries.failed_copy(message, "set-0", 2, "why")
    assert copy.origin == Origin(
        topic="t",
        queue_id=3,
        queue_offset=7,
        message_id="set-0:4711",
        stored_at_ms=1_000,
        attempts=2,
        reason="why",
    )
    copy.ClearField("origin")
    assert copy == message.message
    assert not message.message.HasField("origin")


def test_a_copy_of_a_copy_says_where_the_first_one_stood() -> None:
    first = retries.failed_copy(stored(), "set-0", 1, "one")
    again = StoredMessage("%RETRY%g", 0, 99, 8_000, 2_000, first)
    copy = retries.failed_copy(again, "set-0", 2, "two")
    assert (copy.origin.topic, copy.origin.queue_offset) == ("t", 7)
    assert (copy.origin.attempts, copy.origin.reason) == (2, "two")
    # Without a new reason the last one stays.
    assert retries.failed_copy(again, "set-0", 2, "").origin.reason == "one"


def test_a_producer_cannot_forge_an_origin() -> None:
    forged = stored(origin=Origin(topic="secret", attempts=15, reason="none"))
    copy = retries.failed_copy(forged, "set-0", 1, "")
    assert (copy.origin.topic, copy.origin.attempts, copy.origin.reason) == ("t", 1, "")


def test_a_long_reason_is_cut() -> None:
    copy = retries.failed_copy(stored(), "set-0", 1, "x" * 5_000)
    assert copy.origin.reason == "x" * REASON_CHARACTERS_MAX
    grown = copy.ByteSize() - stored().message.ByteSize()
    assert grown < retries.COPY_OVERHEAD_BYTES


def test_dead_letters_are_one_batch() -> None:
    letters = [retries.Letter(stored(keys=["k"]), 17, "why"), retries.Letter(stored(), 17, "")]
    batch = retries.dead_letters("g", "set-0", letters)
    assert (batch.topic, batch.queue_id, batch.message_count) == ("%DLQ%g", 0, 2)
    assert not batch.is_held


def test_ids_of_requests_are_short_and_differ() -> None:
    long = "g" * 127, "m" * 255
    ids = {
        retries.request_id(*names_of)
        for names_of in [("a", "bc"), ("ab", "c"), ("a", "b"), long, ("1", "a"), ("", "1:1a")]
    }
    assert len(ids) == 6
    assert all(len(one) <= names.NAME_CHARACTERS_MAX and one.isprintable() for one in ids)
