"""Sources of a backup: the running nodes of a broker set, or the directory of a stopped one.

Bytes come in chunks of one segment, cut anywhere. A source checks nothing of them.
"""

from __future__ import annotations

import bisect
import contextlib
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mq.errors import DataDirectoryInUse, LogDamaged, MqError, Unreachable, WrongDataDirectory
from mq.store import identity
from mq.store.examine import Look, examine, judge, link, segment_bases
from mq.store.recovery import ADVICE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from mq.client import Admin
    from mq.store.vfs import Vfs

CHUNK_BYTES = 3 << 20


class Chunk(NamedTuple):
    """`log_offset` is greater than asked for when the source has dropped what stood before it. No
    bytes: the source ends there, or before.
    """

    log_offset: int
    data: bytes
    end_offset: int  # of all that the source has


class Source(Protocol):
    @property
    def name(self) -> str:
        """For people."""
        ...

    @property
    def cluster(self) -> str: ...

    @property
    def broker_set(self) -> str: ...

    def read(self, log_offset: int, bytes_max: int = CHUNK_BYTES) -> Chunk: ...


class RunningNodes:
    """The nodes of a set, in the order in which they are asked: one that does not answer, or has
    dropped what is asked for, leaves it to the next one.
    """

    def __init__(
        self, admin: Admin, cluster: str, broker_set: str, nodes: Sequence[tuple[str, str]]
    ) -> None:
        """`nodes`: name and address of each."""
        self.cluster = cluster
        self.broker_set = broker_set
        self._admin = admin
        self._nodes = list(nodes)

    @property
    def name(self) -> str:
        """The node that is asked first."""
        return f"{self._nodes[0][0]} at {self._nodes[0][1]}"

    def read(self, log_offset: int, bytes_max: int = CHUNK_BYTES) -> Chunk:
        """Raises Unreachable if no node answers."""
        found: Chunk | None = None
        troubles = []
        for node in list(self._nodes):
            try:
                answer = self._admin.read_log(node[1], log_offset, bytes_max)
            except MqError as error:
                if not error.retryable:
                    raise
                troubles.append(f"{node[0]}: {error}")
                self._ask_last(node)
                continue
            chunk = Chunk(answer.log_offset, answer.data, answer.end_offset)
            if chunk.data and log_offset in (0, chunk.log_offset):
                return chunk
            found = _better(found, chunk)
        if found is None:
            raise Unreachable(
                f"no node of broker set {self.broker_set} gives its log: {'; '.join(troubles)}"
            )
        return found

    def _ask_last(self, node: tuple[str, str]) -> None:
        self._nodes.remove(node)
        self._nodes.append(node)


def _better(one: Chunk | None, other: Chunk) -> Chunk:
    """With bytes before without, then the one that starts earlier."""
    if one is None or (bool(other.data), -other.log_offset) > (bool(one.data), -one.log_offset):
        return other
    return one


class StoppedNode:
    """The data directory of a node that does not run, locked meanwhile. Nothing in it is changed.

    All intact entries are taken: which of the last ones were committed only the other nodes know.
    """

    def __init__(self, vfs: Vfs, data: str) -> None:
        """Raises WrongDataDirectory, DataDirectoryInUse, LogDamaged."""
        found = identity.read(vfs, data)
        if found is None:
            raise WrongDataDirectory(
                f"{data} is no data directory of a node: it has no {identity.FILE_NAME}"
            )
        self.cluster, self.broker_set, node = found
        self.name = f"{node} in {data}"
        self._vfs = vfs
        try:
            self._lock = vfs.lock(f"{data}/{identity.LOCK_NAME}")
        except BlockingIOError:
            raise DataDirectoryInUse(
                f"{data} is in use: stop the node, or back up the running one with --server"
            ) from None
        try:
            self._looks = _kept(vfs, f"{data}/commitlog")
        except BaseException:
            self._lock.close()
            raise

    def read(self, log_offset: int, bytes_max: int = CHUNK_BYTES) -> Chunk:
        log_offset = max(log_offset, self._looks[0].base)
        end_offset = self._looks[-1].end_log_offset
        if log_offset >= end_offset:
            return Chunk(log_offset, b"", end_offset)
        at = bisect.bisect_right(self._looks, log_offset, key=lambda look: look.base) - 1
        look = self._looks[at]
        wanted = min(bytes_max, look.end_log_offset - log_offset)
        with contextlib.closing(self._vfs.open(look.path, read_only=True)) as file:
            data = file.pread(wanted, log_offset - look.base)
        if len(data) < wanted:
            position = log_offset - look.base + len(data)
            raise LogDamaged(look.path, position, "the file is too short", ADVICE)
        return Chunk(log_offset, data, end_offset)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()


def _kept(vfs: Vfs, directory: str) -> list[Look]:
    """The segments that a start of the node would keep."""
    bases = segment_bases(vfs, directory) if vfs.exists(directory) else []
    looks = [examine(vfs, directory, base, check=base == bases[-1]) for base in bases]
    for look in looks:
        if look.error is not None:
            raise LogDamaged(look.path, look.scan.end, look.scan.problem, ADVICE)
    link(looks)
    for problem in judge(looks):
        if problem.is_damage:
            raise LogDamaged(problem.path, problem.position, problem.reason, ADVICE)
        looks = [look for look in looks if look.path <= problem.path]
    looks = [look for look in looks if look.scan.count]
    if not looks:
        raise WrongDataDirectory(f"{directory} has no entries: there is nothing to back up")
    return looks
