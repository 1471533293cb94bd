"""The state machine of a broker set: the store, and the state that commands make.

Everything here happens by applying entries in the order of the log. It reads no clock and asks
nobody, so that every replica comes to the same; a command that makes no sense changes nothing, on
all of them. What a leader proposed carries a `Written` through the log, which is told what came of
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from mq.broker.queue import Queue
from mq.broker.state.commands import perform
from mq.broker.state.dedup import StoredAt
from mq.broker.state.state import State
from mq.logging import get_logger
from mq.store.batch import Batch, data_offsets
from mq.store.format import Kind
from mq.store.logreader import EntryRef
from mq.store.store import Applied, Store
from mq.wire.v1.state_pb2 import Command

log = get_logger(__name__)


class Written:
    """What a leader wrote, on its way through the log: batches, a command, or both as one atom."""

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
        # Known when it is in the log ...
        self.ref: EntryRef | None = None
        # ... and when it is applied: where each batch is.
        self.stored: list[StoredAt] = []


class Machine:
    """A `StateMachine` for replication."""

    def __init__(self, state: State, store: Store) -> None:
        self.state = state
        self.store = store
        # Term of the last applied entry: a leader whose own it is has applied all before it.
        self.applied_term = 0
        self.on_term: Callable[[], None] = lambda: None
        self.on_arrival: Callable[[Queue], None] = lambda _: None
        self.on_command: Callable[[Command], None] = lambda _: None
        # A batch that is held back, and the log offset of the whole of it.
        self.on_held: Callable[[Batch, int], None] = lambda _, __: None
        self._written: dict[int, Written] = {}
        state.restore(store.restored_broker_state)

    @property
    def applied_index(self) -> int:
        return self.store.applied_index

    def checkpoint_payload(self) -> bytes:
        return self.store.checkpoint_payload()

    def check_writable(self) -> None:
        self.store.check_writable()

    def appended(self, ref: EntryRef, context: Any) -> None:
        if not isinstance(context, Written):
            self.store.appended(ref, ())
            return
        context.ref = ref
        self._written[ref.raft_index] = context
        self.store.appended(ref, context.batches)
        if context.on_appended is not None:
            context.on_appended(ref)

    def forget(self, from_index: int) -> None:
        self.store.forget(from_index)
        for raft_index in [index for index in self._written if index >= from_index]:
            del self._written[raft_index]

    def start_over(self) -> None:
        self.store.start_over()
        self._written.clear()
        self.state.restore(self.store.restored_broker_state)

    # -- applying ---------------------------------------------------------------------------------

    def apply_through(self, raft_index: int) -> None:
        for applied in self.store.applying(raft_index):
            written = self._written.pop(applied.ref.raft_index, None)
            if applied.ref.term != self.applied_term:
                self.applied_term = applied.ref.term
                self.on_term()
            placed = self._place(applied, written) if applied.batches else []
            command = written.command if written else _decode(applied)
            if command is not None:
                for performed in perform(command, applied.ref, self.state, self.store, placed):
                    self.on_command(performed)

    def _place(self, applied: Applied, written: Written | None) -> list[StoredAt]:
        ref, queue_offsets, batches, _ = applied
        placed = written.stored if written is not None else []
        starts = data_offsets(batches, ref.payload_log_offset)
        for batch, queue_offset, start in zip(batches, queue_offsets, starts, strict=True):
            at = start + batch.region_start
            stored = (
                StoredAt(
                    batch.queue_id, -1, at, ref.stored_at_ms, deliver_at_ms=batch.deliver_at_ms
                )
                if batch.is_held
                else StoredAt(batch.queue_id, queue_offset, at, ref.stored_at_ms)
            )
            if batch.producer_id:
                self.state.producers.record(batch.producer_id, batch.sequence, stored)
            placed.append(stored)
            if batch.is_held:
                self.on_held(batch, start)
            else:
                self.on_arrival(Queue(batch.topic, batch.queue_id))
        return placed


def _decode(applied: Applied) -> Command | None:
    if not applied.command and applied.ref.kind != Kind.COMMAND:
        return None
    try:
        return Command.FromString(applied.command)
    except DecodeError:
        log.warning("an entry holds no command, it changes nothing", entry=applied.ref.raft_index)
        return None
