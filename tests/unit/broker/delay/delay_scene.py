"""Delayed messages under random trouble, against a plain model: a clock that is set back and forth,
leaders that come and go, nodes that are killed, writes that fail, retention.

After every step: nothing is on its topic early, twice, or after it was taken back. At the end:
everything that was acknowledged is there.
"""

from __future__ import annotations

import asyncio
import random

from mq.broker.state.dedup import StoredAt
from mq.errors import FlowControl, MessageNotFound, MqError, NotLeader, OutcomeUnknown
from tests.support.consensus import Node, batch, eventually, turns
from tests.support.stores import read_all, small_config

STORE = small_config(segment_bytes=16 << 10, checkpoint_log_bytes=8 << 10, queue_file_units=64)
QUEUES = 2


class Scene:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.node = Node(store=STORE, now_ms=self.random.randrange(10**9, 10**12))
        # When each message is due, by its body, as soon as that is known.
        self.due_ms: dict[bytes, int] = {}
        self.stored: dict[bytes, tuple[StoredAt, int]] = {}
        self.doubtful: set[bytes] = set()
        self.recalled: set[bytes] = set()
        self.seen: set[bytes] = set()
        self.count = 0
        # The latest time that any leader has had.
        self.latest_ms = self.node.now_ms

    async def begin(self) -> None:
        await self.node.topic("t", QUEUES)

    # -- steps ------------------------------------------------------------------------------------

    async def send(self) -> None:
        count = self.random.choice((1, 1, 1, 2, 5))
        bodies = [b"%06d" % (self.count + at) + b"." * 30 for at in range(count)]
        self.count += count
        delay_ms = self.random.choice((1, 5, 40, 300, 2_000, 700_000))
        delay_ms += self.random.randrange(delay_ms)
        queue_id = self.random.randrange(QUEUES)
        sent = batch("t", *bodies, queue_id=queue_id, delay_ms=delay_ms)
        due_ms = self.node.now_ms + delay_ms
        starts = sent.frame_starts - sent.region_start
        self.due_ms |= dict.fromkeys(bodies, due_ms)
        try:
            slot = await self.node.broker.submit(sent)
        except MqError:
            return
        try:
            stored = await asyncio.shield(slot.outcome)
        except OutcomeUnknown:
            self.doubtful |= set(bodies)
        except MqError:
            return
        else:
            assert stored.deliver_at_ms == due_ms
            for body, start in zip(bodies, starts.tolist(), strict=True):
                self.stored[body] = stored, stored.log_offset + start

    async def send_many(self) -> None:
        await asyncio.gather(*(self.send() for _ in range(self.random.randrange(2, 20))))

    async def pass_time(self) -> None:
        self.node.pass_time(self.random.choice((1, 7, 50, 400, 3_000, 400_000)))

    async def set_clock_back(self) -> None:
        self.node.pass_time(-self.random.choice((5, 1_000, 60_000, 2_000_000)))

    async def recall(self) -> None:
        waiting = [body for body in self.stored if body not in self.recalled | self.seen]
        for body in self.random.sample(waiting, min(len(waiting), 3)):
            stored, log_offset = self.stored[body]
            try:
                await self.node.broker.delays.recalls.recall("t", log_offset, stored.deliver_at_ms)
            except MessageNotFound:
                self.look()
                assert body in self.seen, f"{body!r} waits and was not found"
            else:
                self.recalled.add(body)
                self.look()
                assert body not in self.seen

    async def change_leader(self) -> None:
        self.depose()
        await turns(self.random.randrange(5))
        self.node.consensus.failure = None
        self.node.consensus.elect()

    def depose(self) -> None:
        self.node.consensus.failure = NotLeader(None, None)
        self.node.consensus.depose()
        self.node.broker.tick()

    async def fail_writes(self) -> None:
        """Proposals fail; nothing is written."""
        self.node.consensus.failure = FlowControl("busy")
        await self.pass_time()
        await turns(self.random.randrange(10))
        self.node.consensus.failure = None

    async def stall(self) -> None:
        """Entries are written and committed late, while more comes."""
        self.node.consensus.is_held = True
        work = [asyncio.ensure_future(self.send()) for _ in range(self.random.randrange(4))]
        await turns(3)
        await self.pass_time()
        work += [asyncio.ensure_future(self.send()) for _ in range(self.random.randrange(4))]
        await turns(self.random.randrange(10))
        self.node.consensus.is_held = False
        self.node.consensus.commit()
        if self.random.random() < 0.5:
            # The next leader knows only the entries.
            await self.change_leader()
        await asyncio.gather(*work)

    async def kill(self) -> None:
        """In the middle of a write, which the next leader has or not."""
        self.node.consensus.is_held = True
        work = [asyncio.ensure_future(self.send()) for _ in range(self.random.randrange(3))]
        await self.pass_time()
        await turns(self.random.randrange(10))
        old = self.node
        old.consensus.lose(OutcomeUnknown("the leader died"))
        self.depose()
        await asyncio.gather(*work)
        self.node = Node(old.vfs_after_kill(), store=STORE, now_ms=old.now_ms)

    async def retain(self) -> None:
        store, delays = self.node.store, self.node.broker.delays
        segments = store.log.segments()
        staying = self.random.choice(segments).base_log_offset
        await delays.carry(staying)
        assert not delays.needs_log_before(staying)
        needed = self.node.broker.needs_log_before
        store.drop_front(len(segments), is_needed_before=needed)

    async def restart_from_the_log_alone(self) -> None:
        """As a node that lost its derived files, or copies the log of another."""
        old = self.node
        self.depose()
        await turns()
        vfs = old.vfs_after_kill()
        vfs.remove("/data/checkpoint")
        self.node = Node(vfs, store=STORE, now_ms=old.now_ms)

    # -- judgement --------------------------------------------------------------------------------

    async def step(self) -> None:
        steps = {
            self.send_many: 10,
            self.pass_time: 10,
            self.set_clock_back: 1,
            self.recall: 3,
            self.change_leader: 1,
            self.fail_writes: 1,
            self.stall: 4,
            self.kill: 1,
            self.retain: 2,
            self.restart_from_the_log_alone: 1,
        }
        (chosen,) = self.random.choices(list(steps), list(steps.values()))
        self.latest_ms = max(self.latest_ms, self.node.now_ms)
        await chosen()
        await turns(self.random.randrange(30))
        self.look()

    def look(self) -> None:
        self.latest_ms = max(self.latest_ms, self.node.now_ms)
        for queue_id in range(QUEUES):
            bodies = [one.body for one in read_all(self.node.store, "t", queue_id)]
            assert len(set(bodies)) == len(bodies), "twice in a queue"
            for body in bodies:
                assert self.due_ms[body] <= self.latest_ms, f"{body!r} is early"
                assert body not in self.recalled, f"{body!r} was taken back"
            self.seen |= set(bodies)

    async def end(self) -> None:
        last_ms = max(self.latest_ms, *self.due_ms.values())
        while self.node.now_ms < last_ms:
            self.node.pass_time(min(600_000, last_ms - self.node.now_ms))
            await eventually(lambda: not self.is_busy)
            self.look()
        lost = set(self.stored) - self.seen - self.recalled
        assert not lost
        assert set(self.stored) >= self.seen - self.doubtful
        assert self.node.machine.state.schedule.lanes == {}

    @property
    def is_busy(self) -> bool:
        return self.node.broker.delays._task is not None
