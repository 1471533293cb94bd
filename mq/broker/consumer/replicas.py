"""The choice of the node of a broker set that serves a reader: decisions, and the state they use.

Every node has the same messages, as far as it has applied the log, and applies only what is
committed. So a reader far behind the end may read anywhere, and goes to a node with less to do: to
a follower. Near the end it comes back to the leader, which knows first; unless it would read over
the border of its zone there. Distances are bytes of the log, and the way back is half as long as
the way there, so that no reader is sent to and fro.

The picture may be a moment old: the worst that follows is a detour.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mq.broker.consumer.arrivals import Arrivals
from mq.broker.contracts import Consensus, Peer
from mq.broker.leading import Leadership
from mq.store.logreader import LogReader


class Reader(NamedTuple):
    """Its zone, if it has one, and how much of the log stands between its place and the end."""

    zone: str
    behind_bytes: int


class Follower(NamedTuple):
    """One that follows right now, and how much of the leader's log it does not have yet."""

    peer: Peer
    behind_bytes: int


def better_place(
    reader: Reader, own_zone: str, followers: Sequence[Follower], backlog_bytes: int, turn: int
) -> Peer | None:
    """On the leader: the node that should serve this reader; None: the leader itself. Of several
    that are as good, each in its `turn`.
    """
    able = [one.peer for one in followers if one.behind_bytes <= backlog_bytes // 2]
    near = [peer for peer in able if reader.zone and peer.zone == reader.zone]
    candidates: list[Peer] = []
    if reader.zone != own_zone and near:
        candidates = near
    elif reader.behind_bytes > backlog_bytes:
        candidates = near or able
    return candidates[turn % len(candidates)] if candidates else None


def goes_back(reader: Reader, own_zone: str, leader_zone: str, backlog_bytes: int) -> bool:
    """On a follower: whether this reader should ask the leader from now on."""
    is_at_home = bool(reader.zone) and reader.zone == own_zone != leader_zone
    return not is_at_home and reader.behind_bytes < backlog_bytes // 2


class Replicas:
    """The broker set as this node sees it. `refresh` it a few times a second, and whenever
    another node leads.
    """

    def __init__(
        self,
        node_id: str,
        consensus: Consensus,
        leadership: Leadership,
        log: LogReader,
        arrivals: Arrivals,
        *,
        backlog_bytes: int,
    ) -> None:
        self.backlog_bytes = backlog_bytes
        self._node_id = node_id
        self._consensus = consensus
        self._leadership = leadership
        self._log = log
        self._arrivals = arrivals
        self._zones: dict[str, str] = {}
        self._followers: list[Follower] = []
        self._led_by: tuple[int, str | None] = (0, None)
        self._turn = 0

    def refresh(self) -> None:
        leading, peers = self._consensus.leading, self._consensus.peers
        self._zones = {peer.node_id: peer.zone for peer in peers}
        self._followers = [
            Follower(peer, self._behind_bytes(peer))
            for peer in peers
            if peer.node_id != self._node_id and peer.address and self._has_part_of_log(peer)
        ]
        if self._led_by != leading[:2]:
            self._led_by = leading.term, leading.leader_id
            # Readers that wait here may have to wait elsewhere.
            self._arrivals.stir()

    def _has_part_of_log(self, peer: Peer) -> bool:
        return self._log.first_index <= peer.match_index <= self._log.last_index

    def _behind_bytes(self, peer: Peer) -> int:
        return self._log.end_offset - self._log.place_of(peer.match_index)[1]

    @property
    def is_serving(self) -> bool:
        return self._leadership.is_serving

    def check_serving(self) -> None:
        """Raises NotLeader."""
        self._leadership.check()

    def leader(self) -> Peer:
        """The leader, on a follower. Raises NotLeader if it knows of none: it may be cut off from
        all news.
        """
        _, leader_id, address, external = self._consensus.leading
        if leader_id is None or leader_id == self._node_id or not address:
            raise self._leadership.refusal()
        return Peer(leader_id, address, self._zones.get(leader_id, ""), external or "")

    def better_place(self, reader: Reader) -> Peer | None:
        """On the leader."""
        own_zone = self._zones.get(self._node_id, "")
        found = better_place(reader, own_zone, self._followers, self.backlog_bytes, self._turn)
        self._turn += found is not None
        return found

    def other_place(self) -> Peer | None:
        """On the leader: a follower that has nearly all, for what this node cannot show."""
        able = [one.peer for one in self._followers if one.behind_bytes <= self.backlog_bytes // 2]
        self._turn += 1
        return able[self._turn % len(able)] if able else None

    def way_back(self, reader: Reader, leader: Peer) -> Peer | None:
        """On a follower: the leader, if this reader should go there; None: it may stay."""
        own_zone = self._zones.get(self._node_id, "")
        return leader if goes_back(reader, own_zone, leader.zone, self.backlog_bytes) else None
