"""The CommitLog as PySyncObj sees it: a list of (command, raft index, term), never loaded.

Only indexes and terms come out of it; entries leave as `Region`s, bytes as they stand in a segment,
and come in the same way. Term and vote go to the `VoteFile` before PySyncObj may send anything that
follows from them. What may be counted or shown is `durable_index`: the last synced entry, or the
last entry at all in async flush mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, overload

from mq.errors import MessagesDamaged
from mq.logging import get_logger
from mq.raft.hooks import NO_OP, PySyncObjJournal
from mq.raft.vote import VoteFile
from mq.store.commitlog import CommitLog, NewEntry
from mq.store.format import HEADER_BYTES, EntryHeader, Kind, decode_header
from mq.store.logreader import Region
from mq.store.scan import check_entries

log = get_logger(__name__)

VERIFY_BYTES = 1 << 20


class Slot(NamedTuple):
    """What PySyncObj calls an entry. `command` is empty, except for regions on their way."""

    command: bytes | memoryview
    raft_index: int
    term: int


class Slots:
    """A range of entries, looked up when asked for."""

    def __init__(self, journal: Journal, start: int, end: int) -> None:
        self._journal = journal
        self._start = start
        self._end = max(start, end)

    def __len__(self) -> int:
        return self._end - self._start

    @overload
    def __getitem__(self, item: int) -> Slot: ...
    @overload
    def __getitem__(self, item: slice) -> Slots: ...
    def __getitem__(self, item: int | slice) -> Slot | Slots:
        if isinstance(item, slice):
            start, stop, _ = item.indices(len(self))
            return Slots(self._journal, self._start + start, self._start + stop)
        raft_index = self._start + item if item >= 0 else self._end + item
        if not self._start <= raft_index < self._end:
            raise IndexError(item)
        return self._journal.slot(raft_index)

    def __iter__(self) -> Iterator[Slot]:
        return map(self._journal.slot, range(self._start, self._end))


class Journal(PySyncObjJournal):  # type: ignore[misc]
    def __init__(
        self,
        log: CommitLog,
        vote: VoteFile,
        *,
        applied_index: int,
        now_ms: Callable[[], int],
        counts_unsynced: bool = False,
        on_truncate: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Everything that was found in the log is made durable first: the process that wrote it may
        have died before it did. `on_truncate` is called before entries go.
        """
        self.log = log
        self.vote = vote
        self._applied_index = applied_index
        self._now_ms = now_ms
        self._counts_unsynced = counts_unsynced
        self._on_truncate = on_truncate
        self._sent: Region | None = None
        self._sent_place = (0, 0, 0, 0)
        # All entries from here on are of the last term.
        self._last_term, self._last_term_since = log.last_term, log.last_index
        self._first_slot = Slot(b"", 0, 0)
        self.durable_index = 0
        log.sync()
        self.refresh_durable()

    # -- ours --------------------------------------------------------------------------------------

    def refresh_durable(self) -> None:
        """After a sync or a truncation."""
        log = self.log
        self.durable_index = log.last_index if self._counts_unsynced else log.durable_index

    def note_growth(self) -> None:
        """Entries were added; they are not synced."""
        log = self.log
        if log.last_term != self._last_term:
            self._last_term, self._last_term_since = log.last_term, log.last_index
        if self._counts_unsynced:
            self.durable_index = log.last_index

    def slot(self, raft_index: int) -> Slot:
        return Slot(b"", raft_index, self.term_at(raft_index))

    def term_at(self, raft_index: int) -> int:
        """Mostly asked for the newest entries, which are of one term: that is not looked up."""
        if self._last_term_since <= raft_index <= self.log.last_index:
            return self.log.last_term
        return self.log.term_at(raft_index)

    def has(self, raft_index: int, term: int) -> bool:
        log = self.log
        return log.first_index <= raft_index <= log.last_index and self.term_at(raft_index) == term

    def region(self, raft_index: int, bytes_max: int) -> Region:
        """Entries to be sent. Followers are mostly at the same place: the second one gets what was
        read for the first.
        """
        place = raft_index, self.log.last_index, self.log.last_term, self.log.mends
        if self._sent is None or self._sent_place != place:
            self._sent, self._sent_place = self.log.region(raft_index, bytes_max), place
        return self._sent

    def verify(self, raft_index: int) -> None:
        """Looks whether what would be sent from here on is what was written. If not, the log has
        reported it when this returns, and its owner mends it: the follower gets it then.
        """
        raft_index = max(raft_index, self.log.first_index)
        if raft_index <= self.log.last_index:
            region = self.log.region(raft_index, VERIFY_BYTES)
            try:
                for _ in self.log.entries(region.first_index, region.last_index + 1):
                    pass
            except MessagesDamaged as error:
                log.warning("a follower waits for entries that are damaged here", error=str(error))

    @staticmethod
    def end_of(body: memoryview) -> tuple[int, int]:
        """Raft index and term of the last entry of a region; (0, 0) when it is none."""
        position, last = 0, (0, 0)
        while position < len(body):
            header = decode_header(body, position)
            if header is None:
                return 0, 0
            last = header.raft_index, header.term
            position += HEADER_BYTES + header.length
        return last

    @staticmethod
    def check(body: memoryview, prev_index: int, prev_term: int) -> None:
        """MalformedEntries unless these are intact entries that may follow such a one."""
        check_entries(body, 0, EntryHeader(0, Kind.NOOP, 0, prev_index, prev_term, 0))

    def known_part(self, body: memoryview, prev_index: int, prev_term: int) -> tuple[int, int, int]:
        """How much of a region behind `prev_index` the log has already: bytes, and the raft index
        and term of the last such entry.
        """
        position = 0
        while prev_index < self.log.last_index:
            header = decode_header(body, position)
            if header is None or not self.has(header.raft_index, header.term):
                break
            position += HEADER_BYTES + header.length
            prev_index, prev_term = header.raft_index, header.term
        return position, prev_index, prev_term

    # -- PySyncObj's -------------------------------------------------------------------------------

    def add(self, command: bytes | memoryview, idx: int, term: int) -> None:  # noqa: ARG002
        """Our own no-op, or the region that ends with entry `idx`."""
        if command == NO_OP:
            self.log.append([NewEntry(Kind.NOOP, term, self._now_ms(), [])])
        else:
            self.log.extend(command)
        self.note_growth()

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N802, N803 - PySyncObj's name
        self.truncate(self.log.first_index + entryFrom)

    def truncate(self, from_index: int) -> None:
        self._on_truncate(from_index)
        log = self.log
        log.truncate(from_index)
        self._last_term, self._last_term_since = log.last_term, log.last_index
        self.refresh_durable()

    def clear(self) -> None:
        """PySyncObj would do this for a snapshot, which we never send."""
        raise RuntimeError("the log is never cleared: a follower too far behind starts over")

    deleteEntriesTo = clear  # noqa: N815 - PySyncObj's name

    @overload
    def __getitem__(self, item: int) -> Slot: ...
    @overload
    def __getitem__(self, item: slice) -> Slots: ...
    def __getitem__(self, item: int | slice) -> Slot | Slots:
        log = self.log
        if item == -1:
            return Slot(b"", log.last_index, log.last_term)
        if item == 0 and log.last_index >= log.first_index:
            if self._first_slot.raft_index != log.first_index:
                self._first_slot = self.slot(log.first_index)
            return self._first_slot
        return Slots(self, log.first_index, log.last_index + 1)[item]

    def __len__(self) -> int:
        return self.log.last_index - self.log.first_index + 1

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:  # noqa: N802, N803
        """Durable when it returns."""
        self.vote.save(term, votedForNodeId, must_catch_up=self.vote.must_catch_up)

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self.vote.term

    def getVotedForNodeId(self) -> str | None:  # noqa: N802
        return self.vote.voted_for

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N802, N803
        """Not kept: what is committed is learned again from the leader, and what was applied is
        known from the store's checkpoint.
        """

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        """What was applied is committed, as far as the log still has it."""
        return min(self._applied_index, self.log.last_index)

    def _destroy(self) -> None:
        """The files belong to the store."""
