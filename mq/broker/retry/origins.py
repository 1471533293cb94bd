"""Messages that the broker writes again with a word on where they come from: retries, dead letters
and what was given up. The only messages that it opens, one by one, because something went wrong
with each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import DecodeError

from mq import names
from mq.store.batch import Batch, message_of_frame, parse_stored, prepare
from mq.store.reading import Run
from mq.wire.v1.message_pb2 import Batch as WireBatch
from mq.wire.v1.message_pb2 import Message, Origin

REASON_CHARACTERS_MAX = 1_000


def opened(run: Run) -> list[Message]:
    """The messages of a run. One that cannot be read is empty, but for its body: the bytes that
    were stored.
    """
    return _opened(run.frames, run.sizes.tolist())


def given_up(batch: Batch, topic: str, origin: Origin) -> Batch:
    """The messages of a half batch, for this topic: each says where it was to go."""
    frames = memoryview(batch.data)[batch.region_start :]
    copies = [
        with_origin(one, origin, origin.attempts, origin.reason)
        for one in _opened(frames, batch.frame_sizes.tolist())
    ]
    return batch_of(topic, 0, copies)


def _opened(frames: memoryview, sizes: Sequence[int]) -> list[Message]:
    found, start = [], 0
    for size in sizes:
        data = bytes(message_of_frame(frames[start : start + size]))
        try:
            message = Message.FromString(data)
        except DecodeError:
            message = Message(body=data)
        found.append(message)
        start += size
    return found


def origin_of(
    message: Message,
    topic: str,
    queue_id: int,
    queue_offset: int,
    message_id: str,
    stored_at_ms: int,
) -> Origin:
    """The first place of the message, given its present one: only the broker itself writes another
    one into a message. Returns a copy.
    """
    if names.is_internal_topic(topic) and message.HasField("origin"):
        copy = Origin()
        copy.CopyFrom(message.origin)
        return copy
    return Origin(
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        message_id=message_id,
        stored_at_ms=stored_at_ms,
    )


def with_origin(message: Message, origin: Origin, attempts: int, reason: str) -> Message:
    """A copy of the message with this origin."""
    copy = Message()
    copy.CopyFrom(message)
    copy.origin.CopyFrom(origin)
    copy.origin.attempts = attempts
    copy.origin.reason = reason[:REASON_CHARACTERS_MAX]
    return copy


def batch_of(topic: str, queue_id: int, messages: Sequence[Message], **header: Any) -> Batch:
    """A batch for the log."""
    wire = WireBatch(topic=topic, queue_id=queue_id, messages=messages, **header)
    return parse_stored(prepare(wire.SerializeToString()))
