"""The parts that the broker's services share: leadership, the log, the state, the clock; and the
interface of a service.

A service is pure decisions over the replicated state plus a small driver that runs on the leader
alone. It changes the state only by writing an entry: messages and a command in one entry are one
atom, so a fail-over finds both done or none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mq.broker.catalog import Catalog
from mq.broker.consumer.arrivals import Arrivals
from mq.broker.leading import Leadership
from mq.broker.page_in import PageIn
from mq.broker.security.audit import AuditTrail
from mq.broker.state.machine import Machine
from mq.broker.state.state import State
from mq.broker.writing import EntryWriter
from mq.config import Config
from mq.errors import MqError
from mq.store.store import Store
from mq.wire.v1.state_pb2 import Command


@dataclass(slots=True)
class BrokerSettings:
    """The configuration as it is now: some of it may change while the node runs."""

    config: Config
    # Monotonic clock for times below a millisecond; None: that of the loop.
    steady_s: Callable[[], float] | None = None

    @property
    def creates_topics(self) -> bool:
        return self.config.broker.auto_create_topics == "yes"

    @property
    def creates_for_consumers(self) -> bool:
        return self.creates_topics and self.config.broker.auto_create_by_consumers == "yes"


@dataclass(slots=True, frozen=True)
class Core:
    settings: BrokerSettings
    writer: EntryWriter
    machine: Machine
    leadership: Leadership
    catalog: Catalog
    arrivals: Arrivals
    audit: AuditTrail
    page_in: PageIn
    # The wall clock, which may be set back and forth.
    now_ms: Callable[[], int]
    # Numbers of 64 bits that cannot be guessed.
    random_number: Callable[[], int]

    @property
    def state(self) -> State:
        return self.machine.state

    @property
    def store(self) -> Store:
        return self.machine.store


class Service:
    """Events that a service may override. All are called on the loop and must not wait."""

    def lead(self) -> None:
        """This node serves from now on."""

    def step_down(self, error: MqError) -> None:
        """This node stops serving; waiting callers get `error`."""

    def tick(self) -> None:
        """A few times a second, while this node serves."""

    def on_command(self, command: Command) -> None:
        """A command was applied, on any node; commands of a `many` come one by one."""

    def needs_log_before(self, log_offset: int) -> bool:  # noqa: ARG002 - overridden
        """Whether a held batch stands before this log offset: retention keeps it. On any node."""
        return False

    async def carry(self, log_offset: int) -> None:
        """On the leader: held batches before this log offset are written again, at the end of the
        log.
        """
