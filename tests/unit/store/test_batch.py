"""Batches that the store accepts, with exact columns, and the reasons for refusing others."""

from __future__ import annotations

import contextlib
import mmap
from itertools import accumulate
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.errors import IllegalTopic, MalformedBatch, MessageTooLarge, MqError
from mq.limits import BESIDE_BODY_BYTES_MAX
from mq.names import QUEUE_ID_MAX
from mq.store import batch as batches
from mq.store.batch import (
    Batch,
    accept,
    data_offsets,
    decode_payload,
    encode_payload,
    message_of_frame,
    parse_stored,
    prepare,
)
from mq.store.frame_check import frames_match
from mq.wire.v1.message_pb2 import Batch as WireBatch
from mq.wire.v1.message_pb2 import Half, Message, RawBatch
from tests.support.naive_wire import (
    field,
    fixed,
    frame,
    header,
    message_of_size,
    messages_of_sizes,
    plain,
    prepared,
    prepared_of,
    text_hash,
    unframe,
    varint,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LIMIT = 4 << 20
# Around every size at which the length prefix grows, and the smallest.
SMALL_SIZES = [0, 2, 3, *range(124, 132)]
BORDER_SIZES = [*SMALL_SIZES, *range(16_380, 16_388)]


def frames_of(batch: Batch) -> list[bytes]:
    starts, sizes = batch.frame_starts.tolist(), batch.frame_sizes.tolist()
    return [bytes(batch.data[a : a + size]) for a, size in zip(starts, sizes, strict=True)]


def assert_consistent(batch: Batch) -> None:
    """The frames, one by one, are the end of the batch, and clients read in it what we read."""
    data = bytes(batch.data)
    messages = [unframe(one) for one in frames_of(batch)]
    assert messages
    assert b"".join(frames_of(batch)) == data[batch.region_start :]
    assert list(RawBatch.FromString(data).messages) == messages
    assert not RawBatch.FromString(data[: batch.region_start]).messages
    view = WireBatch.FromString(data[: batch.region_start])
    assert (view.topic, view.queue_id) == (batch.topic, batch.queue_id)
    assert list(view.frame_sizes) == batch.frame_sizes.tolist()
    assert list(view.tag_hashes) == batch.tag_hashes.tolist()
    assert list(view.key_hashes) == batch.key_hashes.tolist()
    assert list(view.key_counts) == batch.key_counts.tolist()
    assert len(view.tag_hashes) == len(messages)
    assert len(view.key_counts) in (0, len(messages))
    assert sum(view.key_counts) == len(view.key_hashes)


def accepted(data: bytes) -> Batch | None:
    """None when it is refused with one of our errors; what is taken must be consistent."""
    try:
        batch = accept(data, LIMIT)
    except MqError:
        return None
    assert_consistent(batch)
    return batch


def refusal(data: bytes, error: type[MqError] = MalformedBatch, limit: int = LIMIT) -> str:
    with pytest.raises(error) as caught:
        accept(data, limit)
    return str(caught.value)


# What is accepted.


_SMALL_MESSAGES = st.builds(
    Message,
    body=st.binary(max_size=20),
    tag=st.sampled_from(["", "paid", "not legal"]),
    keys=st.lists(st.sampled_from(["", "k1", "k2"]), max_size=3),
    ordering_key=st.sampled_from(["", "o"]),
)
_SMALL_BATCHES = st.builds(
    WireBatch,
    topic=st.sampled_from(["t", "", "no/topic"]),
    queue_id=st.sampled_from([0, 7, QUEUE_ID_MAX + 1]),
    producer_id=st.sampled_from(["", "p"]),
    sequence=st.sampled_from([0, 1]),
    delay_ms=st.sampled_from([0, 5]),
    half=st.none() | st.just(Half()) | st.just(Half(producer_group="g")),
    messages=st.lists(_SMALL_MESSAGES, max_size=4),
)


@given(_SMALL_BATCHES, st.booleans(), st.integers(0, 200), st.integers(0, 255))
def test_a_small_batch_is_accepted_as_any_other(
    wire: WireBatch, is_prepared: bool, at: int, byte: int
) -> None:
    data = wire.SerializeToString()
    if is_prepared and wire.messages:
        data = prepare(data)
    for each in (data, data[:at] + bytes([byte]) + data[at + 1 :]):  # whole, and with damage
        found: list[tuple[object, ...] | None] = []
        for tiny, small in ((2_048, 65_536), (0, 0)):
            with (
                patch.object(batches, "_TINY_BYTES", tiny),
                patch.object(batches, "_SMALL_BYTES", small),
            ):
                try:
                    found.append(_comparable(accept(each, LIMIT)))
                except MqError:
                    found.append(None)
        assert found[0] == found[1]


def _comparable(batch: Batch) -> tuple[object, ...]:
    """Without its header as it is encoded: fields that mean nothing may be left out."""
    assert_consistent(batch)
    start = batch.region_start
    plain_fields = batch._replace(
        data=bytes(batch.data[start:]), frame_starts=batch.frame_starts - start, region_start=0
    )
    return tuple(one.tolist() if isinstance(one, np.ndarray) else one for one in plain_fields)


def assert_columns(batch: Batch, messages: Sequence[bytes]) -> None:
    sizes = [len(frame(message)) for message in messages]
    assert batch.message_count == len(messages)
    assert batch.frame_sizes.tolist() == sizes
    ends = list(accumulate(sizes, initial=batch.region_start))
    assert batch.frame_starts.tolist() == ends[:-1]
    assert ends[-1] == len(batch.data)
    assert [unframe(one) for one in frames_of(batch)] == list(messages)
    assert [bytes(message_of_frame(one)) for one in frames_of(batch)] == list(messages)


@given(st.lists(st.sampled_from(BORDER_SIZES) | st.integers(2, 300), min_size=1, max_size=20))
def test_a_prepared_batch_of_any_sizes_has_exact_columns_and_is_stored_as_it_came(
    sizes: list[int],
) -> None:
    messages = messages_of_sizes(sizes)
    data = prepared(messages)
    batch = accept(data, LIMIT)
    assert batch.data == data
    assert batch.tag_hashes.tolist() == [0] * len(sizes)
    assert_columns(batch, messages)


@pytest.mark.parametrize("first", [0, 128, 16_384])
@pytest.mark.parametrize("size", [2_097_150, 2_097_151, 2_097_152, 2_097_153])
def test_messages_around_two_mebibytes_are_accepted_alone_and_among_others(
    first: int, size: int
) -> None:
    for sizes in ([size], [first, size, 2], [size, size, first]):
        assert_columns(accept(prepared(messages_of_sizes(sizes)), LIMIT), messages_of_sizes(sizes))


def test_a_frame_whose_length_takes_five_bytes_matches_its_size() -> None:
    size = 1 << 28
    front = header([2, size + 6]) + frame(b"") + b"\x7a" + varint(size)
    # Anonymous memory that nothing touches costs nothing.
    with mmap.mmap(-1, len(front) + size) as memory, memoryview(memory) as view:
        view[: len(front)] = front
        batch = parse_stored(view)
        columns = (view, batch.frame_starts, batch.frame_sizes, 2)
        assert frames_match(*columns, size + 6)
        view[len(front) - 1] = 2
        assert not frames_match(*columns, size + 6)
        del batch, columns


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
tags = st.text(st.characters(exclude_categories=["Cs", "Z", "Cc"], exclude_characters="|*"))
wire_messages = st.builds(
    Message,
    body=st.binary(max_size=300),
    tag=tags,
    keys=st.lists(texts, max_size=3),
    properties=st.dictionaries(texts, texts, max_size=3),
    born_at_ms=st.integers(0, 1 << 62),
)


@given(st.lists(wire_messages, min_size=1, max_size=12))
def test_a_plain_batch_gets_the_columns_that_a_look_at_each_message_gives(
    messages: list[Message],
) -> None:
    data = plain(messages)
    batch = accept(data, LIMIT)
    assert (batch.topic, batch.queue_id) == ("orders", 3)
    assert_columns(batch, list(RawBatch.FromString(data).messages))
    assert batch.tag_hashes.tolist() == [text_hash(message.tag) for message in messages]
    keys = [text_hash(key) for message in messages for key in message.keys]
    assert batch.key_hashes.tolist() == keys
    counts = [len(message.keys) for message in messages]
    assert batch.key_counts.tolist() == (counts if keys else [])
    assert_consistent(batch)
    again = accept(prepare(data), LIMIT)
    assert again.data == batch.data == prepare(bytes(batch.data))


@pytest.mark.parametrize("sizes", [[size, 0, size] for size in BORDER_SIZES if size != 1])
def test_a_plain_batch_has_exact_frame_sizes_at_every_border(sizes: list[int]) -> None:
    messages = [message_of_size(size) for size in sizes]
    assert [message.ByteSize() for message in messages] == sizes
    serialised = [message.SerializeToString() for message in messages]
    assert_columns(accept(plain(messages), LIMIT), serialised)


def test_columns_that_a_plain_batch_brings_along_are_computed_anew() -> None:
    messages = [Message(body=b"a", tag="x"), Message(body=b"b", keys=["k"])]
    lies = RawBatch(tag_hashes=fixed([1], 8), key_hashes=fixed([2, 3], 8), key_counts=bytes(4))
    batch = accept(plain(messages) + lies.SerializeToString(), LIMIT)
    assert batch.data == prepare(plain(messages))


@pytest.mark.parametrize("limit", [100, 127, 128, 1024, 16_383, 16_384, 2_097_152])
def test_a_message_exactly_at_the_limit_passes_and_one_byte_more_does_not(limit: int) -> None:
    """The limit is that of the body; what stands beside it has a limit of its own."""
    body = Message(body=bytes(limit), tag="tag", keys=["k"])
    most = limit + BESIDE_BODY_BYTES_MAX
    beside = Message(body=bytes(limit), ordering_key="k" * (BESIDE_BODY_BYTES_MAX - 20))
    beside.ordering_key += "k" * (most - beside.ByteSize())
    assert beside.ByteSize() == most
    for make in (prepared_of, plain):
        for message in (body, beside, message_of_size(limit)):
            assert accept(make([Message(), message]), limit).message_count == 2
        text = refusal(make([Message(), Message(body=bytes(limit + 1))]), MessageTooLarge, limit)
        assert f"a body of {limit + 1} bytes" in text
        assert f"at most {limit} are" in text
        beside.ordering_key += "k"
        text = refusal(make([beside]), MessageTooLarge, limit)
        assert f"{most + 1} bytes" in text
        beside.ordering_key = beside.ordering_key[1:]


# Batches of clients that write protobuf in another way.

FOREIGN_FIELDS = [
    field(1, b"orders"),
    b"\x10\x03",
    b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a queue id of 64 bits
    frame(b""),
    frame(b"\x0a\x01b"),
    frame(b"\x0a\x01b\x12\x03tag"),
    b"\xfa\x00\x03\x0a\x01b",  # a message behind a field tag of two bytes
    b"\x7a\x83\x80\x00\x0a\x01b",  # a message behind a length of three
    b"\x29" + fixed([7], 8),  # tag_hashes, not packed
    field(5, fixed([7], 8)),
    field(5, fixed([7, 8], 8)),
    b"\x35" + fixed([5], 4),  # frame_sizes, not packed
    field(6, fixed([5], 4)),
    field(6, fixed([5, 2], 4)),
    field(7, fixed([9], 8)),
    field(8, fixed([1], 4)),
    b"\x45" + fixed([1], 4),  # key_counts, not packed
    field(3, b"unknown"),
    field(100, frame(b"hidden")),
    b"\x18\x01",
    b"\x7b\x7c",  # a group
]


@given(st.lists(st.sampled_from(FOREIGN_FIELDS), max_size=9), st.booleans())
def test_fields_in_any_order_and_number_are_refused_or_stored_right(
    chunks: list[bytes], has_topic: bool
) -> None:
    data = b"".join([field(1, b"orders"), *chunks] if has_topic else chunks)
    batch = accepted(data)
    if batch is not None:
        sent = WireBatch.FromString(data)
        assert list(WireBatch.FromString(bytes(batch.data)).messages) == list(sent.messages)
        assert (batch.topic, batch.queue_id) == (sent.topic, sent.queue_id)


def test_a_plain_batch_may_have_its_fields_in_any_order() -> None:
    first, second = b"\x0a\x01a", b"\x0a\x01b"
    chunks = [frame(first), b"\x10\x03", frame(second), field(1, b"orders")]
    for order in (chunks, chunks[::-1], chunks[1:] + chunks[:1]):
        batch = accept(b"".join(order), LIMIT)
        assert (batch.topic, batch.queue_id) == ("orders", 3)
        assert sorted(map(unframe, frames_of(batch))) == [first, second]


def test_unpacked_columns_do_not_come_back_in_what_is_stored() -> None:
    unpacked = b"\x29" + fixed([7], 8) + b"\x35" + fixed([5], 4) + b"\x45" + fixed([1], 4)
    message = frame(b"\x0a\x01a")
    for data in (field(1, b"t") + unpacked + message, field(1, b"t") + message + unpacked):
        assert accept(data, LIMIT).data == accept(field(1, b"t") + message, LIMIT).data


def test_a_field_that_stands_there_twice_does_not_get_past_the_check() -> None:
    sizes = field(6, fixed([2], 4))
    front = field(1, b"t") + field(5, bytes(8))
    batch = accept(front + sizes + sizes + frame(b""), LIMIT)
    assert list(WireBatch.FromString(bytes(batch.data)).frame_sizes) == [2]


# What is refused, and why.


@pytest.mark.parametrize("data", [b"", header([]), field(1, b"orders"), b"\x10\x01"])
def test_a_batch_without_messages_is_refused(data: bytes) -> None:
    assert "no messages" in refusal(data)


@pytest.mark.parametrize(
    "topic", ["", ".", "..", "../x", "a/b", "a b", "a\n", "a\0", "t" * 128, "é", "t" * 100_000]
)
def test_an_illegal_topic_is_refused(topic: str) -> None:
    for data in (prepared([b""], topic=topic), plain([Message()], topic=topic)):
        assert len(refusal(data, IllegalTopic)) < 1000


def test_a_topic_that_is_not_utf8_is_refused() -> None:
    message = frame(b"")
    columns = field(5, bytes(8)) + field(6, fixed([2], 4))
    for data in (field(1, b"\xff\xfe") + columns + message, field(1, b"\xc3") + message):
        refusal(data)


def test_a_queue_id_that_is_too_large_is_refused() -> None:
    assert accept(prepared([b""], queue_id=QUEUE_ID_MAX), LIMIT).queue_id == QUEUE_ID_MAX
    for queue_id in (QUEUE_ID_MAX + 1, 2**32 - 1):
        assert str(queue_id) in refusal(prepared([b""], queue_id=queue_id), IllegalTopic)
        refusal(plain([Message()], queue_id=queue_id), IllegalTopic)


WRONG_COLUMNS: list[dict[str, bytes]] = [
    {"tag_hashes": b""},
    {"tag_hashes": bytes(8)},
    {"tag_hashes": bytes(24)},
    {"tag_hashes": bytes(15)},
    {"frame_sizes": fixed([5, 5], 4)[:-1]},
    {"key_hashes": bytes(8)},
    {"key_hashes": bytes(8), "key_counts": fixed([1], 4)},
    {"key_hashes": bytes(8), "key_counts": fixed([1, 0, 0], 4)},
    {"key_hashes": bytes(8), "key_counts": fixed([1, 1], 4)},
    {"key_hashes": bytes(8), "key_counts": fixed([0, 0], 4)},
    {"key_counts": fixed([0, 1], 4)},
    {"key_hashes": bytes(8), "key_counts": fixed([2**32 - 1, 2], 4)},
    {"key_hashes": bytes(9), "key_counts": fixed([1, 0], 4)},
    {"key_hashes": bytes(8), "key_counts": fixed([1, 0], 4) + b"\0"},
]


@pytest.mark.parametrize("columns", WRONG_COLUMNS)
def test_columns_of_the_wrong_length_are_refused(columns: dict[str, bytes]) -> None:
    refusal(prepared([b"\x0a\x01a", b"\x0a\x01b"], **columns))


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([12, 203, 11], id="one too short"),
        pytest.param([12, 203, 13], id="one too long"),
        pytest.param([11, 203, 12], id="the first too short"),
        pytest.param([203, 12, 12], id="swapped"),
        pytest.param([13, 202, 12], id="the sum is right and the cuts are wrong"),
        pytest.param([12, 215], id="two in one"),
        pytest.param([12, 203, 12, 0], id="an empty one at the end"),
        pytest.param([0, 12, 203, 12], id="an empty one at the start"),
        pytest.param([12, 203, 11, 1], id="one of a single byte at the end"),
        pytest.param([1, 11, 203, 12], id="one of a single byte at the start"),
        pytest.param([227], id="all in one"),
        pytest.param([0, 0, 0], id="zeros"),
        pytest.param([227, 0, 0], id="all in the first"),
    ],
)
def test_frame_sizes_that_lie_are_refused(sizes: list[int]) -> None:
    region = b"".join(frame(message) for message in messages_of_sizes([10, 200, 10]))
    assert accept(header([12, 203, 12]) + region, LIMIT).message_count == 3
    refusal(header(sizes) + region)


