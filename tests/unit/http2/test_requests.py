"""What a header block asks for; and that what is remembered of blocks never mixes them up."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import hpack
import pytest

from mq.http2 import huffman as huffman_code
from mq.http2.hpack import Decoder, Field, HeaderFault, HeadersTooLarge
from mq.http2.requests import (
    MalformedRequest,
    Request,
    RequestReader,
    Timeout,
    decode_timeout,
    parse_request,
    parse_timeout,
)

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """Also where the names of fields of a single call are parts of other fields."""
    source = random.Random(5)
    encoder = hpack.Encoder()
    encoder.header_table_size = table_bytes
    reader = RequestReader(Decoder(4_096, 16_384))
    values = [
        *(b"a\x10\x0cgrpc-timeout", b"@\x0cgrpc-timeout\x021S", b"plain"),
        *(b"\0\x0fx-mq-request-id", b"@\x0fx-mq-request-id\x0212", b"\0\x0fx-mq-request-id\x7f"),
    ]
    for _ in range(4_000):
        more = [
            *((b"x", source.choice(values)) for _ in range(source.randrange(2))),
            *((b"grpc-timeout", b"%dm" % source.randrange(50)) for _ in range(source.randrange(3))),
            *((b"x-mq-request-id", _number(source)) for _ in range(source.randrange(3))),
            *((b"y", source.choice(values)) for _ in range(source.randrange(2))),
        ]
        if source.random() < 0.5:
            more.reverse()
        fields = [*CALL, *more]
        # A NUL is one of the characters that no value may have.
        legal = [(name, value.replace(b"\0", b"@")) for name, value in fields]
        assert shown(*reader.read(encoder.encode(legal, huffman=huffman))) == shown(
            *parse_request(legal)
        )


def shown(request: Request, timeout: Timeout) -> tuple[object, ...]:
    timeout_s = decode_timeout(timeout) if isinstance(timeout, bytes) else timeout
    return request.path, request.metadata, request.refusal, request.content_length, timeout_s


def _number(source: random.Random) -> bytes:
    """As UUIDs are; some are longer than what the reader passes over."""
    return b"%x" % source.getrandbits(128) * source.choice((0, 1, 1, 1, 3, 5))


@pytest.mark.parametrize("huffman", [False, True])
def test_damaged_blocks_are_read_as_by_a_reader_that_remembers_nothing(huffman: bool) -> None:
    """Bytes are changed, left out and added anywhere but in the values of a single call, which are
    not looked at; the peer also makes its table of fields larger and smaller.
    """
    source = random.Random(6)
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    reader, decoder = RequestReader(Decoder(4_096, 1_000)), Decoder(4_096, 1_000)
    known, found = 0, Counter[object]()
    for _ in range(6_000):
        # Some are too large for the limit, with a long number if not without.
        size = source.choice((90, 90, 90, 350, 400, 450, 500))
        fields = [*CALL, (b"grpc-timeout", b"%dm" % source.randrange(50)), (b"x", b"1" * size)]
        fields.insert(source.choice((6, 8)), (b"x-mq-request-id", _number(source)))
        pieces = [encoder.encode([field], huffman=huffman) for field in fields]
        if source.random() < 0.15:
            at = source.choice([n for n, (name, _) in enumerate(fields) if name in KEPT])
            pieces[at] = _damaged(pieces[at], source)
        if source.random() < 0.2:
            pieces.insert(0, source.choice((b"\x20", b"\x20", b"\x3f\xe1\x1f", b"\x3f\x45\x20")))
        block = b"".join(pieces)
        known += reader.known(block) is not None
        expected = outcome(partial(_read_plainly, decoder, block))
        assert outcome(partial(reader.read, block)) == expected
        assert reader.decoder.table_bytes == decoder.table_bytes
        found[expected if isinstance(expected, type) else None] += 1
        if expected is HeaderFault:
            # The table is undefined now: a connection ends.
            reader, decoder = RequestReader(Decoder(4_096, 1_000)), Decoder(4_096, 1_000)
    assert known > 150
    assert {*found} == {None, HeaderFault, HeadersTooLarge, MalformedRequest}


def _read_plainly(decoder: Decoder, block: bytes) -> tuple[Request, Timeout]:
    return parse_request(decoder.decode(block))


KEPT = {b"x", b":path", b"te", b"content-type"}


def _damaged(piece: bytes, source: random.Random) -> bytes:
    at = source.randrange(len(piece) + 1)
    return piece[:at] + source.randbytes(source.randrange(2)) + piece[at + source.randrange(2) :]


def outcome(read: Callable[[], tuple[Request, Timeout]]) -> object:
    try:
        return shown(*read())
    except (HeaderFault, HeadersTooLarge, MalformedRequest) as error:
        return type(error)


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


@pytest.mark.parametrize("mark", [b"\x10\x0cgrpc-timeout", b"\x10\x0fx-mq-request-id"])
def test_a_name_within_a_coded_value_is_no_field(mark: bytes) -> None:
    """Coded values may have any bytes: here one that ends like a field with an empty value."""
    coded = next(
        filter(_is_legal, (b"%c%c" % (n >> 8, n & 255) + mark + b"\0" for n in range(1 << 16)))
    )
    head = hpack.Encoder().encode(CALL) + b"\0\x01x" + bytes([0x80 | len(coded)])
    reader, decoder = RequestReader(Decoder(4_096, 1_000)), Decoder(4_096, 1_000)
    reader.decoder.decode(b"\x20")
    decoder.decode(b"\x20")
    blocks = [b"", b"\0\x01y\0", coded[-1:] * 3, b"\0\0\0"]
    for rest in (*blocks, *blocks):
        for last in (b"\0", b"\x021S", b"\x01\x07"):
            block = head + coded[:-1] + last + rest
            expected = outcome(partial(_read_plainly, decoder, block))
            assert outcome(partial(reader.read, block)) == expected


def _is_legal(coded: bytes) -> bool:
    try:
        return not {0, 10, 13} & {*huffman_code.decode(coded)}
    except ValueError:
        return False


def test_the_number_of_a_call_makes_no_other_request() -> None:
    """RocketMQ's clients number every call. Their blocks are known whatever the number."""
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    reader = RequestReader(Decoder(4_096, 1_000))
    reader.read(encoder.encode(CALL))
    for huffman in (True, False):
        numbers = [b"68b3-%d" % at for at in range(300)]
        blocks = [
            encoder.encode(
                [*CALL, (b"x-mq-request-id", one), (b"grpc-timeout", b"3S"), (b"x", b"y")], huffman
            )
            for one in numbers
        ]
        first, _ = reader.read(blocks[0])
        assert first.metadata == (("x", "y"),)
        assert all((found := reader.known(one)) and found[0] is first for one in blocks)


def test_what_a_reader_remembers_is_bounded() -> None:
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    reader = RequestReader(Decoder(4_096, 1_000))
    for number in range(2_000):
        fields = [*CALL, (b"x-mq-date-time", b"%d" % number), (b"x-mq-request-id", b"1")]
        block = encoder.encode(fields)
        reader.read(block)
        assert reader.known(block) is not None
    assert len(reader._known) <= 128
    reader.read(encoder.encode([*CALL, *[(b"x", b"\x10\x0cgrpc-timeout\x021S" * 9)] * 3], False))
    assert len(reader._marks) <= 4


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
