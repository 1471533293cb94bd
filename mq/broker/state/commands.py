"""The effect of each command on the state, when its entry is applied.

Nothing here reads a clock or raises: every replica does the same at the same position of the log.
A command that makes no sense changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mq.broker.queue import Queue
from mq.broker.state.dedup import StoredAt
from mq.broker.state.state import State
from mq.names import SCHEDULE_TOPIC
from mq.store.batch import Batch
from mq.store.derived import DerivedFiles
from mq.store.logreader import EntryRef
from mq.wire.v1 import state_pb2 as pb


def perform(
    command: pb.Command,
    ref: EntryRef,
    state: State,
    derived: DerivedFiles,
    batches: Sequence[Batch],
    stored: Sequence[StoredAt],
    performed: list[pb.Command],
) -> None:
    """Adds each command that was performed to `performed`, those of a `many` one by one. `stored`
    has the positions of the batches of the same entry.
    """
    kind = command.WhichOneof("kind")
    if kind is None:
        return
    if kind == "many":
        for one in command.many.commands:
            perform(one, ref, state, derived, batches, stored, performed)
        return
    if kind == "change_transactions":
        state.transactions.change(command.change_transactions, stored)
    elif kind == "deliver_scheduled":
        _deliver_scheduled(state, derived, command.deliver_scheduled, batches)
    elif kind == "put_topic":
        state.topics.put(command.put_topic, ref.stored_at_ms, ref.log_offset)
    else:
        _PERFORM[kind](state, derived, getattr(command, kind))
    performed.append(command)


def _drop_topic(state: State, derived: DerivedFiles, command: pb.DropTopic) -> None:
    state.topics.drop(command.topic)
    state.offsets.drop_topic(command.topic)
    state.leases.drop_topic(command.topic)
    state.letters.drop_topic(command.topic)
    derived.clear_topic(command.topic)


def _commit_positions(state: State, _: DerivedFiles, command: pb.CommitPositions) -> None:
    # A consumer may report progress in a topic that is gone: it must not count for a new topic of
    # that name.
    state.offsets.commit(command.groups, state.topics)
    for each in command.groups:
        for one in each.positions:
            state.leases.move(each.group, Queue(one.topic, one.queue_id), one.queue_offset)


def _drop_group(state: State, _: DerivedFiles, command: pb.DropGroup) -> None:
    state.offsets.drop_group(command.group)
    state.leases.drop_group(command.group)


def _deliver_scheduled(
    state: State, derived: DerivedFiles, command: pb.DeliverScheduled, batches: Sequence[Batch]
) -> None:
    for batch in batches:
        if not batch.is_held:
            state.topics.count_delayed(batch.topic, -batch.message_count)
    for lane in state.schedule.deliver(command):
        derived.trim(SCHEDULE_TOPIC, lane, None)
    if not state.schedule.lanes:
        state.topics.none_is_delayed()


def _recall_scheduled(state: State, _: DerivedFiles, command: pb.RecallScheduled) -> None:
    if state.schedule.recall(command):
        state.topics.count_delayed(command.topic, -1)


def _carry_scheduled(state: State, derived: DerivedFiles, command: pb.CarryScheduled) -> None:
    for lane in state.schedule.carry(command):
        derived.trim(SCHEDULE_TOPIC, lane, None)


def _change_leases(state: State, _: DerivedFiles, command: pb.ChangeLeases) -> None:
    for one in command.queues:
        # Those of a topic that is gone went with it.
        if one.topic in state.topics:
            queue = Queue(one.topic, one.queue_id)
            expected = one.next if one.HasField("next") else None
            done_to = state.leases.change(one.group, queue, one.changes, expected)
            if done_to is not None:
                state.offsets.advance(one.group, queue, done_to)


def _trim_queues(state: State, derived: DerivedFiles, command: pb.TrimQueues) -> None:
    for start in command.starts:
        derived.trim(start.topic, start.queue_id, start.queue_offset)
        state.letters.trim(start.topic, start.queue_offset)


_PERFORM: dict[str, Callable[[State, DerivedFiles, Any], object]] = {
    "drop_topic": _drop_topic,
    "commit_positions": _commit_positions,
    "drop_group": _drop_group,
    "put_group": lambda state, _, command: state.offsets.put(command),
    "lock_queues": lambda state, _, command: state.offsets.lock(command.group, command.locks),
    "recall_scheduled": _recall_scheduled,
    "carry_scheduled": _carry_scheduled,
    "change_leases": _change_leases,
    "trim_queues": _trim_queues,
    "put_broker_set": lambda state, _, command: state.sets.put(command.broker_set),
    "drop_broker_set": lambda state, _, command: state.sets.drop(command.name),
    "settle_letters": lambda state, _, command: state.letters.settle(command),
    "change_access": lambda state, _, command: state.access.change(command.changes),
}
