"""Messages behind those that a grant was given, kept for the next grant.

Consumers that take one message at a time empty a backlog in steps of a few messages, and a step
costs a search in the queue and a read of the log, however little it takes. So where one step
follows the other it reads more, and the rest waits here: for less than a tick of the broker, and
until topics change or this node stops leading. What is kept was checked when it was read.

What is far behind and not in memory is read by a thread (`fetch`) when a grant has asked for it,
and waits here for that grant to be made again.

Knows nothing of groups and leases.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from mq.broker.consumer.filters import CompiledFilter
from mq.broker.consumer.pulling import Puller, Query
from mq.broker.queue import Queue
from mq.store.reading import ReadResult, Run, Status

# Of a step that is followed by another soon.
_STEP_MESSAGES_MAX: Final = 64
_AHEAD_MESSAGES: Final = 512
_AHEAD_BYTES: Final = 128 << 10
# Of all queues together.
_QUEUES_MAX: Final = 64


class _Step(NamedTuple):
    """The last step in a queue: where it ended, what stands there as far as it is known, and the
    extent of the queue.
    """

    next_offset: int
    mean_bytes: int
    rest: list[Run]
    rest_count: int
    start: int
    end: int


class NotInMemory(Exception):
    """The messages have to be read from the disk: `fetch` them, and ask again."""

    def __init__(self, query: Query) -> None:
        super().__init__("far behind, and not in memory")
        self.query = query


class ReadAhead:
    def __init__(self, puller: Puller) -> None:
        self._puller = puller
        self._steps: dict[Queue, _Step] = {}
        # By queue, offset and filter.
        self._fetched: dict[tuple[Queue, int, CompiledFilter], ReadResult] = {}

    def clear(self) -> None:
        self._steps.clear()
        self._fetched.clear()

    async def fetch(self, query: Query) -> None:
        """Reads them for the next `read` from the same offset on. Raises as `Puller.load_cold`."""
        result = await self._puller.load_cold(query)
        if len(self._fetched) >= _QUEUES_MAX:
            self._fetched.clear()
        self._count(result.runs, -1)
        self._fetched[query[:3]] = result

    def read(self, query: Query) -> ReadResult:
        """As `Puller.read`. Raises NotInMemory."""
        queue, queue_offset, filter_, bytes_max, wanted = query
        fetched = self._fetched.pop(query[:3], None)
        if fetched is not None:
            return self._take_fetched(fetched, query)
        if wanted > _STEP_MESSAGES_MAX or filter_.predicate or filter_.tag_hashes:
            return self._load(query)
        step = self._steps.pop(queue, None)
        if step is not None and step.next_offset == queue_offset:
            if step.rest_count >= wanted:
                runs, rest = split(step.rest, wanted)
                size_bytes = sum([len(run.frames) for run in runs])
                if size_bytes <= bytes_max:
                    return self._kept(queue, step, runs, rest)
            ahead = min(_AHEAD_MESSAGES, _AHEAD_BYTES // step.mean_bytes)
            if ahead >= 2 * wanted:
                bytes_max = min(bytes_max, 2 * _AHEAD_BYTES)
                more = query._replace(messages_max=ahead, bytes_max=bytes_max)
                return self._read(more, wanted)
        return self._read(query, wanted)

    def _load(self, query: Query) -> ReadResult:
        result = self._puller.load_warm(query, self._puller.locate(query))
        if result is None:
            raise NotInMemory(query)
        return result

    def _take_fetched(self, fetched: ReadResult, query: Query) -> ReadResult:
        """As much of it as this query allows."""
        if fetched.status != Status.FOUND:
            return fetched
        sizes = np.concatenate([run.sizes for run in fetched.runs])
        fitting = int(np.searchsorted(np.cumsum(sizes), query.bytes_max, side="right"))
        count = max(1, min(fitting, query.messages_max))
        runs, rest = split(fetched.runs, count)
        self._count(runs, 1)
        next_offset = rest[0].queue_offset if rest else fetched.next_offset
        return fetched._replace(runs=runs, next_offset=next_offset)

    def _read(self, query: Query, wanted: int) -> ReadResult:
        result = self._load(query)
        if result.status != Status.FOUND:
            return result
        runs, rest = split(result.runs, wanted)
        next_offset = rest[0].queue_offset if rest else result.next_offset
        self._count(rest, -1)
        mean_bytes = len(runs[0].frames) // runs[0].message_count
        rest_count = sum([run.message_count for run in rest])
        step = _Step(next_offset, mean_bytes, rest, rest_count, result.start, result.end)
        self._keep(query.queue, step)
        return result._replace(runs=runs, next_offset=next_offset)

    def _kept(self, queue: Queue, step: _Step, runs: list[Run], rest: list[Run]) -> ReadResult:
        count = sum([run.message_count for run in runs])
        last = runs[-1]
        end = last.queue_offset + last.message_count
        next_offset = rest[0].queue_offset if rest else end
        self._count(runs, 1)
        left = step.rest_count - count
        self._keep(queue, step._replace(next_offset=next_offset, rest=rest, rest_count=left))
        return ReadResult(Status.FOUND, runs, next_offset, step.start, step.end)

    def _keep(self, queue: Queue, step: _Step) -> None:
        if len(self._steps) >= _QUEUES_MAX:
            self._steps.clear()
        self._steps[queue] = step

    def _count(self, runs: list[Run], sign: int) -> None:
        """The puller counts what is read; here, what is given."""
        for run in runs:
            self._puller.messages_total += sign * run.message_count
            self._puller.bytes_total += sign * len(run.frames)


def split(runs: list[Run], count: int) -> tuple[list[Run], list[Run]]:
    """The first `count` messages, or all, and the others."""
    for at, run in enumerate(runs):
        if count >= run.message_count:
            count -= run.message_count
            continue
        if not count:
            return runs[:at], runs[at:]
        queue_offset, messages, log_offset, stored_at_ms, frames, sizes = run
        size = int(sizes[:count].sum())
        first = Run(queue_offset, count, log_offset, stored_at_ms, frames[:size], sizes[:count])
        other = Run(
            queue_offset + count,
            messages - count,
            log_offset + size,
            stored_at_ms,
            frames[size:],
            sizes[count:],
        )
        return [*runs[:at], first], [other, *runs[at + 1 :]]
    return runs, []
