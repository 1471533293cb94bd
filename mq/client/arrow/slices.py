"""Slices of a buffer as Arrow arrays: one copy, in C++.

The values of an Arrow array stand without gaps. So the gaps between the slices are made values,
too, and every second value is taken.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mq.wire.walking import Flags, Many, Numbers, Slices


def binary_array(data: bytes | memoryview, slices: Slices) -> pa.BinaryArray:
    """The slices must not overlap; they may have any order."""
    starts, sizes = slices
    count = len(starts)
    if not sizes.any():
        return _all_empty(pa.binary(), count)
    chosen = np.arange(1, 2 * count, 2, dtype=np.int32)
    if (starts[1:] < (starts + sizes)[:-1]).any():
        # An empty slice comes before the one that begins at the same position.
        order = np.lexsort((sizes, starts))
        starts, sizes = starts[order], sizes[order]
        ranks = np.empty(count, np.int32)
        ranks[order] = chosen
        chosen = ranks
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0] = 0
    offsets[1::2] = starts
    offsets[2::2] = starts + sizes
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    gaps_and_values = pa.Array.from_buffers(pa.binary(), 2 * count, buffers)
    return gaps_and_values.take(pa.array(chosen))


def text_array(data: bytes | memoryview, slices: Slices) -> pa.StringArray:
    """Raises ArrowInvalid if a slice is not UTF-8."""
    if not slices.sizes.any():
        return _all_empty(pa.string(), len(slices.sizes))
    return binary_array(data, slices).cast(pa.string())


def _all_empty(kind: pa.DataType, count: int) -> pa.Array:
    offsets = pa.py_buffer(np.zeros(count + 1, np.int32))
    return pa.Array.from_buffers(kind, count, [None, offsets, pa.py_buffer(b"")])


def numbered_texts(prefix: str, numbers: Numbers) -> pa.StringArray:
    """Each number in decimal, behind the prefix."""
    digits = len(str(numbers.max())) if len(numbers) else 0
    if not digits or numbers.min() < max(1, 10 ** (digits - 1)):
        return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")
    # Of the same length, as offsets of one response nearly always are: one column per digit.
    head = prefix.encode()
    width = len(head) + digits
    table = np.empty((len(numbers), width), np.uint8)
    table[:, : len(head)] = np.frombuffer(head, np.uint8)
    for at in range(width - 1, len(head) - 1, -1):
        tenth = numbers // 10
        table[:, at] = numbers - tenth * 10 + ord("0")
        numbers = tenth
    offsets = np.arange(len(table) + 1, dtype=np.int32) * np.int32(width)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(table)]
    return pa.Array.from_buffers(pa.string(), len(table), buffers)


def is_ascii(data: bytes | memoryview, slices: Slices) -> Flags:
    """Whether each slice is ASCII."""
    array = binary_array(data, slices)
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset :][: len(array) + 1]
    highs = np.flatnonzero(np.frombuffer(array.buffers()[2] or b"", np.uint8) >= 0x80)
    made: Flags = np.searchsorted(highs, offsets[:-1]) == np.searchsorted(highs, offsets[1:])
    return made


def or_null(array: pa.Array, is_valid: Flags) -> pa.Array:
    """The values of an array without nulls, and null where `is_valid` is false."""
    if is_valid.all():
        return array
    bitmap = pa.py_buffer(np.packbits(is_valid, bitorder="little"))
    return pa.Array.from_buffers(array.type, len(array), [bitmap, *array.buffers()[1:]])


def list_offsets(many: Many, count: int) -> pa.Buffer:
    """The offsets of the lists of `count` rows."""
    offsets: npt.NDArray[np.int32] = np.zeros(count + 1, np.int32)
    if len(many.rows):
        np.cumsum(np.bincount(many.rows, minlength=count), out=offsets[1:])
    return pa.py_buffer(offsets)


def number_array(kind: pa.DataType, numbers: Numbers, is_valid: Flags | None = None) -> pa.Array:
    """An array of this type over the bytes of the numbers."""
    array = pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])
    return array if is_valid is None else or_null(array, is_valid)
