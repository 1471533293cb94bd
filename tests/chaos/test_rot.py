"""Rot hits what brokers promise to mend: never one segment on two nodes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.chaos import rot_disk
from tests.chaos.rot import Segment, spread

if TYPE_CHECKING:
    from pathlib import Path

NODES = ("a1", "a2", "a3")


@pytest.mark.parametrize("seed", range(20))
def test_each_node_has_a_damaged_segment_of_its_own(seed: int) -> None:
    segments = [Segment(f"commitlog/{at:020d}.log", 100) for at in range(0, 500, 100)]
    hit = spread(random.Random(seed), segments, NODES)
    assert sorted(node for node, _ in hit) == sorted(NODES)
    assert len({segment for _, segment in hit}) == len(NODES)
    assert len(spread(random.Random(seed), segments[:1], NODES)) == 1


def test_a_flip_changes_one_bit_and_tells_the_byte_before(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    file = tmp_path / "index" / "0"
    file.write_bytes(b"\x00\x01\x02")
    assert rot_disk.files(tmp_path, None) == {"index/0": 3}
    assert rot_disk.flip(tmp_path, [("index/0", 1, 3)]) == ["01"]
    assert rot_disk.read(tmp_path, [("index/0", 0, 3)]) == ["000902"]
    rot_disk.cut(tmp_path, [("index/0", 1)])
    assert file.read_bytes() == b"\x00"
