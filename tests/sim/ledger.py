"""The invariants of Raft, checked at every step against what all nodes ever did.

    election safety        at most one leader in a term
    log matching           an entry with the same index and term is the same everywhere, and so is
                           all that stands before it
    leader completeness    a new leader has every entry that was ever committed
    state machine safety   no two nodes apply different entries at an index
    durability             what is committed is durable on a majority of the members at that moment
    commit                 never goes back while a process lives, and never changes
    acknowledged           what a proposer was told is committed, is

An entry is known by its term and its checksum.
"""

from __future__ import annotations

from typing import NamedTuple


class Violation(BaseException):
    """An invariant does not hold. No Exception: a node logs those of its callers and goes on."""


class Known(NamedTuple):
    crc: int
    prev_term: int | None  # None where a log starts


class Ledger:
    def __init__(self) -> None:
        self.leaders: dict[int, str] = {}
        self.entries: dict[tuple[int, int], Known] = {}  # (raft index, term)
        self.committed: dict[int, int] = {}  # raft index -> term
        self.applied: dict[int, tuple[int, int]] = {}  # raft index -> term, crc
        self.acknowledged: dict[int, int] = {}  # raft index -> term

    def lead(self, name: str, term: int) -> bool:
        """Whether this is news."""
        before = self.leaders.setdefault(term, name)
        if before != name:
            raise Violation(f"election safety: {before} and {name} lead in term {term}")
        return True

    def entry(self, raft_index: int, term: int, crc: int, prev_term: int | None) -> None:
        key = (raft_index, term)
        known = self.entries.get(key)
        if known is None:
            self.entries[key] = Known(crc, prev_term)
            return
        if known.crc != crc:
            raise Violation(f"log matching: two entries {raft_index} of term {term}")
        if None not in (known.prev_term, prev_term) and known.prev_term != prev_term:
            raise Violation(
                f"log matching: entry {raft_index} of term {term} follows {known.prev_term} "
                f"here and {prev_term} there"
            )
        if known.prev_term is None and prev_term is not None:
            self.entries[key] = Known(crc, prev_term)

    def commit(self, raft_index: int, term: int) -> bool:
        """Whether this is news."""
        before = self.committed.setdefault(raft_index, term)
        if before != term:
            raise Violation(
                f"entry {raft_index} was committed with term {before} and now with {term}"
            )
        return True

    def apply(self, raft_index: int, term: int, crc: int) -> None:
        before = self.applied.setdefault(raft_index, (term, crc))
        if before != (term, crc):
            raise Violation(f"state machine safety: entry {raft_index}: {before}, {(term, crc)}")

    def acknowledge(self, raft_index: int, term: int) -> None:
        self.acknowledged[raft_index] = term
        if self.committed.get(raft_index) != term:
            raise Violation(f"entry {raft_index} of term {term} is acknowledged, not committed")

    def forget(self, from_index: int) -> None:
        """Forgets entries that were lost legally: in async flush mode, when a majority loses
        power.
        """
        for known in (self.committed, self.applied, self.acknowledged):
            for index in [index for index in known if index >= from_index]:
                del known[index]
