"""Requests and responses that carry messages: their few fields are read and written by hand, so
that batches and runs pass as they are.

    PublishRequest = request_id, ack, batch | batch ...        field 15, the last
    TransactRequest = request_id, one of start, half, end, checked, more ...
    PullResponse   = status, next_offset, start, end, read_from, run ...  field 15, the last
    run            = RawRun, then the frames as they stand in the log: field 15 of Run

    ReceiveResponse = received run ...                         field 15
    received run    = topic, queue, lease ..., run             field 15, the last
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mq.broker.consumer.subscriber import Delivered
from mq.broker.queue import Queue
from mq.broker.receive.grants import GrantedRun
from mq.broker.receive.leases import lease_bytes
from mq.errors import IllegalRequest
from mq.rpc.limits import PUBLISHED_MAX, TRANSACTED_MAX, exceeded
from mq.store.reading import ReadResult, Run, Status
from mq.wire import varint
from mq.wire.v1 import consumer_pb2

_LAST_FIELD = b"\x7a"  # number 15, length-delimited
_ASSIGNMENT_FIELD = b"\x0a"  # `assignment` of a SubscribeResponse
_DELIVERY_FIELD = b"\x12"  # `delivery` of a SubscribeResponse
_CHECK_FIELD = b"\x32"  # `check` of a TransactResponse
_SIZE, _SIZES = struct.Struct("<I"), np.dtype("<u4")
_TWO_BYTE_LENGTH_MAX = (1 << 14) - 1
# Setting all fields of a message again is faster than making another one.
_RUN = consumer_pb2.RawRun()


class Publish(NamedTuple):
    request_id: int
    ack: int
    batches: list[memoryview]


def read_publish(data: bytes) -> Publish:
    """Raises IllegalRequest if the bytes are no PublishRequest, or it has too many batches."""
    view = memoryview(data)
    request_id = ack = position = 0
    batches = []
    while position < len(data):
        key, position = data[position], position + 1
        if key == 0x7A:
            length, position = _read_varint(data, position)
            batches.append(view[position : position + length])
            if len(batches) > PUBLISHED_MAX:
                raise exceeded("PublishRequest.batches", len(batches))
            position += length
        elif key == 0x08:
            request_id, position = _read_varint(data, position)
        elif key == 0x10:
            ack, position = _read_varint(data, position)
        else:
            raise IllegalRequest(f"no field of a PublishRequest starts at byte {position - 1}")
    if position != len(data):
        raise IllegalRequest("the PublishRequest is cut short")
    if not batches:
        raise IllegalRequest("the PublishRequest has no batches")
    return Publish(request_id, ack, batches)


def read_single(data: bytes) -> tuple[bytes, bytes, bytes] | None:  # noqa: C901 - one walk
    """Of a PublishRequest with one batch of one message, as every library writes it: its id, the
    topic and queue, and the message as field 15 of its batch, each as the bytes of their fields.
    None: it has something else, or in another order, or 16 KiB. What the message says is not
    looked at.
    """
    size = len(data)
    try:
        at = 0
        if data[0] == 0x08:
            at = 1
            while data[at] > 0x7F:
                at += 1
            at += 1
        batch = at + 2
        length = data[at + 1]
        if length > 0x7F:
            length += (data[batch] - 1) << 7
            batch += 1
        topic_bytes = data[batch + 1]
        if (
            size > _TWO_BYTE_LENGTH_MAX
            or data[at] != 0x7A
            or batch + length != size
            or data[batch] != 0x0A
            or topic_bytes > 0x7F
            or at > varint.BYTES_MAX
        ):
            return None
        frame = batch + 2 + topic_bytes
        if data[frame] == 0x10:
            frame += 1
            while data[frame] > 0x7F:
                frame += 1
            frame += 1
        message = frame + 2
        length = data[frame + 1]
        if length > 0x7F:
            length += (data[message] - 1) << 7
            message += 1
            if length < 0x80:
                return None  # written longer than it has to be
        if data[frame] != 0x7A or message + length != size:
            return None
    except IndexError:
        return None
    return data[:at], data[batch:frame], data[frame:]


_PULL_STATUS = {
    Status.FOUND: consumer_pb2.PULL_FOUND,
    Status.END: consumer_pb2.PULL_END,
    Status.NOTHING_MATCHED: consumer_pb2.PULL_END,
    Status.TOO_SMALL: consumer_pb2.PULL_TOO_SMALL,
    Status.TOO_LARGE: consumer_pb2.PULL_TOO_LARGE,
}


def pull_response(result: ReadResult, read_from: str = "") -> bytes:
    next_offset = result.next_offset
    if result.status == Status.TOO_SMALL:
        next_offset = result.start
    elif result.status == Status.TOO_LARGE:
        next_offset = result.end
    head = consumer_pb2.PullResponse(
        status=_PULL_STATUS[result.status],
        next_offset=next_offset,
        start=result.start,
        end=result.end,
        read_from=read_from,
    )
    parts: list[bytes | memoryview] = [head.SerializeToString()]
    _add_runs(parts, result.runs)
    return b"".join(parts)


def assignment(data: bytes) -> bytes:
    """A SubscribeResponse, of the bytes of an Assignment."""
    return b"".join((_ASSIGNMENT_FIELD, varint.encode(len(data)), data))


# Of a delivery: a transport spends more on each than a copy of a small one costs.
_PARTS_MAX = 64


def delivery(delivered: Delivered) -> list[bytes | memoryview]:
    """The parts of a SubscribeResponse; few, however many runs it has."""
    queue, epoch, result = delivered
    head = consumer_pb2.Delivery(
        topic=queue.topic,
        queue_id=queue.queue_id,
        epoch=epoch,
        next_offset=result.next_offset,
        start=result.start,
        end=result.end,
    )
    parts: list[bytes | memoryview] = [b"", head.SerializeToString()]
    _add_runs(parts, result.runs)
    parts[0] = _DELIVERY_FIELD + varint.encode(sum(map(len, parts)))
    return parts if len(parts) <= _PARTS_MAX else [b"".join(parts)]


def receive_response(given: list[GrantedRun]) -> bytes:
    parts: list[bytes | memoryview] = []
    for queue, lease, attempt, visible_at_ms, run in given:
        head, encoded = _received_head(queue, lease, attempt, visible_at_ms), _run_head(run)
        run_bytes = len(encoded) + len(run.frames)
        run_field = _last_field(run_bytes)
        parts.append(_last_field(len(head) + len(run_field) + run_bytes))
        parts += (head, run_field, encoded, run.frames)
    return b"".join(parts)


# Receives of one message that are granted together have one lease.
@functools.lru_cache(maxsize=256)
def _received_head(queue: Queue, lease: int, attempt: int, visible_at_ms: int) -> bytes:
    """All of a received run but its run."""
    head = consumer_pb2.ReceivedRun(
        topic=queue.topic,
        queue_id=queue.queue_id,
        lease=lease_bytes(queue, lease),
        attempt=attempt,
        invisible_until_ms=visible_at_ms,
    )
    return head.SerializeToString()


@functools.lru_cache(maxsize=4096)
def _last_field(length: int) -> bytes:
    """The head of field 15."""
    return _LAST_FIELD + varint.encode(length)


def _add_runs(parts: list[bytes | memoryview], runs: list[Run]) -> None:
    for run in runs:
        encoded, frames = _run_head(run), run.frames
        parts += (_last_field(len(encoded) + len(frames)), encoded, frames)


def _run_head(run: Run) -> bytes:
    """All of a run but its frames."""
    head = _RUN
    head.queue_offset, count, head.log_offset, head.stored_at_ms, frames, sizes = run
    if count == 1:
        head.frame_sizes = _SIZE.pack(len(frames))
    else:
        head.frame_sizes = sizes.astype(_SIZES).tobytes()
    return head.SerializeToString()


def _read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    # Most numbers have one byte.
    if position < len(data) and data[position] < 0x80:
        return data[position], position + 1
    try:
        return varint.decode(data, position)
    except ValueError as error:
        raise IllegalRequest(f"the request cannot be read: {error}") from None


class Transact(NamedTuple):
    request_id: int
    # Name of the field, and the bytes of the message in it.
    kind: str
    content: memoryview


_TRANSACT_KINDS = {0x12: "start", 0x1A: "half", 0x22: "end", 0x2A: "checked"}


def read_transact(data: bytes) -> tuple[Transact | None, list[memoryview]]:
    """The request itself, if it says something, and those in its `more`, for `read_more`. Raises
    IllegalRequest if the bytes are no TransactRequest, say nothing, or have too much in `more`.
    """
    own, more = _transact_fields(data)
    if own is None and not more:
        raise IllegalRequest("the TransactRequest says nothing: give it a start, half or end")
    return own, more


def read_more(content: memoryview) -> Transact:
    """Raises IllegalRequest."""
    one, deeper = _transact_fields(content)
    if one is None or deeper:
        raise IllegalRequest("a request in `more` has one kind, and no `more` itself")
    return one


def _transact_fields(data: bytes | memoryview) -> tuple[Transact | None, list[memoryview]]:
    request_id = position = 0
    view = memoryview(data)
    kind, content = "", view
    more: list[memoryview] = []
    end = len(data)
    while position < end:
        key, position = data[position], position + 1
        if key == 0x08:
            request_id, position = _read_varint(data, position)
            continue
        length, start = _read_varint(data, position)
        position = start + length
        if key == 0x7A:
            more.append(view[start:position])
            if len(more) > TRANSACTED_MAX:
                raise exceeded("TransactRequest.more", len(more))
        elif key in _TRANSACT_KINDS:
            kind, content = _TRANSACT_KINDS[key], view[start:position]
        else:
            raise IllegalRequest("the bytes are no TransactRequest: it has no such field")
    if position != end:
        raise IllegalRequest("the TransactRequest is cut short")
    return (Transact(request_id, kind, content) if kind else None), more


def transact_more(responses: Sequence[bytes]) -> bytes:
    """A TransactResponse that has these, if there are several."""
    if len(responses) == 1:
        return responses[0]
    parts = [part for one in responses for part in (_LAST_FIELD, varint.encode(len(one)), one)]
    return b"".join(parts)


def transact_check(head: bytes, frames: bytes | memoryview) -> bytes:
    """A TransactResponse with a question: a CheckTransaction whose messages stand as they are
    stored.
    """
    return b"".join((_CHECK_FIELD, varint.encode(len(head) + len(frames)), head, frames))
