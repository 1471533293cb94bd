"""The two layers of `FaultyVfs`: what a running process sees, and what a power loss leaves of it.

Owns the content of files and the tree of names, each with its ordered list of unsynced changes.
Knows no handles, no errors to inject and no capacity. The rules are told in `faulty_vfs`.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

SECTOR_BYTES = 512


class Write(NamedTuple):
    position: int
    data: bytes

    def sectors(self) -> range:
        end = self.position + len(self.data)
        return range(self.position // SECTOR_BYTES, (end - 1) // SECTOR_BYTES + 1)

    def in_sector(self, sector: int) -> Write:
        start = max(self.position, sector * SECTOR_BYTES)
        end = (sector + 1) * SECTOR_BYTES
        return Write(start, self.data[start - self.position : end - self.position])


class Resize(NamedTuple):
    size: int


Change: TypeAlias = Write | Resize


def _size_after(change: Change, size: int) -> int:
    if isinstance(change, Write):
        return max(size, change.position + len(change.data))
    return change.size


def resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _apply(content: bytearray, change: Change) -> None:
    if isinstance(change, Resize):
        resize(content, change.size)
        return
    if change.position > len(content):
        resize(content, change.position)
    content[change.position : change.position + len(change.data)] = change.data


@dataclass(slots=True, eq=False)
class Inode:
    """A file without its name. `unsynced`, applied to `durable`, gives the length of `cached`."""

    cached: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[Change] = field(default_factory=list)
    # A failed sync left bytes in the cache that are neither durable nor in `unsynced`.
    dropped: bool = False
    # Tells a view that its snapshot is old.
    version: int = 0
    linked: bool = True
    handles: int = 0
    locked: bool = False
    durable_name: tuple[Directory, str] | None = None

    def change(self, change: Change) -> None:
        _apply(self.cached, change)
        self.unsynced.append(change)
        self.version += 1

    def sync(self) -> None:
        for change in self.unsynced:
            _apply(self.durable, change)
        self.unsynced.clear()

    def drop(self) -> None:
        """A failed sync: the bytes are clean though not durable, the length is still unsynced."""
        if not self.unsynced:
            return
        size, kept = len(self.durable), list[Change]()
        for change in self.unsynced:
            before, size = size, _size_after(change, size)
            if size != before:
                kept.append(Resize(size))
        self.unsynced, self.dropped = kept, True

    def settle(self, content: bytearray) -> None:
        """Both layers have this content and nothing is unsynced."""
        self.cached, self.durable = content, bytearray(content)
        self.unsynced.clear()
        self.dropped = False
        self.version += 1

    def flip_bit(self, position: int, bit: int) -> None:
        """In both layers and in the writes that are on their way from one to the other."""
        mask = 1 << bit
        self.cached[position] ^= mask
        self.version += 1
        if position < len(self.durable):
            self.durable[position] ^= mask
        for index, change in enumerate(self.unsynced):
            if isinstance(change, Write):
                at = position - change.position
                if 0 <= at < len(change.data):
                    data = bytearray(change.data)
                    data[at] ^= mask
                    self.unsynced[index] = Write(change.position, bytes(data))

    def crash(self, rng: random.Random, keep: float) -> None:
        if not self.unsynced and not self.dropped:
            return
        content = self.durable
        written_back, resized_by, length = self._survivors(rng, keep)
        for index, change in enumerate(self.unsynced):
            if isinstance(change, Write):
                for sector in change.sectors():
                    if written_back.get(sector, -1) >= index:
                        _apply(content, change.in_sector(sector))
            elif index <= resized_by:
                del content[change.size :]
            else:
                # The cut was lost, but not in the sectors that were written back after it.
                for sector in (s for s, last in written_back.items() if last > index):
                    start = max(change.size, sector * SECTOR_BYTES)
                    end = min(len(content), (sector + 1) * SECTOR_BYTES)
                    content[start:end] = bytes(max(0, end - start))
        resize(content, length)
        self.settle(content)

    def _survivors(self, rng: random.Random, keep: float) -> tuple[dict[int, int], int, int]:
        """After which change each sector was last written back, and the length, with its value.

        A sector holds all changes to it up to that one: a disk writes what the cache has.
        """
        written_back: dict[int, int] = {}
        resized_by, size = -1, len(self.durable)
        length = size
        for index, change in enumerate(self.unsynced):
            if isinstance(change, Write):
                for sector in change.sectors():
                    if rng.random() < keep:
                        written_back[sector] = index
            before, size = size, _size_after(change, size)
            if size != before and rng.random() < keep:
                length, resized_by = size, index
        return written_back, resized_by, length


@dataclass(slots=True, eq=False)
class Directory:
    entries: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)
    durable_name: tuple[Directory, str] | None = None

    def below(self) -> Iterator[Node]:
        """A directory comes before its content, and the receiver may change it."""
        directories = [self]
        while directories:
            for node in directories.pop().entries.values():
                yield node
                if isinstance(node, Directory):
                    directories.append(node)


Node: TypeAlias = Inode | Directory


class _NameChange(NamedTuple):
    """One create, replace or remove: atomic, durable when any directory of `scope` is synced."""

    names: tuple[tuple[Directory, str, Node | None], ...]
    scope: tuple[Directory, ...]

    def apply(self) -> None:
        for directory, name, node in self.names:
            if node is None:
                directory.durable.pop(name, None)
                continue
            # A file keeps to one name when one rename of it was lost and the next was not.
            if node.durable_name is not None:
                old_directory, old_name = node.durable_name
                if old_directory.durable.get(old_name) is node:
                    del old_directory.durable[old_name]
            directory.durable[name] = node
            node.durable_name = (directory, name)


class Names:
    """The tree of names below "/", which itself is always there."""

    def __init__(self) -> None:
        self.root = Directory()
        self._unsynced: list[_NameChange] = []

    def find(self, path: str) -> Node | None:
        node: Node = self.root
        for name in split(path):
            if isinstance(node, Inode):
                raise os_error(errno.ENOTDIR, path)
            child = node.entries.get(name)
            if child is None:
                return None
            node = child
        return node

    def file(self, path: str) -> Inode:
        node = self.find(path)
        if isinstance(node, Inode):
            return node
        raise os_error(errno.ENOENT if node is None else errno.EISDIR, path)

    def directory(self, path: str) -> Directory:
        node = self.find(path)
        if isinstance(node, Directory):
            return node
        raise os_error(errno.ENOENT if node is None else errno.ENOTDIR, path)

    def parent(self, path: str) -> tuple[Directory, str]:
        parent, _, name = path.rstrip("/").rpartition("/")
        if not name:
            raise os_error(errno.EISDIR, path)
        return self.directory(parent), name

    def link(self, parent: Directory, name: str, node: Node) -> None:
        parent.entries[name] = node
        self._unsynced.append(_NameChange(((parent, name, node),), (parent,)))

    def unlink(self, parent: Directory, name: str) -> Node:
        node = parent.entries.pop(name)
        # A removed directory can never be synced again: its names go with its own.
        scope = (parent, node) if isinstance(node, Directory) else (parent,)
        self._unsynced.append(_NameChange(((parent, name, None),), scope))
        return node

    def move(self, source: tuple[Directory, str], target: tuple[Directory, str]) -> None:
        node = source[0].entries.pop(source[1])
        target[0].entries[target[1]] = node
        names = ((*source, None), (*target, node))
        self._unsynced.append(_NameChange(names, (source[0], target[0])))

    def sync(self, directories: set[Directory]) -> None:
        due, rest = [], []
        # Backwards: a change of two directories takes along what came before it in the other one.
        for change in reversed(self._unsynced):
            if directories.isdisjoint(change.scope):
                rest.append(change)
            else:
                directories.update(change.scope)
                due.append(change)
        self._unsynced = rest[::-1]
        for change in reversed(due):
            change.apply()

    def crash(self, rng: random.Random, keep: float) -> None:
        for change in self._unsynced:
            if rng.random() < keep:
                change.apply()
        self._unsynced.clear()
        self.root.entries = dict(self.root.durable)
        for node in self.root.below():
            if isinstance(node, Directory):
                node.entries = dict(node.durable)


def split(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def os_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
