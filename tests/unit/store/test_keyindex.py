"""The key index against a plain list, through full files, restarts and damage."""

from __future__ import annotations

import contextlib
import itertools
import random
import zlib
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.errors import MqError, QueueDamaged, Rebuilding
from mq.hashing import text_hash
from mq.store.filepool import FilePool
from mq.store.keyindex import (
    HEADER_BYTES,
    ITEM,
    ITEM_BYTES,
    DamagedIndexFile,
    Header,
    IndexPosition,
    KeyIndex,
    item_blocks,
    key_slot_hashes,
)
from tests.support.faulty_vfs import FaultyVfs

DIRECTORY = "/data/index"
SLOTS, ITEMS = 8, 32
ITEMS_AT = item_blocks(SLOTS).at
FOREVER_MS = 1 << 50


class Added(NamedTuple):
    hash: int
    log_offset: int
    stored_at_ms: int


def disk() -> FaultyVfs:
    vfs = FaultyVfs()
    vfs.make_dirs("/data")
    vfs.sync_tree("/")
    return vfs


def open_index(vfs: FaultyVfs, slots: int = SLOTS, items: int = ITEMS) -> KeyIndex:
    return KeyIndex(vfs, DIRECTORY, slot_count=slots, item_count_max=items)


def add(index: KeyIndex, news: list[Added]) -> None:
    """As batches do it: all keys of one time at once."""
    for time, group in itertools.groupby(news, key=lambda one: one.stored_at_ms):
        members = list(group)
        hashes = np.array([one.hash for one in members], np.uint32)
        index.add(hashes, np.array([one.log_offset for one in members]), time)


def write(vfs: FaultyVfs, index: KeyIndex) -> IndexPosition:
    """As a checkpoint does it."""
    pool, position = FilePool(vfs, 8), index.position()
    for pending in index.pending_writes():
        pool.write(pending)
    pool.close()
    index.set_written(position)
    return position


def some(count: int, *, start: int = 0, hashes: int = 5, step_ms: int = 300) -> list[Added]:
    return [
        Added(at * 7 % hashes, 1000 + at * 50, 9_000 + at // 3 * step_ms)
        for at in range(start, start + count)
    ]


def found(index: KeyIndex, key_hash: int) -> list[int]:
    return list(index.find(key_hash, 0, FOREVER_MS))


def wanted(added: list[Added], key_hash: int) -> list[int]:
    return [one.log_offset for one in reversed(added) if one.hash == key_hash]


def check(index: KeyIndex, added: list[Added], hashes: int = 5) -> None:
    for key_hash in range(hashes + 1):
        assert found(index, key_hash) == wanted(added, key_hash)


def names(vfs: FaultyVfs) -> list[int]:
    return [int(name) for name in vfs.list_dir(DIRECTORY)]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 50)),
        st.tuples(st.just("write"), st.just(0)),
        st.tuples(st.just("split"), st.integers(1, 40)),
        st.tuples(st.just("reopen"), st.just(0)),
        st.tuples(st.just("kill"), st.just(0)),
    ),
    max_size=20,
)


@given(
    steps=STEPS,
    slots=st.sampled_from([1, 3, 8, 100]),
    hashes=st.sampled_from([1, 5, 40]),
    seed=st.integers(0, 99),
)
def test_an_index_is_a_list(
    steps: list[tuple[str, int]], slots: int, hashes: int, seed: int
) -> None:
    rng, vfs = random.Random(seed), disk()
    index, position = open_index(vfs, slots), IndexPosition()
    added: list[Added] = []
    safe = 0  # so many are in files that the position speaks of

    def more(count: int) -> None:
        last = added[-1] if added else Added(0, 500, 9_000)
        news = []
        for _ in range(count):
            time = last.stored_at_ms + rng.choice([0, 0, 1, 999, 5000])
            last = Added(rng.randrange(hashes), last.log_offset + rng.randint(0, 60), time)
            news.append(last)
        add(index, news)
        added.extend(news)

    for step, amount in steps:
        if step == "add":
            more(amount)
        elif step == "write":
            position, safe = write(vfs, index), len(added)
        elif step == "split":
            pool, position, safe = FilePool(vfs, 8), index.position(), len(added)
            writes = index.pending_writes()
            more(amount)
            for pending in writes:
                pool.write(pending)
            index.set_written(position)
        else:
            if step == "reopen":
                position, safe = write(vfs, index), len(added)
            index = open_index(vfs, slots)
            assert index.restore(position)
            assert index.position() == position
            del added[safe:]
        check(index, added, hashes)
        in_files = sum(one.written for one in index._filling) + sum(
            header.items for header in index._full.values()
        )
        assert index.pending_bytes == (len(added) - in_files) * ITEM_BYTES


def test_all_keys_of_the_message_that_names_a_file_stand_in_it() -> None:
    """However many they are: the rest would need a second file of the same name."""
    vfs = disk()
    index = open_index(vfs)
    many = [Added(at % 5, 1000, 9_000) for at in range(3 * ITEMS + 1)]
    added = [*many, *some(10, start=1)]
    add(index, added)
    position = write(vfs, index)
    assert names(vfs) == [1000, 1050]
    again = open_index(vfs)
    assert again.restore(position)
    for restored in (index, again):
        check(restored, added)


