"""The checker that all scenarios rely on finds what it has to find. No processes here."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from mq.store.identity import Identity
from mq.store.keyindex import item_blocks
from mq.store.store import Store
from mq.store.vfs import RealVfs
from tests.support.log_compare import Replica, compare, main
from tests.support.stores import SMALL, apply_through, fill, roll

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SLOTS = SMALL.index_slots


@pytest.fixture
def replicas(tmp_path: Path) -> list[Path]:
    """Two of the same log."""
    one, two = tmp_path / "one", tmp_path / "two"
    store = Store(RealVfs(), str(one), SMALL, Identity("mq", "set-0", "node-0"))
    apply_through(store, roll(store, 0).raft_index)
    fill(store, 6)
    store.close()
    shutil.copytree(one, two)
    return [one, two]


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_copies_are_the_same(replicas: list[Path]) -> None:
    assert compare(replicas, index_slots=SLOTS) == []
    assert compare(replicas, Replica(replicas[0]).last_index, index_slots=SLOTS) == []


def test_entries_dropped_at_the_front_of_one_log_are_not_missed(replicas: list[Path]) -> None:
    store = Store(RealVfs(), str(replicas[1]), SMALL, Identity("mq", "set-0", "node-0"))
    store.drop_front(2)
    store.close()
    assert compare(replicas, index_slots=SLOTS) == []


def segment(directory: Path, number: int, suffix: str = "log") -> Path:
    return sorted((directory / "commitlog").glob(f"*.{suffix}"))[number]


def remove_segment(directory: Path) -> None:
    for suffix in ("log", "idx"):
        segment(directory, -1, suffix).unlink()


def remove_unit(directory: Path) -> None:
    path = max((directory / "consumequeue" / "orders" / "0").iterdir())
    path.write_bytes(path.read_bytes()[:-20])


def first_file(directory: Path, folder: str) -> Path:
    return min(path for path in (directory / folder).rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda directory: flip(segment(directory, 2), 100),
        lambda directory: flip(segment(directory, -1), 60),
        lambda directory: flip(segment(directory, 1, "idx"), 45),
        lambda directory: flip(first_file(directory, "consumequeue"), 3),
        lambda directory: flip(first_file(directory, "index"), item_blocks(SLOTS).at),
        remove_segment,
        remove_unit,
    ],
    ids=["entry", "newest entry", "idx", "queue", "key index", "segment", "unit"],
)
def test_a_difference_is_found(replicas: list[Path], spoil: Callable[[Path], None]) -> None:
    spoil(replicas[1])
    assert compare(replicas, index_slots=SLOTS) != []


def test_other_borders_of_segments_are_a_difference(tmp_path: Path, replicas: list[Path]) -> None:
    """The same entries, each of them intact."""
    other = tmp_path / "other"
    store = Store(RealVfs(), str(other), SMALL, Identity("mq", "set-0", "node-0"))
    apply_through(store, roll(store, 0).raft_index)
    apply_through(store, roll(store, 0).raft_index)
    fill(store, 6)
    store.close()
    assert any("segments of" in each for each in compare([replicas[0], other], index_slots=SLOTS))


def test_a_replica_that_ends_before_the_commit_point_is_found(replicas: list[Path]) -> None:
    last_index = Replica(replicas[0]).last_index
    assert any("before" in each for each in compare(replicas, last_index + 1, index_slots=SLOTS))


def test_the_command_line_ends_with_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directories = [tmp_path / name for name in ("one", "two")]
    for directory in directories:
        store = Store(RealVfs(), str(directory), SMALL, Identity("mq", "set-0", "node-0"))
        apply_through(store, roll(store, 0).raft_index)
        store.close()
    assert main([str(directory) for directory in directories]) == 0
    assert capsys.readouterr().out == "the same\n"
    flip(segment(directories[1], 0), 20)
    assert main([str(directory) for directory in directories]) == 1
