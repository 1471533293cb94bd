"""Power losses at random moments, several in a life: what was durable is there, byte for byte, what
is recovered is a prefix of what was appended, and no crash is ever mistaken for damage.

The disk of these tests keeps each unsynced sector, length and name by a coin of its own. A failure
names its seed; `run(seed, ...)` replays it.
"""

from __future__ import annotations

import random

import pytest

from mq.errors import SegmentFull, StorageFailed
from mq.store.commitlog import CommitLog, NewEntry
from mq.store.format import Kind
from tests.support.faulty_vfs import Operation
from tests.support.logs import DIRECTORY, Content, content, disk, open_log

SEEDS = range(150)
GENERATIONS = 5
# A failed write leaves a part of it. Half of the mark in an `.idx`, which is less than a sector,
# cannot come from a crash: it is taken for damage.
FAULTS: list[tuple[Operation, str]] = [
    ("pwritev", ".log"),
    ("sync", ""),
    ("truncate", ""),
    ("allocate", ""),
    ("open", ""),
    ("sync_dir", ""),
]
PAYLOAD_BYTES = (0, 1, 30, 30, 30, 200, 700, 3000)


class Life:
    """One node's log and what it must hold: `entries`, of which those up to `durable` survive."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.vfs = disk(seed)
        self.entries: list[Content] = []
        self.durable = 0
        # What the log holds when the call that is under way succeeds.
        self.wanted: list[Content] = []
        self.log = self.reopen()

    def reopen(self) -> CommitLog:
        return open_log(
            self.vfs,
            segment_bytes=self.rng.choice([2048, 4096, 20_000]),
            verify_bytes=self.rng.choice([0, 5000, 1 << 30]),
            zero_ahead=self.rng.random() < 0.5,
        )

    def step(self) -> None:
        action = self.rng.choices(
            [self.append, self.sync, self.roll, self.truncate, self.drop], [8, 4, 2, 1, 1]
        )[0]
        action()
        self.entries = self.wanted

    def append(self) -> None:
        if not self.entries:
            self.roll()
            return
        count = self.rng.randint(0, 4)
        news = sorted((self._new(Kind.MESSAGES) for _ in range(count)), key=lambda e: e.term)
        self._want(news)
        try:
            self.log.append(news)
        except SegmentFull:
            self.wanted = self.entries
            self.roll()

    def roll(self) -> None:
        entry = self._new(Kind.CHECKPOINT)
        self._want([entry])
        self.log.roll(entry)

    def sync(self) -> None:
        self.log.sync()
        self.durable = self.log.last_index

    def truncate(self) -> None:
        if len(self.entries) > 1:
            from_index = self.rng.randint(self.entries[1].raft_index, self.entries[-1].raft_index)
            self.durable = min(self.durable, from_index - 1)
            self.wanted = [entry for entry in self.entries if entry.raft_index < from_index]
            self.log.truncate(from_index)

    def drop(self) -> None:
        count = self.rng.randint(0, 3)
        firsts = [info.first_index for info in self.log.segments()]
        if count and len(firsts) > 1:
            first = firsts[min(count, len(firsts) - 1)]
            self.wanted = [entry for entry in self.entries if entry.raft_index >= first]
            self.log.drop_front(count)

    def _new(self, kind: Kind) -> NewEntry:
        last = self.entries[-1] if self.entries else Content(0, 1, kind, 1000, b"")
        payload = self.rng.randbytes(self.rng.choice(PAYLOAD_BYTES))
        now_ms = last.stored_at_ms + self.rng.randint(0, 9)
        # Every entry is unlike all others, also when it takes the place of one that was cut.
        now_ms += 100 * self.rng.randint(0, 1 << 20)
        return NewEntry(kind, last.term + self.rng.randint(0, 9) // 9, now_ms, [payload])

    def _want(self, news: list[NewEntry]) -> None:
        self.wanted = list(self.entries)
        time = self.entries[-1].stored_at_ms if self.entries else 0
        for kind, term, now_ms, payload in news:
            time = max(time, now_ms)
            index = self.wanted[-1].raft_index + 1 if self.wanted else 1
            self.wanted.append(Content(index, term, kind, time, bytes(payload[0])))

    def check_recovered(self) -> None:
        """The log is a prefix of what it was before or after the last call, and all durable is
        there.
        """
        found = content(self.log)
        assert self.log.last_index >= self.durable, "durable entries are lost"
        assert self.log.durable_offset == self.log.end_offset
        assert self.log.recovery.synced_bytes_lost == 0
        histories = [{e.raft_index: e for e in history} for history in (self.entries, self.wanted)]
        assert any(
            all(history.get(entry.raft_index) == entry for entry in found) for history in histories
        ), "the log is no prefix of what was appended"
        firsts = {history[0].raft_index for history in (self.entries, self.wanted) if history}
        assert not found or not self.durable or found[0].raft_index <= max(firsts)
        self.entries = self.wanted = found
        self.durable = self.log.last_index

    def lose_idx_files(self) -> None:
        """The files are removed, and the node starts without."""
        self.vfs.kill()
        for name in self.vfs.list_dir(DIRECTORY):
            if name.endswith(".idx"):
                self.vfs.remove(f"{DIRECTORY}/{name}")
        self.vfs.sync_dir(DIRECTORY)


def crash(life: Life) -> None:
    life.vfs.crash(life.rng, keep=life.rng.choice([0, 0.1, 0.5, 0.9, 1]))


def run(seed: int, *, faults: bool) -> None:
    life = Life(seed)
    for _ in range(GENERATIONS):
        if faults:
            life.vfs.fail(*life.rng.choice(FAULTS), after=life.rng.randint(0, 40))
        try:
            for _ in range(life.rng.randint(1, 40)):
                life.step()
        except StorageFailed:
            assert faults
        crash(life)
        life.log = reopen(life, faults=faults)
        life.check_recovered()
        if not faults and life.rng.random() < 0.3:
            life.lose_idx_files()
            life.log = reopen(life, faults=faults)
            life.check_recovered()


def reopen(life: Life, *, faults: bool) -> CommitLog:
    """With faults, the machine may also crash in the middle of recovery."""
    while True:
        try:
            return life.reopen()
        except OSError:
            assert faults
            crash(life)


@pytest.mark.parametrize("faults", [False, True], ids=["between calls", "within calls"])
def test_a_crash_loses_nothing_durable_and_leaves_a_prefix(faults: bool) -> None:
    for seed in SEEDS:
        try:
            run(seed, faults=faults)
        except Exception as error:
            raise AssertionError(f"run(seed={seed}, faults={faults}): {error}") from error
