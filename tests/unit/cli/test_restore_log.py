"""A data directory from a backup: the same log with other members, or nothing."""

from __future__ import annotations

import itertools
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mq.cli import backup_manifest, restore_log
from mq.cli.backup_copy import Copy
from mq.cli.backup_manifest import Manifest
from mq.cli.backup_sources import StoppedNode
from mq.cli.restore_log import Restored, restore
from mq.config import StoreConfig
from mq.errors import DataDirectoryInUse, LogDamaged, StorageFailed, WrongDataDirectory
from mq.raft import handshake
from mq.raft.membership import read_members, read_restorations
from mq.raft.vote import VoteFile
from mq.store.commitlog import CommitLog
from mq.store.identity import Identity
from mq.store.store import Store
from mq.store.vfs import RealVfs
from mq.wire.v1.log_pb2 import Checkpoint
from tests.support.backups import VFS, LogNode, back_up
from tests.support.stores import apply_through

MEMBERS = {"x": "x:1", "y": "y:1", "z": "z:1"}


class Backup:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        node = LogNode(directory / "data")
        node.write(25)
        self.ends = node.store.queues.extents()
        self.manifest: Manifest = back_up(node, self.path)
        node.close()

    @property
    def path(self) -> Path:
        return self.directory / "b"

    def restore(self, name: str, members: dict[str, str] | None = None) -> Restored:
        identity = Identity("mq", "new", name)
        data = str(self.directory / name)
        given = MEMBERS if members is None else members
        return restore(VFS, str(self.path), self.manifest, data, identity, given)

    def restorations(self, name: str) -> tuple[handshake.Restored, ...]:
        place = str(self.directory / name / "commitlog")
        with closing(CommitLog(VFS, place, segment_bytes=1 << 20, verify_bytes=0)) as log:
            return read_restorations(log)

    def segments(self, name: str) -> dict[str, bytes]:
        found = (self.directory / name / "commitlog").glob("*.log")
        return {path.name: path.read_bytes().rstrip(b"\0") for path in found}


@pytest.fixture
def backup(tmp_path: Path) -> Backup:
    return Backup(tmp_path)


def test_a_restored_log_is_the_backup_and_a_segment_with_the_new_members(backup: Backup) -> None:
    restored = backup.restore("x")
    made = {path.name for path in (backup.directory / "x").iterdir()}
    assert made == {"commitlog", "lock", "node.toml", "vote"}
    manifest = backup.manifest
    assert restored.last_index == manifest.last_index + 1
    assert restored.term > manifest.last_term
    store = Store(
        VFS, str(backup.directory / "x"), StoreConfig(), restored.identity, background=False
    )
    log = store.log
    assert (log.first_index, log.last_index) == (1, restored.last_index)
    assert read_members(log) == MEMBERS
    # The state of all entries before it: a segment is complete by itself.
    opening = Checkpoint.FromString(bytes(log.entry(log.last_index).payload))
    ends = [(one.topic, list(one.queue_ids), list(one.ends)) for one in opening.topics]
    assert ends == [(one.topic, [one.queue_id], [one.end]) for one in backup.ends]
    # It is not known to be committed yet: the members have to elect a leader first.
    assert store.applied_index < restored.last_index
    store.abandon()
    vote = VoteFile(VFS, str(backup.directory / "x" / "vote"))
    assert (vote.term, vote.voted_for, vote.must_catch_up) == (restored.term, None, True)
    vote.close()


def test_each_member_gets_the_same_bytes_and_other_members_another_term(backup: Backup) -> None:
    first, second = backup.restore("x"), backup.restore("y")
    assert backup.segments("x") == backup.segments("y")
    assert first.term == second.term
    assert backup.restore("v", {"v": "v:1"}).term != first.term


def test_restored_nodes_tell_each_other_from_all_others(backup: Backup) -> None:
    backup.restore("x")
    backup.restore("y")
    backup.restore("v", {"v": "v:1"})
    (of_x,), (of_y,), (of_v,) = map(backup.restorations, "xyv")
    assert of_x == of_y
    assert of_x.raft_index == of_v.raft_index == backup.manifest.last_index + 1
    assert of_x.lineage != of_v.lineage
    # One that is restored from a backup of the restored set has both.
    source = StoppedNode(VFS, str(backup.directory / "x"))
    manifest = Copy(VFS, str(backup.directory / "again"), source).run()
    source.__exit__()
    identity = Identity("mq", "new", "w")
    place = str(backup.directory / "again")
    restore(VFS, place, manifest, str(backup.directory / "w"), identity, {"w": "w:1"})
    first, second = backup.restorations("w")
    assert first == of_x
    assert second.raft_index == of_x.raft_index + 1


