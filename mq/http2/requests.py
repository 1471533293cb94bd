"""The request that a header block opens a stream with: HTTP/2's rules for it, and gRPC's fields.

Clients send the same block again and again. With the dynamic table switched off, which this server
asks for, the same bytes say the same thing on one connection, so that `RequestReader` keeps what
they said. Blocks that differ in fields of the single call alone, such as `grpc-timeout`, are the
same too: the parts around the values of those fields are the key.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, Final, TypeAlias

from mq.http2 import huffman
from mq.http2.hpack import Decoder, Field, HeaderFault, list_bytes

Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]
# The time that a client waits, in seconds, or as it stands in the block; None: for ever.
Timeout: TypeAlias = float | bytes | None

BAD_REQUEST: Final = 400
METHOD_NOT_ALLOWED: Final = 405
UNSUPPORTED_MEDIA_TYPE: Final = 415

_BLOCKS_MAX: Final = 128
_IN_VAIN_MAX: Final = 256
_PSEUDO: Final = frozenset((b":method", b":scheme", b":path", b":authority"))
# Of a single hop in HTTP/1: here they make a request malformed.
_OF_A_HOP: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
_ILLEGAL_IN_VALUES: Final = re.compile(rb"[\0\r\n]")
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_TIMEOUT_DIGITS_MAX: Final = 8
# The size of a string, in its first byte; all ones: it goes on in the next.
_STRING_SIZE: Final = 0x7F
_UNITS_S: Final = {
    b"H": 3_600.0,
    b"M": 60.0,
    b"S": 1.0,
    b"m": 1e-3,
    b"u": 1e-6,
    b"n": 1e-9,
}
# Fields whose values differ from call to call, as literal names, Huffman-coded or plain: the time
# that a client waits, and the number that RocketMQ's clients give a call, which no handler reads.
_TIMEOUT_NAMES: Final = (b"\x89\x9a\xca\xc8\xb2\x4d\x49\x4f\x6a\x7f", b"\x0cgrpc-timeout")
_NUMBER_NAMES: Final = (b"\x8b\xf2\xb5\x3d\x96\xb0\xbd\xad\x2a\x12\xb1\xa4", b"\x0fx-mq-request-id")
_OF_A_CALL: Final = re.compile(
    rb"[\x00\x10\x40](?:" + b"|".join(map(re.escape, (*_TIMEOUT_NAMES, *_NUMBER_NAMES))) + rb")"
)
_MARKS_MAX: Final = 4
_EMPTY_STRING: Final = b"\0"
_EMPTY_FIELDS: Final = ((b"grpc-timeout", b""), (b"x-mq-request-id", b""))
# The most that the value of such a field has, if it is Huffman-coded: five bits a character.
_VALUE_BYTES_MAX: Final = 0x7F * 8 // 5


class MalformedRequest(Exception):
    """The fields break HTTP/2's own rules."""


class Request:
    """Shared by all calls of a connection that were opened with the same block."""

    __slots__ = (
        "_fields",
        "_metadata",
        "caller",
        "content_length",
        "is_encoded",
        "path",
        "refusal",
    )

    def __init__(self, path: bytes) -> None:
        self.path = path
        # The HTTP status that refuses it; 0: it is a gRPC request.
        self.refusal = 0
        # Whether its messages may be compressed, which this server does not support.
        self.is_encoded = False
        self.content_length: int | None = None
        # What handlers have made of the metadata: found once, for all calls with this block.
        self.caller: Any = None
        self._fields: list[Field] = []
        self._metadata: Metadata | None = None

    @property
    def metadata(self) -> Metadata:
        """Values of keys that end with -bin are bytes. Such values that are no base64 are left
        out.
        """
        if self._metadata is None:
            found = [(name.decode("latin-1"), value) for name, value in self._fields]
            self._metadata = tuple(one for field in found for one in _decoded(*field))
        return self._metadata

    def add(self, name: bytes, value: bytes) -> None:
        self._fields.append((name, value))


def _decoded(name: str, value: bytes) -> Metadata:
    if not name.endswith("-bin"):
        return ((name, value.decode("latin-1")),)
    try:
        return tuple(
            (name, base64.b64decode(one + b"=" * (-len(one) % 4), validate=True))
            for one in value.replace(b" ", b"").split(b",")
        )
    except binascii.Error:
        return ()


def parse_request(fields: list[Field]) -> tuple[Request, float | None]:
    """And the time that the client waits, in seconds. MalformedRequest."""
    pseudo: dict[bytes, bytes] = {}
    plain: list[Field] = []
    for name, value in fields:
        if not name.startswith(b":"):
            plain.append((name, value))
        elif plain or name in pseudo or name not in _PSEUDO:
            raise MalformedRequest(f"{name!r} where it may not be")
        else:
            pseudo[name] = value
    if not pseudo.get(b":path") or b":method" not in pseudo or b":scheme" not in pseudo:
        raise MalformedRequest("without :method, :scheme or :path")
    request = Request(pseudo[b":path"])
    timeout_s, content_type = _read_plain(request, plain)
    if pseudo[b":method"] != b"POST":
        request.refusal = METHOD_NOT_ALLOWED
    elif not content_type.startswith(b"application/grpc"):
        request.refusal = UNSUPPORTED_MEDIA_TYPE
    return request, timeout_s


def _read_plain(request: Request, fields: list[Field]) -> tuple[float | None, bytes]:
    timeout_s, content_type = None, b""
    for name, value in fields:
        check_field(name, value)
        match name:
            case b"te" | b"grpc-accept-encoding" | b"x-mq-request-id":
                pass
            case b"content-type":
                content_type = value
            case b"content-length":
                if _LENGTH.fullmatch(value) is None:
                    raise MalformedRequest("content-length is no number")
                request.content_length = int(value)
            case b"grpc-timeout":
                timeout_s = parse_timeout(value)
                if timeout_s is None:
                    request.refusal = BAD_REQUEST
            case b"grpc-encoding":
                request.is_encoded = value != b"identity"
            case _:
                request.add(name, value)
    return timeout_s, content_type


