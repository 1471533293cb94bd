"""Offsets that the client keeps: the old file or the new one, and never half of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mq.client.consumer.offsets import BroadcastOffsets
from mq.client.messages import QueueRef
from mq.errors import IllegalConfig

FIRST, SECOND = QueueRef("orders", 0, "a"), QueueRef("orders", 11, "b")


def test_saved_offsets_are_loaded_again(tmp_path: Path) -> None:
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
def test_a_foreign_file_is_refused_by_name(tmp_path: Path, content: str) -> None:
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
    path.write_text(path.read_text().replace('"version": 2', '"version": 3'))
    with pytest.raises(IllegalConfig, match="version 3; this client reads 1 and 2"):
        BroadcastOffsets("g", path)


def old_file(tmp_path: Path) -> Path:
    """As clients wrote it that knew of one broker set."""
    path = tmp_path / "offsets.json"
    topics = {"orders": {"0": 5, "11": 7}, "returns": {"0": 2}}
    path.write_text(json.dumps({"version": 1, "group": "g", "offsets": topics}))
    return path


def test_an_old_file_is_of_the_one_set_that_has_the_topic(tmp_path: Path) -> None:
    path = old_file(tmp_path)
    offsets = BroadcastOffsets("g", path)
    offsets.adopt("orders", ["a"])
    assert offsets.of("a") == {FIRST: 5, QueueRef("orders", 11, "a"): 7}
    offsets.note({FIRST: 6})
    offsets.save()
    again = BroadcastOffsets("g", path)
    again.adopt("orders", ["a", "b"])
    again.adopt("returns", ["b"])
    assert again.of("a") == {FIRST: 6, QueueRef("orders", 11, "a"): 7}
    assert again.of("b") == {QueueRef("returns", 0, "b"): 2}


def test_an_old_file_is_of_no_use_where_it_could_be_of_several_sets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong offset would pass over messages."""
    offsets = BroadcastOffsets("g", old_file(tmp_path))
    offsets.adopt("orders", ["a", "b"])
    assert offsets.of("a") == offsets.of("b") == {}
    assert "topic orders of group g" in caplog.text
    offsets.adopt("returns", [])
    assert offsets.offsets == {}