def test_a_directory_that_is_taken_while_the_backup_is_checked_is_left_alone(
    backup: Backup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another restore, whose node may run already."""
    name, real = "mq.cli.restore_log.verify", backup_manifest.verify

    def verify(*arguments: Any) -> int:
        monkeypatch.setattr(name, real)
        backup.restore("x")
        return real(*arguments)

    monkeypatch.setattr(name, verify)
    with pytest.raises(WrongDataDirectory, match="is not empty"):
        backup.restore("x")
    assert backup.segments("x")
    (backup.directory / "y").mkdir()
    with (
        closing(VFS.lock(str(backup.directory / "y" / "lock"))),
        pytest.raises(DataDirectoryInUse, match="another restore"),
    ):
        backup.restore("y")


def test_nothing_is_restored_over_other_data(backup: Backup) -> None:
    target = backup.directory / "x"
    target.mkdir()
    (target / "precious").write_text("data")
    with pytest.raises(WrongDataDirectory, match="is not empty, it has precious"):
        backup.restore("x")
    assert [path.name for path in target.iterdir()] == ["precious"]
    (target / "precious").unlink()
    (target / "lost+found").mkdir()
    backup.restore("x")
    with pytest.raises(WrongDataDirectory, match="is not empty"):
        backup.restore("x")


@pytest.mark.parametrize("damage", ["flipped", "missing", "short"])
def test_a_damaged_backup_is_refused_with_file_and_position(backup: Backup, damage: str) -> None:
    path = sorted((backup.path / "commitlog").glob("*.log"))[1]
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[500] ^= 1
        path.write_bytes(data)
    elif damage == "short":
        path.write_bytes(data[:-1])
    else:
        path.unlink()
    with pytest.raises(LogDamaged) as raised:
        backup.restore("x")
    assert raised.value.path == str(path)
    assert not (backup.directory / "x").exists()


def test_the_remains_of_an_interrupted_restore_are_no_data_directory_and_are_removed(
    backup: Backup, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in ("_copy", "_open_new_segment", "_keep_vote", "_move"):
        with monkeypatch.context() as patched:
            patched.setattr(restore_log, step, _no_space)
            with pytest.raises(StorageFailed, match="run it again"):
                backup.restore("x")
        with pytest.raises(WrongDataDirectory):
            Store(VFS, str(backup.directory / "x"), StoreConfig(), Identity("mq", "new", "x"))
    backup.restore("x")
    assert not (backup.directory / "x" / "restore.tmp").exists()
    assert backup.segments("x").keys() > {
        f"{one.log_offset:020d}.log" for one in backup.manifest.segments
    }


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_a_restore_that_ends_while_it_is_put_in_place_is_run_again(
    backup: Backup, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    replace, calls = RealVfs.replace, itertools.count()

    def fails(vfs: RealVfs, source: str, target: str) -> None:
        if "restore.tmp" in source and "restore.tmp" not in target and next(calls) == moved:
            raise OSError(5, "Input/output error", target)
        replace(vfs, source, target)

    with monkeypatch.context() as patched:
        patched.setattr(RealVfs, "replace", fails)
        with pytest.raises(StorageFailed):
            backup.restore("x")
    with pytest.raises(WrongDataDirectory):
        Store(VFS, str(backup.directory / "x"), StoreConfig(), Identity("mq", "new", "x"))
    backup.restore("x")
    made = {path.name for path in (backup.directory / "x").iterdir()}
    assert made == {"commitlog", "lock", "node.toml", "vote"}


def _no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_entries_behind_the_end_of_the_manifest_are_left_out(backup: Backup) -> None:
    """It comes from a run that did not end."""
    first, *_, last = sorted((backup.path / "commitlog").glob("*.log"))
    with last.open("ab") as file:
        file.write(first.read_bytes()[:100])
    shutil.copy(first, backup.path / "commitlog" / f"{10**12:020d}.log")
    restored = backup.restore("x")
    assert restored.last_index == backup.manifest.last_index + 1


def test_a_backup_of_which_retention_had_taken_the_beginning_is_restored(tmp_path: Path) -> None:
    node = LogNode(tmp_path / "data")
    node.write(25)
    for _ in range(2):
        node.drop_front()
    node.write(5)
    manifest = back_up(node, tmp_path / "b")
    node.close()
    assert manifest.first_index > 1
    identity = Identity("mq", "new", "x")
    restored = restore(VFS, str(tmp_path / "b"), manifest, str(tmp_path / "x"), identity, MEMBERS)
    store = Store(VFS, str(tmp_path / "x"), StoreConfig(), identity, background=False)
    assert store.log.first_index == manifest.first_index
    assert store.log.start_offset == manifest.start_offset > 0
    apply_through(store, restored.last_index)
    (queue,) = store.queues.extents()
    # Queue offsets count on: what is gone is gone, and what is left has the number that it had.
    assert queue.end == 70
    assert 0 < queue.start < queue.end
    store.abandon()