@pytest.mark.parametrize("slots", [1, 8])
@pytest.mark.parametrize("count", [1, ITEMS - 1, ITEMS, ITEMS + 1, 2 * ITEMS, 3 * ITEMS])
def test_files_that_are_filled_exactly_are_full(count: int, slots: int) -> None:
    vfs, added = disk(), some(count)
    index = open_index(vfs, slots)
    add(index, added)
    position = write(vfs, index)
    assert names(vfs) == [one.log_offset for one in added[::ITEMS]]
    assert len(position.full) == count // ITEMS
    assert position.items == count % ITEMS
    again = open_index(vfs, slots)
    assert again.restore(position)
    check(again, added)


def test_a_full_file_has_header_and_slots_on_disk() -> None:
    vfs, added = disk(), some(ITEMS)
    index = open_index(vfs)
    add(index, added)
    write(vfs, index)
    data = vfs.read_all(f"{DIRECTORY}/{1000:020d}")
    last = added[-1]
    assert Header.decode(data[:HEADER_BYTES]) == Header(
        9_000, last.stored_at_ms, 1000, last.log_offset, SLOTS, ITEMS
    )
    slots = np.frombuffer(data, "<u4", SLOTS, HEADER_BYTES).tolist()
    assert zlib.crc32(data[:40]).to_bytes(4, "little") == data[40:HEADER_BYTES]
    assert (
        zlib.crc32(data[HEADER_BYTES : ITEMS_AT - 4]).to_bytes(4, "little")
        == (data[ITEMS_AT - 4 : ITEMS_AT])
    )
    assert zlib.crc32(data[ITEMS_AT:-4]).to_bytes(4, "little") == data[-4:]
    items = np.frombuffer(data, ITEM, ITEMS, ITEMS_AT).tolist()
    for key_hash in range(5):
        number, chain = slots[key_hash % SLOTS], []
        while number:
            key, log_offset, _, before = items[number - 1]
            chain.append((key, log_offset))
            number = before
        assert [at for key, at in chain if key == key_hash] == wanted(added, key_hash)


def test_a_time_range_gives_all_that_may_be_in_it_and_little_more() -> None:
    """Seconds in the index, milliseconds asked for: too many candidates, never too few."""
    vfs = disk()
    index = open_index(vfs)
    added = some(3 * ITEMS + 5, hashes=1, step_ms=700)
    add(index, added[:70])
    write(vfs, index)
    add(index, added[70:])
    times = [one.stored_at_ms for one in added]
    for begin_ms, end_ms in itertools.product(
        range(times[0] - 50, times[-1] + 2000, 997), repeat=2
    ):
        got = set(index.find(0, begin_ms, end_ms))
        must = {one.log_offset for one in added if begin_ms <= one.stored_at_ms < end_ms}
        may = {
            one.log_offset
            for one in added
            if begin_ms - 1000 < one.stored_at_ms < end_ms + 1000 and begin_ms - 1000 < end_ms
        }
        assert must <= got <= may


def test_the_same_key_of_two_topics_has_two_hashes() -> None:
    keys = np.array([text_hash("a"), text_hash("b")], np.uint64)
    one, other = (key_slot_hashes(keys, text_hash(topic)) for topic in ("orders", "bills"))
    assert len({*one.tolist(), *other.tolist()}) == 4
    mixed = text_hash("a") ^ text_hash("orders")
    assert int(one[0]) == (mixed ^ (mixed >> 32)) & 0xFFFF_FFFF


# -- restarts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0.0, 0.4, 1.0])
def test_a_power_loss_while_a_file_is_finished_leaves_the_checkpoint_usable(keep: float) -> None:
    """Header, slots and items behind the checkpoint may be there or not, in any mixture."""
    added = some(2 * ITEMS)
    for seed in range(20):
        vfs = disk()
        index = open_index(vfs)
        add(index, added[:20])
        position = write(vfs, index)
        vfs.sync_tree("/data")
        add(index, added[20:])
        write(vfs, index)
        vfs.crash(seed, keep)
        again = open_index(vfs)
        assert again.restore(position)
        check(again, added[:20])
        add(again, added[20:])
        check(again, added)
        last = write(vfs, again)
        final = open_index(vfs)
        assert final.restore(last)
        check(final, added)


def test_files_that_were_begun_after_the_checkpoint_are_removed() -> None:
    vfs, added = disk(), some(3 * ITEMS)
    index = open_index(vfs)
    add(index, added[:40])
    position = write(vfs, index)
    add(index, added[40:])
    write(vfs, index)
    again = open_index(vfs)
    assert again.restore(position)
    assert names(vfs) == [added[0].log_offset, added[ITEMS].log_offset]


