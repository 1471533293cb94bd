"""Numbers as protobuf writes them: seven bits a byte, the lowest first, and a bit that says whether
more follow.

Lengths of at most five bytes, which is longer than any batch. No loops: how long a number is must
be no reason for more lines to run, see tests/unit/store/test_hot_path.py.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mq.errors import MalformedBatch


def varint_widths(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    widths = np.ones_like(values)
    for limit in (1 << 7, 1 << 14, 1 << 21, 1 << 28):
        widths += values >= limit
    return widths


def varint_width(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)


def varint(value: int) -> bytes:
    """Of at most five bytes, without a loop: its length is no reason for more lines to run."""
    width = varint_width(value)
    groups = (
        value & 0x7F
        | value << 1 & 0x7F00
        | value << 2 & 0x7F_0000
        | value << 3 & 0x7F00_0000
        | value << 4 & 0x7F_0000_0000
    )
    more = 0x80_8080_8080 & (1 << 8 * (width - 1)) - 1
    return (groups | more).to_bytes(width, "little")


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Value and the position behind it, which is behind the data when that ends first. No loop,
    see above; a number of more than five bytes is longer than any batch.
    """
    word = int.from_bytes(data[position : position + 5], "little")
    stop = ~word & 0x80_8080_8080
    if not stop:
        raise MalformedBatch(f"not a Batch: a number of more than five bytes at byte {position}")
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
