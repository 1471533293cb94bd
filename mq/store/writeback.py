"""Derived files are written here and nowhere else: on one thread of their own, in the order asked
for.

The owner of the store never waits for a queue's file, unless it is far ahead of this thread.
Without a thread, for simulations, everything is done at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from mq.store.filepool import FilePool, PendingWrite
from mq.store.vfs import Vfs


class Writeback:
    def __init__(self, vfs: Vfs, *, background: bool) -> None:
        self._vfs = vfs
        self._files = FilePool(vfs, vfs.open_files_max())
        self._executor = ThreadPoolExecutor(1, "mq-writeback") if background else None

    def write(self, writes: Sequence[PendingWrite]) -> Future[None]:
        """Written, not durable, when the future is done; it may fail with OSError, and some of it
        may be written then.
        """
        return self._submit(lambda: self._write(writes))

    def rewrite(
        self, writes: Sequence[PendingWrite], is_wanted: Callable[[], bool]
    ) -> Future[None]:
        """As `write`, of a damaged file that may have been removed or replaced. `is_wanted` is
        asked right before.
        """

        def task() -> None:
            if is_wanted():
                for write in writes:
                    self._files.forget(write.path)
                self._write(writes)

        return self._submit(task)

    def remove(self, paths: Sequence[str]) -> Future[None]:
        """Behind all writes that were asked for before. What is not there is no error."""
        return self._submit(lambda: self._remove(paths))

    def forget_files(self) -> Future[None]:
        """Closes all files, behind all writes that were asked for before: they will be removed, and
        a file of the same name is another one then.
        """
        return self._submit(self._files.close)

    def close(self) -> None:
        """Finishes what was asked for."""
        if self._executor is not None:
            self._executor.shutdown()
        self._files.close()

    def _submit(self, task: Callable[[], None]) -> Future[None]:
        if self._executor is not None:
            return self._executor.submit(task)
        future: Future[None] = Future()
        try:
            task()
        except OSError as error:
            future.set_exception(error)
        else:
            future.set_result(None)
        return future

    def _write(self, writes: Sequence[PendingWrite]) -> None:
        for write in writes:
            self._files.write(write)

    def _remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._files.forget(path)
            self._vfs.remove(path)
