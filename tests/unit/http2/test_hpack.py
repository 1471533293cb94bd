"""Header blocks, against the decoder and encoder of the `hpack` package."""

from __future__ import annotations

import functools
import random
from itertools import pairwise

import hpack
import pytest
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.table import HeaderTable
from hypothesis import given
from hypothesis import strategies as st

from mq.http2 import huffman
from mq.http2.hpack import (
    STATIC_TABLE,
    Decoder,
    Field,
    HeaderFault,
    HeadersTooLarge,
    encode_field,
    encode_status,
)

SEEDS = 300
NAMES = [b":path", b"grpc-timeout", b"x-a", b"x-b", b"te", b"user-agent", b"cookie"]


def theirs(table: int = 4_096, list_bytes_max: int = 1 << 20) -> hpack.Decoder:
    decoder = hpack.Decoder(list_bytes_max)
    decoder.max_allowed_table_size = table
    return decoder


def plain(fields: object) -> list[Field]:
    return [(bytes(name), bytes(value)) for name, value in fields]  # type: ignore[attr-defined]


def random_fields(source: random.Random) -> list[Field]:
    return [
        (source.choice(NAMES), source.randbytes(source.choice((0, 3, 40))))
        for _ in range(source.randrange(12))
    ]


def test_the_static_table_is_the_standard_one() -> None:
    assert [*HeaderTable.STATIC_TABLE] == [*STATIC_TABLE[1:]]


@given(st.binary(max_size=80))
def test_huffman_codes_are_the_standard_ones(text: bytes) -> None:
    coded = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode(text)
    assert huffman.decode(coded) == text


@pytest.mark.parametrize(
    "coded",
    [
        b"\xff" * 4,  # the end of the string as a symbol
        b"\x1f\xff",  # padding of a whole byte: "a" and eight ones more
        b"\x18",  # padding of zeros
    ],
)
def test_illegal_huffman_codes_are_refused(coded: bytes) -> None:
    with pytest.raises(ValueError, match="string"):
        huffman.decode(coded)


@pytest.mark.parametrize("huffman_coded", [False, True])
@pytest.mark.parametrize("table_bytes", [0, 100, 4_096])
def test_blocks_of_another_encoder_are_read_one_after_the_other(
    table_bytes: int, huffman_coded: bool
) -> None:
    source = random.Random(table_bytes)
    encoder, decoder = hpack.Encoder(), Decoder(4_096, 1 << 20)
    for _ in range(SEEDS):
        if source.random() < 0.1:
            encoder.header_table_size = source.choice((0, table_bytes, 4_096))
        fields = random_fields(source)
        assert decoder.decode(encoder.encode(fields, huffman=huffman_coded)) == fields


def outcome(decode: object, block: bytes) -> object:
    try:
        return plain(decode(block))  # type: ignore[operator]
    except (HeaderFault, hpack.HPACKError):
        return "fault"
    except HeadersTooLarge:
        return "too large"


def test_damaged_blocks_are_refused_or_read_as_another_decoder_does() -> None:
    """The two differ in one thing: an integer of more than five bytes is refused here."""
    source = random.Random(17)
    compared = faults = 0
    for _ in range(20 * SEEDS):
        encoder = hpack.Encoder()
        block = bytearray(encoder.encode(random_fields(source), huffman=source.random() < 0.5))
        for _ in range(source.randrange(1, 4)):
            if block:
                block[source.randrange(len(block))] = source.randrange(256)
        ours = outcome(Decoder(4_096, 1 << 20).decode, bytes(block))
        other = outcome(functools.partial(theirs().decode, raw=True), bytes(block))
        if ours == "fault" and other != "fault":
            assert any(one >= 0x80 and two >= 0x80 for one, two in pairwise(block))
            continue
        compared += 1
        faults += ours == "fault"
        assert ours == other, bytes(block)
    assert compared > 15 * SEEDS
    assert faults > SEEDS


def test_random_bytes_raise_nothing_else() -> None:
    source = random.Random(3)
    decoder = Decoder(4_096, 1_000)
    for _ in range(30 * SEEDS):
        outcome(decoder.decode, source.randbytes(source.randrange(60)))


def test_a_block_that_is_too_large_leaves_the_table_in_step() -> None:
    encoder, decoder = hpack.Encoder(), Decoder(4_096, 200)
    with pytest.raises(HeadersTooLarge):
        decoder.decode(encoder.encode([(b"x-a", b"1"), (b"x-b", b"y" * 200), (b"x-c", b"3")]))
    fields = [(b"x-a", b"1"), (b"x-c", b"3")]
    block = encoder.encode(fields)
    assert len(block) == 2, "both are in the table"
    assert decoder.decode(block) == fields


def test_a_table_may_not_be_larger_than_allowed() -> None:
    decoder = Decoder(100, 1_000)
    assert decoder.decode(b"\x3f\x45") == []  # 100
    with pytest.raises(HeaderFault, match="at most 100"):
        decoder.decode(b"\x3f\x46")
    with pytest.raises(HeaderFault, match="after a field"):
        Decoder(100, 1_000).decode(b"\x82\x20")


@given(st.sampled_from(NAMES), st.binary(max_size=300))
def test_encoded_fields_are_decoded_by_the_hpack_package(name: bytes, value: bytes) -> None:
    decoder = theirs()
    assert plain(decoder.decode(encode_field(name, value), raw=True)) == [(name, value)]
    assert not decoder.header_table.dynamic_entries


@pytest.mark.parametrize("status", [200, 404, 415])
def test_a_status_is_read_there(status: int) -> None:
    assert plain(theirs().decode(encode_status(status), raw=True)) == [
        (b":status", str(status).encode())
    ]
