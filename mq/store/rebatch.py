"""New batches out of stored ones: other headers, joined or cut, with the frames as they stand.

What the broker writes again, a message whose time has come or whose transaction was committed, it
copies and does not open. Work is done for each batch, never for each message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mq.store.batch import Batch, Header, encode_batch, parse_stored, with_header


def placed(batch: Batch, topic: str, queue_id: int) -> Batch:
    """For this queue, at once: without producer, delay, transaction."""
    return with_header(batch, topic, queue_id)


def delayed(batch: Batch, deliver_at_ms: int) -> Batch:
    """The same, to be delivered then; 0: at once."""
    return _rebuilt(
        [batch],
        batch.topic,
        batch.queue_id,
        producer_id=batch.producer_id,
        sequence=batch.sequence,
        deliver_at_ms=deliver_at_ms,
    )


def halved(batch: Batch, half: bytes) -> Batch:
    """The same, as a half batch of this kind."""
    return _rebuilt(
        [batch],
        batch.topic,
        batch.queue_id,
        producer_id=batch.producer_id,
        sequence=batch.sequence,
        half=half,
    )


def carried(batch: Batch, first_message_at: int) -> Batch:
    """A held batch that is written again: its sender is known by now, its old place is not."""
    return _rebuilt(
        [batch],
        batch.topic,
        batch.queue_id,
        deliver_at_ms=batch.deliver_at_ms,
        half=batch.half,
        origin_log_offset=first_message_at,
    )


def joined(batches: Sequence[Batch], topic: str, queue_id: int) -> Batch:
    """One batch with the messages of all, in their order, for this queue."""
    return _rebuilt(batches, topic, queue_id)


def without(batch: Batch, places: Iterable[int]) -> Batch | None:
    """The batch without some of its messages, by their number in it; None: none is left."""
    is_kept = np.ones(batch.message_count, bool)
    is_kept[list(places)] = False
    if not is_kept.any():
        return None
    ends = batch.frame_starts + batch.frame_sizes
    view = memoryview(batch.data)
    frames = [
        view[start:end]
        for start, end in zip(
            batch.frame_starts[is_kept].tolist(), ends[is_kept].tolist(), strict=True
        )
    ]
    has_keys = len(batch.key_counts) > 0
    is_key_kept = np.repeat(is_kept, batch.key_counts) if has_keys else np.ones(0, bool)
    data = encode_batch(
        topic=batch.topic,
        queue_id=batch.queue_id,
        producer_id=batch.producer_id,
        sequence=batch.sequence,
        frame_sizes=batch.frame_sizes[is_kept],
        tag_hashes=batch.tag_hashes[is_kept],
        key_hashes=batch.key_hashes[is_key_kept],
        key_counts=batch.key_counts[is_kept] if has_keys else batch.key_counts,
        deliver_at_ms=batch.deliver_at_ms,
        half=batch.half,
        origin_log_offset=batch.origin_log_offset,
        frames=frames,
    )
    return parse_stored(data)


def _rebuilt(batches: Sequence[Batch], topic: str, queue_id: int, **header: Any) -> Batch:
    if len(batches) == 1:
        return with_header(batches[0], topic, queue_id, Header(**header))
    data = encode_batch(
        topic=topic,
        queue_id=queue_id,
        frame_sizes=_column([one.frame_sizes for one in batches]),
        tag_hashes=_column([one.tag_hashes for one in batches]),
        key_hashes=_column([one.key_hashes for one in batches]),
        key_counts=_key_counts(batches),
        frames=[memoryview(one.data)[one.region_start :] for one in batches],
        **header,
    )
    return parse_stored(data)


def _column(parts: Sequence[npt.NDArray[np.generic]]) -> npt.NDArray[np.generic]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _key_counts(batches: Sequence[Batch]) -> npt.NDArray[np.generic]:
    """A batch without keys has no counts: zeros beside other batches."""
    if not any(len(one.key_counts) for one in batches):
        return batches[0].key_counts
    return _column(
        [
            one.key_counts if len(one.key_counts) else np.zeros(one.message_count, "<u4")
            for one in batches
        ]
    )
