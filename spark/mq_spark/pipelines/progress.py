"""The progress of a pipeline, as a line on stderr: renewed on a terminal, one every few seconds
elsewhere; and the end of a query, also by Ctrl-C or SIGTERM.

    archive  1,200,000 messages  85,000/s  batch 12  lag 34,000

A query is watched by its progress records, one a batch; nothing runs in Spark for it.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql.streaming.query import StreamingQuery

_RENEW_S = 0.5
_LINE_EVERY_S = 5.0
_ERASE = "\r\x1b[K"
_RATE_OVER_S = 10.0

Details = Callable[[], str]


class ProgressLine:
    """Say as often as you like how far it is: it is shown as often as it suits a reader."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._is_terminal = self._out.isatty()
        self._shown = ""
        self._next_s = 0.0

    def show(self, text: str) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s or text == self._shown:
            return
        self._next_s = now_s + (_RENEW_S if self._is_terminal else _LINE_EVERY_S)
        self._shown = text
        self._out.write(f"{_ERASE}{text}" if self._is_terminal else f"{text}\n")
        self._out.flush()

    def end(self, text: str = "") -> None:
        """The last word, which stays; without one the line goes away."""
        erase = _ERASE if self._is_terminal and self._shown else ""
        if text == self._shown and not self._is_terminal:
            return
        self._out.write(erase + (f"{text}\n" if text else ""))
        self._out.flush()


@dataclasses.dataclass(slots=True)
class Seen:
    """The sums of a query's progress records."""

    rows: int = 0
    batches: int = 0
    batch_id: int = -1
    lag: int | None = None
    began_s: float = dataclasses.field(default_factory=time.monotonic)
    _recent: list[tuple[float, int]] = dataclasses.field(default_factory=list)

    def take(self, record: Mapping[str, Any], now_s: float) -> None:
        """One batch; one that was taken already changes nothing. While nothing comes in, Spark
        repeats the number of the last batch, with no rows.
        """
        self.lag = _lag(record["sources"], self.lag)
        if record["batchId"] <= self.batch_id:
            return
        self.batch_id = record["batchId"]
        self.batches += 1
        # Their sum is not in the records of Spark Connect.
        self.rows += sum(source["numInputRows"] for source in record["sources"])
        self._recent.append((now_s, self.rows))

    def rows_per_s(self, now_s: float) -> float:
        """The rate over the last seconds; from the start if that is not long ago."""
        while len(self._recent) > 1 and self._recent[1][0] < now_s - _RATE_OVER_S:
            self._recent.pop(0)
        if not self._recent:
            return 0.0
        past_s, past_rows = self._recent[0]
        if past_s > now_s - _RATE_OVER_S:
            past_s, past_rows = self.began_s, 0
        return (self.rows - past_rows) / max(now_s - past_s, 0.001)

    def text(self, name: str, noun: str, total: int | None, now_s: float) -> str:
        rate = self.rows_per_s(now_s)
        count = f"{self.rows:,}" if total is None else f"{self.rows:,} of {total:,}"
        parts = [name, f"{count} {noun}s", f"{rate:,.0f}/s"]
        if self.batch_id >= 0:
            parts.append(f"batch {self.batch_id}")
        if total is not None and rate > 0:
            parts.append(f"{_duration(max(total - self.rows, 0) / rate)} left")
        elif self.lag is not None:
            parts.append(f"lag {self.lag:,}")
        return "  ".join(parts)


def follow(
    query: StreamingQuery,
    name: str,
    *,
    noun: str = "message",
    total: int | None = None,
    details: Details | None = None,
) -> Seen:
    """Waits for the end of the query, and shows how far it is. Its failure is raised.

    Ctrl-C and SIGTERM stop it between two batches' logs, which a restart goes on from, and end the
    command as Ctrl-C ends others. `total` is how many rows there are in all, if that is known;
    `details` has something to add to the line.
    """
    line, seen = ProgressLine(), Seen()

    def text() -> str:
        now_s = time.monotonic()
        for record in query.recentProgress:
            seen.take(record, now_s)
        more = details() if details else ""
        return seen.text(name, noun, total, now_s) + (f"  {more}" if more else "")

    with sigterm_as_interrupt():
        try:
            while not query.awaitTermination(_RENEW_S):  # type: ignore[arg-type]  # whole seconds?
                line.show(text())
        except BaseException:
            line.end()
            query.stop()
            raise
    line.end(text())
    return seen


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """While a pipeline runs, `kill` stops it as Ctrl-C does."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _lag(sources: Any, before: int | None) -> int | None:
    """Messages between the end of the last batch and the ends of the queues, where a source says
    both.
    """
    known = [
        found
        for source in sources
        if (found := _behind(source.get("endOffset"), source.get("latestOffset"))) is not None
    ]
    return sum(known) if known else before


def _behind(end: Any, latest: Any) -> int | None:
    ends, latests = _queues(end), _queues(latest)
    if ends is None or latests is None:
        return None
    return sum(max(0, at - ends.get(queue, 0)) for queue, at in latests.items())


def _queues(offset_json: Any) -> dict[str, int] | None:
    """{"set-0/0 of orders": 120}; None when it is no offset of ours."""
    try:
        told = json.loads(offset_json) if isinstance(offset_json, str) else offset_json
        topics = told.get("queues", told)
        return {
            f"{queue} of {topic}": int(queue_offset)
            for topic, queues in topics.items()
            for queue, queue_offset in queues.items()
        }
    except (AttributeError, TypeError, ValueError):
        return None


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
