"""Replication to followers, and applying: hazards of PySyncObj around sending and applying.

Each promise is shown twice: it holds, and with the guard taken out, so that PySyncObj does what it
does by itself, it breaks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mq.errors import MqError, StorageFailed
from mq.raft.progress import Progress
from mq.raft.replica import Replica
from mq.raft.replication import Replication
from mq.store.format import HEADER_BYTES, Kind, decode_header
from tests.sim.machine import CountingMachine
from tests.sim.network import Weather
from tests.sim.node import LIMITS, Setup
from tests.sim.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from mq.raft.contracts import Outcome
    from mq.raft.engine import Peer
    from mq.store.logreader import Entry
    from tests.sim.network import Sent
    from tests.sim.node import SimNode


MANY = Setup(limits=LIMITS._replace(proposals_max=1000), segment_bytes=1 << 20)


def load(world: World, count: int, pace_s: float, size: int = 300) -> None:
    """To the leader, one after another."""
    for _ in range(count):
        world.propose(bytes(size))
        world.run(pace_s)


def entries_sent(record: list[Sent], receiver: SimNode) -> list[int]:
    """The raft indexes of all entries that were sent to a node."""
    indexes = []
    for sent in record:
        body = sent.frame.body
        if sent.receiver != receiver.name:
            continue
        position = 0
        while position < len(body):
            header = decode_header(body, position)
            assert header is not None
            indexes.append(header.raft_index)
            position += HEADER_BYTES + header.length
    return indexes


# -- probing ---------------------------------------------------------------------------------------


@pytest.fixture
def without_probing(monkeypatch: pytest.MonkeyPatch) -> None:
    def feed(progress: Progress) -> None:
        progress.match_index = 0
        progress.is_probing = False

    def go_on(progress: Progress, next_index: int) -> bool:
        progress.next_index = next_index
        return False

    monkeypatch.setattr(Progress, "start_probing", feed)
    monkeypatch.setattr(Progress, "refused", go_on)


def come_back_under_load(world: World) -> tuple[int, int]:
    """The number of entries sent to a node that was away, and the number it lacked."""
    leader = world.settle()
    away = world.others(leader)[0]
    away.stop(is_power_loss=False)
    load(world, 100, 0.01)
    lacked = leader.log.last_index - away.log.last_index
    world.network.record = []
    world.network.weather = Weather(delay_s=0.04, jitter_s=0.0)
    away.start()
    load(world, 100, 0.01)
    world.run(3.0)
    assert world.leader() is leader
    assert away.log.last_index == leader.log.last_index
    return len(entries_sent(world.network.record, away)), lacked + 100


def test_a_follower_that_was_away_is_asked_where_it_stands_before_it_is_fed() -> None:
    with World(1, setup=MANY) as world:
        sent, lacked = come_back_under_load(world)
        assert sent < 1.6 * lacked, (sent, lacked)
        world.converge()


@pytest.mark.usefixtures("without_probing")
def test_without_probing_a_follower_that_was_away_is_flooded() -> None:
    with World(1, setup=MANY) as world:
        sent, lacked = come_back_under_load(world)
        assert sent > 3 * lacked, (sent, lacked)


def test_a_follower_that_cannot_match_is_asked_once_a_heartbeat() -> None:
    """Its disk is full: it says so each time, and the leader does not spin."""
    with World(1) as world:
        leader = world.settle()
        full = world.others(leader)[0]
        full.vfs.capacity_bytes = full.vfs._used_bytes
        load(world, 40, 0.05)
        world.network.record = []
        world.run(2.0)
        frames = [sent for sent in world.network.record if sent.receiver == full.name]
        assert len(frames) <= 25
        assert full.log.last_index < leader.log.last_index
        world.converge()


# -- the next index --------------------------------------------------------------------------------


@pytest.fixture
def going_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PySyncObj does: what is on its way is sent again."""
    matched = Progress.matched

    def go_back(progress: Progress, next_index: int) -> None:
        matched(progress, next_index)
        progress.next_index = next_index

    monkeypatch.setattr(Progress, "matched", go_back)


def replicate_on_a_slow_link(world: World) -> dict[str, tuple[int, int]]:
    """For each follower how many entries were sent, and how many different ones."""
    leader = world.settle()
    world.network.record = []
    world.network.weather = Weather(delay_s=0.05, jitter_s=0.0)
    load(world, 200, 0.004)
    world.run(1.0)
    sent = {node.name: entries_sent(world.network.record, node) for node in world.others(leader)}
    return {name: (len(indexes), len(set(indexes))) for name, indexes in sent.items()}


