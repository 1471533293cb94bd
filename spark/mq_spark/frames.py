"""Many messages opened at once: where the fields of their frames stand, as arrays.

    frame = 0x7A, varint length, Message              see proto/mq/v1/message.proto

All messages are walked in lock-step, a field of each at a time: the number of numpy calls is that
of the fields of a message, not that of the messages. What our clients write is read in this way.
Whatever else there is, damage too, is left to protobuf, one message at a time: so a message is
read here exactly if protobuf reads it, and as protobuf reads it. Nothing is copied but what that
one read. Text is not looked at: whoever makes text of it opens `closely` what is no UTF-8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from mq.wire.v1.message_pb2 import Message

Numbers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]
_Words: TypeAlias = npt.NDArray[np.uint64]

# Tags of the fields: number << 3 | wire type.
_BODY, _TAG, _KEY, _PROPERTY, _ORDERING_KEY = 0x0A, 0x12, 0x1A, 0x22, 0x2A
_BORN_AT, _COMPRESSION, _ORIGIN = 0x30, 0x38, 0x42
_NAME, _VALUE = 0x0A, 0x12
_ORIGIN_TEXTS, _ORIGIN_NUMBERS, _ATTEMPTS = (0x0A, 0x22, 0x3A), (0x10, 0x18, 0x28, 0x30), 0x30
_FRAME = 0x7A
# One byte, a field number that exists, and a number or a length behind it.
_IS_PLAIN = np.array([8 <= tag < 0x80 and tag & 7 in (0, 2) for tag in range(256)])
# How many fields are walked at most; and how many when only a few messages have more of them.
_STEPS_MAX, _STEPS_OF_FEW, _FEW = 256, 24, 16
# What stays, of each pair, when the seven bits of bytes are moved together; and how far they move.
_MOVES = [
    (np.uint64(0x007F_007F_007F_007F), np.uint64(1)),
    (np.uint64(0x0000_3FFF_0000_3FFF), np.uint64(2)),
    (np.uint64(0x0000_0000_0FFF_FFFF), np.uint64(4)),
]
_UINT32 = 0xFFFF_FFFF


class Slices(NamedTuple):
    """One a message; an empty one may stand anywhere."""

    starts: Numbers
    sizes: Numbers


class Many(NamedTuple):
    """Any number a message: `rows` says whose they are, in ascending order."""

    rows: Numbers
    starts: Numbers
    sizes: Numbers


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
    # Of the origin; and its texts, which nobody reads and which have to be text all the same.
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
    walker = _Walker(view)
    starts, ends, is_whole = walker.frame_heads(frames_at - first, frame_sizes)
    is_odd = ~is_whole if closely is None else closely | ~is_whole
    rows = np.flatnonzero(~is_odd)
    notes, odd_rows = walker.walk(rows, starts[rows], ends[rows])
    is_odd[odd_rows] = True
    properties, odd_rows = walker.inside(notes.of(_PROPERTY), (_NAME, _VALUE), ())
    is_odd[odd_rows] = True
    origins, odd_rows = walker.inside(notes.of(_ORIGIN), _ORIGIN_TEXTS, _ORIGIN_NUMBERS)
    is_odd[odd_rows] = True
    # Protobuf makes one of two origins.
    is_odd[_repeated(notes.of(_ORIGIN).rows)] = True
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


class _Fields(NamedTuple):
    """Of one tag. `values` are numbers, or the lengths of what stands at `starts`."""

    rows: Numbers
    starts: Numbers
    values: Numbers


_NONE = np.empty(0, np.int64)


class _Notes:
    """Fields by their tags, of a row in the order in which they were found."""

    def __init__(self) -> None:
        self._parts: dict[int, list[_Fields]] = {}

    def add(self, tag: int, fields: _Fields) -> None:
        self._parts.setdefault(tag, []).append(fields)

    def of(self, tag: int) -> _Fields:
        parts = self._parts.get(tag, [])
        if len(parts) == 1:
            return parts[0]
        columns = zip(*parts, strict=True)
        return _Fields(*map(np.concatenate, columns)) if parts else _Fields(_NONE, _NONE, _NONE)

    @property
    def tags(self) -> list[int]:
        return list(self._parts)

    def without(self, left_out: Flags) -> _Notes:
        """The fields of other rows."""
        made = _Notes()
        for tag in self._parts:
            fields = self.of(tag)
            stays = ~left_out[fields.rows]
            made.add(tag, _Fields(*(column[stays] for column in fields)))
        return made

    def joined(self, other: _Notes) -> _Notes:
        made = _Notes()
        for notes in (self, other):
            for tag in notes.tags:
                made.add(tag, notes.of(tag))
        return made

    def many(self, *tags: int) -> Many:
        """All fields of these tags, those of a row together."""
        fields = [self.of(tag) for tag in tags]
        rows, starts, sizes = (np.concatenate(columns) for columns in zip(*fields, strict=True))
        if (rows[1:] < rows[:-1]).any():
            order = np.argsort(rows, kind="stable")
            rows, starts, sizes = rows[order], starts[order], sizes[order]
        return Many(rows, starts, sizes)

    def slices(self, tag: int, otherwise_at: Numbers) -> Slices:
        """The last one of each row; an empty one where there is none."""
        starts, sizes = otherwise_at.copy(), np.zeros(len(otherwise_at), np.int64)
        for fields in self._parts.get(tag, ()):
            starts[fields.rows], sizes[fields.rows] = fields.starts, fields.values
        return Slices(starts, sizes)

    def numbers(self, tag: int, count: int) -> Numbers:
        """The last one of each row, or 0."""
        made = np.zeros(count, np.int64)
        for fields in self._parts.get(tag, ()):
            made[fields.rows] = fields.values
        return made


class _Found(NamedTuple):
    """Rows are those of the messages in all of them."""

    fields: _Notes
    properties: _Notes
    origins: _Notes


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


def _listed(fields: _Listed) -> _Notes:
    made = _Notes()
    for tag, listed in fields.items():
        made.add(tag, _Fields(*np.array(listed, np.int64).T))
    return made


class _Walker:
    """Over one buffer."""

    def __init__(self, view: memoryview) -> None:
        data = view if len(view) >= 8 else view.tobytes().ljust(8, b"\0")
        self._last = len(data) - 8
        # The eight bytes from each place on.
        self._words: _Words = np.ndarray((self._last + 1,), "<u8", data, strides=(1,))

    def frame_heads(
        self, frames_at: Numbers, frame_sizes: Numbers
    ) -> tuple[Numbers, Numbers, Flags]:
        """Where the messages begin and end, and whether their frames are whole."""
        tags, starts, lengths = self._heads(frames_at)
        ends = frames_at + frame_sizes
        is_whole = (tags == _FRAME) & (starts <= ends) & (lengths == ends - starts)
        return starts, ends, is_whole

    def walk(self, rows: Numbers, starts: Numbers, ends: Numbers) -> tuple[_Notes, Numbers]:
        """All fields of messages; and the rows of those that are odd, whose fields do not count."""
        notes, odd = _Notes(), []
        going = starts < ends
        rows, at, ends = rows[going], starts[going], ends[going]
        for step in range(_STEPS_MAX):
            if not len(rows) or (step >= _STEPS_OF_FEW and len(rows) <= _FEW):
                break
            tags, value_at, values = self._heads(at)
            at = value_at + np.where(tags & 7 == 2, values, 0)
            is_fine = _IS_PLAIN[tags] & (at <= ends) & (values >= 0)
            if not is_fine.all():
                odd.append(rows[~is_fine])
                rows, at, ends = rows[is_fine], at[is_fine], ends[is_fine]
                tags, value_at, values = tags[is_fine], value_at[is_fine], values[is_fine]
            _note(notes, tags, _Fields(rows, value_at, values))
            going = at < ends
            if not going.all():
                rows, at, ends = rows[going], at[going], ends[going]
        return notes, np.concatenate([*odd, rows])

    def inside(
        self, fields: _Fields, texts: Sequence[int], numbers: Sequence[int]
    ) -> tuple[_Notes, Numbers]:
        """What is in fields that are messages themselves, these texts and numbers of each; and the
        rows of those that are odd, or have anything else.
        """
        ends = fields.starts + fields.values
        notes, odd = self.walk(np.arange(len(ends)), fields.starts, ends)
        made = _Notes()
        for tag in texts:
            made.add(tag, _Fields(fields.rows, *notes.slices(tag, ends)))
        for tag in numbers:
            made.add(tag, _Fields(fields.rows, ends, notes.numbers(tag, len(ends))))
        unknown = [notes.of(tag).rows for tag in notes.tags if tag not in (*texts, *numbers)]
        return made, fields.rows[np.concatenate([odd, *unknown])]

    def _heads(self, at: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """The tags of the fields that begin there, where their values stand, and the numbers or
        lengths: negative where there is none of at most seven bytes.
        """
        words = self._words[np.minimum(at, self._last)]
        if len(at) and at.max() > self._last:
            words >>= (np.maximum(at - self._last, 0) << 3).view(np.uint64)
        tags = (words & 0xFF).view(np.int64)
        words >>= np.uint64(8)
        if not (words & 0x80).any():
            return tags, at + 2, (words & 0x7F).view(np.int64)
        # The bit that ends a number is the lowest that is clear of all those on top of a byte.
        ends = ~words & 0x80_8080_8080_8080
        is_endless = ends == 0
        below = (ends ^ (ends - np.uint64(1))) >> np.uint64(1)
        width = np.bitwise_count(below).astype(np.int64) + 1 >> 3
        bits = words & below & 0x7F_7F7F_7F7F_7F7F
        # Groups of seven bits move together, then pairs of them, then pairs of pairs.
        for low, shift in _MOVES:
            bits = bits & low | (bits & ~low) >> shift
        values = bits.view(np.int64)
        values[is_endless] = -1
        return tags, at + 1 + width, values


def _note(notes: _Notes, tags: Numbers, fields: _Fields) -> None:
    if not len(tags):
        return
    if (tags == tags[0]).all():
        notes.add(int(tags[0]), fields)
        return
    for tag in np.flatnonzero(np.bincount(tags)).tolist():
        chosen = tags == tag
        notes.add(tag, _Fields(*(column[chosen] for column in fields)))


def _repeated(rows: Numbers) -> Numbers:
    """Those that are there more than once."""
    return np.flatnonzero(np.bincount(rows) > 1) if len(rows) else rows
