"""Files that are there after a loss of power: as they were, or as they were to be; and that one
process changes at a time.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_log = logging.getLogger(__name__)


@contextmanager
def alone(lock: Path) -> Iterator[None]:
    """While the block runs, no other process is in one with the same file: this one waits.

    A batch may come to two: through Spark Connect a query whose command was killed goes on, until
    one that takes over its checkpoint has it stopped.
    """
    with lock.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.warning("waiting for the process that writes a batch, and holds %s", lock)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write_whole(path: Path, text: str) -> None:
    """The file has the old text or the new one, also after a loss of power."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    sync(fresh)
    fresh.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """A file's bytes, or a directory's names, are on disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
