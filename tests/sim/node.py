"""One simulated node: a real replica, journal, CommitLog and vote file on an in-memory disk that
survives the crashes of its process.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from mq.errors import MqError, StorageFailed
from mq.raft.contracts import Leadership, Limits, Role, Settings, Timing
from mq.raft.core import Core
from mq.raft.election import Election
from mq.raft.frames import Frame
from mq.raft.replica import Replica
from mq.raft.replication import Replication
from mq.raft.vote import VoteFile
from mq.store.commitlog import CommitLog
from mq.store.format import HEADER_BYTES, Kind, decode_header
from mq.wire.v1.raft_pb2 import RaftFrame, TimeoutNow
from tests.sim.ledger import Violation
from tests.sim.machine import CountingMachine
from tests.support.faulty_vfs import FaultyVfs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mq.raft.contracts import Outcome
    from mq.store.logreader import Entry
    from tests.sim.world import World

SEGMENT_BYTES = 3000
TIMING = Timing()
LIMITS = Limits(entry_bytes_max=4096, append_bytes_max=2048, proposals_max=64)


class Setup(NamedTuple):
    """The parts of nodes. A scenario takes a guard out by giving a class of its own."""

    core_class: type[Core] = Core
    election_class: type[Election] = Election
    replication_class: type[Replication] = Replication
    replica_class: type[Replica] = Replica
    machine_class: type[CountingMachine] = CountingMachine
    vote_class: type[VoteFile] = VoteFile
    timing: Timing = TIMING
    limits: Limits = LIMITS
    segment_bytes: int = SEGMENT_BYTES
    # Async flush.
    counts_unsynced: bool = False
    # Of one connection, in one direction.
    buffer_bytes: int = 1 << 16


class SimNode:
    def __init__(
        self,
        world: World,
        name: str,
        members: Mapping[str, str],
        *,
        is_joining: bool = False,
    ) -> None:
        self.name = name
        self.world = world
        self.vfs = FaultyVfs(world.rng.getrandbits(32))
        self.peers: Mapping[str, str] = {}
        self.sync_s = 0.002
        self.setup = world.setup
        self.clock_skew_ms = world.rng.randint(-200, 200)
        self.replica: Replica | None = None
        self.starts = 0
        self.may_have_bugs = False
        self.leaderships: list[Leadership] = []
        self.durable_terms: dict[int, int] = {}
        self._members = dict(members)
        self._is_joining = is_joining
        self._is_syncing = False
        self._checked = 0  # entries up to here are in the ledger
        self._checked_term = 0
        self._committed = 0
        self._start_overs = 0
        self._must_catch_up = False
        self._members_before: Mapping[str, str] = {}

    # -- life --------------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        return self.replica is not None

    def must_catch_up(self) -> bool:
        return self.replica is not None and self.replica.vote.must_catch_up

    @property
    def core(self) -> Core:
        """The core of a node that is up and has a log."""
        assert self.replica is not None
        assert self.replica.core is not None
        return self.replica.core

    def start(self) -> None:
        self.starts += 1
        self._is_syncing = False
        self._checked = self._checked_term = self._committed = self._start_overs = 0
        vfs, setup = self.vfs, self.setup
        vfs.make_dirs("/data")
        vfs.sync_dir("/")
        try:
            log = CommitLog(
                vfs,
                "/data/commitlog",
                segment_bytes=setup.segment_bytes,
                verify_bytes=1 << 20,
                background=False,
            )
            vote = setup.vote_class(vfs, "/data/vote")
            self.log = log
            self.machine = setup.machine_class(vfs, "/data/machine", log, self._applied)
            self.world.network.start(self)
            settings = Settings(
                self.name,
                self._members,
                is_joining=self._is_joining,
                counts_unsynced=setup.counts_unsynced,
                timing=setup.timing,
                limits=setup.limits,
            )
            self.replica = setup.replica_class(
                settings,
                log,
                vote,
                self.machine,
                self,
                self,
                core_class=partial(
                    setup.core_class,
                    election_class=setup.election_class,
                    replication_class=setup.replication_class,
                ),
                rng=self.world.raft_rng,
            )
        except (MqError, OSError) as error:
            # The disk is full or broken at the moment: the world starts the node again later.
            self.world.note(f"{self.name} does not start: {error}")
            self.world.counts["failed starts"] += 1
            self.replica = None
            self.world.network.stop(self.name, is_silent=False)
            vfs.kill()
            return
        self.world.note(f"{self.name} starts, log {log.first_index}..{log.last_index}")
        self.world.counts["starts"] += 1
        self.world.counts["torn tails"] += log.recovery.cut_bytes > 0
        self.world.counts["starts from a saved state"] += (
            self.machine.applied_index > log.first_index
        )
        self._must_catch_up = vote.must_catch_up
        self._tick_later(self.starts)

    def stop(self, *, is_power_loss: bool, keep: float | None = None) -> None:
        """`keep`: which part of what was not synced survives."""
        if self.replica is None:
            return
        self._remember_durable(is_power_loss=is_power_loss)
        self.replica.end()
        self.replica = None
        self.world.network.stop(self.name, is_silent=is_power_loss)
        if is_power_loss:
            keep = self.world.rng.choice([0.0, 0.3, 0.7, 1.0]) if keep is None else keep
            self.vfs.crash(self.world.rng, keep)
        else:
            self.vfs.kill()
        self.world.note(f"{self.name} {'loses power' if is_power_loss else 'is killed'}")
        self.world.counts["power losses" if is_power_loss else "kills"] += 1

    def heal(self) -> None:
        """The disk has room and is quick again; a sync that hangs ends."""
        self.vfs.capacity_bytes = None
        self.vfs._faults.clear()
        self.sync_s = 0.002
        if self._is_syncing:
            start = self.starts
            self.world.schedule(self.sync_s, lambda: self._sync(start))
        if self.is_up:
            self.machine.is_full = False
        else:
            self.start()

    def _remember_durable(self, *, is_power_loss: bool) -> None:
        log = self.log
        counts_unsynced = self.setup.counts_unsynced and not is_power_loss
        last = log.last_index if counts_unsynced else log.durable_index
        first = max(log.first_index, last - 100)
        self.durable_terms = {i: log.term_at(i) for i in range(first, last + 1)}

    def _tick_later(self, start: int) -> None:
        def tick() -> None:
            if self.starts == start and self.replica is not None:
                self.tick()
                self.world.schedule(0.03 + self.world.rng.random() * 0.02, tick)

        self.world.schedule(self.world.rng.random() * 0.05, tick)

    def tick(self) -> None:
        replica = self.replica
        if replica is None:
            return
        replica.tick()
        while replica.has_more_to_apply:
            replica.tick()
        self._look_after(replica)

    def _look_after(self, replica: Replica) -> None:
        self.check()
        if replica.failure is not None:
            self.world.note(f"{self.name} fails: {replica.failure}")
            self.world.counts["disk failures"] += isinstance(replica.failure, StorageFailed)
            if "should not be" in str(replica.failure) and not self.may_have_bugs:
                raise Violation(f"{self.name}: {replica.failure}")
            self.stop(is_power_loss=False)

    # -- Links -------------------------------------------------------------------------------------

    def send(self, peer_id: str, frame: Frame) -> None:
        self.world.network.send(self.name, peer_id, frame)

    def has_room(self, peer_id: str) -> bool:
        return self.world.network.has_room(self.name, peer_id)

    def set_peers(self, addresses: Mapping[str, str]) -> None:
        self.peers = dict(addresses)

    # -- Endpoint ----------------------------------------------------------------------------------

    def connected(self, peer_id: str) -> None:
        if self.replica is not None:
            self.replica.on_connected(peer_id)
            self.tick()

    def disconnected(self, peer_id: str, *, was_lost: bool) -> None:
        if self.replica is not None:
            self.replica.on_disconnected(peer_id, was_lost=was_lost)
            self.tick()

    def receive(self, peer_id: str, frame: Frame) -> None:
        if self.replica is not None:
            self.replica.receive(peer_id, frame)
            self.tick()

    def writable(self) -> None:
        if self.replica is not None:
            self.replica.on_writable()
            self.tick()

    # -- disk and clock ----------------------------------------------------------------------------

    def now_ms(self) -> int:
        return 1_000_000 + self.clock_skew_ms + int(self.world.now_s * 1000)

    def now_s(self) -> float:
        return self.world.now_s

    def request_sync(self) -> None:
        if not self._is_syncing:
            self._is_syncing = True
            start = self.starts
            delay_s = self.sync_s * (0.5 + self.world.rng.random())
            self.world.schedule(delay_s, lambda: self._sync(start))

    def on_leadership(self, leadership: Leadership) -> None:
        before = self.leaderships[-1].role if self.leaderships else Role.FOLLOWER
        self.world.counts["step-downs"] += before == Role.LEADER != leadership.role
        self.leaderships.append(leadership)

    def _sync(self, start: int) -> None:
        if self.starts != start or self.replica is None:
            return
        self._is_syncing = False
        try:
            self.log.sync()
        except MqError as error:
            self.replica.fail(error)
        else:
            self.replica.on_synced()
        self.tick()

    # -- work --------------------------------------------------------------------------------------

    def propose(self, payload: bytes) -> None:
        """Whatever comes of it is in the ledger."""
        if self.replica is None:
            return
        try:
            self.replica.propose(Kind.COMMAND, [payload], self._ended)
        except MqError:
            self.world.refused += 1
        else:
            self.world.proposed += 1
            self.replica.write()
            self._look_after(self.replica)

    def _ended(self, outcome: Outcome) -> None:
        self.world.ended += 1
        if isinstance(outcome, MqError):
            self.world.failed += 1
            self.world.counts[f"ended with {type(outcome).__name__}"] += 1
        else:
            # The commit was seen by now, by the leader's own step.
            self._check_commit()
            self.world.ledger.acknowledge(outcome.raft_index, outcome.term)

    def _applied(self, entry: Entry) -> None:
        ref = entry.ref
        header = decode_header(self.log.read(ref.log_offset, HEADER_BYTES))
        self.world.ledger.apply(ref.raft_index, ref.term, header.crc if header else 0)

    def ask_to_lead(self, other: SimNode) -> None:
        """Whether or not it has all of the log."""
        message = RaftFrame(term=self.core.term, timeout_now=TimeoutNow())
        self.send(other.name, Frame(message))

    # -- invariants --------------------------------------------------------------------------------

    def check(self) -> None:
        """After each step of this node."""
        replica = self.replica
        if replica is None or replica.core is None or replica.failure is not None:
            return
        core, ledger = replica.core, self.world.ledger
        is_new = core.role == Role.LEADER and ledger.leaders.get(core.term) != self.name
        if is_new:
            ledger.lead(self.name, core.term)
            self.world.note(f"{self.name} leads term {core.term}")
        self._check_log()
        self._check_commit()
        if self._must_catch_up != replica.vote.must_catch_up:
            self._must_catch_up = replica.vote.must_catch_up
            self.world.counts["caught up"] += not self._must_catch_up
        if is_new:
            self._check_complete(core.term)

    def _check_log(self) -> None:
        log, ledger = self.log, self.world.ledger
        if (self._checked, self._checked_term) == (log.last_index, log.last_term):
            return
        if self._checked > log.last_index or (
            self._checked >= log.first_index and log.term_at(self._checked) != self._checked_term
        ):
            self._checked = 0
            self.world.counts["truncations"] += 1
        start = max(self._checked + 1, log.first_index)
        for index in range(start, log.last_index + 1):
            ref = log.ref(index)
            header = decode_header(log.read(ref.log_offset, HEADER_BYTES))
            if header is None or header.raft_index != index:
                raise Violation(f"{self.name}: no entry {index} where it should be")
            prev_term = log.term_at(index - 1) if index > log.first_index else None
            ledger.entry(index, ref.term, header.crc, prev_term)
        self._checked, self._checked_term = log.last_index, log.last_term

    def _check_commit(self) -> None:
        replica, ledger = self.replica, self.world.ledger
        if replica is None or replica.core is None:
            return
        # A commit index beyond the log is harmless as long as nothing is there.
        commit_index = min(replica.core.commit_index, self.log.last_index)
        if replica.start_overs > self._start_overs:
            self._start_overs, self._committed = replica.start_overs, 0
            self.world.counts["start-overs"] += 1
        if commit_index < self._committed:
            raise Violation(f"{self.name}: commit goes from {self._committed} to {commit_index}")
        if commit_index == self._committed:
            return
        for index in range(max(self._committed + 1, self.log.first_index), commit_index + 1):
            term = self.log.term_at(index)
            is_news = index not in ledger.committed
            ledger.commit(index, term)
            if is_news:
                self._check_durable(index, term, replica.membership.members)
        self._committed = commit_index
        self._members_before = dict(replica.membership.members)

    def _check_durable(self, index: int, term: int, members: Mapping[str, str]) -> None:
        """On a majority of the members, or of those before, if they changed in this step."""
        if index == 1:
            return
        for group in (self._members_before, members):
            count = sum(self.world.nodes[member].has_durable(index, term) for member in group)
            if count > len(group) / 2:
                return
        where = "in the logs of" if self.setup.counts_unsynced else "durable on"
        raise Violation(
            f"durability: entry {index} of term {term} is committed by {self.name} and {where} "
            f"{count} of {len(group)}: {self.world.state()}"
        )

    def has_durable(self, index: int, term: int) -> bool:
        """In async flush mode, where this is all that is promised: has it."""
        if self.replica is None:
            return self.durable_terms.get(index) == term
        log = self.log
        if index < log.first_index:
            return self.machine.applied_index >= index
        last_index = log.last_index if self.setup.counts_unsynced else log.durable_index
        return index <= last_index and log.term_at(index) == term

    def _check_complete(self, term: int) -> None:
        log = self.log
        for index, committed_term in self.world.ledger.committed.items():
            if index < log.first_index or committed_term >= term:
                continue
            if index > log.last_index or log.term_at(index) != committed_term:
                raise Violation(
                    f"leader completeness: {self.name} leads term {term} without entry {index} "
                    f"of term {committed_term}"
                )
