"""Checks the files of queues and key index against their checksums, without touching them: for
`mq dump --verify`, also beside a running broker.

What the checkpoint speaks of is checked. Items of the index file that is being filled are not: how
many slots stand before them is not on the disk, and a start checks them. Sizes of queue files
follow from their names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mq.store.checkpoint import DerivedState
from mq.store.consumequeue import UNIT, SavedQueue
from mq.store.examine import Problem
from mq.store.keyindex import HEADER_BYTES, Header, item_blocks, slot_blocks
from mq.store.rowblocks import BLOCK_ROWS, RowBlocks, Tail
from mq.store.vfs import File, Vfs

_ROWS_MAX = 1 << 32


def derived_problems(vfs: Vfs, directory: str, saved: DerivedState) -> Iterator[Problem]:
    """Files that are gone by now are passed over: a running broker drops them, and a start notices
    what is missing.
    """
    for queue in saved.queues:
        if queue.start < queue.end:
            folder = f"{directory}/consumequeue/{queue.topic}/{queue.queue_id}"
            yield from _queue_problems(vfs, folder, queue)
    for name in saved.key_index.full:
        path = f"{directory}/index/{name}"
        with (
            contextlib.suppress(FileNotFoundError),
            contextlib.closing(vfs.open(path, read_only=True)) as file,
        ):
            yield from _index_problems(file, path)


def _queue_problems(vfs: Vfs, folder: str, queue: SavedQueue) -> Iterator[Problem]:
    firsts = [int(name) for name in vfs.list_dir(folder)]
    for first, after in zip(firsts, [*firsts[1:], _ROWS_MAX], strict=True):
        rows = min(after, queue.end) - first
        if rows <= 0 or first + rows <= queue.start:
            continue  # left over from before a crash, or not read any longer
        # The last block of a full file has its checksum behind it, whatever its length.
        is_full = after <= queue.end or (after == _ROWS_MAX and not queue.tail_crc)
        blocks = RowBlocks(UNIT, rows if is_full and rows % BLOCK_ROWS else _ROWS_MAX)
        tail = Tail(rows, 0 if is_full else queue.tail_crc)
        path = f"{folder}/{first:020d}"
        with (
            contextlib.suppress(FileNotFoundError),
            contextlib.closing(vfs.open(path, read_only=True)) as file,
        ):
            for bad in blocks.bad(file, tail):
                if first + bad.end > queue.start:
                    reason = f"units {first + bad.first} to {first + bad.end - 1}"
                    yield _problem(path, blocks.position(bad.first), reason)


def _index_problems(file: File, path: str) -> Iterator[Problem]:
    header = Header.decode(file.pread(HEADER_BYTES, 0))
    if header is None:
        yield _problem(path, 0, "the header")
        return
    slots, items = slot_blocks(header.slots), item_blocks(header.slots, header.items)
    for blocks, rows, what in ((slots, header.slots, "slots"), (items, header.items, "items")):
        for bad in blocks.bad(file, Tail(rows, 0)):
            reason = f"{what} {bad.first} to {bad.end - 1}"
            yield _problem(path, blocks.position(bad.first), reason)


def _problem(path: str, position: int, what: str) -> Problem:
    return Problem(path, position, f"{what}: not what was written", is_damage=True)
