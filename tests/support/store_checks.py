"""Compares a store with the model of it: everything that can be asked of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from mq.errors import MessageNotFound
from mq.hashing import text_hash
from mq.store.keyindex import key_slot_hashes
from mq.store.lookup import QUERY_RESULTS_MAX, StoredMessage
from mq.store.reading import Run, Status
from tests.support.store_model import Model, Queue, Stored
from tests.support.stores import DIRECTORY, UNITS_PER_FILE, messages_in, parsed, queue_files

if TYPE_CHECKING:
    import random

    from mq.store.store import Store
    from tests.support.faulty_vfs import FaultyVfs

QUEUES: list[Queue] = [("orders", 0), ("orders", 1), ("orders", 7), ("%RETRY%g", 0), ("bills", 3)]
TAGS = ["", "paid", "sent", "lost"]
KEYS = ["a", "b", "c", "d", "e", "f"]
FOREVER_MS = 1 << 50


def check_everything(store: Store, model: Model, rng: random.Random) -> None:
    """All that the store shows is what the model says; of what is too much, a sample."""
    assert store.applied_index == model.applied_index
    assert store.log.last_index == model.last_index
    assert len(store.queues) == len(model.queues())
    assert store.read("nobody", 0, 0).status is Status.NO_QUEUE
    assert store.offset_at_time("nobody", 0, 0) is None
    for queue in model.queues():
        _check_queue(store, model, queue)
        _check_limits(store, model, queue, rng)
        _check_tags(store, model, queue, rng)
        _check_times(store, model, queue, rng)
    _check_ids(store, model, rng)
    _check_keys(store, model, rng)


def check_files(vfs: FaultyVfs, store: Store, model: Model, *, may_have_leftovers: bool) -> None:
    """Right after a checkpoint: the files of what is there, no others, and nothing in memory."""
    for queue, messages in model.queues().items():
        start, end = model.start(queue), len(messages)
        wanted = set(range(start - start % UNITS_PER_FILE, end, UNITS_PER_FILE))
        found = set(queue_files(vfs, *queue))
        assert wanted <= found or start == end
        assert found <= wanted or may_have_leftovers
    position = store.derived.index.position()
    names = {*position.full, position.newest} - {""}
    # Of the index no file is left over: a start removes what the checkpoint does not name.
    assert set(vfs.list_dir(f"{DIRECTORY}/index")) == names
    assert store.derived.queues.pending_bytes == store.derived.index.pending_bytes == 0


def check_all_keys(store: Store, model: Model) -> None:
    """The index leads to every message of every key, newest first; without opening them."""
    for topic in {queue[0] for queue in QUEUES}:
        for key in KEYS:
            hashes = key_slot_hashes(np.array([text_hash(key)], np.uint64), text_hash(topic))
            wanted = {one.log_offset for one in model.by_key(topic, key, 0, FOREVER_MS)}
            candidates = store.derived.index.find(int(hashes[0]), 0, FOREVER_MS)
            found = [at for at in dict.fromkeys(candidates) if at in wanted]
            assert found == sorted(wanted, reverse=True)


def _shown(stored: StoredMessage | Stored) -> tuple[object, ...]:
    return tuple(stored[:6])


def _check_queue(store: Store, model: Model, queue: Queue) -> None:
    start, end = model.start(queue), len(model.queues()[queue])
    found = store.queues.get(*queue)
    assert found is not None
    assert (found.start, found.end) == (start, end)
    for at, status, next_offset in [
        (start - 1, Status.TOO_SMALL, start),
        (end, Status.END, end),
        (end + 1, Status.TOO_LARGE, end),
    ]:
        result = store.read(*queue, at)
        assert result == (status, [], next_offset, start, end, 0)
    for at in (0, start, (start + end) // 2, end, end + 5):
        assert found.backlog(at) == len(model.queues()[queue][max(at, start) :])
    units = found.read(start, end)
    wanted = model.there(queue)
    assert units.tolist() == [
        (one.log_offset, len(one.frame), text_hash(one.message.tag)) for one in wanted
    ]
    if wanted:
        result = store.read(*queue, start)
        assert (result.status, result.start, result.end) == (Status.FOUND, start, end)
        assert result.next_offset > start
        _check_runs(model, queue, result.runs, wanted[: result.next_offset - start])
        assert messages_in(result) == [one.message for one in wanted[: result.next_offset - start]]


def _check_runs(model: Model, queue: Queue, runs: list[Run], wanted: list[Stored]) -> None:
    """The runs are these messages, all of them, in order, each with its place and time."""
    there = model.queues()[queue]
    found: list[Stored] = []
    for run in runs:
        members = there[run.queue_offset : run.queue_offset + run.message_count]
        assert bytes(run.frames) == b"".join(one.frame for one in members)
        assert run.log_offset == members[0].log_offset
        assert {one.stored_at_ms for one in members} == {run.stored_at_ms}
        found += members
    assert found == wanted


def _check_limits(store: Store, model: Model, queue: Queue, rng: random.Random) -> None:
    there = model.there(queue)
    if not there:
        return
    place = rng.randrange(len(there))
    bytes_max, messages_max = rng.choice([0, 50, 400, 9999]), rng.choice([1, 2, 9, 99])
    at = there[place].queue_offset
    result = store.read(*queue, at, bytes_max=bytes_max, messages_max=messages_max)
    wanted = there[place : place + 1]
    for one in there[place + 1 : place + messages_max]:
        if sum(len(each.frame) for each in [*wanted, one]) > bytes_max:
            break
        wanted.append(one)
    _check_runs(model, queue, result.runs, wanted)
    assert result.next_offset == wanted[-1].queue_offset + 1


def _check_tags(store: Store, model: Model, queue: Queue, rng: random.Random) -> None:
    there = model.there(queue)
    if not there:
        return
    tags = rng.sample(TAGS[1:], rng.choice([1, 2]))
    hashes = [text_hash(tag) for tag in tags]
    wanted = [one for one in there if one.message.tag in tags]
    result = store.read(*queue, there[0].queue_offset, tag_hashes=hashes)
    assert result.status is (Status.FOUND if wanted else Status.NOTHING_MATCHED)
    assert result.next_offset == result.end
    _check_runs(model, queue, result.runs, wanted)
    assert parsed(run.frames for run in result.runs) == [one.message for one in wanted]
    few = store.read(*queue, result.start, tag_hashes=hashes, messages_max=2)
    _check_runs(model, queue, few.runs, wanted[:2])
    assert few.next_offset == (wanted[2].queue_offset if len(wanted) > 2 else result.end)


def _check_times(store: Store, model: Model, queue: Queue, rng: random.Random) -> None:
    there = model.there(queue)
    times = [0, model.last_stored_at_ms + 1, *(one.stored_at_ms for one in there)]
    time = rng.choice(times) + rng.choice([-1, 0, 1])
    later = [one.queue_offset for one in there if one.stored_at_ms >= time]
    end = len(model.queues()[queue])
    assert store.offset_at_time(*queue, time) == (later[0] if later else end)


def _check_ids(store: Store, model: Model, rng: random.Random) -> None:
    there = [one for queue in model.queues() for one in model.there(queue)]
    for one in rng.sample(there, min(2, len(there))):
        assert _shown(store.lookup.by_id(one.log_offset)) == _shown(one)
    hidden = [
        log_offset
        for entry in model.entries
        if not model.first_index <= entry.raft_index <= model.applied_index
        for _, log_offset, *_ in entry.frames
    ]
    inside = [one.log_offset + 1 for one in there]
    for log_offset in rng.sample(hidden, min(1, len(hidden))) + rng.sample(
        inside, min(1, len(inside))
    ):
        with pytest.raises(MessageNotFound):
            store.lookup.by_id(log_offset)


def _check_keys(store: Store, model: Model, rng: random.Random) -> None:
    topic, key = rng.choice(QUEUES)[0], rng.choice([*KEYS, "nobody's"])
    times = [0, *(entry.stored_at_ms + 1 for entry in model.entries), FOREVER_MS]
    begin, end = sorted(rng.choices([0, FOREVER_MS, *times], k=2))
    limit = rng.choice([1, 3, 10, 99])
    begin_ms, end_ms = rng.choice([(0, FOREVER_MS), (begin, end)])
    found = store.lookup.by_key(topic, key, begin_ms, end_ms, limit)
    wanted = model.by_key(topic, key, begin_ms, end_ms)[: min(limit, QUERY_RESULTS_MAX)]
    assert list(map(_shown, found)) == list(map(_shown, wanted))
