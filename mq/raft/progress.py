"""The progress of one peer, as this node knows it: where its log is, and how fast it is fed.

A follower is *probed* until it has answered that its log matches ours: one append in flight,
because where its log ends is a guess. From then on entries are sent as they come, without waiting
for answers, as long as the connection has room.
"""

from __future__ import annotations

from dataclasses import dataclass

_SUSPICIOUS_REFUSALS = 20


@dataclass(slots=True)
class Progress:
    """One record a peer, for as long as the core lives. The indexes mean something on a leader."""

    # The next entry to send; 0: no entries are sent to this peer, neither member nor learner. Above
    # `match_index`, unless a refusal arrives late: then entries are sent twice and trimmed there.
    next_index: int = 0
    # The peer's log is durable and equal to ours up to here; never above what the peer has said in
    # this term and on this connection. 0: nothing is known, or the peer has to catch up.
    match_index: int = 0
    # The last answer that counts for the leader's majority; monotonic within a term.
    heard_s: float = 0.0
    is_connected: bool = False
    # The peer's own statement in its last answer: it does not have to catch up.
    is_voter: bool = False
    # At most one append is in flight while this holds.
    is_probing: bool = True
    # When that append was sent; None: none is in flight, or its answer moves us elsewhere.
    probed_at_s: float | None = None
    # Where that append starts.
    probed_index: int = 0
    # Refusals in a row of an append that starts at `probed_index`.
    refusals: int = 0

    def start_probing(self) -> None:
        """Nothing is known of the follower's log: a new leader or a new connection, after which a
        follower may have less than before: in async flush mode that is legal.
        """
        self.match_index = 0
        self.is_probing = True
        self.probed_at_s = None
        self.probed_index = 0

    def may_send(self, now_s: float, period_s: float, *, has_room: bool) -> bool:
        if not self.is_connected or not has_room:
            return False
        if not self.is_probing or self.probed_at_s is None:
            return True
        # Unanswered, or refused at the same place: once per heartbeat.
        return now_s - self.probed_at_s >= period_s

    def sent(self, next_index: int, now_s: float) -> None:
        """An append was sent that starts at `next_index`."""
        if self.is_probing:
            self.probed_at_s = now_s
            self.probed_index = next_index

    def matched(self, next_index: int) -> None:
        """The peer has the log before `next_index`. What was sent behind it is on its way, so that
        the next index never goes back.
        """
        self.match_index = max(self.match_index, next_index - 1)
        self.next_index = max(self.next_index, next_index)
        self.is_probing = False
        self.probed_at_s = None

    def refused(self, next_index: int) -> bool:
        """The follower wants to start at `next_index`. If that is where the refused append started,
        the follower cannot go on right now, for want of space or because our entries there are
        damaged; asking again at once would make two machines spin. Returns True when our own
        entries there should be verified: the first time, and now and then.
        """
        self.next_index = next_index
        self.is_probing = True
        if next_index != self.probed_index:
            self.probed_at_s = None
            self.refusals = 0
            return False
        self.refusals += 1
        return self.refusals % _SUSPICIOUS_REFUSALS == 1
