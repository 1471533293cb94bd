"""A walk over many protobuf messages at once, in lock-step: a field of each at a time.

The number of numpy calls is that of the fields of a message, not that of the messages. A message is
*odd* when a field of it is not a number of at most seven bytes, or a length and as many bytes, with
a tag of one byte; or when it has very many of them. Damage is odd too. What is odd is for others to
parse. Nothing here knows what the fields mean, and nothing is copied.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Numbers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]
Words: TypeAlias = npt.NDArray[np.uint64]

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


class Slices(NamedTuple):
    """One a message; an empty one may stand anywhere."""

    starts: Numbers
    sizes: Numbers


class Many(NamedTuple):
    """Any number a message: `rows` says whose they are, in ascending order."""

    rows: Numbers
    starts: Numbers
    sizes: Numbers


class Fields(NamedTuple):
    """The fields of one tag. `values` are numbers, or the lengths of what stands at `starts`."""

    rows: Numbers
    starts: Numbers
    values: Numbers


_NONE = np.empty(0, np.int64)


class Notes:
    """Fields by their tags, of a row in the order in which they were found."""

    def __init__(self) -> None:
        self._parts: dict[int, list[Fields]] = {}

    def add(self, tag: int, fields: Fields) -> None:
        self._parts.setdefault(tag, []).append(fields)

    def of(self, tag: int) -> Fields:
        parts = self._parts.get(tag, [])
        if len(parts) == 1:
            return parts[0]
        columns = zip(*parts, strict=True)
        return Fields(*map(np.concatenate, columns)) if parts else Fields(_NONE, _NONE, _NONE)

    def repeated(self, *tags: int) -> Numbers:
        """The rows that have more than one field of one of these tags."""
        # Of a row each part has one at the most.
        doubtful = [tag for tag in tags if len(self._parts.get(tag, ())) > 1]
        counts = (np.bincount(self.of(tag).rows) for tag in doubtful)
        return np.concatenate([_NONE, *(np.flatnonzero(count > 1) for count in counts)])

    @property
    def tags(self) -> list[int]:
        return list(self._parts)

    def without(self, left_out: Flags) -> Notes:
        """The fields of other rows."""
        made = Notes()
        for tag in self._parts:
            fields = self.of(tag)
            stays = ~left_out[fields.rows]
            made.add(tag, Fields(*(column[stays] for column in fields)))
        return made

    def joined(self, other: Notes) -> Notes:
        made = Notes()
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


class Walker:
    """Over one buffer."""

    def __init__(self, view: memoryview) -> None:
        data = view if len(view) >= 8 else view.tobytes().ljust(8, b"\0")
        self._last = len(data) - 8
        self._bytes = np.frombuffer(data, np.uint8)
        # The eight bytes from each place on.
        self._words: Words = np.ndarray((self._last + 1,), "<u8", data, strides=(1,))

    def walk(
        self, rows: Numbers, starts: Numbers, ends: Numbers, until: int | None = None
    ) -> tuple[Notes, Numbers]:
        """All fields of messages, or those before the first of the tag `until`; and the rows of
        those that are odd, whose fields do not count.
        """
        notes, odd = Notes(), []
        going = self._is_going(starts, ends, until)
        rows, at, ends = rows[going], starts[going], ends[going]
        for step in range(_STEPS_MAX):
            if not len(rows) or (step >= _STEPS_OF_FEW and len(rows) <= _FEW):
                break
            tags, value_at, values = self.heads(at)
            at = value_at + np.where(tags & 7 == 2, values, 0)
            is_fine = _IS_PLAIN[tags] & (at <= ends) & (values >= 0)
            if not is_fine.all():
                odd.append(rows[~is_fine])
                rows, at, ends = rows[is_fine], at[is_fine], ends[is_fine]
                tags, value_at, values = tags[is_fine], value_at[is_fine], values[is_fine]
            _note(notes, tags, Fields(rows, value_at, values))
            going = self._is_going(at, ends, until)
            if not going.all():
                rows, at, ends = rows[going], at[going], ends[going]
        return notes, np.concatenate([*odd, rows])

    def _is_going(self, at: Numbers, ends: Numbers, until: int | None) -> Flags:
        going: Flags = at < ends
        return going if until is None else going & (self._bytes.take(at, mode="clip") != until)

    def words_before(self, ends: Numbers) -> Words:
        """The eight bytes before each of these places, of which there are as many."""
        words: Words = self._words[ends - 8]
        return words

    def heads(self, at: Numbers) -> tuple[Numbers, Numbers, Numbers]:
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
        if not ((words & 0x8080) == 0x8080).any():
            has_two = words >> np.uint64(7) & np.uint64(1)
            values = (words & 0x7F | (words >> np.uint64(1) & 0x3F80) * has_two).view(np.int64)
            return tags, at + (has_two.view(np.int64) + 2), values
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


def _note(notes: Notes, tags: Numbers, fields: Fields) -> None:
    if not len(tags):
        return
    if (tags == tags[0]).all():
        notes.add(int(tags[0]), fields)
        return
    for tag in np.flatnonzero(np.bincount(tags)).tolist():
        chosen = tags == tag
        notes.add(tag, Fields(*(column[chosen] for column in fields)))
