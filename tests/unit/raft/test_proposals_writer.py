"""Proposals become entries; none is lost on the way."""

from __future__ import annotations

import errno

import pytest

from mq.errors import DiskFull, MqError, OutcomeUnknown, StorageFailed
from mq.raft.contracts import Committed, Limits, Outcome
from mq.raft.handshake import Restored
from mq.raft.membership import Membership, read_members, read_restorations
from mq.raft.proposals import Proposal, Proposals, Writer
from mq.store.format import Kind
from mq.store.logreader import EntryRef
from tests.support.faulty_vfs import FaultyVfs
from tests.unit.raft.test_membership import TWO, Links, open_log_on, roll

FULL = DiskFull("full")


class Machine:
    """Has applied everything, unless told otherwise."""

    def __init__(self) -> None:
        self.applied_index = 1
        self.is_full = False
        self.contexts: list[tuple[int, object]] = []

    def checkpoint_payload(self) -> list[bytes]:
        return [b""]

    def check_writable(self) -> None:
        if self.is_full:
            raise FULL

    def appended(self, ref: EntryRef, context: object, /) -> None:
        self.contexts.append((ref.raft_index, context))

    def apply_through(self, raft_index: int) -> None: ...

    def forget(self, from_index: int) -> None: ...

    def start_over(self) -> None: ...


class Made:
    def __init__(self, *, segment_bytes: int = 1 << 16, append_bytes_max: int = 1 << 20) -> None:
        self.vfs = FaultyVfs(1)
        self.log = open_log_on(self.vfs, segment_bytes)
        roll(self.log, TWO)
        self.machine = Machine()
        self.proposals = Proposals(count_max=100, bytes_max=1 << 20)
        self.membership = Membership("a", self.log, Links(), TWO)
        self.membership.refresh(1)
        limits = Limits(append_bytes_max=append_bytes_max)
        self.writer = Writer(
            self.log, self.machine, self.proposals, self.membership, lambda: 7, limits
        )
        self.outcomes: dict[str, Outcome] = {}

    def put(self, name: str, size: int = 10) -> None:
        def done(outcome: Outcome) -> None:
            assert name not in self.outcomes
            self.outcomes[name] = outcome

        self.proposals.put(Proposal(Kind.COMMAND, [bytes(size)], size, done, name))

    def write(self, now_s: float = 0.0) -> DiskFull | None:
        """As the node does."""
        try:
            self.writer.write(1, now_s)
        except DiskFull as error:
            self.proposals.refuse_queued(error)
            self.proposals.tell()
            return error
        return None


def test_everything_that_waits_is_one_append() -> None:
    made = Made()
    for name in "abc":
        made.put(name)
    writes = made.vfs.write_count
    assert made.write() is None
    assert made.log.last_index == 4
    assert made.vfs.write_count - writes <= 2  # the log and its index
    assert made.machine.contexts == [(2, "a"), (3, "b"), (4, "c")]
    made.proposals.applied(3)
    made.proposals.tell()
    assert made.outcomes == {"a": Committed(2, 1), "b": Committed(3, 1)}


def test_entries_beyond_one_append_wait_for_the_next() -> None:
    made = Made(append_bytes_max=25)
    for name in "abc":
        made.put(name)
    made.write()
    assert made.log.last_index == 3
    made.write()
    assert made.log.last_index == 4


def test_a_full_segment_takes_what_fits_and_a_new_one_opens_when_all_is_applied() -> None:
    made = Made(segment_bytes=400)
    made.put("a", 50)
    made.write()  # the first one fits any segment
    for name in "bcdefg":
        made.put(name, 50)
    made.write()
    last_index = made.log.last_index
    assert 2 < last_index < 8
    assert made.writer.is_roll_due
    assert not made.writer.is_settled
    made.write()
    assert made.log.last_index == last_index
    made.machine.applied_index = last_index
    made.write()
    assert made.log.last_checkpoint_index == last_index + 1
    assert read_members(made.log) == TWO
    assert made.log.last_index > last_index + 1
    names = [context for _, context in made.machine.contexts]
    assert names == list("abcdefg")[: len(names)]


def test_a_roll_that_is_due_brings_the_change_of_members() -> None:
    made = Made()
    made.machine.applied_index = 1
    made.membership.restorations = (Restored(1, 1 << 63),)
    outcomes: list[Outcome] = []
    made.membership.changes.begin_remove({"a": 1, "b": 1}, "b", "a", 1, outcomes.append)
    made.writer.is_roll_due = True
    made.write()
    assert not made.writer.is_roll_due
    assert read_members(made.log) == {"a": "a:1"}
    assert read_restorations(made.log) == (Restored(1, 1 << 63),)
    made.membership.changes.applied(2)
    assert outcomes == [Committed(2, 1)]


def test_without_proposals_nothing_is_asked_of_the_disk() -> None:
    made = Made()
    made.machine.is_full = True
    assert made.write() is None
    made.put("a")
    assert made.write() is FULL
    assert made.outcomes == {"a": FULL}


@pytest.mark.parametrize("count", [1, 3])
def test_a_full_disk_refuses_all_that_waits(count: int) -> None:
    made = Made()
    made.vfs.fail("pwritev", "log", errno.ENOSPC, times=100)
    for name in "abc"[:count]:
        made.put(name)
    assert isinstance(made.write(), DiskFull)
    assert {type(outcome) for outcome in made.outcomes.values()} == {DiskFull}
    assert len(made.outcomes) == count
    assert len(made.proposals) == 0


def test_a_disk_that_runs_full_while_a_segment_is_filled_up_loses_no_proposal() -> None:
    made = Made(segment_bytes=400)
    made.put("a", 50)
    made.write()
    for name in "bcdefg":
        made.put(name, 50)
    made.vfs.fail("pwritev", "log", errno.ENOSPC, after=2, times=100)
    error = made.write()
    assert isinstance(error, DiskFull)
    ended_or_written = len(made.outcomes) + len(made.proposals)
    assert ended_or_written == 7


def test_a_log_that_fails_leaves_no_proposal_without_an_answer() -> None:
    """Whether they are in the log is unknown: that is what they are told."""
    made = Made()
    for name in "abc":
        made.put(name)
    made.vfs.fail("pwritev", "log", errno.EIO)
    with pytest.raises(StorageFailed):
        made.write()
    assert len(made.proposals) == 3
    made.proposals.end_leadership(MqError("the node stops"))
    made.proposals.tell()
    assert {type(outcome) for outcome in made.outcomes.values()} == {OutcomeUnknown}
    assert len(made.outcomes) == 3


def test_small_entries_gather_while_others_are_on_their_way() -> None:
    made = Made()
    made.put("a")
    made.write(5.0)
    assert made.writer.is_gathering(5.0)
    assert not made.writer.is_gathering(5.5)
    made.put("large", 1 << 19)
    assert not made.writer.is_gathering(5.0)
