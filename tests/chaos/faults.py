"""The faults of a chaos run, one after the other, chosen by a seed.

A deck has each fault that the engine can make once; it is shuffled, played and shuffled again. A
fault is made, held for some seconds, healed; then every node has to be well again before the next
one. A node that is not well in time ends the run as an error.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from mq.client import Admin
from mq.errors import MqError
from tests.chaos import engine as questions
from tests.chaos.rot import Rot, spread

if TYPE_CHECKING:
    import random
    import threading
    from collections.abc import Callable, Collection, Iterator, Sequence

    from tests.chaos.checker import Ledger
    from tests.chaos.engine import Engine
    from tests.chaos.timeline import Timeline

_HOLD_S = (1.5, 4.0)
_BETWEEN_S = (1.0, 3.0)
_LOSS = (0.05, 0.3)
_KEYS = 200
# What clients may be wrong about, when they say that something came too early.
CLOCK_STEP_MS_MAX = 2_000


class Faults:
    """All of it blocks: run it on a thread. `over` is set when the time is over: then nothing is
    held any longer.
    """

    def __init__(
        self,
        engine: Engine,
        rng: random.Random,
        timeline: Timeline,
        ledger: Ledger,
        over: threading.Event,
        only: Collection[str] = (),
    ) -> None:
        """`only` these, by the names of their functions; without any, all."""
        self._only = only
        self._ledger = ledger
        self._engine = engine
        self._rng = rng
        self._timeline = timeline
        self._over = over
        self._deck: list[Callable[[], None]] = []

    def run(self, tell: Callable[[str], None]) -> None:
        """Until it is over; every fault is healed by then."""
        while not self._over.wait(self._rng.uniform(*_BETWEEN_S)):
            before = len(self._timeline.faults)
            self._next()()
            for fault in self._timeline.faults[before:]:
                tell(f"{fault}, {fault.ended_s - fault.began_s:.1f} s")

    def kinds(self) -> list[Callable[[], None]]:
        found = [
            self.kill_leader,
            self.kill_follower,
            self.kill_both_leaders,
            self.freeze_leader,
            self.freeze_follower,
            self.stop_leader,
            self.step_clock,
            self.rolling_restart,
            self.kill_set,
            self.kill_everything,
            self.rot_segments,
            self.rot_newest_segment,
            self.rot_segments_and_kill,
            self.rot_queues,
            self.rot_key_index,
            self.rot_at_rest,
        ]
        if self._engine.network is not None:
            found += [
                self.isolate_leader,
                self.isolate_follower,
                self.cut_from_leader,
                self.cut_to_leader,
                self.lose_packets,
            ]
        if self._engine.disk is not None:
            found.append(self.fill_disk)
        return [one for one in found if not self._only or one.__name__ in self._only]

    def _next(self) -> Callable[[], None]:
        if not self._deck:
            self._deck = self.kinds()
            self._rng.shuffle(self._deck)
        return self._deck.pop()

    # -- processes ---------------------------------------------------------------------------------

    def kill_leader(self) -> None:
        broker_set, node = self._leader()
        with self._fault("kill leader", [node], [broker_set]):
            self._engine.kill(node)
            self._hold()
            self._engine.start(node)

    def kill_follower(self) -> None:
        _, _, node = self._follower()
        with self._fault("kill follower", [node]):
            self._engine.kill(node)
            self._hold()
            self._engine.start(node)

    def kill_both_leaders(self) -> None:
        sets = list(self._engine.sets)
        nodes = [questions.leader(self._engine, one) for one in sets]
        with self._fault("kill all leaders", nodes, sets):
            self._engine.kill(*nodes)
            self._hold()
            self._engine.start(*nodes)

    def freeze_leader(self) -> None:
        broker_set, node = self._leader()
        with self._fault("freeze leader", [node], [broker_set]):
            self._engine.freeze(node)
            self._hold()
            self._engine.thaw(node)

    def freeze_follower(self) -> None:
        _, _, node = self._follower()
        with self._fault("freeze follower", [node]):
            self._engine.freeze(node)
            self._hold()
            self._engine.thaw(node)

    def stop_leader(self) -> None:
        broker_set, node = self._leader()
        with self._fault("planned stop of leader", [node], [broker_set]):
            self._engine.stop(node)
            self._hold()
            self._engine.start(node)

    def rolling_restart(self) -> None:
        """One after the other, each when the one before is well again."""
        broker_set = self._set()
        with self._fault("rolling restart", self._engine.sets[broker_set]):
            for node in self._engine.sets[broker_set]:
                self._engine.stop(node)
                self._engine.start(node)
                questions.wait_well(self._engine, [broker_set])

    def kill_set(self) -> None:
        nodes = self._engine.sets[self._set()]
        with self._fault("kill a whole set", nodes):
            self._engine.kill(*nodes)
            self._hold()
            self._engine.start(*nodes)

    def kill_everything(self) -> None:
        nodes = questions.nodes_of(self._engine)
        with self._fault("kill everything", nodes):
            self._engine.kill(*nodes)
            self._engine.start(*nodes)

    def step_clock(self) -> None:
        node = self._rng.choice([self._leader()[1], self._follower()[2]])
        step_ms = self._rng.choice((-1, 1)) * self._rng.randint(200, CLOCK_STEP_MS_MAX)
        with self._fault(f"clock {step_ms:+} ms", [node]):
            self._engine.step_clock(node, step_ms)
            self._hold()
            self._engine.step_clock(node, 0)

    # -- network -----------------------------------------------------------------------------------

    def isolate_leader(self) -> None:
        broker_set, node = self._leader()
        self._isolate("isolate leader", node, [broker_set])

    def isolate_follower(self) -> None:
        _, _, node = self._follower()
        self._isolate("isolate follower", node)

    def _isolate(self, kind: str, node: str, leads: Sequence[str] = ()) -> None:
        network = self._engine.network
        assert network is not None
        with self._fault(kind, [node], leads):
            network.isolate(node)
            self._hold()
            network.rejoin(node)

    def cut_from_leader(self) -> None:
        _, leader, follower = self._follower()
        self._cut(leader, follower)

    def cut_to_leader(self) -> None:
        _, leader, follower = self._follower()
        self._cut(follower, leader)

    def _cut(self, source: str, target: str) -> None:
        network = self._engine.network
        assert network is not None
        with self._fault("one-way cut", [f"{source} to {target}"]):
            network.cut(source, target)
            self._hold()
            network.mend()

    def lose_packets(self) -> None:
        network = self._engine.network
        assert network is not None
        _, node = self._leader()
        share = round(self._rng.uniform(*_LOSS), 2)
        with self._fault(f"lose {share:.0%} of packets", [node]):
            network.lose(node, share)
            self._hold()
            network.mend()

    # -- disk --------------------------------------------------------------------------------------

    def fill_disk(self) -> None:
        disk = self._engine.disk
        assert disk is not None
        with self._fault("disk full", [disk.node]):
            disk.fill()
            self._hold()
            disk.free()

    # -- rot ---------------------------------------------------------------------------------------

    def rot_segments(self) -> None:
        """Of each node a segment of its own, and of some the `.idx`, too."""
        broker_set, rot = self._set(), self._rot()
        hit = spread(self._rng, rot.sealed(broker_set), self._engine.sets[broker_set])
        if not hit:
            return
        with self._fault("rot in segments", [node for node, _ in hit]):
            for node, segment in hit:
                part = self._rng.choice(("log", "idx", "both"))
                if part != "idx":
                    rot.flip(node, "log", rot.segment_flips(segment))
                if part != "log":
                    rot.flip(node, "idx", rot.idx_flips(node, segment))
            rot.wait_mended(rot.read_log)

    def rot_newest_segment(self) -> None:
        """Of a follower that has just started: it believes nothing that it has not written."""
        _, _, node = self._follower()
        rot = self._rot()
        with self._fault("rot in the newest segment", [node]):
            self._engine.kill(node)
            self._engine.start(node)
            questions.wait_well(self._engine, self._engine.sets)
            rot.flip(node, "newest log", rot.newest_flips(node))
            rot.wait_mended(rot.read_log)

    def rot_segments_and_kill(self) -> None:
        """Of each node another segment; the leader dies before it is mended."""
        broker_set, leader = self._leader()
        rot = self._rot()
        old = rot.sealed(broker_set, newer_bytes=2 * questions.VERIFIED_MIB << 20)
        hit = spread(self._rng, old, self._engine.sets[broker_set])
        if not hit:
            return
        nodes = [node for node, _ in hit]
        with self._fault(f"rot in segments and kill {leader}", nodes, [broker_set]):
            for node, segment in hit:
                rot.flip(node, "log", rot.segment_flips(segment))
            self._engine.kill(leader)
            self._hold()
            self._engine.start(leader)
            rot.restarted(leader)
            rot.wait_mended(rot.read_log)

    def rot_queues(self) -> None:
        """On every node of a set: the log has it all."""
        nodes, rot = self._engine.sets[self._set()], self._rot()
        flips = {node: rot.queue_flips(node, [*self._ledger.works]) for node in nodes}
        if not all(flips.values()):
            return
        with self._fault("rot in queues", nodes):
            for node in nodes:
                rot.flip(node, "queue", flips[node])
            rot.wait_mended(rot.read_queues)

    def rot_key_index(self) -> None:
        """Of a leader: it alone is asked for keys."""
        _, node = self._leader()
        rot = self._rot()
        flips = rot.index_flips(node)
        if not flips:
            return
        with self._fault("rot in the key index", [node]):
            rot.flip(node, "index", flips)
            rot.wait_mended(lambda _: self._find_keys())

    def _find_keys(self) -> None:
        """Of messages that were acknowledged: each is found by its key, or the answer is an error
        that says to come again.
        """
        work = self._rng.choice([one for one in self._ledger.works.values() if one.keyed])
        names = [self._rng.choice(work.keyed) for _ in range(_KEYS)]
        servers = questions.servers_of(self._engine)
        with Admin(servers, **self._engine.access.options) as admin:
            for name in names:
                try:
                    found = admin.query_messages(work.topic, name)
                except MqError:
                    continue
                if not found and not found.missing_sets:
                    self._ledger.errors.append(f"{work.topic}: {name} is not found by its key")

    def rot_at_rest(self) -> None:
        """Of one node that is down, or of all nodes of a set."""
        nodes, rot = self._engine.sets[self._set()], self._rot()
        nodes = self._rng.choice([nodes, [self._rng.choice(nodes)]])
        with self._fault("rot while stopped", nodes):
            self._engine.kill(*nodes)
            said = {node: rot.harm_stopped(node) for node in nodes}
            self._engine.start(*nodes)
            questions.wait_well(self._engine, self._engine.sets)
            for node, texts in said.items():
                rot.check_made_again(node, texts)

    # -- what they share ---------------------------------------------------------------------------

    def _rot(self) -> Rot:
        return Rot(self._engine, self._rng, self._ledger)

    def _set(self) -> str:
        return self._rng.choice(list(self._engine.sets))

    def _leader(self) -> tuple[str, str]:
        broker_set = self._set()
        return broker_set, questions.leader(self._engine, broker_set)

    def _follower(self) -> tuple[str, str, str]:
        """A set, its leader, and one that follows it."""
        broker_set, leader = self._leader()
        others = [node for node in self._engine.sets[broker_set] if node != leader]
        return broker_set, leader, self._rng.choice(others)

    def _hold(self) -> None:
        self._over.wait(self._rng.uniform(*_HOLD_S))

    @contextlib.contextmanager
    def _fault(self, kind: str, nodes: Sequence[str], leads: Sequence[str] = ()) -> Iterator[None]:
        """From the first harm until every node is well again."""
        fault = self._timeline.begin(kind, list(nodes), leads)
        try:
            yield
            questions.wait_well(self._engine, self._engine.sets)
        finally:
            self._timeline.end(fault)
