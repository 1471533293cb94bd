"""Many frames at once are read as protobuf reads each, whatever stands in them."""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mq.client.arrow import frames
from mq.client.arrow.frames import FrameFields, read_frames
from mq.client.arrow.runs import Rows
from mq.client.encode import encode_message
from mq.client.messages import Message as ClientMessage
from mq.wire.v1.message_pb2 import Batch, Message
from mq.wire.walking import Many, Slices
from tests.support.naive_wire import varint
from tests.support.wire_messages import anything, messages
from tests.unit.client.arrow.frame_rows import frame_of, parsed, rows_with


def opened_rows(opened: FrameFields, count: int) -> list[dict[str, Any] | None]:
    """As `parsed` shows them. What is no text is shown as bytes: it is for others to see."""

    def slices_of(slices: Slices) -> list[bytes]:
        pairs = zip(slices.starts.tolist(), slices.sizes.tolist(), strict=True)
        return [bytes(opened.data[start : start + size]) for start, size in pairs]

    def lists_of(many: Many) -> list[list[bytes]]:
        made: list[list[bytes]] = [[] for _ in range(count)]
        assert sorted(many.rows) == many.rows.tolist()
        for row, value in zip(many.rows.tolist(), slices_of(Slices(*many[1:])), strict=True):
            made[row].append(value)
        return made

    columns = {
        "body": slices_of(opened.body),
        "tag": list(map(readable, slices_of(opened.tag))),
        "ordering_key": list(map(readable, slices_of(opened.ordering_key))),
        "keys": [list(map(readable, keys)) for keys in lists_of(opened.keys)],
        "properties": [
            dict(zip(map(readable, names), map(readable, values), strict=True))
            for names, values in zip(
                lists_of(opened.property_names), lists_of(opened.property_values), strict=True
            )
        ],
        "born_at_ms": opened.born_at_ms.tolist(),
        "compression": opened.compression.tolist(),
        "attempts": opened.attempts.tolist(),
    }
    return [
        None
        if row in opened.unreadable
        else {name: column[row] for name, column in columns.items()}
        for row in range(count)
    ]


def readable(text: bytes) -> str | bytes:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text


def has_text_only(opened: FrameFields, row: int) -> bool:
    """The check of a caller that decodes the text."""

    def is_text(start: int, size: int) -> bool:
        return isinstance(readable(bytes(opened.data[start : start + size])), str)

    singles = (opened.tag, opened.ordering_key)
    manys = (opened.keys, opened.property_names, opened.property_values, opened.unused_texts)
    return all(is_text(one.starts[row], one.sizes[row]) for one in singles) and all(
        is_text(start, size)
        for many in manys
        for owner, start, size in zip(*many, strict=True)
        if owner == row
    )


def opened_of(rows: Rows, by_protobuf: Any = None) -> FrameFields:
    return read_frames(rows.data, rows.frames_at, rows.frame_sizes, by_protobuf)


@given(st.lists(messages, max_size=6))
def test_messages_are_read_as_protobuf_reads_them(given_messages: list[Message]) -> None:
    rows = rows_with([frame_of(message) for message in given_messages])
    expected = [parsed(message.SerializeToString()) for message in given_messages]
    assert opened_rows(opened_of(rows), len(expected)) == expected


@given(st.lists(anything, max_size=6))
@example([b"\x12\x01\x80\x12\x00"])  # a tag that is no text, and another one
@example([b"\x22\x05\x0a\x01\x80\x0a\x00"])  # the same, of a property
@example([b"\x52\x01\x00"])  # damage in a field that is not read
@example([b"\x52\x03\x0a\x01\x80"])  # and in its text
def test_any_frame_is_read_or_refused_as_by_protobuf(
    contents: list[bytes],
) -> None:
    rows = rows_with(list(map(frame_of, contents)))
    expected = list(map(parsed, contents))
    opened = opened_of(rows)
    # Malformed UTF-8 is seen by the caller, which looks again.
    doubtful = np.array([not has_text_only(opened, row) for row in range(len(contents))], np.bool_)
    assert opened_rows(opened_of(rows, doubtful), len(expected)) == expected


@given(st.lists(anything, min_size=2, max_size=6), st.data())
def test_a_frame_that_is_damaged_hurts_no_neighbour(contents: list[bytes], data: Any) -> None:
    damaged = data.draw(st.integers(0, len(contents) - 1))
    made = list(map(frame_of, contents))
    length = varint(len(contents[damaged]) + data.draw(st.sampled_from([1, 200, 1 << 40, 1 << 60])))
    made[damaged] = data.draw(
        st.sampled_from([b"\x7b" + made[damaged][1:], b"\x7a" + length + contents[damaged], b""])
    )
    opened = opened_of(rows_with(made))
    doubtful = np.array([not has_text_only(opened, row) for row in range(len(contents))], np.bool_)
    found = opened_rows(opened_of(rows_with(made), doubtful), len(contents))
    assert found[damaged] is None
    for row, content in enumerate(contents):
        assert row == damaged or found[row] == parsed(content)


def client_frame(number: int) -> bytes:
    """As our producer writes it."""
    message = ClientMessage(
        bytes(random.Random(number).randbytes(number % 300)),
        tag="a" * (number % 3),
        keys=[f"key-{number}-{at}" for at in range(number % 4)],
        properties={"name": "vält", "empty": ""} if number % 2 else {},
        ordering_key=f"o{number}" if number % 5 == 0 else "",
        priority=number % 7,
    )
    return encode_message(message, 1_700_000_000_000 + number, 1 << 30)[0]


def test_messages_of_our_clients_are_never_left_to_protobuf() -> None:
    rows = rows_with([client_frame(number) for number in range(300)])
    with patch.object(frames, "Message", None):
        opened = opened_of(rows)
    messages_in = [Batch.FromString(client_frame(number)).messages[0] for number in range(300)]
    expected = [parsed(message.SerializeToString()) for message in messages_in]
    assert opened_rows(opened, 300) == expected


@pytest.mark.parametrize("keys", [30, 5000])
def test_one_message_with_many_fields_does_not_hold_up_the_others(keys: int) -> None:
    contents = [Message(body=b"x", keys=["k"] * keys).SerializeToString(), b"\x0a\x01y"]
    opened = opened_of(rows_with(list(map(frame_of, contents))))
    assert opened_rows(opened, 2) == list(map(parsed, contents))


def test_the_same_positions_hold_wherever_in_a_buffer_the_frames_stand() -> None:
    frame = frame_of(Message(body=b"body", tag="t", born_at_ms=-1))
    data = memoryview(b"\xff" * 1000 + frame + b"\xff" * 1000)
    opened = read_frames(data, np.array([1000]), np.array([len(frame)]))
    assert opened_rows(opened, 1) == [parsed(frame[2:])]


def test_no_frames_are_no_fields() -> None:
    opened = opened_of(rows_with([]))
    assert (len(opened.body.starts), len(opened.keys.rows), opened.unreadable) == (0, 0, {})
