"""Whether this node's vote can be trusted: it remembers everything that it ever told the others.

A vote, or the statement that an entry is on disk, binds a node for ever; one that has forgotten it
may help to elect a leader without an entry that was acknowledged. `must_catch_up` in the vote file
marks a node that may have forgotten something. It is lifted when the node has all that was
committed.
"""

from __future__ import annotations

from collections.abc import Mapping

from mq.logging import get_logger
from mq.raft.raft_log import FIRST_INDEX
from mq.raft.vote import VoteFile
from mq.store.commitlog import CommitLog
from mq.store.format import HEADER_BYTES, decode_header
from mq.wire.v1.raft_pb2 import RaftFrame

log = get_logger(__name__)


class VoteTrust:
    def __init__(self, node_id: str, commitlog: CommitLog, vote: VoteFile) -> None:
        self._node_id = node_id
        self._log = commitlog
        self._vote = vote

    def check(self, members: Mapping[str, str]) -> None:
        """At start. A node that is alone has no other to learn from."""
        vote, commitlog = self._vote, self._log
        if len(members) <= 1:
            self._mark("", must_catch_up=False)
        elif commitlog.last_term > vote.term:
            self._mark("the vote file was lost")
        elif commitlog.recovery.synced_bytes_lost:
            self._mark("the log has lost entries that had been synced")

    def notice(self, message: RaftFrame) -> None:
        """Before each message is handled. A new node that hears of a history may have been part of
        it with another disk; in a group that is new as a whole it takes part in the first election
        before it hears of any.
        """
        vote = self._vote
        if vote.term == 0 < message.term and self._log.last_index == FIRST_INDEX:
            kind = message.WhichOneof("content")
            is_history = True
            if kind == "vote_request":
                is_history = message.vote_request.last_index > FIRST_INDEX
            elif kind == "pre_vote_request":
                is_history = message.pre_vote_request.last_index > FIRST_INDEX
            if is_history:
                self._mark("the data directory is new, but the broker set is not")

    def genesis_crc(self) -> int:
        """Checksum of entry 1, which has the first members; 0 when the log does not have it."""
        commitlog = self._log
        if commitlog.last_index < FIRST_INDEX or commitlog.first_index != FIRST_INDEX:
            return 0
        header = decode_header(commitlog.read(commitlog.start_offset, HEADER_BYTES))
        return header.crc if header else 0

    def revoke(self, term: int) -> None:
        """The log is about to start over: until it is complete, this node is not trusted. Durable
        when this returns.
        """
        vote = self._vote
        voted_for = vote.voted_for if term == vote.term else None
        vote.save(term, voted_for, must_catch_up=True)

    def restore(self, term: int) -> None:
        """This node has all that was committed. Durable when this returns."""
        self._vote.save(term, self._vote.voted_for, must_catch_up=False)
        log.info("caught up: this node votes again", node=self._node_id, term=term)

    def _mark(self, reason: str, *, must_catch_up: bool = True) -> None:
        vote = self._vote
        if vote.must_catch_up != must_catch_up:
            term = max(vote.term, self._log.last_term)
            vote.save(term, vote.voted_for, must_catch_up=must_catch_up)
            if must_catch_up:
                log.warning(
                    "this node does not vote until it has caught up",
                    node=self._node_id,
                    reason=reason,
                )
