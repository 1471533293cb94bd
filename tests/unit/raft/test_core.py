"""Raft without disk and network: what goes in, and what there is to do about it."""

from __future__ import annotations

import random

import pytest

from mq.errors import DiskFull
from mq.raft.contracts import Leadership, Role, Timing
from mq.raft.core import Core
from mq.raft.frames import Frame
from mq.raft.raft_log import RaftLog
from mq.raft.ready import Ready
from mq.raft.replication import REGION_BYTES_MAX
from mq.raft.vote import VoteFile
from mq.store.commitlog import CommitLog, NewEntry
from mq.store.format import Kind
from mq.wire.v1.raft_pb2 import (
    Append,
    AppendAnswer,
    PreVoteRequest,
    PreVoteResponse,
    RaftFrame,
    VoteRequest,
    VoteResponse,
)
from tests.support.faulty_vfs import FaultyVfs

TIMING = Timing()
FULL = DiskFull("full")


class Made:
    """A core on a log of its own, which the test writes as a node would."""

    def __init__(
        self,
        *terms: int,
        members: str = "abc",
        segment_bytes: int = 8 << 20,
        timing: Timing = TIMING,
    ) -> None:
        vfs = FaultyVfs(1)
        vfs.make_dirs("/data")
        self.log = CommitLog(
            vfs, "/data/log", segment_bytes=segment_bytes, verify_bytes=1 << 20, background=False
        )
        self.log.roll(NewEntry(Kind.CHECKPOINT, 0, 0, [b""]))
        for term in terms:
            self.log.append([NewEntry(Kind.COMMAND, term, 0, [b"payload"])])
        self.vote = VoteFile(vfs, "/data/vote")
        self.vote.save(max(terms, default=0), None, must_catch_up=False)
        self.now_s = 100.0
        self.core = Core(
            "a",
            members,
            RaftLog(self.log),
            self.vote,
            timing,
            applied_index=1,
            has_room=lambda _: True,
            rng=random.Random(1),
            now_s=self.now_s,
        )
        for peer_id in members[1:]:
            self.core.connected(peer_id)

    def step(self, peer_id: str, term: int, body: bytes = b"", **content: object) -> Ready:
        frame = Frame(RaftFrame(term=term, **content), body)  # type: ignore[arg-type]
        return self.core.step(peer_id, frame, self.now_s)

    def tick(self) -> Ready:
        return self.core.tick(self.now_s)

    def perform(self, ready: Ready) -> Ready:
        """Log and vote: what the core says next, if it is asked."""
        if ready.vote is not None:
            self.vote.save(*ready.vote, must_catch_up=False)
        if ready.truncate is not None:
            self.log.truncate(ready.truncate)
        if ready.append is None:
            return ready
        if isinstance(ready.append, memoryview):
            self.log.extend(ready.append)
        else:
            self.log.append([ready.append])
        return self.core.appended(self.now_s)

    def propose(self, *payloads: bytes) -> Ready:
        """In one append."""
        self.log.append([NewEntry(Kind.COMMAND, self.core.term, 0, [each]) for each in payloads])
        return self.core.propose(self.now_s)

    def sync(self) -> Ready:
        self.log.sync()
        return self.core.synced(self.log.durable_index, self.now_s)

    def stand(self) -> Ready:
        """Asks for pre-votes, and then for votes."""
        self.now_s += 2 * TIMING.election_max_s
        self.tick()
        term = self.core.term
        would = PreVoteResponse(proposed_term=term + 1, granted=True, would_grant=True)
        self.step("b", term, pre_vote_response=would)
        return self.tick()

    def lead(self) -> Ready:
        """The Ready of the election, which has a no-op to append."""
        self.perform(self.stand())
        return self.step("b", self.core.term, vote_response=VoteResponse())


def kinds(ready: Ready) -> list[tuple[str, str | None]]:
    return [(peer_id, frame.message.WhichOneof("content")) for peer_id, frame in ready.messages]


def answer_of(ready: Ready) -> tuple[int, bool]:
    ((_, frame),) = ready.messages
    answer = frame.message.append_answer
    return answer.next_index, answer.success


def entries_of(ready: Ready) -> bytes:
    assert isinstance(ready.append, memoryview)
    return bytes(ready.append)


def region(made: Made, raft_index: int) -> bytes:
    return bytes(made.log.region(raft_index, REGION_BYTES_MAX).data)


# -- follower --------------------------------------------------------------------------------------


def test_election_timeouts_may_be_as_long_as_the_configuration_allows() -> None:
    minutes = Timing(election_min_s=60.0, election_max_s=120.0, fallback_s=120.0)
    assert Made(1, timing=minutes).tick().vote is None


