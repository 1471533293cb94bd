"""A node that gets no memory from the kernel: it says so, in place of a traceback."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="no other kernel has /proc/self/statm"
)

# A limit on the address space as it is now, and a little more: less than the stack of a thread.
SCRIPT = """
import resource
import sys
import threading
from mq import config, memory

data, more = sys.argv[1], int(sys.argv[2])
options = {"node.data": data, "broker.port": 0, "metrics.enabled": "no"}
loaded = config.load(None, {}, options)

def limit():
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, used + more))
"""
NODE = """
from mq.errors import NodeStopped
from mq.server import _loop_factory, run

(_loop_factory() or (lambda: None))()  # libraries that are loaded with the loop
limit()
try:
    run(loaded)
except NodeStopped as error:
    print(error)
"""
KINDS = """
import mmap

limit()
for take in (
    lambda: bytearray(1 << 30),
    lambda: mmap.mmap(-1, 1 << 30),
    threading.Thread(target=print).start,
    lambda: print(1 / 0),
):
    try:
        take()
    except Exception as error:
        print(memory.is_exhausted(error))
"""


def output(tmp_path: Path, script: str, more: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + script, str(tmp_path / "data"), str(more)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_node_that_gets_no_memory_at_its_start_says_what_to_do(tmp_path: Path) -> None:
    found = output(tmp_path, NODE, 4 << 20)
    assert "no memory is left, or no thread: give the node more" in found


def test_the_allocator_a_map_and_a_thread_can_find_no_memory(tmp_path: Path) -> None:
    assert output(tmp_path, KINDS, 1 << 20).split() == ["True", "True", "True", "False"]
