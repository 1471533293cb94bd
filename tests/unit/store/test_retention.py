"""Retention: the segments that go, and the reason."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.store.logreader import SegmentInfo
from mq.store.retention import (
    Decision,
    Policy,
    Reason,
    expired_segments,
    refuses_writes,
)
from mq.store.vfs import DiskUsage

AGE_MS = 1_000
POLICY = Policy(
    age_ms_max=AGE_MS,
    total_bytes_max=0,
    clean_expired_ratio=0.75,
    clean_oldest_ratio=0.875,
    refuse_writes_ratio=0.9375,
)
NOTHING = Decision(0, None)
# A disk of 1,024 bytes: its ratios are exact.
DISK_BYTES = 1024


def disk(used_bytes: int) -> DiskUsage:
    return DiskUsage(DISK_BYTES, DISK_BYTES - used_bytes)


def segments(*stored_at_ms: int, size_bytes: int = 100) -> list[SegmentInfo]:
    """Segments by the time of their last entry; the last one is active."""
    return [
        SegmentInfo(f"{index}.log", index * size_bytes, size_bytes, 1 + 10 * index, last_ms)
        for index, last_ms in enumerate(stored_at_ms)
    ]


class Case(NamedTuple):
    name: str
    last_ms: tuple[int, ...]
    now_ms: int
    used_bytes: int
    total_bytes_max: int
    decision: Decision


CASES = [
    Case("no segments at all", (), 10_000, 1024, 50, NOTHING),
    # By age: the youngest entry of a segment decides.
    Case("age below the limit", (10, 20), 10 + AGE_MS - 1, 0, 0, NOTHING),
    Case("age at the limit", (10, 20), 10 + AGE_MS, 0, 0, NOTHING),
    Case("age above the limit", (10, 20), 10 + AGE_MS + 1, 0, 0, Decision(1, Reason.AGE)),
    Case("many expired, one at a time", (1, 2, 3, 9), 5_000, 0, 0, Decision(1, Reason.AGE)),
    Case("below the ratio, one at a time", (1, 2, 3, 9), 5_000, 767, 0, Decision(1, Reason.AGE)),
    Case("at the ratio, all at once", (1, 2, 3, 9), 5_000, 768, 0, Decision(3, Reason.AGE)),
    Case(
        "only what expired, at once", (1, 2, 4_500, 5_000), 5_000, 800, 0, Decision(2, Reason.AGE)
    ),
    Case("expired, but behind one that is not", (4_500, 2, 5_000), 5_000, 800, 0, NOTHING),
    Case("the ratio alone expires nothing", (4_500, 5_000), 5_000, 800, 0, NOTHING),
    Case("the active segment, however old", (1,), 1 << 60, 0, 0, NOTHING),
    Case("a clock that stands before the log", (10, 20), 0, 0, 0, NOTHING),
    # By size.
    Case("no limit on size", (9, 9, 9), 10, 0, 0, NOTHING),
    Case("size at the limit", (9, 9, 9), 10, 0, 300, NOTHING),
    Case("one byte above the limit", (9, 9, 9), 10, 0, 299, Decision(1, Reason.SIZE)),
    Case("one segment is just enough", (9, 9, 9), 10, 0, 200, Decision(1, Reason.SIZE)),
    Case("one segment is not enough", (9, 9, 9), 10, 0, 199, Decision(2, Reason.SIZE)),
    Case("the active one is larger than the limit", (9, 9, 9), 10, 0, 1, Decision(2, Reason.SIZE)),
    Case("only the active one", (9,), 10, 0, 1, NOTHING),
    # By disk, until it is below the ratio of 896 bytes.
    Case("disk below the ratio", (9, 9, 9), 10, 895, 0, NOTHING),
    Case("disk at the ratio", (9, 9, 9), 10, 896, 0, Decision(1, Reason.DISK)),
    Case("one is just enough", (9, 9, 9), 10, 995, 0, Decision(1, Reason.DISK)),
    Case("one is just not enough", (9, 9, 9), 10, 996, 0, Decision(2, Reason.DISK)),
    Case("a full disk of other things", (9, 9, 9), 10, 1024, 0, Decision(2, Reason.DISK)),
    Case("a full disk and the active one", (9,), 10, 1024, 0, NOTHING),
    # Together: the most wins, and the plainest reason for it.
    Case("age and size agree", (1, 2, 9), 5_000, 0, 200, Decision(1, Reason.AGE)),
    Case("size wants more than age", (1, 2, 9), 5_000, 0, 100, Decision(2, Reason.SIZE)),
    Case("disk wants more than size", (9, 9, 9), 10, 1000, 299, Decision(2, Reason.DISK)),
    Case("size and disk agree", (9, 9, 9), 10, 896, 299, Decision(1, Reason.SIZE)),
    Case("age wants more than disk", (1, 2, 3, 9), 5_000, 896, 0, Decision(3, Reason.AGE)),
]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_expired_segments(case: Case) -> None:
    policy = POLICY._replace(total_bytes_max=case.total_bytes_max)
    decision = expired_segments(segments(*case.last_ms), case.now_ms, policy, disk(case.used_bytes))
    assert decision == case.decision


def test_segments_of_different_sizes_go_until_it_is_enough() -> None:
    infos = [
        info._replace(size_bytes=size)
        for info, size in zip(segments(9, 9, 9, 9), (10, 500, 20, 30), strict=True)
    ]
    for limit, count in ((560, 0), (559, 1), (550, 1), (549, 2), (50, 2), (49, 3), (1, 3)):
        policy = POLICY._replace(total_bytes_max=limit)
        assert expired_segments(infos, 10, policy, disk(0)).segments == count, limit


def test_an_unknown_disk_is_an_empty_one() -> None:
    unknown = DiskUsage(0, 0)
    assert expired_segments(segments(9, 9), 10, POLICY, unknown) == NOTHING
    assert not refuses_writes(POLICY, unknown)


@pytest.mark.parametrize(
    ("used_bytes", "is_refused"), [(0, False), (959, False), (960, True), (961, True), (1024, True)]
)
def test_writes_are_refused_from_the_ratio_on(used_bytes: int, is_refused: bool) -> None:
    assert refuses_writes(POLICY, disk(used_bytes)) is is_refused


# For any log, clock and disk.

ratios = st.floats(0.01, 1)
policies = st.builds(
    Policy,
    age_ms_max=st.integers(1, 5_000),
    total_bytes_max=st.just(0) | st.integers(1, 3_000),
    clean_expired_ratio=ratios,
    clean_oldest_ratio=ratios,
    refuse_writes_ratio=ratios,
)
logs = st.lists(
    st.builds(
        SegmentInfo,
        path=st.just("x"),
        base_log_offset=st.just(0),
        size_bytes=st.integers(1, 1_000),
        first_index=st.just(1),
        last_stored_at_ms=st.integers(0, 10_000),
    ),
    max_size=12,
)
disks = st.integers(1, 1 << 50).flatmap(
    lambda total: st.builds(DiskUsage, st.just(total), st.integers(0, total))
)
times = st.integers(0, 20_000)


@given(logs, times, policies, disks)
def test_the_active_segment_never_goes_and_a_decision_has_a_reason(
    infos: list[SegmentInfo], now_ms: int, policy: Policy, usage: DiskUsage
) -> None:
    decision = expired_segments(infos, now_ms, policy, usage)
    assert 0 <= decision.segments <= max(0, len(infos) - 1)
    assert (decision.reason is None) == (decision.segments == 0)


@given(logs, times, times, policies, disks)
def test_more_goes_as_time_passes_never_less(
    infos: list[SegmentInfo], now_ms: int, passed_ms: int, policy: Policy, usage: DiskUsage
) -> None:
    before = expired_segments(infos, now_ms, policy, usage).segments
    assert expired_segments(infos, now_ms + passed_ms, policy, usage).segments >= before


@given(logs, times, policies)
def test_by_age_alone_nothing_young_goes(
    infos: list[SegmentInfo], now_ms: int, policy: Policy
) -> None:
    policy = policy._replace(total_bytes_max=0)
    decision = expired_segments(infos, now_ms, policy, DiskUsage(1 << 30, 1 << 30))
    for info in infos[: decision.segments]:
        assert now_ms - info.last_stored_at_ms > policy.age_ms_max


@given(logs, st.integers(1, 3_000))
def test_by_size_as_few_go_as_it_takes(infos: list[SegmentInfo], limit: int) -> None:
    policy = POLICY._replace(total_bytes_max=limit)
    count = expired_segments(infos, 0, policy, disk(0)).segments
    sizes = [info.size_bytes for info in infos]
    assert sum(sizes[count:]) <= limit or count == max(0, len(infos) - 1)
    if count:
        assert sum(sizes[count - 1 :]) > limit


@given(logs, policies, disks)
def test_by_disk_it_is_below_the_ratio_afterwards_or_all_is_gone(
    infos: list[SegmentInfo], policy: Policy, usage: DiskUsage
) -> None:
    policy = policy._replace(total_bytes_max=0)
    count = expired_segments(infos, 0, policy, usage).segments
    freed = sum(info.size_bytes for info in infos[:count])
    after = usage._replace(free_bytes=usage.free_bytes + freed)
    assert after.used_ratio < policy.clean_oldest_ratio or count == max(0, len(infos) - 1)
