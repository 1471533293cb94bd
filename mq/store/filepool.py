"""A bounded number of open files out of many: ten thousand queues must not need ten thousand
descriptors.

One thread only: a file that another thread reads could be closed under it.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from typing_extensions import Buffer

from mq.store.vfs import File, Vfs


class PendingWrite(NamedTuple):
    """Bytes of a derived file that are still in memory. Writing them twice is harmless."""

    path: str
    position: int
    content: Sequence[Buffer]


class FilePool:
    def __init__(self, vfs: Vfs, open_max: int) -> None:
        self._vfs = vfs
        self._open_max = open_max
        self._files: OrderedDict[str, File] = OrderedDict()

    def get(self, path: str, *, create: bool = False) -> File:
        """An open file, good until the next call. FileNotFoundError unless `create`."""
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
            return file
        file = self._open(path, create=create)
        self._files[path] = file
        if len(self._files) > self._open_max:
            self._files.popitem(last=False)[1].close()
        return file

    def _open(self, path: str, *, create: bool) -> File:
        """Gives up one that was not used for long when the process has no descriptor left."""
        while True:
            try:
                return self._vfs.open(path, create=create)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._files:
                    raise
                self._files.popitem(last=False)[1].close()

    def write(self, write: PendingWrite) -> None:
        """Creates the file and its directories when they are not there."""
        try:
            file = self.get(write.path, create=True)
        except FileNotFoundError:
            self._vfs.make_dirs(write.path.rpartition("/")[0])
            file = self.get(write.path, create=True)
        file.pwritev(write.content, write.position)

    def forget(self, path: str) -> None:
        file = self._files.pop(path, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()
