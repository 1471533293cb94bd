"""Rows as frames, against what the client itself writes and reads."""

from __future__ import annotations

import datetime as dt
import struct
from random import Random
from typing import Any

import lz4.frame
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq.client import Message
from mq.client.arrow.encoding import Encoded, encode, fitting, slices, stamp
from mq.client.encode import MESSAGE_BYTES_MAX, encode_message
from mq.errors import IllegalRequest, MessageTooLarge, MqError
from mq.hashing import text_hash
from mq.names import is_legal_tag
from mq.wire.v1.message_pb2 import Batch
from mq.wire.v1.message_pb2 import Message as WireMessage

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=150)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "body": st.binary(max_size=300),
            "keys": st.none() | st.lists(TEXT, max_size=4),
            "tag": st.none() | TEXT.filter(is_legal_tag),
            "ordering_key": st.none() | TEXT,
            "properties": st.none() | st.dictionaries(TEXT, TEXT, max_size=4),
            "born_at": st.none() | st.integers(0, 4_000_000_000_000),
        }
    ),
    min_size=1,
    max_size=20,
)
# Rows that differ in the bytes of their bodies only: their frames have the same size.
ALIKE_ROWS = st.builds(
    lambda row, numbers: [{**row, "body": bytes([one]) * len(row["body"])} for one in numbers],
    ROWS.map(lambda rows: rows[0]),
    st.lists(st.integers(0, 255), min_size=2, max_size=20),
)
SCHEMA = pa.schema(
    {
        "keys": pa.list_(pa.string()),
        "body": pa.binary(),
        "tag": pa.string(),
        "ordering_key": pa.string(),
        "properties": pa.map_(pa.string(), pa.string()),
        "born_at": pa.timestamp("us", "UTC"),
    }
)
# As Spark has them with spark.sql.execution.arrow.useLargeVarTypes.
LARGE_SCHEMA = pa.schema(
    {
        "keys": pa.list_(pa.large_string()),
        "body": pa.large_binary(),
        "tag": pa.large_string(),
        "ordering_key": pa.large_string(),
        "properties": pa.map_(pa.large_string(), pa.large_string()),
        "born_at": pa.timestamp("us", "Europe/Berlin"),
    }
)
NOW_MS = 1_800_000_000_000


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    filled = [
        {
            **row,
            "properties": None if row["properties"] is None else list(row["properties"].items()),
            "born_at": None if row["born_at"] is None else row["born_at"] * 1_000 + 999,
        }
        for row in rows
    ]
    return pa.RecordBatch.from_pylist(filled, SCHEMA)


def frames_of(encoded: Encoded, born_at_ms: int = NOW_MS) -> list[bytes]:
    data, ends = encoded.frame_bytes().copy(), np.cumsum(encoded.frame_sizes)
    if encoded.is_unstamped.any():
        stamp(data, ends[encoded.is_unstamped], born_at_ms)
    return [bytes(one) for one in np.split(data, ends[:-1])]


def messages_of(frames: list[bytes]) -> list[WireMessage]:
    return list(Batch.FromString(b"".join(frames)).messages)


def expected(row: dict[str, Any], compress_above: int) -> tuple[WireMessage, int, list[int]]:
    message = Message(
        row["body"],
        tag=row["tag"] or "",
        keys=row["keys"] or (),
        properties=row["properties"] or {},
        ordering_key=row["ordering_key"] or "",
    )
    born_at_ms = NOW_MS if row["born_at"] is None else row["born_at"]
    frame, tag_hash, key_hashes, *_ = encode_message(message, born_at_ms, compress_above)
    return Batch.FromString(frame).messages[0], tag_hash, list(key_hashes)


