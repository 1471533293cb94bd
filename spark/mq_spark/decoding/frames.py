"""Many messages opened at once: where the fields of their frames stand, as arrays.

    frame = 0x7A, varint length, Message              see proto/mq/v1/message.proto

What our clients write is read in lock-step, see `walking`. Whatever else there is, damage too, is
left to protobuf, one message at a time: so a message is read here exactly if protobuf reads it, and
as protobuf reads it. Nothing is copied but what protobuf has read. Text is not checked: a
caller that decodes it and finds it malformed opens that message `closely`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from google.protobuf.message import DecodeError

from mq.store.walking import Fields, Flags, Many, Notes, Numbers, Slices, Walker
from mq.wire.v1.message_pb2 import Message

# Tags of the fields: number << 3 | wire type.
_BODY, _TAG, _KEY, _PROPERTY, _ORDERING_KEY = 0x0A, 0x12, 0x1A, 0x22, 0x2A
_BORN_AT, _COMPRESSION, _ORIGIN = 0x30, 0x38, 0x42
_NAME, _VALUE = 0x0A, 0x12
_ORIGIN_TEXTS, _ORIGIN_NUMBERS, _ATTEMPTS = (0x0A, 0x22, 0x3A), (0x10, 0x18, 0x28, 0x30), 0x30
_FRAME = 0x7A
_UINT32 = 0xFFFF_FFFF


class Opened(NamedTuple):
    """The fields of messages; positions are in `data`. What cannot be read has none."""

    data: bytes | memoryview
    body: Slices
    tag: Slices
    ordering_key: Slices
    keys: Many
    property_names: Many
    property_values: Many
    born_at_ms: Numbers
    compression: Numbers
    # Fields of the origin; its texts are not read, and have to be valid all the same.
    attempts: Numbers
    origin_texts: Many
    # By row, why it cannot be read.
    unreadable: dict[int, str]


def open_frames(
    data: bytes | memoryview,
    frames_at: Numbers,
    frame_sizes: Numbers,
    closely: Flags | None = None,
) -> Opened:
    """Those that are to be looked at `closely` are left to protobuf."""
    count = len(frames_at)
    first = int(frames_at.min()) if count else 0
    last = int((frames_at + frame_sizes).max()) if count else 0
    view = memoryview(data)[first:last]
    walker = Walker(view)
    starts, ends, is_whole = _frame_heads(walker, frames_at - first, frame_sizes)
    is_odd = ~is_whole if closely is None else closely | ~is_whole
    rows = np.flatnonzero(~is_odd)
    notes, odd_rows = walker.walk(rows, starts[rows], ends[rows])
    is_odd[odd_rows] = True
    properties, odd_rows = _inside(walker, notes.of(_PROPERTY), (_NAME, _VALUE), ())
    is_odd[odd_rows] = True
    origins, odd_rows = _inside(walker, notes.of(_ORIGIN), _ORIGIN_TEXTS, _ORIGIN_NUMBERS)
    is_odd[odd_rows] = True
    # Protobuf makes one of two origins; and of two texts the first has to be text too.
    is_odd[notes.repeated(_TAG, _ORDERING_KEY, _ORIGIN)] = True
    found = _Found(notes, properties, origins)
    unreadable = {}
    if is_odd.any():
        found = _Found(*(kind.without(is_odd) for kind in found))
        parsed = _OneByOne(len(view))
        for row in np.flatnonzero(is_odd).tolist():
            parsed.add(row, view[starts[row] : ends[row]] if is_whole[row] else None)
        view = memoryview(b"".join([view, *parsed.pieces]))
        found = _Found(*(kind.joined(more) for kind, more in zip(found, parsed.found, strict=True)))
        unreadable = parsed.unreadable
    return _opened(view, found, ends, unreadable)


def _opened(view: memoryview, found: _Found, ends: Numbers, unreadable: dict[int, str]) -> Opened:
    fields, properties, origins = found
    return Opened(
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
        origins.many(*_ORIGIN_TEXTS),
        unreadable,
    )


class _Found(NamedTuple):
    """Rows are those of the messages in all of them."""

    fields: Notes
    properties: Notes
    origins: Notes


class _OneByOne:
    """Messages that protobuf parses, with their fields put one behind the other."""

    def __init__(self, at: int) -> None:
        self.pieces: list[bytes] = []
        self.unreadable: dict[int, str] = {}
        self._at = at
        self._notes: tuple[_Listed, _Listed, _Listed] = ({}, {}, {})

    @property
    def found(self) -> _Found:
        return _Found(*map(_listed, self._notes))

    def add(self, row: int, data: memoryview | None) -> None:
        """None: it has not even a frame."""
        if data is None:
            self.unreadable[row] = "its frame is damaged"
            return
        try:
            message = Message.FromString(data.tobytes())
        except DecodeError as error:
            self.unreadable[row] = f"it is no Message of the protocol: {error}"
            return
        fields, properties, origins = self._notes
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
    """The content of fields that are messages themselves, these texts and numbers of each; and the
    rows that are odd, have other fields, or a text twice.
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
