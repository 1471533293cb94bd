"""The request that a header block opens a stream with: HTTP/2's rules for it, and gRPC's fields.

Clients send the same block again and again. With the dynamic table switched off, which this server
asks for, the same bytes say the same thing on one connection, so that `RequestReader` keeps what
they said. When calls have a deadline, the block differs in `grpc-timeout` alone: then the parts
around that field are the key.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final, TypeAlias

from mq.http2.hpack import Decoder, Field, HeaderFault

Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]

BAD_REQUEST: Final = 400
METHOD_NOT_ALLOWED: Final = 405
UNSUPPORTED_MEDIA_TYPE: Final = 415

_CACHED_MAX: Final = 128
_PSEUDO: Final = frozenset((b":method", b":scheme", b":path", b":authority"))
# Of a single hop in HTTP/1: here they make a request malformed.
_OF_A_HOP: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
_ILLEGAL_IN_VALUES: Final = re.compile(rb"[\0\r\n]")
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_TIMEOUT: Final = re.compile(rb"[0-9]{1,8}[HMSmun]")
_UNITS_S: Final = {
    ord("H"): 3_600.0,
    ord("M"): 60.0,
    ord("S"): 1.0,
    ord("m"): 1e-3,
    ord("u"): 1e-6,
    ord("n"): 1e-9,
}
# `grpc-timeout` as a literal name, Huffman-coded or plain.
_TIMEOUT_NAME: Final = re.compile(
    rb"[\x00\x10\x40](?:\x89\x9a\xca\xc8\xb2\x4d\x49\x4f\x6a\x7f|\x0cgrpc-timeout)"
)


class MalformedRequest(Exception):
    """The fields break HTTP/2's own rules."""


class Request:
    """Shared by all calls that were opened with the same block: it never changes."""

    __slots__ = ("_fields", "_metadata", "content_length", "is_encoded", "path", "refusal")

    def __init__(self, path: bytes) -> None:
        self.path = path
        # The HTTP status that refuses it; 0: it is a gRPC request.
        self.refusal = 0
        # Whether its messages may be compressed, which this server does not support.
        self.is_encoded = False
        self.content_length: int | None = None
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
            case b"te" | b"grpc-accept-encoding":
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
    if _TIMEOUT.fullmatch(value) is None:
        return None
    return int(value[:-1]) * _UNITS_S[value[-1]]


class RequestReader:
    """Of one connection."""

    __slots__ = ("_by_block", "_by_rest", "decoder")

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self._by_block: dict[bytes, tuple[Request, float | None]] = {}
        # By what stands before and after the timeout.
        self._by_rest: dict[tuple[bytes, bytes], Request] = {}

    def read(self, block: bytes) -> tuple[Request, float | None]:
        """MalformedRequest, HeaderFault, HeadersTooLarge."""
        known = self._by_block.get(block)
        if known is not None:
            return known
        if self.decoder.table_bytes:
            return parse_request(self.decoder.decode(block))
        found = _TIMEOUT_NAME.search(block)
        if found is None:
            known = parse_request(self.decoder.decode(block))
            if len(self._by_block) >= _CACHED_MAX:
                self._by_block.clear()
            self._by_block[block] = known
            return known
        return self._read_around(block, found.start(), found.end())

    def _read_around(self, block: bytes, start: int, end: int) -> tuple[Request, float | None]:
        try:
            text, stop = self.decoder.read_string(block, end)
        except (HeaderFault, IndexError):
            # The name may stand within a value.
            return parse_request(self.decoder.decode(block))
        rest = (block[:start], block[stop:])
        request = self._by_rest.get(rest)
        if request is not None:
            timeout_s = parse_timeout(text)
            if timeout_s is not None:
                return request, timeout_s
        fields = self.decoder.decode(block)
        parsed = parse_request(fields)
        if not parsed[0].refusal and self._is_field(rest, text, fields):
            if len(self._by_rest) >= _CACHED_MAX:
                self._by_rest.clear()
            self._by_rest[rest] = parsed[0]
        return parsed

    def _is_field(self, rest: tuple[bytes, bytes], text: bytes, fields: list[Field]) -> bool:
        """Whether this is the only timeout, and its name was found where a field starts, not within
        a value. Then every block with the same start has a field there.
        """
        if [name for name, _ in fields].count(b"grpc-timeout") != 1:
            return False
        before, after = rest
        try:
            around = [*self.decoder.decode(before), (b"grpc-timeout", text)]
            return [*around, *self.decoder.decode(after)] == fields
        except HeaderFault:
            return False
