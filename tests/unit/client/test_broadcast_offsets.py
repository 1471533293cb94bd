"""Offsets that the client keeps: the old file or the new one, and never half of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq.client.broadcast_offsets import BroadcastOffsets
from mq.client.model import QueueRef
from mq.errors import IllegalConfig

FIRST, SECOND = QueueRef("orders", 0), QueueRef("orders", 11)


def test_what_was_saved_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    offsets = BroadcastOffsets("g", path)
    assert offsets.offsets == {}
    assert offsets.note({FIRST: 5, SECOND: 7})
    assert offsets.note({FIRST: 6})
    offsets.save()
    assert BroadcastOffsets("g", path).offsets == {FIRST: 6, SECOND: 7}
    assert [one.name for one in tmp_path.iterdir()] == ["offsets.json"]


def test_nothing_is_to_be_saved_when_nothing_is_new_or_there_is_no_file(tmp_path: Path) -> None:
    offsets = BroadcastOffsets("g", tmp_path / "offsets.json")
    assert offsets.note({FIRST: 5})
    assert not offsets.note({FIRST: 5})
    assert not offsets.note({})
    in_memory = BroadcastOffsets("g", None)
    assert not in_memory.note({FIRST: 5})
    in_memory.save()
    assert in_memory.offsets == {FIRST: 5}


def test_a_failed_save_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "offsets.json"
    offsets = BroadcastOffsets("g", path)
    offsets.note({FIRST: 5})
    offsets.save()
    before = path.read_bytes()

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    offsets.note({FIRST: 6})
    with pytest.raises(OSError, match="No space left"):
        offsets.save()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"version": 1, "group": "g", "offsets": {"orders": {"x": 1}}}', "\x00"],
)
def test_a_file_that_is_none_of_ours_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "offsets.json"
    path.write_text(content)
    with pytest.raises(IllegalConfig, match=r"offsets\.json cannot be used.*move it away"):
        BroadcastOffsets("g", path)


def test_a_file_of_another_group_or_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    offsets = BroadcastOffsets("g", path)
    offsets.note({FIRST: 5})
    offsets.save()
    with pytest.raises(IllegalConfig, match="is of group g, not of h"):
        BroadcastOffsets("h", path)
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(IllegalConfig, match="version 2"):
        BroadcastOffsets("g", path)
