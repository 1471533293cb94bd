"""Which brokers are known, and which of them to ask: the one that answered fastest lately.

Pure: the caller brings the time. An address keeps a moving average of its latencies; one that
failed is asked after all others for a while, which doubles with each failure in a row.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

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
