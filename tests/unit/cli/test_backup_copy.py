"""Backups: all of a log, then what is new of it; nothing that does not continue it; and what is
found when a byte is not what it was.
"""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import msgspec
import pytest

from mq.cli import backup_copy, backup_manifest
from mq.cli.backup_copy import Copy
from mq.cli.backup_manifest import Manifest
from mq.cli.backup_sources import Chunk, RunningNodes, StoppedNode
from mq.errors import DataDirectoryInUse, IllegalRequest, LogDamaged, StorageFailed, Unreachable
from mq.errors import WrongDataDirectory as WrongDirectory
from mq.store.commitlog import CommitLog
from mq.store.identity import Identity
from mq.store.logreader import SegmentInfo
from mq.wire.v1 import admin_pb2 as pb
from tests.support.backups import VFS, LogNode, back_up
from tests.support.commands import FakeAdmin
from tests.support.stores import apply_through, roll


@pytest.fixture(autouse=True)
def _nobody_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_copy, "_LATE_S", 0.01)


@pytest.fixture
def node(tmp_path: Path) -> LogNode:
    return LogNode(tmp_path / "data")


def assert_same(node: LogNode, place: Path) -> Manifest:
    """As good as the log itself, and open to any reader of one."""
    manifest = backup_manifest.load(VFS, str(place))
    assert manifest is not None
    log = node.store.log
    kept = [info for info in log.segments() if info.base_log_offset >= manifest.start_offset]
    assert [one.log_offset for one in manifest.segments] == [one.base_log_offset for one in kept]
    assert manifest.end_offset == log.end_offset
    assert manifest.last_index == log.last_index
    for info in kept:
        copied = place / "commitlog" / Path(info.path).name
        assert copied.read_bytes() == Path(info.path).read_bytes()[: info.size_bytes]
    count = log.last_index - manifest.first_index + 1
    assert backup_manifest.verify(VFS, str(place), manifest) == count
    return manifest


def test_a_backup_is_the_log_byte_for_byte_and_the_next_one_copies_what_is_new(
    node: LogNode, tmp_path: Path
) -> None:
    node.write(30)
    first = back_up(node, tmp_path / "b")
    assert len(first.segments) > 3
    assert assert_same(node, tmp_path / "b") == first
    assert first.completed_at is not None
    node.write(20)
    copy = Copy(VFS, str(tmp_path / "b"), node)
    second = copy.run()
    assert_same(node, tmp_path / "b")
    assert copy.copied_bytes == second.end_offset - first.end_offset
    assert second.created_at == first.created_at
    again = Copy(VFS, str(tmp_path / "b"), node)
    assert again.run().end_offset == second.end_offset
    assert again.copied_bytes == 0
    opened = CommitLog(VFS, str(tmp_path / "b/commitlog"), segment_bytes=4096, verify_bytes=1 << 30)
    assert opened.recovery.cut_bytes == 0
    opened.close()


def test_entries_written_during_a_copy_are_left_to_the_next_run(
    node: LogNode, tmp_path: Path
) -> None:
    end = node.store.log.end_offset
    node.before_read = lambda _: node.write(1)
    manifest = back_up(node, tmp_path / "b")
    assert end < manifest.end_offset < node.store.log.end_offset


@pytest.mark.parametrize("reads", [1, 2, 5, 9, 14, 20])
def test_a_run_that_is_interrupted_is_gone_on_with(
    node: LogNode, tmp_path: Path, reads: int
) -> None:
    node.write(25)

    def fail(number: int) -> None:
        if number == reads:
            raise Unreachable("gone")

    node.before_read = fail
    with pytest.raises(Unreachable):
        back_up(node, tmp_path / "b")
    # And whatever a crash leaves of the tail.
    for path in sorted((tmp_path / "b" / "commitlog").glob("*.log"))[-1:]:
        with path.open("r+b") as file:
            file.truncate(max(0, path.stat().st_size - 5))
    node.before_read = lambda _: None
    copy = Copy(VFS, str(tmp_path / "b"), node)
    copy.run()
    assert_same(node, tmp_path / "b")
    assert reads < 9 or copy.copied_bytes < node.store.log.end_offset


