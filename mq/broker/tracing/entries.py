"""An entry of the log as a trace looks at it: its command, and its batches only where they may
matter. Most entries are messages of other topics: finding that out costs a few bytes of each batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from google.protobuf.message import DecodeError

from mq.errors import MalformedBatch
from mq.store.batch import Batch, parse_stored
from mq.store.format import Kind
from mq.store.logreader import Entry, EntryRef
from mq.store.varints import read_varint
from mq.wire.v1.state_pb2 import Command

_BATCH, _COMMAND = 0x0A, 0x12
_PERCENT = ord("%")


# Commands that name topics, and are many: positions and leases.
_NAMING = (0x1A, 0x52)
# Of `provenance`.
_PROVENANCE_TAG = b"\xf2\x01"


class TracedEntry:
    """Content that cannot be read is left out: applying it changed nothing. So is a command that
    names topics but none of `needles`, if they are given.
    """

    __slots__ = ("_batches", "_spans", "command", "has_internal", "payload", "ref")

    def __init__(self, entry: Entry, needles: Sequence[bytes] | None = None) -> None:
        self.ref: EntryRef = entry.ref
        self.payload = entry.payload
        self.command: Command | None = None
        # Some batch is of a topic that the broker alone writes.
        self.has_internal = False
        self._spans: list[tuple[int, int]] = []
        self._batches: list[tuple[Batch, int]] | None = None
        if entry.ref.kind == Kind.COMMAND:
            self.command = _decoded(entry.payload, needles)
        elif entry.ref.kind == Kind.MESSAGES:
            self._walk(needles)

    @property
    def batches(self) -> list[tuple[Batch, int]]:
        """Each with its log offset."""
        if self._batches is None:
            base = self.ref.payload_log_offset
            try:
                self._batches = [
                    (parse_stored(self.payload[start:end]), base + start)
                    for start, end in self._spans
                ]
            except MalformedBatch:
                self._batches = []
        return self._batches

    def commands(self) -> Iterator[Command]:
        """Those of a `many` one by one."""
        if self.command is not None:
            yield from _flattened(self.command)

    def _walk(self, needles: Sequence[bytes] | None) -> None:
        payload, position = self.payload, 0
        size = len(payload)
        while position < size:
            tag = payload[position]
            length, start = read_varint(payload, position + 1)
            position = start + length
            if position > size:
                return
            if tag == _BATCH:
                self._spans.append((start, position))
                # The topic comes first: its tag, its length, its first character.
                at = start + (2 if length > 2 and payload[start + 1] < 0x80 else 3)
                if at < position and payload[at] == _PERCENT:
                    self.has_internal = True
            elif tag == _COMMAND:
                self.command = _decoded(payload[start:position], needles)


def _flattened(command: Command) -> Iterator[Command]:
    if command.WhichOneof("kind") != "many":
        yield command
        return
    for one in command.many.commands:
        yield from _flattened(one)


def _decoded(payload: memoryview, needles: Sequence[bytes] | None) -> Command | None:
    data = bytes(payload)
    if needles is not None and data and data[0] in _NAMING:
        is_said = _PROVENANCE_TAG in data or any(needle in data for needle in needles)
        if not is_said:
            return None
    try:
        return Command.FromString(data)
    except DecodeError:
        return None
