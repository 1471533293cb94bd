"""The CommitLog as Raft reads it: indexes and terms, looked up and never loaded.

Entries leave as regions, bytes as they stand in a segment. What may be counted or applied is
`durable_index`: the last synced entry, or the last entry at all in async flush mode. Nothing here
writes: the node does, and `refresh` follows.
"""

from __future__ import annotations

from mq.errors import MessagesDamaged
from mq.logging import get_logger
from mq.store.commitlog import CommitLog
from mq.store.format import HEADER_BYTES, EntryHeader, Kind, decode_header
from mq.store.logreader import Region
from mq.store.scan import check_entries

log = get_logger(__name__)

FIRST_INDEX = 1
VERIFY_BYTES = 1 << 20


class RaftLog:
    def __init__(self, commitlog: CommitLog, *, counts_unsynced: bool = False) -> None:
        """Everything that was found in the log is made durable first: the process that wrote it may
        have died before its sync.
        """
        self.commitlog = commitlog
        self._counts_unsynced = counts_unsynced
        self._sent: Region | None = None
        self._sent_place = (0, 0, 0, 0)
        commitlog.sync()
        self.last_index, self.last_term = commitlog.last_index, commitlog.last_term
        # All entries from here on are of the last term.
        self._last_term_since = self.last_index
        self.durable_index = 0
        self.refresh_durable(commitlog.durable_index)

    @property
    def first_index(self) -> int:
        return self.commitlog.first_index

    def refresh(self, *, was_truncated: bool = False) -> None:
        """After the log was truncated or has grown, which is not synced."""
        commitlog = self.commitlog
        last_term, self.last_index = commitlog.last_term, commitlog.last_index
        if was_truncated or last_term != self.last_term:
            self.last_term, self._last_term_since = last_term, self.last_index
        if self._counts_unsynced:
            self.durable_index = self.last_index
        elif was_truncated:
            self.durable_index = commitlog.durable_index

    def refresh_durable(self, synced_index: int) -> None:
        """After a sync up to this entry."""
        self.durable_index = self.last_index if self._counts_unsynced else synced_index

    def term_at(self, raft_index: int) -> int:
        """Mostly asked for the newest entries, which are of one term: those are not looked up."""
        if self._last_term_since <= raft_index <= self.last_index:
            return self.last_term
        return self.commitlog.term_at(raft_index)

    def has(self, raft_index: int, term: int) -> bool:
        is_here = self.first_index <= raft_index <= self.last_index
        return is_here and self.term_at(raft_index) == term

    def region(self, raft_index: int, bytes_max: int) -> Region:
        """Entries to be sent. Followers are mostly at the same place: the second one gets what was
        read for the first.
        """
        log = self.commitlog
        place = raft_index, self.last_index, self.last_term, log.mends
        if self._sent is None or self._sent_place != place:
            self._sent, self._sent_place = log.region(raft_index, bytes_max), place
        return self._sent

    def verify(self, raft_index: int) -> None:
        """Checks whether what would be sent from here on is what was written. If it is not, the
        CommitLog has recorded the damage when this returns, and it is mended in the background.
        """
        raft_index = max(raft_index, self.first_index)
        if raft_index <= self.last_index:
            region = self.commitlog.region(raft_index, VERIFY_BYTES)
            try:
                for _ in self.commitlog.entries(region.first_index, region.last_index + 1):
                    pass
            except MessagesDamaged as error:
                log.warning("a follower waits for entries that are damaged here", error=str(error))

    @staticmethod
    def check(body: memoryview, prev_index: int, prev_term: int) -> None:
        """MalformedEntries unless these are intact entries that may follow such a one."""
        check_entries(body, 0, EntryHeader(0, Kind.NOOP, 0, prev_index, prev_term, 0))

    def known_part(self, body: memoryview, prev_index: int, prev_term: int) -> tuple[int, int, int]:
        """The part of a region behind `prev_index` that the log has already: its size, and index
        and term of its last entry.
        """
        position, last_index = 0, self.last_index
        while prev_index < last_index:
            header = decode_header(body, position)
            if header is None or not self.has(header.raft_index, header.term):
                break
            position += HEADER_BYTES + header.length
            prev_index, prev_term = header.raft_index, header.term
        return position, prev_index, prev_term