def test_a_follower_answers_for_entries_when_they_are_in_the_log_and_synced() -> None:
    made, leader = Made(1), Made(1, 1, 1)
    append = Append(prev_index=2, prev_term=1, commit_index=3)
    ready = made.step("b", 1, region(leader, 3), append=append)
    assert ready.role == Leadership(Role.FOLLOWER, 1, "b")
    assert entries_of(ready) == region(leader, 3)
    assert ready.truncate is None
    assert not ready.messages
    assert made.core.commit_index == 1
    # In the log: the leader hears that this node lives, and no more.
    assert answer_of(made.perform(ready)) == (3, True)
    assert made.core.commit_index == 3
    assert made.tick().commit == 2  # what was synced before
    assert answer_of(made.sync()) == (5, True)
    assert made.tick().commit == 3


def test_a_follower_trims_entries_it_has_and_truncates_conflicting_ones() -> None:
    made, leader = Made(1, 1, 1, 1), Made(1, 1, 2, 2)
    append = Append(prev_index=1, prev_term=0)
    ready = made.step("b", 2, region(leader, 2), append=append)
    assert ready.truncate == 4
    assert entries_of(ready) == region(leader, 4)
    assert ready.vote == (2, None)
    made.perform(ready)
    assert [made.log.term_at(index) for index in range(1, 6)] == [0, 1, 1, 2, 2]
    again = made.step("b", 2, region(leader, 2), append=append)
    assert (again.truncate, again.append) == (None, None)


@pytest.mark.parametrize(("prev_index", "prev_term", "next_index"), [(9, 1, 4), (3, 2, 2)])
def test_a_follower_says_where_to_go_on_when_the_logs_do_not_match(
    prev_index: int, prev_term: int, next_index: int
) -> None:
    made = Made(1, 1)
    append = Append(prev_index=prev_index, prev_term=prev_term)
    ready = made.step("b", 2, b"whatever", append=append)
    assert ready.append is None
    assert answer_of(ready) == (next_index, False)


def test_an_append_that_the_log_refuses_counts_for_nothing() -> None:
    made, leader = Made(1), Made(1, 1, 1)
    append = Append(prev_index=2, prev_term=1, commit_index=4)
    ready = made.step("b", 1, region(leader, 3), append=append)
    assert ready.append is not None
    assert answer_of(made.core.refused(FULL, made.now_s)) == (3, False)
    assert made.core.commit_index == 1


def test_a_leader_of_an_old_term_is_told_the_new_one() -> None:
    made = Made(1, 2)
    ready = made.step("b", 1, append=Append(prev_index=2, prev_term=1))
    ((peer_id, frame),) = ready.messages
    assert (peer_id, frame.message.term, frame.message.append_answer.success) == ("b", 2, False)
    assert ready.role is None


# -- elections -------------------------------------------------------------------------------------


def test_a_vote_is_to_be_saved_before_it_is_sent_and_is_given_once() -> None:
    made = Made(1)
    request = VoteRequest(last_index=2, last_term=1)
    ready = made.step("b", 2, vote_request=request)
    assert ready.vote == (2, "b")
    assert kinds(ready) == [("b", "vote_response")]
    made.perform(ready)
    for peer_id in "bc":
        again = made.step(peer_id, 2, vote_request=request)
        assert again == Ready()


def test_a_node_asks_whether_it_could_win_before_it_raises_its_term() -> None:
    made = Made(1)
    made.now_s += 2 * TIMING.election_max_s
    ready = made.tick()
    assert kinds(ready) == [("b", "pre_vote_request"), ("c", "pre_vote_request")]
    assert (ready.vote, made.core.term) == (None, 1)
    ready = made.stand()
    assert ready.vote == (2, "a")
    assert sorted(kinds(ready)) == [("b", "vote_request"), ("c", "vote_request")]


def test_a_node_that_hears_a_leader_would_not_help_to_elect_another() -> None:
    made = Made(1)
    made.step("b", 1, append=Append(prev_index=2, prev_term=1))
    request = PreVoteRequest(proposed_term=2, last_index=9, last_term=1)
    (_, frame), *_ = made.step("c", 1, pre_vote_request=request).messages
    assert not frame.message.pre_vote_response.would_grant
    made.core.disconnected("b", made.now_s, was_lost=True)
    (_, frame), *_ = made.step("c", 1, pre_vote_request=request).messages
    assert frame.message.pre_vote_response.granted


# -- leader ----------------------------------------------------------------------------------------


def test_a_new_leader_sends_its_first_entry_when_its_own_log_has_it() -> None:
    made = Made(1)
    ready = made.lead()
    assert ready.role == Leadership(Role.LEADER, 2, "a")
    assert ready.append == NewEntry(Kind.NOOP, 2, 0, [])
    assert not ready.messages
    sent = made.perform(ready).messages
    assert sorted(peer_id for peer_id, _ in sent) == ["b", "c"]
    assert all(bytes(frame.body) == region(made, 3) for _, frame in sent)


def test_a_leader_whose_log_refuses_its_first_entry_steps_down() -> None:
    made = Made(1)
    made.lead()
    ready = made.core.refused(FULL, made.now_s)
    assert ready.role == Leadership(Role.FOLLOWER, 2, None)
    assert not ready.messages
    with pytest.raises(RuntimeError, match="does not lead"):
        made.core.propose(made.now_s)


