"""Answers to pulls as pages, and the places of their messages, as protobuf finds them."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from mq.client.arrow.runs import Rows, rows_of
from mq.client.decode import parse_page
from mq.errors import Internal
from mq.wire.v1.consumer_pb2 import PullResponse, Run
from mq.wire.v1.message_pb2 import Message
from tests.unit.client.arrow.frame_rows import frame_of

INT62 = st.integers(0, 1 << 62)
EVERYTHING = (0, 1 << 63)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    bodies = draw(st.lists(st.binary(max_size=200), min_size=1, max_size=4))
    contents = [Message(body=body) for body in bodies]
    return Run(
        queue_offset=draw(st.integers(0, 300) | INT62),
        log_offset=draw(INT62),
        stored_at_ms=draw(st.integers(-5, 1 << 62)),
        frame_sizes=[len(frame_of(one)) for one in contents],
        messages=contents,
    )


responses = st.builds(
    PullResponse,
    status=st.integers(0, 3),
    next_offset=INT62,
    start=INT62,
    end=INT62,
    read_from=st.text(max_size=9),
    runs=st.lists(runs(), max_size=5),
)


def places_of(rows: Rows) -> list[tuple[Any, ...]]:
    """With the bytes instead of where they stand."""
    columns = [column.tolist() for column in rows[1:]]
    return [
        (rows.data[at : at + size], *others) for at, size, *others in zip(*columns, strict=True)
    ]


def expected_places(response: PullResponse) -> list[tuple[Any, ...]]:
    places = []
    for run in response.runs:
        log_offset = run.log_offset
        for number, message in enumerate(run.messages):
            frame = frame_of(message)
            places.append((frame, run.queue_offset + number, log_offset, run.stored_at_ms))
            log_offset += len(frame)
    return places


@given(responses)
def test_pages_have_what_protobuf_finds(response: PullResponse) -> None:
    page = parse_page(response.SerializeToString())
    for name in ("status", "next_offset", "start", "end", "read_from"):
        assert getattr(page, name) == getattr(response, name)
    assert page.has_messages == bool(response.runs)
    assert places_of(rows_of(page, *EVERYTHING)) == expected_places(response)


@given(responses, st.data())
def test_damaged_bytes_are_refused_or_show_no_bytes_of_others(
    response: PullResponse, data: Any
) -> None:
    changed = bytearray(response.SerializeToString())
    if changed:
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    try:
        rows = rows_of(parse_page(bytes(changed)), *EVERYTHING)
    except (DecodeError, Internal):
        return
    ends = rows.frames_at + rows.frame_sizes
    assert ((rows.frames_at >= 0) & (ends <= len(changed))).all()
    assert (rows.frames_at[1:] >= ends[:-1]).all()


def test_only_messages_of_the_range_count() -> None:
    frame = frame_of(Message(body=b"x"))
    three = [Message(body=b"x")] * 3
    made = [Run(queue_offset=at, frame_sizes=[len(frame)] * 3, messages=three) for at in (0, 3, 10)]
    page = parse_page(PullResponse(runs=made).SerializeToString())
    assert rows_of(page, 2, 11).queue_offsets.tolist() == [2, 3, 4, 5, 10]
    assert len(rows_of(page, 6, 10).queue_offsets) == 0


@pytest.mark.parametrize(
    "run",
    [
        Run(frame_sizes=[5], messages=[Message(body=b"x")] * 2),
        Run(frame_sizes=[5, 6], messages=[Message(body=b"x")] * 2),
        Run(frame_sizes=[1 << 31], messages=[Message(body=b"x")]),
        # Not one byte, but ten: a run that is left to protobuf.
        Run(stored_at_ms=-1, frame_sizes=[6], messages=[Message(body=b"x")]),
        Run(stored_at_ms=-1, frame_sizes=[1 << 31], messages=[Message(body=b"x")]),
        Run(queue_offset=1 << 63, frame_sizes=[5], messages=[Message(body=b"x")]),
        Run(messages=[Message(body=b"x")]),
        Run(),
    ],
)
def test_a_run_whose_sizes_are_wrong_is_refused(run: Run) -> None:
    good = Run(frame_sizes=[5], messages=[Message(body=b"x")])
    page = parse_page(PullResponse(runs=[good, run]).SerializeToString())
    with pytest.raises(Internal, match="cannot be read"):
        rows_of(page, *EVERYTHING)


def test_no_bytes_are_an_answer_without_messages() -> None:
    page = parse_page(b"")
    assert not page.has_messages
    assert len(rows_of(page, *EVERYTHING).frames_at) == 0
