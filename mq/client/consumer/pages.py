"""Answers to pulls as they came over the wire, with the places of their runs of messages.

For readers that work on whole columns of messages: nothing in here opens a run, and there may be
as many of them as messages.

    PullResponse = status, next_offset, start, end, read_from | 0x7A, varint length, Run | ...
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from google.protobuf.message import DecodeError

from mq.wire import varint
from mq.wire.v1.consumer_pb2 import PullResponse

_RUN = 0x7A


class Page(NamedTuple):
    """One answer; the fields are those of PullResponse. `runs` has two places in `data` for each
    Run, one behind the other: where it starts, and where it ends.
    """

    data: bytes
    runs: array[int]
    status: int
    next_offset: int
    start: int
    end: int
    read_from: str

    @property
    def has_messages(self) -> bool:
        return bool(self.runs)


def parse_page(data: bytes) -> Page:
    """DecodeError when it is no PullResponse; what is in its runs is not looked at."""
    try:
        at = _head_end(data)
        runs = _runs(data, at)
    except IndexError:
        raise DecodeError("it ends in the middle of a field") from None
    except ValueError as error:
        raise DecodeError(str(error)) from None
    head = PullResponse.FromString(data[:at])
    return Page(data, runs, head.status, head.next_offset, head.start, head.end, head.read_from)


def _head_end(data: bytes) -> int:
    """Where the first run begins."""
    at = 0
    while at < len(data) and data[at] != _RUN:
        wire_type = data[at] & 7
        value, at = varint.decode(data, at + 1)
        if wire_type == 2:
            at += value
        elif wire_type != 0:
            raise DecodeError(f"a field of wire type {wire_type} is none of a PullResponse")
    return min(at, len(data))


def _runs(data: bytes, at: int) -> array[int]:
    """From there to the end. Each is a few steps only: there may be thousands."""
    places = array("q")
    end = len(data)
    while at < end:
        if data[at] != _RUN:
            raise DecodeError(f"field tag {data[at]} at {at} is none of a run")
        length = data[at + 1]
        at += 2
        if length > 0x7F:
            # Two bytes are spelled out: with 24,000 runs a page, a call for each takes longer.
            if data[at] < 0x80:
                length += (data[at] - 1) << 7
                at += 1
            else:
                length, at = varint.decode(data, at - 1)
        places.append(at)
        at += length
        places.append(at)
    if at > end:
        raise DecodeError(f"the last run ends at {at}, and the answer at {end}")
    return places