def test_an_entry_is_committed_when_a_majority_has_it_the_leader_included() -> None:
    made = Made(1)
    made.perform(made.lead())
    made.step("b", 2, append_answer=AppendAnswer(next_index=4, success=True))
    assert not made.tick().commit  # one of three: the leader has not synced it
    made.sync()
    assert made.tick().commit == 3
    made.core.applied(3)
    # Only a follower that has answered is fed without waiting.
    assert kinds(made.propose(b"x", b"y")) == [("b", "append")]
    made.sync()
    assert not made.tick().commit
    made.step("b", 2, append_answer=AppendAnswer(next_index=5, success=True))
    assert made.tick().commit == 4


def test_an_answer_of_another_term_or_of_a_node_that_has_to_catch_up_does_not_count() -> None:
    made = Made(1)
    made.perform(made.lead())
    made.sync()
    made.step("b", 1, append_answer=AppendAnswer(next_index=4, success=True))
    catching_up = AppendAnswer(next_index=4, success=True, must_catch_up=True)
    made.step("b", 2, append_answer=catching_up)
    assert made.core.match_index("b") == 0
    assert not made.tick().commit
    ready = made.step("b", 3, append_answer=AppendAnswer(next_index=4, success=True))
    assert ready.vote == (3, None)
    assert ready.role == Leadership(Role.FOLLOWER, 3, None)


def test_a_follower_far_behind_gets_one_region_a_ready() -> None:
    made = Made(1)
    made.perform(made.lead())
    ready = made.propose(*[bytes(REGION_BYTES_MAX)] * 3)
    assert not ready.messages  # both are being probed
    ready = made.step("b", 2, append_answer=AppendAnswer(next_index=4, success=True))
    sent = []
    while ready.messages:
        assert [peer_id for peer_id, _ in ready.messages] == ["b"]
        sent += [frame.message.append.prev_index for _, frame in ready.messages]
        assert ready.has_more == (len(sent) < 3)
        ready = made.core.replicate(made.now_s)
    assert sent == [3, 4, 5]


def test_a_follower_that_refuses_is_asked_at_once_where_its_log_ends() -> None:
    made = Made(1, 1, 1)
    made.perform(made.lead())
    ready = made.step("b", 2, append_answer=AppendAnswer(next_index=3, success=False))
    ((peer_id, frame),) = ready.messages
    assert (peer_id, frame.message.append.prev_index) == ("b", 2)
    assert bytes(frame.body) == region(made, 3)
    # The same answer again: it cannot go on, and is asked once a heartbeat.
    again = made.step("b", 2, append_answer=AppendAnswer(next_index=3, success=False))
    assert not again.messages


def test_leadership_is_handed_to_a_follower_that_has_everything() -> None:
    made = Made(1)
    made.perform(made.lead())
    assert not made.core.transfer_leadership(made.now_s).messages
    made.step("c", 2, append_answer=AppendAnswer(next_index=4, success=True))
    assert kinds(made.core.transfer_leadership(made.now_s)) == [("c", "timeout_now")]
    assert not made.core.transfer_leadership(made.now_s, "b").messages


def test_a_node_alone_elects_itself_and_commits_what_it_has_synced() -> None:
    made = Made(members="a")
    made.core.election.stand_at_once()
    ready = made.tick()
    assert ready.vote == (1, "a")
    made.perform(ready)
    assert not made.tick().commit
    assert made.sync().commit == 2


# -- a leader whose disk stands still --------------------------------------------------------------


def stalled_leader(*members_ahead: str) -> Made:
    """Its no-op is not synced for as long as the leader of a lost majority would lead; these nodes
    have it.
    """
    made = Made(1)
    made.log.sync()
    made.core.synced(made.log.durable_index, made.now_s)
    made.perform(made.lead())
    for _ in range(3):
        made.now_s += TIMING.fallback_s / 2.5
        for peer_id in "bc":
            has_noop = peer_id in members_ahead
            answer = AppendAnswer(next_index=4 if has_noop else 3, success=True)
            made.step(peer_id, 2, append_answer=answer)
    return made


def test_a_leader_whose_disk_stands_still_while_others_go_on_asks_one_of_them_and_steps_down() -> (
    None
):
    made = stalled_leader("b", "c")
    ready = made.tick()
    assert ("b", "timeout_now") in kinds(ready)
    assert ready.role == Leadership(Role.FOLLOWER, 2, None)
    assert ready.vote is None  # nothing that would have to wait for the disk


def test_a_leader_goes_on_when_the_disks_of_others_stand_still_too() -> None:
    made = stalled_leader("b")
    assert made.tick().role is None
    assert made.core.role == Role.LEADER


def test_a_leader_whose_disk_is_slow_goes_on() -> None:
    made = stalled_leader("b", "c")
    made.sync()
    made.propose(b"x")
    assert made.tick().role is None
    assert made.core.role == Role.LEADER
