"""Memory settings of the process, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc
from mq import memory

before = gc.get_freeze_count()
memory.collect_seldom()
print(gc.get_threshold()[0] >= 10_000, gc.get_freeze_count() > before, memory.keep_freed_memory())
"""


def test_the_collector_looks_seldom_and_the_allocator_keeps_what_is_freed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=120
    )
    is_seldom, is_frozen, is_kept = done.stdout.split()
    assert (is_seldom, is_frozen) == ("True", "True")
    # Only glibc can be told.
    assert is_kept in ("True", "False")


def test_a_freed_buffer_is_used_again_without_a_page_fault() -> None:
    if not sys.platform.startswith("linux"):
        return
    script = """
import resource
from mq import memory

kept = memory.keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    chunk = bytearray(4 << 20); del chunk
before = faults()
for _ in range(20):
    chunk = bytearray(4 << 20); del chunk
print(kept, faults() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    kept, count = done.stdout.split()
    # By default each of the twenty would fault a thousand pages in.
    assert kept == "False" or int(count) < 2_000
