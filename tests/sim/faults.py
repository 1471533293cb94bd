"""A seed becomes a story: the faults, their times, the nodes that they hit, the load.

Each seed first draws how bad things are (a profile of weights), so that some runs are all crashes
and others all network, and then one fault after another.
"""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING

from mq.errors import MqError
from mq.raft.contracts import Committed
from tests.sim.network import Weather
from tests.sim.node import Setup, SimNode
from tests.sim.world import World

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from mq.raft.contracts import Outcome

FAULTS_S = 8.0
_NODES_MAX = 7


def run_seed(seed: int, setup: Setup = Setup(), *, shows_notes: bool = False) -> World:  # noqa: B008
    """Three or five nodes, eight seconds of faults, then peace. Raises Violation."""
    count = 5 if seed % 4 == 0 else 3
    with World(seed, count, setup) as world:
        world.shows_notes = shows_notes
        story = Story(world)
        try:
            story.begin()
            world.run(FAULTS_S)
            world.converge()
        except BaseException as error:
            error.add_note(f"drawn from seed {seed}: {count} nodes, {story.profile}")
            raise
    return world


class Story:
    def __init__(self, world: World) -> None:
        self._world = world
        self._rng: random.Random = world.rng
        self._is_over = False
        self._joined = 0
        faults: dict[Callable[[], None], float] = {
            self._lose_power: 3,
            self._kill: 3,
            self._kill_all: 0.4,
            self._start: 6,
            self._cut_one_way: 2,
            self._isolate: 2,
            self._split: 1,
            self._drop_connection: 1.5,
            self._heal_network: 5,
            self._weather: 3,
            self._slow_disk: 1.5,
            self._fail_sync: 0.7,
            self._fill_disk: 1,
            self._free_disk: 2,
            self._drop_segments: 2,
            self._save_machine: 2,
            self._transfer: 1,
            self._add_node: 1.5,
            self._remove_node: 0.6,
        }
        self._faults = list(faults)
        # Some seeds have much of one thing and nothing of another.
        self._weights = [
            weight * self._rng.choice([0.0, 0.5, 1.0, 3.0]) + 0.001 for weight in faults.values()
        ]
        self._pace_s = self._rng.choice([0.1, 0.3, 0.8])
        self._load_s = self._rng.choice([0.01, 0.03, 0.1])

    @property
    def profile(self) -> str:
        """The draws of the seed before the first fault."""
        weights = zip(self._faults, self._weights, strict=True)
        faults = [f"{_name(fault)} {weight:.2g}" for fault, weight in weights if weight > 0.01]
        return (
            f"a fault about every {self._pace_s} s, work every {self._load_s} s; "
            f"weights: {', '.join(faults)}"
        )

    def begin(self) -> None:
        self._world.draw(f"{len(self._world.nodes)} nodes, {self.profile}")
        self._world.schedule(0.8 * self._rng.random(), self._next_fault)
        self._world.schedule(0.1, self._work)

    def _next_fault(self) -> None:
        if self._world.now_s >= FAULTS_S:
            return
        (fault,) = self._rng.choices(self._faults, self._weights)
        self._world.draw(_name(fault))
        fault()
        self._world.schedule(self._pace_s * (0.3 + 1.4 * self._rng.random()), self._next_fault)

    def _work(self) -> None:
        if self._world.now_s >= FAULTS_S:
            return
        for _ in range(self._rng.choice([1, 1, 1, 4])):
            payload = self._rng.randbytes(self._rng.choice([8, 40, 200, 900]))
            if self._rng.random() < 0.8:
                self._world.propose(payload)
            else:
                self._some_node().propose(payload)
        self._world.schedule(self._load_s * (0.5 + self._rng.random()), self._work)

    # -- nodes -------------------------------------------------------------------------------------

    def _some_node(self) -> SimNode:
        leader = self._world.leader()
        if leader is not None and self._rng.random() < 0.3:
            return leader
        return self._rng.choice(list(self._world.nodes.values()))

    def _pair(self) -> tuple[str, str]:
        first, second = self._rng.sample(sorted(self._world.nodes), 2)
        return first, second

    # -- processes ---------------------------------------------------------------------------------

    def _lose_power(self) -> None:
        self._some_node().stop(is_power_loss=True)

    def _kill(self) -> None:
        self._some_node().stop(is_power_loss=False)

    def _kill_all(self) -> None:
        is_power_loss = self._rng.random() < 0.5
        for node in self._world.nodes.values():
            node.stop(is_power_loss=is_power_loss)
            self._world.schedule(self._rng.random(), lambda node=node: self._start_one(node))  # type: ignore[misc]

    def _start(self) -> None:
        down = [node for node in self._world.nodes.values() if not node.is_up]
        if down:
            self._start_one(self._rng.choice(down))

    def _start_one(self, node: SimNode) -> None:
        if not node.is_up:
            node.start()

    # -- network -----------------------------------------------------------------------------------

    def _cut_one_way(self) -> None:
        sender, receiver = self._pair()
        self._world.note(f"cut {sender} -> {receiver}")
        self._world.network.cut(sender, receiver)

    def _isolate(self) -> None:
        name = self._some_node().name
        self._world.note(f"cut {name} off")
        for other in self._world.nodes:
            if other != name:
                self._world.network.cut(name, other)
                self._world.network.cut(other, name)

    def _split(self) -> None:
        names = sorted(self._world.nodes)
        self._rng.shuffle(names)
        half = len(names) // 2
        self._world.note(f"split {names[:half]} from {names[half:]}")
        for first in names[:half]:
            for second in names[half:]:
                self._world.network.cut(first, second)
                self._world.network.cut(second, first)

    def _drop_connection(self) -> None:
        first, second = self._pair()
        self._world.draw(f"the connection of {first} and {second} breaks")
        self._world.network.drop(first, second)

    def _heal_network(self) -> None:
        self._world.note("the network heals")
        self._world.network.heal()

    def _weather(self) -> None:
        weather = Weather(
            loss=self._rng.choice([0, 0, 0.02, 0.2]),
            duplicate=self._rng.choice([0, 0, 0.05, 0.2]),
            delay_s=self._rng.choice([0.0005, 0.001, 0.02]),
            jitter_s=self._rng.choice([0.0005, 0.005, 0.1]),
        )
        self._world.note(f"{weather}")
        self._world.network.weather = weather

    # -- disks -------------------------------------------------------------------------------------

    def _slow_disk(self) -> None:
        node = self._some_node()
        node.sync_s = self._rng.choice([0.002, 0.03, 0.3, 1.5])
        self._world.draw(f"a sync of {node.name} takes {node.sync_s} s")

    def _fail_sync(self) -> None:
        node = self._some_node()
        self._world.note(f"the disk of {node.name} fails")
        path = self._rng.choice(["commitlog", "vote"])
        after = self._rng.randint(0, 3)
        self._world.draw(f"after {after} syncs of {path}")
        node.vfs.fail("sync", path, errno.EIO, after=after)

    def _fill_disk(self) -> None:
        node = self._some_node()
        self._world.note(f"the disk of {node.name} is full")
        free = self._rng.choice([0, 500, 5000])
        self._world.draw(f"but for {free} bytes")
        node.vfs.capacity_bytes = node.vfs._used_bytes + free

    def _free_disk(self) -> None:
        for node in self._world.nodes.values():
            node.vfs.capacity_bytes = None

    def _drop_segments(self) -> None:
        """Retention, on one node: the others may need what goes."""
        for node in self._world.up():
            infos = node.log.segments()
            count = len(infos) - 1
            while count > 0 and infos[count].first_index > node.machine.applied_index:
                count -= 1
            if count > 0 and self._rng.random() < 0.7:
                self._world.draw(f"{node.name} drops {count} segments")
                self._world.counts["segments dropped"] += count
                try:
                    node.log.drop_front(count)
                except MqError as error:
                    if node.replica is not None:
                        node.replica.fail(error)
                node.tick()

    def _save_machine(self) -> None:
        for node in self._world.up():
            if node.machine.applied_index:
                try:
                    node.machine.save()
                except (MqError, OSError):
                    node.stop(is_power_loss=False)

    # -- leadership and members --------------------------------------------------------------------

    def _transfer(self) -> None:
        leader = self._world.leader()
        if leader is None or leader.replica is None:
            return
        if self._world.counts["transfers"] % 2:
            self._world.counts["transfers"] += leader.replica.hand_over()
            return
        # As an operator does: in the way of whatever else goes on.
        with contextlib.suppress(MqError):
            leader.replica.begin_transfer("", 1.0)
            self._world.counts["transfers"] += 1

    def _add_node(self) -> None:
        world, leader = self._world, self._world.leader()
        if leader is None or leader.replica is None or len(world.nodes) >= _NODES_MAX:
            return
        try:
            node = world.join(leader, lambda outcome: self._changed("added", outcome))
        except MqError:
            return
        node.start()

    def _remove_node(self) -> None:
        leader = self._world.leader()
        if leader is None or leader.replica is None or len(leader.replica.membership.members) <= 2:
            return
        name = self._rng.choice(sorted(leader.replica.membership.members))
        try:
            leader.replica.remove_member(name, lambda outcome: self._changed("removed", outcome))
        except MqError:
            self._world.counts["removals refused"] += 1
            return
        self._world.note(f"{name} leaves")

    def _changed(self, what: str, outcome: Outcome) -> None:
        how = "" if isinstance(outcome, Committed) else f", {type(outcome).__name__}"
        self._world.counts[f"{what}{how}"] += 1


def _name(fault: Callable[[], None]) -> str:
    return fault.__name__.strip("_").replace("_", " ")