def test_retention_that_overtakes_the_first_run_moves_its_beginning(
    node: LogNode, tmp_path: Path
) -> None:
    node.write(30)
    notes: list[str] = []
    node.before_read = lambda number: node.drop_front() if number == 3 else None
    manifest = Copy(VFS, str(tmp_path / "b"), node, on_note=notes.append).run()
    assert manifest.start_offset == node.store.log.start_offset > 0
    assert manifest.first_index > 1
    assert_same(node, tmp_path / "b")
    assert len(notes) == 1
    # What is in a complete one stays, and it goes on as long as there is no gap.
    node.before_read = lambda _: None
    node.drop_front()
    node.write(10)
    assert back_up(node, tmp_path / "b").start_offset == manifest.start_offset


def test_a_log_that_left_a_gap_behind_the_backup_is_refused(node: LogNode, tmp_path: Path) -> None:
    manifest = back_up(node, tmp_path / "b")
    node.write(40)
    while node.store.log.start_offset <= manifest.end_offset:
        node.drop_front()
    with pytest.raises(IllegalRequest, match=r"dropped by retention .* another directory"):
        back_up(node, tmp_path / "b")
    assert backup_manifest.load(VFS, str(tmp_path / "b")) == manifest
    backup_manifest.verify(VFS, str(tmp_path / "b"), manifest)


def test_a_log_that_begins_right_behind_the_backup_continues_it(
    node: LogNode, tmp_path: Path
) -> None:
    node.write(10)
    roll(node.store, 10**9, 1)
    node.store.log.sync()
    apply_through(node.store, node.store.log.last_index)
    back_up(node, tmp_path / "b")
    while len(node.store.log.segments()) > 1:
        node.drop_front()
    node.write(10)
    back_up(node, tmp_path / "b")
    manifest = backup_manifest.load(VFS, str(tmp_path / "b"))
    assert manifest is not None
    backup_manifest.verify(VFS, str(tmp_path / "b"), manifest)
    assert manifest.end_offset == node.store.log.end_offset


def test_another_log_or_set_is_refused_and_the_backup_stays(node: LogNode, tmp_path: Path) -> None:
    node.write(10)
    manifest = back_up(node, tmp_path / "b")
    shorter = LogNode(tmp_path / "shorter")
    with pytest.raises(IllegalRequest, match="is far behind, or it is another log"):
        back_up(shorter, tmp_path / "b")
    other = LogNode(tmp_path / "other")
    other.write(40, size=299)
    with pytest.raises((IllegalRequest, LogDamaged)):
        back_up(other, tmp_path / "b")
    later = LogNode(tmp_path / "later", term=2)
    later.write(40)
    with pytest.raises(IllegalRequest, match=r"is not the one in .* another directory"):
        back_up(later, tmp_path / "b")
    stranger = LogNode(tmp_path / "stranger", Identity("mq", "set-1", "node-0"))
    with pytest.raises(IllegalRequest, match="of set set-0 in cluster mq, not of set set-1"):
        back_up(stranger, tmp_path / "b")
    assert backup_manifest.load(VFS, str(tmp_path / "b")) == manifest
    backup_manifest.verify(VFS, str(tmp_path / "b"), manifest)


def test_bytes_that_are_no_entries_are_not_taken(node: LogNode, tmp_path: Path) -> None:
    node.write(10)
    read = node.read

    def flipped(log_offset: int, bytes_max: int = 700) -> Chunk:
        chunk = read(log_offset, bytes_max)
        if not chunk.log_offset <= 2000 < chunk.log_offset + len(chunk.data):
            return chunk
        data = bytearray(chunk.data)
        data[2000 - chunk.log_offset] ^= 1
        return chunk._replace(data=bytes(data))

    node.read = flipped  # type: ignore[method-assign]
    with pytest.raises(LogDamaged, match="the log of n is damaged at byte"):
        back_up(node, tmp_path / "b")
    node.read = read  # type: ignore[method-assign]
    back_up(node, tmp_path / "b")
    assert_same(node, tmp_path / "b")


def test_two_runs_into_one_directory_do_not_mix(node: LogNode, tmp_path: Path) -> None:
    back_up(node, tmp_path / "b")
    lock = VFS.lock(str(tmp_path / "b" / "lock"))
    with pytest.raises(DataDirectoryInUse, match="another backup"):
        back_up(node, tmp_path / "b")
    lock.close()
    back_up(node, tmp_path / "b")


