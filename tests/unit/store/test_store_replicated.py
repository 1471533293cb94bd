"""A store whose log belongs to Raft: entries that others write, take back, or replace."""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING

import pytest

from mq.errors import DiskFull, StorageFailed
from mq.store import checkpoint, derived
from mq.store.batch import encode_payload
from mq.store.commitlog import NewEntry
from mq.store.format import Kind
from mq.store.identity import Identity
from mq.store.store import Store
from mq.store.vfs import RealVfs
from mq.wire.v1.log_pb2 import Checkpoint, Member
from tests.support.faulty_vfs import FaultyVfs
from tests.support.stores import (
    DIRECTORY,
    NOW_MS,
    Applied,
    append,
    apply_all,
    apply_through,
    batch,
    files_below,
    fill,
    messages_of,
    new_store,
    open_store,
    put,
    queue_files,
    read_all,
    roll,
    small_config,
    truncate,
)

if TYPE_CHECKING:
    from pathlib import Path

    from mq.store.batch import Batch
    from mq.store.logreader import EntryRef
    from mq.wire.v1.message_pb2 import Message
    from tests.support.faulty_vfs import Operation

ONE_SEGMENT = small_config(segment_bytes=1 << 20)
CHECKPOINT_PATH = f"{DIRECTORY}/checkpoint"


def write(store: Store, *batches: Batch, term: int = 0) -> EntryRef:
    """As Raft does it: to the log itself."""
    entry = NewEntry(Kind.MESSAGES, term, NOW_MS, encode_payload(batches))
    return store.log.append([entry])[0]


# -- entries that are not applied yet


def test_a_new_segment_is_an_entry_like_others() -> None:
    vfs, store = new_store()
    fill(store, 2)
    while store.applied_index != store.log.last_index:
        apply_all(store)
    before = store.applied_index
    ref = roll(store, NOW_MS)
    assert (store.applied_index, store.log.last_index) == (before, before + 1)
    assert apply_through(store, ref.raft_index) == [Applied(ref, [], [])]
    assert store.applied_index == ref.raft_index
    store.checkpoint()
    vfs.kill()
    assert open_store(vfs).applied_index == ref.raft_index


def test_a_new_segment_that_is_not_committed_can_be_truncated() -> None:
    vfs, store = new_store()
    sent = fill(store, 2)
    ref = roll(store, NOW_MS)
    other = append(store, batch(messages_of(2)))
    segments = len(store.log.segments())
    truncate(store, ref.raft_index)
    assert len(store.log.segments()) == segments - 1
    assert (store.applied_index, store.log.last_index) == (ref.raft_index - 1, ref.raft_index - 1)
    news = messages_of(3, seed=9)
    again = put(store, batch(news))
    assert again.raft_index in (ref.raft_index, other.raft_index)
    assert read_all(store) == [*sent, *news]
    store.log.sync()
    vfs.crash(0, keep=0)
    assert read_all(apply_all(open_store(vfs))) == [*sent, *news]


def test_remembered_batches_are_not_read_again() -> None:
    vfs, store = new_store(ONE_SEGMENT)
    put(store, batch(messages_of(1)))
    groups = [messages_of(count, seed=count) for count in (2, 3, 4, 5)]
    refs = []
    for number, messages in enumerate(groups):
        refs.append(write(store, batch(messages)))
        if number != 1:  # as a follower does not
            store.appended(refs[-1], [batch(messages)])
    noop = store.log.append([NewEntry(Kind.NOOP, 0, NOW_MS, [])])[0]
    store.appended(noop, ())
    vfs.fail("pread", ".log", after=1, times=99)  # one is to be read
    applied = apply_through(store, noop.raft_index)
    vfs._faults.clear()
    assert [one.ref for one in applied] == [*refs, noop]
    assert [one.queue_offsets for one in applied] == [[1], [3], [6], [10], []]
    assert read_all(store)[1:] == [message for group in groups for message in group]
    assert store._unapplied == {}
    store.appended(noop, ())  # late: it is applied by now
    assert store._unapplied == {}