@pytest.mark.parametrize("sizes", [[2**32 - 1], [2**32 - 1, 3], [2, 2**32 - 2], [2**31, 2**31]])
def test_frame_sizes_that_wrap_around_are_refused(sizes: list[int]) -> None:
    data = header(sizes) + frame(b"") + frame(b"")
    refusal(data, MessageTooLarge)
    refusal(data, MalformedBatch, limit=2**32)


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("extra", [0, 5, 127])
def test_a_length_that_goes_on_where_its_frame_size_says_it_ends_is_refused(
    width: int, extra: int
) -> None:
    # The size in `width` groups needs an eighth bit in the last one: the bit that means "more".
    size = (1 << 7 * width) + extra
    groups = [size >> 7 * group & 0x7F | 0x80 for group in range(width - 1)]
    lie = bytes([0x7A, *groups, size >> 7 * (width - 1)]) + bytes(size)
    honest = frame(bytes(1 << 7 * (width - 1)) if width > 1 else b"")
    refusal(header([len(honest), len(lie)]) + honest + lie)
    refusal(header([len(lie), len(honest)]) + lie + honest)


@pytest.mark.parametrize(
    "lie",
    [
        b"\x7a\x0b" + bytes(10),
        b"\x7a\x09" + bytes(10),
        b"\x72\x0a" + bytes(10),
        b"\x7a\x8a" + bytes(10),
    ],
)
def test_a_frame_that_does_not_start_with_its_tag_and_length_is_refused(lie: bytes) -> None:
    frames = [frame(bytes(10)), lie, frame(bytes(10))]
    for order in (frames, frames[::-1], frames[1:], frames[:2]):
        refusal(header([12] * len(order)) + b"".join(order))


