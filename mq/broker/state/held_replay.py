"""Replays which lane each delayed batch was put into, for a part of a lane that is rebuilt from the
log (`mq.store.rebuilding`).

The mark of a batch that came after its lane had passed its time is the lane's position at that
moment. It follows from the state in a checkpoint and the entries behind it that move lanes.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from mq.broker.state.schedule import Schedule
from mq.store.batch import Batch
from mq.store.holding import HeldQueue, default_held_queue
from mq.wire.v1.state_pb2 import BrokerState, Command


class LaneReplay:
    """A `HeldReplay`, which starts from the broker state of a checkpoint."""

    def __init__(self, broker_state: bytes) -> None:
        self._schedule = Schedule()
        self._schedule.restore(BrokerState.FromString(broker_state).lanes)

    def held_queue_for(self, batch: Batch) -> HeldQueue:
        return default_held_queue(batch) if batch.half else self._schedule.add(batch)

    def command(self, data: bytes) -> None:
        try:
            command = Command.FromString(data)
        except DecodeError:
            return  # it changed nothing when it was applied, either
        self._perform(command)

    def _perform(self, command: Command) -> None:
        match command.WhichOneof("kind"):
            case "many":
                for one in command.many.commands:
                    self._perform(one)
            case "deliver_scheduled":
                self._schedule.deliver(command.deliver_scheduled)
            case "carry_scheduled":
                self._schedule.carry(command.carry_scheduled)
            case "recall_scheduled":
                self._schedule.recall(command.recall_scheduled)
