"""The known brokers: their ranking for the next request, and the result of their last attempt.

Pure but for the log: the caller passes the time. `Servers` ranks addresses by a moving average of
their latencies; a failed one comes last during a penalty, which doubles with each failure in a row.
`Attempts` serves the texts of errors, and one line in the log when a program waits for brokers.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

from mq.errors import Unreachable

log = logging.getLogger(__name__)

# The weight of the newest latency: a single slow answer does not change the ranking.
_NEWEST_WEIGHT = 0.2
_PENALTY_S, _PENALTY_S_MAX = 0.2, 10.0


@dataclass(slots=True)
class Health:
    """A moving average of latencies, and a penalty that doubles with each failure in a row."""

    latency_s: float = 0.0
    is_measured: bool = False
    failures: int = 0
    avoided_until_s: float = 0.0

    def measured(self, latency_s: float) -> None:
        if self.is_measured:
            latency_s = self.latency_s + _NEWEST_WEIGHT * (latency_s - self.latency_s)
        self.latency_s, self.is_measured = latency_s, True

    def recovered(self) -> None:
        self.failures, self.avoided_until_s = 0, 0.0

    def failed(self, now_s: float, penalty_s: float, penalty_s_max: float) -> None:
        self.avoided_until_s = now_s + min(penalty_s * 2**self.failures, penalty_s_max)
        self.failures = min(self.failures + 1, 16)


@dataclass(slots=True)
class _Record(Health):
    zone: str = ""


class Servers:
    """`zone` is the client's: of brokers without a latency, those of the same zone come first."""

    def __init__(self, addresses: Iterable[str], zone: str = "") -> None:
        self._records = {address: _Record() for address in addresses}
        self._zone = zone

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._records))

    def learn(self, address: str, zone: str = "") -> None:
        """Adds an address that a broker reported."""
        if address:
            self._records.setdefault(address, _Record()).zone = zone

    def keep_only(self, addresses: Iterable[str]) -> None:
        """Drops all others: removed nodes, or seeds that belong to another set."""
        kept = dict.fromkeys(addresses)
        if kept:
            self._records = {one: record for one, record in self._records.items() if one in kept}

    def succeeded(self, address: str, latency_s: float) -> None:
        record = self._records.setdefault(address, _Record())
        record.measured(latency_s)
        record.recovered()

    def failed(self, address: str, now_s: float) -> None:
        record = self._records.setdefault(address, _Record())
        record.failed(now_s, _PENALTY_S, _PENALTY_S_MAX)

    def best(self, now_s: float, without: Container[str] = ()) -> str:
        """The first of the ranking; one of `without` only if there is no other."""
        return self.ranking(now_s, without)[0]

    def ranking(self, now_s: float, without: Container[str] = ()) -> list[str]:
        def rank(address: str) -> tuple[bool, float, bool, float]:
            record = self._records[address]
            avoided_s = max(0.0, record.avoided_until_s - now_s)
            is_far = bool(self._zone) and record.zone != self._zone
            return (
                address in without,
                avoided_s,
                is_far and not record.is_measured,
                record.latency_s,
            )

        # Sorting is stable: equals keep the order in which they were added.
        return sorted(self._records, key=rank)


# A fail-over takes less; a longer silence is logged.
LOG_AFTER_S = 1.0
_ADVICE = "Is a broker running there? `mq server` starts one"


class Attempts:
    def __init__(self) -> None:
        # By address: the reason of the last failure; None: the last attempt was answered.
        self._reasons: dict[str, str | None] = {}
        # The start of the first attempt since the last answer of any broker.
        self._silent_since_s: float | None = None
        self._is_logged = False

    def answered(self, address: str, now_s: float) -> None:
        self._reasons[address] = None
        if self._is_logged and self._silent_since_s is not None:
            silent_s = now_s - self._silent_since_s
            log.info("%s answers, after %.1f s without a broker", address, silent_s)
        self._silent_since_s, self._is_logged = None, False

    def failed(self, address: str, error: Unreachable, began_s: float, now_s: float) -> None:
        # Without the address in front.
        self._reasons[address] = str(error).removeprefix(address).lstrip(": ")
        if self._silent_since_s is None:
            self._silent_since_s = began_s
        if not self._is_logged and now_s - self._silent_since_s >= LOG_AFTER_S:
            self._is_logged = True
            failed = [one for one, why in self._reasons.items() if why is not None]
            log.warning("no broker answers, still trying: %s", self.told(failed))

    def is_known(self, address: str) -> bool:
        """Whether the address was tried."""
        return address in self._reasons

    def is_up(self, address: str) -> bool:
        """Whether the last attempt was answered; False without an attempt."""
        return address in self._reasons and self._reasons[address] is None

    def reason(self, address: str) -> str:
        """Why the last attempt failed; empty if it was answered, or none was made."""
        return self._reasons.get(address) or ""

    def told(self, addresses: Iterable[str]) -> str:
        """The addresses, each with the reason of its last failure."""
        return ", ".join(
            f"{one} ({why})" if (why := self.reason(one)) else one for one in addresses
        )

    def unreachable(self, addresses: Iterable[str], timeout_s: float) -> Unreachable:
        """The error when none of these answered in that time."""
        # Rounded: the rest of a time-out has many digits.
        within = f"{max(0.0, round(timeout_s, 1)):g} s"
        return Unreachable(
            f"no broker answered within {within}; tried {self.told(addresses)}. {_ADVICE}"
        )
