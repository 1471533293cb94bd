"""Writable space ahead of the end of a growing file.

Writing into blocks that exist already makes a sync twice as quick as growing the file or filling
reserved extents, so with `zeros` the space is written once ahead of use; without, it is only
reserved. Either way a full disk shows here, before any byte of an entry is written. The work is
done on the executor while the log goes on; the file's owner writes only below what is ready, so the
two never touch the same bytes.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import Executor, Future

from mq.store.vfs import File

_BLOCK = 1 << 20
_ZEROS = bytes(_BLOCK)


class Preallocator:
    def __init__(
        self, file: File, ready: int, step_bytes: int, *, zeros: bool, executor: Executor | None
    ) -> None:
        self._file = file
        self._ready = ready
        self._step_bytes = step_bytes
        self._zeros = zeros
        self._executor = executor
        self._task: Future[None] | None = None
        # Up to here `ensure` has nothing to do.
        self.enough = 0

    def ensure(self, end: int, limit: int) -> None:
        """Returns when everything below `end` can be written; prepares more, up to `limit`, in the
        background.

        Raises the OSError of a full disk; what was ready before still is.
        """
        if end > self._ready:
            self._settle()
        if end > self._ready:
            self._prepare(
                self._ready, max(end, min(limit, self._ready + min(self._step_bytes, _BLOCK)))
            )
        if self._task is not None:
            if self._task.done():
                self._settle()
        elif self._executor is None:
            self.enough = self._ready
        else:
            wanted = min(limit, end + self._step_bytes)
            if wanted - self._ready > self._step_bytes // 2:
                self._task = self._executor.submit(self._prepare, self._ready, wanted)
            else:
                self.enough = self._ready + self._step_bytes // 2 - self._step_bytes

    def reset(self, end: int) -> None:
        """The file was cut at `end`: the space above it is no longer ready."""
        self._settle()
        self._ready, self.enough = end, 0

    def close(self) -> None:
        self._settle()

    def _settle(self) -> None:
        if self._task is not None:
            # A failure ahead of need is no failure yet: the append that needs the space will meet
            # it.
            with contextlib.suppress(OSError):
                self._task.result()
            self._task = None

    def _prepare(self, start: int, end: int) -> None:
        if not self._zeros:
            self._file.allocate(start, end - start)
            self._ready = end
            return
        while start < end:
            size = min(_BLOCK, end - start)
            self._file.pwritev([memoryview(_ZEROS)[:size]], start)
            start += size
            self._ready = start
