"""Which brokers are known, which of them to ask, and what came of the last attempt at each.

Pure but for the log: the caller brings the time. `Servers` ranks addresses: each keeps a moving
average of its latencies, and one that failed is asked after all others for a while, which doubles
with each failure in a row. `Attempts` is for the texts of errors, and for one line in the log when
a program waits and its user should know why.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

from mq.errors import Unreachable

log = logging.getLogger(__name__)

# The newest of many latencies counts a fifth: a single slow answer moves nobody.
_NEWEST_WEIGHT = 0.2
_PENALTY_S, _PENALTY_S_MAX = 0.2, 10.0


@dataclass(slots=True)
class _Record:
    latency_s: float = 0.0
    is_measured: bool = False
    failures: int = 0
    avoided_until_s: float = 0.0
    zone: str = ""


class Servers:
    """`zone` is the client's: of brokers that were not asked yet, its neighbours come first."""

    def __init__(self, addresses: Iterable[str], zone: str = "") -> None:
        self._records = {address: _Record() for address in addresses}
        self._zone = zone

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._records))

    def learn(self, address: str, zone: str = "") -> None:
        """A broker told of this one."""
        if address:
            self._records.setdefault(address, _Record()).zone = zone

    def keep_only(self, addresses: Iterable[str]) -> None:
        """The others are gone, or never were of these: seeds of another set, say."""
        kept = dict.fromkeys(addresses)
        if kept:
            self._records = {one: record for one, record in self._records.items() if one in kept}

    def succeeded(self, address: str, latency_s: float) -> None:
        record = self._records.setdefault(address, _Record())
        if record.is_measured:
            latency_s = record.latency_s + _NEWEST_WEIGHT * (latency_s - record.latency_s)
        record.latency_s = latency_s
        record.is_measured = True
        record.failures = 0
        record.avoided_until_s = 0.0

    def failed(self, address: str, now_s: float) -> None:
        record = self._records.setdefault(address, _Record())
        penalty_s = min(_PENALTY_S * 2**record.failures, _PENALTY_S_MAX)
        record.failures = min(record.failures + 1, 16)
        record.avoided_until_s = now_s + penalty_s

    def latency_s(self, address: str) -> float:
        """The moving average; 0 when it never answered."""
        return self._records[address].latency_s

    def best(self, now_s: float, without: Container[str] = ()) -> str:
        """The one to ask next; of those in `without` only when there is no other."""
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

        # Sorting is stable: of equals, the one that was named first.
        return sorted(self._records, key=rank)


# A fail-over takes less; what takes longer is worth a line.
LOG_AFTER_S = 1.0
_ADVICE = "Is a broker running there? `mq server` starts one"


class Attempts:
    def __init__(self) -> None:
        # By address: why the last attempt failed; None: it was answered.
        self._reasons: dict[str, str | None] = {}
        # When the first attempt began after which no broker has answered.
        self._silent_since_s: float | None = None
        self._is_logged = False

    def answered(self, address: str, now_s: float) -> None:
        self._reasons[address] = None
        if self._is_logged and self._silent_since_s is not None:
            silent_s = now_s - self._silent_since_s
            log.info("%s answers, after %.1f s without a broker", address, silent_s)
        self._silent_since_s, self._is_logged = None, False

    def failed(self, address: str, error: Unreachable, began_s: float, now_s: float) -> None:
        self._reasons[address] = reason(error, address)
        if self._silent_since_s is None:
            self._silent_since_s = began_s
        if not self._is_logged and now_s - self._silent_since_s >= LOG_AFTER_S:
            self._is_logged = True
            failed = [one for one, why in self._reasons.items() if why is not None]
            log.warning("no broker answers, still trying: %s", self.told(failed))

    def is_known(self, address: str) -> bool:
        """Whether there was an attempt."""
        return address in self._reasons

    def is_up(self, address: str) -> bool:
        """By the last attempt; False also if there was none."""
        return address in self._reasons and self._reasons[address] is None

    def reason(self, address: str) -> str:
        """Why it was not reached the last time; empty if it was, or was never tried."""
        return self._reasons.get(address) or ""

    def told(self, addresses: Iterable[str]) -> str:
        """Each with why it was not reached."""
        return ", ".join(
            f"{one} ({why})" if (why := self.reason(one)) else one for one in addresses
        )

    def unreachable(self, addresses: Iterable[str], timeout_s: float) -> Unreachable:
        """None of them has answered in that time."""
        tried = self.told(addresses)
        return Unreachable(
            f"no broker answered within {seconds(timeout_s)}; tried {tried}. {_ADVICE}"
        )


def reason(error: Unreachable, address: str) -> str:
    """Without the address in front, which is named beside it."""
    return str(error).removeprefix(address).lstrip(": ")


def seconds(length_s: float) -> str:
    """What is left of a time-out after other steps has many digits."""
    return f"{max(0.0, round(length_s, 1)):g} s"
