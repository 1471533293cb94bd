"""Shares of the descriptors; changes of the process, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mq import descriptors
from mq.errors import IllegalConfig


@pytest.mark.parametrize(
    ("limit", "listeners", "expected"),
    [(1_024, 1, 256), (1_024, 2, 128), (20_000, 1, 5_000), (1 << 20, 1, 10_000), (2, 1, 1)],
)
def test_clients_get_a_quarter_of_the_descriptors(
    limit: int, listeners: int, expected: int
) -> None:
    assert descriptors.connections_max(0, limit, listeners=listeners) == expected


def test_a_number_that_leaves_the_store_too_few_is_refused() -> None:
    assert descriptors.connections_max(384, 1_024, listeners=1) == 384
    with pytest.raises(IllegalConfig, match=r"too much for 1024 open files: at most 384.*ulimit"):
        descriptors.connections_max(385, 1_024, listeners=1)
    with pytest.raises(IllegalConfig, match="at most 192"):
        descriptors.connections_max(193, 1_024, listeners=2)


TAKE_ALL = """
import os, resource
from mq import descriptors
from mq.store.vfs import RealVfs

def take_all():
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as error:
        print(error.strerror)
    return taken

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))
print(descriptors.claim(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
THE_STORE = f"""
{TAKE_ALL}
taken = take_all()
vfs = RealVfs()
file = vfs.open("file", create=True)
vfs.sync_dir(".")
vfs.remove("file")
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
# Three refusals, none of which changes anything; then there are descriptors again.
THE_LOG = f"""
{TAKE_ALL}
from mq.errors import DiskFull
from tests.support.logs import append, checkpoint, new_log, open_log, payloads

log = new_log(RealVfs(), directory="log")
append(log, b"a")
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
taken = take_all()
for _ in range(3):
    try:
        log.roll(checkpoint(b"none"))
    except DiskFull as error:
        print(error.code.name)
append(log, b"b")
log.sync()
for each in taken:
    os.close(each)
log.roll(checkpoint(b"state"))
append(log, b"c")
log.sync()
log.close()
print(payloads(open_log(RealVfs(), directory="log")))
"""


def lines_of(script: str, directory: Path) -> list[str]:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(root)},
        timeout=120,
    )
    return done.stdout.splitlines()


def test_the_store_opens_a_file_when_all_other_descriptors_are_taken(tmp_path: Path) -> None:
    assert lines_of(THE_STORE, tmp_path) == ["128 96", "Too many open files", "96"]


def test_a_log_without_any_descriptor_refuses_its_next_segment_and_goes_on(tmp_path: Path) -> None:
    refused = ["DISK_FULL"] * 3
    expected = ["128 96", "Too many open files", *refused, str([b"a", b"b", b"c"])]
    assert lines_of(THE_LOG, tmp_path) == expected
