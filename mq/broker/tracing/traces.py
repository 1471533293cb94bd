"""Traces of messages: finds where a message began, bisects checkpoints and scans the segments in
which something happened to it, on a thread and within a budget.

Any node can: it reads the entries that it has applied. At most two traces run at a time; one that
ran out of time is kept for a minute, by a token that cannot be guessed, so that its caller can go
on. Knows nothing of who may see what: the caller passes a check of the topic.
"""

from __future__ import annotations

import asyncio
import bisect
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from mq import names
from mq.broker.consumer.filters import compile_filter
from mq.broker.queue import Queue
from mq.broker.state.machine import Machine
from mq.broker.tracing import picture as pictures
from mq.broker.tracing.copies import frame_at, source_runs
from mq.broker.tracing.entries import TracedEntry
from mq.broker.tracing.events import Event, GroupSummary
from mq.broker.tracing.life import Birth, Life
from mq.broker.tracing.picture import Picture
from mq.errors import (
    IllegalFilter,
    MessageNotFound,
    MessagesDamaged,
    MqError,
    OffsetOutOfRange,
    QueueDamaged,
    Rebuilding,
)
from mq.hashing import text_hash
from mq.store import checkpoint
from mq.store.batch import message_of_frame
from mq.store.format import Kind
from mq.store.logreader import LogWalk
from mq.wire.v1.consumer_pb2 import Filter
from mq.wire.v1.message_pb2 import Message
from mq.wire.v1.state_pb2 import BrokerState

_AT_ONCE = 2
_KEPT_MAX, _KEPT_S = 16, 60.0
# Copies of copies: a delayed message that was carried, delivered, retried.
_STEPS_BACK_MAX = 8
# The clock is asked after so many entries, or bytes.
_ENTRIES_BETWEEN, _BYTES_BETWEEN = 128, 4 << 20
_RESOLVE_S = 10.0


class Trace(NamedTuple):
    birth: Birth
    queue_offset: int
    events: list[Event]
    groups: list[GroupSummary]
    is_complete: bool
    # What is missing, and why; empty: nothing is.
    missing: str
    # 0: there is nothing to go on with.
    token: int
    # The last entry that was looked at, or would have been, and its time.
    raft_index: int
    stored_at_ms: int


class _Begun:
    """A trace under way, which outlives the call if its time is over."""

    def __init__(self, life: Life, asked: int, missing_before: str) -> None:
        self.life = life
        self.asked = asked
        self.missing_before = missing_before
        # The next entry to read; 0: none was.
        self.cursor = 0
        self.kept_at_s = 0.0


