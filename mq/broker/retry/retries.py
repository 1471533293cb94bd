"""The fate of a message that failed at a consumer: when it comes back, or that it is given up.

Decides only, and makes the copies that are written: a copy says where the message stood at first,
how often it failed, and why. Attempts count the deliveries that failed. Knows neither groups nor
clocks; its users are `retrying`, and `receive` for messages that failed too often.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

from mq import names
from mq.broker.queue import Queue
from mq.broker.retry.origins import batch_of, opened, origin_of, with_origin
from mq.store.batch import Batch
from mq.store.lookup import StoredMessage
from mq.store.reading import Run
from mq.wire.v1.message_pb2 import Message

# By the number of the attempt that failed; the last one counts for all beyond.
WAITS_MS: tuple[int, ...] = tuple(
    1_000 * seconds for seconds in (10, 30, *range(60, 601, 60), 1_200, 1_800, 3_600, 7_200)
)
RETRIES_MAX = 1_000
# What a copy has beyond the message: its origin, with a long topic, and the longest reason.
COPY_OVERHEAD_BYTES = 5_000


class Letter(NamedTuple):
    """A message that failed too often, and what is known of it."""

    stored: StoredMessage
    # Deliveries that failed.
    attempts: int
    reason: str


def wait_ms(attempts: int) -> int:
    """The time from this attempt to the next."""
    return WAITS_MS[min(max(attempts, 1), len(WAITS_MS)) - 1]


def next_step(attempts: int, retries_max: int, wanted_ms: int | None = None) -> int | None:
    """The delay in milliseconds before a message comes back that has failed so often, as wanted or
    by its level; None: it is a dead letter.
    """
    if attempts > retries_max:
        return None
    return wait_ms(attempts) if wanted_ms is None else wanted_ms


def stored_messages(queue: Queue, run: Run) -> Iterator[StoredMessage]:
    """The messages of a run, opened, each with its place."""
    starts = accumulate(run.sizes.tolist(), initial=run.log_offset)
    for queue_offset, (log_offset, message) in enumerate(
        zip(starts, opened(run), strict=False), run.queue_offset
    ):
        yield StoredMessage(*queue, queue_offset, log_offset, run.stored_at_ms, message)


def attempts_before(group: str, stored: StoredMessage) -> int:
    """The number of failures of the message in this group before it was delivered. Only messages in
    the group's own retry topic carry it: a producer can write anything into a message of its own.
    """
    if stored.topic == names.retry_topic(group) and stored.message.HasField("origin"):
        return stored.message.origin.attempts
    return 0


def failed_copy(stored: StoredMessage, broker_set: str, attempts: int, reason: str) -> Message:
    """The message with its origin. An empty reason leaves the one that is there."""
    origin = origin_of(
        stored.message,
        stored.topic,
        stored.queue_id,
        stored.queue_offset,
        names.message_id(broker_set, stored.log_offset),
        stored.stored_at_ms,
    )
    return with_origin(stored.message, origin, attempts, reason or origin.reason)


def dead_letters(group: str, broker_set: str, letters: Iterable[Letter]) -> Batch:
    """One batch for the group's dead-letter topic, which has to be there. At least one letter."""
    copies = [failed_copy(one.stored, broker_set, one.attempts, one.reason) for one in letters]
    return batch_of(names.dead_letter_topic(group), 0, copies)


def request_id(group: str, member_id: str) -> str:
    """The producer id under which a member's requests stand in the deduplication table."""
    # With a length in front: two names must not read as two others.
    text = f"{len(group)}:{group}{member_id}"
    return names.RETRY_PREFIX + hashlib.sha256(text.encode()).hexdigest()[:32]
