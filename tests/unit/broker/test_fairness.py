"""A flooder beside quiet producers, on virtual time: what a quiet one waits for follows from the
disk and from what is let in before it, and from nothing else.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import pytest

from mq.broker.commit_window import _HORIZON_S, CommitWindow
from mq.broker.publishing import Publisher
from mq.broker.state.dedup import StoredAt
from mq.broker.writing import EntryWriter
from tests.sim.flow_loop import VirtualLoop
from tests.support.consensus import Node, batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mq.broker.state.machine import ProposedEntry
    from mq.errors import MqError
    from mq.store.batch import Batch
    from mq.store.format import Kind

MIB = 1 << 20
QUIET, STREAMS = 20, 80
SYNC_BYTES_MAX = 8 * MIB


class Disk(NamedTuple):
    """A sync takes so long, and the time that its bytes need."""

    sync_s: float
    bytes_per_s: float


class DiskLog:
    """A log that costs time alone: one sync after the other, each with what was there before."""

    def __init__(self, disk: Disk, leading_term: int) -> None:
        self._disk = disk
        self._loop = asyncio.get_running_loop()
        self._queued: list[tuple[int, ProposedEntry, Callable[[MqError | None], None]]] = []
        self._is_syncing = False
        self.leading_term = leading_term
        self.committed_bytes = 0

    def propose(
        self,
        _: Kind,
        payload: Sequence[bytes | memoryview],
        entry: ProposedEntry,
        done: Callable[[MqError | None], None],
    ) -> None:
        self._queued.append((sum(map(len, payload)), entry, done))
        if not self._is_syncing:
            self._is_syncing = True
            self._loop.call_soon(self._sync)

    def _sync(self) -> None:
        size, count = 0, 0
        for one, _, _ in self._queued:
            if count and size + one > SYNC_BYTES_MAX:
                break
            size, count = size + one, count + 1
        synced, self._queued = self._queued[:count], self._queued[count:]
        took_s = self._disk.sync_s + size / self._disk.bytes_per_s
        self._loop.call_later(took_s, self._end, synced, size)

    def _end(self, synced: list[tuple[int, ProposedEntry, Callable[..., None]]], size: int) -> None:
        self.committed_bytes += size
        for _, entry, done in synced:
            entry.stored.extend(StoredAt(0, 0, 0, 0) for _ in entry.batches)
            done(None)
        self._is_syncing = bool(self._queued)
        if self._is_syncing:
            self._sync()


class Measured(NamedTuple):
    took_s: list[float]
    # Bytes of others that were committed while a quiet send waited.
    before_bytes: list[int]
    flood_bytes_per_s: float

    @property
    def p99_s(self) -> float:
        return sorted(self.took_s)[int(len(self.took_s) * 0.99)]


class OpenWindow(CommitWindow):
    """All that memory has."""

    def _resize(self, now_s: float) -> None:  # noqa: ARG002
        self.bytes = self.bytes_max


class Scene:
    def __init__(self, disk: Disk, flood_bytes: int) -> None:
        self.node = Node()
        self.disk = disk
        self.flood_batch = batch("t", bytes(flood_bytes))
        self.quiet_batch = batch("t", bytes(100))
        self.loop = asyncio.get_running_loop()

    async def open(self, window: type[CommitWindow] = CommitWindow) -> None:
        await self.node.topic("t")
        broker = self.node.broker
        self.log = DiskLog(self.disk, broker.consensus.leading_term)
        self.window = window(32 * MIB, self.loop.time)
        self.publisher = Publisher(
            EntryWriter(self.log),  # type: ignore[arg-type] # it has what a writer calls
            self.node.machine,
            broker.leadership,
            broker.catalog,
            resolve=lambda one: one,
            window=self.window,
            entry_bytes_max=4 * MIB,
        )

    async def send(self, one: Batch, owner: str) -> None:
        await self.publisher.room(len(one.data), 60, owner)
        await self.publisher.submit(one, owner=owner).outcome

    async def flood(self, owner: str) -> None:
        while True:
            await self.send(self.flood_batch, owner)

    async def measure(self, flooders: int, seconds: float) -> Measured:
        """The quiet ones, each with a send now and then, beside so many flooders."""
        tasks = [
            asyncio.ensure_future(self.flood(f"flooder {at % flooders}"))
            for at in range(STREAMS if flooders else 0)
        ]
        found = Measured([], [], 0.0)
        # The first half is the start: flooders that were alone, and first commits.
        began_s = self.loop.time() + seconds / 2
        self.loop.call_at(began_s, lambda: began_bytes.append(self.log.committed_bytes))
        began_bytes: list[int] = []

        async def produce(number: int) -> None:
            pause_s = seconds / 60
            await asyncio.sleep(pause_s * number / QUIET)
            while self.loop.time() < began_s + seconds:
                sent_s, before = self.loop.time(), self.log.committed_bytes
                await self.send(self.quiet_batch, f"quiet {number}")
                if sent_s > began_s:
                    found.took_s.append(self.loop.time() - sent_s)
                    found.before_bytes.append(self.log.committed_bytes - before)
                await asyncio.sleep(pause_s * (1 + number % 7 / 7))

        await asyncio.gather(*map(produce, range(QUIET)))
        rate = (self.log.committed_bytes - began_bytes[0]) / (self.loop.time() - began_s)
        for one in tasks:
            one.cancel()
        await asyncio.wait(tasks) if tasks else None
        return found._replace(flood_bytes_per_s=rate)


def measure(disk: Disk, seconds: float, flood_bytes: int = MIB, flooders: int = 0) -> Measured:
    async def main() -> Measured:
        scene = Scene(disk, flood_bytes)
        await scene.open()
        return await scene.measure(flooders, seconds)

    return VirtualLoop().finish(main())


def flood_alone(disk: Disk, seconds: float, flood_bytes: int, *, is_bounded: bool) -> float:
    """Bytes a second of one flooder that nobody is beside."""

    async def main() -> float:
        scene = Scene(disk, flood_bytes)
        await scene.open(CommitWindow if is_bounded else OpenWindow)
        # More than the room.
        _ = [asyncio.ensure_future(scene.flood("one")) for _ in range(64 * MIB // flood_bytes)]
        await asyncio.sleep(seconds / 2)
        began = scene.log.committed_bytes
        await asyncio.sleep(seconds)
        return (scene.log.committed_bytes - began) / seconds

    return VirtualLoop().finish(main())


# And for how long they are looked at: longer than the window keeps what it has measured.
DISKS = {
    "fast": (Disk(0.001, 400e6), 0.6),
    "ordinary": (Disk(0.005, 200e6), 1.2),
    "slow": (Disk(0.1, 100e6), 30.0),
}


@pytest.mark.parametrize(("disk", "seconds"), DISKS.values(), ids=DISKS)
@pytest.mark.parametrize(("flood_bytes", "flooders"), [(MIB, 1), (64 << 10, 5)])
def test_quiet_producers_wait_at_most_twice_as_long_beside_a_flooder(
    disk: Disk, seconds: float, flood_bytes: int, flooders: int
) -> None:
    alone = measure(disk, seconds)
    beside = measure(disk, seconds, flood_bytes, flooders)
    assert len(beside.took_s) > 400
    # With all of the room before them: 48, 21 and 5 times.
    assert beside.p99_s <= 2 * alone.p99_s + _HORIZON_S
    # And the flooder has what the disk gives in that time.
    assert beside.flood_bytes_per_s > 0.18 * disk.bytes_per_s


@pytest.mark.parametrize(("disk", "seconds"), DISKS.values(), ids=DISKS)
@pytest.mark.parametrize("flood_bytes", [MIB, 64 << 10])
def test_a_lone_sender_has_what_the_disk_gives(
    disk: Disk, seconds: float, flood_bytes: int
) -> None:
    bounded = flood_alone(disk, seconds, flood_bytes, is_bounded=True)
    free = flood_alone(disk, seconds, flood_bytes, is_bounded=False)
    assert bounded > 0.9 * free


@pytest.mark.parametrize("flood_bytes", [MIB, 64 << 10])
def test_no_more_stands_before_a_quiet_batch_than_the_disk_commits_in_moments(
    flood_bytes: int,
) -> None:
    disk, seconds = DISKS["fast"]
    beside = measure(disk, seconds, flood_bytes, 1)
    assert max(beside.before_bytes) <= 2 * _HORIZON_S * disk.bytes_per_s + flood_bytes


def test_a_disk_that_becomes_faster_or_slower_is_noticed() -> None:
    async def main() -> list[int]:
        scene = Scene(Disk(0.02, 100e6), 64 << 10)
        await scene.open()
        _ = [asyncio.ensure_future(scene.flood("flooder")) for _ in range(STREAMS)]
        windows = []
        for sync_s in (0.02, 0.002, 0.02):
            scene.log._disk = Disk(sync_s, 100e6)
            await asyncio.sleep(30)
            windows.append(scene.window.bytes)
        return windows

    slow, fast, slow_again = VirtualLoop().finish(main())
    assert fast < slow / 2
    assert abs(slow_again - slow) < 0.2 * slow
