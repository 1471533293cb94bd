"""A lane that is rebuilt from the log has the marks that it had, also those of batches that came
for a time which the lane had passed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mq.broker.state.held_replay import LaneReplay
from mq.errors import Rebuilding
from mq.names import SCHEDULE_TOPIC
from mq.store.holding import LANE_MS, lane_of
from mq.wire.v1.state_pb2 import Command, DeliverScheduled, LaneProgress, Many
from tests.support.consensus import Node, batch, on_loop
from tests.support.stores import small_config

if TYPE_CHECKING:
    from mq.store.batch import Batch

DUE_MS = 5 * LANE_MS + 1_000
LANE = lane_of(DUE_MS)


def delivered(due_ms: int) -> Command:
    progress = LaneProgress(lane=LANE, due_ms=due_ms, batches=1, messages=1)
    return Command(deliver_scheduled=DeliverScheduled(lanes=[progress]))


@on_loop
async def test_a_rebuilt_lane_has_the_marks_of_batches_that_came_late() -> None:
    node = Node(store=small_config(segment_bytes=4096, queue_file_units=300))

    async def put(command: Command | None, *batches: Batch) -> None:
        await node.broker.writer.write(command, batches)

    for number in range(200):
        await put(None, batch("t", b"%d" % number, deliver_at_ms=DUE_MS))
        if number % 10 == 3:
            await put(delivered(DUE_MS + number), batch("t", b"x"))
        if number % 10 == 7:
            await put(Command(many=Many(commands=[delivered(DUE_MS + number)])))
    node.store.checkpoint()
    assert len(node.store.log.segments()) > 3
    queue = node.store.queues.get(SCHEDULE_TOPIC, LANE)
    assert queue is not None
    before = queue.read(0, 200).tolist()
    assert len({mark for _, _, mark in before}) > 10
    node.vfs.flip_bit(f"/data/consumequeue/{SCHEDULE_TOPIC}/{LANE}/{0:020d}", 7 * 20 + 13)
    with pytest.raises(Rebuilding):
        queue.read(199, 200)
    assert queue.read(0, 200).tolist() == before


def test_a_command_that_cannot_be_read_changes_nothing() -> None:
    lanes = LaneReplay(b"")
    lanes.command(b"\xff")
    assert lanes.held_queue_for(batch("t", b"x", deliver_at_ms=DUE_MS)).mark == DUE_MS
