"""What users of transactions hand over and get back: plain values without a network."""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mq import names
from mq.errors import IllegalConfig

log = logging.getLogger(__name__)

_CHECK_S_MAX = 86_400
_CHECKS_MAX = 1_000


class Resolution(enum.StrEnum):
    """What becomes of a transaction. UNKNOWN: not decided yet, the broker asks later."""

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
    """What the broker has confirmed. `state` is "COMMIT": the message is on its topic; "ROLLBACK":
    nobody ever sees it; "UNKNOWN": no decision was made, or none reached the broker in time
    (`reason` says why), and it asks `check`.
    """

    transaction_id: str
    state: str
    topic: str
    # Where the message stands, when it is committed; otherwise empty and -1.
    message_id: str = ""
    queue_id: int = -1
    queue_offset: int = -1
    reason: str = ""

    @property
    def broker_set(self) -> str:
        """Which one has it; each counts the queues of a topic for itself."""
        return self.transaction_id.rpartition(":")[0]


class Checks(NamedTuple):
    """When and how often the broker asks about a transaction. None: as it is configured."""

    first_check_s: float | None = None
    check_interval_s: float | None = None
    checks_max: int | None = None

    def validate(self) -> Checks:
        """IllegalConfig."""
        for name in ("first_check_s", "check_interval_s"):
            value = getattr(self, name)
            if value is not None and not 0.001 <= value <= _CHECK_S_MAX:
                raise IllegalConfig(f"{name} is {value}: it must be 0.001 to {_CHECK_S_MAX}")
        if self.checks_max is not None and not 1 <= self.checks_max <= _CHECKS_MAX:
            raise IllegalConfig(f"checks_max is {self.checks_max}: it must be 1 to {_CHECKS_MAX}")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """See the producers of `mq.client` for what they mean."""

    producer_group: str
    timeout_s: float = 3.0
    compress_above_bytes: int = 4096
    in_flight_max: int = 64
    checks: Checks

    def __post_init__(self) -> None:
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
    """What a function of the user's returned. Anything but a resolution is UNKNOWN, and logged."""
    try:
        return Resolution(answer)  # type: ignore[arg-type]  # what it is not, it says
    except ValueError:
        text = "%s returned %r: return COMMIT, ROLLBACK or UNKNOWN; the broker asks later"
        log.error(text, what, answer)  # noqa: TRY400 - no traceback says more
        return Resolution.UNKNOWN
