"""A large segment is checked by two threads, half and half: they find what one finds."""

from __future__ import annotations

import random
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any

import pytest

from mq.errors import SegmentFull
from mq.store import examine, scan
from tests.support.logs import DIRECTORY, append, checkpoint, disk, new_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.faulty_vfs import FaultyVfs


class AtOnce(Executor):
    """The disk of these tests is for one thread."""

    def __init__(self) -> None:
        self.calls = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls += 1
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except OSError as error:
            future.set_exception(error)
        return future


def damaged_log(rng: random.Random) -> FaultyVfs:
    vfs = disk(rng.randrange(1 << 30))
    log = new_log(vfs, segment_bytes=8192, zero_ahead=rng.random() < 0.5)
    for _ in range(rng.randint(1, 60)):
        try:
            append(log, rng.randbytes(rng.choice([0, 30, 200, 700])))
        except SegmentFull:
            log.roll(checkpoint(b""))
        if rng.random() < 0.3:
            log.sync()
    vfs.kill()
    for name in vfs.list_dir(DIRECTORY):
        if rng.random() < 0.5:
            path = f"{DIRECTORY}/{name}"
            vfs.flip_bit(path, rng.randrange(len(vfs.read_all(path))), rng.randrange(8))
    if rng.random() < 0.3:
        vfs.fail("pread", ".log", after=rng.randint(0, 6))
    return vfs


def test_two_halves_are_found_to_be_what_the_whole_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "_HALVES_BYTES", 0)
    monkeypatch.setattr(scan, "CHUNK_BYTES", 512)
    executor = AtOnce()
    for seed in range(400):
        rng = random.Random(seed)
        vfs = damaged_log(rng)
        for base in examine.segment_bases(vfs, DIRECTORY):
            whole = examine.examine(vfs, DIRECTORY, base, check=True)
            halves = examine.examine(vfs, DIRECTORY, base, check=True, executor=executor)
            if whole.error is None and halves.error is None:
                assert halves == whole, f"seed {seed}"
    assert executor.calls > 400


def test_a_disk_that_fails_in_the_second_half_says_how_far_the_log_was_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(examine, "_HALVES_BYTES", 0)
    monkeypatch.setattr(scan, "CHUNK_BYTES", 512)
    vfs = disk()
    log = new_log(vfs, segment_bytes=1 << 20)
    for _ in range(40):
        append(log, bytes(100))
    log.sync()
    log.close()
    executor = AtOnce()
    good = examine.examine(vfs, DIRECTORY, 0, check=True, executor=executor)
    assert (good.scan.count, good.scan.problem) == (41, "")
    # After what finds the middle; every scan reads in chunks of 512 bytes, the second half first.
    vfs.fail("pread", ".log", after=5)
    failed = examine.examine(vfs, DIRECTORY, 0, check=True, executor=executor)
    assert failed.error is not None
    assert "cannot be read" in failed.scan.problem
    assert 20 < failed.scan.count < 41