def test_bytes_between_or_behind_the_frames_are_refused() -> None:
    data = prepared(messages_of_sizes([3, 4]))
    refusal(data + b"\0")
    refusal(data + frame(b""))
    refusal(data + field(1, b"other"))
    refusal(header([5, 6]) + b"\0" + b"".join(map(frame, messages_of_sizes([3, 4]))))


@pytest.mark.parametrize("sizes", [[0], [10, 200, 3], [200, 0], [130, 20_000]])
def test_a_prepared_batch_that_is_cut_anywhere_is_refused(sizes: list[int]) -> None:
    messages = [Message(body=bytes(size), tag="t", keys=["k"][:size]) for size in sizes]
    data = prepared_of(messages)
    assert accepted(data) is not None
    for length in range(len(data)):
        with pytest.raises(MqError):
            accept(data[:length], LIMIT)


def test_a_plain_batch_that_is_cut_has_whole_messages_or_is_refused() -> None:
    messages = [message_of_size(size) for size in (10, 200, 0, 20)]
    data = plain(messages)
    taken = [accepted(data[:length]) for length in range(len(data))]
    assert [batch.message_count for batch in taken if batch is not None] == [1, 2, 3]


# Fuzz: only our errors come out, and what is taken is consistent.

mutations = st.lists(
    st.tuples(
        st.sampled_from(["set", "insert", "delete"]), st.integers(0, 400), st.integers(0, 255)
    ),
    min_size=1,
    max_size=4,
)


