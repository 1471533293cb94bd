"""Files of queues and index that are not what was written are rebuilt from the log, while the store
is in use, to the same bytes.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
from typing import TYPE_CHECKING

import pytest

from mq.errors import MqError, QueueDamaged, Rebuilding
from mq.hashing import text_hash
from mq.store.batch import Batch, accept, prepare
from mq.store.damage import Damage, DamageKind
from mq.store.store import Store
from mq.store.vfs import RealVfs
from mq.wire.v1.message_pb2 import Batch as WireBatch
from mq.wire.v1.message_pb2 import Message
from tests.support.faulty_vfs import FaultyVfs
from tests.support.stores import (
    DIRECTORY,
    NODE,
    append,
    apply_through,
    batch,
    files_below,
    messages_in,
    new_store,
    open_store,
    put,
    small_config,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mq.store.consumequeue import DamagedFile
    from mq.store.keyindex import DamagedIndexFile

# Two blocks in a file of a queue, the second one short; many segments.
CONFIG = small_config(segment_bytes=16 << 10, queue_file_units=300, index_items=300)
FOREVER_MS = 1 << 50
QUEUE = f"{DIRECTORY}/consumequeue/orders/0"
TAGS = ("paid", "sent")


def fill(store: Store, count: int, start: int = 0) -> None:
    """Messages of two queues, in batches of several sizes, with tags and keys."""
    for number in range(start, start + count):
        messages = [
            Message(body=b"%d.%d" % (number, at), tag=TAGS[at % 2], keys=[f"{number}.{at}"])
            for at in range(1 + number % 4)
        ]
        put(store, batch(messages), batch(messages[:1], "other", 3), now_ms=1_000_000 + number)


def filled(count: int = 160) -> tuple[FaultyVfs, Store]:
    """All units in files."""
    vfs, store = new_store(CONFIG)
    fill(store, count)
    store.checkpoint()
    assert len(store.log.segments()) > 2
    return vfs, store


def rotten(read: Callable[[], object]) -> MqError:
    """The error of the first reader; the second one gets its messages."""
    with pytest.raises(MqError) as caught:
        read()
    return caught.value


def bodies(store: Store, tag: str = "") -> list[bytes]:
    queue = store.queues.get("orders", 0)
    assert queue is not None
    at, found = queue.start, []
    while at < queue.end:
        result = store.read("orders", 0, at, tag_hashes=[text_hash(tag)] if tag else ())
        found += [one.body for one in messages_in(result)]
        at = result.next_offset
    return found


def content(vfs: FaultyVfs, path: str) -> dict[str, bytes]:
    return {each: vfs.read_all(each) for each in files_below(vfs, path)}


def open_damages(store: Store) -> list[int]:
    return [store.damage.open_count(kind) for kind in DamageKind]


# -- queues ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tag", ["", "paid"])
@pytest.mark.parametrize("file", [0, 300])
def test_a_flipped_bit_is_met_once_and_the_file_is_what_it_was(file: int, tag: str) -> None:
    vfs, store = filled()
    path = f"{QUEUE}/{file:020d}"
    wanted, before = bodies(store, tag), content(vfs, QUEUE)
    size = vfs.file_size(path) or 0
    assert size
    for number, position in enumerate([0, 1208, size // 2, size - 1]):
        vfs.flip_bit(path, position, position % 8)
        assert isinstance(rotten(lambda: bodies(store, tag)), Rebuilding)
        assert bodies(store, tag) == wanted
        assert content(vfs, QUEUE) == before
        assert open_damages(store) == [0, 0, 0]
        assert store.damage.mended_total[DamageKind.QUEUE] == number + 1


def test_all_bad_blocks_of_a_file_are_mended_at_once() -> None:
    vfs, store = filled()
    wanted, before = bodies(store), content(vfs, QUEUE)
    for path in before:
        vfs.write_all(path, bytes(len(before[path])))
    for _ in before:
        rotten(lambda: bodies(store))
    assert bodies(store) == wanted
    assert content(vfs, QUEUE) == before


@pytest.mark.parametrize("is_removed", [True, False])
def test_a_file_that_is_gone_or_short_is_made_again(is_removed: bool) -> None:
    vfs, store = filled()
    wanted, before = bodies(store), content(vfs, QUEUE)
    store.queues.close()  # an open file can be read after it is gone
    for path in before:
        if is_removed:
            vfs.remove(path)
        else:
            vfs.truncate_file(path, 333)
    for _ in before:
        rotten(lambda: bodies(store))
    assert bodies(store) == wanted
    assert content(vfs, QUEUE) == before


def test_units_behind_a_damaged_block_are_checked() -> None:
    """The last block of a file is mended while it is incomplete, and goes on to be filled."""
    vfs, store = filled(160)
    queue = store.queues.get("orders", 0)
    assert queue is not None
    assert 300 < queue.end < 500
    vfs.flip_bit(f"{QUEUE}/{300:020d}", 5 * 20)
    rotten(lambda: queue.read(305, 306))
    for part in range(3):
        fill(store, 30, 160 + 30 * part)
        store.checkpoint()
        assert len(bodies(store)) == queue.end
    fresh, _ = filled(250)
    assert content(vfs, QUEUE) == content(fresh, QUEUE)


def test_units_whose_messages_are_gone_from_the_log_are_not_missed() -> None:
    """They stand in the same block as others that are read, and nothing can make them again."""
    vfs, store = filled()
    store.drop_front(2)
    queue = store.queues.get("orders", 0)
    assert queue is not None
    first = queue.start - queue.start % 300
    assert queue.start - first not in (0, 256)
    path = f"{QUEUE}/{first:020d}"
    wanted = bodies(store)
    for position in (0, (queue.start - first) * 20 - 24, (queue.start - first) * 20 + 8):
        vfs.flip_bit(path, position)
        rotten(lambda: bodies(store))
        assert bodies(store) == wanted
    assert open_damages(store) == [0, 0, 0]


def test_an_incomplete_block_with_units_that_are_gone_gets_another_checksum() -> None:
    vfs, store = new_store(CONFIG)
    fill(store, 80)
    store.checkpoint()
    assert len(store.log.segments()) == 2
    store.drop_front(1)
    queue = store.queues.get("orders", 0)
    assert queue is not None
    assert 0 < queue.start < queue.end < 256
    wanted = bodies(store)
    vfs.flip_bit(f"{QUEUE}/{0:020d}", 3)
    fill(store, 3, 80)
    rotten(lambda: queue.read(queue.start, queue.start + 1))
    assert bodies(store)[: len(wanted)] == wanted
    for part in range(3):
        fill(store, 20, 83 + 20 * part)
        store.checkpoint()
        assert len(bodies(store)) == queue.end - queue.start
    assert queue.end > 256
    store.close()
    store = open_store(vfs, CONFIG)
    assert len(bodies(store)) == queue.end - queue.start
    assert open_damages(store) == [0, 0, 0]


def test_held_batches_are_rebuilt_where_they_were_filed() -> None:
    vfs, store = new_store(CONFIG)
    due_ms = 5_000_000
    for number in range(290):
        put(store, batch([Message(body=b"x")]), delayed(b"%d" % number, due_ms + number % 3))
    store.checkpoint()
    [(topic, lane)] = {
        (one.topic, one.queue_id) for one in store.queues.extents() if one.topic[0] == "%"
    }
    folder = f"{DIRECTORY}/consumequeue/{topic}/{lane}"
    before = content(vfs, folder)
    queue = store.queues.get(topic, lane)
    assert queue is not None
    wanted = queue.read(0, 290).tolist()
    for position in (5, 256 * 20 + 4 + 15):
        vfs.flip_bit(f"{folder}/{0:020d}", position)
        rotten(lambda: queue.read(0, 290))
        assert queue.read(0, 290).tolist() == wanted
        assert content(vfs, folder) == before


def delayed(body: bytes, deliver_at_ms: int) -> Batch:
    wire = WireBatch(topic="orders", deliver_at_ms=deliver_at_ms, messages=[Message(body=body)])
    return accept(prepare(wire.SerializeToString()), 1 << 20)


# -- read before, reported behind the mend ---------------------------------------------------------


def test_a_report_of_what_was_mended_meanwhile_is_no_second_damage() -> None:
    """The thread that mends may end between a read and its report."""
    vfs, store = filled()
    reports: list[Callable[[], MqError]] = []
    mending = store._mending

    def queue_damaged(file: DamagedFile) -> MqError:
        reports.append(functools.partial(mending.queue_damaged, file))
        return reports[-1]()

    def index_damaged(file: DamagedIndexFile) -> MqError:
        reports.append(functools.partial(mending.index_damaged, file))
        return reports[-1]()

    store.queues.watch(queue_damaged)
    store.derived.index.on_damage = index_damaged
    vfs.flip_bit(f"{QUEUE}/{0:020d}", 256 * 20)
    rotten(lambda: bodies(store))
    index = files_below(vfs, f"{DIRECTORY}/index")[0]
    vfs.flip_bit(index, (vfs.file_size(index) or 0) - 1)
    rotten(lambda: [keyed(store, f"{number}.0") for number in range(9)])
    assert len(reports) == 2
    before = store.damage.records()
    for report in reports:
        assert isinstance(report(), Rebuilding)
    assert store.damage.records() == before
    assert sum(store.damage.found_total.values()) == 2
    assert open_damages(store) == [0, 0, 0]


# -- what cannot be mended -------------------------------------------------------------------------


def test_where_the_log_is_damaged_too_the_queue_is_readable_around_it() -> None:
    vfs, store = filled()
    wanted = bodies(store)
    unit = store.queues.get("orders", 0).read(20, 21)  # type: ignore[union-attr]
    segment = store.log.segments()[0]
    vfs.flip_bit(segment.path, int(unit["log_offset"][0]) - segment.base_log_offset)
    vfs.flip_bit(f"{QUEUE}/{0:020d}", 20 * 20)
    rotten(lambda: store.read("orders", 0, 0))
    for _ in range(3):
        error = rotten(lambda: store.read("orders", 0, 0))
        assert isinstance(error, QueueDamaged)
        assert "cannot be rebuilt from the log" in str(error)
    assert open_damages(store)[1] == 1
    result = store.read("orders", 0, 256)
    assert messages_in(result)[0].body == wanted[256]
    vfs.flip_bit(segment.path, int(unit["log_offset"][0]) - segment.base_log_offset)
    # The log is mended, and the store is told.
    store.damage.found(Damage(DamageKind.LOG, segment.path, 0, "an entry is not what was written"))
    store.damage.mended(DamageKind.LOG, segment.path)
    rotten(lambda: store.read("orders", 0, 0))
    assert bodies(store) == wanted
    assert open_damages(store) == [0, 0, 0]


def test_damage_of_files_that_are_dropped_is_forgotten() -> None:
    vfs, store = filled()
    vfs.flip_bit(f"{QUEUE}/{0:020d}", 20 * 20)
    vfs.fail("pwritev", QUEUE, errno.EIO)
    rotten(lambda: store.read("orders", 0, 0))
    assert open_damages(store)[1] == 1
    while store.queues.get("orders", 0).start < 300:  # type: ignore[union-attr]
        store.drop_front(1)
    store.checkpoint()
    assert open_damages(store) == [0, 0, 0]


# -- the key index ---------------------------------------------------------------------------------


def keyed(store: Store, key: str) -> list[bytes]:
    found = store.lookup.by_key("orders", key, 0, FOREVER_MS)
    return [one.message.body for one in found]


def retried(read: Callable[[], list[bytes]]) -> list[bytes]:
    """As an error that is retryable wants it."""
    with contextlib.suppress(Rebuilding):
        return read()
    return read()


@pytest.mark.parametrize("file", [0, -1])
def test_every_key_is_found_after_any_bit_flip_in_the_index(file: int) -> None:
    vfs, store = filled()
    path = files_below(vfs, f"{DIRECTORY}/index")[file]
    before = content(vfs, f"{DIRECTORY}/index")
    keys = [f"{number}.{at}" for number in range(0, 160, 9) for at in range(1 + number % 4)]
    for position in [44, 60, *range(80, len(before[path]), 1501), len(before[path]) - 1]:
        vfs.flip_bit(path, position, position % 8)
        for key in keys:
            assert retried(functools.partial(keyed, store, key)) == [key.encode()]
        # Of a file that is being filled, the slots are in memory.
        assert vfs.read_all(path)[80:] == before[path][80:]
        assert open_damages(store) == [0, 0, 0]
    assert store.damage.mended_total[DamageKind.INDEX] > 0


def test_an_index_file_with_keys_of_dropped_messages_is_rebuilt_for_the_rest() -> None:
    vfs, store = filled()
    store.drop_front(1)
    start = store.log.start_offset
    names = [int(path.rpartition("/")[2]) for path in files_below(vfs, f"{DIRECTORY}/index")]
    name = max(one for one in names if one < start)
    path = f"{DIRECTORY}/index/{name:020d}"
    for position in range(44, vfs.file_size(path) or 0, 101):
        vfs.flip_bit(path, position)
    left = store.queues.get("orders", 0).start  # type: ignore[union-attr]
    bodies_left = bodies(store)
    assert left > 0
    for body in bodies_left[:200:3]:
        assert retried(functools.partial(keyed, store, body.decode())) == [body]
    assert open_damages(store) == [0, 0, 0]
    assert store.damage.mended_total[DamageKind.INDEX] == 1


# -- on a thread -----------------------------------------------------------------------------------


def test_a_store_with_threads_mends_while_it_is_used(tmp_path: Path) -> None:
    store = Store(RealVfs(), str(tmp_path), CONFIG, NODE)
    fill(store, 100)
    store.checkpoint()
    wanted = bodies(store)
    path = tmp_path / "consumequeue/orders/0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    for number in itertools.count(100):
        try:
            found = bodies(store)
        except Rebuilding:
            append(store, batch([Message(body=b"%d" % number)]))
            store.log.sync()
            apply_through(store, store.log.last_index)
        else:
            break
    assert found[: len(wanted)] == wanted
    assert len(found) == len(wanted) + number - 100
    store.close()
    assert open_damages(store) == [0, 0, 0]
