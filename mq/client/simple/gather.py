"""Receiving from several sources at the same time; a source is a topic in one broker set.

A receive first asks all sources for messages that are there now. Then one call waits at each, and
the first that brings messages ends the wait. The others stay open for a moment, and the next
receive gives out their messages first. These calls are short: the answer to a cancelled call would
be lost, and its messages invisible to all members. Invariants: messages that are not given out are
never more than were wanted, or one a source; a source that does not answer delays no other; no
message is given out that its broker may have given to another member. Knows neither brokers nor
requests: a `Receiver` does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from mq.client.cluster.retry import cancelled, now_s
from mq.errors import MqError, PermissionDenied, TopicNotFound

log = logging.getLogger(__name__)

# The longest wait of a call that a broker accepts.
WAIT_S_MAX = 60.0
# The wait of a call that may be left open: messages that come then are withheld from other members.
CALL_WAIT_S = 2.0
# Messages that were received so long ago are renewed before they are given out.
_FRESH_S = 1.0
# The wait for a silent source: if others had messages, and if not. After the latter it is
# late, and not waited for until it answers.
_GRACE_S, _LOOK_S = 0.05, 1.0
_SOURCES_AGE_S_MAX = 5.0


class Source(NamedTuple):
    topic: str
    broker_set: str


# Returns at least one.
Sources = Callable[[], Sequence[Source]]


class Batch(Protocol):
    """Messages that were received together."""

    def __len__(self) -> int: ...

    def part(self, start: int, end: int) -> Self:
        """The messages [start, end) of it."""
        ...


B = TypeVar("B", bound=Batch)


class Receiver(Protocol[B]):
    """No batch that it returns is empty."""

    async def receive(
        self, source: Source, messages_max: int, wait_s: float, invisible_s: float
    ) -> list[B]:
        """Messages of one source; waits `wait_s` for the first."""
        ...

    async def hold(self, batches: Sequence[B], invisible_s: float) -> list[B]:
        """Renews the invisible time. Messages that other members may have now are left out."""
        ...


class Gatherer(Generic[B]):
    """The receives of one consumer, on one loop; several may run at the same time."""

    def __init__(self, receiver: Receiver[B]) -> None:
        self._receiver = receiver
        # Calls that are open or have messages, and belong to no receive that runs.
        self._spare: list[_Call[B]] = []
        self._late: set[Source] = set()
        self._known: set[Source] = set()

    async def receive(
        self, sources: Sources, messages_max: int, wait_s: float, invisible_s: float
    ) -> list[B]:
        """Messages of any of the sources, which are asked in their order; none after the time-out.
        `sources` is called again every few seconds.

        Raises an error that will not pass, and the first one if all sources fail; not if some do.
        """
        spare, self._spare = self._spare, []
        is_spare_open = any(one.is_open for one in spare)
        # The answer to an open call may be on its way.
        deadline_s = now_s() + max(wait_s, _GRACE_S if is_spare_open else 0.0)
        current = _Receive(sources(), messages_max, invisible_s, deadline_s, spare)
        current.heard |= {one.source for one in spare if one.is_open} - self._late
        try:
            if len(current.sources) > 1:
                await self._look(current)
            while not self._is_over(current):
                current.sources = sources()
                self._wait_everywhere(current)
                await _change(current)
            return current.take()
        except asyncio.CancelledError:
            # The broker takes the messages of cancelled calls back.
            for one in current.calls:
                one.task.cancel()
            raise
        finally:
            self._spare += [one for one in current.calls if one.is_open or one.batches]

    # Messages that are there now

    async def _look(self, current: _Receive[B]) -> None:
        """One source after the other if there are more of them than messages wanted; but all new
        ones at once, so that the group starts everywhere at the same time.
        """
        held = self._hold_anew(current)
        sources = sorted(current.without_call(), key=self._known.__contains__)
        is_second = False
        while held or (sources and current.room > 0):
            new = sum(source not in self._known for source in sources)
            count = max(0, current.room, new)
            asked, sources = sources[:count], sources[count:]
            share = max(1, current.room // max(1, len(asked)))
            calls = [self._start(current, source, share, 0.0) for source in asked]
            await self._answered([*held, *calls])
            held = []
            if not sources and not is_second:
                # Sources that gave all that they were asked for may have more.
                is_second = True
                sources = [one.source for one in calls if one.count >= share]

    async def _answered(self, calls: Sequence[_Call[B]]) -> None:
        """Waits until the calls have answers, or are late."""
        began_s = now_s()
        waited = [one for one in calls if one.source not in self._late]
        while is_open := [one for one in waited if one.is_open]:
            patience_s = _GRACE_S if any(one.batches for one in waited) else _LOOK_S
            left_s = began_s + patience_s - now_s()
            if left_s <= 0:
                break
            await asyncio.wait(
                [one.task for one in is_open], timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
        if not any(one.batches for one in waited):
            for one in is_open:
                self._is_late(one.source, "it does not answer")

    # Messages to come

    def _wait_everywhere(self, current: _Receive[B]) -> None:
        """Keeps one call open at each source. Raises the first failure if none can be."""
        share = max(1, current.messages_max // len(current.sources))
        longest_s = WAIT_S_MAX if len(current.sources) == 1 else CALL_WAIT_S
        left_s = min(max(0.0, current.deadline_s - now_s()), longest_s)
        for source in current.without_call():
            failure = current.failures.get(source)
            if failure is None or (left_s > 0 and _is_retryable(failure)):
                self._start(current, source, share, left_s)
        if not any(one.is_open for one in current.calls):
            raise next(iter(current.failures.values()))

    def _is_over(self, current: _Receive[B]) -> bool:
        self._note(current)
        self._hold_anew(current)
        if current.has > 0:
            return True
        for source, failure in current.failures.items():
            if not _is_passing(failure, source, current.sources):
                raise failure
        return now_s() >= current.deadline_s and bool(current.heard)

    def _note(self, current: _Receive[B]) -> None:
        """Notes the outcome of calls that are over; only those with messages are kept."""
        for one in [one for one in current.calls if not one.is_open]:
            if one.failure is not None:
                current.failures[one.source] = one.failure
                self._is_late(one.source, str(one.failure))
            elif not one.task.cancelled():
                current.failures.pop(one.source, None)
                current.heard.add(one.source)
                if one.source in self._late:
                    self._late.discard(one.source)
                    log.info("topic %s in broker set %s answers again", *one.source)
            if not one.batches:
                current.calls.remove(one)

    def _is_late(self, source: Source, why: str) -> None:
        if source not in self._late:
            self._late.add(source)
            log.warning("topic %s in broker set %s is not waited for: %s", *source, why)

    # Calls

    def _start(
        self, current: _Receive[B], source: Source, messages_max: int, wait_s: float
    ) -> _Call[B]:
        self._known.add(source)
        invisible_s = current.invisible_s
        ask = partial(self._receiver.receive, source, messages_max, wait_s, invisible_s)
        call = _Call(source, invisible_s, ask)
        current.calls.append(call)
        return call

    def _hold_anew(self, current: _Receive[B]) -> list[_Call[B]]:
        """Renews messages that have lost some of their invisible time, or were received for another
        one.
        """
        oldest_s = now_s() - _FRESH_S
        stale = [
            one
            for one in current.calls
            if one.batches and (one.answered_s < oldest_s or one.invisible_s != current.invisible_s)
        ]
        renewals: list[_Call[B]] = []
        for one in stale:
            current.calls.remove(one)
            hold = partial(self._hold, one.batches, current.invisible_s)
            renewals.append(_Call(one.source, current.invisible_s, hold))
        current.calls += renewals
        return renewals

    async def _hold(self, batches: Sequence[B], invisible_s: float) -> list[B]:
        try:
            return await self._receiver.hold(batches, invisible_s)
        except MqError as error:
            count = sum(map(len, batches))
            log.info("%d messages come again when their time is over: %s", count, error)
            return []

    async def close(self) -> list[B]:
        """Messages that were received and not given out."""
        spare, self._spare = self._spare, []
        tasks = [one.task for one in spare]
        if tasks:
            # An answer may be on its way.
            await asyncio.wait(tasks, timeout=_GRACE_S)
        await cancelled(*tasks)
        return [batch for one in spare for batch in one.batches]


class _Call(Generic[B]):
    """One call. When it is over it has messages, a failure, or neither."""

    def __init__(
        self, source: Source, invisible_s: float, ask: Callable[[], Coroutine[Any, Any, list[B]]]
    ) -> None:
        self.source = source
        self.invisible_s = invisible_s
        self.batches: list[B] = []
        self.failure: Exception | None = None
        self.answered_s = 0.0
        self.task = asyncio.create_task(self._run(ask))

    @property
    def is_open(self) -> bool:
        return not self.task.done()

    @property
    def count(self) -> int:
        return sum(map(len, self.batches))

    async def _run(self, ask: Callable[[], Coroutine[Any, Any, list[B]]]) -> None:
        try:
            self.batches = await ask()
        except Exception as error:  # noqa: BLE001 # raised by a receive
            self.failure = error
        self.answered_s = now_s()


@dataclass
class _Receive(Generic[B]):
    """The state of one receive."""

    sources: Sequence[Source]
    messages_max: int
    invisible_s: float
    deadline_s: float
    calls: list[_Call[B]]
    # Sources that have answered, with messages or without; and the errors of those that failed.
    heard: set[Source] = field(default_factory=set)
    failures: dict[Source, Exception] = field(default_factory=dict)

    @property
    def has(self) -> int:
        return sum(one.count for one in self.calls)

    @property
    def room(self) -> int:
        return self.messages_max - self.has

    def without_call(self) -> list[Source]:
        asked = {one.source for one in self.calls if one.is_open}
        return [source for source in self.sources if source not in asked]

    def take(self) -> list[B]:
        """The messages that came first, as many as are wanted; the rest stays."""
        found: list[B] = []
        left = self.messages_max
        for one in sorted(self.calls, key=lambda one: one.answered_s):
            taken, one.batches = _cut(one.batches, left)
            found += taken
            left -= sum(map(len, taken))
        return found


def _cut(batches: list[B], count: int) -> tuple[list[B], list[B]]:
    """The first `count` messages, and the rest."""
    for at, one in enumerate(batches):
        if len(one) > count:
            first = [one.part(0, count)] if count else []
            return [*batches[:at], *first], [one.part(count, len(one)), *batches[at + 1 :]]
        count -= len(one)
    return batches, []


async def _change(current: _Receive[Any]) -> None:
    """Waits until a call is over, or the time, or the sources may have changed. While no source
    has answered, the time of the receive does not end it: the calls do.
    """
    left_s = current.deadline_s - now_s() if current.heard else _SOURCES_AGE_S_MAX
    await asyncio.wait(
        [one.task for one in current.calls if one.is_open],
        timeout=min(max(0.0, left_s), _SOURCES_AGE_S_MAX),
        return_when=asyncio.FIRST_COMPLETED,
    )


def _is_retryable(failure: Exception) -> bool:
    return isinstance(failure, MqError) and failure.retryable


def _is_passing(failure: Exception, source: Source, sources: Sequence[Source]) -> bool:
    """The set is down, or has lost its part of the topic, and others have theirs."""
    if _is_retryable(failure):
        return True
    is_gone = isinstance(failure, TopicNotFound | PermissionDenied)
    return is_gone and any(one.topic == source.topic and one != source for one in sources)
