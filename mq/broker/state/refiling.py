"""Where batches that waited for their time were filed, told once more: for a part of a lane that
is rebuilt from the log (`mq.store.rebuilding`).

The mark of a batch that came after its lane had passed its time is the lane's place then. It
follows from the state that a checkpoint has and the entries behind it, of which only those count
that move lanes.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from mq.broker.state.schedule import Schedule
from mq.store.batch import Batch
from mq.store.holding import Filed, file_plainly
from mq.wire.v1.state_pb2 import BrokerState, Command


class ReplayedLanes:
    """A `Refiling`. Made of the broker's state of a checkpoint."""

    def __init__(self, broker_state: bytes) -> None:
        self._schedule = Schedule()
        self._schedule.restore(BrokerState.FromString(broker_state).lanes)

    def __call__(self, batch: Batch, log_offset: int, stored_at_ms: int) -> Filed:
        if batch.half:
            return file_plainly(batch, log_offset, stored_at_ms)
        return self._schedule.add(batch)

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
