"""The door to PySyncObj 0.3.17: what of it we use, by name, and how it is reached.

It has no public way to bring a journal, a clock or a source of randomness of one's own. They are
module globals of `pysyncobj.syncobj`, and this is the only place that touches them. What `Engine`
relies on beyond that are attributes of `SyncObj`; `require` fails at start, by name, when another
version does not have one.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import random
import time
from collections.abc import Callable, Iterable, Iterator
from zlib import crc32

from pysyncobj import syncobj
from pysyncobj.journal import Journal as PySyncObjJournal
from pysyncobj.node import Node as PySyncObjNode
from pysyncobj.syncobj import SyncObj, SyncObjConf
from pysyncobj.transport import Transport as PySyncObjTransport

__all__ = [
    "CALLED",
    "NO_OP",
    "NoSnapshots",
    "Peer",
    "PySyncObjJournal",
    "PySyncObjTransport",
    "Role",
    "SyncObj",
    "SyncObjConf",
    "peer_of",
    "require",
    "virtual_time",
]

# Of `SyncObj`, called and not replaced by `Engine`.
CALLED = (
    "_SyncObj__onReadonlyNodeConnected",
    "_SyncObj__onReadonlyNodeDisconnected",
    "_SyncObj__setCurrentTerm",
    "_SyncObj__setState",
    "_SyncObj__updateClusterConfiguration",
)

# The command that a new leader writes.
NO_OP = bytes([syncobj._COMMAND_TYPE.NO_OP])  # noqa: SLF001 - see above


class Role(enum.IntEnum):
    """PySyncObj's numbers."""

    FOLLOWER = 0
    CANDIDATE = 1
    LEADER = 2


class Peer(PySyncObjNode):  # type: ignore[misc]
    """A node by its id. Its hash is the same in every process: PySyncObj walks sets of these, and a
    simulation has to take the same walk each time.
    """

    def __init__(self, id: str) -> None:  # noqa: A002 - PySyncObj's name
        super().__init__(id)
        self._hash = crc32(id.encode())

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Peer) and self.id == other.id)


@functools.lru_cache(maxsize=256)
def peer_of(node_id: str) -> Peer:
    """One object an id, while it is in use: it is a key of most of PySyncObj's tables."""
    return Peer(node_id)


class NoSnapshots:
    """In the place of PySyncObj's serializer."""

    def cancelTransmisstion(self, node: Peer) -> None:  # noqa: N802 - sic
        pass

    def getTransmissionData(self, node: Peer) -> None:  # noqa: ARG002, N802
        return None


_create_journal = syncobj.createJournal


def _journal(journal_or_path: object) -> object:
    """A journal of ours comes in where PySyncObj expects the path of a file."""
    if isinstance(journal_or_path, PySyncObjJournal):
        return journal_or_path
    return _create_journal(journal_or_path)


syncobj.createJournal = _journal
# Its own goes a longer way to the same clock.
syncobj.monotonicTime = time.monotonic


def require(instance: object, names: Iterable[str]) -> None:
    """Raises when PySyncObj does not have what we rely on."""
    missing = sorted(name for name in names if not hasattr(instance, name))
    if missing:
        raise RuntimeError(
            f"this PySyncObj ({syncobj.VERSION}) has no {', '.join(missing)}: "
            "mq.raft needs version 0.3.17"
        )


@contextlib.contextmanager
def virtual_time(now_s: Callable[[], float], rng: random.Random) -> Iterator[None]:
    """For simulations: all engines of this process take time and randomness from here."""
    before = syncobj.monotonicTime, syncobj.random
    syncobj.monotonicTime, syncobj.random = now_s, rng
    try:
        yield
    finally:
        syncobj.monotonicTime, syncobj.random = before


def now_s() -> float:
    """The time that PySyncObj sees."""
    return syncobj.monotonicTime()  # type: ignore[no-any-return]


def random_share() -> float:
    """A number in [0, 1) from the source that PySyncObj uses."""
    return float(syncobj.random.random())
