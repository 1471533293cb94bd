"""Transactions as users see them: half messages, resolutions, results; and the checks of brokers,
which ask what became of a transaction that is still open.

A check of a transaction whose local part runs in this process is not passed on: its end is on the
way. Knows no network: an answer is handed to the function that came with its check.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from mq import names
from mq.client.cluster.connection import ConnectionOptions
from mq.client.cluster.retry import cancelled
from mq.client.decode import Unreadable, decompressed
from mq.errors import IllegalConfig, MqError
from mq.wire.v1.transaction_pb2 import CheckTransaction, EndTransactionRequest, TransactRequest

log = logging.getLogger(__name__)

_CHECK_S_MAX = 86_400
_CHECKS_MAX = 1_000
_CHECKS_AT_ONCE = 20


class Resolution(enum.StrEnum):
    """The decision about a transaction. UNKNOWN: not decided yet, the broker asks later."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"


@dataclass(slots=True, weakref_slot=True)
class HalfMessage:
    """A message of a transaction that is open: what `execute` and `check` get to see.

    `check` counts the broker's questions about it: 0 when it was just sent.
    """

    transaction_id: str
    topic: str
    queue_id: int
    stored_at_ms: int
    born_at_ms: int
    body: bytes
    tag: str
    keys: tuple[str, ...]
    properties: Mapping[str, str]
    ordering_key: str
    check: int = 0

    @property
    def broker_set(self) -> str:
        """Which one has it; each counts the queues of a topic for itself."""
        return self.transaction_id.rpartition(":")[0]


class TransactionResult(NamedTuple):
    """The end that the broker has confirmed. `state` is "COMMIT": the message is on its topic;
    "ROLLBACK": it is never delivered; "UNKNOWN": no decision was made, or none reached the
    broker in time (`reason` says why), and it asks `check`.
    """

    transaction_id: str
    state: str
    topic: str
    # The place of the message, when it is committed; otherwise empty and -1.
    message_id: str = ""
    queue_id: int = -1
    queue_offset: int = -1
    reason: str = ""

    @property
    def broker_set(self) -> str:
        """Which one has it; each counts the queues of a topic for itself."""
        return self.transaction_id.rpartition(":")[0]


class Checks(NamedTuple):
    """The times and number of checks of a transaction. None: as the broker is configured."""

    first_check_s: float | None = None
    check_interval_s: float | None = None
    checks_max: int | None = None

    def merged(self, default: Checks) -> Checks:
        """With the settings of the producer where a message has none of its own."""
        return Checks._make(b if a is None else a for a, b in zip(self, default, strict=True))

    def validate(self) -> Checks:
        """IllegalConfig."""
        for name in ("first_check_s", "check_interval_s"):
            value = getattr(self, name)
            if value is not None and not 0.001 <= value <= _CHECK_S_MAX:
                raise IllegalConfig(f"{name} is {value}: it must be 0.001 to {_CHECK_S_MAX}")
        if self.checks_max is not None and not 1 <= self.checks_max <= _CHECKS_MAX:
            raise IllegalConfig(f"checks_max is {self.checks_max}: it must be 1 to {_CHECKS_MAX}")
        return self


ExecuteHandler = Callable[[HalfMessage, Any], Awaitable[Resolution | str]]
CheckHandler = Callable[[HalfMessage], Awaitable[Resolution | str]]


