"""Batches that are held back, read again: each as it was written, with few reads."""

from __future__ import annotations

import pytest

from mq.names import SCHEDULE_TOPIC
from mq.store.batch import Batch
from mq.store.holding import HeldBatch, lane_of, read_held
from mq.store.rebatch import carried
from tests.support.consensus import batch
from tests.support.faulty_vfs import FaultyVfs
from tests.support.stores import open_store, put

DUE_MS = 5_000_000


def held(body: bytes) -> Batch:
    return batch("t", body, deliver_at_ms=DUE_MS)


def test_neighbours_share_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(FaultyVfs())
    sizes = [10, 2_000, 50, 3_000, 10, 10, 500]
    for at, size in enumerate(sizes):
        put(store, held(b"%d" % at + b"." * size), batch("t", b"between" * (900 if at == 3 else 1)))
    queue = store.queues.get(SCHEDULE_TOPIC, lane_of(DUE_MS))
    assert queue is not None
    places = [(int(at), int(size)) for at, size, _ in queue.read(0, len(sizes)).tolist()]
    reads = []
    read_ranges = store.log.read_ranges

    def counted(ranges: object) -> list[bytes | memoryview]:
        reads.extend(found := list(ranges))  # type: ignore[call-overload]
        return read_ranges(found)

    monkeypatch.setattr(store.log, "read_ranges", counted)
    for wanted in (places, places[::2], places[::-1], [places[2]], [], [places[1]] * 2):
        found = read_held(store.log, wanted)
        assert [one.log_offset for one in found] == [at for at, _ in wanted]
        for one, (at, size) in zip(found, wanted, strict=True):
            assert bytes(one.batch.data) == store.log.read(at, size)
    reads.clear()
    read_held(store.log, places)
    assert len(reads) < len(places)


def test_a_batch_that_was_carried_remembers_where_it_stood() -> None:
    first = HeldBatch(held(b"x"), 1_000)
    assert first.first_message_at == 1_000 + first.batch.region_start
    again = HeldBatch(carried(first.batch, first.first_message_at), 9_000)
    assert again.first_message_at == first.first_message_at
    once_more = HeldBatch(carried(again.batch, again.first_message_at), 20_000)
    assert once_more.first_message_at == first.first_message_at
