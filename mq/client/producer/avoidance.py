"""Which broker sets a producer avoids for a while, by what it sees of their answers.

A set that answers much later than the others, or refuses what it should take, gets no message that
may go elsewhere until its penalty is over, which doubles each time; then one batch shows whether it
is well again, and any good answer ends it early. A set that asks to wait is left alone for just so
long. Pure: the caller brings the time.
"""

from __future__ import annotations

from dataclasses import dataclass

# Slow is what takes so long, and so many times as long as with another set.
SLOW_S = 0.5
_TIMES_SLOWER = 4
# The newest of many latencies counts a fifth: a single slow answer does not make all others fast.
_NEWEST_WEIGHT = 0.2
_PENALTY_S, _PENALTY_S_MAX = 1.0, 30.0
_BUSY_S_MIN = 0.05


@dataclass(slots=True)
class _Record:
    latency_s: float = 0.0
    is_measured: bool = False
    penalties: int = 0
    avoided_until_s: float = 0.0
    busy_until_s: float = 0.0


class Avoidance:
    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def answered(self, broker_set: str, latency_s: float, now_s: float) -> None:
        """It has stored what it was sent, in that time."""
        record = self._record(broker_set)
        others = [
            one.latency_s
            for one in self._records.values()
            if one is not record and one.is_measured and one.avoided_until_s <= now_s
        ]
        is_slow = bool(others) and latency_s > max(SLOW_S, _TIMES_SLOWER * min(others))
        if record.is_measured:
            latency_s = record.latency_s + _NEWEST_WEIGHT * (latency_s - record.latency_s)
        record.latency_s, record.is_measured = latency_s, True
        if is_slow:
            self.refused(broker_set, now_s)
        else:
            record.penalties, record.avoided_until_s = 0, 0.0

    def refused(self, broker_set: str, now_s: float) -> None:
        """It cannot store anything now. What was under way together counts once."""
        record = self._record(broker_set)
        if now_s >= record.avoided_until_s:
            penalty_s = min(_PENALTY_S * 2**record.penalties, _PENALTY_S_MAX)
            record.penalties = min(record.penalties + 1, 16)
            record.avoided_until_s = now_s + penalty_s

    def is_busy(self, broker_set: str, now_s: float, pause_s: float) -> None:
        """It asks to wait for so long."""
        record = self._record(broker_set)
        until_s = now_s + max(pause_s, _BUSY_S_MIN)
        record.busy_until_s = max(record.busy_until_s, until_s)

    def is_avoided(self, broker_set: str, now_s: float) -> bool:
        record = self._records.get(broker_set)
        return record is not None and now_s < max(record.avoided_until_s, record.busy_until_s)

    def _record(self, broker_set: str) -> _Record:
        return self._records.setdefault(broker_set, _Record())
