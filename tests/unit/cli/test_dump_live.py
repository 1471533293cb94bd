"""`mq dump` beside a running broker: it changes nothing, and what changes under it is no damage."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from mq.errors import SegmentFull
from mq.store import checkpoint
from mq.store.batch import encode_payload
from mq.store.commitlog import CommitLog, NewEntry
from mq.store.format import Kind
from mq.store.vfs import RealVfs
from tests.unit.cli.test_dump import (
    NOW_MS,
    VIEWS,
    batch,
    expected_queues,
    fill,
    open_store,
    run,
    run_json,
    segment_files,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def everything(directory: Path) -> dict[str, tuple[int, int, int, str]]:
    """All that could change: names, inodes, sizes, times of the last change, content."""
    found = {}
    for path in sorted([directory, *directory.rglob("*")]):
        stat = path.stat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = (stat.st_ino, stat.st_size, stat.st_mtime_ns, digest)
    return found


@pytest.mark.parametrize("is_running", [False, True], ids=["closed", "in use"])
def test_nothing_in_the_directory_changes(tmp_path: Path, is_running: bool) -> None:
    data = tmp_path / "data"
    store = open_store(data)
    fill(store, 120)
    if not is_running:
        store.close()
    segment = segment_files(data)[0].with_suffix(".idx")
    segment.rename(tmp_path / "lost.idx")
    before = everything(data)
    for options in VIEWS:
        assert run(data, *options).exit_code == 0
    assert everything(data) == before
    if is_running:
        store.close()


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Path]:
    """The log of a broker that appends, rolls, cuts and drops as quickly as it can."""
    directory = tmp_path / "data"
    log = CommitLog(
        RealVfs(),
        str(directory / "commitlog"),
        segment_bytes=64 << 10,
        verify_bytes=1 << 20,
        zero_ahead=True,
    )
    empty = NewEntry(Kind.CHECKPOINT, 1, NOW_MS, checkpoint.encode_entry([], b""))
    messages = NewEntry(
        Kind.MESSAGES, 1, NOW_MS, encode_payload([batch("orders", 0, 3), batch("orders", 1, 20)])
    )
    log.roll(empty)
    stop = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            count = 0
            while not stop.is_set():
                count += 1
                try:
                    log.append([messages] * (count % 3 + 1))
                except SegmentFull:
                    log.roll(empty)
                if count % 5 == 0:
                    log.sync()
                if count % 97 == 0 and log.last_index > log.first_index + 3:
                    log.truncate(log.last_index - 2)
                if len(log.segments()) > 6:
                    log.drop_front(3)
        except BaseException as error:  # noqa: BLE001 - reported below
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield directory
    finally:
        stop.set()
        thread.join()
        log.close()
    assert failures == []


def test_a_log_that_is_written_meanwhile_is_never_called_damaged(busy: Path) -> None:
    lasts = []
    for _ in range(8):
        for options in VIEWS:
            result = run(busy, *options)
            assert result.exit_code == 0, result.output
        found = run_json(busy, "--verify")
        assert found["ending"] != "damaged"
        lasts.append(max(segment["last_index"] for segment in found["segments"]))
        entries = run_json(busy, "--entries", "--limit", 0)["entries"]
        indexes = [entry["raft_index"] for entry in entries]
        assert len(set(indexes)) == len(indexes)
    assert lasts[-1] > lasts[0]


def test_the_program_dumps_a_directory_in_use(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 30)
    command = [sys.executable, "-m", "mq", "dump", str(tmp_path), "--queues", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    store.close()
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["queues"] == expected_queues(30)