def test_an_entry_is_sent_once_to_a_follower_that_takes_it() -> None:
    with World(1, setup=MANY) as world:
        for sent, different in replicate_on_a_slow_link(world).values():
            assert sent == different == 200


@pytest.mark.usefixtures("going_back")
def test_a_next_index_that_goes_back_sends_much_again() -> None:
    with World(1, setup=MANY) as world:
        for sent, different in replicate_on_a_slow_link(world).values():
            assert sent > 1.3 * different


# -- flow control ----------------------------------------------------------------------------------


class SendsWhateverThereIs(Replication):
    def _has_open_flow(self, peer: Peer) -> bool:
        return peer.progress.is_connected


def load_a_slow_link(world: World) -> None:
    leader = world.settle()
    for other in world.others(leader)[:1]:
        world.network.slow_s[leader.name, other.name] = 3.0
    load(world, 300, 0.005, size=1000)
    assert len(world.ledger.acknowledged) > 250
    assert world.leader() is leader


BUFFER_BYTES = 20_000


def test_bytes_in_flight_to_a_slow_follower_are_bounded() -> None:
    with World(1, setup=Setup(buffer_bytes=BUFFER_BYTES)) as world:
        load_a_slow_link(world)
        # What has room is a whole region, which is at most a segment here.
        assert world.network.bytes_in_flight_max < BUFFER_BYTES + 2 * 3000
        world.network.slow_s.clear()
        world.converge()


def test_without_flow_control_what_is_on_its_way_grows_with_the_load() -> None:
    with World(
        1, setup=Setup(replication_class=SendsWhateverThereIs, buffer_bytes=BUFFER_BYTES)
    ) as world:
        load_a_slow_link(world)
        assert world.network.bytes_in_flight_max > 5 * BUFFER_BYTES


# -- errors while applying -------------------------------------------------------------------------


class Endless(BaseException):
    """Nothing catches this by accident."""


class Poisoned(CountingMachine):
    """Cannot apply one entry: a bug, or derived files that cannot be written."""

    error: Exception
    attempts: int
    only: str

    def apply_through(self, raft_index: int) -> None:
        before = self._on_apply

        def check(entry: Entry) -> None:
            if bytes(entry.payload) == b"poison" and self.is_poisoned:
                Poisoned.attempts += 1
                if Poisoned.attempts > 20:
                    raise Endless
                self.applied_index -= 1
                raise self.error
            before(entry)

        self._on_apply = check
        try:
            super().apply_through(raft_index)
        finally:
            self._on_apply = before

    is_poisoned = False


class TriesForEver(Replica):
    """As PySyncObj's loop: an error of a tick is logged, and the next tick comes."""

    def _guarded(self, action: Callable[..., object], *arguments: object) -> None:
        try:
            action(*arguments)
            self._settle()
        except Exception:  # noqa: BLE001, S110
            pass


def apply_what_cannot_be_applied(world: World, error: Exception) -> tuple[SimNode, list[Outcome]]:
    leader = world.settle()
    leader.may_have_bugs = True
    assert isinstance(leader.machine, Poisoned)
    leader.machine.is_poisoned = True
    Poisoned.error, Poisoned.attempts = error, 0
    outcomes: list[Outcome] = []
    assert leader.replica is not None
    leader.replica.propose(Kind.COMMAND, [b"poison"], outcomes.append)
    leader.replica.propose(Kind.COMMAND, [b"behind it"], outcomes.append)
    leader.tick()
    world.run(3.0)
    return leader, outcomes


@pytest.mark.parametrize("error", [StorageFailed("no derived file"), ZeroDivisionError()])
def test_a_node_that_cannot_apply_an_entry_ends_and_answers_all_proposers(error: Exception) -> None:
    with World(1, setup=Setup(machine_class=Poisoned)) as world:
        leader, outcomes = apply_what_cannot_be_applied(world, error)
        assert Poisoned.attempts == 1
        assert not leader.is_up
        assert len(outcomes) == 2
        assert all(isinstance(outcome, MqError) for outcome in outcomes)
        world.commit()
        assert world.leader() is not leader
        world.converge()


def test_a_loop_that_goes_on_after_an_error_tries_for_ever() -> None:
    setup = Setup(machine_class=Poisoned, replica_class=TriesForEver)
    with World(1, setup=setup) as world, pytest.raises(Endless):
        apply_what_cannot_be_applied(world, ZeroDivisionError())
