"""A cut of the power of a disk costs what was not synced: a run on such disks can fail."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

import pytest

from tests.power_loss import disks
from tests.power_loss.disks import Cut, Disk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = mmap.PAGESIZE


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if reason := disks.why_not():
        pytest.skip(reason)
    made = Disk(tmp_path / "disk")
    try:
        made.make()
        yield made
    finally:
        made.remove()


def write(path: Path, byte: bytes, *, sync: bool) -> None:
    """One page, straight to the device: without `sync`, the device is not told to flush."""
    page = mmap.mmap(-1, PAGE)
    page.write(byte * PAGE)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    try:
        os.pwrite(descriptor, page, 0)
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("way", Cut)
def test_a_cut_keeps_what_was_synced_and_loses_the_page_cache(disk: Disk, way: Cut) -> None:
    write(disk.directory / "synced", b"s", sync=True)
    (disk.directory / "cached").write_bytes(b"c" * PAGE)
    disk.cut(way)
    disk.restore()
    assert (disk.directory / "synced").read_bytes() == b"s" * PAGE
    assert not (disk.directory / "cached").exists()


@pytest.mark.parametrize(("way", "left"), [(Cut.COPY, b"n"), (Cut.DROP, b"o")])
def test_a_drop_also_loses_what_the_device_was_not_told_to_flush(
    disk: Disk, way: Cut, left: bytes
) -> None:
    page = disk.directory / "page"
    write(page, b"o", sync=True)
    write(page, b"n", sync=False)
    disk.cut(way)
    disk.restore()
    assert page.read_bytes() == left * PAGE


def test_a_disk_is_used_again_after_many_cuts(disk: Disk) -> None:
    for number, way in enumerate([Cut.COPY, Cut.DROP] * 3):
        write(disk.directory / f"{number}", b"s", sync=True)
        disk.cut(way)
        disk.restore()
    left = {path.name for path in disk.directory.iterdir()} - {"lost+found"}
    assert left == {str(number) for number in range(6)}
