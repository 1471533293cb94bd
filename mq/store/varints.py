"""The lengths in batches (`mq.wire.varint`): all of an array at once, or one of them with the
store's own error.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mq.errors import MalformedBatch
from mq.wire import varint


def varint_widths(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    widths = np.ones_like(values)
    for limit in (1 << 7, 1 << 14, 1 << 21, 1 << 28):
        widths += values >= limit
    return widths


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """As `varint.decode_length`. MalformedBatch: more than five bytes, longer than any batch."""
    try:
        return varint.decode_length(data, position)
    except ValueError as error:
        raise MalformedBatch(f"not a Batch: {error}") from None
