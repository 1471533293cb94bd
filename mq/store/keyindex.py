"""Key index: from the hash of a key to the log offsets of its messages, newest first, in files of
hash chains.

      0       8        16          24          32      36      40      44
      +-------+--------+-----------+-----------+-------+-------+-------+--- ... ---+--- ... ----+
      | first | last   | first log | last log  | slots | items | crc32 | slots,    | items,     |
      | ms    | ms     | offset    | offset    |       |       |       | u32       | 20 bytes   |
      +-------+--------+-----------+-----------+-------+-------+-------+--- ... ---+--- ... ----+

      item:  hash u32 | log offset u64 | seconds after first ms u32 | item before it in the chain
      u32

Slots and items stand in blocks that are followed by their checksum (`rowblocks`). A slot holds the
number of the newest item whose `hash % slots` is the slot, counted from 1; 0 ends a chain. Items
are appended; header and slots are written once, when the file is full. Until then they follow from
the items, so that a crash can leave nothing inconsistent: the newest file counts as many items as
the checkpoint says, and the log is applied from there. All keys of a message stand in one file, so
that the file follows from the log, the log offset in its name and the number of its items.

    <data>/index/<log offset of the first item, 20 digits>

A hash is 32 bits wide and a time counts in seconds: lookups return candidates, and the
caller looks at the message. What is read from a file is as it was written, or an error: a block
that fails its checksum goes to `on_damage`. One thread.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from mq.errors import MqError, QueueDamaged
from mq.hashing import text_hash
from mq.store.batch import Batch
from mq.store.filepool import FilePool, PendingWrite
from mq.store.rowblocks import BLOCK_ROWS, CRC_BYTES, BadRows, RowBlocks, RowsDamaged, Tail
from mq.store.rowbuffer import RowBuffer, Rows
from mq.store.vfs import Vfs

_HEADER = struct.Struct("<QQQQII")
HEADER_BYTES = _HEADER.size + CRC_BYTES
_SLOT = np.dtype("<u4")
# Of a file that is not full yet: no block of it is the last one.
_ROWS_MAX = 1 << 32
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
        return item_blocks(self.slots, self.items).end_position(self.items)

    def encode(self) -> bytes:
        data = _HEADER.pack(*self)
        return data + crc32(data).to_bytes(CRC_BYTES, "little")

    @staticmethod
    def decode(data: bytes) -> Header | None:
        """None when it is not what was written."""
        if len(data) < HEADER_BYTES:
            return None
        fields, crc = data[: _HEADER.size], data[_HEADER.size : HEADER_BYTES]
        if crc32(fields) != int.from_bytes(crc, "little"):
            return None
        return Header._make(_HEADER.unpack(fields))


def slot_blocks(slots: int) -> RowBlocks:
    return RowBlocks(_SLOT, slots, HEADER_BYTES)


def item_blocks(slots: int, items: int = _ROWS_MAX) -> RowBlocks:
    """`items`: how many a full file has."""
    return RowBlocks(ITEM, items, slot_blocks(slots).end_position(slots))


class Item(NamedTuple):
    hash: int
    log_offset: int
    seconds: int
    before: int


class IndexPosition(NamedTuple):
    """Extent of the index: the full files, and the newest one with its items."""

    full: tuple[str, ...] = ()
    newest: str = ""
    items: int = 0
    first_ms: int = 0
    tail_crc: int = 0  # of the last block of items, while it is incomplete


class DamagedIndexFile(NamedTuple):
    """A file that is not what was written, and what it should hold."""

    path: str
    bad: BadRows  # as they were read
    blocks: RowBlocks  # of these rows
    tail: Tail
    header: Header  # as it is, or would be if the file were full
    written: int  # items
    is_full: bool


def no_rebuild(file: DamagedIndexFile) -> MqError:
    """The default `on_damage`: nothing rebuilds the file."""
    return QueueDamaged(
        f"{file.path} of the key index is not what was written. Stop the node and remove its file "
        "`checkpoint`: the index is rebuilt at start"
    )


def key_slot_hashes(key_hashes: npt.NDArray[np.uint64], topic_hash: int) -> npt.NDArray[np.uint32]:
    """The hashes that are stored of keys: the same key of two topics has two hashes."""
    mixed = key_hashes ^ np.uint64(topic_hash)
    return (mixed ^ (mixed >> np.uint64(32))).astype(np.uint32)


def batch_keys(
    batch: Batch, log_offset: int
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Hash and log offset of each key of a batch that is visible."""
    hashes = key_slot_hashes(batch.key_hashes, text_hash(batch.topic))
    return hashes, np.repeat(batch.frame_starts + log_offset, batch.key_counts)


