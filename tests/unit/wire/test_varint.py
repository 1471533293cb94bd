"""Varints against the naive writer and reader."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.wire import varint
from tests.support import naive_wire

numbers = st.integers(0, 70).flatmap(lambda bits: st.integers(0, (1 << min(bits, 64)) - 1))
# Longer than it has to be: the last groups are zero.
padded = st.builds(
    lambda value, zeros: (
        bytes(b | 0x80 for b in naive_wire.varint(value)) + b"\x80" * zeros + b"\0"
    ),
    st.integers(0, (1 << 28) - 1),
    st.integers(0, 5),
)


@given(numbers, st.binary(max_size=12), st.binary(max_size=12))
def test_a_number_is_written_as_protobuf_does_and_read_from_where_it_stands(
    value: int, before: bytes, behind: bytes
) -> None:
    encoded = varint.encode(value)
    assert encoded == naive_wire.varint(value)
    assert varint.width(value) == len(encoded)
    data = before + encoded + behind
    end = len(before) + len(encoded)
    assert varint.decode(data, len(before)) == (value, end)
    assert varint.decode(memoryview(data), len(before)) == (value, end)
    if len(encoded) <= 5:
        assert varint.decode_length(data, len(before)) == (value, end)


@given(padded)
def test_a_number_may_be_longer_than_it_has_to_be(data: bytes) -> None:
    value, _ = naive_wire.read_varint(data)
    assert varint.decode(data, 0) == (value, len(data))
    if len(data) <= 5:
        assert varint.decode_length(data, 0) == (value, len(data))


@given(numbers, st.integers(1, 10))
def test_a_truncated_varint_is_refused(value: int, missing: int) -> None:
    data = varint.encode(value)[:-missing]
    with pytest.raises(ValueError, match="cut short"):
        varint.decode(data, 0)
    if len(data) < 5:
        assert varint.decode_length(data, 0)[1] > len(data)


@pytest.mark.parametrize("data", [b"\xff" * 9 + b"\x02", b"\x80" * 10, b"\x80" * 10 + b"\x01"])
def test_a_number_has_at_most_64_bits(data: bytes) -> None:
    with pytest.raises(ValueError, match="more than 64 bits"):
        varint.decode(data, 0)


def test_a_length_has_at_most_five_bytes() -> None:
    assert varint.decode_length(varint.encode((1 << 35) - 1), 0) == ((1 << 35) - 1, 5)
    with pytest.raises(ValueError, match="more than five bytes"):
        varint.decode_length(varint.encode(1 << 35), 0)
