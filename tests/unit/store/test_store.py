"""The facade: what is refused and why, what a checkpoint keeps, how a store ends."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from mq.errors import DataDirectoryInUse, DiskFull, StorageFailed
from mq.store import checkpoint
from mq.store.format import Kind
from mq.store.retention import Policy, Reason
from mq.store.vfs import DiskUsage
from tests.support.faulty_vfs import FaultyVfs
from tests.support.stores import (
    DIRECTORY,
    NOW_MS,
    Applied,
    append,
    append_entry,
    apply_all,
    apply_through,
    batch,
    fill,
    messages_of,
    new_store,
    open_store,
    put,
    read_all,
    small_config,
    truncate,
)

ONE_SEGMENT = small_config(segment_bytes=1 << 20)
POLICY = Policy(
    age_ms_max=1000,
    total_bytes_max=0,
    clean_expired_ratio=0.75,
    clean_oldest_ratio=0.85,
    refuse_writes_ratio=0.9,
)


def events(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.msg for record in caplog.records if isinstance(record.msg, dict)]


# -- writing ---------------------------------------------------------------------------------------


def test_a_new_log_opens_with_a_checkpoint() -> None:
    _, store = new_store()
    ref = put(store, batch(messages_of(1)))
    assert (ref.raft_index, store.log.ref(1).kind) == (2, Kind.CHECKPOINT)


def test_an_appended_entry_is_visible_when_it_is_applied() -> None:
    _, store = new_store()
    first, second = (batch(messages_of(count)) for count in (3, 4))
    other = batch(messages_of(2), "bills", 5)
    refs = [append(store, first, other), append(store, second)]
    assert store.queues.get("orders", 0) is None
    assert apply_through(store, 1) == [Applied(store.log.ref(1), [], [])]
    applied = apply_through(store, 1 << 40)
    assert [one.ref for one in applied] == refs
    assert [one.queue_offsets for one in applied] == [[0, 0], [3]]
    assert apply_through(store, 1 << 40) == []


def test_an_applied_entry_is_never_forgotten() -> None:
    _, store = new_store(ONE_SEGMENT)
    put(store, batch(messages_of(1)))
    hidden = append(store, batch(messages_of(1)))
    with pytest.raises(ValueError, match="entry 2 is applied"):
        truncate(store, 2)
    truncate(store, hidden.raft_index)
    sent = messages_of(2, seed=5)
    assert put(store, batch(sent)).raft_index == hidden.raft_index
    assert read_all(store)[1:] == sent


# -- checkpoints -----------------------------------------------------------------------------------


def test_the_state_of_the_broker_comes_back_with_the_checkpoint() -> None:
    vfs = FaultyVfs()
    states = iter([b"at the roll", b"at the checkpoint"])
    store = open_store(vfs, ONE_SEGMENT, lambda: next(states))
    put(store, batch(messages_of(1)))
    store.checkpoint()
    vfs.kill()
    assert open_store(vfs, ONE_SEGMENT).restored_broker_state == b"at the checkpoint"
    vfs.kill()
    vfs.remove(f"{DIRECTORY}/checkpoint")
    assert open_store(vfs, ONE_SEGMENT).restored_broker_state == b"at the roll"


def test_a_checkpoint_is_due_when_there_is_much_to_replay() -> None:
    _, store = new_store(small_config(segment_bytes=1 << 20, checkpoint_log_bytes=2000))
    sizes = []
    while not store.is_checkpoint_due:
        put(store, batch(messages_of(2)))
        sizes.append(store.log.end_offset)
    assert 2000 <= sizes[-1] < 2400
    store.checkpoint()
    assert not store.is_checkpoint_due


# -- retention -------------------------------------------------------------------------------------


class Disk(FaultyVfs):
    used_percent = 10

    def disk_usage(self, path: str) -> DiskUsage:
        assert self.exists(path)
        return DiskUsage(100, 100 - self.used_percent)


def test_a_nearly_full_disk_refuses_writes_until_there_is_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    vfs = Disk()
    store = open_store(vfs, ONE_SEGMENT)
    sent = messages_of(2)
    put(store, batch(sent))
    vfs.used_percent = 95
    for _ in range(2):
        assert store.retain(POLICY, NOW_MS) == (0, None, [])
        with pytest.raises(DiskFull, match="nearly full"):
            append_entry(store, [batch(sent)], NOW_MS)
    assert read_all(store) == sent
    vfs.used_percent = 50
    store.retain(POLICY, NOW_MS)
    put(store, batch(sent))
    said = [event["event"] for event in events(caplog)]
    assert said == ["disk nearly full, writes are refused", "writes go on"]


def test_retention_drops_what_expired_and_says_which_queues_moved(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="mq")
    store = open_store(Disk())
    fill(store, 4)
    put(store, batch(messages_of(1), "bills"))
    dropped = store.retain(POLICY, NOW_MS + 5000)
    assert (dropped.segments, dropped.reason) == (1, Reason.AGE)
    [moved] = dropped.moved
    queue = store.queues.get("orders", 0)
    assert queue is not None
    assert (moved.topic, moved.queue_id, moved.start) == ("orders", 0, queue.start)
    [event] = [event for event in events(caplog) if event["event"] == "segments dropped"]
    assert (event["segments"], event["reason"], event["queues"]) == (1, Reason.AGE.value, 1)
    assert store.retain(POLICY, NOW_MS).segments == 0


def test_a_needed_segment_is_kept_and_its_rescue_may_exceed_the_disk_limit() -> None:
    vfs, later_ms = Disk(), NOW_MS + 1_000_000
    store = open_store(vfs)
    fill(store, 4)
    starts = [info.base_log_offset for info in store.log.segments()]
    vfs.used_percent = 95
    assert store.expiring_before(POLICY, later_ms) == starts[-1]
    # Something in the second segment waits.
    dropped = store.retain(POLICY, later_ms, lambda before: before > starts[1])
    assert (dropped.segments, store.log.start_offset) == (1, starts[1])
    with pytest.raises(DiskFull):
        store.check_writable()
    with store.ignoring_disk_limit():
        put(store, batch(messages_of(1)), now_ms=later_ms)
    with pytest.raises(DiskFull):
        store.check_writable()
    assert store.retain(POLICY, later_ms, lambda _: False).segments >= 2
    assert store.expiring_before(POLICY, NOW_MS - 1) == 0


def test_an_unapplied_entry_is_not_dropped() -> None:
    vfs, store = new_store()
    sent = fill(store, 4)
    store.close()
    vfs.remove(f"{DIRECTORY}/checkpoint")
    store = open_store(vfs)
    assert store.applied_index == 1
    assert store.drop_front(3).segments == 0
    apply_all(store)
    assert store.drop_front(99).segments == 3
    queue = store.queues.get("orders", 0)
    assert queue is not None
    assert read_all(store) == sent[queue.start :]


# -- start and end ---------------------------------------------------------------------------------


def test_a_directory_has_one_store_at_a_time() -> None:
    vfs, store = new_store()
    with pytest.raises(DataDirectoryInUse):
        open_store(vfs)
    store.close()
    open_store(vfs).close()


def test_a_store_that_cannot_open_lets_go_of_the_directory() -> None:
    vfs, store = new_store()
    fill(store, 2)
    store.close()
    for error, refusal in ((errno.EIO, StorageFailed), (errno.ENOSPC, DiskFull)):
        for path in ("/commitlog/", "/lock"):
            vfs.fail("open", path, error)
            with pytest.raises(refusal, match=path):
                open_store(vfs)
    open_store(vfs).close()


def test_nothing_is_open_after_the_end() -> None:
    vfs, store = new_store()
    fill(store, 3)
    read_all(store)
    store.close()
    assert vfs._handles == {}


def test_a_close_on_a_failing_disk_says_so_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    vfs, store = new_store()
    sent = fill(store, 2)
    store.checkpoint()
    put(store, batch(messages_of(3)))
    vfs.fail("sync_tree", DIRECTORY)
    store.close()
    assert events(caplog)[-1]["event"] == "no checkpoint at close, the next start replays more"
    assert vfs._handles == {}
    assert read_all(apply_all(open_store(vfs))) == [*sent, *messages_of(3)]


def test_a_log_that_failed_gets_no_checkpoint() -> None:
    vfs, store = new_store(ONE_SEGMENT)
    put(store, batch(messages_of(1)))
    store.checkpoint()
    ref = append(store, batch(messages_of(1)))
    vfs.fail("sync", ".log")
    with pytest.raises(StorageFailed):
        store.log.sync()
    apply_through(store, ref.raft_index)
    with pytest.raises(StorageFailed):
        store.checkpoint()
    store.close()
    state = checkpoint.load(vfs, f"{DIRECTORY}/checkpoint")
    assert state is not None
    assert state.raft_index == ref.raft_index - 1
