"""A broker set in one process and in virtual time, all of it from one seed.

Real are the replicas with everything in them: PySyncObj, journal, CommitLog, vote file, frames.
Simulated are the clock, the network (`Network`), the disks (`FaultyVfs`) and the state machine.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter
from typing import TYPE_CHECKING, Self

from mq.raft.contracts import Role
from tests.sim.ledger import Ledger, Violation
from tests.sim.network import Network
from tests.sim.node import Setup, SimNode

if TYPE_CHECKING:
    from collections.abc import Callable

    from mq.raft.contracts import Outcome

_CONNECT_S = 0.05


class World:
    """A context manager: the nodes start when it is entered."""

    def __init__(
        self,
        seed: int,
        count: int = 3,
        setup: Setup = Setup(),  # noqa: B008 - a constant
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.setup = setup
        self.now_s = 0.0
        self.ledger = Ledger()
        self.proposed = self.refused = self.ended = self.failed = 0
        self.notes: list[str] = []
        # How often what happened: a simulation that has become tame shows here.
        self.counts: Counter[str] = Counter()
        self.shows_notes = False
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._event_count = 0
        # Of all replicas: spreads their election time-outs.
        self.raft_rng = random.Random(seed + 1)
        self.network = Network(
            self.rng, lambda: self.now_s, self.schedule, buffer_bytes=setup.buffer_bytes
        )
        names = [f"n{i}" for i in range(count)]
        self.members = {name: f"{name}:8082" for name in names}
        self.nodes = {name: SimNode(self, name, self.members) for name in names}

    def __enter__(self) -> Self:
        for node in self.nodes.values():
            node.start()
        self._keep_connected()
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    # -- time --------------------------------------------------------------------------------------

    def schedule(self, delay_s: float, action: Callable[[], None]) -> None:
        self._event_count += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._event_count, action))

    def run(self, duration_s: float) -> None:
        self.run_until(lambda: False, duration_s)

    def run_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        end_s = self.now_s + timeout_s
        while not condition():
            if not self._events or self._events[0][0] > end_s:
                self.now_s = end_s
                return condition()
            self.now_s, _, action = heapq.heappop(self._events)
            action()
        return True

    def _keep_connected(self) -> None:
        self.network.connect_all()
        self.schedule(_CONNECT_S, self._keep_connected)

    def note(self, text: str) -> None:
        """Records an event, for the reader of a failure."""
        self.notes.append(f"{self.now_s:8.3f} {text}")
        if self.shows_notes:
            print(self.notes[-1])  # noqa: T201 - asked for

    def draw(self, text: str) -> None:
        """A choice of the seed, for the same person. Not a part of the digest: `story`."""
        if self.shows_notes:
            print(f"{self.now_s:8.3f}     drawn: {text}")  # noqa: T201 - asked for

    def story(self) -> str:
        """A digest of all that happened: the same seed tells the same story."""
        ledger, network = self.ledger, self.network
        told = hashlib.sha256()
        for part in (
            self.notes,
            sorted(self.counts.items()),
            list(ledger.leaders.items()),
            list(ledger.entries.items()),
            list(ledger.committed.items()),
            list(ledger.applied.items()),
            list(ledger.acknowledged.items()),
            (self.now_s, self.proposed, self.refused, self.ended, self.failed),
            (network.frames_sent, network.bytes_in_flight_max, self.rng.random()),
        ):
            told.update(repr(part).encode())
        return told.hexdigest()

    # -- looking -----------------------------------------------------------------------------------

    def up(self) -> list[SimNode]:
        return [node for node in self.nodes.values() if node.is_up]

    def leader(self) -> SimNode | None:
        """The one of the highest term, if there is any."""
        leaders = [
            (node.replica.core.term, node)
            for node in self.up()
            if node.replica is not None
            and node.replica.core is not None
            and node.replica.core.role == Role.LEADER
        ]
        return max(leaders, key=lambda pair: pair[0])[1] if leaders else None

    def elect(self, timeout_s: float = 10.0) -> SimNode:
        if not self.run_until(lambda: self.leader() is not None, timeout_s):
            raise Violation("liveness: no leader")
        leader = self.leader()
        assert leader is not None
        return leader

    def propose(self, payload: bytes = b"x") -> None:
        """To the leader, or to any node if there is none."""
        node = self.leader() or self.rng.choice(list(self.nodes.values()))
        node.propose(payload)

    # -- steps of a scenario -----------------------------------------------------------------------

    def settle(self, timeout_s: float = 10.0) -> SimNode:
        """The leader, when all have the same, all have said so and nothing is on its way."""
        if not self.run_until(self.has_converged, timeout_s):
            raise Violation(f"liveness: not the same after {timeout_s} s: {self.state()}")
        self.run(2 * self.setup.timing.heartbeat_s)
        leader = self.leader()
        assert leader is not None
        return leader

    def commit(self, payload: bytes = b"x", timeout_s: float = 5.0) -> int:
        """Proposes to the leader until one is acknowledged: its raft index."""
        known = set(self.ledger.acknowledged)
        end_s = self.now_s + timeout_s
        while not self.ledger.acknowledged.keys() - known:
            if self.now_s >= end_s:
                raise Violation(f"liveness: nothing committed in {timeout_s} s: {self.state()}")
            self.propose(payload)
            self.run_until(lambda: len(self.ledger.acknowledged) > len(known), 0.5)
        return max(self.ledger.acknowledged.keys() - known)

    def others(self, *nodes: SimNode) -> list[SimNode]:
        return [node for node in self.nodes.values() if node not in nodes]

    def cut_off(self, *nodes: SimNode) -> None:
        """These from all the others, both ways; the connections stay until an end notices."""
        for node in nodes:
            for other in self.others(*nodes):
                self.network.cut(node.name, other.name)
                self.network.cut(other.name, node.name)

    def join(self, leader: SimNode, done: Callable[[Outcome], None]) -> SimNode:
        """A node more, which is not started yet. Raises what the leader does."""
        assert leader.replica is not None
        name = f"n{len(self.nodes)}"
        members = {**leader.replica.membership.members, name: f"{name}:8082"}
        node = SimNode(self, name, members, is_joining=True)
        leader.replica.add_member(name, members[name], done)
        self.note(f"{name} joins")
        self.nodes[name] = node
        return node

    def lead(self, node: SimNode) -> None:
        """The leader is told to hand over to this one."""
        leader = self.leader()
        assert leader is not None
        if leader is not node:
            leader.ask_to_lead(node)
        if not self.run_until(lambda: self.leader() is node, 3.0):
            raise Violation(f"liveness: {node.name} does not lead: {self.state()}")

    # -- the end -----------------------------------------------------------------------------------

    def heal(self) -> None:
        self.note("everything heals")
        self.network.heal()
        for node in self.nodes.values():
            node.heal()

    def has_converged(self) -> bool:
        leader = self.leader()
        if leader is None or leader.replica is None:
            return False
        members = leader.replica.membership.members
        last_index = leader.log.last_index
        return leader.machine.applied_index == last_index and all(
            node.is_up
            and node.log.last_index == last_index
            and node.machine.applied_index == last_index
            and not (node.replica and node.replica.vote.must_catch_up)
            for node in (self.nodes[member] for member in members)
        )

    def converge(self, timeout_s: float = 30.0) -> None:
        """Liveness: with all faults gone, a new entry gets everywhere and all are the same."""
        self.heal()
        start_s = self.now_s
        before = len(self.ledger.acknowledged)
        while len(self.ledger.acknowledged) == before or not self.has_converged():
            if self.now_s - start_s > timeout_s:
                raise Violation(f"liveness: not the same after {timeout_s} s: {self.state()}")
            if len(self.ledger.acknowledged) == before:
                self.propose(b"last")
            self.run(0.1)
        self._compare()

    def _compare(self) -> None:
        leader = self.leader()
        assert leader is not None
        assert leader.replica is not None
        for name in leader.replica.membership.members:
            node = self.nodes[name]
            same = (node.machine.count, node.machine.digest)
            if same != (leader.machine.count, leader.machine.digest):
                raise Violation(f"state machine safety: {name} and {leader.name} differ")
            start = max(node.log.start_offset, leader.log.start_offset)
            length = leader.log.end_offset - start
            if node.log.end_offset != leader.log.end_offset or node.log.read(
                start, length
            ) != leader.log.read(start, length):
                raise Violation(f"log matching: bytes of {name} and {leader.name} differ")
        for index, term in self.ledger.acknowledged.items():
            if self.ledger.applied.get(index, (None, 0))[0] != term:
                raise Violation(f"acknowledged entry {index} of term {term} is lost")
        waiting = self.proposed - self.ended
        still = sum(node.replica.waiting for node in self.up() if node.replica is not None)
        if waiting != still:
            raise Violation(f"{waiting} proposals have no outcome, {still} still wait")

    def state(self) -> str:
        parts = []
        for node in self.nodes.values():
            if node.replica is None:
                parts.append(f"{node.name} down")
                continue
            status = node.replica.status()
            role, term, leader = status.leadership
            parts.append(
                f"{node.name} {role.name.lower()} term {term} of {leader}, log "
                f"{status.first_index}..{status.last_index}, durable {status.durable_index}, "
                f"commit {status.commit_index}, applied {status.applied_index}"
                f"{', must catch up' if status.must_catch_up else ''}"
            )
        return "; ".join(parts)