@pytest.mark.parametrize(
    ("file", "size"),
    [
        (0, -1),
        (0, 10),
        (0, HEADER_BYTES),
        (0, ITEMS_AT + ITEMS * ITEM_BYTES - 1),
        (1, -1),
        (1, ITEMS_AT),
        (1, ITEMS_AT + 8 * ITEM_BYTES - 1),
    ],
)
def test_a_file_that_is_missing_or_short_is_not_restored(file: int, size: int) -> None:
    vfs = disk()
    index = open_index(vfs)
    add(index, some(ITEMS + 8))
    position = write(vfs, index)
    path = f"{DIRECTORY}/{vfs.list_dir(DIRECTORY)[file]}"
    if size < 0:
        vfs.remove(path)
    else:
        vfs.truncate_file(path, size)
    assert not open_index(vfs).restore(position)


@pytest.mark.parametrize("slots", [1, 3, 7, 9, 13, 23, 100])
def test_with_another_number_of_slots_it_is_built_anew_or_right(slots: int) -> None:
    """A change of `index_slots` gives no wrong answers: full files say what they have, and the one
    that is being filled is made again.
    """
    for count in (1, 2, 20, ITEMS, ITEMS + 1, 2 * ITEMS - 1):
        vfs, added = disk(), some(count)
        index = open_index(vfs)
        add(index, added)
        position = write(vfs, index)
        again = open_index(vfs, slots)
        if again.restore(position):
            check(again, added)
        else:
            assert count % ITEMS


@pytest.mark.parametrize("items", [5, 31, 33, 100])
def test_with_another_number_of_items_what_is_there_stays(items: int) -> None:
    vfs, added = disk(), some(3 * ITEMS)
    index = open_index(vfs)
    add(index, added[:50])
    position = write(vfs, index)
    again = open_index(vfs, items=items)
    assert again.restore(position)
    add(again, added[50:])
    check(again, added)
    position = write(vfs, again)
    final = open_index(vfs, items=items)
    assert final.restore(position)
    check(final, added)


# -- retention and damage --------------------------------------------------------------------------


def test_only_full_files_whose_messages_are_all_gone_are_dropped() -> None:
    vfs, added = disk(), some(3 * ITEMS)
    index = open_index(vfs)
    add(index, added[: 2 * ITEMS + 5])
    write(vfs, index)
    last = added[ITEMS - 1].log_offset
    assert index.drop_before(last) == []
    assert index.drop_before(last + 1) == [f"{DIRECTORY}/{1000:020d}"]
    assert index.drop_before(1 << 60) == [f"{DIRECTORY}/{added[ITEMS].log_offset:020d}"]
    check(index, added[2 * ITEMS : 2 * ITEMS + 5])
    assert len(index.position().full) == 0


@given(
    flips=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 10_000), st.integers(0, 7))),
    is_restarted=st.booleans(),
)
def test_damaged_files_give_right_answers_or_an_error(
    flips: list[tuple[int, int, int]], is_restarted: bool
) -> None:
    vfs, added = disk(), some(2 * ITEMS + 9)
    index = open_index(vfs)
    add(index, added)
    position = write(vfs, index)
    for file, place, bit in flips:
        path = f"{DIRECTORY}/{vfs.list_dir(DIRECTORY)[file]}"
        vfs.flip_bit(path, place % (vfs.file_size(path) or 1), bit)
    if is_restarted:
        index = open_index(vfs)
        if not index.restore(position):
            return
    for key_hash in range(6):
        with contextlib.suppress(QueueDamaged):
            assert found(index, key_hash) == wanted(added, key_hash)
    index.drop_before(1 << 60)


@pytest.mark.parametrize("file", [0, 2])
def test_a_report_of_damage_says_what_the_file_should_hold(file: int) -> None:
    vfs, added = disk(), some(2 * ITEMS + 9)
    index = open_index(vfs)
    add(index, added[:-3])
    write(vfs, index)
    add(index, added[-3:])
    name = vfs.list_dir(DIRECTORY)[file]
    told: list[DamagedIndexFile] = []

    def damaged(one: DamagedIndexFile) -> MqError:
        told.append(one)
        return Rebuilding("in a moment")

    index.on_damage = damaged
    vfs.flip_bit(f"{DIRECTORY}/{name}", ITEMS_AT + 3)
    with pytest.raises(Rebuilding):
        check(index, added)
    [one] = told
    place = one.path, one.blocks.position(one.bad.first), one.is_full
    assert place == (f"{DIRECTORY}/{name}", ITEMS_AT, file == 0)
    assert one.header.first_log_offset == int(name)
    assert (one.header.items, one.written) == ((ITEMS, ITEMS) if file == 0 else (9, 6))


def test_clearing_forgets_keys_and_deletes_files() -> None:
    vfs, added = disk(), some(50)
    index = open_index(vfs)
    add(index, added)
    write(vfs, index)
    index.clear()
    assert not vfs.exists(DIRECTORY)
    assert index.position() == IndexPosition()
    check(index, [])
    add(index, added)
    write(vfs, index)
    check(index, added)
