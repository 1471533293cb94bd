"""Memory of this process: the allocator's large buffers, the cycle collector, and its end.

Batches of hundreds of KiB come and go thousands of times a second. By default glibc gives each one
back to the kernel, and the next one is paid for again, page by page: more than the broker's own
work. Kept, they are used again; the limits on what is in flight bound how much that is.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import sys

# Of mallopt(3).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEEP_BYTES = 1 << 30
_PAD_BYTES = 16 << 20

EXHAUSTED = "no memory is left, or no thread: give the node more, and start it again"

# Objects between two looks for cycles, instead of 700: a broker makes hardly any.
_COLLECT_AFTER = 50_000


def collect_seldom() -> None:
    """Objects made at the start stay for good, and are not traversed again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 20, 20)


def is_exhausted(error: BaseException) -> bool:
    """The process gets no more, from its allocator or, as for a map of a file and for the stack of
    a thread, from the kernel.
    """
    return (
        isinstance(error, MemoryError)
        or getattr(error, "errno", None) == errno.ENOMEM
        or (isinstance(error, RuntimeError) and str(error) == "can't start new thread")
    )


def keep_freed_memory() -> bool:
    """Whether the allocator could be told; elsewhere than on glibc all stays as it is."""
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # 32 MiB is the most that glibc takes for the threshold on some versions.
    is_set = mallopt(_MMAP_THRESHOLD, _KEEP_BYTES) or mallopt(_MMAP_THRESHOLD, 32 << 20)
    return bool(is_set and mallopt(_TRIM_THRESHOLD, _KEEP_BYTES) and mallopt(_TOP_PAD, _PAD_BYTES))