def check_field(name: bytes, value: bytes) -> None:
    """Of a request or of its trailers. MalformedRequest."""
    if not name or name != name.lower() or name in _OF_A_HOP:
        raise MalformedRequest(f"{name!r} is no field of a request")
    if name == b"te" and value != b"trailers":
        raise MalformedRequest("te other than trailers")
    if _ILLEGAL_IN_VALUES.search(value):
        raise MalformedRequest(f"the value of {name!r} has illegal characters")


def parse_timeout(value: bytes) -> float | None:
    """Seconds; None if it is no timeout."""
    digits = value[:-1]
    unit_s = _UNITS_S.get(value[-1:])
    # `isdigit` of bytes knows the digits of ASCII alone.
    if unit_s is None or not digits.isdigit() or len(digits) > _TIMEOUT_DIGITS_MAX:
        return None
    return int(digits) * unit_s


def decode_timeout(string: bytes) -> float:
    """Seconds, of a string as it stands in a header block. One that is no timeout has passed."""
    text = string[1:]
    if string[0] > _STRING_SIZE:  # Huffman-coded
        try:
            text = huffman.decode(text)
        except ValueError:
            return 0.0
    return parse_timeout(text) or 0.0


class RequestReader:
    """Of one connection."""

    __slots__ = ("_in_vain", "_known", "_marks", "decoder")

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        # Blocks that were remembered since one was found again.
        self._in_vain = 0
        # Names of fields of a single call, as the last new block had them, in its order; and
        # whether they are timeouts.
        self._marks: list[tuple[bytes, bool]] = []
        self._known: dict[tuple[bytes, ...], tuple[Request, float | None]] = {}

    def known(self, block: bytes) -> tuple[Request, Timeout] | None:
        """The request that an equal block, but for fields of a single call, has opened before, and
        its timeout. None: the block has to be decoded.
        """
        parts, timeout = self._cut(block)
        known = self._known.get(parts)
        if known is None or self.decoder.table_bytes:
            return None
        self._in_vain = 0
        return known if timeout is None else (known[0], timeout)

    def read(self, block: bytes) -> tuple[Request, Timeout]:
        """MalformedRequest, HeaderFault, HeadersTooLarge."""
        known = self.known(block)
        if known is not None:
            return known
        fields = self.decoder.decode(block)
        parsed = parse_request(fields)
        # Some clients send a number of the call, or the time: their blocks never come again.
        if not self.decoder.table_bytes and self._in_vain < _IN_VAIN_MAX:
            self._in_vain += 1
            self._remember(block, fields, parsed)
        return parsed

    def _cut(self, block: bytes) -> tuple[tuple[bytes, ...], bytes | None]:
        """The parts around the values of the fields of a single call; and the timeout, as it stands
        in the block.
        """
        parts, timeout, position = [], None, 0
        for mark, is_timeout in self._marks:
            at = block.find(mark, position)
            if at < 0:
                continue
            start = at + len(mark)
            stop = _end_of_string(block, start)
            if stop:
                parts.append(block[position:start])
                position = stop
                if is_timeout:
                    timeout = block[start:stop]
        parts.append(block[position:])
        return tuple(parts), timeout

    def _remember(
        self, block: bytes, fields: list[Field], parsed: tuple[Request, float | None]
    ) -> None:
        found = [name[0] for name in _OF_A_CALL.finditer(block)]
        if not _are_in_order(found, [mark for mark, _ in self._marks]):
            # Of the first ones, in case that values are full of such names.
            self._marks = [(mark, mark[1:] in _TIMEOUT_NAMES) for mark in found[:_MARKS_MAX]]
        parts, _ = self._cut(block)
        if len(parts) > 1 and not self._is_cut_at_fields(parts, fields, parsed[0]):
            return
        if len(self._known) >= _BLOCKS_MAX:
            self._known.clear()
        self._known[parts] = parsed

    def _is_cut_at_fields(
        self, parts: tuple[bytes, ...], fields: list[Field], request: Request
    ) -> bool:
        """Whether the names were found where fields start, not within values: then every block
        with the same parts has these fields. And whether no value that may come makes a difference.
        """
        if request.refusal:
            return False
        room = self.decoder.list_bytes_max - (len(parts) - 1) * _VALUE_BYTES_MAX
        if list_bytes(fields) > room or [name for name, _ in fields].count(b"grpc-timeout") > 1:
            return False
        decoder = Decoder(0, self.decoder.list_bytes_max)
        decoder.table_bytes = 0
        found: list[Field] = []
        try:
            for part in parts[:-1]:
                found += decoder.decode(part + _EMPTY_STRING)
                if found[-1] not in _EMPTY_FIELDS:
                    return False
                found[-1] = (found[-1][0], fields[len(found) - 1][1])
            found += decoder.decode(parts[-1])
        except (HeaderFault, IndexError):
            return False
        return found == fields


def _are_in_order(some: list[bytes], of_all: list[bytes]) -> bool:
    """Whether all of `some` are there, in the same order."""
    rest = iter(of_all)
    return all(one in rest for one in some)


def _end_of_string(block: bytes, position: int) -> int:
    """0: there is no string, or a longer one than a value of a single call is."""
    size = block[position] & _STRING_SIZE if position < len(block) else _STRING_SIZE
    stop = position + 1 + size
    return stop if size < _STRING_SIZE and stop <= len(block) else 0
