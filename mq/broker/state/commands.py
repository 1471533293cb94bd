"""What each command does to the state, when its entry is applied.

Nothing here reads a clock, asks anybody or refuses: every replica does the same at the same place
of the log. A command that makes no sense changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mq.broker.queue import Queue
from mq.broker.state.dedup import StoredAt
from mq.broker.state.state import State
from mq.names import SCHEDULE_TOPIC
from mq.store.logreader import EntryRef
from mq.store.store import Store
from mq.wire.v1 import state_pb2 as pb


def perform(
    command: pb.Command,
    ref: EntryRef,
    state: State,
    store: Store,
    placed: Sequence[StoredAt] = (),
) -> Iterator[pb.Command]:
    """Each command that was performed, those of a `many` one by one. To be taken to its end.
    `placed`: where the batches of the same entry are.
    """
    kind = command.WhichOneof("kind")
    if kind == "many":
        for one in command.many.commands:
            yield from perform(one, ref, state, store, placed)
    elif kind == "change_transactions":
        state.transactions.change(command.change_transactions, placed)
        yield command
    elif kind == "put_topic":
        state.topics.put(command.put_topic, ref.stored_at_ms, ref.log_offset)
        yield command
    elif kind is not None:
        _PERFORM[kind](state, store, getattr(command, kind))
        yield command


def _drop_topic(state: State, store: Store, command: pb.DropTopic) -> None:
    state.topics.drop(command.topic)
    state.offsets.drop_topic(command.topic)
    state.leases.drop_topic(command.topic)
    store.clear_topic(command.topic)


def _commit_positions(state: State, _: Store, command: pb.CommitPositions) -> None:
    # A consumer may report what it did in a topic that is gone: nobody shall find it when there
    # is a new one of that name.
    state.offsets.commit(command.groups, state.topics)
    for each in command.groups:
        for one in each.positions:
            state.leases.move(each.group, Queue(one.topic, one.queue_id), one.queue_offset)


def _drop_group(state: State, _: Store, command: pb.DropGroup) -> None:
    state.offsets.drop_group(command.group)
    state.leases.drop_group(command.group)


def _deliver_scheduled(state: State, store: Store, command: pb.DeliverScheduled) -> None:
    for lane in state.schedule.deliver(command):
        store.trim(SCHEDULE_TOPIC, lane)


def _carry_scheduled(state: State, store: Store, command: pb.CarryScheduled) -> None:
    for lane in state.schedule.carry(command):
        store.trim(SCHEDULE_TOPIC, lane)


def _change_leases(state: State, _: Store, command: pb.ChangeLeases) -> None:
    for one in command.queues:
        # Those of a topic that is gone went with it.
        if one.topic in state.topics:
            queue = Queue(one.topic, one.queue_id)
            expected = one.next if one.HasField("next") else None
            done_to = state.leases.change(one.group, queue, one.changes, expected)
            if done_to is not None:
                state.offsets.advance(one.group, queue, done_to)


def _trim_queues(_: State, store: Store, command: pb.TrimQueues) -> None:
    for start in command.starts:
        store.trim(start.topic, start.queue_id, start.queue_offset)


_PERFORM: dict[str, Callable[[State, Store, Any], object]] = {
    "drop_topic": _drop_topic,
    "commit_positions": _commit_positions,
    "drop_group": _drop_group,
    "put_group": lambda state, _, command: state.offsets.put(command),
    "lock_queues": lambda state, _, command: state.offsets.lock(command.group, command.locks),
    "deliver_scheduled": _deliver_scheduled,
    "recall_scheduled": lambda state, _, command: state.schedule.recall(command),
    "carry_scheduled": _carry_scheduled,
    "change_leases": _change_leases,
    "trim_queues": _trim_queues,
    "put_broker_set": lambda state, _, command: state.sets.put(command.broker_set),
    "drop_broker_set": lambda state, _, command: state.sets.drop(command.name),
}
