"""Queues and index as a whole: rebuilt when anything is missing, never ahead of the disk, and what
a disk that is full or fails makes of them.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import pytest

from mq.errors import DiskFull, StorageFailed
from mq.store import checkpoint, consumequeue, derived
from mq.store.store import Store
from mq.store.vfs import RealVfs
from tests.support.faulty_vfs import FaultyFile, FaultyVfs
from tests.support.stores import (
    DIRECTORY,
    NODE,
    SMALL,
    UNITS_PER_FILE,
    append,
    append_entry,
    apply_all,
    apply_through,
    batch,
    fill,
    messages_in,
    messages_of,
    new_store,
    open_store,
    put,
    queue_files,
    read_all,
    reopen,
    small_config,
)

if TYPE_CHECKING:
    from pathlib import Path

    from mq.wire.v1.message_pb2 import Message

ONE_SEGMENT = small_config(segment_bytes=1 << 20)
FOREVER_MS = 1 << 50
REBUILT = "queues and index are rebuilt from the log"


def warnings(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    records = [record.msg for record in caplog.records if record.levelname == "WARNING"]
    return [msg for msg in records if isinstance(msg, dict) and msg["event"] == event]


def start_of(store: Store) -> int:
    queue = store.queues.get("orders", 0)
    assert queue is not None
    return queue.start


def is_due(store: Store) -> bool:
    return store.is_checkpoint_due


def by_key(store: Store, key: str) -> list[Message]:
    return [one.message for one in store.lookup.by_key("orders", key, 0, FOREVER_MS)]


# -- rebuilding ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        ("checkpoint", "there is no valid checkpoint"),
        (f"consumequeue/orders/0/{16:020d}", f"consumequeue/orders/0/{16:020d} is missing"),
        ("index/first", "a file of the key index is missing"),
    ],
)
@pytest.mark.parametrize("is_removed", [True, False], ids=["missing", "short"])
def test_a_missing_file_is_rebuilt_with_a_warning_that_names_it(
    lost: str, reason: str, is_removed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    vfs, store = new_store()
    sent = fill(store, 3)
    keyed = by_key(store, "k5")
    store.close()
    first = vfs.list_dir(f"{DIRECTORY}/index")[0]
    path = f"{DIRECTORY}/{lost.replace('first', first)}"
    if is_removed:
        vfs.remove(path)
    else:
        vfs.truncate_file(path, 7)
    store = open_store(vfs)
    [warning] = warnings(caplog, REBUILT)
    assert reason in warning["reason"]
    apply_all(store)
    assert read_all(store) == sent
    assert by_key(store, "k5") == keyed


def test_a_start_without_loss_rebuilds_nothing(caplog: pytest.LogCaptureFixture) -> None:
    vfs, store = new_store()
    sent = fill(store, 3)
    applied_index = store.applied_index
    store.close()
    store = open_store(vfs)
    assert store.applied_index == applied_index
    assert read_all(store) == sent
    assert caplog.records == []


@pytest.mark.parametrize("change", ["ahead", "other term", "behind"])
def test_a_checkpoint_of_another_log_is_not_used(
    change: str, caplog: pytest.LogCaptureFixture
) -> None:
    vfs, store = new_store()
    sent = fill(store, 3)
    store.close()
    path = f"{DIRECTORY}/checkpoint"
    state = checkpoint.load(vfs, path)
    assert state is not None
    changed = {
        "ahead": state._replace(raft_index=state.raft_index + 1),
        "behind": state._replace(raft_index=0),
        "other term": state._replace(term=5),
    }[change]
    checkpoint.save(vfs, path, changed)
    store = apply_all(open_store(vfs))
    assert len(warnings(caplog, REBUILT)) == 1
    assert read_all(store) == sent


# -- retention -------------------------------------------------------------------------------------


def test_a_crash_after_retention_costs_no_rebuild(caplog: pytest.LogCaptureFixture) -> None:
    vfs, store = new_store()
    sent = fill(store, 6)
    store.checkpoint()
    applied_index = store.applied_index
    store.drop_front(3)
    start = start_of(store)
    assert start > UNITS_PER_FILE
    vfs.crash(1, keep=1.0)
    store = open_store(vfs)
    assert store.applied_index == applied_index
    assert warnings(caplog, REBUILT) == []
    assert start_of(store) == start
    assert read_all(store) == sent[start:]


def test_files_of_dropped_messages_go_with_the_next_checkpoint() -> None:
    vfs, store = new_store()
    sent = fill(store, 6)
    store.checkpoint()
    assert not is_due(store)
    indexed = vfs.list_dir(f"{DIRECTORY}/index")
    store.drop_front(3)
    start = start_of(store)
    assert is_due(store)
    assert queue_files(vfs)[0] == 0
    store.checkpoint()
    assert not is_due(store)
    assert queue_files(vfs) == list(range(start - start % 16, len(sent), 16))
    left = vfs.list_dir(f"{DIRECTORY}/index")
    assert left == indexed[-len(left) :] != indexed


def test_files_of_messages_that_were_dropped_before_they_were_written_go_too() -> None:
    vfs, store = new_store()
    sent = fill(store, 6)
    assert queue_files(vfs) == []
    store.drop_front(3)
    start = start_of(store)
    store.checkpoint()
    assert queue_files(vfs) == list(range(start - start % 16, len(sent), 16))


def test_a_drop_while_a_checkpoint_is_written_waits_for_the_next_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    vfs, store = new_store()
    sent = fill(store, 6)
    store.drop_front(1)
    plan = store.plan_checkpoint()
    store.drop_front(2)
    start = start_of(store)
    store.write_checkpoint(plan)
    store.finish_checkpoint(plan)
    assert is_due(store)
    store = reopen(vfs)
    assert warnings(caplog, REBUILT) == []
    assert read_all(store) == sent[start:]
    store.checkpoint()
    assert queue_files(vfs) == list(range(start - start % 16, len(sent), 16))


# -- a disk that is full or fails ------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few units in memory are a surplus."""
    monkeypatch.setattr(derived, "_PENDING_BYTES", 100)


