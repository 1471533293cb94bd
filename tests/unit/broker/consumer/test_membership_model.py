"""A group under everything that happens to one: members that come, leave, die, are late with
heartbeats and releases; locks that are late or lost; leaders that change.

The promises are checked against the queues that the clients really work on, after every step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mq.broker.consumer.membership import Group, Spec
from mq.broker.queue import Queue
from mq.errors import UnknownMember
from mq.wire.v1.consumer_pb2 import MODE_CLUSTERING, MODE_ORDERED

if TYPE_CHECKING:
    from collections.abc import Collection

EXPIRES_MS = 30_000
REVOKE_MS = 15_000
NAMES = st.sampled_from("ABCDE")


@dataclass
class Client:
    """Lives by the rules of the protocol: it knows what it was last told, works on what it has in
    hand, and stops by itself when it could not reach the broker for as long as that waits for it.
    """

    name: str
    is_streaming: bool
    heard_ms: int
    is_cut_off: bool = False
    told: frozenset[Queue] = frozenset()
    hand: set[Queue] = field(default_factory=set)

    def hear(self, assigned: frozenset[Queue], now_ms: int) -> None:
        self.told, self.heard_ms, self.is_cut_off = assigned, now_ms, False
        self.hand |= assigned

    def cut_off(self) -> None:
        self.told, self.is_cut_off = frozenset(), True
        self.hand.clear()


class GroupMachine(RuleBasedStateMachine):
    mode: int

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.queues = {Queue("t", number): "xy"[number % 2] for number in range(7)}
        self.clients: dict[str, Client] = {}
        self.locks: dict[Queue, str] = {}
        self.on_their_way: list[dict[Queue, str]] = []
        # The time at which a queue left the assignment of a member that still holds it.
        self.lost_ms: dict[tuple[str, Queue], int] = {}
        # Queues that were taken from a member that did not release them in time, and works on.
        self.doubled: set[Queue] = set()
        # What the streams of members were told.
        self.streams: dict[str, set[Queue]] = {}
        # As of the last rebalance.
        self.assigned: dict[str, frozenset[Queue]] = {}
        self.group = self._new_group(settle_until_ms=0)

    def _new_group(self, settle_until_ms: int) -> Group:
        group = Group("g", expires_ms=EXPIRES_MS, settle_until_ms=settle_until_ms)
        group.set_locks(self.locks, self.now_ms)
        return group

    def _arrange(self) -> None:
        """The driver's work after each step."""
        self.group.set_queues(self.queues)
        generation = self.group.generation
        has_changed = self.group.rebalance(self.now_ms)
        before, self.assigned = self.assigned, {}
        for name in self.group.members:
            self.assigned[name] = self.group.assigned(name)
            assert has_changed or before.get(name, frozenset()) == self.assigned[name]
        for name, (gained, lost) in self.group.take_changes().items():
            known = self.streams[name]
            assert known.isdisjoint(gained)
            assert known.issuperset(lost)
            self.streams[name] = (known - set(lost)) | set(gained)
        for name, member in self.group.members.items():
            assert not member.spec.is_streaming or self.streams[name] == self.assigned[name]
        assert self.group.generation == generation + has_changed
        for name, client in self.clients.items():
            if client.is_streaming and not client.is_cut_off and name in self.group.members:
                client.hear(self.group.assigned(name), client.heard_ms)

    def _spec(self, client: Client) -> Spec:
        zone = "xyz"[ord(client.name) % 3]
        return Spec(client.name, zone, self.mode, {"t": "*"}, "host:1", client.is_streaming)

    def _join(self, client: Client) -> None:
        self.group.join(self._spec(client), client.hand, self.now_ms)
        self.streams[client.name] = set()  # it gets its queues anew

    def _contact(self, client: Client) -> None:
        try:
            owned = None if client.is_streaming else client.hand
            self.group.heartbeat(client.name, self.now_ms, owned)
        except UnknownMember:
            self._join(client)
        self._arrange()
        client.hear(self.group.assigned(client.name), self.now_ms)

    # -- clients ----------------------------------------------------------------------------------

    @rule(name=NAMES, is_streaming=st.booleans())
    def start(self, name: str, is_streaming: bool) -> None:
        """Or starts anew, under the name of one that runs or was there before."""
        client = self.clients[name] = Client(name, is_streaming, self.now_ms)
        self._join(client)
        self._arrange()
        client.hear(self.group.assigned(name), self.now_ms)

    @rule(name=NAMES)
    def reconnect(self, name: str) -> None:
        if client := self.clients.get(name):
            self._join(client)
            self._arrange()
            client.hear(self.group.assigned(name), self.now_ms)

    @rule(name=NAMES)
    def heartbeat(self, name: str) -> None:
        if client := self.clients.get(name):
            self._contact(client)

    @rule()
    def all_heartbeat(self) -> None:
        for client in self.clients.values():
            self._contact(client)

    @rule(name=NAMES, some=st.sets(st.integers(0, 9)))
    def finish(self, name: str, some: set[int]) -> None:
        if client := self.clients.get(name):
            done = {q for q in client.hand - client.told if q.queue_id in some}
            self._let_go(client, done)

    def _let_go(self, client: Client, queues: Collection[Queue]) -> None:
        """One that pulls says so with its next heartbeat."""
        client.hand -= set(queues)
        if client.is_streaming:
            self.group.release(client.name, queues)
            self._arrange()

    @rule(name=NAMES)
    def leave(self, name: str) -> None:
        if self.clients.pop(name, None):
            self.group.leave(name)
            self._arrange()

    @rule(name=NAMES)
    def die(self, name: str) -> None:
        self.clients.pop(name, None)

    # -- the world --------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 1_000, 4_999, 10_000, REVOKE_MS, EXPIRES_MS]))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        for client in self.clients.values():
            if self.now_ms - client.heard_ms >= EXPIRES_MS:
                client.cut_off()

    @rule()
    def tick(self) -> None:
        gone = self.group.expire(self.now_ms)
        for name in gone:
            client = self.clients.get(name)
            assert client is None or self.now_ms - client.heard_ms >= EXPIRES_MS
        self._arrange()

    @rule(count=st.integers(0, 9))
    def change_queues(self, count: int) -> None:
        self.queues = {Queue("t", number): "xy"[number % 2] for number in range(count)}
        self._arrange()

    @rule()
    def write_locks(self) -> None:
        if changes := self.group.lock_changes():
            self.on_their_way.append(changes)

    @rule()
    def locks_arrive(self) -> None:
        if self.on_their_way:
            self.locks |= self.on_their_way.pop(0)
            self.group.set_locks(self.locks, self.now_ms)
            self._arrange()

    @rule()
    def locks_are_lost(self) -> None:
        if self.on_their_way:
            self.on_their_way.pop()

    @rule(arrived=st.integers(0, 3))
    def fail_over(self, arrived: int) -> None:
        """The first of what was on its way is in the log, the rest is lost."""
        for changes in self.on_their_way[:arrived]:
            self.locks |= changes
        self.on_their_way.clear()
        self.group = self._new_group(self.now_ms + EXPIRES_MS)
        self.assigned = {}
        self.lost_ms.clear()

    @rule()
    def come_to_rest(self) -> None:
        """All members are well for a while: all queues are assigned, evenly, and stay so."""
        for _ in range(2 * EXPIRES_MS // 5_000):
            self.pass_time(5_000)
            for client in list(self.clients.values()):
                self._let_go(client, client.hand - client.told)
                self._contact(client)
            self.tick()
            while self.on_their_way:
                self.locks_arrive()
            self.write_locks()
            self.check_hands()
        generation = self.group.generation
        self.all_heartbeat()
        assert self.group.generation == generation
        assert not self.group.is_rebalancing
        assert self.group.lock_changes() == {}
        hands = [client.hand for client in self.clients.values()]
        assert sum(map(len, hands)) == (len(self.queues) if hands else 0)
        assert len({*map(len, hands)}) <= 2
        assert max(map(len, hands), default=0) - min(map(len, hands), default=0) <= 1
        held = {queue: name for queue, name in self.locks.items() if name}
        owners = {queue: c.name for c in self.clients.values() for queue in c.hand}
        assert held == (owners if self.mode == MODE_ORDERED else {})

    # -- promises ---------------------------------------------------------------------------------

    @invariant()
    def nobody_is_assigned_what_another_is_or_has_in_hand(self) -> None:
        self.check_hands()

    def check_hands(self) -> None:
        assigned = {name: self.group.assigned(name) for name in self.group.members}
        owners = {queue: name for name, queues in assigned.items() for queue in queues}
        assert len(owners) == sum(map(len, assigned.values()))
        assert owners.keys() <= self.queues.keys()
        for queue, name in owners.items():
            assert self.group.owner(queue) == name
            assert self.mode != MODE_ORDERED or self.locks[queue] == name
        for client in self.clients.values():
            for queue in client.hand:
                self._check_hand(client, queue, owners.get(queue))
        self.lost_ms = {key: ms for key, ms in self.lost_ms.items() if key[1] in self._hand(key[0])}
        self.doubled &= {
            queue
            for queue in self.doubled
            if sum(queue in client.hand for client in self.clients.values()) > 1
        }

    def _hand(self, name: str) -> set[Queue]:
        return self.clients[name].hand if name in self.clients else set()

    def _check_hand(self, client: Client, queue: Queue, owner: str | None) -> None:
        key = client.name, queue
        if owner == client.name:
            self.lost_ms.pop(key, None)
            return
        lost_ms = self.lost_ms.setdefault(key, self.now_ms)
        if owner is None:
            return
        if self.mode == MODE_CLUSTERING and self.now_ms - lost_ms >= REVOKE_MS:
            self.doubled.add(queue)
        assert queue in self.doubled

    def teardown(self) -> None:
        self.come_to_rest()


class ClusteringMachine(GroupMachine):
    mode = MODE_CLUSTERING


class OrderedMachine(GroupMachine):
    mode = MODE_ORDERED


STEPS = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestClustering = ClusteringMachine.TestCase
TestClustering.settings = STEPS
TestOrdered = OrderedMachine.TestCase
TestOrdered.settings = STEPS


@pytest.mark.parametrize("machine", [ClusteringMachine, OrderedMachine])
@given(names=st.lists(NAMES, min_size=1, max_size=12), count=st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_little_moves_when_one_member_comes_or_goes(
    machine: type[GroupMachine], names: list[str], count: int
) -> None:
    world = machine()
    world.change_queues(count)
    for name in names:
        before = {one: set(client.hand) for one, client in world.clients.items()}
        if name in world.clients:
            world.leave(name)
        else:
            world.start(name, is_streaming=False)
        world.come_to_rest()
        gained = {
            queue
            for one, client in world.clients.items()
            for queue in client.hand - before.get(one, set())
        }
        if name in world.clients:
            assert gained == world.clients[name].hand
            assert len(gained) <= -(-count // len(world.clients))
        elif world.clients:
            assert gained == before[name]
