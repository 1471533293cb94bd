"""The broker: its parts, put together. Services call them, the server drives `tick` and tells of
leadership.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from mq import names
from mq.broker.arrivals import Arrivals
from mq.broker.assignment import Queue
from mq.broker.catalog import Catalog
from mq.broker.commits import Commits
from mq.broker.contracts import Consensus
from mq.broker.groups import Groups
from mq.broker.leading import Leadership
from mq.broker.machine import Machine
from mq.broker.publishing import Publisher, Slot
from mq.broker.pulling import Puller
from mq.config import Config
from mq.errors import NodeStopped, TopicNotFound
from mq.logging import get_logger
from mq.store.batch import Batch
from mq.store.consumequeue import ConsumeQueue, QueueExtent
from mq.wire.v1.state_pb2 import Command

log = get_logger(__name__)


@dataclass(slots=True)
class Settings:
    """The configuration as it is now: some of it may change while the node runs."""

    config: Config

    @property
    def creates_topics(self) -> bool:
        return self.config.broker.auto_create_topics == "yes"


class Broker:
    """Made on a running loop, and for that loop alone."""

    def __init__(
        self,
        settings: Settings,
        machine: Machine,
        consensus: Consensus,
        now_ms: Callable[[], int],
        until_durable: Callable[[int], Awaitable[object]] | None,
    ) -> None:
        """`until_durable` waits until the leader's log is on its disk up to there; None: with async
        flush nobody does.
        """
        self.settings = settings
        self.machine = machine
        self.state = machine.state
        self.store = machine.store
        self.consensus = consensus
        self.now_ms = now_ms
        self._until_durable = until_durable
        options = settings.config.broker
        self.leadership = Leadership(consensus, machine)
        self.arrivals = Arrivals()
        self.catalog = Catalog(
            consensus, machine, self.leadership, default_queues=options.default_queues
        )
        self.publisher = Publisher(
            consensus,
            machine,
            self.leadership,
            self.catalog,
            in_flight_bytes_max=options.in_flight_bytes,
            entry_bytes_max=settings.config.store.entry_bytes_max,
        )
        self.puller = Puller(self.state.topics, self.store, self.arrivals)
        self.commits = Commits(consensus, machine)
        self.groups = Groups(
            consensus,
            machine,
            self.leadership,
            self.commits,
            self.puller,
            self.arrivals,
            _steady_ms,
            expires_ms=options.member_expires_ms,
        )
        self._served_term = 0
        # Messages that retention dropped before a group had consumed them.
        self.lost_by_group: dict[str, int] = {}
        # Where queues started then: what was gone before is not lost again.
        self._dropped_through: dict[Queue, int] = {}
        machine.on_term = self.on_leadership
        machine.on_arrival = self.arrivals.arrived
        machine.on_command = self._on_command

    async def submit(self, batch: Batch, *, tells_appended: bool = False) -> Slot:
        """As `Publisher.submit`; creates the topic where that is allowed."""
        try:
            return self.publisher.submit(batch, tells_appended=tells_appended)
        except TopicNotFound:
            if not self.settings.creates_topics:
                raise
        await self.catalog.ensure([batch.topic])
        return self.publisher.submit(batch, tells_appended=tells_appended)

    async def on_leader(self, slot: Slot) -> None:
        """Returns when the leader has the batch in its log, on disk unless flush is async."""
        if slot.appended is None:
            await slot.outcome
            return
        ref = await slot.appended
        if self._until_durable is not None:
            await self._until_durable(ref.end_log_offset)

    def stored_at_ms(self, queue: ConsumeQueue, queue_offset: int) -> int:
        """Of a message that is in the queue."""
        log_offsets = queue.read(queue_offset, queue_offset + 1)["log_offset"].astype("i8")
        return int(self.store.log.stored_at(log_offsets)[0])

    def tick(self) -> None:
        """A few times a second: whatever follows from time alone, and from who leads."""
        self.on_leadership()
        if self.leadership.is_serving:
            self.groups.tick()

    def on_leadership(self) -> None:
        is_serving, term = self.leadership.is_serving, self.leadership.term
        if self._served_term and (not is_serving or term != self._served_term):
            self._served_term = 0
            self.groups.step_down(self.leadership.refusal())
        if is_serving and not self._served_term:
            self._served_term = term
            self.groups.lead()

    def drain(self) -> None:
        """The node stops: members go to another one, or come back when it is up again."""
        self._served_term = 0
        error = self.leadership.refusal()
        stopped = NodeStopped("this node is stopping: another one leads, or it comes back")
        self.groups.step_down(error if error.address else stopped)

    def on_dropped(self, moved: Iterable[QueueExtent]) -> None:
        """Retention has let go of messages: says which groups had not consumed them."""
        offsets = self.state.offsets
        starts = {Queue(one.topic, one.queue_id): one.start for one in moved}
        for group in offsets.groups() if starts else ():
            lost = sum(
                max(0, starts[queue] - max(position, self._dropped_through.get(queue, 0)))
                for queue, position in offsets.positions(group).items()
                if queue in starts
            )
            if lost:
                self.lost_by_group[group] = self.lost_by_group.get(group, 0) + lost
                log.warning("retention dropped what was not consumed", group=group, messages=lost)
        self._dropped_through |= starts

    async def create_missing(self, topics: Iterable[str]) -> None:
        """Creates topics that somebody asks for, where that is allowed. IllegalTopic: none is."""
        if self.settings.creates_topics:
            missing = [name for name in topics if name not in self.state.topics]
            for name in missing:
                names.check_topic(name)
            await self.catalog.ensure(one for one in missing if not names.is_internal_topic(one))

    def _on_command(self, command: Command) -> None:
        if command.HasField("drop_topic"):
            self.commits.drop_topic(command.drop_topic.topic)
        if self.leadership.is_serving:
            self.groups.on_command(command)


def _steady_ms() -> int:
    """For how long somebody was silent: a clock that nobody sets."""
    return int(asyncio.get_running_loop().time() * 1000)