def test_the_lock_is_held_until_the_last_change(
    node: LogNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second run that begins while the first gives back its room would lose what it writes."""
    real, tried = Copy._trim, []

    def trim(copy: Copy, last: SegmentInfo) -> None:
        with pytest.raises(DataDirectoryInUse):
            Copy(VFS, str(tmp_path / "b"), node).run()
        tried.append(last)
        real(copy, last)

    monkeypatch.setattr(Copy, "_trim", trim)
    back_up(node, tmp_path / "b")
    assert len(tried) == 1
    assert_same(node, tmp_path / "b")


def test_a_complete_backup_without_its_first_file_is_not_gone_on_with(
    node: LogNode, tmp_path: Path
) -> None:
    node.write(20)
    manifest = back_up(node, tmp_path / "b")
    files = sorted((tmp_path / "b" / "commitlog").iterdir())
    node.write(5)
    for gone in (files[:2], files):
        for path in gone:
            path.unlink(missing_ok=True)
        with pytest.raises(LogDamaged, match="missing") as raised:
            back_up(node, tmp_path / "b")
        assert raised.value.path == str(files[1])
        assert backup_manifest.load(VFS, str(tmp_path / "b")) == manifest


def test_a_manifest_that_cannot_be_written_is_no_traceback_and_the_next_run_goes_on(
    node: LogNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    node.write(20)
    with monkeypatch.context() as patched:
        patched.setattr("mq.cli.backup_copy.save", fail)
        with pytest.raises(StorageFailed, match=r"No space left .* run it again"):
            back_up(node, tmp_path / "b")
    back_up(node, tmp_path / "b")
    assert_same(node, tmp_path / "b")


def test_a_directory_that_is_no_backup_is_left_alone(node: LogNode) -> None:
    node.close()
    before = {path: path.read_bytes() for path in node.data.rglob("*") if path.is_file()}
    with pytest.raises(IllegalRequest, match="it is no backup"):
        back_up(node, node.data)
    assert before == {path: path.read_bytes() for path in node.data.rglob("*") if path.is_file()}


# -- what is damaged -------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [3, 9, 41, 700, 2000, -1])
def test_a_flipped_byte_is_found_with_file_and_position(
    node: LogNode, tmp_path: Path, at: int
) -> None:
    node.write(20)
    manifest = back_up(node, tmp_path / "b")
    path = sorted((tmp_path / "b" / "commitlog").glob("*.log"))[1]
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)
    with pytest.raises(LogDamaged) as raised:
        backup_manifest.verify(VFS, str(tmp_path / "b"), manifest)
    assert raised.value.path == str(path)
    assert raised.value.position <= at % len(data)


def test_missing_and_short_files_are_found(node: LogNode, tmp_path: Path) -> None:
    node.write(20)
    manifest = back_up(node, tmp_path / "b")
    first, second, *_ = sorted((tmp_path / "b" / "commitlog").glob("*.log"))
    second.write_bytes(second.read_bytes()[:-3])
    with pytest.raises(LogDamaged, match="is cut short") as raised:
        backup_manifest.verify(VFS, str(tmp_path / "b"), manifest)
    assert raised.value.path == str(second)
    first.unlink()
    with pytest.raises(LogDamaged, match="the file is missing") as raised:
        backup_manifest.verify(VFS, str(tmp_path / "b"), manifest)
    assert raised.value.path == str(first)


def test_intact_entries_of_another_log_are_found(node: LogNode, tmp_path: Path) -> None:
    """Each of them intact: it is the manifest that tells."""
    node.write(20)
    manifest = back_up(node, tmp_path / "b")
    other = LogNode(tmp_path / "other")
    other.write(20, seed=100)
    back_up(other, tmp_path / "o")
    name = sorted((tmp_path / "b" / "commitlog").glob("*.log"))[2].name
    shutil.copy(tmp_path / "o" / "commitlog" / name, tmp_path / "b" / "commitlog" / name)
    with pytest.raises(LogDamaged):
        backup_manifest.verify(VFS, str(tmp_path / "b"), manifest)


@pytest.mark.parametrize("damage", ["", "{", '{"format_version": 1}', "[]", "\udcff"])
def test_an_illegal_manifest_is_refused(node: LogNode, tmp_path: Path, damage: str) -> None:
    back_up(node, tmp_path / "b")
    (tmp_path / "b" / "manifest.json").write_bytes(damage.encode(errors="surrogateescape"))
    with pytest.raises((LogDamaged, IllegalRequest)):
        backup_manifest.find(VFS, str(tmp_path / "b"))
    with pytest.raises((LogDamaged, IllegalRequest)):
        back_up(node, tmp_path / "b")


@pytest.mark.parametrize("word", ["mq", "set-0", "stored_at_ms", "completed_at", "1000000"])
def test_a_manifest_that_was_changed_is_refused(node: LogNode, tmp_path: Path, word: str) -> None:
    back_up(node, tmp_path / "b")
    path = tmp_path / "b" / "manifest.json"
    text = path.read_text()
    assert word in text
    path.write_text(text.replace(word, word[:-1] + chr(ord(word[-1]) ^ 1)))
    with pytest.raises(LogDamaged, match="manifest") as raised:
        backup_manifest.load(VFS, str(tmp_path / "b"))
    assert raised.value.path == str(path)


def test_a_manifest_whose_segments_do_not_join_is_refused(node: LogNode, tmp_path: Path) -> None:
    node.write(20)
    manifest = back_up(node, tmp_path / "b")
    segments = [manifest.segments[0], *manifest.segments[2:]]
    backup_manifest.save(
        VFS, str(tmp_path / "b"), msgspec.structs.replace(manifest, segments=segments)
    )
    with pytest.raises(LogDamaged, match="no segment starts at log offset"):
        backup_manifest.load(VFS, str(tmp_path / "b"))


def test_backups_are_found_by_their_sets(node: LogNode, tmp_path: Path) -> None:
    back_up(node, tmp_path / "b" / "set-0")
    (tmp_path / "b" / "notes").mkdir()
    found = backup_manifest.find(VFS, str(tmp_path / "b"))
    assert found == {"set-0": str(tmp_path / "b" / "set-0")}
    assert backup_manifest.find(VFS, found["set-0"]) == found
    with pytest.raises(IllegalRequest, match="is no backup"):
        backup_manifest.find(VFS, str(tmp_path / "b" / "notes"))


# -- sources ---------------------------------------------------------------------------------------


def test_a_stopped_node_is_copied_as_it_would_start(node: LogNode, tmp_path: Path) -> None:
    node.write(20)
    with pytest.raises(DataDirectoryInUse, match="stop the node"):
        StoppedNode(VFS, str(node.data))
    end_offset, last = node.store.log.end_offset, node.store.log.segments()[-1]
    node.close()
    # What a crash left of an entry.
    with Path(last.path).open("r+b") as file:
        file.seek(last.size_bytes)
        file.write(b"MQE\x01 and no more")
    before = {path: path.read_bytes() for path in node.data.rglob("*") if path.is_file()}
    with StoppedNode(VFS, str(node.data)) as source:
        manifest = Copy(VFS, str(tmp_path / "b"), source).run()
    assert manifest.end_offset == end_offset
    assert (manifest.cluster, manifest.broker_set) == ("mq", "set-0")
    backup_manifest.verify(VFS, str(tmp_path / "b"), manifest)
    assert before == {path: path.read_bytes() for path in node.data.rglob("*") if path.is_file()}


def test_a_stopped_node_with_damage_is_refused(node: LogNode, tmp_path: Path) -> None:
    node.write(20)
    path = Path(node.store.log.segments()[-1].path)
    node.close()
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogDamaged) as raised:
        StoppedNode(VFS, str(node.data))
    assert raised.value.path == str(path)
    with pytest.raises(WrongDirectory, match="no data directory"):
        StoppedNode(VFS, str(tmp_path))


def test_nodes_are_asked_in_turn_until_one_has_what_is_wanted() -> None:
    def answer(server: str, log_offset: int, bytes_max: int) -> pb.LogChunk:
        assert bytes_max
        if server == "down":
            raise Unreachable("gone")
        start = 500 if server == "short" else 0
        end = 800 if server == "behind" else 1000
        log_offset = max(log_offset, start)
        data = b"x" * max(0, end - log_offset)
        return pb.LogChunk(log_offset=log_offset, data=data, end_offset=end)

    def source(*servers: str) -> RunningNodes:
        admin = FakeAdmin(read_log=answer)
        return RunningNodes(admin, "mq", "a", [(one, one) for one in servers])  # type: ignore[arg-type]

    assert source("down", "short", "full").read(100) == Chunk(100, b"x" * 900, 1000)
    assert source("behind", "full").read(900) == Chunk(900, b"x" * 100, 1000)
    assert source("short", "down").read(0) == Chunk(500, b"x" * 500, 1000)
    assert source("short", "down").read(100) == Chunk(500, b"x" * 500, 1000)
    assert source("behind").read(900) == Chunk(900, b"", 800)
    with pytest.raises(Unreachable, match="no node of broker set a"):
        source("down").read(0)
