"""Varints, as protobuf writes numbers: seven bits a byte, the lowest first; the high bit of a byte
says whether another one follows.

For the messages that are read and written by hand. Lengths have at most five bytes, which is more
than any request or log entry has; they are encoded and decoded without a loop, so that the hot path
runs the same lines for every length (tests/unit/store/test_hot_path.py).
"""

from __future__ import annotations

import functools

BYTES_MAX = 10
_LENGTH_BITS = 35
_LENGTH_CONTINUES = 0x80_8080_8080


def width(value: int) -> int:
    """Bytes of the encoded number."""
    return max(1, (value.bit_length() + 6) // 7)


def encode(value: int) -> bytes:
    """Encodes a number that is not negative."""
    if value >> _LENGTH_BITS:
        low = _spread(value) | _LENGTH_CONTINUES
        return low.to_bytes(5, "little") + encode(value >> _LENGTH_BITS)
    size = width(value)
    continues = _LENGTH_CONTINUES & (1 << 8 * (size - 1)) - 1
    return (_spread(value) | continues).to_bytes(size, "little")


@functools.lru_cache(maxsize=4096)
def field_head(number: int, length: int) -> bytes:
    """Stands before a length-delimited field with a number below 16."""
    return bytes([number << 3 | 2]) + encode(length)


def _spread(value: int) -> int:
    """The lowest 35 bits, seven to a byte."""
    return (
        value & 0x7F
        | value << 1 & 0x7F00
        | value << 2 & 0x7F_0000
        | value << 3 & 0x7F00_0000
        | value << 4 & 0x7F_0000_0000
    )


def decode(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """The number at `position` and the position behind it.

    ValueError: the data ends within the number, or it has more than 64 bits.
    """
    value = 0
    for at, byte in enumerate(data[position : position + BYTES_MAX]):
        value |= (byte & 0x7F) << 7 * at
        if byte < 0x80 and value < 1 << 64:
            return value, position + at + 1
    if position + BYTES_MAX > len(data):
        raise ValueError(f"the number at byte {position} is cut short")
    raise ValueError(f"the number at byte {position} has more than 64 bits")


def decode_length(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """As `decode`, for a number of at most five bytes. If the data ends within the number, the
    position is behind the end of the data.

    ValueError: the number has more than five bytes.
    """
    word = int.from_bytes(data[position : position + 5], "little")
    stop = ~word & _LENGTH_CONTINUES
    if not stop:
        raise ValueError(f"a number of more than five bytes at byte {position}")
    stop &= -stop
    word &= stop - 1
    value = (
        word & 0x7F
        | word >> 1 & 0x3F80
        | word >> 2 & 0x1F_C000
        | word >> 3 & 0xFE0_0000
        | word >> 4 & 0x7_F000_0000
    )
    return value, position + stop.bit_length() // 8
