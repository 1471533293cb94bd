"""The composition root: the only place where configuration, clock, files and services meet.

Start, in order: the data directory and its log, what the log makes visible, the flusher,
housekeeping. Stop is the reverse. Today a node is its store: it recovers, keeps its checkpoints and
its retention; network services stand on top of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time

from mq.clock import Clock, SystemClock
from mq.config import Config
from mq.errors import DiskFull, MqError
from mq.logging import get_logger
from mq.store.flush import Flusher
from mq.store.identity import Identity
from mq.store.retention import Policy
from mq.store.store import Store
from mq.store.vfs import RealVfs

log = get_logger(__name__)

_REPLAY_ENTRIES = 1000
_PROGRESS_S = 2.0
_TICK_S = 0.2
# At the least between two checkpoints, also when the disk has no room for one.
_CHECKPOINT_S = 1.0


def run(config: Config) -> None:
    """Runs the node until SIGTERM or SIGINT. Raises MqError when it cannot start or has to stop."""
    asyncio.run(_run(config))


async def _run(config: Config) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await Node(config, SystemClock()).run(stop)


class Node:
    def __init__(self, config: Config, clock: Clock) -> None:
        self._config = config
        self._clock = clock

    async def run(self, stop: asyncio.Event) -> None:
        """Returns when `stop` is set and everything is on disk."""
        store = self._open_store()
        is_async = self._config.store.flush == "async"
        interval_ms = self._config.store.async_flush_ms if is_async else None
        flusher = Flusher(store.log, async_flush_ms=interval_ms)
        try:
            self._catch_up(store)
            log.info(
                "node is up",
                data=self._config.node.data,
                queues=len(store.queues),
                entries=store.log.last_index,
                log_bytes=store.log.end_offset - store.log.start_offset,
            )
            await self._keep_house(store, flusher, stop)
        finally:
            flusher.close()
            await asyncio.to_thread(store.close)
        log.info("node is down")

    def _open_store(self) -> Store:
        node = self._config.node
        identity = Identity(node.cluster, node.broker_set, node.node)
        return Store(RealVfs(), node.data, self._config.store, identity)

    def _catch_up(self, store: Store) -> None:
        """Without peers, what is in the log is committed. Shows progress when it takes long."""
        first, last = store.applied_index, store.log.last_index
        shown = time.monotonic()
        while store.applied_index < last:
            store.apply_through(min(store.applied_index + _REPLAY_ENTRIES, last))
            if time.monotonic() - shown > _PROGRESS_S:
                shown = time.monotonic()
                share = (store.applied_index - first) / (last - first)
                log.info(
                    "applying the log", entry=store.applied_index, of=last, done=f"{share:.0%}"
                )

    async def _keep_house(self, store: Store, flusher: Flusher, stop: asyncio.Event) -> None:
        """Checkpoints when they are due, retention at its interval, until it is time to stop."""
        retention = self._config.retention
        policy = Policy(
            age_ms_max=retention.hours * 3_600_000,
            total_bytes_max=retention.bytes,
            clean_expired_ratio=retention.clean_expired_ratio,
            clean_oldest_ratio=retention.clean_oldest_ratio,
            refuse_writes_ratio=retention.refuse_writes_ratio,
        )
        next_check = next_checkpoint = 0.0
        while not stop.is_set():
            if flusher.failure is not None:
                raise flusher.failure
            if time.monotonic() >= next_check:
                store.retain(policy, self._clock.now_ms())
                next_check = time.monotonic() + retention.check_ms / 1000
            if store.is_checkpoint_due and time.monotonic() >= next_checkpoint:
                await self._checkpoint(store)
                next_checkpoint = time.monotonic() + _CHECKPOINT_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _TICK_S)

    async def _checkpoint(self, store: Store) -> None:
        plan = store.plan_checkpoint()
        try:
            await asyncio.to_thread(store.write_checkpoint, plan)
        except DiskFull as error:
            log.warning("no checkpoint, a start would replay more", error=str(error))
        except MqError:
            log.exception("checkpoint failed, the node has to stop")
            raise
        else:
            store.finish_checkpoint(plan)
