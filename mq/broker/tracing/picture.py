"""Pictures: the state around one message at some point of the log, out of a checkpoint or as it is
now. A trace compares pictures to find the segments in which something happened.

A picture has the positions and leases of groups in the queues it was asked for, the lanes of what
waits, the open transactions, and the bytes that were ever stored for each topic, which tell whether
a copy may have been written.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mq import names
from mq.broker.queue import Queue
from mq.broker.state.leases import QueueLeases, Range
from mq.broker.state.schedule import LanePosition
from mq.broker.state.state import State
from mq.wire.v1.state_pb2 import BrokerState, LaneState


class LanePicture(NamedTuple):
    delivered: LanePosition
    below_log_offset: int
    recalled: frozenset[int]


class Picture(NamedTuple):
    """After all entries before `raft_index`. `topics` has the log offset of the creation of each
    topic and the bytes stored for it; `queues` are those that are looked at, None: all.
    """

    raft_index: int
    topics: Mapping[str, tuple[int, int]]
    positions: Mapping[tuple[str, Queue], int]
    leases: Mapping[tuple[str, Queue], QueueLeases]
    lanes: Mapping[int, LanePicture]
    # By id of the transaction: the number of questions.
    checks: Mapping[int, int]
    groups: frozenset[str]
    # Groups that have positions on topics, others than their own retries.
    placed: frozenset[str]
    # Of ordered groups: the member that has a queue.
    locks: Mapping[tuple[str, Queue], str]
    counts_bytes: bool = True
    queues: frozenset[Queue] | None = None

    def shows(self, queue: Queue) -> bool:
        return self.queues is None or queue in self.queues

    def position(self, group: str, queue: Queue) -> int:
        """-1: none."""
        return self.positions.get((group, queue), -1)

    def lease(self, group: str, queue: Queue, queue_offset: int) -> Range | None:
        leases = self.leases.get((group, queue))
        return leases.at(queue_offset) if leases else None

    def next_new(self, group: str, queue: Queue) -> int | None:
        """The first message that a receiving group was never given; None: it does not receive."""
        leases = self.leases.get((group, queue))
        return leases.next if leases else None

    def stored_bytes(self, topic: str) -> int:
        return self.topics.get(topic, (0, 0))[1]


def of_checkpoint(raft_index: int, state: BrokerState) -> Picture:
    return Picture(
        raft_index,
        {one.topic.topic: (one.created_at_log_offset, one.stored_bytes) for one in state.topics},
        {
            (each.group, Queue(one.topic, one.queue_id)): one.queue_offset
            for each in state.groups
            for one in each.positions
        },
        {
            (one.group, Queue(one.topic, one.queue_id)): QueueLeases(one.next, _ranges(one.ranges))
            for one in state.leases
        },
        {one.lane: _lane(one) for one in state.lanes},
        {one.id: one.checks for one in state.transactions},
        frozenset(one.group for one in state.groups),
        frozenset(
            each.group
            for each in state.groups
            if any(not names.is_internal_topic(one.topic) for one in each.positions)
        ),
        {
            (each.group, Queue(one.topic, one.queue_id)): one.member_id
            for each in state.groups
            for one in each.locks
        },
        state.counts_stored_bytes,
    )


def of_state(
    raft_index: int, state: State, queue: Queue, transaction_ids: Iterable[int] = ()
) -> Picture:
    """As it is now: of this queue, and of the retry topics of all groups. On the loop, in one
    turn: it takes a look at each group and at the name of each topic.
    """
    positions: dict[tuple[str, Queue], int] = {}
    groups, topics = state.offsets.groups(), state.topics
    queues, placed = [queue], []
    for group in groups:
        retries = Queue(names.retry_topic(group), 0)
        known = state.offsets.positions(group)
        for each in (queue, retries):
            if each in known:
                positions[group, each] = known[each]
        queues.append(retries)
        if any(not names.is_internal_topic(one.topic) for one in known):
            placed.append(group)
    shown = frozenset(queues)
    found = [one for one in topics if one.name == queue.topic or one.is_internal]
    opened = state.transactions.open
    return Picture(
        raft_index,
        {
            one.name: (one.created_at_log_offset, topics.stored_totals.get(one.name, 0))
            for one in found
        },
        positions,
        {
            (group, each): QueueLeases(one.next, one.ranges)
            for (group, each), one in state.leases.items()
            if each in shown
        },
        {
            number: LanePicture(lane.delivered, lane.below_log_offset, frozenset(lane.recalled))
            for number, lane in state.schedule.lanes.items()
        },
        {one: opened[one].checks for one in transaction_ids if one in opened},
        frozenset(groups),
        frozenset(placed),
        {},  # entries tell of those in the newest segment
        topics.counts_stored_bytes,
        shown,
    )


def _ranges(data: bytes) -> list[Range]:
    values = array("Q")
    values.frombytes(data)
    return [Range._make(values[at : at + 5]) for at in range(0, len(values), 5)]


def _lane(state: LaneState) -> LanePicture:
    return LanePicture(
        LanePosition(state.due_ms, state.log_offset),
        state.below_log_offset,
        frozenset(state.recalled[::2]),
    )
