"""Copies of a message in the entries that write it again.

A delayed message is delivered by an entry that has its bytes once more, beside those of others. The
entry says which stored batches its messages come from (`sources`); older entries do not, and the
message is found by its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mq.broker.queue import Queue
from mq.broker.tracing.entries import TracedEntry
from mq.broker.tracing.events import Copy
from mq.store.batch import Batch


def frame_at(batch: Batch, message_at: int) -> bytes:
    start = int(batch.frame_starts[message_at])
    return bytes(batch.data[start : start + int(batch.frame_sizes[message_at])])


def copy_at(entry: TracedEntry, batch_at: int, message_at: int) -> Copy | None:
    if batch_at >= len(entry.batches):
        return None
    batch, at = entry.batches[batch_at]
    if message_at >= batch.message_count:
        return None
    return Copy(Queue(batch.topic, batch.queue_id), at + int(batch.frame_starts[message_at]))


def source_runs(
    batches: Iterable[Batch], sources: Sequence[int]
) -> Iterator[tuple[int, int, int, int]]:
    """Of each stored batch that was delivered: where its first message stood at first, the number
    of the batch it is in now, and its messages [start, end) there.
    """
    left, first_at = iter(sources), 0
    for batch_at, batch in enumerate(batches):
        start = 0
        while start < batch.message_count:
            step, count = next(left, 0), next(left, 0)
            if count <= 0:
                return
            first_at += step
            yield first_at, batch_at, start, start + count
            start += count


def delivered_copy(
    entry: TracedEntry, sources: Sequence[int], topic: str, first_message_at: int, frame: bytes
) -> Copy | None:
    """Where the message is in the entry that delivers it; without `sources`, by its bytes.
    `first_message_at` is where the first message of its batch stood at first.
    """
    batches = [batch for batch, _ in entry.batches]
    if sources:
        for first_at, batch_at, start, end in source_runs(batches, sources):
            if first_at == first_message_at:
                return _same_frame(entry, batch_at, range(start, end), frame)
        return None
    for batch_at, batch in enumerate(batches):
        if batch.topic == topic and not batch.is_held:
            found = _same_frame(entry, batch_at, range(batch.message_count), frame)
            if found is not None:
                return found
    return None


def _same_frame(
    entry: TracedEntry, batch_at: int, numbers: Iterable[int], frame: bytes
) -> Copy | None:
    batch = entry.batches[batch_at][0]
    for number in numbers:
        is_as_long = number < batch.message_count and batch.frame_sizes[number] == len(frame)
        if is_as_long and frame_at(batch, number) == frame:
            return copy_at(entry, batch_at, number)
    return None
