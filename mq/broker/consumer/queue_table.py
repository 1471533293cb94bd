"""The queues that a group knows, and of each the members that have to do with it.

There may be very many, so they are rows of arrays, and members have numbers; the names belong to
`membership`. The queues that can be read come first, in their order; those behind them are known by
a claim or a lock alone. Decides nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mq.broker.queue import Queue

# By row: the number of a member, or whether something is so.
Numbers = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]
# The number that stands for no member.
NONE = 0
_COLUMNS = 6
_NEVER_MS = 2**62


class QueueTable:
    def __init__(self, queues: Mapping[Queue, str]) -> None:
        self.readable = queues
        self.count = len(queues)
        self.queues = list(queues)
        self._rows = dict(zip(queues, range(self.count), strict=True))
        self._set_columns(np.zeros((_COLUMNS, self.count), np.int32))
        # By when the holder has to let go of the queue; 0: it may keep it.
        self.deadlines_ms = np.zeros(self.count, np.int64)

    def _set_columns(self, columns: Numbers) -> None:
        self._columns = columns
        # The member that has the queue in hand, that should have it, and that has its lock.
        self.holders: Numbers = columns[0]
        self.targets: Numbers = columns[1]
        self.locks: Numbers = columns[2]
        # The member that it is assigned to: now, in the last generation, and when the driver last
        # asked for changes.
        self.assigned: Numbers = columns[3]
        self.assigned_before: Numbers = columns[4]
        self.reported: Numbers = columns[5]

    @property
    def next_deadline_ms(self) -> int:
        return int(self.deadlines_ms[self.deadlines_ms > 0].min(initial=_NEVER_MS))

    def row(self, queue: Queue) -> int | None:
        return self._rows.get(queue)

    def rows_of(self, queues: Iterable[Queue]) -> Rows:
        """Of those that are known."""
        rows = np.fromiter(map(self._rows.get, queues, itertools.repeat(-1)), np.intp)
        return rows[rows >= 0]

    def add(self, queues: Iterable[Queue]) -> Rows:
        """The rows of all of them: those that are not known get one."""
        wanted = list(queues)
        rows = self.rows_of(wanted)
        if len(rows) == len(wanted):
            return rows
        for queue in wanted:
            if queue not in self._rows:
                self._rows[queue] = len(self.queues)
                self.queues.append(queue)
        more = len(self.queues) - len(self.deadlines_ms)
        self._set_columns(np.pad(self._columns, ((0, 0), (0, more))))
        self.deadlines_ms = np.pad(self.deadlines_ms, (0, more))
        return self.rows_of(wanted)

    def with_readable(self, queues: Mapping[Queue, str]) -> QueueTable:
        """The same members, of other queues that can be read."""
        table = QueueTable(queues)
        if not self.queues:
            return table
        kept = rows_where(np.any(self._columns, axis=0))
        rows = table.add(at(self.queues, kept))
        table._columns[:, rows] = self._columns[:, kept]
        table.deadlines_ms[rows] = self.deadlines_ms[kept]
        table.targets[table.count :] = NONE
        return table

    def forget(self, number: int) -> None:
        """The member is gone. Its locks stay, and the last generation."""
        for column in (self.holders, self.targets, self.assigned, self.reported):
            column[column == number] = NONE

    @property
    def used(self) -> list[int]:
        """The numbers that occur."""
        return distinct(self._columns.ravel())

    def renumber(self, numbers: Numbers) -> None:
        """`numbers` has the new number of each old one."""
        self._set_columns(numbers[self._columns])


def distinct(numbers: Numbers) -> list[int]:
    found: list[int] = rows_where(np.bincount(numbers)).tolist()
    return found


def rows_where(flags: npt.NDArray[Any]) -> Rows:
    return flags.nonzero()[0]


def at(queues: Sequence[Queue], rows: Flags | Rows) -> list[Queue]:
    """The queues of these rows."""
    wanted = rows_where(rows) if rows.dtype == np.bool_ else rows
    return list(map(queues.__getitem__, wanted.tolist()))