def test_truncated_batches_are_forgotten() -> None:
    _, store = new_store(ONE_SEGMENT)
    put(store, batch(messages_of(1)))
    old = [messages_of(1, seed=seed) for seed in (1, 2, 3)]
    refs = [append(store, batch(messages)) for messages in old]
    store.log.truncate(refs[1].raft_index)
    store.forget(refs[1].raft_index)
    new = messages_of(3, seed=7)
    write(store, batch(new), term=1)
    apply_all(store)
    assert read_all(store)[1:] == [*old[0], *new]
    for index in (1, store.applied_index):
        with pytest.raises(ValueError, match=f"entry {index} is applied"):
            store.forget(index)
    assert read_all(store)[1:] == [*old[0], *new]
    store.forget(store.applied_index + 1)


def test_a_nearly_full_disk_is_not_writable() -> None:
    _, store = new_store()
    store.check_writable()
    store._is_disk_nearly_full = True
    with pytest.raises(DiskFull, match="nearly full"):
        store.check_writable()


# -- checkpoints with the members of a broker set


def members_field() -> bytes:
    members = [Member(node_id=f"node-{n}", address=f"host-{n}:1") for n in range(3)]
    return Checkpoint(members=members).SerializeToString()


def test_a_segment_that_raft_opens_has_the_state_and_the_members() -> None:
    vfs = FaultyVfs()
    store = open_store(vfs, broker_state=lambda: b"state of the broker")
    sent = fill(store, 2)
    payload = [*store.checkpoint_payload(), members_field()]
    entry = NewEntry(Kind.CHECKPOINT, 3, NOW_MS, payload)
    ref = store.log.roll(entry)
    assert apply_through(store, ref.raft_index) == [Applied(ref, [], [])]
    assert store.drop_front(99).segments == 2
    store.log.sync()
    vfs.kill()
    vfs.remove(CHECKPOINT_PATH)
    store = open_store(vfs)
    assert store.restored_broker_state == b"state of the broker"
    assert store.applied_index == ref.raft_index
    queue = store.queues.get("orders", 0)
    assert queue is not None
    assert (queue.start, queue.end) == (len(sent), len(sent))
    found = Checkpoint.FromString(bytes(store.log.entry(ref.raft_index).payload))
    assert [member.node_id for member in found.members] == ["node-0", "node-1", "node-2"]


# -- a log that is replaced


class PowerLoss(BaseException):
    """Nothing catches it."""


class SteppedVfs(FaultyVfs):
    """Loses power before a given step: anything that changes the disk or fails."""

    steps_left = 1 << 60

    def _step(self) -> None:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise PowerLoss

    def _fault(self, operation: Operation, *paths: str) -> OSError | None:
        self._step()
        return super()._fault(operation, *paths)

    def _unlink(self, parent: object, name: str) -> None:
        self._step()
        super()._unlink(parent, name)  # type: ignore[arg-type]


def leader() -> tuple[Store, list[Message], int]:
    """Has dropped its first segments. Its messages, and the queue offset of the first that it has
    still.
    """
    store = open_store(FaultyVfs(1), broker_state=lambda: b"of the leader")
    put(store, batch(messages_of(2), "bills", 4))
    sent = fill(store, 6)
    store.drop_front(3)
    queue = store.queues.get("orders", 0)
    assert queue is not None
    return store, sent, queue.start


def follower(vfs: FaultyVfs, *, is_checkpointed: bool = True) -> Store:
    """With another past: queues and keys that will be gone, some of it in memory only."""
    store = open_store(vfs, broker_state=lambda: b"of the follower")
    fill(store, 3)
    put(store, batch(messages_of(20, keys=["gone"]), "gone", 1))
    if is_checkpointed:
        store.checkpoint()
    put(store, batch(messages_of(7, seed=3, keys=["gone"])))
    append(store, batch(messages_of(1)))
    return store


def replace_log(store: Store, source: Store, bytes_max: int = 1) -> None:
    log = store.log
    log.start_over(source.log.first_index, source.log.start_offset)
    log.extend(source.log.region(source.log.first_index, bytes_max).data)


