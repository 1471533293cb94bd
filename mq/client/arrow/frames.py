"""The fields of many messages at once: their positions in the frames, as arrays.

    frame = 0x7A, varint length, Message              see proto/mq/v1/message.proto

Messages as our clients write them are read in lock-step, see `mq.wire.walking`. All others, and
damage, are parsed by protobuf one at a time. So a message is readable here exactly if it is for
protobuf, and has the same fields. Only fields that protobuf has parsed are copied. Text is not
checked: a caller that finds malformed text has that message parsed `by_protobuf`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from google.protobuf.message import DecodeError

from mq.wire.v1.message_pb2 import Message
from mq.wire.walking import Fields, Flags, Many, Notes, Numbers, Slices, Walker

# Tags of the fields: number << 3 | wire type.
_BODY, _TAG, _KEY, _PROPERTY, _ORDERING_KEY = 0x0A, 0x12, 0x1A, 0x22, 0x2A
_BORN_AT, _COMPRESSION, _ORIGIN, _ROCKETMQ = 0x30, 0x38, 0x42, 0x52
_NAME, _VALUE = 0x0A, 0x12
_ORIGIN_TEXTS, _ORIGIN_NUMBERS, _ATTEMPTS = (0x0A, 0x22, 0x3A), (0x10, 0x18, 0x28, 0x30), 0x30
_ROCKETMQ_TEXTS, _ROCKETMQ_NUMBERS = (0x0A, 0x12, 0x2A), (0x18, 0x20)
_FRAME = 0x7A
_UINT32 = 0xFFFF_FFFF


class FrameFields(NamedTuple):
    """The fields of messages; positions are in `data`. An unreadable message has none."""

    data: bytes | memoryview
    body: Slices
    tag: Slices
    ordering_key: Slices
    keys: Many
    property_names: Many
    property_values: Many
    born_at_ms: Numbers
    compression: Numbers
    attempts: Numbers
    # Of the origin and of RocketMQ's fields. Invalid ones make a message unreadable.
    unused_texts: Many
    # By row, the reason.
    unreadable: dict[int, str]


def read_frames(
    data: bytes | memoryview,
    frames_at: Numbers,
    frame_sizes: Numbers,
    by_protobuf: Flags | None = None,
) -> FrameFields:
    """Messages marked in `by_protobuf` are parsed by protobuf in any case."""
    count = len(frames_at)
    first = int(frames_at.min()) if count else 0
    last = int((frames_at + frame_sizes).max()) if count else 0
    view = memoryview(data)[first:last]
    walker = Walker(view)
    starts, ends, is_whole = _frame_heads(walker, frames_at - first, frame_sizes)
    is_odd = ~is_whole if by_protobuf is None else by_protobuf | ~is_whole
    rows = np.flatnonzero(~is_odd)
    notes, odd_rows = walker.walk(rows, starts[rows], ends[rows])
    is_odd[odd_rows] = True
    properties, odd_rows = _inside(walker, notes.of(_PROPERTY), (_NAME, _VALUE), ())
    is_odd[odd_rows] = True
    origins, odd_rows = _inside(walker, notes.of(_ORIGIN), _ORIGIN_TEXTS, _ORIGIN_NUMBERS)
    is_odd[odd_rows] = True
    rocketmq, odd_rows = _inside(walker, notes.of(_ROCKETMQ), _ROCKETMQ_TEXTS, _ROCKETMQ_NUMBERS)
    is_odd[odd_rows] = True
    # Protobuf merges two origins into one, and checks both of two texts.
    is_odd[notes.repeated(_TAG, _ORDERING_KEY, _ORIGIN, _ROCKETMQ)] = True
    found = _Found(notes, properties, origins, rocketmq)
    unreadable = {}
    if is_odd.any():
        found = _Found(*(kind.without(is_odd) for kind in found))
        parsed = _ParsedMessages(len(view))
        for row in np.flatnonzero(is_odd).tolist():
            parsed.add(row, view[starts[row] : ends[row]] if is_whole[row] else None)
        view = memoryview(b"".join([view, *parsed.pieces]))
        found = _Found(*(kind.joined(more) for kind, more in zip(found, parsed.found, strict=True)))
        unreadable = parsed.unreadable
    return _fields_of(view, found, ends, unreadable)


def _fields_of(
    view: memoryview, found: _Found, ends: Numbers, unreadable: dict[int, str]
) -> FrameFields:
    fields, properties, origins, rocketmq = found
    unused = Notes()
    for nth, texts in enumerate((origins.many(*_ORIGIN_TEXTS), rocketmq.many(*_ROCKETMQ_TEXTS))):
        unused.add(nth, Fields(*texts))
    return FrameFields(
        view,
        fields.slices(_BODY, ends),
        fields.slices(_TAG, ends),
        fields.slices(_ORDERING_KEY, ends),
        fields.many(_KEY),
        properties.many(_NAME),
        properties.many(_VALUE),
        fields.numbers(_BORN_AT, len(ends)),
        fields.numbers(_COMPRESSION, len(ends)) & _UINT32,
        origins.numbers(_ATTEMPTS, len(ends)) & _UINT32,
        unused.many(0, 1),
        unreadable,
    )


class _Found(NamedTuple):
    """In all of them, `rows` are the rows of the messages."""

    fields: Notes
    properties: Notes
    origins: Notes
    rocketmq: Notes


class _ParsedMessages:
    """Messages that protobuf parses, with their fields laid out one after the other."""

    def __init__(self, at: int) -> None:
        self.pieces: list[bytes] = []
        self.unreadable: dict[int, str] = {}
        self._at = at
        self._notes: tuple[_Listed, ...] = ({}, {}, {}, {})

    @property
    def found(self) -> _Found:
        return _Found(*map(_listed, self._notes))

    def add(self, row: int, data: memoryview | None) -> None:
        """`data` is None if the frame itself is damaged."""
        if data is None:
            self.unreadable[row] = "its frame is damaged"
            return
        try:
            message = Message.FromString(data.tobytes())
        except DecodeError as error:
            self.unreadable[row] = f"it is no Message of the protocol: {error}"
            return
        fields, properties, origins, _ = self._notes
        self._put(fields, _BODY, row, message.body)
        self._put(fields, _TAG, row, message.tag.encode())
        self._put(fields, _ORDERING_KEY, row, message.ordering_key.encode())
        for key in message.keys:
            self._put(fields, _KEY, row, key.encode())
        for name, value in message.properties.items():
            self._put(properties, _NAME, row, name.encode())
            self._put(properties, _VALUE, row, value.encode())
        fields.setdefault(_BORN_AT, []).append((row, 0, message.born_at_ms))
        fields.setdefault(_COMPRESSION, []).append((row, 0, message.compression))
        origins.setdefault(_ATTEMPTS, []).append((row, 0, message.origin.attempts))

    def _put(self, listed: _Listed, tag: int, row: int, value: bytes) -> None:
        listed.setdefault(tag, []).append((row, self._at, len(value)))
        self.pieces.append(value)
        self._at += len(value)


_Listed: TypeAlias = dict[int, list[tuple[int, int, int]]]


def _listed(fields: _Listed) -> Notes:
    made = Notes()
    for tag, listed in fields.items():
        made.add(tag, Fields(*np.array(listed, np.int64).T))
    return made


def _frame_heads(
    walker: Walker, frames_at: Numbers, frame_sizes: Numbers
) -> tuple[Numbers, Numbers, Flags]:
    """The start and end of each message, and whether its frame is whole."""
    tags, starts, lengths = walker.heads(frames_at)
    ends = frames_at + frame_sizes
    is_whole = (tags == _FRAME) & (starts <= ends) & (lengths == ends - starts)
    return starts, ends, is_whole


def _inside(
    walker: Walker, fields: Fields, texts: Sequence[int], numbers: Sequence[int]
) -> tuple[Notes, Numbers]:
    """The texts and numbers inside fields that are messages themselves; and the rows that are odd,
    have other fields, or a text twice.
    """
    ends = fields.starts + fields.values
    notes, odd = walker.walk(np.arange(len(ends)), fields.starts, ends)
    made = Notes()
    for tag in texts:
        made.add(tag, Fields(fields.rows, *notes.slices(tag, ends)))
    for tag in numbers:
        made.add(tag, Fields(fields.rows, ends, notes.numbers(tag, len(ends))))
    unknown = [notes.of(tag).rows for tag in notes.tags if tag not in (*texts, *numbers)]
    return made, fields.rows[np.concatenate([odd, notes.repeated(*texts), *unknown])]
