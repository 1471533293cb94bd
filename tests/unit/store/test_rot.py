"""Rot in the log is found when it is read, and never leaves the store."""

from __future__ import annotations

import errno

import pytest

from mq.errors import MessagesDamaged
from mq.hashing import text_hash
from mq.store.damage import DamageKind
from mq.store.reading import Status
from tests.support.stores import (
    batch,
    fill,
    messages_in,
    messages_of,
    new_store,
    put,
    read_all,
    reopen,
    small_config,
)

ONE_SEGMENT = small_config(segment_bytes=1 << 20)


class Rotten:
    """Five entries of ten messages each; the third one has a flipped bit in the body of its middle
    message, since the store was opened.
    """

    def __init__(self, *, is_fresh: bool = False) -> None:
        self.vfs, store = new_store(ONE_SEGMENT)
        store.log.verified._hot_bytes = 1
        self.sent = messages_of(50, size=60)
        for at, message in enumerate(self.sent):
            message.tag = "even" if at % 2 == 0 else "odd"
        self.refs = [put(store, batch(self.sent[at : at + 10])) for at in range(0, 50, 10)]
        self.store = store if is_fresh else reopen(self.vfs, ONE_SEGMENT)
        self.ref = self.refs[2]
        (self.path,) = (info.path for info in self.store.log.segments())
        self.position = self.ref.payload_log_offset + self.ref.length // 2
        self.vfs.flip_bit(self.path, self.position)


def test_messages_before_the_damage_are_served_and_damaged_ones_are_not() -> None:
    rotten = Rotten()
    store = rotten.store
    result = store.read("orders", 0, 0)
    assert messages_in(result) == rotten.sent[:20]
    assert (result.status, result.next_offset) == (Status.FOUND, 20)
    with pytest.raises(MessagesDamaged) as raised:
        store.read("orders", 0, result.next_offset)
    found = rotten.ref.log_offset, rotten.ref.end_log_offset
    assert (raised.value.start, raised.value.end) == found
    assert raised.value.retryable
    assert messages_in(store.read("orders", 0, 30)) == rotten.sent[30:]


@pytest.mark.parametrize("at", range(20, 30))
def test_not_even_the_messages_of_the_entry_that_look_well(at: int) -> None:
    with pytest.raises(MessagesDamaged):
        Rotten().store.read("orders", 0, at, messages_max=1)


def test_damage_is_reported_once() -> None:
    rotten = Rotten()
    for _ in range(3):
        with pytest.raises(MessagesDamaged):
            rotten.store.read("orders", 0, 25)
    (found,) = rotten.store.damage.records()
    assert (found.kind, found.path) == (DamageKind.LOG, rotten.path)
    assert (found.start, found.end) == (rotten.ref.log_offset, rotten.ref.end_log_offset)
    assert rotten.store.damage.found_total[DamageKind.LOG] == 1


def test_filters_stop_before_it_too() -> None:
    rotten = Rotten()
    result = rotten.store.read("orders", 0, 1, tag_hashes=[text_hash("even")])
    assert messages_in(result) == rotten.sent[2:20:2]
    with pytest.raises(MessagesDamaged):
        rotten.store.read("orders", 0, result.next_offset, tag_hashes=[text_hash("even")])


def lose(rotten: Rotten) -> None:
    with pytest.raises(MessagesDamaged):
        rotten.store.read("orders", 0, 25)
    rotten.store.damage.lose(rotten.path, rotten.ref.log_offset, "orders/0: 20 to 29")


def test_lost_messages_are_skipped_and_counted() -> None:
    rotten = Rotten()
    lose(rotten)
    result = rotten.store.read("orders", 0, 25)
    assert (result.status, result.next_offset, result.lost) == (Status.NOTHING_MATCHED, 30, 5)
    assert read_all(rotten.store) == rotten.sent[:20] + rotten.sent[30:]
    (found,) = rotten.store.damage.records()
    assert (found.is_open, found.is_lost, found.affected) == (True, True, "orders/0: 20 to 29")


def test_lost_messages_are_skipped_by_filters() -> None:
    rotten = Rotten()
    lose(rotten)
    even, at = [], 0
    while (result := rotten.store.read("orders", 0, at, tag_hashes=[text_hash("even")])).end > at:
        even += messages_in(result)
        at = result.next_offset
    assert even == rotten.sent[:20:2] + rotten.sent[30::2]


def test_a_lost_end_of_a_queue_is_passed_over() -> None:
    rotten = Rotten()
    rotten.vfs.flip_bit(rotten.path, rotten.refs[4].log_offset + 50)
    with pytest.raises(MessagesDamaged):
        rotten.store.read("orders", 0, 40)
    rotten.store.damage.lose(rotten.path, rotten.refs[4].log_offset, "")
    result = rotten.store.read("orders", 0, 40)
    assert (result.status, result.next_offset) == (Status.NOTHING_MATCHED, 50)


