"""Messages that wait for their time: part of the replicated state, changed only by applying
entries.

A batch that waits is one unit in a lane, a queue of `%SYS%SCHEDULE` for ten minutes of delivery
times (`mq.store.holding`), whose mark is when it is due. Of a lane the state knows how many wait in
it and how far it was delivered: batches leave a lane in the order (due_ms, log_offset), so one
place says which are gone. A lane that is empty begins again.

After a clock was set back a batch may come for a time that its lane has delivered already. It is
due at the lane's place then: later than asked for by minutes at the most, never early, never lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mq.names import SCHEDULE_TOPIC
from mq.store.batch import Batch
from mq.store.consumequeue import Units
from mq.store.holding import HeldQueue, lane_of
from mq.wire.v1.state_pb2 import (
    CarryScheduled,
    DeliverScheduled,
    LaneState,
    RecallScheduled,
)


class LanePosition(NamedTuple):
    """The position of a batch in the order of its lane."""

    due_ms: int
    log_offset: int


class Lane:
    __slots__ = ("batches", "below_log_offset", "delivered", "messages", "recalled")

    def __init__(self) -> None:
        self.batches = self.messages = 0
        # Everything up to here was delivered ...
        self.delivered = LanePosition(0, 0)
        # ... and everything before this log offset was written again.
        self.below_log_offset = 0
        # Messages that were taken back, by the log offset they had at first, until their time is
        # over; and when each of them is due.
        self.recalled: dict[int, int] = {}

    def waiting(self, units: Units) -> npt.NDArray[np.bool_]:
        """A mask of the lane's units that wait."""
        due, at = units["tag_hash"].astype(np.int64), units["log_offset"].astype(np.int64)
        is_behind = (due == self.delivered.due_ms) & (at > self.delivered.log_offset)
        is_behind |= due > self.delivered.due_ms
        found: npt.NDArray[np.bool_] = is_behind & (at >= self.below_log_offset)
        return found


class Schedule:
    def __init__(self) -> None:
        self.lanes: dict[int, Lane] = {}

    @property
    def messages(self) -> int:
        """Waiting messages, without recalled ones; exact, but for those that are due right now."""
        return sum(max(0, one.messages - len(one.recalled)) for one in self.lanes.values())

    # -- applying ---------------------------------------------------------------------------------

    def add(self, batch: Batch) -> HeldQueue:
        """A batch waits from now on, or was written again."""
        number = lane_of(batch.deliver_at_ms)
        lane = self.lanes.setdefault(number, Lane())
        lane.batches += 1
        lane.messages += batch.message_count
        due_ms = max(batch.deliver_at_ms, lane.delivered.due_ms)
        return HeldQueue(SCHEDULE_TOPIC, number, due_ms)

    def deliver(self, command: DeliverScheduled) -> list[int]:
        """The batches of the entry have left their lanes. Returns the lanes that became empty."""
        for one in command.lanes:
            lane = self.lanes.get(one.lane)
            if lane is not None:
                lane.delivered = max(lane.delivered, LanePosition(one.due_ms, one.log_offset))
                self._leave(lane, one.batches, one.messages)
                self._forget_recalled(lane)
        return self._clear_empty([one.lane for one in command.lanes])

    def recall(self, command: RecallScheduled) -> bool:
        """Whether the message still waited."""
        lane = self.lanes.get(command.lane)
        if lane is None or LanePosition(command.due_ms, command.log_offset) <= lane.delivered:
            return False
        lane.recalled[command.message_log_offset] = command.due_ms
        return True

    def carry(self, command: CarryScheduled) -> list[int]:
        """The batches were added again by the same entry. Returns the lanes that became empty:
        none, unless the schedule is inconsistent.
        """
        for one in command.lanes:
            lane = self.lanes.get(one.lane)
            if lane is not None:
                lane.below_log_offset = max(lane.below_log_offset, one.below_log_offset)
                self._leave(lane, one.batches, one.messages)
        return self._clear_empty([one.lane for one in command.lanes])

    def _leave(self, lane: Lane, batches: int, messages: int) -> None:
        lane.batches = max(0, lane.batches - batches)
        lane.messages = max(0, lane.messages - messages)

    def _forget_recalled(self, lane: Lane) -> None:
        """Forgets recalled messages whose time is over."""
        if lane.recalled:
            over_ms = lane.delivered.due_ms
            lane.recalled = {at: due for at, due in lane.recalled.items() if due >= over_ms}

    def _clear_empty(self, numbers: Iterable[int]) -> list[int]:
        empty = [one for one in numbers if one in self.lanes and not self.lanes[one].batches]
        for number in empty:
            del self.lanes[number]
        return empty

    # -- checkpoints ------------------------------------------------------------------------------

    def encode(self) -> Iterator[LaneState]:
        for number, lane in sorted(self.lanes.items()):
            yield LaneState(
                lane=number,
                batches=lane.batches,
                messages=lane.messages,
                due_ms=lane.delivered.due_ms,
                log_offset=lane.delivered.log_offset,
                below_log_offset=lane.below_log_offset,
                recalled=[
                    value
                    for message, due_ms in sorted(lane.recalled.items())
                    for value in (message, due_ms)
                ],
            )

    def restore(self, states: Iterable[LaneState]) -> None:
        self.lanes.clear()
        for state in states:
            lane = self.lanes[state.lane] = Lane()
            lane.batches, lane.messages = state.batches, state.messages
            lane.delivered = LanePosition(state.due_ms, state.log_offset)
            lane.below_log_offset = state.below_log_offset
            recalled = list(state.recalled)
            lane.recalled = dict(zip(recalled[::2], recalled[1::2], strict=True))
