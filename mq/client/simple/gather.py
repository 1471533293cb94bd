"""Receiving from several places at the same time; a place is a topic in one broker set.

First it is looked what is there now, everywhere; then one call waits at each place, and the first
that brings messages ends the wait. The others stay open for a moment, and the next receive gives
out what they bring before anything else. They are short: an answer on its way to a call that is
cancelled would be lost, and its messages invisible to all. Invariants: what is in hand and not
given out is never more than was wanted, or one message a place; a place that does not answer keeps
nobody waiting for the others; no message is given out that its broker would not let this member
keep. Knows neither brokers nor requests: a `Receiver` does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

from mq.client.cluster.retry import now_s
from mq.client.messages import ReceivedMessage
from mq.errors import MqError, PermissionDenied, TopicNotFound

log = logging.getLogger(__name__)

# As long as a broker keeps a call.
WAIT_S_MAX = 60.0
# How long a call waits that may be left open: what comes then could be had by others.
CALL_WAIT_S = 2.0
# What was received so long ago is held anew before it is given out.
_FRESH_S = 1.0
# How long a place that says nothing is waited for: when others had messages, and when not. After
# the latter it is late, and not waited for until it answers.
_GRACE_S, _LOOK_S = 0.05, 1.0
_PLACES_AGE_S_MAX = 5.0


class Place(NamedTuple):
    topic: str
    broker_set: str


# At least one.
Places = Callable[[], Sequence[Place]]


class Receiver(Protocol):
    async def receive(
        self, place: Place, messages_max: int, wait_s: float, invisible_s: float
    ) -> list[ReceivedMessage]:
        """Messages of one place; waits so long for the first."""
        ...

    async def hold(
        self, messages: Sequence[ReceivedMessage], invisible_s: float
    ) -> list[ReceivedMessage]:
        """For so long from now on; those that others may have by now are left out."""
        ...


class Gatherer:
    """Of one consumer, on one loop. Several receives may run at the same time."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        # Open, or with messages, and of no receive that runs.
        self._spare: list[_Poll] = []
        self._late: set[Place] = set()
        self._known: set[Place] = set()

    async def receive(
        self, places: Places, messages_max: int, wait_s: float, invisible_s: float
    ) -> list[ReceivedMessage]:
        """Messages of any of the places, in whose order it is asked; none: none came in time. What
        the places are is asked again every few seconds.

        Raises what a place refuses, and why all of them failed; not why some did.
        """
        spare, self._spare = self._spare, []
        is_spare_open = any(one.is_open for one in spare)
        # An answer may be on its way to a call that is open already.
        deadline_s = now_s() + max(wait_s, _GRACE_S if is_spare_open else 0.0)
        current = _Round(places(), messages_max, invisible_s, deadline_s, spare)
        current.heard |= {one.place for one in spare if one.is_open} - self._late
        try:
            if len(current.places) > 1:
                await self._look(current)
            while not self._is_over(current):
                current.places = places()
                self._wait_everywhere(current)
                await _change(current)
            return current.take()
        except asyncio.CancelledError:
            # Nobody is there for what would come. The broker takes it back.
            for one in current.polls:
                one.task.cancel()
            raise
        finally:
            self._spare += [one for one in current.polls if one.is_open or one.messages]

    # What is there now

    async def _look(self, current: _Round) -> None:
        """At one place after the other if there are more of them than messages wanted; but at all
        that are new at once, so that the group begins everywhere at the same time.
        """
        held = self._hold_anew(current)
        places = sorted(current.without_call(), key=self._known.__contains__)
        is_second = False
        while held or (places and current.room > 0):
            new = sum(place not in self._known for place in places)
            count = max(0, current.room, new)
            asked, places = places[:count], places[count:]
            share = max(1, current.room // max(1, len(asked)))
            polls = [self._start(current, place, share, 0.0) for place in asked]
            await self._answered([*held, *polls])
            held = []
            if not places and not is_second:
                # There may be more where as many were found as were asked for.
                is_second = True
                places = [one.place for one in polls if len(one.messages) >= share]

    async def _answered(self, polls: Sequence[_Poll]) -> None:
        """Until they have, or are late."""
        began_s = now_s()
        waited = [one for one in polls if one.place not in self._late]
        while is_open := [one for one in waited if one.is_open]:
            patience_s = _GRACE_S if any(one.messages for one in waited) else _LOOK_S
            left_s = began_s + patience_s - now_s()
            if left_s <= 0:
                break
            await asyncio.wait(
                [one.task for one in is_open],
                timeout=left_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        if not any(one.messages for one in waited):
            for one in is_open:
                self._is_late(one.place, "it does not answer")

    # What comes

    def _wait_everywhere(self, current: _Round) -> None:
        """One call at each place; all failures are told when there is none."""
        share = max(1, current.messages_max // len(current.places))
        longest_s = WAIT_S_MAX if len(current.places) == 1 else CALL_WAIT_S
        left_s = min(max(0.0, current.deadline_s - now_s()), longest_s)
        for place in current.without_call():
            failure = current.failures.get(place)
            if failure is None or (left_s > 0 and _is_retryable(failure)):
                self._start(current, place, share, left_s)
        if not any(one.is_open for one in current.polls):
            raise next(iter(current.failures.values()))

    def _is_over(self, current: _Round) -> bool:
        self._note(current)
        self._hold_anew(current)
        if current.has > 0:
            return True
        for place, failure in current.failures.items():
            if not _is_passing(failure, place, current.places):
                raise failure
        return now_s() >= current.deadline_s and bool(current.heard)

    def _note(self, current: _Round) -> None:
        """What the calls that are over have to say; only those with messages are kept."""
        for one in [one for one in current.polls if not one.is_open]:
            if one.failure is not None:
                current.failures[one.place] = one.failure
                self._is_late(one.place, str(one.failure))
            elif not one.task.cancelled():
                current.failures.pop(one.place, None)
                current.heard.add(one.place)
                if one.place in self._late:
                    self._late.discard(one.place)
                    log.info("topic %s in broker set %s answers again", *one.place)
            if not one.messages:
                current.polls.remove(one)

    def _is_late(self, place: Place, why: str) -> None:
        if place not in self._late:
            self._late.add(place)
            log.warning("topic %s in broker set %s is not waited for: %s", *place, why)

    # Calls

    def _start(self, current: _Round, place: Place, messages_max: int, wait_s: float) -> _Poll:
        self._known.add(place)
        invisible_s = current.invisible_s
        poll = _Poll(
            place,
            invisible_s,
            lambda: self._receiver.receive(place, messages_max, wait_s, invisible_s),
        )
        current.polls.append(poll)
        return poll

    def _hold_anew(self, current: _Round) -> list[_Poll]:
        """What has not its full time any more, or was received for another time."""
        oldest_s = now_s() - _FRESH_S
        stale = [
            one
            for one in current.polls
            if one.messages
            and (one.answered_s < oldest_s or one.invisible_s != current.invisible_s)
        ]
        calls: list[_Poll] = []
        for one in stale:
            current.polls.remove(one)
            held, invisible_s = one.messages, current.invisible_s
            calls.append(_Poll(one.place, invisible_s, _holding(self._receiver, held, invisible_s)))
        current.polls += calls
        return calls

    async def close(self) -> list[ReceivedMessage]:
        """What was received and given to nobody."""
        spare, self._spare = self._spare, []
        tasks = [one.task for one in spare]
        if tasks:
            # An answer may be on its way.
            await asyncio.wait(tasks, timeout=_GRACE_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return [message for one in spare for message in one.messages]


class _Poll:
    """One call. When it is over it has messages or a failure, or neither."""

    def __init__(
        self,
        place: Place,
        invisible_s: float,
        ask: Callable[[], Coroutine[Any, Any, list[ReceivedMessage]]],
    ) -> None:
        self.place = place
        self.invisible_s = invisible_s
        self.messages: list[ReceivedMessage] = []
        self.failure: Exception | None = None
        self.answered_s = 0.0
        self.task = asyncio.create_task(self._run(ask))

    @property
    def is_open(self) -> bool:
        return not self.task.done()

    async def _run(self, ask: Callable[[], Coroutine[Any, Any, list[ReceivedMessage]]]) -> None:
        try:
            self.messages = await ask()
        except Exception as error:  # noqa: BLE001 # told to whoever receives next
            self.failure = error
        self.answered_s = now_s()


class _Round:
    """One receive."""

    def __init__(
        self,
        places: Sequence[Place],
        messages_max: int,
        invisible_s: float,
        deadline_s: float,
        polls: list[_Poll],
    ) -> None:
        self.places = places
        self.messages_max = messages_max
        self.invisible_s = invisible_s
        self.deadline_s = deadline_s
        self.polls = polls
        # Places that have answered, with messages or without, and those that failed.
        self.heard: set[Place] = set()
        self.failures: dict[Place, Exception] = {}

    @property
    def has(self) -> int:
        return sum(len(one.messages) for one in self.polls)

    @property
    def room(self) -> int:
        return self.messages_max - self.has

    def without_call(self) -> list[Place]:
        asked = {one.place for one in self.polls if one.is_open}
        return [place for place in self.places if place not in asked]

    def take(self) -> list[ReceivedMessage]:
        """What came first, as much as is wanted; the rest stays."""
        found: list[ReceivedMessage] = []
        for one in sorted(self.polls, key=lambda one: one.answered_s):
            left = self.messages_max - len(found)
            found += one.messages[:left]
            one.messages = one.messages[left:]
        return found


async def _change(current: _Round) -> None:
    """Until a call is over, the time is, or there may be other places; without any answer there is
    no end but the calls'.
    """
    left_s = current.deadline_s - now_s() if current.heard else _PLACES_AGE_S_MAX
    await asyncio.wait(
        [one.task for one in current.polls if one.is_open],
        timeout=min(max(0.0, left_s), _PLACES_AGE_S_MAX),
        return_when=asyncio.FIRST_COMPLETED,
    )


def _holding(
    receiver: Receiver, messages: Sequence[ReceivedMessage], invisible_s: float
) -> Callable[[], Coroutine[Any, Any, list[ReceivedMessage]]]:
    async def hold() -> list[ReceivedMessage]:
        try:
            return await receiver.hold(messages, invisible_s)
        except MqError as error:
            log.info("%d messages come again when their time is over: %s", len(messages), error)
            return []

    return hold


def _is_retryable(failure: Exception) -> bool:
    return isinstance(failure, MqError) and failure.retryable


def _is_passing(failure: Exception, place: Place, places: Sequence[Place]) -> bool:
    """The set is down, or has its part of the topic no more: others have theirs."""
    if _is_retryable(failure):
        return True
    is_gone = isinstance(failure, TopicNotFound | PermissionDenied)
    return is_gone and any(one.topic == place.topic and one != place for one in places)