@pytest.mark.usefixtures("impatient")
def test_a_rebuild_forgets_the_checkpoint_before_it_touches_a_file() -> None:
    """A power loss in the middle leads to another rebuild: files may be as long as the checkpoint
    says by then, and have nothing in them.
    """
    for seed in range(20):
        vfs, store = new_store()
        sent = fill(store, 3)
        store.checkpoint()
        sent += messages_of(30)
        put(store, batch(sent[-30:]))
        vfs.truncate_file(f"{DIRECTORY}/consumequeue/orders/0/{0:020d}", 0)
        reopen(vfs).settle()
        queue = ["/consumequeue", "/consumequeue/orders", "/consumequeue/orders/0"]
        for name in ["", "/index", *queue]:
            vfs.sync_dir(DIRECTORY + name)
        vfs.crash(seed, 0.8)
        assert read_all(apply_all(open_store(vfs))) == sent


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("part", ["consumequeue", "index"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE])
def test_without_space_for_queues_writes_wait_and_reads_go_on(part: str, error: int) -> None:
    vfs, store = new_store(ONE_SEGMENT)
    sent = messages_of(20, keys=["k"])
    news = batch(sent)
    vfs.fail("pwritev", f"/{part}/", error, times=5)
    put(store, news)  # starts to write
    store.derived.write_surplus()  # meets the result and tries again
    for _ in range(3):
        with pytest.raises(DiskFull, match="no space for the queues"):
            append_entry(store, [news], 0)
        assert read_all(store) == sent
        assert by_key(store, "k") == sent[::-1]
    put(store, news)
    assert read_all(store) == sent * 2
    store.checkpoint()
    assert read_all(reopen(vfs, ONE_SEGMENT)) == sent * 2


@pytest.mark.usefixtures("impatient")
def test_a_stalled_node_still_applies_what_was_appended_before() -> None:
    vfs, store = new_store(ONE_SEGMENT)
    sent = messages_of(20)
    for start in range(0, 20, 5):
        append(store, batch(sent[start : start + 5]))
    store.log.sync()
    vfs.fail("pwritev", "/consumequeue/", errno.ENOSPC, times=100)
    for raft_index in range(store.log.last_index + 1):
        apply_through(store, raft_index)
    assert read_all(store) == sent


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("part", ["consumequeue", "index"])
def test_a_failed_write_of_a_queue_stops_the_node_for_good(part: str) -> None:
    vfs, store = new_store(ONE_SEGMENT)
    sent = messages_of(20, keys=["k"])
    vfs.fail("pwritev", f"/{part}/", errno.EIO)
    put(store, batch(sent))
    for _ in range(2):
        with pytest.raises(StorageFailed, match=part):
            store.derived.write_surplus()
        with pytest.raises(StorageFailed):
            append_entry(store, [batch(sent)], 0)
        with pytest.raises(StorageFailed):
            store.checkpoint()
    assert read_all(store) == sent
    store.close()
    assert read_all(reopen(vfs, ONE_SEGMENT)) == sent


