"""One node of a simulated broker set: a disk that stays, and the process that runs on it.

The store, the state machine and the broker are the real ones. What is not is the edge: the disk is
a `FaultyVfs`, the clock is the loop's plus what the node's own is off by, and the log is replicated
by `flow_log`.
"""

from __future__ import annotations

import asyncio
import functools
import random
from typing import TYPE_CHECKING, Any

import msgspec

from mq.broker.broker import Broker
from mq.broker.core import BrokerSettings
from mq.broker.state.machine import Machine
from mq.broker.state.state import State
from mq.config import Config
from tests.sim.flow_loop import Life
from tests.support.faulty_vfs import FaultyVfs
from tests.support.stores import DIRECTORY, open_store, roll, small_config

if TYPE_CHECKING:
    from collections.abc import Callable

    from mq.broker.contracts import Consensus
    from mq.config import StoreConfig

EPOCH_MS = 1_700_000_000_000
_TICK_S = 0.2
DERIVED = ("consumequeue", "index", "checkpoint")


class Options(msgspec.Struct, frozen=True):
    """Options of the nodes: sections of the configuration, and their parts."""

    segment_bytes: int = 1 << 18
    broker: dict[str, Any] = {}
    transactions: dict[str, Any] = {}
    auth: dict[str, Any] = {}

    def config(self) -> Config:
        config = Config()
        return msgspec.structs.replace(
            config,
            broker=msgspec.structs.replace(config.broker, **self.broker),
            auth=msgspec.structs.replace(config.auth, **self.auth),
            transactions=msgspec.structs.replace(config.transactions, **self.transactions),
        )

    def store(self) -> StoreConfig:
        return small_config(segment_bytes=self.segment_bytes, checkpoint_log_bytes=1 << 30)


class Process:
    """From a start to a kill. Made within its own `life`."""

    def __init__(
        self, member: Member, options: Options, make_consensus: Callable[[Process], Consensus]
    ) -> None:
        self.member = member
        self.life = Life()
        self.open: set[asyncio.Future[Any]] = set()
        state = State()
        self.store = open_store(member.vfs, options.store(), state.encode)
        self.log = self.store.log
        self.machine = Machine(state, self.store)
        if self.log.last_index < 1:
            # The same on all of them: a new group agrees on its first entry.
            roll(self.store, EPOCH_MS)
        self.log.sync()
        self.consensus = make_consensus(self)
        self.broker = self.life.run(self._make_broker, options)

    def _make_broker(self, options: Options) -> Broker:
        broker = Broker(
            BrokerSettings(options.config()),
            self.machine,
            self.consensus,
            self.member.now_ms,
            self._until_durable,
            functools.partial(self.member.rng.getrandbits, 64),
        )
        self._tick(broker)
        return broker

    def _tick(self, broker: Broker) -> None:
        broker.tick()
        asyncio.get_running_loop().call_later(_TICK_S, self._tick, broker)

    async def _until_durable(self, log_offset: int) -> None:
        self.log.sync()
        assert self.log.end_offset >= log_offset


class Member:
    def __init__(self, name: str, seed: int, options: Options) -> None:
        self.name = name
        self.vfs = FaultyVfs(seed)
        self.rng = random.Random(f"{name} {seed}")
        # How far its clock is off.
        self.skew_ms = 0
        self.process: Process | None = None
        self.options = options

    @property
    def address(self) -> str:
        return f"{self.name}:8081"

    @property
    def is_up(self) -> bool:
        return self.process is not None

    @property
    def running(self) -> Process:
        assert self.process is not None, f"{self.name} is down"
        return self.process

    def now_ms(self) -> int:
        return EPOCH_MS + round(asyncio.get_running_loop().time() * 1000) + self.skew_ms

    def start(self, make_consensus: Callable[[Process], Consensus]) -> Process:
        assert self.process is None
        self.process = Process(self, self.options, make_consensus)
        return self.process

    def kill(self, *, loses_power: bool = False) -> None:
        """kill -9, or worse: then what was not synced may be gone."""
        process, self.process = self.running, None
        process.life.is_over = True
        if loses_power:
            self.vfs.crash(self.rng)
        else:
            self.vfs.kill()
        for future in process.open:
            if not future.done():
                future.set_exception(ConnectionResetError(f"{self.name} is gone"))

    def lose_derived_files(self) -> None:
        """While it is down: a start has to make them again."""
        for name in DERIVED:
            path = f"{DIRECTORY}/{name}"
            if self.vfs.exists(path):
                if name == "checkpoint":
                    self.vfs.remove(path)
                else:
                    self.vfs.remove_tree(path)
