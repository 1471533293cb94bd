"""Key index: from the hash of a key to the log offsets of its messages, newest first, in files of
hash chains.

      0       8        16          24          32      36      40               40 + 4 * slots
      +-------+--------+-----------+-----------+-------+-------+----- ... -----+----- ... ------+
      | first | last   | first log | last log  | slots | items | slots, u32    | items, 20 bytes|
      | ms    | ms     | offset    | offset    |       |       |               |                |
      +-------+--------+-----------+-----------+-------+-------+----- ... -----+----- ... ------+

      item:  hash u32 | log offset u64 | seconds after first ms u32 | item before it in the chain
      u32

A slot holds the number of the newest item whose `hash % slots` is the slot, counted from 1; 0 ends
a chain. Items are appended; header and slots are written once, when the file is full. Until then
they follow from the items, so that a crash can leave nothing inconsistent: the newest file counts
as many items as the checkpoint says, and the log is applied from there.

    <data>/index/<log offset of the first item, 20 digits>

A hash is 32 bits wide and a time counts in seconds: what is found here are candidates; who asks
looks at the message. One thread.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mq.store.filepool import FilePool, PendingWrite
from mq.store.rowbuffer import RowBuffer, bytes_of
from mq.store.vfs import Vfs

_HEADER = struct.Struct("<QQQQII")
HEADER_BYTES = _HEADER.size
ITEM = np.dtype([("hash", "<u4"), ("log_offset", "<u8"), ("seconds", "<u4"), ("before", "<u4")])
ITEM_BYTES = ITEM.itemsize
_READ_ITEMS = 1 << 16
_OPEN_FILES_MAX = 16


class Header(NamedTuple):
    first_ms: int
    last_ms: int
    first_log_offset: int
    last_log_offset: int
    slots: int
    items: int

    @property
    def file_bytes(self) -> int:
        return HEADER_BYTES + 4 * self.slots + self.items * ITEM_BYTES

    @staticmethod
    def decode(data: bytes) -> Header:
        return Header._make(_HEADER.unpack(data))


class Item(NamedTuple):
    hash: int
    log_offset: int
    seconds: int
    before: int


NO_ITEM = Item(0, 0, 0, 0)


class IndexPosition(NamedTuple):
    """How far the index was built: the full files, and the newest one with its items."""

    full: tuple[str, ...] = ()
    newest: str = ""
    items: int = 0
    first_ms: int = 0


def key_slot_hashes(key_hashes: npt.NDArray[np.uint64], topic_hash: int) -> npt.NDArray[np.uint32]:
    """What is stored of keys: the same key of two topics has two hashes."""
    mixed = key_hashes ^ np.uint64(topic_hash)
    return (mixed ^ (mixed >> np.uint64(32))).astype(np.uint32)


class _Filling:
    """A file that is being filled, or is full and not yet on disk: slots in memory, the newest
    items too.
    """

    def __init__(self, name: str, slot_count: int, first_ms: int, first_log_offset: int) -> None:
        self.name = name
        self.first_ms = self.last_ms = first_ms
        self.first_log_offset = self.last_log_offset = first_log_offset
        self.slots = np.zeros(slot_count, "<u4")
        self.newest = RowBuffer(ITEM, 0)

    @property
    def count(self) -> int:
        return self.newest.end

    @property
    def written(self) -> int:
        return self.newest.start

    def add(
        self, hashes: npt.NDArray[np.uint32], log_offsets: npt.NDArray[np.int64], now_ms: int
    ) -> None:
        items = np.empty(len(hashes), ITEM)
        items["hash"] = hashes
        items["log_offset"] = log_offsets
        items["seconds"] = max(0, now_ms - self.first_ms) // 1000
        items["before"] = self.link(hashes % np.uint32(len(self.slots)), self.count + 1)
        self.newest.append(items)
        self.last_ms = max(self.last_ms, now_ms)
        self.last_log_offset = int(log_offsets[-1])

    def header(self) -> Header:
        times = (self.first_ms, self.last_ms)
        offsets = (self.first_log_offset, self.last_log_offset)
        return Header(*times, *offsets, len(self.slots), self.count)

    def link(self, slots: npt.NDArray[np.uint32], first_number: int) -> npt.NDArray[np.uint32]:
        """Puts items with consecutive numbers at the head of their chains; the numbers they push
        down.
        """
        numbers = np.arange(first_number, first_number + len(slots), dtype=np.uint32)
        before = self.slots[slots]
        # Items of one slot within this call follow each other: sorted by slot, in order, neighbours
        # that share a slot are links of one chain.
        order = np.argsort(slots, kind="stable")
        same = slots[order][1:] == slots[order][:-1]
        before[order[1:][same]] = numbers[order[:-1][same]]
        # Ordered by slot and number, so that the newest of each slot is the last to be assigned.
        self.slots[slots[order]] = numbers[order]
        return before


class KeyIndex:
    def __init__(self, vfs: Vfs, directory: str, *, slot_count: int, item_count_max: int) -> None:
        self._vfs = vfs
        self._directory = directory
        self._slot_count = slot_count
        self._item_count_max = item_count_max
        self._items_at = HEADER_BYTES + 4 * slot_count
        self._files = FilePool(vfs, _OPEN_FILES_MAX)
        # The files on disk that are full, by name, oldest first; behind them those in memory, of
        # which the last one is being filled.
        self._full: dict[str, Header] = {}
        self._filling: list[_Filling] = []

    # -- building ---------------------------------------------------------------------------------

    def add(
        self,
        hashes: npt.NDArray[np.uint32],
        log_offsets: npt.NDArray[np.int64],
        stored_at_ms: int,
    ) -> None:
        """One item a hash. In memory when this returns."""
        while len(hashes):
            if not self._filling or self._is_full(self._filling[-1]):
                first = int(log_offsets[0])
                name = f"{first:020d}"
                self._filling.append(_Filling(name, self._slot_count, stored_at_ms, first))
            newest = self._filling[-1]
            room = self._item_count_max - newest.count
            # A file has the name of its first message, so that all keys of this one stay in it.
            room = max(room, int(np.searchsorted(log_offsets, newest.first_log_offset, "right")))
            newest.add(hashes[:room], log_offsets[:room], stored_at_ms)
            hashes, log_offsets = hashes[room:], log_offsets[room:]

    @property
    def pending_bytes(self) -> int:
        return sum(filling.count - filling.written for filling in self._filling) * ITEM_BYTES

    def pending_writes(self) -> list[PendingWrite]:
        """What brings the files up to `position`: items, and slots and header of what is full."""
        writes = []
        for filling in self._filling:
            path = self._path(filling.name)
            items = filling.newest.read(filling.written, filling.count)
            if items:
                at = self._items_at + filling.written * ITEM_BYTES
                writes.append(PendingWrite(path, at, [bytes_of(rows) for rows in items]))
            if self._is_full(filling):
                head: list[bytes | memoryview] = [
                    _HEADER.pack(*filling.header()),
                    bytes_of(filling.slots),
                ]
                writes.append(PendingWrite(path, 0, head))
        return writes

    def set_written(self, position: IndexPosition) -> None:
        """Somebody wrote `pending_writes` up to this position."""
        while self._filling and self._filling[0].name in position.full:
            filling = self._filling.pop(0)
            self._full[filling.name] = filling.header()
        if self._filling and self._filling[0].name == position.newest:
            self._filling[0].newest.drop_before(position.items)

    def _is_full(self, filling: _Filling) -> bool:
        return filling.count >= self._item_count_max

    # -- looking up -------------------------------------------------------------------------------

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Log offsets of messages that may have this key and may be stored in [begin, end), newest
        first.
        """
        for filling in reversed(self._filling):
            head = int(filling.slots[key_hash % self._slot_count])
            items = self._items_of(filling)
            yield from _walk(items, head, key_hash, filling.first_ms, begin_ms, end_ms)
        for name, header in reversed(self._full.items()):
            if header.last_ms < begin_ms:
                return
            if header.first_ms < end_ms:
                file = self._files.get(self._path(name))
                slot = file.pread(4, HEADER_BYTES + 4 * (key_hash % header.slots))
                head = int.from_bytes(slot, "little")
                items = self._items_in_file(name, header.slots)
                yield from _walk(items, head, key_hash, header.first_ms, begin_ms, end_ms)

    def _items_of(self, filling: _Filling) -> Callable[[int], Item]:
        in_file = self._items_in_file(filling.name, self._slot_count)

        def item(number: int) -> Item:
            if number <= filling.written:
                return in_file(number)
            rows = filling.newest.read(number - 1, number)
            return Item._make(rows[0][0].item()) if rows else NO_ITEM

        return item

    def _items_in_file(self, name: str, slots: int) -> Callable[[int], Item]:
        def item(number: int) -> Item:
            position = HEADER_BYTES + 4 * slots + (number - 1) * ITEM_BYTES
            data = self._files.get(self._path(name)).pread(ITEM_BYTES, position)
            return (
                Item._make(np.frombuffer(data, ITEM)[0].item())
                if len(data) == ITEM_BYTES
                else NO_ITEM
            )

        return item

    # -- start, retention, end --------------------------------------------------------------------

    def position(self) -> IndexPosition:
        in_memory = [filling for filling in self._filling if self._is_full(filling)]
        full = (*self._full, *(filling.name for filling in in_memory))
        if len(in_memory) == len(self._filling):
            return IndexPosition(full)
        newest = self._filling[-1]
        return IndexPosition(full, newest.name, newest.count, newest.first_ms)

    def restore(self, position: IndexPosition) -> bool:
        """The state of a checkpoint. False when the files do not hold it: then all has to be
        rebuilt.
        """
        # Other files were begun after the checkpoint: applying the log makes them again.
        for name in self._vfs.list_dir(self._directory):
            if name not in position.full and name != position.newest:
                self._vfs.remove(self._path(name))
        for name in position.full:
            header = self._header(name)
            if header is None:
                return False
            self._full[name] = header
        if position.newest:
            size = self._items_at + position.items * ITEM_BYTES
            if (self._vfs.file_size(self._path(position.newest)) or 0) < size:
                return False
            filling = self._relinked(position)
            if filling is None:
                return False
            self._filling = [filling]
        return True

    def _header(self, name: str) -> Header | None:
        """Of a full file; None when it is not one."""
        size = self._vfs.file_size(self._path(name)) or 0
        if size < HEADER_BYTES:
            return None
        header = Header.decode(self._files.get(self._path(name)).pread(HEADER_BYTES, 0))
        is_whole = header.slots > 0 and header.items > 0 and header.file_bytes <= size
        return header if is_whole else None

    def _relinked(self, position: IndexPosition) -> _Filling | None:
        """Slots from items, a block at a time. None when the items are not those that were written:
        with another number of slots than now they stand elsewhere and make other chains.
        """
        first = int(position.newest)
        filling = _Filling(position.newest, self._slot_count, position.first_ms, first)
        file = self._files.get(self._path(position.newest))
        for start in range(0, position.items, _READ_ITEMS):
            wanted = min(_READ_ITEMS, position.items - start)
            data = file.pread(wanted * ITEM_BYTES, self._items_at + start * ITEM_BYTES)
            items = np.frombuffer(data, ITEM)
            before = filling.link(items["hash"] % np.uint32(self._slot_count), start + 1)
            is_other = start == 0 and int(items["log_offset"][0]) != first
            if is_other or not np.array_equal(before, items["before"]):
                return None
            filling.last_log_offset = int(items["log_offset"][-1])
            filling.last_ms = filling.first_ms + int(items["seconds"][-1]) * 1000 + 999
        filling.newest = RowBuffer(ITEM, position.items)
        return filling

    def drop_before(self, log_offset: int) -> list[str]:
        """The full files all of whose messages stand before this log offset, to be removed."""
        paths = []
        for name, header in list(self._full.items()):
            if header.last_log_offset >= log_offset:
                break
            del self._full[name]
            paths.append(self._path(name))
            self._files.forget(paths[-1])
        return paths

    def clear(self) -> None:
        """Forgets all keys and deletes the files."""
        self._full.clear()
        self._filling.clear()
        self._files.close()
        self._vfs.remove_tree(self._directory)

    def close(self) -> None:
        self._files.close()

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"


def _walk(
    item_of: Callable[[int], Item],
    number: int,
    key_hash: int,
    first_ms: int,
    begin_ms: int,
    end_ms: int,
) -> Iterator[int]:
    """Follows one chain, newest item first."""
    while number:
        item = item_of(number)
        # A second is wider than the millisecond asked for: both ends take what touches them.
        earliest_ms = first_ms + item.seconds * 1000
        if earliest_ms + 1000 <= begin_ms:
            return
        if item.hash == key_hash and earliest_ms < end_ms:
            yield item.log_offset
        if item.before >= number:
            return  # a chain leads backwards; anything else is a damaged file
        number = item.before