@pytest.mark.parametrize("operation", ["sync_tree", "pwritev", "replace", "sync_dir"])
def test_a_checkpoint_that_fails_leaves_the_one_before(
    operation: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for seed in range(8):
        vfs, store = new_store(ONE_SEGMENT)
        sent = messages_of(40, keys=["k"])
        put(store, batch(sent[:25]))
        store.checkpoint()
        put(store, batch(sent[25:]))
        part = "/consumequeue/" if operation == "pwritev" else DIRECTORY
        vfs.fail(operation, part, errno.EIO)
        with pytest.raises(StorageFailed):
            store.checkpoint()
        with pytest.raises(StorageFailed):
            append_entry(store, [batch(sent)], 0)
        vfs.crash(seed, 0.5)
        store = open_store(vfs, ONE_SEGMENT)
        # The last sync of a checkpoint only makes sure of what may be there already.
        assert store.applied_index in ({2, 3} if operation == "sync_dir" else {2})
        apply_all(store)
        assert read_all(store) == sent
        assert by_key(store, "k") == sent[::-1]
    assert warnings(caplog, REBUILT) == []


@pytest.mark.parametrize("part", ["/consumequeue/", "/index/", "checkpoint.new"])
def test_a_checkpoint_without_space_is_tried_again(part: str) -> None:
    vfs, store = new_store(ONE_SEGMENT)
    sent = messages_of(40, keys=["k"])
    put(store, batch(sent[:25]))
    vfs.fail("pwritev", part, errno.ENOSPC)
    with pytest.raises(DiskFull):
        store.checkpoint()
    put(store, batch(sent[25:]))
    assert read_all(store) == sent
    store.checkpoint()
    store = open_store_again(vfs)
    assert store.applied_index == 3
    assert read_all(store) == sent


def open_store_again(vfs: FaultyVfs) -> Store:
    vfs.kill()
    return open_store(vfs, ONE_SEGMENT)


def test_a_checkpoint_is_a_picture_of_its_moment() -> None:
    vfs, store = new_store(ONE_SEGMENT)
    sent = messages_of(60, keys=["k"])
    put(store, batch(sent[:20]))
    plan = store.plan_checkpoint()
    put(store, batch(sent[20:40]))
    store.write_checkpoint(plan)
    put(store, batch(sent[40:]))
    store.finish_checkpoint(plan)
    assert read_all(store) == sent
    store = open_store_again(vfs)
    assert store.applied_index == 2
    assert read_all(store) == sent[:20]
    assert read_all(apply_all(store)) == sent


# -- with the thread -------------------------------------------------------------------------------


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("pending_max", [200, 1 << 20], ids=["owner waits", "owner goes on"])
def test_the_write_back_thread_loses_nothing(
    pending_max: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derived, "_PENDING_BYTES_MAX", pending_max)
    store = Store(RealVfs(), str(tmp_path), SMALL, NODE)
    sent = fill(store, 5)
    assert read_all(store) == sent
    store.settle()
    assert any((tmp_path / "consumequeue").rglob("0*"))
    assert read_all(store) == sent
    store.drop_front(2)
    start = start_of(store)
    store.close()
    assert min((tmp_path / "consumequeue/orders/0").iterdir()).name > f"{0:020d}"
    store = Store(RealVfs(), str(tmp_path), SMALL, NODE)
    assert read_all(store) == sent[start:]
    store.close()


# -- ten thousand queues ---------------------------------------------------------------------------


class CountingVfs(FaultyVfs):
    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> FaultyFile:
        self.opened.append(path)
        return super().open(path, create=create, read_only=read_only)

    def open_queue_files(self) -> int:
        return sum("consumequeue" in file._path for file in self._handles)


def test_ten_thousand_queues_are_numbers_until_they_are_read() -> None:
    vfs, config = CountingVfs(), small_config(segment_bytes=1 << 24)
    store = open_store(vfs, config)
    queues = [(f"topic-{number % 64}", number // 64) for number in range(10_240)]
    for start in range(0, len(queues), 1024):
        news = [batch(messages_of(1), *queue) for queue in queues[start : start + 1024]]
        put(store, *news)
    store.checkpoint()
    assert vfs.open_queue_files() <= vfs.open_files_max()
    store.close()
    vfs.opened.clear()
    store = open_store(vfs, config)
    assert len(store.queues) == len(queues)
    assert not any("consumequeue" in path for path in vfs.opened)
    for topic, queue_id in queues[:600]:
        assert messages_in(store.read(topic, queue_id, 0)) == messages_of(1)
    opened = [path for path in vfs.opened if "consumequeue" in path]
    assert len(opened) == 600
    assert vfs.open_queue_files() <= consumequeue._READ_FILES_MAX
