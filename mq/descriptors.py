"""Open files of this process: their limit, and each user's share of it.

    hard limit   half for the queues' files, at most; the log, the vote and connections to other
                 nodes share the rest with clients, which get a quarter
    soft limit   `RESERVED` below it, so that clients can never take the last ones: the store opens
                 a file within `reserve` when none is left
    a spare      one descriptor that is open for nothing: it is closed for a moment when a directory
                 has to be synced, or a file to be removed, and not even the reserve is left

A client that is refused comes again; a log that cannot open its next segment stands still.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Iterator

from mq.errors import IllegalConfig

RESERVED = 32
# Enough for most; more cost memory, and seconds when all of them come back at once.
_CONNECTIONS_MAX = 10_000
_UNLIMITED = 1 << 20

_lock = threading.Lock()
_spare: int | None = None


def claim() -> int:
    """Raises the soft limit up to the reserve, and opens the spare. Returns the hard limit: many
    systems start a process with 1,024 descriptors and let it ask for far more.
    """
    limit = hard_limit()
    _set_soft(limit - RESERVED)
    with _lock:
        _open_spare()
    return limit


def hard_limit() -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if hard == resource.RLIM_INFINITY else hard


def connections_max(configured: int, limit: int, *, listeners: int) -> int:
    """Connections that each listener takes, with `limit` descriptors in all; 0: as many as fit.
    IllegalConfig when so many do not fit.
    """
    if not configured:
        return max(1, min(_CONNECTIONS_MAX, limit // 4) // listeners)
    largest = (limit // 2 - min(limit // 8, 1_024)) // listeners
    if configured > largest:
        raise IllegalConfig(
            f"broker.connections_max = {configured} is too much for {limit} open files: at most "
            f"{largest}, or raise the limit (ulimit -Hn, LimitNOFILE= of systemd)"
        )
    return configured


@contextlib.contextmanager
def reserve() -> Iterator[None]:
    """Within it the last descriptors may be taken. Any thread."""
    with _lock:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        _set_soft(hard_limit())
        try:
            yield
        finally:
            _set_soft(soft)


@contextlib.contextmanager
def borrowed() -> Iterator[None]:
    """Within it one descriptor more may be taken, and is given back at its end: for what must not
    fail because there are none. Any thread.
    """
    global _spare  # noqa: PLW0603 - descriptors are the process's
    with _lock:
        if _spare is not None:
            os.close(_spare)
            _spare = None
        try:
            yield
        finally:
            _open_spare()


def _open_spare() -> None:
    global _spare  # noqa: PLW0603 - as in `borrowed`
    if _spare is None:
        with contextlib.suppress(OSError):
            _spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _set_soft(soft: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Some systems refuse what they call legal: then it stays as it is.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
