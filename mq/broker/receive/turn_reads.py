"""Reads of one turn of receives: what several of them take from one queue is read once.

Sixty-four receivers of one message each would otherwise make as many reads of neighbours.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right

from mq.broker.consumer.pulling import Puller, Query
from mq.broker.queue import Queue
from mq.store.reading import ReadResult, Run, Status

# Receives of more read for themselves. So much is read for those of few.
_FEW_MESSAGES = 8
_AHEAD_MESSAGES, _AHEAD_BYTES = 64, 256 << 10


class _Ahead:
    """What was read ahead of one queue."""

    def __init__(self, result: ReadResult) -> None:
        self.result = result
        self.starts = [run.queue_offset for run in result.runs]
        # Of each run, where its frames end: made when a receive takes of it.
        self._ends: dict[int, list[int]] = {}

    def covers(self, query: Query) -> bool:
        """Whether it has all that the query may get."""
        result = self.result
        if result.status != Status.FOUND:
            return False
        end = query.queue_offset + query.messages_max
        return self.starts[0] <= query.queue_offset < result.next_offset and (
            end <= result.next_offset or result.next_offset == result.end
        )

    def part(self, query: Query) -> ReadResult:
        """The messages of one receive: as many as its limits allow, but at least one."""
        _, at, _, bytes_left, messages_left = query
        runs: list[Run] = []
        for index in range(bisect_right(self.starts, at) - 1, len(self.starts)):
            run, ends = self.result.runs[index], self._ends_of(index)
            first = at - run.queue_offset
            start = ends[first - 1] if first else 0
            fitting = bisect_right(ends, start + bytes_left) - first
            count = min(messages_left, max(fitting, 0 if runs else 1), run.message_count - first)
            if count <= 0:
                break
            stop = ends[first + count - 1]
            runs.append(
                Run(
                    at,
                    count,
                    run.log_offset + start,
                    run.stored_at_ms,
                    run.frames[start:stop],
                    run.sizes[first : first + count],
                )
            )
            at += count
            messages_left -= count
            bytes_left -= stop - start
            if messages_left <= 0 or first + count < run.message_count:
                break
        return ReadResult(Status.FOUND, runs, at, self.result.start, self.result.end)

    def _ends_of(self, index: int) -> list[int]:
        found = self._ends.get(index)
        if found is None:
            sizes = self.result.runs[index].sizes.tolist()
            found = self._ends[index] = list(itertools.accumulate(sizes))
        return found


class TurnReads:
    """For one turn of the loop: it does not learn of messages that come later."""

    def __init__(self, puller: Puller) -> None:
        self._puller = puller
        self._known: dict[Queue, _Ahead] = {}

    def read(self, query: Query) -> ReadResult:
        """As `Puller.read`."""
        filter_ = query.filter
        if filter_.predicate or filter_.tag_hashes or not 0 < query.messages_max <= _FEW_MESSAGES:
            return self._puller.read(query)
        known = self._known.get(query.queue)
        if known is None or not known.covers(query):
            wider = query._replace(messages_max=_AHEAD_MESSAGES, bytes_max=_AHEAD_BYTES)
            known = self._known[query.queue] = _Ahead(self._puller.peek(wider))
            if known.result.status != Status.FOUND:
                return self._puller.read(query)  # which says why
        result = known.part(query)
        self._puller.count(result)
        return result
