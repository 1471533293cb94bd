"""Ranges of queues become the partitions of a batch: the tasks of Spark.

Without `minPartitions` a range is one task, and small ranges that follow each other share one: a
task costs some 40 ms of its own. With it no range shares a task, and the longest are split until
there are as many. The same ranges and layout give the same partitions, always.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from mq_spark.reading.offsets import Layout, QueueRange


class QueuePartition(InputPartition):
    """The ranges that one task reads, one after the other."""

    def __init__(self, ranges: Sequence[QueueRange]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)

    def __repr__(self) -> str:
        return f"QueuePartition({list(self.ranges)!r})"


def partitions(ranges: Sequence[QueueRange], layout: Layout) -> list[InputPartition]:
    """None for no ranges."""
    if layout.partitions_min is None:
        return [QueuePartition(one) for one in packed(ranges, layout)]
    return [QueuePartition([one]) for one in split(ranges, layout.partitions_min)]


def packed(ranges: Sequence[QueueRange], layout: Layout) -> list[list[QueueRange]]:
    """Neighbours together as long as they are no more, and have no more rows, than a task takes."""
    packs: list[list[QueueRange]] = []
    rows = 0
    for one in ranges:
        is_full = not packs or len(packs[-1]) >= layout.queues_per_task
        if is_full or rows + one.rows > layout.rows_per_task:
            packs.append([])
            rows = 0
        packs[-1].append(one)
        rows += one.rows
    return packs


def split(ranges: Sequence[QueueRange], count_min: int) -> list[QueueRange]:
    """The range with the longest pieces gets one more, until there are enough of them, or each has
    a single row.
    """
    pieces = [1] * len(ranges)
    longest = [(-one.rows, at) for at, one in enumerate(ranges)]
    heapq.heapify(longest)
    for _ in range(count_min - len(ranges)):
        if not longest or -longest[0][0] <= 1:
            break
        at = longest[0][1]
        pieces[at] += 1
        heapq.heapreplace(longest, (-ranges[at].rows // pieces[at], at))
    return [piece for one, count in zip(ranges, pieces, strict=True) for piece in _cut(one, count)]


def _cut(whole: QueueRange, count: int) -> list[QueueRange]:
    """Into so many of about the same length."""
    cuts = [whole.start + whole.rows * at // count for at in range(count + 1)]
    return [
        QueueRange(whole.ref, cuts[at], cuts[at + 1])
        for at in range(count)
        if cuts[at] < cuts[at + 1]
    ]