def test_a_read_error_of_the_disk_is_damage_of_its_entry() -> None:
    rotten = Rotten()
    # The read of all, then the entries one by one: the second of those.
    rotten.vfs.fail("pread", ".log", errno.EIO)
    rotten.vfs.fail("pread", ".log", errno.EIO, after=1)
    with pytest.raises(MessagesDamaged) as raised:
        rotten.store.log.read_ranges([(rotten.refs[0].log_offset, rotten.refs[1].end_log_offset)])
    assert raised.value.start == rotten.refs[1].log_offset
    assert "cannot be read" in str(raised.value)


def test_an_entry_is_checked_once_while_it_is_known() -> None:
    rotten = Rotten()
    log, (first, second) = rotten.store.log, rotten.refs[:2]
    log.read_ranges([(first.log_offset + 60, first.log_offset + 70)])
    assert log.verified.covers(first.log_offset, first.end_log_offset)
    assert not log.verified.covers(second.log_offset, second.log_offset + 1)
    # So rot that comes while it is known is not seen; the scrubber does not ask what is known.
    rotten.vfs.flip_bit(rotten.path, first.payload_log_offset + 5)
    assert log.read_ranges([(first.log_offset, first.end_log_offset)])
    with pytest.raises(MessagesDamaged):
        log.check(first.log_offset, first.log_offset + 1)


def test_own_writes_are_trusted_while_they_are_in_memory() -> None:
    rotten = Rotten(is_fresh=True)
    assert rotten.store.read("orders", 0, 20).next_offset == 50
    rotten.vfs.is_cold = True
    with pytest.raises(MessagesDamaged):
        rotten.store.read("orders", 0, 20)
    # The kernel has read it again meanwhile: it is not the page that this process wrote.
    rotten.vfs.is_cold = False
    with pytest.raises(MessagesDamaged):
        rotten.store.read("orders", 0, 20)


def test_rot_is_found_by_a_reader_with_files_of_its_own() -> None:
    rotten = Rotten()
    apart = rotten.store.log.apart(rotten.refs[1].log_offset, rotten.refs[3].end_log_offset)
    apart.read_ranges([(rotten.refs[1].log_offset + 50, rotten.refs[1].log_offset + 60)])
    with pytest.raises(MessagesDamaged):
        apart.read_ranges([(rotten.ref.log_offset + 50, rotten.ref.log_offset + 60)])
    assert rotten.store.damage.open_count(DamageKind.LOG) == 1
    # What it has checked, all readers know.
    assert rotten.store.log.verified.covers(rotten.refs[1].log_offset, rotten.ref.log_offset)


def test_a_dropped_segment_takes_its_damage_with_it() -> None:
    vfs, store = new_store()
    fill(store, 4)
    store = reopen(vfs)
    info = store.log.segments()[0]
    vfs.flip_bit(info.path, info.size_bytes - 10)
    with pytest.raises(MessagesDamaged):
        store.log.check(0, info.size_bytes)
    assert store.damage.open_count(DamageKind.LOG) == 1
    store.drop_front(1)
    assert store.damage.open_count(DamageKind.LOG) == 0


def test_a_sealed_segment_is_not_trusted_by_the_process_that_wrote_it() -> None:
    vfs, store = new_store()
    fill(store, 4)
    info = store.log.segments()[0]
    vfs.flip_bit(info.path, info.size_bytes - 10)
    with pytest.raises(MessagesDamaged):
        read_all(store)


def test_a_sealed_segment_that_was_written_to_is_checked_again() -> None:
    vfs, store = new_store()
    fill(store, 4)
    store = reopen(vfs)
    read_all(store)
    info = store.log.segments()[0]
    assert store.log.verified.covers(info.size_bytes - 10, info.size_bytes)
    vfs.flip_bit(info.path, info.size_bytes - 10)
    with pytest.raises(MessagesDamaged):
        read_all(store)


def test_every_flipped_bit_of_a_segment_is_found() -> None:
    vfs, store = new_store(ONE_SEGMENT)
    ref = put(store, batch(messages_of(3)))
    store = reopen(vfs, ONE_SEGMENT)
    (info,) = store.log.segments()
    for position in range(ref.log_offset, ref.end_log_offset):
        vfs.flip_bit(info.path, position, position % 8)
        with pytest.raises(MessagesDamaged):
            store.read("orders", 0, 0)
        vfs.flip_bit(info.path, position, position % 8)
    assert len(read_all(store)) == 3
