"""A broker without sockets, Raft or a real disk: a log of one node on a `FaultyVfs`, which commits
at once, or when the test says so.

    @on_loop
    async def test_something() -> None:
        node = Node()
        await node.topic("t")
        await node.send("t", b"body")
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
from typing import TYPE_CHECKING, Any

import msgspec

from mq.broker.broker import Broker
from mq.broker.contracts import Leading, Peer
from mq.broker.core import BrokerSettings
from mq.broker.queue import Queue
from mq.broker.state.held_replay import LaneReplay
from mq.broker.state.machine import Machine
from mq.broker.state.state import State
from mq.config import Config
from mq.errors import MqError, SegmentFull
from mq.store.batch import Batch, accept, prepare
from mq.store.commitlog import NewEntry
from mq.store.format import Kind
from mq.wire.v1.message_pb2 import Batch as WireBatch
from mq.wire.v1.message_pb2 import Message
from mq.wire.v1.state_pb2 import ChangeAccess, Command
from tests.support.faulty_vfs import FaultyVfs
from tests.support.stores import open_store, roll, small_config

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from mq.broker.state.dedup import StoredAt
    from mq.config import StoreConfig
    from mq.store.store import Store
    from mq.wire.v1.security_pb2 import AccessChange

    Done = Callable[[MqError | None], None]

STORE = small_config(segment_bytes=4 << 20, checkpoint_log_bytes=1 << 30)
FOLLOWED = Leading(9, "other", "other:8081")
WAIT_S = 60.0


class MemoryConsensus:
    """The log, for one node. `is_held`: entries are written and not committed until `commit`.
    `failure`: whatever is proposed fails with it, and nothing is written.
    """

    def __init__(self, store: Store, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms
        self._waiting: list[tuple[int, Done]] = []
        self.term = 0
        self.is_leader = False
        self.is_held = False
        self.failure: MqError | None = None
        self.proposed: list[tuple[Kind, object]] = []
        # The set and, while this node does not lead, its leader, as they are seen from here.
        self.seen = [Peer("node-0", "here:8081", "east"), Peer("other", "other:8081", "west")]
        self.followed = FOLLOWED

    def start(self, broker: Broker) -> None:
        """Entries that are in the log already are committed."""
        self._broker = broker
        self._store.log.sync()
        broker.apply_through(self._store.log.last_index)
        self.term = broker.machine.applied_term

    @property
    def leading_term(self) -> int:
        return self.term if self.is_leader else 0

    @property
    def leading(self) -> Leading:
        return Leading(self.term, "node-0", "here:8081") if self.is_leader else self.followed

    @property
    def peers(self) -> Sequence[Peer]:
        return self.seen

    def elect(self) -> None:
        """This node leads, in a new term, and has applied all that was before."""
        self.term += 1
        self.is_leader = True
        self._append(Kind.NOOP, [], None)
        self.commit()

    def depose(self) -> None:
        self.is_leader = False

    def propose(
        self, kind: Kind, payload: Sequence[bytes | memoryview], context: object, done: Done
    ) -> None:
        loop = asyncio.get_running_loop()
        if self.failure is not None:
            loop.call_soon(done, self.failure)
            return
        self.proposed.append((kind, context))
        # Opening a segment commits what waits, and makes a new list of it.
        raft_index = self._append(kind, payload, context)
        self._waiting.append((raft_index, done))
        if not self.is_held:
            loop.call_soon(self.commit)

    def commit(self, count: int | None = None) -> None:
        """Everything that was written, or so many of the proposals."""
        store = self._store
        waiting = self._waiting if count is None else self._waiting[:count]
        self._waiting = self._waiting[len(waiting) :]
        store.log.sync()
        self._broker.apply_through(waiting[-1][0] if count else store.log.last_index)
        for _, done in waiting:
            done(None)

    def lose(self, error: MqError) -> None:
        """Proposals fail; they are in the log all the same, for a later reader."""
        waiting, self._waiting = self._waiting, []
        for _, done in waiting:
            done(error)

    def _append(self, kind: Kind, payload: Sequence[bytes | memoryview], context: object) -> int:
        store = self._store
        entry = NewEntry(kind, self.term, self._now_ms(), list(payload))
        try:
            (ref,) = store.log.append([entry])
        except SegmentFull:
            self.commit()
            roll(store, self._now_ms(), self.term)
            (ref,) = store.log.append([entry])
        self._broker.appended(ref, context)
        return ref.raft_index


class Node:
    """A broker that leads. Time passes when the test says so: `now_ms`."""

    def __init__(
        self,
        vfs: FaultyVfs | None = None,
        *,
        store: StoreConfig = STORE,
        now_ms: int = 1_000_000,
        auth: str = "off",
        **options: Any,
    ) -> None:
        """`options` are those of the section `broker`, `auth` is `auth.mode`."""
        self.now_ms = now_ms
        self.vfs = vfs or FaultyVfs()
        state = State()
        self.store: Store = open_store(self.vfs, store, state.encode, LaneReplay)
        self.machine = Machine(state, self.store)
        if self.store.log.last_index < 1:
            roll(self.store, self.now_ms)
        self.consensus = MemoryConsensus(self.store, lambda: self.now_ms)
        config = Config()
        section = msgspec.structs.replace(config.broker, **options)
        mode = msgspec.structs.replace(config.auth, mode=auth)
        self.settings = BrokerSettings(msgspec.structs.replace(config, broker=section, auth=mode))
        self.broker = Broker(
            self.settings,
            self.machine,
            self.consensus,
            lambda: self.now_ms,
            self._until_durable,
            functools.partial(random.Random(0).getrandbits, 64),
        )
        # The time that the test keeps counts for members, too.
        self.broker.groups._now_ms = lambda: self.now_ms
        self.broker.transacting._steady_ms = lambda: self.now_ms
        self.consensus.start(self.broker)
        self.consensus.elect()
        self.broker.tick()

    def vfs_after_kill(self) -> FaultyVfs:
        """The disk, for a node that starts again."""
        self.vfs.kill()
        return self.vfs

    async def _until_durable(self, log_offset: int) -> None:
        self.store.log.sync()
        assert self.store.log.end_offset >= log_offset

    async def change_access(self, *changes: AccessChange) -> None:
        """As an administrator has decided it."""
        command = Command(change_access=ChangeAccess(changes=changes))
        await self.broker.writer.write(command)

    async def topic(self, name: str, queues: int = 4) -> str:
        await self.broker.catalog.create(name, queues, 0)
        return name

    async def send(self, topic: str, *bodies: bytes, queue_id: int = 0, **fields: Any) -> StoredAt:
        slot = await self.broker.submit(batch(topic, *bodies, queue_id=queue_id, **fields))
        return await asyncio.wait_for(asyncio.shield(slot.outcome), WAIT_S)

    def ends(self, topic: str, queues: int = 4) -> list[int]:
        return [self.broker.groups.extent(Queue(topic, at))[1] for at in range(queues)]

    def committed(self, group: str) -> dict[Queue, int]:
        return dict(self.machine.state.offsets.positions(group))

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self.broker.tick()


def batch(topic: str, *bodies: bytes, queue_id: int = 0, **fields: Any) -> Batch:
    messages = fields.pop("messages", [Message(body=body) for body in bodies])
    wire = WireBatch(topic=topic, queue_id=queue_id, messages=messages, **fields)
    return accept(prepare(wire.SerializeToString()), 4 << 20)


async def turns(count: int = 20) -> None:
    """Lets everything run that can."""
    for _ in range(count):
        await asyncio.sleep(0)


async def soon(work: Awaitable[Any]) -> Any:
    """The result, which must come without further help."""
    return await asyncio.wait_for(work, WAIT_S)


async def eventually(question: Callable[[], Any]) -> None:
    """Becomes true by itself."""
    async with asyncio.timeout(WAIT_S):
        while not question():  # noqa: ASYNC110 - what is asked about has no event
            await asyncio.sleep(0.002)


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine. Nothing may have reached the loop's exception handler."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        unhandled: list[dict[str, Any]] = []

        async def watched() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, what: unhandled.append(what))
            await test(*args, **kwargs)

        asyncio.run(watched())
        assert unhandled == []

    run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
    return run
