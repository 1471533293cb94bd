"""The scrubber: reads all of the log again, slowly, and finds rot that no reader meets.

It believes nothing that is known otherwise: what readers trust because this process wrote it, or
because it was checked before, is checked here as well, each entry by its crc and against its record
in the `.idx`. What it finds is reported as a reader would, and mended in the same way.

`ScrubSchedule` decides what is next and when, from the time that comes in. A pass goes from the
start of the log to where it ended when the pass began, so that a busy log has passes that end, too.
Only entries that are applied and durable are looked at: they are never cut. `Scrubber` makes steps
of about a megabyte out of it. A step has three parts: `Scrubber.begin` and `finish` are for the
thread that owns the log, `Step.check` reads, on any thread, by files of its own. They are open for
the step alone: a segment that is dropped meanwhile gives back its space.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mq.store.commitlog import CommitLog
from mq.store.format import HEADER_BYTES, EntryHeader, decode_header, is_intact, pack_idx_record
from mq.store.scan import PAYLOAD_BYTES_MAX
from mq.store.segment import Segment
from mq.store.verified import VerifiedRanges, first_damaged
from mq.store.vfs import is_shortage

STEP_BYTES = 1 << 20
_RECORDS_MAX = 4096
# A small log is not read over and over: at the least, from the start of a pass to the next.
PASS_S_MIN = 60.0
# For so long at the most the owner of a scrubber waits before it asks again.
PAUSE_S_MAX = 1.0


class ScrubSchedule:
    """The cursor of a pass, and the rate."""

    def __init__(self, now_s: float) -> None:
        self.passes = 0
        self._began_at_s = self._passed_at_s = self._step_at_s = now_s
        # At the least until the next step: by the rate, or in any case.
        self._owed_bytes = 0
        self._rest_until_s = now_s
        self._cursor: int | None = None  # a log offset; None: between two passes
        self._target = 0

    def next_offset(self, start: int, end: int, bytes_per_s: int, now_s: float) -> int | None:
        """The start of the next step in a log that may be checked from `start` to `end`; None:
        nothing is due.
        """
        if self.pause_s(bytes_per_s, now_s) or start >= end:
            return None
        if self._cursor is None or end < self._target:
            # The second: another log stands here now.
            self._cursor, self._target, self._began_at_s = start, end, now_s
        self._cursor = max(self._cursor, start)  # retention may have come by
        if self._cursor >= self._target:
            self._end_pass(now_s)
            return None
        self._step_at_s = now_s
        return self._cursor

    def advance(self, log_offset: int, bytes_read: int) -> None:
        """The step ended here."""
        self._cursor, self._owed_bytes = log_offset, bytes_read

    def postpone(self, now_s: float) -> None:
        """The step could not be made: the same again, later."""
        self._rest_until_s = now_s + PAUSE_S_MAX

    def pause_s(self, bytes_per_s: int, now_s: float) -> float:
        """Until something is due, at this rate, which is not 0."""
        paid_at_s = self._step_at_s + self._owed_bytes / bytes_per_s
        return max(0.0, paid_at_s - now_s, self._rest_until_s - now_s)

    def age_s(self, now_s: float) -> float:
        """Since the last full pass ended; since the start, if there was none yet."""
        return now_s - self._passed_at_s

    def _end_pass(self, now_s: float) -> None:
        self.passes += 1
        self._cursor, self._passed_at_s = None, now_s
        self._rest_until_s = self._began_at_s + PASS_S_MIN


class Finding(NamedTuple):
    position: int
    size: int
    reason: str


class Checked(NamedTuple):
    """The result of a step: the end of the range it checked, and the damage it found."""

    number: int  # of the entry that comes next
    position: int
    findings: list[Finding]
    is_postponed: bool = False


@dataclasses.dataclass(slots=True)
class Step:
    """Entries from one on, in a segment; `twin` ends where no more may be looked at."""

    segment: Segment
    twin: Segment
    number: int
    position: int
    mends: int
    verified: VerifiedRanges

    def check(self) -> Checked:
        """Reads them. Any thread, once."""
        with contextlib.closing(self.twin):
            try:
                self.twin.open()
            except OSError as error:
                if is_shortage(error):
                    return Checked(self.number, self.position, [], is_postponed=True)
                return self._rest(f"its files cannot be opened: {error.strerror or error}")
            try:
                records = self.twin.read_records(self.number, _RECORDS_MAX)
            except OSError as error:
                return self._rest(f"its .idx cannot be read: {error.strerror or error}")
            return self._check(records)

    def _check(self, records: npt.NDArray[np.void]) -> Checked:
        sizes = records["length"].astype(np.int64) + HEADER_BYTES
        ends = self.position + np.cumsum(sizes)
        limit = self.position + STEP_BYTES
        count = max(1, int(np.searchsorted(ends, limit, side="right")))
        if self._is_intact(records[:count], ends[:count]):
            return Checked(self.number + count, int(ends[count - 1]), [])
        return self._check_each(records, count)

    def _is_intact(self, records: npt.NDArray[np.void], ends: npt.NDArray[np.int64]) -> bool:
        """All of these entries, and their records: in one read."""
        if not len(records) or int(records["position"][0]) != self.position:
            return False
        end = int(ends[-1])
        is_last = self.number + len(records) == self.twin.count
        if end > self.twin.end or (is_last and end != self.twin.end):
            return False
        if end - self.position > max(STEP_BYTES, HEADER_BYTES + PAYLOAD_BYTES_MAX):
            return False
        first_index = self.segment.first_index + self.number
        data = self._read(self.position, end - self.position)
        return first_damaged(memoryview(data), records, first_index) is None

    def _check_each(self, records: npt.NDArray[np.void], count: int) -> Checked:
        """One by one, because something is wrong. Of an entry and its record, one suffices to find
        the entry behind it.
        """
        findings: list[Finding] = []
        position = self.position
        for at in range(count):
            raft_index = self.segment.first_index + self.number + at
            header = self._header_at(position, raft_index)
            if header is not None:
                size = HEADER_BYTES + header.length
                record = pack_idx_record(position, header.length, header.term, header.stored_at_ms)
                if records[at : at + 1].tobytes() != record:
                    reason = f"the record of entry {raft_index} in the .idx is not what was written"
                    findings.append(Finding(position, size, reason))
            else:
                reason = f"entry {raft_index} is not what was written"
                size = self._size_by_records(records, at, position)
                if not size:
                    reason += ", nor is its record in the .idx"
                    findings.append(Finding(position, self.twin.end - position, reason))
                    return Checked(self.twin.count, self.twin.end, findings)
                findings.append(Finding(position, size, reason))
            position += size
        return Checked(self.number + count, position, findings)

    def _header_at(self, position: int, raft_index: int) -> EntryHeader | None:
        """The header of the entry, if it is intact."""
        header = decode_header(self._read(position, HEADER_BYTES))
        if header is None or header.raft_index != raft_index:
            return None
        size = HEADER_BYTES + header.length
        if header.length > PAYLOAD_BYTES_MAX or position + size > self.twin.end:
            return None
        return header if is_intact(memoryview(self._read(position, size)), header) else None

    def _size_by_records(self, records: npt.NDArray[np.void], at: int, position: int) -> int:
        """The size of a damaged entry; 0 if its record does not fit the records around it."""
        if at >= len(records) or int(records["position"][at]) != position:
            return 0
        size = HEADER_BYTES + int(records["length"][at])
        is_last = self.number + at + 1 == self.twin.count
        if is_last:
            behind = self.twin.end
        else:
            behind = int(records["position"][at + 1]) if at + 1 < len(records) else position + size
        return size if position + size == behind <= self.twin.end else 0

    def _read(self, position: int, length: int) -> bytes:
        """Nothing if the disk does not give it. Leaves the page cache as it was: it is for readers;
        and what comes from the disk now must not pass for what this process wrote.
        """
        file, start = self.twin.log, self.segment.base + position
        is_cold = not file.is_in_memory(position, length)
        if is_cold and self.verified.is_appended(start):
            self.verified.left_memory(start + length)
        try:
            return file.pread(length, position)
        except OSError:
            return b""
        finally:
            if is_cold:
                file.drop_cache(position, length)

    def _rest(self, reason: str) -> Checked:
        """The rest of the segment, which cannot be checked."""
        size = self.twin.end - self.position
        return Checked(self.twin.count, self.twin.end, [Finding(self.position, size, reason)])


class Scrubber:
    def __init__(
        self,
        log: CommitLog,
        applied_index: Callable[[], int],
        bytes_per_s: Callable[[], int],
        now_s: Callable[[], float],
    ) -> None:
        """`bytes_per_s` may change at any time; 0: off."""
        self._log = log
        self._applied_index = applied_index
        self._bytes_per_s = bytes_per_s
        self._now_s = now_s
        self._schedule = ScrubSchedule(now_s())
        # Where the last step ended: in which segment, and which entry comes next.
        self._at: tuple[Segment | None, int] = None, 0
        self.scrubbed_bytes_total = 0

    @property
    def passes(self) -> int:
        return self._schedule.passes

    @property
    def age_s(self) -> float:
        """Since all of the log was checked, or since the start; 0 when it is off."""
        return self._schedule.age_s(self._now_s()) if self._bytes_per_s() else 0.0

    @property
    def pause_s(self) -> float:
        """Until a step is due; not more than `PAUSE_S_MAX`, because the rate may change."""
        rate = self._bytes_per_s()
        pause_s = self._schedule.pause_s(rate, self._now_s()) if rate else PAUSE_S_MAX
        return min(PAUSE_S_MAX, pause_s)

    def begin(self) -> Step | None:
        """The next step; None when none is due."""
        log, rate = self._log, self._bytes_per_s()
        last_index = min(self._applied_index(), log.durable_index)
        if not rate or not log.first_index <= last_index <= log.last_index:
            return None
        _, end = log.place_of(last_index)
        log_offset = self._schedule.next_offset(log.start_offset, end, rate, self._now_s())
        segment = None if log_offset is None else log.segment_over(log_offset)
        if log_offset is None or segment is None:
            return None
        known, number = self._at
        if segment is not known or log_offset == segment.base:
            # Another one than before has to be walked from its first entry on.
            number, log_offset = 0, segment.base
        twin = segment.twin_through(last_index)
        return Step(segment, twin, number, log_offset - segment.base, log.mends, log.verified)

    def finish(self, step: Step, checked: Checked) -> None:
        """Reports what was found, and goes on."""
        log, segment = self._log, step.segment
        is_same = log.segment_over(segment.base) is segment and log.mends == step.mends
        if checked.is_postponed:
            self._schedule.postpone(self._now_s())
        if checked.is_postponed or not is_same:
            return  # the second: dropped, or mended, in the meantime
        for finding in checked.findings:
            log.report(segment, *finding)
        bytes_read = checked.position - step.position
        self.scrubbed_bytes_total += bytes_read
        self._at = segment, checked.number
        self._schedule.advance(segment.base + checked.position, bytes_read)
