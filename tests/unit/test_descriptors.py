"""Shares of the descriptors; changes of the process, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

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


SCRIPT = """
import os, resource
from mq import descriptors
from mq.store.vfs import RealVfs

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))
print(descriptors.claim(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    print(error.strerror)
vfs = RealVfs()
file = vfs.open("file", create=True)
vfs.sync_dir(".")
vfs.remove("file")
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_the_store_opens_a_file_when_all_other_descriptors_are_taken(
    tmp_path: object,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        cwd=str(tmp_path),
        timeout=120,
    )
    assert done.stdout.splitlines() == ["128 96", "Too many open files", "96"]
