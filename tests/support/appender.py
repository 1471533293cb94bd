"""A process that appends until it is killed: `python -m tests.support.appender DIR RUN`.

Prints a line for each batch, only when it is durable and visible: queue, queue offset of its first
message, how many, and the name that is in their bodies. Several batches are on their way to the
disk at any time; segments, queue files and index files are small, and checkpoints are written
meanwhile on a thread, as a node does it.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from mq.config import StoreConfig
from mq.errors import SegmentFull
from mq.store.batch import Batch, accept
from mq.store.flush import Flusher
from mq.store.identity import Identity
from mq.store.store import Store
from mq.store.vfs import RealVfs
from mq.wire.v1.message_pb2 import Batch as WireBatch
from mq.wire.v1.message_pb2 import Message
from tests.support.stores import append_entry, apply_through

if TYPE_CHECKING:
    from mq.store.derived import CheckpointPlan
    from mq.store.logreader import EntryRef

TOPIC = "orders"
QUEUES = 3
CONFIG = StoreConfig(
    segment_bytes=16 << 10,
    checkpoint_log_bytes=20 << 10,
    queue_file_units=64,
    index_slots=50,
    index_items=200,
)
_IN_FLIGHT = 8


class Acknowledged(NamedTuple):
    queue_id: int
    queue_offset: int
    messages: int
    name: str


def open_store(directory: str) -> Store:
    """With all of the log applied: a single node has committed what it has."""
    store = Store(RealVfs(), directory, CONFIG, Identity("mq", "set-0", "node-0"))
    apply_through(store, store.log.last_index)
    return store


def body(name: str, number: int) -> bytes:
    return f"{name}/{number}".encode()


class Appender:
    def __init__(self, directory: str, run: str) -> None:
        self._run = run
        self._rng = random.Random(run)
        self._store = open_store(directory)
        self._flusher = Flusher(self._store.log, async_flush_ms=None, now_s=time.monotonic)
        self._waiting: deque[tuple[EntryRef, Future[int], list[tuple[int, int, str]]]] = deque()
        self._executor = ThreadPoolExecutor(1)
        self._checkpoint: tuple[CheckpointPlan, Future[None]] | None = None

    def append(self, number: int) -> None:
        news = []
        for part in range(self._rng.choice([1, 1, 3])):
            count, queue_id = self._rng.choice([1, 5, 30]), self._rng.randrange(QUEUES)
            news.append((queue_id, count, f"{self._run}.{number}.{part}"))
        batches = [_batch(*each) for each in news]
        try:
            ref = append_entry(self._store, batches, number)
        except SegmentFull:
            self.acknowledge(0)
            ref = append_entry(self._store, batches, number)
        self._waiting.append((ref, self._flusher.wait(ref.end_log_offset), news))
        self.acknowledge(_IN_FLIGHT)
        self.checkpoint()

    def acknowledge(self, in_flight_max: int) -> None:
        """Waits until no more than so many are on their way, and prints those that arrived."""
        while self._waiting and (len(self._waiting) > in_flight_max or self._waiting[0][1].done()):
            ref, future, news = self._waiting.popleft()
            future.result()
            # Before it there may be the checkpoint of a new segment.
            *_, applied = apply_through(self._store, ref.raft_index)
            for (queue_id, count, name), offset in zip(news, applied.queue_offsets, strict=True):
                os.write(1, f"{queue_id} {offset} {count} {name}\n".encode())

    def checkpoint(self) -> None:
        if self._checkpoint is None:
            if self._store.is_checkpoint_due:
                plan = self._store.plan_checkpoint()
                future = self._executor.submit(self._store.write_checkpoint, plan)
                self._checkpoint = plan, future
        elif self._checkpoint[1].done():
            plan, future = self._checkpoint
            future.result()
            self._store.finish_checkpoint(plan)
            self._checkpoint = None


def _batch(queue_id: int, count: int, name: str) -> Batch:
    messages = [Message(body=body(name, number), keys=[name]) for number in range(count)]
    wire = WireBatch(topic=TOPIC, queue_id=queue_id, messages=messages)
    return accept(wire.SerializeToString(), 1 << 20)


def main() -> None:
    appender = Appender(*sys.argv[1:])
    number = 0
    while True:
        appender.append(number)
        number += 1


if __name__ == "__main__":
    main()
