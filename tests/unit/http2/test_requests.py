"""What a header block asks for; and that what is remembered of blocks never mixes them up."""

from __future__ import annotations

import random

import hpack
import pytest

from mq.http2.hpack import Decoder, Field, HeaderFault
from mq.http2.requests import (
    MalformedRequest,
    RequestReader,
    decode_timeout,
    parse_request,
    parse_timeout,
)

CALL: list[Field] = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/s/M"),
    (b":authority", b"here"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc+proto"),
]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(b"5S", 5.0), (b"99999999n", 0.099999999), (b"250m", 0.25), (b"7u", 7e-6), (b"2H", 7_200.0)],
)
def test_a_timeout_has_one_of_six_units(text: bytes, seconds: float) -> None:
    assert parse_timeout(text) == pytest.approx(seconds)
    assert parse_request([*CALL, (b"grpc-timeout", text)])[1] == pytest.approx(seconds)


@pytest.mark.parametrize("text", [b"", b"5", b"S", b"5s", b"-1S", b"123456789S", b"1.5S"])
def test_an_illegal_timeout_is_a_bad_request(text: bytes) -> None:
    assert parse_request([*CALL, (b"grpc-timeout", text)])[0].refusal == 400


@pytest.mark.parametrize(
    "more",
    [
        (b":path", b"/again"),
        (b":status", b"200"),
        (b"Upper", b""),
        (b"connection", b"close"),
        (b"te", b"gzip"),
        (b"x", b"a\nb"),
        (b"content-length", b"-1"),
        (b"content-length", b"9" * 5_000),
        (b"", b""),
    ],
)
def test_fields_that_break_the_rules_of_http_are_malformed(more: Field) -> None:
    with pytest.raises(MalformedRequest):
        parse_request([*CALL, more])


@pytest.mark.parametrize("missing", [b":method", b":scheme", b":path"])
def test_a_request_has_a_method_a_scheme_and_a_path(missing: bytes) -> None:
    with pytest.raises(MalformedRequest):
        parse_request([field for field in CALL if field[0] != missing])


def test_http_that_is_not_grpc_is_refused_by_a_status() -> None:
    get = [(b":method", b"GET"), *CALL[1:]]
    assert parse_request(get)[0].refusal == 405
    assert parse_request(CALL[:-1])[0].refusal == 415


def test_metadata_is_text_or_bytes() -> None:
    given = [(b"x", b"1"), (b"y-bin", b"AQI, AwQ="), (b"z-bin", b"!"), (b"user-agent", b"me")]
    request, _ = parse_request([*CALL, *given])
    assert request.metadata == (
        ("x", "1"),
        ("y-bin", b"\x01\x02"),
        ("y-bin", b"\x03\x04"),
        ("user-agent", "me"),
    )


@pytest.mark.parametrize("huffman", [False, True])
@pytest.mark.parametrize("table_bytes", [0, 4_096])
def test_a_reader_that_remembers_reads_what_one_reads_that_does_not(
    huffman: bool, table_bytes: int
) -> None:
    """Also where the name of the timeout is part of another field."""
    source = random.Random(5)
    encoder = hpack.Encoder()
    encoder.header_table_size = table_bytes
    reader = RequestReader(Decoder(4_096, 16_384))
    names = [b"a\x10\x0cgrpc-timeout", b"@\x0cgrpc-timeout\x021S", b"plain"]
    for _ in range(2_000):
        more = [
            *((b"x", source.choice(names)) for _ in range(source.randrange(2))),
            *((b"grpc-timeout", b"%dm" % source.randrange(50)) for _ in range(source.randrange(3))),
            *((b"y", source.choice(names)) for _ in range(source.randrange(2))),
        ]
        fields = [*CALL, *more]
        request, timeout = reader.read(encoder.encode(fields, huffman=huffman))
        timeout_s = decode_timeout(timeout) if isinstance(timeout, bytes) else timeout
        expected, expected_s = parse_request(fields)
        assert (request.path, request.metadata, request.refusal, timeout_s) == (
            *(expected.path, expected.metadata, expected.refusal, expected_s),
        )


def test_a_block_that_ends_in_the_timeout_is_refused() -> None:
    decoder = Decoder(0, 1_000)
    decoder.decode(b"\x20")
    reader = RequestReader(decoder)
    for block in (b"\x00\x0cgrpc-timeout", b"\x00\x0cgrpc-timeout\x05"):
        with pytest.raises(HeaderFault):
            reader.read(block)


def test_requests_are_shared_between_calls_that_differ_in_their_timeout() -> None:
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    reader = RequestReader(Decoder(4_096, 1_000))
    reader.read(encoder.encode(CALL))
    found = [
        reader.read(encoder.encode([*CALL, (b"grpc-timeout", text)])) for text in (b"1S", b"2S")
    ]
    assert found[0][0] is found[1][0]
    (_, first_s), (_, second) = found
    assert first_s == 1.0
    assert isinstance(second, bytes)
    assert decode_timeout(second) == 2.0


@pytest.mark.parametrize("string", [b"\x03abc", b"\x83abc", b"\x011", b"\x00", b"\x82\xff\xff"])
def test_a_timeout_that_is_none_has_passed(string: bytes) -> None:
    assert decode_timeout(string) == 0.0


def test_a_known_block_is_read_to_its_end() -> None:
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    reader = RequestReader(Decoder(4_096, 1_000))
    block = b"\x20" + encoder.encode([*CALL, (b"grpc-timeout", b"1S")], huffman=False)
    reader.read(block)
    assert reader.known(block) is not None
    for cut in range(1, len(block)):
        assert reader.known(block[:cut]) is None
    assert reader.known(block + encoder.encode([(b"x", b"y")])) is None


def test_blocks_that_never_come_again_are_not_remembered_for_ever() -> None:
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    reader = RequestReader(Decoder(4_096, 1_000))
    first = b"\x20" + encoder.encode(CALL)
    reader.read(first)

    def numbered(number: int) -> bytes:
        return encoder.encode([*CALL, (b"x-request-id", b"%d" % number)])

    for number in range(200):
        reader.read(numbered(number))
    assert reader.known(numbered(199)) is not None
    # That one came again: remembering is worth it, for a while.
    for number in range(1_000, 2_000):
        reader.read(numbered(number))
    assert reader.known(numbered(1_999)) is None
    request, _ = reader.read(numbered(1_999))
    assert request.metadata == (("x-request-id", "1999"),)
