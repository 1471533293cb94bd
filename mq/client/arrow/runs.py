"""The positions of the messages of a page: the heads of its runs, read all at once with numpy.

    Run = queue_offset, log_offset, stored_at_ms, frame_sizes | frame | frame | ...

A page may have one run of many messages, or many runs of one message, as small batches or a filter
leave them; both cost about the same. No message is opened.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from mq.client.decode import Page
from mq.errors import Internal
from mq.wire.v1.consumer_pb2 import RawRun
from mq.wire.walking import Numbers, Walker

# Tags of a Run: numbers, then the sizes of its frames as packed fixed32.
_QUEUE_OFFSET, _LOG_OFFSET, _STORED_AT, _FRAME_SIZES, _FRAME = 0x08, 0x10, 0x18, 0x22, 0x7A


class Rows(NamedTuple):
    """Messages of one queue: their positions in `data`, and the fields that their runs tell. The
    arrays have one element per message.
    """

    data: bytes
    frames_at: npt.NDArray[np.int64]
    frame_sizes: npt.NDArray[np.int64]
    queue_offsets: npt.NDArray[np.int64]
    log_offsets: npt.NDArray[np.int64]
    stored_at_ms: npt.NDArray[np.int64]


class _Runs(NamedTuple):
    """One element per run. `sizes_at`: the position of the sizes of its frames."""

    queue_offsets: Numbers
    log_offsets: Numbers
    stored_at_ms: Numbers
    sizes_at: Numbers
    counts: Numbers
    ends: Numbers


def rows_of(page: Page, start: int, end: int) -> Rows:
    """The messages of the page with queue offsets in [start, end). Raises Internal if the page is
    malformed.
    """
    runs = _open_runs(page)
    total = int(runs.counts.sum())
    firsts = np.cumsum(runs.counts) - runs.counts

    def spread(values: Numbers) -> Numbers:
        return np.repeat(values, runs.counts)

    within_run = np.arange(total) - spread(firsts)
    words = np.ndarray((max(0, len(page.data) - 3),), "<u4", page.data, strides=(1,))
    sizes = words[spread(runs.sizes_at) + 4 * within_run].astype(np.int64)
    ends = np.cumsum(sizes)
    before_runs = np.concatenate([[0], ends])[firsts]
    frames_bytes = np.concatenate([[0], ends])[firsts + runs.counts] - before_runs
    frames_at = runs.sizes_at + 4 * runs.counts
    if (frames_at + frames_bytes != runs.ends).any() or not runs.counts.all():
        raise _unreadable("the frames of a run are not as long as their sizes say")
    before = ends - sizes - spread(before_runs)
    queue_offsets = spread(runs.queue_offsets) + within_run
    chosen = (queue_offsets >= start) & (queue_offsets < end)
    columns = (
        spread(frames_at) + before,
        sizes,
        queue_offsets,
        spread(runs.log_offsets) + before,
        spread(runs.stored_at_ms),
    )
    return Rows(page.data, *(columns if chosen.all() else (one[chosen] for one in columns)))


def _open_runs(page: Page) -> _Runs:
    bounds = np.frombuffer(page.runs, np.int64).reshape(-1, 2)
    starts, ends = bounds[:, 0], bounds[:, 1]
    count = len(bounds)
    notes, odd = Walker(memoryview(page.data)).walk(np.arange(count), starts, ends, until=_FRAME)
    sizes = notes.slices(_FRAME_SIZES, ends)
    made = _Runs(
        notes.numbers(_QUEUE_OFFSET, count),
        notes.numbers(_LOG_OFFSET, count),
        notes.numbers(_STORED_AT, count),
        sizes.starts,
        sizes.sizes >> 2,
        ends,
    )
    for run in odd.tolist():
        _open_one(page.data, int(starts[run]), run, made)
    return made


def _open_one(data: bytes, start: int, run: int, runs: _Runs) -> None:
    """Reads one run by protobuf. Odd ones mostly have a large number."""
    end = int(runs.ends[run])
    try:
        found = RawRun.FromString(data[start:end])
        runs.queue_offsets[run] = found.queue_offset
        runs.log_offsets[run] = found.log_offset
    except (DecodeError, OverflowError) as error:
        raise _unreadable(f"a run at {start} is damaged: {error}") from None
    runs.stored_at_ms[run] = found.stored_at_ms
    sizes = found.frame_sizes
    runs.counts[run] = len(sizes) >> 2
    # The frames are the end of the run, and their sizes stand before them.
    frames_at = end - int(np.frombuffer(sizes[: len(sizes) & ~3], "<u4").sum())
    if not start <= frames_at - len(sizes) or not data[start:frames_at].endswith(sizes):
        raise _unreadable(f"the frames of a run at {start} are not as long as their sizes say")
    runs.sizes_at[run] = frames_at - len(sizes)


def _unreadable(what: str) -> Internal:
    return Internal(f"what the broker sends cannot be read: {what}")
