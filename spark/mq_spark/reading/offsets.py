"""The position of a stream: the offset that Spark writes into its checkpoint, as JSON, and the pure
decisions about the next one.

    {"begins": {topic: {"set/queue": n}},          only where a queue does not go on where it stood
     "layout": {"minPartitions": 4, "queuesPerTask": 64, "rowsPerTask": 20000},
     "queues": {topic: {"set/queue": n}},          the next message of each
     "version": 1}

A batch is a pure function of two of them: its ranges and how they are dealt to tasks. So a batch
that is done again after a crash is the same one, whatever the options and the cluster are by then.
Spark compares the text: keys are sorted, and when nothing is new the old one is given back as is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mq.client import QueueRef
from mq_spark.errors import MqSparkError
from mq_spark.options import queue_named

VERSION = 1
# A task costs as much as reading so many small messages: fewer are not worth one of their own.
ROWS_PER_TASK = 20_000
# A range is at least one question to a broker: thousands of them are work for many tasks.
QUEUES_PER_TASK = 64


@dataclass(frozen=True, slots=True)
class Layout:
    """The division of ranges into tasks, see `planning`."""

    partitions_min: int | None = None
    rows_per_task: int = ROWS_PER_TASK
    queues_per_task: int = QUEUES_PER_TASK


class QueueRange(NamedTuple):
    """[start, end) of a queue."""

    ref: QueueRef
    start: int
    end: int

    @property
    def rows(self) -> int:
        """At most: a filter may hide some."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """`begins` has the queues that the offset before does not have, or which begin elsewhere than
    it says, because messages are lost.
    """

    queues: Mapping[QueueRef, int]
    layout: Layout = Layout()
    begins: Mapping[QueueRef, int] = field(default_factory=dict)


def ranges(start: StreamOffset, end: StreamOffset) -> list[QueueRange]:
    """The ranges that a batch reads, in the order of the queues. Queues that are gone are left
    out.
    """
    found = []
    for ref, queue_end in sorted(end.queues.items()):
        begin = end.begins.get(ref, start.queues.get(ref, 0))
        if begin < queue_end:
            found.append(QueueRange(ref, begin, queue_end))
    return found


# JSON


def to_json(stream_offset: StreamOffset) -> dict[str, Any]:
    layout = stream_offset.layout
    written: dict[str, Any] = {
        "layout": {
            "minPartitions": layout.partitions_min,
            "queuesPerTask": layout.queues_per_task,
            "rowsPerTask": layout.rows_per_task,
        },
        "queues": _by_topic(stream_offset.queues),
        "version": VERSION,
    }
    if stream_offset.begins:
        written = {"begins": _by_topic(stream_offset.begins), **written}
    return written


def from_json(given: Mapping[str, Any]) -> StreamOffset:
    """Raises MqSparkError if it was not written by this source, or by a newer one."""
    version = given.get("version")
    if version != VERSION:
        raise MqSparkError(
            f"the checkpoint has an offset of version {version!r}, and this is version {VERSION} "
            f"of format mq: use another checkpointLocation, or the release that wrote it "
            f"({json.dumps(given)[:200]})"
        )
    try:
        layout = given["layout"]
        return StreamOffset(
            _by_ref(given["queues"]),
            Layout(layout["minPartitions"], layout["rowsPerTask"], layout["queuesPerTask"]),
            _by_ref(given.get("begins", {})),
        )
    except (KeyError, TypeError, AttributeError, ValueError):
        raise MqSparkError(
            f"the checkpoint has an offset of another format than mq: {json.dumps(given)[:200]}; "
            "use another checkpointLocation"
        ) from None


def queue_name(ref: QueueRef) -> str:
    """As it stands in JSON below its topic."""
    return f"{ref.broker_set}/{ref.queue_id}"


def _by_topic(queue_offsets: Mapping[QueueRef, int]) -> dict[str, dict[str, int]]:
    # By the text of the names: the usual order of JSON keys.
    ordered = sorted(queue_offsets, key=lambda ref: (ref.topic, queue_name(ref)))
    found: dict[str, dict[str, int]] = {}
    for ref in ordered:
        found.setdefault(ref.topic, {})[queue_name(ref)] = queue_offsets[ref]
    return found


def _by_ref(given: Mapping[str, Mapping[str, int]]) -> dict[QueueRef, int]:
    return {
        queue_named("checkpoint", topic, name): int(queue_offset)
        for topic, queues in given.items()
        for name, queue_offset in queues.items()
    }


# Decisions


class Loss(NamedTuple):
    """Messages that were to be read, and are not there: those from `wanted` on; the queue has
    [start, end) now, or is gone, then these are None.
    """

    ref: QueueRef
    wanted: int
    start: int | None = None
    end: int | None = None

    @property
    def is_behind_end(self) -> bool:
        return self.end is not None and self.wanted > self.end

    def __str__(self) -> str:
        where = f"{self.ref.topic} {queue_name(self.ref)} at {self.wanted}"
        if self.start is None:
            return f"{where} (the queue is gone)"
        return f"{where} (it has {self.start} to {self.end})"


def losses(
    queues: Mapping[QueueRef, int],
    earliest: Mapping[QueueRef, int],
    latest: Mapping[QueueRef, int],
) -> list[Loss]:
    """Queues that cannot be read on: gone, kept no longer, or made anew with fewer messages.
    `earliest` and `latest` have the same queues, at the same time.
    """
    found = []
    for ref, wanted in sorted(queues.items()):
        if ref not in latest:
            found.append(Loss(ref, wanted))
        elif not earliest[ref] <= wanted <= latest[ref]:
            found.append(Loss(ref, wanted, earliest[ref], latest[ref]))
    return found


def within(
    option: str,
    places: Mapping[QueueRef, int],
    earliest: Mapping[QueueRef, int],
    latest: Mapping[QueueRef, int],
    *,
    fail: bool,
) -> dict[QueueRef, int]:
    """Offsets that a user has given, in the queues as they are. What is outside is an error, or,
    where that is not wanted, the nearest offset that is there.
    """
    outside = losses(places, earliest, latest)
    if outside and fail:
        raise MqSparkError(
            f"{option} is out of range: {named(outside)}; give offsets that are there, or "
            "failOnDataLoss = false for the nearest ones"
        )
    return {
        ref: min(max(place, earliest[ref]), latest[ref])
        for ref, place in places.items()
        if ref in latest
    }


def next_offset(
    start: StreamOffset,
    earliest: Mapping[QueueRef, int],
    latest: Mapping[QueueRef, int],
    layout: Layout,
    rows_max: int | None,
) -> StreamOffset | None:
    """The end of the next batch; None: there is nothing to read. Queues that are new begin at their
    earliest message, and so do those that are in `losses`.
    """
    places = {
        ref: start.queues[ref]
        if ref in start.queues and earliest[ref] <= start.queues[ref] <= latest[ref]
        else earliest[ref]
        for ref in latest
    }
    # The two are not of the same moment: a queue may have been emptied in between.
    backlogs = {ref: max(0, latest[ref] - place) for ref, place in places.items()}
    if not any(backlogs.values()):
        return None
    taken = backlogs if rows_max is None else shares(backlogs, rows_max)
    ends = {ref: place + taken.get(ref, 0) for ref, place in places.items()}
    begins = {ref: place for ref, place in places.items() if start.queues.get(ref) != place}
    return StreamOffset(ends, layout, begins)


def shares(backlogs: Mapping[QueueRef, int], rows_max: int) -> dict[QueueRef, int]:
    """The part of each backlog that is taken, `rows_max` in all: one message of each, the rest in
    proportion. With more queues than that, the longest backlogs get one.
    """
    waiting = {ref: rows for ref, rows in sorted(backlogs.items()) if rows}
    total, count = sum(waiting.values()), len(waiting)
    if total <= rows_max:
        return waiting
    if rows_max <= count:
        longest = sorted(waiting, key=lambda ref: (-waiting[ref], ref))
        return dict.fromkeys(longest[:rows_max], 1)
    left, others = rows_max - count, total - count
    taken = {ref: 1 + left * (rows - 1) // others for ref, rows in waiting.items()}
    # What rounding has left over goes to those that lost most by it.
    by_remainder = sorted(waiting, key=lambda ref: (-(left * (waiting[ref] - 1) % others), ref))
    for ref in by_remainder[: rows_max - sum(taken.values())]:
        taken[ref] += 1
    return taken


def named(found: Iterable[object], count_max: int = 3) -> str:
    """The first few of them, and how many more there are."""
    texts = [str(one) for one in found]
    more = f" and {len(texts) - count_max} more" if len(texts) > count_max else ""
    return f"{', '.join(texts[:count_max])}{more}"