class Traces:
    def __init__(self, machine: Machine, broker_set: str, random_number: Callable[[], int]) -> None:
        self._machine = machine
        self._broker_set = broker_set
        self._random_number = random_number
        self._loop = asyncio.get_running_loop()
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._kept: OrderedDict[int, _Begun] = OrderedDict()

    async def trace(
        self,
        log_offset: int,
        budget_s: float,
        token: int,
        check_topic: Callable[[str], None],
    ) -> Trace:
        """The life of the message at this log offset. `check_topic` raises if its topic may not be
        seen. MessageNotFound.
        """
        async with self._turns:
            applied = self._machine.store.applied_index
            walk = self._machine.store.log.apart_through(applied)
            work = self._loop.create_task(
                self._trace(walk, applied, log_offset, budget_s, token, check_topic)
            )
            # A cancelled call does not stop the thread, which uses the files.
            work.add_done_callback(lambda _: walk.close())
            return await asyncio.shield(work)

    async def _trace(
        self,
        walk: LogWalk,
        applied: int,
        log_offset: int,
        budget_s: float,
        token: int,
        check_topic: Callable[[str], None],
    ) -> Trace:
        deadline_s = time.monotonic() + budget_s
        begun = self._kept_trace(token, log_offset)
        if begun is None:
            birth, missing = await self._loop.run_in_executor(
                None, _first_place, walk, self._broker_set, log_offset
            )
            check_topic(birth.message.origin.topic if _is_copy(birth) else birth.batch.topic)
            life = await self._loop.run_in_executor(
                None, Life, birth, self._broker_set, self._resolve, passes
            )
            begun = _Begun(life, log_offset, missing)
        else:
            check_topic(begun.life.topic)
        now = self._picture(applied, begun.life)
        scan = _Scan(begun, walk, applied, now)
        reason = await self._loop.run_in_executor(None, scan.run, deadline_s)
        return self._answer(begun, now, applied, reason)

    def _picture(self, applied: int, life: Life) -> Picture:
        return pictures.of_state(applied + 1, self._machine.state, life.queue, life.transaction_ids)

    def _answer(self, begun: _Begun, now: Picture, applied: int, reason: str | None) -> Trace:
        life, token = begun.life, 0
        if reason == _OUT_OF_TIME:
            token = self._keep(begun)
        missing = [begun.missing_before, life.missing, reason or ""]
        log = self._machine.store.log
        return Trace(
            life.birth,
            life.queue_offset,
            list(life.events),
            life.summaries(now),
            not any(missing),
            "; ".join(filter(None, missing)),
            token,
            applied,
            log.ref(applied).stored_at_ms if applied >= log.first_index else 0,
        )

    # -- traces whose time was over ---------------------------------------------------------------

    def _keep(self, begun: _Begun) -> int:
        token = self._random_number() or 1
        begun.kept_at_s = self._loop.time()
        self._kept[token] = begun
        while len(self._kept) > _KEPT_MAX:
            self._kept.popitem(last=False)
        return token

    def _kept_trace(self, token: int, log_offset: int) -> _Begun | None:
        begun = self._kept.pop(token, None)
        if begun is None or begun.asked != log_offset:
            return None
        return begun if self._loop.time() - begun.kept_at_s <= _KEPT_S else None

    # -- on the loop, for the thread --------------------------------------------------------------

    def _resolve(self, queue: Queue, log_offset: int) -> int:
        """From the thread."""

        async def ask() -> int:
            return self._queue_offset(queue, log_offset)

        return asyncio.run_coroutine_threadsafe(ask(), self._loop).result(_RESOLVE_S)

    def _queue_offset(self, queue: Queue, log_offset: int) -> int:
        found = self._machine.store.queues.get(*queue)
        if found is None:
            return -1
        try:
            at = found.first_at(log_offset)
            if at == found.end:
                return -1
            unit = found.read(at, at + 1)
        except (QueueDamaged, Rebuilding):
            return -1
        return at if int(unit["log_offset"][0]) == log_offset else -1


# -- on the thread --------------------------------------------------------------------------------

_OUT_OF_TIME = "the time was over"


class _Scan:
    def __init__(self, begun: _Begun, walk: LogWalk, applied: int, now: Picture) -> None:
        self._begun = begun
        self._life = begun.life
        self._walk = walk
        self._last = applied
        self._now = now
        self._starts = walk.checkpoint_indexes
        self._pictures: dict[int, Picture] = {}

    def run(self, deadline_s: float) -> str | None:
        """Reads on. Returns why it is not complete; None: it is."""
        begun, life = self._begun, self._life
        try:
            if not begun.cursor:
                begun.cursor = self._segment_start(life.raft_index)
                life.sync(self._picture(begun.cursor))
                if not self._read(life.raft_index + 1, deadline_s):
                    return _OUT_OF_TIME
            elif begun.cursor <= life.raft_index and not self._read(
                life.raft_index + 1, deadline_s
            ):
                return _OUT_OF_TIME
            while not life.is_over:
                if time.monotonic() > deadline_s:
                    return _OUT_OF_TIME
                stop = self._next_stretch()
                if stop is None:
                    break
                if not self._read(stop, deadline_s):
                    return _OUT_OF_TIME
        except FileNotFoundError:
            return "retention dropped a part of the log that was to be read"
        except (MessagesDamaged, OffsetOutOfRange) as error:
            return f"a part of the log cannot be read: {error}"
        return None

    def _read(self, stop: int, deadline_s: float) -> bool:
        """Feeds the entries up to `stop`. Returns False if the time was over before."""
        begun, life = self._begun, self._life
        count = size = 0
        needles = life.needles()
        for entry in self._walk.entries(begun.cursor, stop):
            traced = TracedEntry(entry, needles)
            before = len(life.events)
            life.feed(traced)
            if len(life.events) != before:
                needles = life.needles()
            begun.cursor = entry.ref.raft_index + 1
            count += 1
            size += entry.ref.length
            if count >= _ENTRIES_BETWEEN or size >= _BYTES_BETWEEN:
                count = size = 0
                if time.monotonic() > deadline_s and begun.cursor < stop:
                    return False
        return True

    def _next_stretch(self) -> int | None:
        """Moves the cursor to the next segment in which something happens. Returns where to stop;
        None: nothing more happens.
        """
        begun, life = self._begun, self._life
        if begun.cursor > self._last:
            return None
        if begun.cursor in self._starts:
            life.sync(self._picture(begun.cursor))
        if not life.is_touched(self._now):
            return None
        first = bisect.bisect_right(self._starts, begun.cursor)
        ends = [*self._starts[first:], self._last + 1]
        at = bisect.bisect_left(ends, 1, key=self._has_happened)
        start = begun.cursor if at == 0 else ends[at - 1]
        if start > begun.cursor:
            life.sync(self._picture(start))
            begun.cursor = start
        return ends[at]

    def _has_happened(self, end: int) -> int:
        return 1 if end > self._last else int(self._life.is_touched(self._picture(end)))

    def _segment_start(self, raft_index: int) -> int:
        return self._starts[bisect.bisect_right(self._starts, raft_index) - 1]

    def _picture(self, raft_index: int) -> Picture:
        found = self._pictures.get(raft_index)
        if found is None:
            entry = self._walk.entry(raft_index)
            state = checkpoint.decode_state(entry.payload)
            found = pictures.of_checkpoint(raft_index, BrokerState.FromString(state))
            self._pictures[raft_index] = found
        return found


