"""Reads of one turn of receives: what several of them take from one queue is read once.

Sixty-four receivers of one message each would otherwise make as many reads of neighbours.
"""

from __future__ import annotations

import numpy as np

from mq.broker.consumer.pulling import Puller, Query
from mq.broker.queue import Queue
from mq.store.reading import ReadResult, Run, Status

# Receives of more read for themselves. So much is read for those of few.
_FEW_MESSAGES = 8
_AHEAD_MESSAGES, _AHEAD_BYTES = 64, 256 << 10


class TurnReads:
    """For one turn of the loop: it does not learn of messages that come later."""

    def __init__(self, puller: Puller) -> None:
        self._puller = puller
        self._known: dict[Queue, ReadResult] = {}

    def read(self, query: Query) -> ReadResult:
        """As `Puller.read`."""
        filter_ = query.filter
        if filter_.predicate or filter_.tag_hashes or not 0 < query.messages_max <= _FEW_MESSAGES:
            return self._puller.read(query)
        known = self._known.get(query.queue)
        if known is None or not _covers(known, query):
            ahead = query._replace(messages_max=_AHEAD_MESSAGES, bytes_max=_AHEAD_BYTES)
            known = self._known[query.queue] = self._puller.peek(ahead)
            if known.status != Status.FOUND:
                return self._puller.read(query)  # which says why
        result = _part(known, query)
        self._puller.count(result)
        return result


def _covers(result: ReadResult, query: Query) -> bool:
    """Whether the result has all that the query may get."""
    if result.status != Status.FOUND:
        return False
    end, first = query.queue_offset + query.messages_max, result.runs[0].queue_offset
    return first <= query.queue_offset < result.next_offset and (
        end <= result.next_offset or result.next_offset == result.end
    )


def _part(result: ReadResult, query: Query) -> ReadResult:
    """The messages of one receive: as many as its limits allow, but at least one."""
    runs: list[Run] = []
    at, messages_left, bytes_left = query.queue_offset, query.messages_max, query.bytes_max
    for run in result.runs:
        first = at - run.queue_offset
        if first >= run.message_count:
            continue
        ends = np.add.accumulate(run.sizes, dtype=np.int64)
        start = int(ends[first - 1]) if first else 0
        fitting = int(np.searchsorted(ends, start + bytes_left, side="right")) - first
        count = min(messages_left, max(fitting, 0 if runs else 1), run.message_count - first)
        if count <= 0:
            break
        stop = int(ends[first + count - 1])
        runs.append(
            run._replace(
                queue_offset=at,
                message_count=count,
                log_offset=run.log_offset + start,
                frames=run.frames[start:stop],
                sizes=run.sizes[first : first + count],
            )
        )
        at, messages_left, bytes_left = at + count, messages_left - count, bytes_left - stop + start
        if messages_left <= 0 or first + count < run.message_count:
            break
    return result._replace(runs=runs, next_offset=at)
