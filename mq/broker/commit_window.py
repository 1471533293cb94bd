"""The bytes that may be on their way into the log at once, by how long a commit takes.

What is proposed stands before everything that comes later: a producer with one small message waits
for all of it. More than it takes to keep disk and followers busy gains nothing. So the window is
what they commit in `_HORIZON_S`, or in some of the shortest commits where these take longer: a disk
that syncs slowly commits much at once. While only one owner sends, no other waits behind it, and
the window is several times as large.

Rate and shortest time are measured: the fastest and the shortest of the last seconds, because
everything else that happens makes them slower, not faster. A window that is always full hides how
short a commit is, so it is closed for a moment now and then to see that.

Knows nothing of batches, entries and their owners.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

_HORIZON_S: Final = 0.005
# An entry waits for the sync that is under way, and for its own: with more than two a disk that is
# not busy gets more, until its syncs take half as long again.
_COMMITS: Final = 2.75
# While one owner is alone: in units of the window of many.
_ALONE: Final = 4
# Two owners within this time are not alone.
_SHARED_S: Final = 60.0
# Rate and shortest time are those of the current span and the one before.
_SPAN_S: Final = 10.0
# A rate is of at least this time.
_RATE_S: Final = 0.05
# With so much before and behind it, an entry waits for no more than the sync that is under way; the
# shortest of some of them has hardly waited for that. One that is alone has not at all.
_CLEAN_BYTES: Final = 64 << 10
_PROBES: Final = 16
# Of what memory has; the rest is for owners that the window does not hold back.
_FILLED: Final = 15 / 16
# Smaller windows would split what is one entry.
BYTES_MIN: Final = 1 << 20


class TimedEntry(NamedTuple):
    size: int
    proposed_s: float
    before_bytes: int


class _Span(NamedTuple):
    rate: float = 0.0
    shortest_s: float = math.inf


class CommitWindow:
    def __init__(self, bytes_max: int, steady_s: Callable[[], float]) -> None:
        """`bytes_max` is what memory has. `steady_s` is a monotonic clock."""
        self.bytes_max = bytes_max
        self._steady_s = steady_s
        # The window of this moment: no more is proposed while so many bytes are in flight.
        self.bytes = BYTES_MIN
        self._in_flight_bytes = 0
        self._span = self._previous = _Span()
        self._span_ends_s = 0.0
        # Entries that are still to be measured with a closed window.
        self._probes = 0
        self._shared_until_s = 0.0
        # Bytes that were committed, and the time in which something was in flight.
        self._committed_bytes = 0
        self._busy_s = 0.0
        self._busy_from_s = 0.0

    def share(self) -> None:
        """Another owner sends, too."""
        now_s = self._steady_s()
        was_alone = now_s >= self._shared_until_s
        self._shared_until_s = now_s + _SHARED_S
        if was_alone:
            self._resize(now_s)

    def propose(self, size: int) -> TimedEntry:
        """An entry is proposed. Give what is returned to `end`."""
        now_s = self._steady_s()
        if now_s >= self._span_ends_s:
            self._begin_span(now_s)
        before = self._in_flight_bytes
        if not before:
            self._busy_from_s = now_s
        self._in_flight_bytes = before + size
        return TimedEntry(size, now_s, before)

    def end(self, entry: TimedEntry, *, is_committed: bool) -> None:
        now_s = self._steady_s()
        self._in_flight_bytes -= entry.size
        self._busy_s += now_s - self._busy_from_s
        self._busy_from_s = now_s
        if not is_committed:
            return
        self._committed_bytes += entry.size
        rate, shortest_s = self._span
        shortest_s = min(shortest_s, now_s - entry.proposed_s)
        if self._busy_s >= max(_RATE_S, 2 * shortest_s):
            rate = max(rate, self._committed_bytes / self._busy_s)
            self._committed_bytes, self._busy_s = 0, 0.0
        self._span = _Span(rate, shortest_s)
        beside_bytes = max(entry.before_bytes, self._in_flight_bytes)
        if self._probes and beside_bytes <= _CLEAN_BYTES:
            self._probes = self._probes - 1 if beside_bytes else 0
        self._resize(now_s)

    def _begin_span(self, now_s: float) -> None:
        is_stale = now_s >= self._span_ends_s + _SPAN_S
        self._previous = _Span() if is_stale else self._span
        self._span = _Span()
        self._span_ends_s = now_s + _SPAN_S
        # A commit that is short enough decides nothing; the first of all has nothing before it.
        is_long = _HORIZON_S / _COMMITS < self._previous.shortest_s < math.inf
        self._probes = _PROBES if is_long else 0
        self._resize(now_s)

    def _resize(self, now_s: float) -> None:
        if self._probes:
            self.bytes = 1
            return
        rate = max(self._previous.rate, self._span.rate)
        shortest_s = min(self._previous.shortest_s, self._span.shortest_s)
        window = max(BYTES_MIN, rate * max(_HORIZON_S, _COMMITS * shortest_s))
        if now_s >= self._shared_until_s:
            window *= _ALONE
        self.bytes = int(min(window, self.bytes_max * _FILLED))