@settings(max_examples=settings().max_examples * 3 // 2)
@given(
    ROWS | ALIKE_ROWS,
    st.sampled_from([0, 20, 4096]),
    st.integers(0, 5),
    st.integers(0, 5),
    st.booleans(),
)
def test_frames_are_those_that_the_client_writes(
    rows: list[dict[str, Any]], compress_above: int, cut: int, end_cut: int, is_large: bool
) -> None:
    batch = batch_of(rows)
    if is_large:
        batch = batch.cast(LARGE_SCHEMA)
    # Spark hands over slices of larger batches, too.
    start = min(cut, len(rows) - 1)
    end = max(start + 1, len(rows) - end_cut)
    batch, rows = batch.slice(start, end - start), rows[start:end]
    encoded = encode(batch, "t", compress_above)
    frames = frames_of(encoded)
    want = [expected(row, compress_above) for row in rows]
    assert messages_of(frames) == [message for message, _, _ in want]
    assert [len(frame) for frame in frames] == encoded.frame_sizes.tolist()
    assert encoded.tag_hashes.tolist() == [tag_hash for _, tag_hash, _ in want]
    assert encoded.key_hashes.tolist() == [key for _, _, keys in want for key in keys]
    assert encoded.key_counts.tolist() == [len(keys) for _, _, keys in want]
    ordering = [row["ordering_key"] or "" for row in rows]
    assert encoded.is_ordered.tolist() == [key != "" for key in ordering]
    assert encoded.ordering_hashes.tolist() == [text_hash(key) for key in ordering]


@given(ROWS | ALIKE_ROWS, st.integers(1, 3_000))
def test_rows_whose_time_is_known_make_batches_at_once(
    rows: list[dict[str, Any]], bytes_max: int
) -> None:
    encoded = encode(batch_of(rows), "t", 4096, NOW_MS)
    assert not encoded.is_unstamped.any()
    parts = list(fitting(encoded, bytes_max))
    assert [row for start, end in parts for row in range(start, end)] == list(range(len(rows)))
    batches = [encoded.slice(start, end).prepared() for start, end in parts]
    want = [expected(row, 4096) for row in rows]
    for (start, end), one in zip(parts, batches, strict=True):
        assert end - start == 1 or len(one.columns) <= bytes_max + 4 * (end - start) + 20
        wire = Batch.FromString(one.columns)
        assert list(wire.messages) == [message for message, _, _ in want[start:end]]
        assert list(wire.tag_hashes) == [tag_hash for _, tag_hash, _ in want[start:end]]
        assert tuple(wire.frame_sizes) == struct.unpack(f"<{end - start}I", one.sizes)
        assert list(wire.key_hashes) == [key for _, _, keys in want[start:end] for key in keys]


@given(ROWS | ALIKE_ROWS, st.randoms())
def test_some_rows_are_the_same_rows(rows: list[dict[str, Any]], random: Random) -> None:
    encoded = encode(batch_of(rows), "t", 4096)
    chosen = sorted(random.sample(range(len(rows)), random.randint(1, len(rows))))
    start, end = sorted((chosen[0], chosen[-1] + 1))
    whole = frames_of(encoded)
    for some, numbers in (
        (encoded.take(np.array(chosen)), chosen),
        (encoded.slice(start, end), list(range(start, end))),
        (encoded.take(np.array(chosen)).slice(0, 1), chosen[:1]),
    ):
        assert frames_of(some) == [whole[number] for number in numbers]
        keys = [text_hash(key) for number in numbers for key in rows[number]["keys"] or ()]
        assert some.key_hashes.tolist() == keys


def test_a_body_alone_is_enough_and_texts_may_be_columns() -> None:
    batch = pa.RecordBatch.from_pydict({"body": ["", "é"], "keys": ["one", None]})
    first, second = messages_of(frames_of(encode(batch, "t", 4096)))
    assert (first.body, list(first.keys), first.born_at_ms) == (b"", ["one"], NOW_MS)
    assert (second.body, list(second.keys)) == ("é".encode(), [])


def test_bytes_do_not_depend_on_the_time_until_they_are_stamped() -> None:
    encoded = encode(pa.RecordBatch.from_pydict({"body": [b"x"]}), "t", 4096)
    before = bytes(encoded.frame_bytes())
    assert messages_of(frames_of(encoded, 1_700_000_000_000))[0].born_at_ms == 1_700_000_000_000
    assert bytes(encoded.frame_bytes()) == before


def test_large_bodies_are_compressed_if_that_helps() -> None:
    bodies = [b"a" * 10_000, b"b", np.random.default_rng(1).bytes(10_000)]
    batch = pa.RecordBatch.from_pydict({"body": bodies})
    messages = messages_of(frames_of(encode(batch, "t", 4096)))
    assert [message.compression for message in messages] == [1, 0, 0]
    assert lz4.frame.decompress(messages[0].body) == bodies[0]
    assert [message.body for message in messages[1:]] == bodies[1:]


def test_times_before_1971_and_without_a_zone() -> None:
    times = [dt.datetime(1970, 1, 1), dt.datetime(2150, 1, 1), dt.datetime(1969, 12, 31)]  # noqa: DTZ001
    batch = pa.RecordBatch.from_pydict(
        {"body": ["a", "b", "c"], "born_at": pa.array(times, pa.timestamp("us"))}
    )
    found = [message.born_at_ms for message in messages_of(frames_of(encode(batch, "t", 4096)))]
    assert found == [0, 5_680_281_600_000, -86_400_000]


@pytest.mark.parametrize(
    ("columns", "error", "text"),
    [
        (
            {"body": pa.array([b"a", None, None])},
            IllegalRequest,
            "topic t: 2 of 3 rows have no body",
        ),
        (
            {"body": [bytes(MESSAGE_BYTES_MAX + 1)]},
            MessageTooLarge,
            "a body of 4194305 bytes: at most 4194304",
        ),
        (
            {"body": [b""], "ordering_key": ["k" * (MESSAGE_BYTES_MAX + 70_000)]},
            MessageTooLarge,
            "a message of [0-9]+ bytes: at most 4194304 are allowed for its body and 65536",
        ),
        (
            {"body": [b"", b""], "tag": ["a", "two words"]},
            IllegalRequest,
            "topic t: tag 'two words' is not legal",
        ),
        ({"body": [b""], "keys": pa.array([["a", None]])}, IllegalRequest, "1 keys that are null"),
        (
            {
                "body": [b""],
                "properties": pa.array([[("a", None)]], pa.map_(pa.string(), pa.string())),
            },
            IllegalRequest,
            "1 values that are null",
        ),
        (
            {
                "body": [b"", b""],
                "properties": pa.array(
                    [[], [("a", "b" * 16_384)]], pa.map_(pa.string(), pa.string())
                ),
            },
            MessageTooLarge,
            "one with 16385 bytes of them: at most 128 of 16384",
        ),
        (
            {
                "body": [b""],
                "properties": pa.array(
                    [[(str(at), "") for at in range(129)]], pa.map_(pa.string(), pa.string())
                ),
            },
            MessageTooLarge,
            "a message with 129 properties",
        ),
    ],
)
def test_a_column_that_fits_no_message_is_named(
    columns: dict[str, Any], error: type[MqError], text: str
) -> None:
    with pytest.raises(error, match=text):
        encode(pa.RecordBatch.from_pydict(columns), "t", 4096)


@pytest.mark.parametrize("name", ["tag", "ordering_key", "keys", "key array", "name", "value"])
def test_bytes_that_no_consumer_could_read_as_a_text_are_refused(name: str) -> None:
    # As cast(unhex('FF') as string) makes them.
    odd = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    text = pa.array(["text"])
    column, values = {
        "key array": ("keys", pa.ListArray.from_arrays([0, 1], odd)),
        "name": ("properties", pa.MapArray.from_arrays([0, 1], odd, text)),
        "value": ("properties", pa.MapArray.from_arrays([0, 1], text, odd)),
    }.get(name, (name, odd))
    batch = pa.RecordBatch.from_pydict({"body": ["a"], column: values})
    with pytest.raises(
        IllegalRequest, match=rf"topic t: column {column} has bytes that are no text"
    ):
        encode(batch, "t", 4096)


def test_a_body_may_be_any_bytes_also_in_a_column_of_texts() -> None:
    odd = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    batch = pa.RecordBatch.from_pydict({"body": odd})
    assert messages_of(frames_of(encode(batch, "t", 4096)))[0].body == b"\xff"


def test_large_batches_are_encoded_in_parts() -> None:
    batch = pa.RecordBatch.from_pydict({"body": [bytes(30 << 20)] * 5})
    parts = list(slices(batch))
    assert [part.num_rows for part in parts] == [2, 2, 1]
    assert [part.num_rows for part in slices(batch.slice(0, 0))] == []
