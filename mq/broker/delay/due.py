"""The next due batches of the schedule: the driver's picture of its lanes, without a clock and
without reading anything.

A lane may hold millions of batches; of each the window knows the next ones, in the order
(due_ms, log_offset), up to a bound, and of what is behind it only that it is not due before some
time. Invariant: a window has every batch that waits up to its bound, whatever came while it was
filled. To fill it, the units of the lane are read, a part at a time, into a `Gathering`.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mq.broker.state.schedule import LanePosition
from mq.store.consumequeue import UNIT, Units

# Batches of a lane that are known at most, 1.3 MB; and the later arrivals beside them.
WINDOW_UNITS = 1 << 16
ARRIVALS_MAX = 1 << 13
# Bytes of an entry for its lane and for the head of its batch.
UNIT_OVERHEAD_BYTES = 64
# Units that are taken out of the arrays in one go.
_BLOCK_UNITS = 1 << 10
NEVER_MS = 1 << 62
# Stale entries of the agenda beside the current ones.
_STALE_MAX = 1_000
_NOTHING = LanePosition(-1, -1)
_ALL = LanePosition(NEVER_MS, 0)


class DueUnit(NamedTuple):
    """A batch that waits. The order of units is the order in which they leave their lane."""

    due_ms: int
    log_offset: int
    size: int


class Budget:
    """The room in one entry. The first batch always fits."""

    def __init__(self, bytes_max: int, units_max: int) -> None:
        self._bytes = bytes_max
        self._units = self._units_max = units_max

    def spend(self, size: int) -> bool:
        """Whether one more of this size fits; then its room is taken."""
        size += UNIT_OVERHEAD_BYTES
        is_first = self._units == self._units_max
        if not is_first and (self._units == 0 or size > self._bytes):
            return False
        self._bytes -= size
        self._units -= 1
        return True


class Gathering:
    """The first units of a lane, out of all that are shown to it."""

    def __init__(self, units_max: int = WINDOW_UNITS) -> None:
        self._units_max = units_max
        self._parts: list[Units] = []
        self._count = 0
        self._is_cut = False

    def add(self, units: Units) -> None:
        self._parts.append(units)
        self._count += len(units)
        if self._count > 2 * self._units_max:
            self._cut()

    def result(self) -> tuple[Units, bool]:
        """In their order; and whether these are all."""
        self._cut()
        return self._parts[0], not self._is_cut

    def _cut(self) -> None:
        units = np.concatenate(self._parts) if self._parts else np.empty(0, UNIT)
        order = np.lexsort((units["log_offset"], units["tag_hash"]))
        self._is_cut |= len(units) > self._units_max
        self._parts = [units[order[: self._units_max]]]
        self._count = len(self._parts[0])


class Window:
    """The next batches of one lane. A new one knows nothing but a time: see `first_ms`."""

    def __init__(self, first_ms: int = NEVER_MS) -> None:
        """Nothing of the lane is due before `first_ms`."""
        # In their order; those before `_taken` are in the block, the next one last, or gone.
        self._sorted: Units = np.empty(0, UNIT)
        self._taken = 0
        self._block: list[DueUnit] = []
        # What came since: a heap.
        self._arrived: list[DueUnit] = []
        # Everything up to here is known; behind it, nothing is due before `_behind_ms`.
        self._bound = _NOTHING
        self._behind_ms = first_ms

    @property
    def is_filled(self) -> bool:
        return self._bound != _NOTHING

    @property
    def first_ms(self) -> int:
        """Nothing is due before; NEVER_MS: nothing waits."""
        head = self._head()
        return self._behind_ms if head is None else head.due_ms

    @property
    def has_first(self) -> bool:
        """The unit that leaves next is here; otherwise the window has to be filled first, if
        anything waits.
        """
        return self._head() is not None

    def waits_from(self, due_ms: int) -> None:
        """Something waits in the lane that is due then."""
        self._behind_ms = min(self._behind_ms, due_ms)

    def add(self, unit: DueUnit) -> None:
        """A batch has come into the lane."""
        if LanePosition(unit.due_ms, unit.log_offset) > self._bound:
            self.waits_from(unit.due_ms)
            return
        heapq.heappush(self._arrived, unit)
        if len(self._arrived) > ARRIVALS_MAX:
            self._merge()

    def open(self) -> None:
        """Filling begins: what comes from here on is kept, what was there will be read."""
        self._forget(NEVER_MS)
        self._bound = _ALL

    def fill(self, units: Units, *, are_all: bool) -> None:
        """The batches that were there when it was opened: the first ones, in their order, and all
        that are not behind the last of these; or all.
        """
        self._sorted, self._taken = units, 0
        if not are_all:
            self._cut_behind(self._sorted)
            self._arrived = [one for one in self._arrived if one[:2] <= self._bound]
            heapq.heapify(self._arrived)

    def forget(self) -> None:
        """Forgets all but the time of the next unit: the units may have left."""
        self._forget(self.first_ms)

    def take(self, until_ms: int, budget: Budget) -> list[DueUnit]:
        """Removes and returns the next batches due by then, as far as the budget goes. If they stay
        in the lane after all, call `forget`, and `waits_from` with the first of them.
        """
        found: list[DueUnit] = []
        while (head := self._head()) and head.due_ms <= until_ms and budget.spend(head.size):
            found.append(head)
            if self._arrived and self._arrived[0] is head:
                heapq.heappop(self._arrived)
            else:
                self._block.pop()
        return found

    # -- inside -----------------------------------------------------------------------------------

    def _forget(self, behind_ms: int) -> None:
        self._sorted, self._taken, self._block = np.empty(0, UNIT), 0, []
        self._arrived = []
        self._bound, self._behind_ms = _NOTHING, behind_ms

    def _head(self) -> DueUnit | None:
        if not self._block and self._taken < len(self._sorted):
            rows = self._sorted[self._taken : self._taken + _BLOCK_UNITS]
            self._taken += len(rows)
            self._block = units_of(rows)[::-1]
        if not self._block:
            return self._arrived[0] if self._arrived else None
        if self._arrived and self._arrived[0] < self._block[-1]:
            return self._arrived[0]
        return self._block[-1]

    def _merge(self) -> None:
        """Batches that came since join the rest, which is cut to its size."""
        rows = np.array(
            [(one.log_offset, one.size, one.due_ms) for one in (*self._block, *self._arrived)], UNIT
        )
        gathering = Gathering()
        gathering.add(rows)
        gathering.add(self._sorted[self._taken :])
        self._sorted, are_all = gathering.result()
        self._taken, self._block, self._arrived = 0, [], []
        if not are_all:
            self._cut_behind(self._sorted)

    def _cut_behind(self, units: Units) -> None:
        last = units_of(units[-1:])[0]
        self._bound = LanePosition(last.due_ms, last.log_offset)
        self.waits_from(last.due_ms)


def units_of(units: Units) -> list[DueUnit]:
    return list(
        map(
            DueUnit,
            units["tag_hash"].tolist(),
            units["log_offset"].tolist(),
            units["size"].tolist(),
        )
    )


class Agenda:
    """The windows of all lanes, and which of them is due next.

    There may be thousands of lanes, and something of them changes all the time: whatever lowers
    the time of one says so to a heap, whose entries count only if they are still true.
    """

    def __init__(self) -> None:
        self._windows: dict[int, Window] = {}
        self._heap: list[tuple[int, int]] = []
        self._filled: set[int] = set()

    def __contains__(self, number: int) -> bool:
        return number in self._windows

    def window(self, number: int) -> Window:
        """The window of this lane; a caller that changes it calls `changed`."""
        window = self._windows.get(number)
        if window is None:
            window = self._windows[number] = Window()
        return window

    def changed(self, number: int) -> None:
        window = self._windows.get(number)
        if window is None:
            return
        if window.is_filled:
            self._filled.add(number)
        if window.first_ms < NEVER_MS:
            heapq.heappush(self._heap, (window.first_ms, number))
        if len(self._heap) > 2 * len(self._windows) + _STALE_MAX:
            self._heap = [(one.first_ms, at) for at, one in self._windows.items()]
            heapq.heapify(self._heap)

    def add(self, number: int, unit: DueUnit) -> None:
        """A batch has come into the lane."""
        window = self.window(number)
        before_ms = window.first_ms
        window.add(unit)
        if window.first_ms < before_ms:
            self.changed(number)

    def forget(self, number: int, waits_from_ms: int = NEVER_MS) -> None:
        """The units of the lane may not be where they were: all but its time, or this one."""
        if number in self._windows:
            self._windows[number].forget()
            self._windows[number].waits_from(waits_from_ms)
            self._filled.discard(number)
            self.changed(number)

    def drop(self, number: int) -> None:
        """The lane is empty."""
        self._windows.pop(number, None)
        self._filled.discard(number)

    def first_ms(self) -> int:
        """The earliest due time; NEVER_MS: nothing waits."""
        while self._heap and not self._is_true(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else NEVER_MS

    def take_due(self, until_ms: int, lanes_max: int) -> list[int]:
        """Some lanes that may have something due, the longest overdue first. `changed` puts them on
        the agenda again.
        """
        found: list[int] = []
        while len(found) < lanes_max and self.first_ms() <= until_ms:
            _, number = heapq.heappop(self._heap)
            if number not in found:
                found.append(number)
        return found

    def forget_surplus(self, filled_max: int) -> None:
        """The windows beyond this many that are filled and needed last."""
        if len(self._filled) > filled_max:
            by_time = sorted(self._filled, key=lambda at: (self._windows[at].first_ms, at))
            for number in by_time[filled_max:]:
                self.forget(number)

    def _is_true(self, entry: tuple[int, int]) -> bool:
        first_ms, number = entry
        window = self._windows.get(number)
        return window is not None and window.first_ms == first_ms


def numbers_of(message_log_offsets: npt.NDArray[np.int64], wanted: Mapping[int, int]) -> list[int]:
    """The numbers of the messages that are among those wanted."""
    if len(message_log_offsets) < len(wanted):
        return [at for at, one in enumerate(message_log_offsets.tolist()) if one in wanted]
    found = np.isin(message_log_offsets, np.fromiter(wanted, np.int64, len(wanted)))
    return np.flatnonzero(found).tolist()
