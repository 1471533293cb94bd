"""Header blocks (RFC 7541): decoding with the dynamic table, encoding without one.

The decoder keeps its table in step with the peer also where it refuses: a block whose fields are
too many is read to its end, and only its fields are dropped. A block that is no legal one leaves
the table undefined: then the connection has to end.

Huffman-coded strings are remembered: what they mean depends on nothing else.
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias

from mq.http2 import huffman

Field: TypeAlias = tuple[bytes, bytes]

TABLE_BYTES_DEFAULT: Final = 4_096
# What a field counts for beside its name and value.
_FIELD_OVERHEAD: Final = 32
_INTEGER_SHIFT_MAX: Final = 28
_REMEMBERED_MAX: Final = 512
_REMEMBERED_BYTES_MAX: Final = 64

_STATUSES = (b"200", b"204", b"206", b"304", b"400", b"404", b"500")
_VALUELESS = (
    b"accept-charset accept-encoding accept-language accept-ranges accept "
    b"access-control-allow-origin age allow authorization cache-control content-disposition "
    b"content-encoding content-language content-length content-location content-range "
    b"content-type cookie date etag expect expires from host if-match if-modified-since "
    b"if-none-match if-range if-unmodified-since last-modified link location max-forwards "
    b"proxy-authenticate proxy-authorization range referer refresh retry-after server set-cookie "
    b"strict-transport-security transfer-encoding user-agent vary via www-authenticate"
)
# Appendix A. Fields are numbered from 1.
STATIC_TABLE: Final[tuple[Field, ...]] = (
    (b"", b""),
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    *((b":status", status) for status in _STATUSES),
    *(
        (name, b"gzip, deflate" if name == b"accept-encoding" else b"")
        for name in _VALUELESS.split()
    ),
)
_STATIC_COUNT: Final = len(STATIC_TABLE)


class HeaderFault(Exception):
    """The block is no legal one. The table is undefined from then on."""


class HeadersTooLarge(Exception):
    """The fields of the block exceed the limit. The table is in step."""


class Decoder:
    __slots__ = ("_entries", "_size", "_strings", "list_bytes_max", "table_bytes", "table_limit")

    def __init__(self, table_limit: int, list_bytes_max: int) -> None:
        """`list_bytes_max` is for the fields of one block, each with 32 bytes on top."""
        # The newest first: an index counts from there.
        self._entries: deque[Field] = deque()
        self._size = 0
        self._strings: dict[bytes, bytes] = {}
        # What the peer uses of the table, and the most that it may ask for.
        self.table_bytes = TABLE_BYTES_DEFAULT
        self.table_limit = table_limit
        self.list_bytes_max = list_bytes_max

    def decode(self, block: bytes) -> list[Field]:
        """HeaderFault, HeadersTooLarge."""
        try:
            return self._decode(block)
        except IndexError:
            raise HeaderFault("the block is cut short") from None

    def _decode(self, block: bytes) -> list[Field]:
        fields: list[Field] = []
        position, end, total = 0, len(block), 0
        has_fields = False
        while position < end:
            first = block[position]
            if first >= 0x80:
                index, position = read_integer(block, position, 0x7F)
                field = self._field(index)
            elif first & 0xE0 == 0x20:
                if has_fields:
                    raise HeaderFault("the size of the table changes after a field")
                size, position = read_integer(block, position, 0x1F)
                self._resize(size)
                continue
            else:
                is_kept = first >= 0x40
                index, position = read_integer(block, position, 0x3F if is_kept else 0x0F)
                if index:
                    name = self._field(index)[0]
                else:
                    name, position = self.read_string(block, position)
                value, position = self.read_string(block, position)
                field = (name, value)
                if is_kept:
                    self._add(field)
            has_fields = True
            total += _FIELD_OVERHEAD + len(field[0]) + len(field[1])
            if total <= self.list_bytes_max:
                fields.append(field)
        if total > self.list_bytes_max:
            raise HeadersTooLarge(f"{total} bytes")
        return fields

    def read_string(self, block: bytes, position: int) -> tuple[bytes, int]:
        """HeaderFault; IndexError if the block ends before it."""
        is_coded = block[position] >= 0x80
        size, position = read_integer(block, position, 0x7F)
        end = position + size
        if end > len(block):
            raise HeaderFault("a string is longer than the block")
        raw = block[position:end]
        return (self._decoded(raw) if is_coded else raw), end

    def _decoded(self, raw: bytes) -> bytes:
        known = self._strings.get(raw)
        if known is not None:
            return known
        try:
            decoded = huffman.decode(raw)
        except ValueError as error:
            raise HeaderFault(str(error)) from None
        if len(raw) <= _REMEMBERED_BYTES_MAX:
            if len(self._strings) >= _REMEMBERED_MAX:
                self._strings.clear()
            self._strings[raw] = decoded
        return decoded

    def _field(self, index: int) -> Field:
        if 0 < index < _STATIC_COUNT:
            return STATIC_TABLE[index]
        if not index or index - _STATIC_COUNT >= len(self._entries):
            raise HeaderFault(f"no field has the index {index}")
        return self._entries[index - _STATIC_COUNT]

    def _add(self, field: Field) -> None:
        size = _FIELD_OVERHEAD + len(field[0]) + len(field[1])
        self._evict(self.table_bytes - size)
        if size <= self.table_bytes:
            self._entries.appendleft(field)
            self._size += size

    def _resize(self, table_bytes: int) -> None:
        if table_bytes > self.table_limit:
            raise HeaderFault(f"a table of {table_bytes} bytes: at most {self.table_limit}")
        self.table_bytes = table_bytes
        self._evict(table_bytes)

    def _evict(self, room: int) -> None:
        while self._entries and self._size > room:
            name, value = self._entries.pop()
            self._size -= _FIELD_OVERHEAD + len(name) + len(value)


def list_bytes(fields: list[Field]) -> int:
    """The size of the fields of a block, as the limit of a list counts it."""
    return sum(_FIELD_OVERHEAD + len(name) + len(value) for name, value in fields)


def read_integer(block: bytes, position: int, mask: int) -> tuple[int, int]:
    """HeaderFault; IndexError if the block ends within it."""
    value = block[position] & mask
    position += 1
    if value < mask:
        return value, position
    shift = 0
    while True:
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > _INTEGER_SHIFT_MAX:
            raise HeaderFault("an integer is too long")


def encode_field(name: bytes, value: bytes) -> bytes:
    """A literal that leaves no trace in the peer's table, with a name of the static table if it is
    there: the same field has the same bytes on every connection, so that callers may keep them.
    """
    index = _NAMES.get(name)
    if index is not None:
        return _integer(index, 0x0F) + _string(value)
    return b"\0" + _string(name) + _string(value)


def encode_status(status: int) -> bytes:
    """`:status` of an answer."""
    text = b"%d" % status
    if text in _STATUSES:
        return bytes([0x80 | STATIC_TABLE.index((b":status", text))])
    return encode_field(b":status", text)


_NAMES: Final = {name: index for index, (name, _) in reversed([*enumerate(STATIC_TABLE)]) if index}


def _string(text: bytes) -> bytes:
    return _integer(len(text), 0x7F) + text


def _integer(value: int, mask: int) -> bytes:
    if value < mask:
        return bytes([value])
    value -= mask
    encoded = bytearray([mask])
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
