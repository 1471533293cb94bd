"""Answers to pulls as they came over the wire, with the places of their messages.

For readers that work on whole columns of messages: nothing in here opens one, and the work is per
run, not per message.

    PullResponse = status, next_offset, start, end, read_from | 0x7A, varint length, Run | ...
    Run          = queue_offset, log_offset, stored_at_ms, frame_sizes | frame | frame | ...
"""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import DecodeError

from mq.wire.v1.consumer_pb2 import PullResponse

_RUN = 0x7A
# Tags of a Run: numbers, then the sizes of its frames as packed fixed32.
_QUEUE_OFFSET, _LOG_OFFSET, _STORED_AT, _FRAME_SIZES, _FRAME = 0x08, 0x10, 0x18, 0x22, 0x7A
_MASK = (1 << 64) - 1


class PageRun(NamedTuple):
    """Messages that are neighbours in their queue. `frame_sizes` has four bytes for each, little
    endian; the frames stand one behind the other from `frames_at` on.
    """

    queue_offset: int
    log_offset: int
    stored_at_ms: int
    frame_sizes: memoryview
    frames_at: int

    @property
    def end(self) -> int:
        """The queue offset behind its last message."""
        return self.queue_offset + len(self.frame_sizes) // 4


class Page(NamedTuple):
    """One answer. The fields are those of PullResponse; positions are in `data`."""

    data: bytes
    runs: list[PageRun]
    status: int
    next_offset: int
    start: int
    end: int
    read_from: str

    @property
    def has_messages(self) -> bool:
        return bool(self.runs)


def parse_page(data: bytes) -> Page:
    """DecodeError when it is no PullResponse."""
    try:
        return _parse(data)
    except IndexError:
        raise DecodeError("it ends in the middle of a field") from None


def _parse(data: bytes) -> Page:
    at = _head_end(data)
    head = PullResponse.FromString(data[:at])
    view = memoryview(data)
    runs = []
    while at < len(data):
        if data[at] != _RUN:
            raise DecodeError(f"field tag {data[at]} at {at} is none of a run")
        length, at = _varint(data, at + 1)
        if at + length > len(data):
            raise DecodeError(f"a run of {length} bytes at {at} is longer than the answer")
        runs.append(_parse_run(data, view, at, at + length))
        at += length
    return Page(data, runs, head.status, head.next_offset, head.start, head.end, head.read_from)


def _head_end(data: bytes) -> int:
    """Where the first run begins."""
    at = 0
    while at < len(data) and data[at] != _RUN:
        wire_type = data[at] & 7
        value, at = _varint(data, at + 1)
        if wire_type == 2:
            at += value
        elif wire_type != 0:
            raise DecodeError(f"a field of wire type {wire_type} is none of a PullResponse")
    return min(at, len(data))


def _parse_run(data: bytes, view: memoryview, at: int, end: int) -> PageRun:
    queue_offset = log_offset = stored_at_ms = 0
    frame_sizes = view[at:at]
    while at < end and data[at] != _FRAME:
        tag = data[at]
        value, at = _varint(data, at + 1)
        if tag == _QUEUE_OFFSET:
            queue_offset = value
        elif tag == _LOG_OFFSET:
            log_offset = value
        elif tag == _STORED_AT:
            stored_at_ms = value
        elif tag == _FRAME_SIZES and at + value <= end:
            frame_sizes = view[at : at + value]
            at += value
        else:
            raise DecodeError(f"field tag {tag} before {at} is none of a run")
    if sum(frame_sizes.cast("I")) != end - at:
        raise DecodeError(f"the frames at {at} are not as long as their sizes say")
    return PageRun(queue_offset, log_offset, stored_at_ms, frame_sizes, at)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that stands there, and where it ends."""
    value = data[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK, at
        shift += 7
        if shift > 63:
            raise DecodeError(f"a number that ends at {at} is too long")