def _first_place(walk: LogWalk, broker_set: str, log_offset: int) -> tuple[Birth, str]:
    """Where the message at this log offset was stored first, as far as the log goes back; and what
    is missing before that.
    """
    birth = _located(walk, log_offset)
    for _ in range(_STEPS_BACK_MAX):
        before = _place_before(birth, broker_set)
        if before is None:
            return birth, ""
        place, frame = before
        try:
            birth = _located(walk, place, frame)
        except MessageNotFound:
            return birth, f"its beginning, at {broker_set}:{place}, is gone from the log"
    return birth, ""


def _located(walk: LogWalk, log_offset: int, frame: bytes | None = None) -> Birth:
    """The message at this log offset; with `frame`, the one of its batch that has these bytes.
    MessageNotFound.
    """
    try:
        entry = TracedEntry(walk.entry(walk.index_at(log_offset)))
    except OffsetOutOfRange:
        text = f"no message at log offset {log_offset}"
        if log_offset < walk.start_offset:
            text += f": retention has dropped the log before {walk.start_offset}"
        raise MessageNotFound(text) from None
    if entry.ref.kind == Kind.MESSAGES:
        for batch_at, (batch, at) in enumerate(entry.batches):
            starts = batch.frame_starts + at
            number = int(np.searchsorted(starts, log_offset))
            if number == len(starts) or int(starts[number]) != log_offset:
                continue
            if frame is not None:
                numbers = range(number, batch.message_count)
                number = next((one for one in numbers if frame_at(batch, one) == frame), number)
            return Birth(entry, batch_at, number, _message(frame_at(batch, number)))
    raise MessageNotFound(f"no message starts at log offset {log_offset}")


def _message(frame: bytes) -> Message:
    try:
        return Message.FromString(bytes(message_of_frame(frame)))
    except DecodeError:
        return Message()  # stored as its producer sent it, by an older version


def _is_copy(birth: Birth) -> bool:
    return names.is_internal_topic(birth.batch.topic) and birth.message.HasField("origin")


def _place_before(birth: Birth, broker_set: str) -> tuple[int, bytes | None] | None:
    """The log offset that the message was copied from, and the frame to look for in its batch
    there; None: it was not copied.
    """
    if _is_copy(birth):
        try:
            owner, log_offset = names.parse_message_id(birth.message.origin.message_id)
        except MqError:
            return None
        return (log_offset, None) if owner == broker_set else None
    batch = birth.batch
    if batch.origin_log_offset:
        return batch.origin_log_offset, birth.frame
    for command in birth.entry.commands():
        kind = command.WhichOneof("kind")
        if kind == "deliver_scheduled":
            batches = [one for one, _ in birth.entry.batches]
            for first_at, batch_at, start, end in source_runs(
                batches, command.deliver_scheduled.sources
            ):
                if batch_at == birth.batch_at and start <= birth.message_at < end:
                    return first_at, birth.frame
        elif kind == "change_transactions":
            committed = command.change_transactions.committed
            if birth.batch_at < len(committed):
                return committed[birth.batch_at], birth.frame
    return None


def passes(canonical: str, message: Message) -> bool:
    """Whether a filter lets the message through, as it does for consumers."""
    kind, _, text = canonical.partition(" ")
    try:
        wanted = compile_filter(Filter(sql=text) if kind == "SQL" else Filter(tags=text))
    except IllegalFilter:
        return True
    has_tag = not wanted.tag_hashes or text_hash(message.tag) in wanted.tag_hashes
    return has_tag and (wanted.predicate is None or wanted.predicate(message))