def catch_up(store: Store, source: Store) -> None:
    while store.log.last_index < source.log.last_index:
        store.log.extend(source.log.region(store.log.last_index + 1, 700).data)
    store.log.sync()
    apply_all(store)


def shown(store: Store) -> dict[tuple[str, int], tuple[int, int, list[Message]]]:
    return {
        (extent.topic, extent.queue_id): (
            extent.start,
            extent.end,
            read_all(store, extent.topic, extent.queue_id),
        )
        for extent in store.queues.extents()
    }


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("bytes_max", [1, 1 << 20])
def test_a_store_starts_over_from_the_checkpoint_that_opens_the_log(
    is_checkpointed: bool, bytes_max: int
) -> None:
    source, sent, first = leader()
    vfs = FaultyVfs(2)
    store = follower(vfs, is_checkpointed=is_checkpointed)
    replace_log(store, source, bytes_max)
    store.start_over()
    assert store.applied_index == source.log.first_index
    assert store.restored_broker_state == b"of the leader"
    assert not store.is_checkpoint_due
    assert not vfs.exists(CHECKPOINT_PATH)
    assert store.read("gone", 1, 0).status.name == "NO_QUEUE"
    queue = store.queues.get("orders", 0)
    assert queue is not None
    assert (queue.start, queue.end) == (first, first)
    catch_up(store, source)
    assert shown(store) == shown(source)
    assert read_all(store) == sent[first:]
    for key in ("k0", "k3", "gone"):
        found, wanted = (s.lookup.by_key("orders", key, 0, 1 << 50) for s in (store, source))
        assert found == wanted
    store.checkpoint()
    vfs.crash(0, keep=0)
    store = open_store(vfs)
    assert store.applied_index == source.log.last_index
    assert shown(store) == shown(source)


