"""Retention: pure decisions on segments, time, size and disk use. The caller drops, logs and
counts.

Whole segments go, from the front, and never the active one.

    older than the retention time   one a check, because removing a gigabyte is work for the disk;
                                    all at once from `clean_expired_ratio` (75 %) of disk use
    more than `total_bytes_max`     as many as it takes
    `clean_oldest_ratio` (85 %)     the oldest, whatever their age, until the disk is below it
    `refuse_writes_ratio` (90 %)    nothing goes for it: writes are refused, reads go on

What a consumer group has not read yet goes like the rest, but never silently: the broker logs and
counts it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from itertools import accumulate, takewhile
from typing import NamedTuple

from mq.store.logreader import SegmentInfo
from mq.store.vfs import DiskUsage


class Policy(NamedTuple):
    age_ms_max: int
    total_bytes_max: int  # 0: no limit
    clean_expired_ratio: float
    clean_oldest_ratio: float
    refuse_writes_ratio: float


class Reason(enum.Enum):
    AGE = "older than the retention time"
    SIZE = "the log is larger than its limit"
    DISK = "the disk is nearly full"


class Decision(NamedTuple):
    """Drop the first so many segments, because of `reason`."""

    segments: int
    reason: Reason | None


def expired_segments(
    segments: Sequence[SegmentInfo], now_ms: int, policy: Policy, disk: DiskUsage
) -> Decision:
    """The number of segments to drop from the front now."""
    sealed = segments[:-1]
    expired_before_ms = now_ms - policy.age_ms_max
    by_age = sum(1 for _ in takewhile(lambda s: s.last_stored_at_ms < expired_before_ms, sealed))
    if disk.used_ratio < policy.clean_expired_ratio:
        by_age = min(by_age, 1)
    by_size = 0
    if policy.total_bytes_max:
        surplus = sum(segment.size_bytes for segment in segments) - policy.total_bytes_max
        by_size = _count_to_free(sealed, surplus)
    by_disk = 0
    if disk.used_ratio >= policy.clean_oldest_ratio:
        surplus = 1 + int(disk.total_bytes * (disk.used_ratio - policy.clean_oldest_ratio))
        by_disk = _count_to_free(sealed, surplus)
    count = max(by_age, by_size, by_disk)
    if count == 0:
        return Decision(0, None)
    if by_age == count:
        return Decision(count, Reason.AGE)
    return Decision(count, Reason.SIZE if by_size == count else Reason.DISK)


def refuses_writes(policy: Policy, disk: DiskUsage) -> bool:
    return disk.used_ratio >= policy.refuse_writes_ratio


def _count_to_free(segments: Sequence[SegmentInfo], surplus_bytes: int) -> int:
    """The fewest segments from the front that free so much, or all of them."""
    if surplus_bytes <= 0:
        return 0
    freed = accumulate(segment.size_bytes for segment in segments)
    enough = sum(1 for _ in takewhile(lambda total: total < surplus_bytes, freed)) + 1
    return min(enough, len(segments))