@dataclass(frozen=True)
class TransactionOptions(ConnectionOptions):
    """Documented at `TransactionProducer`. Raises IllegalConfig or IllegalGroup."""

    producer_group: str
    execute: ExecuteHandler
    check: CheckHandler
    _: KW_ONLY
    timeout_s: float = 3.0
    first_check_s: float | None = None
    check_interval_s: float | None = None
    checks_max: int | None = None
    compress_above_bytes: int = 4096
    in_flight_max: int = 64

    @property
    def checks(self) -> Checks:
        return Checks(self.first_check_s, self.check_interval_s, self.checks_max)

    def __post_init__(self) -> None:
        super().__post_init__()
        names.check_group(self.producer_group)
        self.checks.validate()
        if self.timeout_s <= 0:
            raise IllegalConfig(f"timeout_s is {self.timeout_s}: it must be more than 0")
        if self.compress_above_bytes < 0:
            raise IllegalConfig("compress_above_bytes must not be negative")
        # The broker remembers where so many batches of a producer are, and one of them may have to
        # be sent again.
        if not 1 <= self.in_flight_max <= 64:
            raise IllegalConfig(f"in_flight_max is {self.in_flight_max}: it must be 1 to 64")


def resolution_of(answer: object, what: str) -> Resolution:
    """The result of a handler as a resolution; any other value is UNKNOWN, and logged."""
    try:
        return Resolution(answer)  # type: ignore[arg-type]  # what it is not, it says
    except ValueError:
        text = "%s returned %r: return COMMIT, ROLLBACK or UNKNOWN; the broker asks later"
        log.error(text, what, answer)  # noqa: TRY400 - no traceback says more
        return Resolution.UNKNOWN


Answering = Callable[[HalfMessage], Awaitable[Resolution]]


class CheckAnswers:
    """Answers the checks of all broker sets, some at a time. Used on one loop."""

    def __init__(self, answer: Answering) -> None:
        self._answer = answer
        self._free = asyncio.Semaphore(_CHECKS_AT_ONCE)
        # Transactions whose local part runs here, for as long as the caller holds them; and those
        # whose check is being answered.
        self._running: WeakValueDictionary[str, HalfMessage] = WeakValueDictionary()
        self._answering: dict[str, asyncio.Task[None]] = {}

    def begun(self, half: HalfMessage) -> None:
        self._running[half.transaction_id] = half

    def left(self, half: HalfMessage) -> None:
        self._running.pop(half.transaction_id, None)

    def asked(self, check: CheckTransaction, reply: Callable[[bytes], None]) -> None:
        name = check.transaction_id
        if name not in self._running and name not in self._answering and check.messages:
            self._answering[name] = task = asyncio.create_task(self._reply(check, reply))
            task.add_done_callback(lambda _: self._answering.pop(name, None))

    async def _reply(self, check: CheckTransaction, reply: Callable[[bytes], None]) -> None:
        try:
            half = self._half_of(check)
        except MqError as error:
            log.error("a check that makes no sense: %s", error)  # noqa: TRY400
            return
        if half is None:
            return
        async with self._free:
            resolution = await self._answer(half)
        end = end_request(check.transaction_id, resolution)
        reply(TransactRequest(checked=end).SerializeToString())

    def _half_of(self, check: CheckTransaction) -> HalfMessage | None:
        """Raises MqError for an illegal id; None: its message cannot be read, which is logged."""
        names.parse_message_id(check.transaction_id)
        received = check.messages[0]
        body = decompressed(received.body, received.compression)
        if isinstance(body, Unreadable):
            log.error(
                "half message %s of topic %s cannot be checked: %s",
                check.transaction_id,
                check.topic,
                body.reason,
            )
            return None
        return HalfMessage(
            transaction_id=check.transaction_id,
            topic=check.topic,
            queue_id=check.queue_id,
            stored_at_ms=check.stored_at_ms,
            born_at_ms=received.born_at_ms,
            body=body,
            tag=received.tag,
            keys=tuple(received.keys),
            properties=dict(received.properties),
            ordering_key=received.ordering_key,
            check=check.check,
        )

    async def close(self) -> None:
        await cancelled(*self._answering.values())


def end_request(transaction_id: str, resolution: Resolution) -> EndTransactionRequest:
    named: Any = f"RESOLUTION_{resolution.value}"
    return EndTransactionRequest(transaction_id=transaction_id, resolution=named)