def test_files_that_are_written_after_it_are_the_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that writes keeps files open: not those that were removed."""
    monkeypatch.setattr(derived, "_PENDING_BYTES", 100)
    source, sent, first = leader()
    vfs = FaultyVfs(2)
    store = follower(vfs)
    fill(store, 7)  # more than the leader has, so that names of files are the same
    assert set(queue_files(vfs)) & set(queue_files(source._vfs))  # type: ignore[arg-type]
    replace_log(store, source)
    store.start_over()
    catch_up(store, source)
    store.settle()
    assert any("consumequeue/orders" in path for path in files_below(vfs, DIRECTORY))
    assert not any("gone" in path for path in files_below(vfs, DIRECTORY))
    store.checkpoint()
    assert store.derived.queues.pending_bytes == store.derived.index.pending_bytes == 0
    vfs.kill()
    store = open_store(vfs)
    assert store.applied_index == source.log.last_index
    assert read_all(store) == sent[first:]


def test_files_that_were_to_go_are_new_ones_now() -> None:
    source = open_store(FaultyVfs(1))
    sent = fill(source, 3)
    vfs = FaultyVfs(2)
    store = follower(vfs)
    store.drop_front(2)  # their files go with the next checkpoint
    assert store.derived.has_surplus
    replace_log(store, source)
    store.start_over()
    catch_up(store, source)
    store.checkpoint()
    vfs.kill()
    store = open_store(vfs)
    assert store.applied_index == source.log.last_index
    assert read_all(store) == sent


def test_a_checkpoint_that_was_planned_before_is_void() -> None:
    for is_written in (False, True):
        source, *_ = leader()
        vfs = FaultyVfs(2)
        store = follower(vfs)
        plan = store.plan_checkpoint()
        if is_written:
            store.write_checkpoint(plan)
        replace_log(store, source)
        store.start_over()
        store.write_checkpoint(plan)
        assert not vfs.exists(CHECKPOINT_PATH)
        store.finish_checkpoint(plan)
        catch_up(store, source)
        assert shown(store) == shown(source)
        store.checkpoint()
        assert store.derived.queues.pending_bytes == store.derived.index.pending_bytes == 0
        vfs.kill()
        assert open_store(vfs).applied_index == source.log.last_index


def test_starting_over_waits_for_a_checkpoint_that_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, sent, first = leader()
    store = Store(RealVfs(), f"{tmp_path}", small_config(), Identity("mq", "set-0", "node-0"))
    fill(store, 3)
    plan = store.plan_checkpoint()
    save, began, may_end = checkpoint.save, threading.Event(), threading.Event()

    def slow(*arguments: object) -> None:
        began.set()
        assert may_end.wait(20)
        save(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint, "save", slow)
    thread = threading.Thread(target=store.write_checkpoint, args=[plan])
    thread.start()
    assert began.wait(20)
    replace_log(store, source)
    threading.Timer(0.05, may_end.set).start()
    store.start_over()
    thread.join(20)
    assert not (tmp_path / "checkpoint").exists()
    store.finish_checkpoint(plan)
    catch_up(store, source)
    assert read_all(store) == sent[first:]
    store.close()


def test_an_empty_log_is_nothing_to_start_over_from() -> None:
    source, *_ = leader()
    vfs = FaultyVfs(2)
    store = follower(vfs)
    applied_index = store.applied_index
    store.log.start_over(source.log.first_index, source.log.start_offset)
    with pytest.raises(ValueError, match="empty log"):
        store.start_over()
    # Between the two logs, for as long as a full disk may let it be.
    assert store.applied_index == applied_index
    assert not store.is_checkpoint_due
    assert store.queues.get("gone", 1) is not None
    store.log.extend(source.log.region(source.log.first_index, 1).data)
    store.start_over()
    catch_up(store, source)
    assert shown(store) == shown(source)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_meanwhile_stops_the_node(error: int) -> None:
    source, *_ = leader()
    vfs = FaultyVfs(2)
    store = follower(vfs)
    replace_log(store, source)
    store.log.sync()
    vfs.fail("sync_dir", DIRECTORY, error)
    with pytest.raises(StorageFailed):
        store.start_over()
    with pytest.raises(StorageFailed):
        store.check_writable()
    vfs.crash(0)
    store = open_store(vfs)
    catch_up(store, source)
    assert shown(store) == shown(source)


def check_directory(vfs: FaultyVfs, source: Store, old: Store, seed: int) -> None:
    """The directory opens on a prefix of the old log or of the new one, and the derived state fits
    its log.
    """
    store = open_store(vfs)
    found, new = store.log, source.log
    if found.last_index >= found.first_index:
        expected = new if found.first_index == new.first_index else old.log
        assert found.start_offset == expected.start_offset, f"seed {seed}"
        size = found.end_offset - found.start_offset
        assert found.read(found.start_offset, size) == expected.read(found.start_offset, size)
        apply_all(store)
    else:
        assert len(store.queues) == 0
    state = shown(store)
    keys = store.lookup.by_key("gone", "gone", 0, 1 << 50)
    vfs.kill()
    vfs.remove(CHECKPOINT_PATH)
    rebuilt = apply_all(open_store(vfs))
    assert shown(rebuilt) == state, f"seed {seed}"
    assert rebuilt.lookup.by_key("gone", "gone", 0, 1 << 50) == keys
    # And the replacement can be done again.
    replace_log(rebuilt, source)
    rebuilt.start_over()
    catch_up(rebuilt, source)
    assert shown(rebuilt) == shown(source)


@pytest.mark.parametrize("keep", [0, 0.5, 1])
def test_a_crash_at_any_step_leaves_a_directory_that_opens(keep: float) -> None:
    source, *_ = leader()
    old = follower(FaultyVfs(3))
    for steps in range(1000):
        vfs = SteppedVfs(3)
        store = follower(vfs)
        vfs.steps_left = steps
        try:
            replace_log(store, source, 500)
            store.start_over()
            catch_up(store, source)
            store.checkpoint()
        except PowerLoss:
            pass
        else:
            break
        vfs.steps_left = 1 << 60
        vfs.crash(steps, keep)
        check_directory(vfs, source, old, steps)
    assert 50 < steps < 999
