"""The state machine of a broker set: the store, and the state that commands make.

Everything here happens by applying entries in the order of the log. Applying reads no clock and
nothing but the entry, so that all replicas come to the same state; a command that makes no sense
changes nothing, on all of them. What applying an entry changed is returned as an `AppliedEntry`:
the broker tells its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from mq.broker.queue import Queue
from mq.broker.state.commands import perform
from mq.broker.state.dedup import StoredAt
from mq.broker.state.state import State
from mq.broker.state.topics import Topic
from mq.errors import MessagesDamaged
from mq.logging import get_logger
from mq.store import checkpoint
from mq.store.batch import Batch
from mq.store.format import Kind
from mq.store.holding import HeldQueue
from mq.store.logreader import EntryRef, LogReader
from mq.store.store import CommittedEntry, Store
from mq.wire.v1.state_pb2 import BrokerState, Command

log = get_logger(__name__)

_COUNTED_FIELDS = BrokerState.TOPICS_FIELD_NUMBER, BrokerState.BEGINS_COUNTING_FIELD_NUMBER


class ProposedEntry:
    """An entry that this leader proposed: batches, a command, or both as one atom. It goes through
    replication as the context of its proposal.
    """

    __slots__ = ("batches", "command", "on_appended", "ref", "stored")

    def __init__(
        self,
        batches: Sequence[Batch] = (),
        command: Command | None = None,
        on_appended: Callable[[EntryRef], None] | None = None,
    ) -> None:
        self.batches = batches
        self.command = command
        self.on_appended = on_appended
        # Set when the entry is in the log ...
        self.ref: EntryRef | None = None
        # ... and filled when it is applied: the position of each batch.
        self.stored: list[StoredAt] = []


class NewlyHeld(NamedTuple):
    """A held batch of an applied entry, the log offset of the batch, and the queue it waits in."""

    batch: Batch
    log_offset: int
    queue: HeldQueue


class AppliedEntry(NamedTuple):
    """The changes of one applied entry. The commands of a `many` are listed one by one."""

    is_first_of_term: bool
    arrivals: list[Queue]
    held: list[NewlyHeld]
    commands: list[Command]


class _Opening(NamedTuple):
    """The checkpoint that opens the log: of each topic, where it was created, and its bytes before
    that checkpoint.
    """

    # Its raft index, and how often the log was mended.
    version: tuple[int, int]
    totals: dict[str, tuple[int, int]]

    def before(self, topic: Topic | None) -> int:
        """0 if the topic was created since, also in the place of another of its name."""
        if topic is None:
            return 0
        created_at, total = self.totals.get(topic.name, (0, 0))
        return total if created_at == topic.created_at_log_offset else 0


class Machine:
    def __init__(self, state: State, store: Store) -> None:
        self.state = state
        self.store = store
        # Term of the last applied entry. A leader with an applied entry of its own term has applied
        # everything before it.
        self.applied_term = 0
        # Read when it is asked for.
        self._opening: _Opening | None = None
        self._restore()

    def appended(self, ref: EntryRef, context: Any) -> None:
        """An entry that was proposed here is in the log, not committed."""
        if not isinstance(context, ProposedEntry):
            self.store.appended(ref, ())
            return
        context.ref = ref
        self.store.appended(ref, context.batches, context)
        if context.on_appended is not None:
            context.on_appended(ref)

    def forget(self, from_index: int) -> None:
        """The entries from this one on left the log before they were committed."""
        self.store.forget(from_index)

    def start_over(self) -> None:
        """The log was replaced: the state is that of the checkpoint that opens it."""
        self.store.start_over()
        self._restore()

    def _restore(self) -> None:
        self.state.restore(self.store.restored_broker_state)
        self._opening = None
        log, applied_index = self.store.log, self.store.applied_index
        is_counting = self.state.topics.counts_stored_bytes
        if not is_counting and log.first_index <= applied_index <= log.last_index:
            self._begin_counting(log.ref(applied_index))

    def stored_bytes(self, topic: str) -> int:
        """Bytes of the topic's batches that the log of this node holds, without what it has not
        applied yet. Exact: the total since its creation, less the total when the log begins.
        """
        log, topics = self.store.log, self.state.topics
        version = log.first_index, log.mends
        if self._opening is None or self._opening.version != version:
            self._opening = _Opening(version, self._totals_before())
        total = topics.stored_totals.get(topic, 0)
        return total - self._opening.before(topics.get(topic))

    def _totals_before(self) -> dict[str, tuple[int, int]]:
        """By the checkpoint that opens the log; read once after segments were dropped."""
        log = self.store.log
        if log.last_index < log.first_index:
            return {}
        try:
            state = _checkpoint_topics(log, log.first_index)
        except MessagesDamaged:
            return {}  # more than it is, until the checkpoint is mended
        return {
            one.topic.topic: (one.created_at_log_offset, one.stored_bytes) for one in state.topics
        }

    def _begin_counting(self, ref: EntryRef) -> None:
        """Bytes are counted from the first checkpoint entry on whose writer knew of counting."""
        if ref.kind != Kind.CHECKPOINT or self.state.topics.counts_stored_bytes:
            return
        state = _checkpoint_topics(self.store.log, ref.raft_index)
        if state.begins_counting:
            self.state.topics.begin_counting(state.topics)

    def apply_through(self, raft_index: int) -> Iterator[AppliedEntry]:
        """Applies one entry each time the caller asks for the next, up to this one, which must be
        committed and durable. Take it to its end.
        """
        for entry in self.store.committed(raft_index):
            yield self._apply(entry)

    def _apply(self, entry: CommittedEntry) -> AppliedEntry:
        ref, batches, _, proposed = entry
        applied = AppliedEntry(ref.term != self.applied_term, [], [], [])
        self.applied_term = ref.term
        stored = proposed.stored if proposed is not None else []
        for batch, log_offset in batches:
            stored.append(self._put(batch, log_offset, ref.stored_at_ms, applied))
        self.store.set_applied(ref)
        if ref.kind == Kind.CHECKPOINT:
            self._begin_counting(ref)
        command = proposed.command if proposed is not None else _decode(entry)
        if command is not None:
            written = [batch for batch, _ in batches]
            perform(command, ref, self.state, self.store.derived, written, stored, applied.commands)
        return applied

    def _put(
        self, batch: Batch, log_offset: int, stored_at_ms: int, applied: AppliedEntry
    ) -> StoredAt:
        """Makes a batch visible, or holds it back."""
        totals = self.state.topics.stored_totals
        if batch.topic in totals:
            totals[batch.topic] += len(batch.data)
        at = log_offset + batch.region_start
        if batch.is_held:
            queue = self.state.hold(batch, log_offset, stored_at_ms)
            self.store.derived.put_held(batch, log_offset, queue)
            applied.held.append(NewlyHeld(batch, log_offset, queue))
            stored = StoredAt(
                batch.queue_id, -1, at, stored_at_ms, deliver_at_ms=batch.deliver_at_ms
            )
        else:
            queue_offset = self.store.derived.put(batch, log_offset, stored_at_ms)
            applied.arrivals.append(Queue(batch.topic, batch.queue_id))
            stored = StoredAt(batch.queue_id, queue_offset, at, stored_at_ms)
        if batch.producer_id:
            self.state.producers.record(batch.producer_id, batch.sequence, stored)
        return stored


def _checkpoint_topics(log: LogReader, raft_index: int) -> BrokerState:
    """The topics of a checkpoint, and whether its writer counted their bytes."""
    payload = log.entry(raft_index).payload
    return BrokerState.FromString(checkpoint.decode_state(payload, _COUNTED_FIELDS))


def _decode(entry: CommittedEntry) -> Command | None:
    if not entry.command and entry.ref.kind != Kind.COMMAND:
        return None
    try:
        return Command.FromString(entry.command)
    except DecodeError:
        log.warning("an entry holds no command, it changes nothing", entry=entry.ref.raft_index)
        return None