def mutated(data: bytes, steps: Iterable[tuple[str, int, int]]) -> bytes:
    out = bytearray(data)
    for kind, place, value in steps:
        at = place % (len(out) + 1)
        out[at : at + (kind != "insert")] = b"" if kind == "delete" else bytes([value])
    return bytes(out)


valid_batches = (
    st.lists(st.sampled_from(SMALL_SIZES), min_size=1, max_size=5)
    .map(messages_of_sizes)
    .map(prepared)
    | st.lists(wire_messages, min_size=1, max_size=5).map(prepared_of)
    | st.lists(wire_messages, max_size=3).map(plain)
)


@given(st.binary(max_size=200))
def test_random_bytes_are_never_an_unexpected_error(data: bytes) -> None:
    accepted(data)
    accepted(field(1, b"orders") + data)


@given(valid_batches, mutations)
def test_a_mutated_batch_is_refused_or_consistent(
    data: bytes, steps: list[tuple[str, int, int]]
) -> None:
    accepted(mutated(data, steps))


@given(st.lists(st.integers(0, 400), min_size=1, max_size=4), st.sampled_from(SMALL_SIZES))
def test_frame_sizes_that_do_not_fit_their_frames_are_refused_or_consistent(
    sizes: list[int], size: int
) -> None:
    accepted(header(sizes) + frame(b"") + b"\x7a\xc8\x01" + bytes(size))
    accepted(header([*sizes, size]) + b"\x7a" * sum([*sizes, size]))


