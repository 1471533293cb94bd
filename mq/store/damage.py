"""The damage found on this node's disk, and whether it was mended.

The one owner of that knowledge: the log, the queues and the key index report to it, operators read
it (`mq cluster health`, metrics). It decides nothing. A place that is reported twice while it is
open counts once. Bounded: the oldest mended places are forgotten first, and when `records_max` are
open, further ones are counted and not listed.

Reports may come from any thread, and so do the calls of a watcher. The clock is handed in.
"""

from __future__ import annotations

import dataclasses
import enum
import threading
from collections import Counter
from collections.abc import Callable

from mq.logging import get_logger

log = get_logger(__name__)

RECORDS_MAX = 256


class DamageKind(enum.Enum):
    """The kind of file: the log itself, or one that can be made again from the log."""

    LOG = "log"
    QUEUE = "queue"
    INDEX = "index"


@dataclasses.dataclass(frozen=True, slots=True)
class Damage:
    """One place. `[start, end)` are the log offsets that are concerned; both 0: not known."""

    kind: DamageKind
    path: str
    position: int  # in the file
    reason: str
    start: int = 0
    end: int = 0
    affected: str = ""  # in words for operators: which topic, queue and offsets, as far as known
    is_lost: bool = False  # no other node has it: it cannot be mended, and is passed over
    found_at_ms: int = 0
    mended_at_ms: int = 0  # 0: still open

    @property
    def is_open(self) -> bool:
        return not self.mended_at_ms


class DamageLog:
    def __init__(
        self, now_ms: Callable[[], int] = lambda: 1, *, records_max: int = RECORDS_MAX
    ) -> None:
        self._now_ms = now_ms
        self._records_max = records_max
        self._lock = threading.Lock()
        # By kind, file and position, in the order in which they were found.
        self._records: dict[tuple[DamageKind, str, int], Damage] = {}
        self._unlisted = Counter[tuple[DamageKind, str]]()
        # Log offsets where entries start that are lost.
        self._lost: dict[int, str] = {}
        self._watchers: list[Callable[[], None]] = []
        self.found_total = Counter[DamageKind]()
        self.mended_total = Counter[DamageKind]()

    def watch(self, on_found: Callable[[], None]) -> None:
        """Calls `on_found` after each report of a new place, on the thread of the report."""
        self._watchers.append(on_found)

    def unwatch(self, on_found: Callable[[], None]) -> None:
        self._watchers.remove(on_found)

    def found(self, damage: Damage) -> bool:
        """Takes a report, and stamps it. False when the place is known to be damaged already."""
        key = damage.kind, damage.path, damage.position
        with self._lock:
            known = self._records.get(key)
            if known is not None and known.is_open:
                if damage.affected and not known.affected:
                    self._records[key] = dataclasses.replace(known, affected=damage.affected)
                return False
            self.found_total[damage.kind] += 1
            self._records.pop(key, None)
            if self._has_room():
                stamped = dataclasses.replace(damage, found_at_ms=self._now_ms(), mended_at_ms=0)
                self._records[key] = stamped
            else:
                self._unlisted[key[:2]] += 1
        log.error(
            "damage found: it is not served",
            kind=damage.kind.value,
            file=damage.path,
            position=damage.position,
            reason=damage.reason,
            affected=damage.affected or "not known yet",
        )
        for on_found in tuple(self._watchers):
            on_found()
        return True

    def lose(self, path: str, start: int, affected: str) -> None:
        """The entry at this log offset is damaged, and no node has it."""
        with self._lock:
            if start in self._lost:
                return
            self._lost[start] = path
            for key, damage in self._records.items():
                if damage.kind == DamageKind.LOG and damage.is_open and damage.start == start:
                    self._records[key] = dataclasses.replace(
                        damage, is_lost=True, affected=affected or damage.affected
                    )
        log.error("messages are lost: no node has them", file=path, affected=affected or "none")

    def is_lost(self, start: int) -> bool:
        """Whether the entry at this log offset is damaged and cannot be mended."""
        return start in self._lost

    def mended(self, kind: DamageKind, path: str, position: int | None = None) -> int:
        """The file is as it was written again: all of it, or the damage at one position. Returns
        the number of places that were open.
        """
        with self._lock:
            keys = [
                key
                for key, damage in self._records.items()
                if damage.is_open and key[:2] == (kind, path) and position in (None, key[2])
            ]
            for key in keys:
                now_ms = self._now_ms()
                self._records[key] = dataclasses.replace(self._records[key], mended_at_ms=now_ms)
            self._find_again(kind, path)
            count = len(keys) + (self._unlisted.pop((kind, path), 0) if position is None else 0)
            self.mended_total[kind] += count
        if count:
            log.warning("damage mended", kind=kind.value, file=path, places=count)
        return count

    def dropped(self, kind: DamageKind, path: str, from_position: int = 0) -> None:
        """The file is gone from here on, by retention or because the log was cut: so is what was
        damaged in it.
        """
        with self._lock:
            for key in [key for key in self._records if key[:2] == (kind, path)]:
                if key[2] >= from_position:
                    self._lost.pop(self._records.pop(key).start, None)
            if from_position == 0:
                self._unlisted.pop((kind, path), None)
                self._find_again(kind, path)

    def open_count(self, kind: DamageKind) -> int:
        with self._lock:
            listed = sum(one.is_open and one.kind == kind for one in self._records.values())
            return listed + sum(n for (each, _), n in self._unlisted.items() if each == kind)

    def records(self) -> list[Damage]:
        """Open and mended ones, in the order in which they were found."""
        with self._lock:
            return list(self._records.values())

    def _find_again(self, kind: DamageKind, path: str) -> None:
        """Entries of this file that counted as lost are damaged again, and can be mended."""
        if kind == DamageKind.LOG:
            self._lost = {start: each for start, each in self._lost.items() if each != path}

    def _has_room(self) -> bool:
        """Makes some by forgetting the oldest place that was mended."""
        if len(self._records) < self._records_max:
            return True
        mended = next((key for key, one in self._records.items() if not one.is_open), None)
        if mended is not None:
            del self._records[mended]
        return mended is not None
