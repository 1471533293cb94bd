"""Single messages by id and by key, on a store that rolls, restarts and drops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq.errors import MalformedBatch, MessageNotFound, Rebuilding
from mq.store.batch import parse_stored
from mq.store.lookup import QUERY_RESULTS_MAX
from mq.wire.v1.message_pb2 import Message
from tests.support import naive_wire
from tests.support.stores import (
    DIRECTORY,
    append,
    apply_through,
    batch,
    fill,
    messages_of,
    new_store,
    put,
    reopen,
    small_config,
)

if TYPE_CHECKING:
    from mq.store.lookup import StoredMessage
    from mq.store.store import Store

ONE_SEGMENT = small_config(segment_bytes=1 << 20)
FOREVER_MS = 1 << 50


def by_key(store: Store, key: str, topic: str = "orders", limit: int = 64) -> list[StoredMessage]:
    return store.lookup.by_key(topic, key, 0, FOREVER_MS, limit)


def ids_of(store: Store, topic: str = "orders", queue_id: int = 0) -> list[int]:
    queue = store.queues.get(topic, queue_id)
    assert queue is not None
    log_offsets: list[int] = queue.read(queue.start, queue.end)["log_offset"].tolist()
    return log_offsets


# -- by id -----------------------------------------------------------------------------------------


def test_an_id_gives_the_message_with_all_that_is_known_of_it() -> None:
    _, store = new_store()
    sent = messages_of(9, tag="t", keys=["k"])
    put(store, batch(messages_of(4)), batch(sent, "bills", 7), now_ms=77)
    for place, log_offset in enumerate(ids_of(store, "bills", 7)):
        found = store.lookup.by_id(log_offset)
        assert found == ("bills", 7, place, log_offset, 77, sent[place])


def test_every_byte_that_starts_no_message_is_not_found() -> None:
    _, store = new_store()
    put(store, batch(messages_of(3)), batch(messages_of(2), "bills"))
    ids = {*ids_of(store), *ids_of(store, "bills")}
    for log_offset in range(-1, store.log.end_offset + 2):
        if log_offset in ids:
            assert store.lookup.by_id(log_offset).log_offset == log_offset
        else:
            with pytest.raises(MessageNotFound):
                store.lookup.by_id(log_offset)


def test_unapplied_messages_are_not_found() -> None:
    _, store = new_store(ONE_SEGMENT)
    put(store, batch(messages_of(1, keys=["k"])))
    ref = append(store, batch(messages_of(1, keys=["k"])))
    hidden = range(ref.payload_log_offset, store.log.end_offset)
    for log_offset in hidden:
        with pytest.raises(MessageNotFound):
            store.lookup.by_id(log_offset)
    assert len(by_key(store, "k")) == 1
    apply_through(store, ref.raft_index)
    assert len(by_key(store, "k")) == 2
    assert ids_of(store)[1] in hidden


def test_a_message_keeps_its_id_and_place_over_a_rebuild() -> None:
    vfs, store = new_store()
    fill(store, 4)
    store.drop_front(2)
    before = [store.lookup.by_id(log_offset) for log_offset in ids_of(store)]
    assert before
    vfs.remove(f"{DIRECTORY}/checkpoint")
    store = reopen(vfs)
    assert [store.lookup.by_id(one.log_offset) for one in before] == before


def test_dropped_messages_are_not_found() -> None:
    _, store = new_store()
    fill(store, 4)
    oldest, *_, newest = ids_of(store)
    store.drop_front(1)
    with pytest.raises(MessageNotFound):
        store.lookup.by_id(oldest)
    assert store.lookup.by_id(newest).log_offset == newest


# -- by key ----------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    entries=st.lists(
        st.tuples(
            st.lists(st.lists(st.sampled_from("abc"), max_size=3), min_size=1, max_size=8),
            st.sampled_from([0, 1, 900, 1000, 7000]),
        ),
        min_size=1,
        max_size=12,
    ),
    begin=st.integers(0, 30),
    width=st.integers(0, 40),
    limit=st.integers(1, 70),
    is_restarted=st.booleans(),
)
def test_a_key_gives_its_messages_newest_first(
    entries: list[tuple[list[list[str]], int]],
    begin: int,
    width: int,
    limit: int,
    is_restarted: bool,
) -> None:
    vfs, store = new_store()
    now_ms, sent = 10_000, []
    for number, (keys, step_ms) in enumerate(entries):
        now_ms += step_ms
        news = [Message(body=b"%d" % number, keys=each) for each in keys]
        topic = ["orders", "bills"][number % 2]
        put(store, batch(news, topic), now_ms=now_ms)
        sent += [(topic, now_ms, message) for message in news]
    if is_restarted:
        store.close()
        store = reopen(vfs)
    begin_ms = 10_000 + 500 * begin
    end_ms = begin_ms + 500 * width
    for topic in ("orders", "bills"):
        for key in "abcd":
            wanted = [
                message
                for its_topic, time, message in reversed(sent)
                if its_topic == topic and key in message.keys and begin_ms <= time < end_ms
            ]
            found = store.lookup.by_key(topic, key, begin_ms, end_ms, limit)
            assert [one.message for one in found] == wanted[: min(limit, QUERY_RESULTS_MAX)]


def test_a_message_that_has_a_key_twice_is_found_once() -> None:
    _, store = new_store()
    put(store, batch([Message(body=b"1", keys=["k", "x", "k"]), Message(keys=["k", "k"])]))
    assert [one.queue_offset for one in by_key(store, "k")] == [1, 0]


def test_a_query_gives_sixty_four_at_most() -> None:
    _, store = new_store()
    for _ in range(10):
        put(store, batch(messages_of(10, keys=["k"])))
    assert len(by_key(store, "k", limit=1000)) == QUERY_RESULTS_MAX
    assert [one.queue_offset for one in by_key(store, "k", limit=3)] == [99, 98, 97]


def test_a_hash_that_only_looks_right_is_not_an_answer() -> None:
    """Two keys may have one hash, and an older version took the hashes that a producer sent: the
    message decides.
    """
    _, store = new_store()
    lying = naive_wire.prepared(
        [Message(body=b"x", keys=["other"]).SerializeToString()],
        topic="orders",
        queue_id=0,
        key_hashes=naive_wire.fixed([naive_wire.text_hash("k")], 8),
        key_counts=naive_wire.fixed([1], 4),
    )
    put(store, parse_stored(lying), batch(messages_of(1, keys=["k"])))
    assert [one.queue_offset for one in by_key(store, "k")] == [1]


def test_a_message_that_cannot_be_read_hides_no_others() -> None:
    """As an older version stored it."""
    _, store = new_store()
    broken = naive_wire.prepared(
        [b"\xff\xff no Message"],
        topic="orders",
        queue_id=0,
        key_hashes=naive_wire.fixed([naive_wire.text_hash("k")], 8),
        key_counts=naive_wire.fixed([1], 4),
    )
    good = batch(messages_of(1, keys=["k"]))
    put(store, good, parse_stored(broken), good)
    assert [one.queue_offset for one in by_key(store, "k")] == [2, 0]
    with pytest.raises(MalformedBatch, match="as its producer sent it"):
        store.lookup.by_id(ids_of(store)[1])


def test_keys_of_dropped_messages_are_gone_and_others_stay() -> None:
    vfs, store = new_store()
    fill(store, 5)
    store.checkpoint()
    store.drop_front(3)
    queue = store.queues.get("orders", 0)
    assert queue is not None
    for _ in range(2):
        for number in range(0, 35, 5):
            key = f"k{number % 7}"
            offsets = [one.queue_offset for one in by_key(store, key)]
            assert offsets == sorted(offsets, reverse=True)
            assert all(offset >= queue.start for offset in offsets)
        found = {one.queue_offset for n in range(7) for one in by_key(store, f"k{n}")}
        assert found == set(range(queue.start, queue.end))
        store = reopen(vfs)


def test_a_damaged_index_gives_all_answers_as_soon_as_it_is_rebuilt() -> None:
    vfs, store = new_store(ONE_SEGMENT)
    put(store, batch([Message(body=b"%d" % n, keys=["k"]) for n in range(40)]))
    store.checkpoint()
    path = f"{DIRECTORY}/index/{vfs.list_dir(f'{DIRECTORY}/index')[0]}"
    items_at, log_offset_at = 44 + 4 * 8 + 4, 4
    for number in (3, 10, 20):
        vfs.flip_bit(path, items_at + 20 * number + log_offset_at + 7, 6)  # far behind the log
        vfs.flip_bit(path, items_at + 20 * (number + 1) + log_offset_at, 0)  # beside the message
    with pytest.raises(Rebuilding):
        by_key(store, "k")
    assert [one.queue_offset for one in by_key(store, "k")] == list(range(39, -1, -1))