class FillingFile:
    """A file that is being filled, or is full and not yet on disk: slots in memory, the newest
    items too.
    """

    def __init__(self, name: str, slot_count: int, first_ms: int, first_log_offset: int) -> None:
        self.name = name
        self.first_ms = self.last_ms = first_ms
        self.first_log_offset = self.last_log_offset = first_log_offset
        self.slots = np.zeros(slot_count, _SLOT)
        self.newest = RowBuffer(ITEM, 0)
        self.blocks = item_blocks(slot_count)
        self.tail_crc = 0  # of what is written

    @property
    def count(self) -> int:
        return self.newest.end

    @property
    def written(self) -> int:
        return self.newest.start

    @property
    def written_tail(self) -> Tail:
        return Tail(self.written, self.tail_crc)

    def tail(self) -> Tail:
        """With all items."""
        block = self.count - self.count % BLOCK_ROWS
        done = self.written_tail if self.written >= block else Tail(block, 0)
        return self.blocks.encode(self.newest.read, done, self.count)[1]

    def item_writes(self, path: str) -> list[PendingWrite]:
        """The writes of all items that are in memory only."""
        content, _ = self.blocks.encode(self.newest.read, self.written_tail, self.count)
        return [PendingWrite(path, self.blocks.position(self.written), content)] if content else []

    def closing_writes(self, path: str) -> list[PendingWrite]:
        """The writes that complete a full file: header, slots, the checksum of the last block."""
        slots, _ = slot_blocks(len(self.slots)).encode(
            lambda start, end: [self.slots[start:end]], Tail(0, 0), len(self.slots)
        )
        writes = [PendingWrite(path, 0, [self.header().encode(), *slots])]
        if self.count % BLOCK_ROWS:
            crc = self.tail().crc.to_bytes(CRC_BYTES, "little")
            writes.append(PendingWrite(path, self.blocks.position(self.count), [crc]))
        return writes

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
        self._files = FilePool(vfs, _OPEN_FILES_MAX)
        # The files on disk that are full, by name, oldest first; behind them those in memory, of
        # which the last one is being filled.
        self._full: dict[str, Header] = {}
        self._filling: list[FillingFile] = []
        # Told of a file that is not what was written; what the reader gets instead.
        self.on_damage: Callable[[DamagedIndexFile], MqError] = no_rebuild

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
                self._filling.append(FillingFile(name, self._slot_count, stored_at_ms, first))
            newest = self._filling[-1]
            room = self._item_count_max - newest.count
            if room < len(log_offsets):
                # The keys of a message stay together: no two files begin with the same one.
                room = int(np.searchsorted(log_offsets, log_offsets[room - 1], "right"))
            newest.add(hashes[:room], log_offsets[:room], stored_at_ms)
            hashes, log_offsets = hashes[room:], log_offsets[room:]

    @property
    def pending_bytes(self) -> int:
        return sum(filling.count - filling.written for filling in self._filling) * ITEM_BYTES

    def pending_writes(self) -> list[PendingWrite]:
        """The writes that bring the files up to `position`: items, and slots and header of full
        files.
        """
        writes: list[PendingWrite] = []
        for filling in self._filling:
            path = self._path(filling.name)
            writes += filling.item_writes(path)
            if self._is_full(filling):
                writes += filling.closing_writes(path)
        return writes

    def set_written(self, position: IndexPosition) -> None:
        """`pending_writes` are written up to this position."""
        while self._filling and self._filling[0].name in position.full:
            filling = self._filling.pop(0)
            self._full[filling.name] = filling.header()
        if self._filling and self._filling[0].name == position.newest:
            newest = self._filling[0]
            newest.newest.drop_before(position.items)
            newest.tail_crc = position.tail_crc

    def _is_full(self, filling: FillingFile) -> bool:
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
                items = self._items_in_file(name, header)
                head = self._head(name, header, key_hash)
                yield from _walk(items, head, key_hash, header.first_ms, begin_ms, end_ms)

    def _head(self, name: str, header: Header, key_hash: int) -> int:
        """The slot of a full file: the number of the newest item of the chain."""
        at = key_hash % header.slots
        blocks, tail = slot_blocks(header.slots), Tail(header.slots, 0)
        rows = self._rows(name, blocks, at, tail, header)
        return int(rows[0])

    def _items_of(self, filling: FillingFile) -> Callable[[int], Item]:
        def item(number: int) -> Item:
            if number <= filling.written:
                rows = self._rows(filling.name, filling.blocks, number - 1, filling.written_tail)
            else:
                [rows] = filling.newest.read(number - 1, number)
            return Item._make(rows[0].item())

        return item

    def _items_in_file(self, name: str, header: Header) -> Callable[[int], Item]:
        blocks, tail = item_blocks(header.slots, header.items), Tail(header.items, 0)

        def item(number: int) -> Item:
            return Item._make(self._rows(name, blocks, number - 1, tail, header)[0].item())

        return item

    def _rows(
        self, name: str, blocks: RowBlocks, row: int, tail: Tail, header: Header | None = None
    ) -> Rows:
        """One row of a file, which is full if it has a header. Raises what `on_damage` gives."""
        path = self._path(name)
        try:
            return blocks.read(self._files.get(path), row, row + 1, tail)
        except RowsDamaged as damaged:
            bad = damaged.bad
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EIO):
                raise
            bad = BadRows(row, row + 1)
        self._files.forget(path)  # a file that was removed or replaced is opened again
        place = path, bad, blocks, tail
        if header is not None:
            raise self.on_damage(DamagedIndexFile(*place, header, header.items, is_full=True))
        filling = next(one for one in self._filling if one.name == name)
        file = DamagedIndexFile(*place, filling.header(), filling.written, is_full=False)
        raise self.on_damage(file)

    # -- start, retention, end --------------------------------------------------------------------

    def position(self) -> IndexPosition:
        in_memory = [filling for filling in self._filling if self._is_full(filling)]
        full = (*self._full, *(filling.name for filling in in_memory))
        if len(in_memory) == len(self._filling):
            return IndexPosition(full)
        newest = self._filling[-1]
        return IndexPosition(full, newest.name, newest.count, newest.first_ms, newest.tail().crc)

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
            size = item_blocks(self._slot_count).end_position(position.items)
            if (self._vfs.file_size(self._path(position.newest)) or 0) < size:
                return False
            filling = self._relinked(position)
            if filling is None:
                return False
            self._filling = [filling]
        return True

    def _header(self, name: str) -> Header | None:
        """The header of a full file; None if the file is not full."""
        size = self._vfs.file_size(self._path(name)) or 0
        if size < HEADER_BYTES:
            return None
        header = Header.decode(self._files.get(self._path(name)).pread(HEADER_BYTES, 0))
        return header if header is not None and header.file_bytes <= size else None

    def _relinked(self, position: IndexPosition) -> FillingFile | None:
        """Slots from items, a block at a time. None when the items are not those that were written:
        with another number of slots than now they stand elsewhere and make other chains.
        """
        first = int(position.newest)
        filling = FillingFile(position.newest, self._slot_count, position.first_ms, first)
        file = self._files.get(self._path(position.newest))
        tail = Tail(position.items, position.tail_crc)
        for start in range(0, position.items, _READ_ITEMS):
            end = min(start + _READ_ITEMS, position.items)
            try:
                items = filling.blocks.read(file, start, end, tail)
            except RowsDamaged:
                return None
            before = filling.link(items["hash"] % np.uint32(self._slot_count), start + 1)
            is_other = start == 0 and int(items["log_offset"][0]) != first
            if is_other or not np.array_equal(before, items["before"]):
                return None
            filling.last_log_offset = int(items["log_offset"][-1])
            filling.last_ms = filling.first_ms + int(items["seconds"][-1]) * 1000 + 999
        filling.newest = RowBuffer(ITEM, position.items)
        filling.tail_crc = position.tail_crc
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
        number = item.before
