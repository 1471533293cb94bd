"""A data directory has one owner, one process at a time, and is left alone by all others."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from mq.errors import DataDirectoryInUse, WrongDataDirectory
from mq.store import identity
from mq.store.identity import Identity, take
from mq.store.vfs import RealVfs
from tests.support.faulty_vfs import FaultyVfs, Operation

if TYPE_CHECKING:
    from pathlib import Path

DATA = "/data"
NODE_TOML = f"{DATA}/{identity.FILE_NAME}"
OURS = Identity("prod", "set-1", "node-1")
SEEDS = range(50)


@pytest.fixture
def vfs() -> FaultyVfs:
    return FaultyVfs()


def everything(vfs: FaultyVfs) -> dict[str, bytes]:
    return {name: vfs.read_all(f"{DATA}/{name}") for name in vfs.list_dir(DATA)}


def owned(vfs: FaultyVfs) -> FaultyVfs:
    """Owned by us, and without a running process."""
    take(vfs, DATA, OURS).close()
    return vfs


def test_a_new_directory_becomes_ours_for_good(vfs: FaultyVfs) -> None:
    take(vfs, "/mnt/disk/data", OURS)
    assert identity.read(vfs, "/mnt/disk/data") == OURS
    vfs.crash(0, keep=0)
    assert identity.read(vfs, "/mnt/disk/data") == OURS
    take(vfs, "/mnt/disk/data", OURS)


def test_a_directory_without_an_owner_has_no_identity(vfs: FaultyVfs) -> None:
    assert identity.read(vfs, DATA) is None


@pytest.mark.parametrize(
    "other",
    [
        OURS._replace(cluster="test"),
        OURS._replace(broker_set="set-2"),
        OURS._replace(node="node-2"),
    ],
    ids=["cluster", "set", "node"],
)
def test_the_directory_of_another_is_refused_and_left_alone(
    vfs: FaultyVfs, other: Identity
) -> None:
    owned(vfs)
    before = everything(vfs)
    with pytest.raises(WrongDataDirectory) as caught:
        take(vfs, DATA, other)
    for name in (DATA, *OURS, *other):
        assert name in str(caught.value)
    assert everything(vfs) == before
    take(vfs, DATA, OURS)


@pytest.mark.parametrize("version", ["0", "2", '"1"'])
def test_another_version_of_the_format_is_refused(vfs: FaultyVfs, version: str) -> None:
    owned(vfs)
    text = vfs.read_all(NODE_TOML).replace(
        b"format_version = 1", f"format_version = {version}".encode()
    )
    vfs.write_all(NODE_TOML, text)
    before = everything(vfs)
    with pytest.raises(WrongDataDirectory, match="version"):
        take(vfs, DATA, OURS)
    assert everything(vfs) == before


@pytest.mark.parametrize("content", [b"", b"\0" * 60, b"node = ", b"\xff\xfe", b"a = 1\n"])
def test_a_damaged_identity_is_refused_and_left_alone(vfs: FaultyVfs, content: bytes) -> None:
    owned(vfs)
    vfs.write_all(NODE_TOML, content)
    before = everything(vfs)
    with pytest.raises(WrongDataDirectory, match=r"node\.toml"):
        take(vfs, DATA, OURS)
    assert everything(vfs) == before


def test_every_line_of_the_identity_is_needed(vfs: FaultyVfs) -> None:
    owned(vfs)
    lines = vfs.read_all(NODE_TOML).splitlines(keepends=True)
    assert len(lines) == 4
    for index in range(len(lines)):
        vfs.write_all(NODE_TOML, b"".join(lines[:index] + lines[index + 1 :]))
        with pytest.raises(WrongDataDirectory):
            take(vfs, DATA, OURS)


@pytest.mark.parametrize("name", ["photos", "commitlog", "vote"])
def test_a_directory_with_something_else_in_it_is_refused(vfs: FaultyVfs, name: str) -> None:
    vfs.make_dirs(DATA)
    vfs.write_all(f"{DATA}/{name}", b"content")
    with pytest.raises(WrongDataDirectory, match=name):
        take(vfs, DATA, OURS)
    assert everything(vfs) == {name: b"content"}


def test_the_root_of_a_fresh_mount_may_be_taken(vfs: FaultyVfs) -> None:
    vfs.make_dirs(f"{DATA}/lost+found")
    take(vfs, DATA, OURS)
    assert identity.read(vfs, DATA) == OURS


def test_a_refused_directory_is_not_kept_locked(vfs: FaultyVfs) -> None:
    owned(vfs)
    with pytest.raises(WrongDataDirectory):
        take(vfs, DATA, OURS._replace(node="node-2"))
    take(vfs, DATA, OURS).close()
    take(vfs, DATA, OURS)
    with pytest.raises(DataDirectoryInUse, match=DATA):
        take(vfs, DATA, OURS)


@pytest.mark.parametrize("operation", ["open", "pwritev", "sync", "replace", "sync_dir"])
@pytest.mark.parametrize("keep", [0, 0.5, 1])
def test_a_crash_while_a_directory_is_first_taken_leaves_it_free_or_ours(
    operation: Operation, keep: float
) -> None:
    for seed in SEEDS:
        vfs = FaultyVfs(seed)
        vfs.fail(operation, DATA, after=seed % 2)
        try:
            take(vfs, DATA, OURS)
        except OSError:
            vfs.crash(seed, keep)
            take(vfs, DATA, OURS)
        vfs.crash(seed, keep=0)
        assert identity.read(vfs, DATA) == OURS, f"seed {seed}"


def test_a_first_take_that_failed_can_be_tried_again(vfs: FaultyVfs) -> None:
    vfs.fail("pwritev", DATA)
    with pytest.raises(OSError, match="Input/output"):
        take(vfs, DATA, OURS)
    take(vfs, DATA, OURS)
    assert identity.read(vfs, DATA) == OURS


SECOND_PROCESS = """
import sys
from mq.errors import DataDirectoryInUse
from mq.store.identity import Identity, take
from mq.store.vfs import RealVfs
try:
    take(RealVfs(), sys.argv[1], Identity("prod", "set-1", "node-1"))
except DataDirectoryInUse:
    sys.exit(3)
"""


def second_process(directory: Path) -> int:
    command = [sys.executable, "-c", SECOND_PROCESS, str(directory)]
    return subprocess.run(command, check=False, timeout=60).returncode


def test_a_second_process_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    lock = take(RealVfs(), str(directory), OURS)
    assert second_process(directory) == 3
    lock.close()
    assert second_process(directory) == 0
    take(RealVfs(), str(directory), OURS).close()


def test_a_relative_path_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    take(RealVfs(), "a/b/", OURS).close()
    assert identity.read(RealVfs(), f"{tmp_path}/a/b") == OURS