@given(st.binary(max_size=30), valid_batches)
def test_garbage_before_a_batch_is_refused_or_consistent(garbage: bytes, data: bytes) -> None:
    accepted(garbage + data)


# Payloads of entries.


@given(st.lists(st.lists(st.sampled_from(BORDER_SIZES), min_size=1, max_size=4), max_size=5))
def test_data_offsets_are_where_the_batches_stand_in_the_payload(sizes: list[list[int]]) -> None:
    batches = [accept(prepared(messages_of_sizes(one)), LIMIT) for one in sizes]
    payload = b"".join(encode_payload(batches))
    offsets = data_offsets(batches, 1000)
    for batch, at in zip(batches, offsets, strict=True):
        assert payload[at - 1000 :].startswith(batch.data)
    decoded = decode_payload(memoryview(payload), 1000).batches
    assert [at for _, at in decoded] == offsets
    for (again, _), batch in zip(decoded, batches, strict=True):
        assert again.data == batch.data
        assert np.array_equal(again.frame_starts, batch.frame_starts)


def drain(payload: bytes) -> None:
    with contextlib.suppress(MalformedBatch):
        decode_payload(memoryview(payload), 0)


@given(st.binary(max_size=200), valid_batches, mutations)
def test_a_damaged_payload_is_malformed_and_nothing_else(
    noise: bytes, data: bytes, steps: list[tuple[str, int, int]]
) -> None:
    drain(noise)
    drain(field(1, noise))
    drain(mutated(field(1, data) + field(1, data), steps))


def test_a_payload_that_is_cut_inside_a_batch_is_malformed() -> None:
    payload = b"".join(encode_payload([accept(prepared(messages_of_sizes([3, 200])), LIMIT)] * 2))
    for length in set(range(1, len(payload))) - {len(payload) // 2}:
        with pytest.raises(MalformedBatch):
            decode_payload(memoryview(payload)[:length], 0)
