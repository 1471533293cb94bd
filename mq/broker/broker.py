"""The broker: its parts, put together. Services call them, the server drives `tick` and tells of
leadership.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from mq import names
from mq.broker import held
from mq.broker.atomic_sends import AtomicSends
from mq.broker.attribution import Actor, Attribution
from mq.broker.catalog import Catalog
from mq.broker.commit_window import CommitWindow
from mq.broker.consumer.arrivals import Arrivals
from mq.broker.consumer.commits import Commits
from mq.broker.consumer.groups import Groups
from mq.broker.consumer.pulling import Puller
from mq.broker.consumer.replicas import Replicas
from mq.broker.consumer.unsent import Unsent
from mq.broker.contracts import Consensus
from mq.broker.core import BrokerSettings, Core, Service
from mq.broker.delay.delays import Delays
from mq.broker.directory import Directory
from mq.broker.joined_sends import JoinedSends
from mq.broker.leading import Leadership
from mq.broker.missing_topics import MissingTopics
from mq.broker.page_in import PageIn
from mq.broker.publishing import Admit, Publisher, Slot
from mq.broker.queue import Queue
from mq.broker.receive.service import ReceiveService
from mq.broker.retry.dead_letters import DeadLetters
from mq.broker.retry.retrying import Retrying
from mq.broker.security.audit import AuditTrail
from mq.broker.security.changes import AccessChanges
from mq.broker.security.denials import Denials
from mq.broker.security.gate import Denial, Gate
from mq.broker.security.key_files import BrokerKeys
from mq.broker.security.login import Logins
from mq.broker.security.quotas import Quotas
from mq.broker.state.machine import AppliedEntry, Machine
from mq.broker.tracing.traces import Traces
from mq.broker.transaction.transacting import Transacting
from mq.broker.writing import EntryWriter
from mq.errors import MqError, NodeStopped, QueueDamaged, Rebuilding, TopicNotFound
from mq.logging import get_logger
from mq.store.batch import Batch
from mq.store.consumequeue import ConsumeQueue, QueueExtent
from mq.store.identity import Identity
from mq.wire.v1.state_pb2 import Command

log = get_logger(__name__)

_SETS_KNOWN_S = 3.0


class Broker:
    """Made on a running loop, and for that loop alone. It is the state machine of replication
    (`mq.raft.contracts.StateMachine`), which applies entries and tells all parts what they changed.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        machine: Machine,
        consensus: Consensus,
        now_ms: Callable[[], int],
        until_durable: Callable[[int], Awaitable[object]] | None,
        random_number: Callable[[], int],
        keys: BrokerKeys | None = None,
    ) -> None:
        """`until_durable` waits until the leader's log is on its disk up to a log offset; it is
        None with async flush. `random_number` gives 64 bits that cannot be guessed. `keys` are
        those that come from files.
        """
        self.settings = settings
        self.machine = machine
        self.state = machine.state
        self.store = machine.store
        # Parts of the state machine that are called for each entry.
        self.check_writable, self.appended = self.store.check_writable, machine.appended
        self.consensus = consensus
        self.writer = EntryWriter(
            consensus,
            Attribution(
                lambda: consensus.leading_term, lambda: self.store.log.last_checkpoint_index
            ),
            settings.config.store.entry_bytes_max,
        )
        self.now_ms = now_ms
        # Monotonic clock, for time-outs.
        self.steady_ms = _steady_ms
        self._until_durable = until_durable
        self.leadership = Leadership(consensus, machine)
        self.arrivals = Arrivals()
        self._make_security(keys or BrokerKeys())
        self.quotas = Quotas(self.state, machine.stored_bytes, self.steady_ms)
        self.directory = self._make_directory(random_number)
        self.page_in = PageIn(machine.store.log)
        self._make_publishing()
        self._make_consuming()
        self._make_services(
            Core(
                settings,
                self.writer,
                machine,
                self.leadership,
                self.catalog,
                self.arrivals,
                self.audit,
                self.page_in,
                now_ms,
                random_number,
            )
        )
        self._served_term = 0
        # Messages that retention dropped before a group had consumed them.
        self.lost_by_group: dict[str, int] = {}
        # Where queues started then: what was gone before is not lost again.
        self._dropped_through: dict[Queue, int] = {}

    def _make_publishing(self) -> None:
        config = self.settings.config
        self.catalog = Catalog(
            self.writer,
            self.machine,
            self.leadership,
            self.audit,
            self.quotas,
            self.directory.elsewhere,
            default_queues=config.broker.default_queues,
        )
        steady_s = self.settings.steady_s or asyncio.get_running_loop().time
        self.publisher = Publisher(
            self.writer,
            self.machine,
            self.leadership,
            self.catalog,
            resolve=self._resolve,
            window=CommitWindow(config.broker.in_flight_bytes, steady_s),
            entry_bytes_max=config.store.entry_bytes_max,
        )
        self.joined_sends = JoinedSends(
            self.publisher,
            self.state.topics,
            message_bytes_max=config.store.message_bytes_max,
            timeout_s=config.broker.send_timeout_ms / 1000,
        )

    def _make_security(self, keys: BrokerKeys) -> None:
        mode = self.settings.config.auth.mode
        writer, machine, leadership = self.writer, self.machine, self.leadership
        self.denials = Denials()
        self.audit = AuditTrail(writer, machine, leadership, self.now_ms, is_on=mode != "off")
        self.gate = Gate(
            self.state.access, mode, self.now_ms, self._on_denial, keys.is_cluster_key, keys.box
        )
        self.access_changes = AccessChanges(
            writer, machine, leadership, self.audit, self.now_ms, keys.box
        )
        self.logins = Logins(
            self.state.access, self.access_changes, self.audit, self.now_ms, self.steady_ms
        )

    def _make_directory(self, random_number: Callable[[], int]) -> Directory:
        node, seeds = self.settings.config.node, self.settings.config.broker.seeds
        return Directory(
            Identity(node.cluster, node.broker_set, node.id),
            self.state,
            self.consensus,
            [one for one in seeds.split(",") if one],
            random_number() >> 1,
            lambda: self.leadership.is_current,
        )

    def _make_consuming(self) -> None:
        options = self.settings.config.broker
        self.missing_topics = MissingTopics(
            self.settings, self.state.topics, self.directory, self.steady_ms
        )
        self.replicas = Replicas(
            self.settings.config.node.id,
            self.consensus,
            self.leadership,
            self.store.log,
            self.arrivals,
            backlog_bytes=options.backlog_bytes,
        )
        self.unsent = Unsent(options.unsent_bytes)
        self.puller = Puller(
            self.state.topics, self.store, self.arrivals, self.replicas, self.unsent
        )
        self.commits = Commits(self.writer, self.machine)
        self.groups = Groups(
            self.writer,
            self.machine,
            self.leadership,
            self.commits,
            self.puller,
            self.arrivals,
            _steady_ms,
            directory=self.directory,
            is_awaited=self.missing_topics.is_awaited,
            expires_ms=options.member_expires_ms,
        )

    def _make_services(self, core: Core) -> None:
        self.delays = Delays(core)
        self.transacting = Transacting(core, _steady_ms)
        self.retrying = Retrying(core, self.groups, self.commits)
        self.receiving = ReceiveService(core, self.groups, self.puller)
        self.dead_letters = DeadLetters(core)
        self.traces = Traces(self.machine, self.settings.config.node.broker_set, core.random_number)
        self.atomic_sends = AtomicSends(
            core, self.publisher, self.groups, self.commits, self.receiving
        )
        self._services: tuple[Service, ...] = (
            self.delays,
            self.transacting,
            self.retrying,
            self.receiving,
        )

    def admission(self, user: str) -> Admit | None:
        """Of batches of a user, by its quotas; None: there are none."""
        return partial(self.quotas.publish_batch, user) if self.quotas.is_limiting else None

    async def submit(
        self,
        batch: Batch,
        *,
        user: str = "",
        owner: str = "",
        tells_appended: bool = False,
        sender: Actor | None = None,
    ) -> Slot:
        """As `Publisher.submit`, within the quotas of the user; creates the topic where that is
        allowed.
        """
        submit = partial(
            self.publisher.submit,
            batch,
            tells_appended=tells_appended,
            admit=self.admission(user),
            owner=owner,
            sender=sender,
        )
        try:
            return submit()
        except TopicNotFound:
            if not self.settings.creates_topics:
                raise
        await self.until_sets_known()
        self.directory.check_nowhere_else(batch.topic)
        await self.catalog.ensure([batch.topic])
        return submit()

    async def on_leader(self, slot: Slot) -> None:
        """Returns when the leader has the batch in its log, on disk unless flush is async."""
        if slot.appended is None:
            await slot.outcome
            return
        ref = await slot.appended
        if self._until_durable is not None:
            await self._until_durable(ref.end_log_offset)

    def stored_at_ms(self, queue: ConsumeQueue, queue_offset: int) -> int:
        """The time at which a message of the queue was stored; 0 while that part of the queue
        cannot be read.
        """
        try:
            log_offsets = queue.read(queue_offset, queue_offset + 1)["log_offset"].astype("i8")
        except (QueueDamaged, Rebuilding):
            return 0
        return int(self.store.log.stored_at(log_offsets)[0])

    def tick(self) -> None:
        """Called a few times a second: what follows from time alone, and from leadership."""
        self.on_leadership()
        self.gate.tick()
        if self.leadership.is_serving:
            self.audit.tick()
            self.groups.tick()
            for service in self._services:
                service.tick()

    def on_leadership(self) -> None:
        """Called whenever the role, the term or the applied term has changed."""
        self.leadership.on_change()
        self.replicas.refresh()
        is_serving, term = self.leadership.is_serving, self.leadership.term
        if self._served_term and (not is_serving or term != self._served_term):
            self._served_term = 0
            self._step_down(self.leadership.refusal())
        if is_serving and not self._served_term:
            self._served_term = term
            self.audit.lead()
            self.groups.lead()
            for service in self._services:
                service.lead()

    def drain(self) -> None:
        """The node stops: members go to another one, or come back when it is up again."""
        self.puller.drain()
        self._served_term = 0
        error = self.leadership.refusal()
        stopped = NodeStopped("this node is stopping: another one leads, or it comes back")
        self._step_down(error if error.address else stopped)

    def _step_down(self, error: MqError) -> None:
        self.audit.step_down()
        self.missing_topics.step_down(error)
        self.groups.step_down(error)
        for service in self._services:
            service.step_down(error)

    def needs_log_before(self, log_offset: int) -> bool:
        """Whether something waits that stands before: retention has to leave it."""
        return any(service.needs_log_before(log_offset) for service in self._services)

    async def carry(self, log_offset: int) -> None:
        """On the leader: what waits and stands before is written again, so that the log before it
        can go.
        """
        for service in self._services:
            await service.carry(log_offset)

    def on_dropped(self, moved: Iterable[QueueExtent]) -> None:
        """Retention has dropped messages: reports the groups that had not consumed them."""
        offsets = self.state.offsets
        starts = {Queue(one.topic, one.queue_id): one.start for one in moved}
        for group in offsets.groups() if starts else ():
            lost = sum(
                self._unconsumed(
                    group,
                    queue,
                    max(position, self._dropped_through.get(queue, 0)),
                    starts[queue],
                )
                for queue, position in offsets.positions(group).items()
                if queue in starts
            )
            if lost:
                self.lost_by_group[group] = self.lost_by_group.get(group, 0) + lost
                log.warning("retention dropped what was not consumed", group=group, messages=lost)
        self._dropped_through |= starts

    def _unconsumed(self, group: str, queue: Queue, first: int, end: int) -> int:
        """Those of the messages [first, end) that the group is not done with."""
        leases = self.state.leases.get(group, queue)
        if leases is None:
            return max(0, end - first)
        given = sum(min(one.end, end) - max(one.start, first) for one in leases.within(first, end))
        return given + max(0, end - max(first, leases.next))

    async def expect(self, topics: Iterable[str]) -> None:
        """For consumers that wait for missing topics, which are created if the operator wants that.
        IllegalTopic: none is created.
        """
        if self.settings.creates_for_consumers:
            await self.create_missing(topics)

    async def create_missing(self, topics: Iterable[str]) -> None:
        """Creates missing topics, where that is allowed. Raises IllegalTopic for a name that none
        has.
        """
        wanted = [name for name in topics if not self.directory.topic(name)]
        if not wanted or not self.settings.creates_topics:
            return
        for name in wanted:
            names.check_topic(name)
        await self.until_sets_known()
        missing = [name for name in wanted if not self.directory.topic(name)]
        await self.catalog.ensure(one for one in missing if not names.is_internal_topic(one))

    async def until_sets_known(self) -> None:
        """A broker that has just started asks the other sets first whether they have a topic that
        seems to be missing; a set that does not answer delays it only for a while.
        """
        await self.directory.until_complete(_SETS_KNOWN_S)

    # -- the state machine of replication ---------------------------------------------------------

    @property
    def applied_index(self) -> int:
        return self.store.applied_index

    def checkpoint_payload(self) -> list[bytes]:
        return self.store.checkpoint_payload()

    def forget(self, from_index: int) -> None:
        self.machine.forget(from_index)

    def start_over(self) -> None:
        self.machine.start_over()
        self.quotas.on_change()

    def apply_through(self, raft_index: int) -> None:
        """The parts hear of each entry before the next one is applied."""
        for applied in self.machine.apply_through(raft_index):
            self._dispatch(applied)

    def _dispatch(self, applied: AppliedEntry) -> None:
        if applied.is_first_of_term:
            self.on_leadership()
        for queue in applied.arrivals:
            self.arrivals.arrived(queue)
        for one in applied.held:
            (self.transacting if one.batch.half else self.delays).on_held(one)
        for command in applied.commands:
            self._on_command(command)

    def _on_command(self, command: Command) -> None:
        if command.HasField("change_access"):
            self.gate.on_change()
            self.quotas.on_change()
        if command.HasField("put_topic"):
            self.missing_topics.on_topics()
        if command.HasField("drop_topic"):
            self.commits.drop_topic(command.drop_topic.topic)
        if self.leadership.is_serving:
            self.groups.on_command(command)
        for service in self._services:
            service.on_command(command)

    def _on_denial(self, denial: Denial) -> None:
        self.denials.tell(denial)
        self.audit.denied(denial)

    def _resolve(self, batch: Batch) -> Batch:
        if batch.half:
            self.transacting.check_half(batch)
        return held.normalize_held(batch, self.now_ms, self.settings.config)


def _steady_ms() -> int:
    """Monotonic clock, for time-outs."""
    return int(asyncio.get_running_loop().time() * 1000)
