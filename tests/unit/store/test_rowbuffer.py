"""Rows in memory behave as a list that loses its front."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.store.rowbuffer import _CHUNK_ROWS_MAX, RowBuffer, Rows, bytes_of

ROW = np.dtype([("number", "<u4"), ("square", "<u8")])

APPENDS = st.one_of(st.integers(1, 20), st.integers(200, 300), st.just(5000))
STEPS = st.lists(
    st.one_of(st.tuples(st.just("append"), APPENDS), st.tuples(st.just("drop"), st.floats(0, 1.2))),
    max_size=30,
)


def rows(start: int, count: int) -> Rows:
    made = np.empty(count, ROW)
    made["number"] = np.arange(start, start + count)
    made["square"] = made["number"].astype(np.uint64) ** 2
    return made


def numbers(buffer: RowBuffer, start: int, end: int) -> list[int]:
    return [number for part in buffer.read(start, end) for number in part["number"].tolist()]


@given(first=st.integers(0, 1000), steps=STEPS)
def test_a_buffer_is_a_list_that_loses_its_front(
    first: int, steps: list[tuple[str, float]]
) -> None:
    buffer, start, end = RowBuffer(ROW, first), first, first
    for step, amount in steps:
        if step == "append":
            buffer.append(rows(end, int(amount)))
            end += int(amount)
        else:
            before = first + int(amount * (end - first))
            buffer.drop_before(before)
            start = max(start, min(before, end))
        assert (buffer.start, buffer.end) == (start, end)
        assert numbers(buffer, 0, end + 10) == list(range(start, end))
        middle = (start + end) // 2
        assert numbers(buffer, middle, middle + 7) == list(range(middle, min(end, middle + 7)))
        assert numbers(buffer, start - 3, middle) == list(range(start, middle))


def test_rows_that_were_read_never_change() -> None:
    buffer = RowBuffer(ROW, 0)
    buffer.append(rows(0, 3))
    [seen] = buffer.read(0, 3)
    for start in range(3, 400):
        buffer.append(rows(start, 1))
    buffer.drop_before(200)
    assert seen["number"].tolist() == [0, 1, 2]


def test_many_small_appends_make_few_chunks() -> None:
    buffer = RowBuffer(ROW, 0)
    for start in range(20_000):
        buffer.append(rows(start, 1))
    assert len(buffer.read(0, 20_000)) < 30


def test_memory_of_what_was_dropped_is_let_go() -> None:
    buffer = RowBuffer(ROW, 0)
    for start in range(0, 3 * _CHUNK_ROWS_MAX, _CHUNK_ROWS_MAX):
        buffer.append(rows(start, _CHUNK_ROWS_MAX))
    buffer.drop_before(_CHUNK_ROWS_MAX + 1)
    assert [len(chunk) for chunk in buffer._chunks] == [_CHUNK_ROWS_MAX] * 2
    room = weakref.ref(buffer._room)
    buffer.drop_before(3 * _CHUNK_ROWS_MAX)
    assert buffer._chunks == []
    assert room() is None


@pytest.mark.parametrize(("start", "end"), [(0, 0), (5, 5), (9, 3), (20, 30)])
def test_nothing_is_read_where_nothing_is(start: int, end: int) -> None:
    buffer = RowBuffer(ROW, 0)
    buffer.append(rows(0, 10))
    assert buffer.read(start, end) == []


def test_bytes_are_those_of_the_rows_of_a_slice_too() -> None:
    made = rows(0, 10)
    assert bytes(bytes_of(made[3:5])) == made.tobytes()[3 * ROW.itemsize : 5 * ROW.itemsize]
