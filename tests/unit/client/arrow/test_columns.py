"""Messages as rows of Arrow: every field in its column, and nothing that Spark could trip over."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import lz4.frame
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.client import QueueRef
from mq.client.arrow import columns
from mq.client.arrow.columns import message_schema, record_batch, record_batches
from mq.client.arrow.runs import Rows
from mq.client.arrow.slices import numbered_texts
from mq.limits import BODY_BYTES_MAX
from mq.names import message_id
from mq.wire.v1.message_pb2 import COMPRESSION_LZ4, Message, Origin
from tests.support.wire_messages import anything, messages
from tests.unit.client.arrow.frame_rows import LOG_OFFSET, STORED_AT_MS, frame_of, parsed, rows_with

if TYPE_CHECKING:
    from collections.abc import Sequence

REF = QueueRef("orders", 3, "set-1")
RETRIES = QueueRef("%RETRY%g", 0, "set-1")
BORN_AT_MS = 1_600_000_000_123


def batch_of(
    contents: Sequence[Message | bytes],
    ref: QueueRef = REF,
    *,
    with_properties: bool = True,
    tags: frozenset[str] | None = None,
) -> pa.RecordBatch:
    rows = rows_with(list(map(frame_of, contents)))
    made = record_batch(rows, ref, with_properties=with_properties, tags=tags)
    made.validate(full=True)
    assert made.schema.equals(message_schema(with_properties=with_properties))
    return made


def rows_of_batch(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = batch.to_pylist()
    return [
        {**row, "properties": dict(row["properties"])} if "properties" in row else row
        for row in rows
    ]


def test_every_field_has_its_column() -> None:
    full = Message(
        body=b"body",
        tag="paid",
        keys=["k1", "schlüssel"],
        properties={"b": "2", "a": "1"},
        ordering_key="o",
        born_at_ms=BORN_AT_MS,
    )
    batch = batch_of([Message(), full, Message(body=b"", keys=[""], properties={"": ""})])
    first, second, third = rows_of_batch(batch)
    assert second == {
        "keys": ["k1", "schlüssel"],
        "body": b"body",
        "topic": "orders",
        "broker_set": "set-1",
        "queue_id": 3,
        "queue_offset": 101,
        "tag": "paid",
        "ordering_key": "o",
        "properties": {"a": "1", "b": "2"},
        "born_at": datetime.fromtimestamp(BORN_AT_MS / 1000, UTC),
        "stored_at": datetime.fromtimestamp(STORED_AT_MS / 1000, UTC),
        "message_id": f"set-1:{LOG_OFFSET + 2}",
        "delivery_attempt": 1,
    }
    assert (first["keys"], first["body"], first["properties"]) == ([], b"", {})
    assert (first["tag"], first["ordering_key"]) == (None, None)
    assert (third["keys"], third["properties"]) == ([""], {"": ""})
    assert "properties" not in batch_of([full], with_properties=False).schema.names


@given(st.lists(messages | anything, max_size=6), st.booleans())
def test_rows_are_the_messages_that_protobuf_can_read(
    contents: list[Message | bytes], with_properties: bool
) -> None:
    read = [parsed(one if isinstance(one, bytes) else one.SerializeToString()) for one in contents]
    # What is compressed cannot be read here but by chance; it has tests of its own.
    expected = {
        100 + row: one for row, one in enumerate(read) if one is not None and not one["compression"]
    }
    found = rows_of_batch(batch_of(contents, RETRIES, with_properties=with_properties))
    assert [row["queue_offset"] for row in found] == list(expected)
    for row in found:
        message = expected[row["queue_offset"]]
        assert row["body"] == message["body"]
        assert row["keys"] == message["keys"]
        assert row["tag"] == (message["tag"] or None)
        assert row["ordering_key"] == (message["ordering_key"] or None)
        assert row["delivery_attempt"] == min(message["attempts"] + 1, (1 << 31) - 1)
        if with_properties:
            assert row["properties"] == message["properties"]


def test_unreadable_messages_are_named_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    good = Message(body=b"good", tag="täg", keys=["ä"])
    # Text of two messages that is whole only together is no text.
    halves = [b"\x12\x01\xc3", b"\x12\x01\xa4"]
    unknown = Message(body=b"x", compression=7)  # type: ignore[arg-type]
    broken = Message(body=b"no frame of LZ4", compression=COMPRESSION_LZ4)
    cut = Message(body=lz4.frame.compress(bytes(500))[:-3], compression=COMPRESSION_LZ4)
    with caplog.at_level(logging.ERROR):
        batch = batch_of([good, b"\x0a\x05shor", *halves, unknown, broken, cut, good])
    assert batch["queue_offset"].to_pylist() == [100, 107]
    assert batch["tag"].to_pylist() == ["täg", "täg"]
    assert len(caplog.messages) == 6
    assert caplog.messages[0].startswith(
        f"message set-1:{LOG_OFFSET + len(frame_of(good))}, at 101 of queue 3 of topic orders, is "
        "passed over: it is no Message of the protocol"
    )
    assert "does not know its compression 7" in caplog.messages[3]
    assert all("cannot be decompressed" in one for one in caplog.messages[4:])


def test_a_page_of_damage_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        assert batch_of([b"\xff"] * 500).num_rows == 0
    assert len(caplog.messages) == 21
    assert caplog.messages[-1].startswith("480 more messages, up to 599 of queue 3 of topic orders")


def test_of_properties_of_one_name_the_last_counts() -> None:
    twice = Message(properties={"a": "1", "b": "x"}).SerializeToString()
    twice += Message(properties={"a": "2"}).SerializeToString()
    plain = Message(properties={"a": "3", "b": "y"})
    found = [row["properties"] for row in batch_of([plain, twice, plain]).to_pylist()]
    assert sorted(found[1]) == [("a", "2"), ("b", "x")]
    assert sorted(found[0]) == sorted(found[2]) == [("a", "3"), ("b", "y")]


def test_bodies_are_decompressed_among_others_that_are_not() -> None:
    contents = [
        Message(body=lz4.frame.compress(b"a" * 5000), compression=COMPRESSION_LZ4),
        Message(body=b"plain"),
        Message(body=lz4.frame.compress(b""), compression=COMPRESSION_LZ4),
        Message(body=lz4.frame.compress(b"b" * 70), compression=COMPRESSION_LZ4, tag="t"),
    ]
    assert batch_of(contents)["body"].to_pylist() == [b"a" * 5000, b"plain", b"", b"b" * 70]
    assert batch_of(contents, tags=frozenset({"t"}))["body"].to_pylist() == [b"b" * 70]


def test_a_body_that_grows_beyond_all_bounds_is_left_out() -> None:
    bodies = [bytes(BODY_BYTES_MAX + 1), bytes(999)]
    contents = [
        Message(body=lz4.frame.compress(body), compression=COMPRESSION_LZ4) for body in bodies
    ]
    assert batch_of(contents)["body"].to_pylist() == [bytes(999)]


def test_tags_are_compared_exactly() -> None:
    contents = [Message(tag=tag) for tag in ("a", "", "ab", "b", "a")]
    assert batch_of(contents, tags=frozenset({"a"}))["queue_offset"].to_pylist() == [100, 104]
    assert batch_of(contents, tags=frozenset({"a", "b"})).num_rows == 3
    assert batch_of(contents, tags=frozenset({""}))["queue_offset"].to_pylist() == [101]
    assert batch_of(contents, tags=frozenset()).num_rows == 0


@pytest.mark.parametrize("topic", ["%RETRY%g", "%DLQ%g", "%SYS%GIVE_UP"])
def test_attempts_are_the_brokers_to_count(topic: str) -> None:
    contents = [Message(origin=Origin(topic="orders", attempts=4)), Message()]
    assert batch_of(contents, QueueRef(topic, 0, "s"))["delivery_attempt"].to_pylist() == [5, 1]
    # Elsewhere a producer made it up.
    assert batch_of(contents)["delivery_attempt"].to_pylist() == [1, 1]


def test_an_illegal_time_is_null() -> None:
    times = [0, -1, 253_402_300_799_999, 253_402_300_800_000, (1 << 63) - 1, -(1 << 63)]
    found = batch_of([Message(born_at_ms=time) for time in times])["born_at"].to_pylist()
    assert [one is None for one in found] == [False, False, False, True, True, True]
    assert found[0] == datetime.fromtimestamp(0, UTC)
    assert found[2].year == 9999


def test_batches_are_bounded_by_what_they_decompress_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_BATCH_BYTES_MAX", 10_000)
    small, large = bytes(3000), bytes(50_000)
    bodies = [small] * 7 + [large] + [small] * 2
    contents = [
        Message(body=lz4.frame.compress(body), compression=COMPRESSION_LZ4) for body in bodies
    ]
    rows = rows_with(list(map(frame_of, contents)))
    made = list(record_batches(rows, REF, with_properties=False))
    assert [batch.num_rows for batch in made] == [3, 3, 1, 1, 2]
    assert [body for batch in made for body in batch["body"].to_pylist()] == bodies
    assert list(record_batches(rows, REF, with_properties=False, tags=frozenset({"t"}))) == []


def test_nothing_makes_no_rows() -> None:
    assert batch_of([]).num_rows == 0
    assert list(record_batches(rows_with([]), REF, with_properties=True)) == []


def test_rows_may_stand_in_any_order() -> None:
    rows = rows_with([frame_of(Message(body=bytes([at]) * at, keys=["k"] * at)) for at in range(9)])
    backwards = Rows(rows.data, *(np.flip(column).copy() for column in rows[1:]))
    found = record_batch(backwards, REF, with_properties=False)
    assert found["body"].to_pylist() == [bytes([at]) * at for at in range(8, -1, -1)]
    assert [len(keys) for keys in found["keys"].to_pylist()] == list(range(8, -1, -1))


@given(st.lists(st.integers(0, 2**62) | st.integers(0, 1200), max_size=8))
def test_ids_have_the_offset_in_the_log_however_long_it_is(log_offsets: list[int]) -> None:
    found = numbered_texts("set-1:", np.array(log_offsets, np.int64))
    found.validate(full=True)
    assert found.type == pa.string()
    assert found.to_pylist() == [message_id("set-1", at) for at in log_offsets]
