"""The calls and sightings of clients, in order, and the broker's promises that they break.

Sends end acknowledged, refused (nothing was stored) or in doubt. At the end the test says what
every queue holds; then `problems` compares: nothing acknowledged is lost or elsewhere, nothing is
stored twice, out of order, or though it was never sent. Groups see everything, in order, and again
only what was not committed; their offsets never go back, and never pass what is not done.

It knows nothing of clients and brokers. Any thread may record; the order of the calls is the order
of the events.
"""

from __future__ import annotations

import enum
import itertools
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_PROBLEMS_SHOWN = 10
_EVENTS_SHOWN = 20

# In which order a group sees a queue: not at all (parallel handlers), each member by itself, or the
# group as a whole, and never two members at once.
Order = Literal["none", "member", "group"]


class Queue(NamedTuple):
    topic: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id}"


class Place(NamedTuple):
    queue: Queue
    queue_offset: int

    def __str__(self) -> str:
        return f"{self.queue}@{self.queue_offset}"


class Received(Protocol):
    """The fields of a received message that are compared."""

    topic: str
    queue_id: int
    queue_offset: int
    message_id: str
    body: bytes


def place_of(message: Received) -> Place:
    return Place(Queue(message.topic, message.queue_id), message.queue_offset)


class Outcome(enum.Enum):
    IN_DOUBT = enum.auto()
    ACKNOWLEDGED = enum.auto()
    REFUSED = enum.auto()


@dataclass(slots=True, eq=False)
class Send:
    """`lane`: what was sent with the same one stands in order where it stands in one queue; empty:
    in any. `may_repeat` without idempotence, `may_vanish` when a majority was not asked.
    """

    number: int
    lane: str
    body: bytes
    may_repeat: bool = False
    may_vanish: bool = False
    outcome: Outcome = Outcome.IN_DOUBT
    # Not known: the answer did not say.
    place: Place | None = None
    message_id: str = ""


@dataclass(slots=True, eq=False)
class Work:
    """A message in the hands of a member, until `History.finished`."""

    group: str
    member: str
    place: Place
    body: bytes


class Problem(NamedTuple):
    kind: str
    text: str
    queue: Queue | None = None
    body: bytes = b""
    # How many events there were when it was found; -1: it was found at the end.
    after: int = -1


class _Event(NamedTuple):
    at_s: float
    text: str
    queues: frozenset[Queue] = frozenset()
    body: bytes = b""

    @property
    def is_note(self) -> bool:
        return not self.queues and not self.body

    def is_about(self, problem: Problem) -> bool:
        return problem.queue in self.queues

    def is_about_message(self, problem: Problem) -> bool:
        return bool(problem.body) and problem.body == self.body


@dataclass(slots=True)
class _Reading:
    """The progress of a group in one queue."""

    # Behind all that was seen.
    top: int = 0
    # The group's position, as far as a client was told.
    committed: int = 0
    # Everything before it is done.
    done_to: int = 0
    done: set[int] = field(default_factory=set)
    # The one that was seen last.
    last: int = -1
    # The worker of each lane.
    at_work: dict[Work, None] = field(default_factory=dict)

    def finish(self, queue_offset: int) -> None:
        self.done.add(queue_offset)
        while self.done_to in self.done:
            self.done_to += 1


class _Group:
    def __init__(self, topics: Iterable[str], order: Order) -> None:
        self.topics = frozenset(topics)
        self.order = order
        self.queues: dict[Queue, _Reading] = defaultdict(_Reading)
        self.seen: Counter[Place] = Counter()
        self.deliveries = 0


class History:
    """`title` says how to have the same once more: the seed."""

    def __init__(self, title: str, clock: Callable[[], float] = time.time) -> None:
        self._title = title
        self._clock = clock
        self._lock = threading.RLock()
        self._events: list[_Event] = []
        self._sends: dict[bytes, Send] = {}
        self._outcomes: Counter[Outcome] = Counter()
        self._groups: dict[str, _Group] = {}
        self._stored: dict[Place, Received] = {}
        # The first message that any client saw at each place.
        self._seen_bodies: dict[Place, bytes] = {}
        # Found while it happened.
        self._found: list[Problem] = []

    def note(self, text: str) -> None:
        """Records an act of the test: kills, restarts."""
        self._event(text)

    def _event(self, text: str, queues: Iterable[Queue] = (), body: bytes = b"") -> None:
        with self._lock:
            self._events.append(_Event(self._clock(), text, frozenset(queues), body))

    def _problem(self, kind: str, text: str, queue: Queue | None = None, body: bytes = b"") -> None:
        with self._lock:
            self._found.append(Problem(kind, text, queue, body, len(self._events)))

    # -- producers --------------------------------------------------------------------------------

    def sending(
        self, lane: str, body: bytes, *, may_repeat: bool = False, may_vanish: bool = False
    ) -> Send:
        """To be called before it is sent. Bodies tell messages apart: each is sent once."""
        with self._lock:
            if body in self._sends:
                raise ValueError(f"{body!r} is sent already")
            send = Send(len(self._sends), lane, body, may_repeat, may_vanish)
            self._sends[body] = send
            self._outcomes[send.outcome] += 1
            self._event(f"send {body!r} by {lane or 'anybody'}", body=body)
            return send

    def acknowledged(
        self, send: Send, queue: Queue, queue_offset: int, message_id: str = ""
    ) -> None:
        """-1: the broker did not say where."""
        with self._lock:
            self._end(send, Outcome.ACKNOWLEDGED)
            send.message_id = message_id
            if queue_offset >= 0:
                send.place = Place(queue, queue_offset)
            self._event(f"acknowledged {send.body!r} at {queue}@{queue_offset}", [queue], send.body)

    def failed(self, send: Send, why: object, *, is_sure: bool) -> None:
        """`is_sure`: the broker says that nothing was stored."""
        with self._lock:
            self._end(send, Outcome.REFUSED if is_sure else Outcome.IN_DOUBT)
            self._event(f"{send.outcome.name} {send.body!r}: {why}", body=send.body)

    def _end(self, send: Send, outcome: Outcome) -> None:
        self._outcomes[send.outcome] -= 1
        self._outcomes[outcome] += 1
        send.outcome = outcome

    def count(self, outcome: Outcome) -> int:
        return self._outcomes[outcome]

    # -- consumers --------------------------------------------------------------------------------

    def group(self, name: str, topics: Iterable[str], order: Order) -> None:
        """From their beginning; at the end it must have seen all of these topics."""
        with self._lock:
            self._groups[name] = _Group(topics, order)

    @property
    def groups(self) -> list[str]:
        with self._lock:
            return list(self._groups)

    def took(self, group: str, member: str, message: Received) -> Work:
        """A member starts to work on it."""
        place = place_of(message)
        work = Work(group, member, place, message.body)
        with self._lock:
            self._event(
                f"{member} of {group} took {message.body!r} at {place}", [place.queue], message.body
            )
            first = self._seen_bodies.setdefault(place, message.body)
            if first != message.body:
                self._problem(
                    "wrong content",
                    f"{place} was {first!r} and is {message.body!r} for {member} of {group}",
                    place.queue,
                )
            known = self._groups[group]
            self._judge(known, work)
            known.seen[place] += 1
            known.deliveries += 1
            known.queues[place.queue].at_work[work] = None
        return work

    def _judge(self, group: _Group, work: Work) -> None:
        queue, queue_offset = work.place
        reading = group.queues[queue]
        who = f"{work.member} of {work.group} got {work.place}"
        if queue_offset < reading.committed:
            self._problem("again", f"{who}, and {reading.committed} was committed", queue)
        if group.order == "group":
            others = {one.member for one in reading.at_work} - {work.member}
            if others:
                self._problem("two at once", f"{who} while {sorted(others)} had the queue", queue)
            behind = reading.last + 1
        else:
            # Others may have seen what lies between.
            behind = reading.top
        if group.order != "none" and queue_offset > behind:
            self._problem("skipped", f"{who}, and {behind} was next", queue)
        reading.last = queue_offset
        reading.top = max(reading.top, queue_offset + 1)

    def finished(self, work: Work) -> None:
        """The member is done with it: from now on the group's offset may pass it."""
        with self._lock:
            reading = self._groups[work.group].queues[work.place.queue]
            reading.at_work.pop(work, None)
            reading.finish(work.place.queue_offset)
            self._event(
                f"{work.member} of {work.group} finished {work.place}",
                [work.place.queue],
                work.body,
            )

    def dropped(self, work: Work) -> None:
        """The member has given the message up, and is not done: its group gets it again."""
        with self._lock:
            self._groups[work.group].queues[work.place.queue].at_work.pop(work, None)
            self._event(f"{work.member} of {work.group} dropped {work.place}", [work.place.queue])

    # -- offsets ----------------------------------------------------------------------------------

    def committed(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """A client was told that these are durable."""
        self._offsets_are(group, offsets, "committed")

    def floors(self, group: str) -> dict[Queue, int]:
        """The least that a question for offsets that begins now must find."""
        with self._lock:
            return {queue: one.committed for queue, one in self._groups[group].queues.items()}

    def queried(
        self, group: str, floors: Mapping[Queue, int], offsets: Mapping[Queue, int]
    ) -> None:
        """The broker's answer to a question that began when `floors` were."""
        for queue, floor in floors.items():
            found = offsets.get(queue, 0)
            if found < floor:
                self._problem(
                    "went back", f"{group} has {found} in {queue}, and had committed {floor}", queue
                )
        self._offsets_are(group, offsets, "has")

    def _offsets_are(self, group: str, offsets: Mapping[Queue, int], verb: str) -> None:
        with self._lock:
            text = ", ".join(f"{queue}@{at}" for queue, at in sorted(offsets.items()))
            self._event(f"{group} {verb} {text}", offsets)
            for queue, queue_offset in offsets.items():
                reading = self._groups[group].queues[queue]
                reading.committed = max(reading.committed, queue_offset)
                if queue_offset > reading.done_to:
                    self._problem(
                        "ran ahead",
                        f"{group} {verb} {queue}@{queue_offset}, and {reading.done_to} is not done",
                        queue,
                    )

    # -- the end ----------------------------------------------------------------------------------

    def stored(self, queue: Queue, messages: Iterable[Received]) -> None:
        """All that the queue holds, from its beginning."""
        with self._lock:
            count = 0
            for message in messages:
                place = place_of(message)
                if place != Place(queue, count):
                    self._problem("gap", f"{place} comes behind {queue}@{count - 1}", queue)
                count = place.queue_offset + 1
                self._stored[place] = message
            self._event(f"{queue} holds {count} messages", [queue])

    def repeats(self, group: str) -> list[str]:
        """The messages that the group saw more than once; whether that is allowed is the test's to
        say.
        """
        with self._lock:
            seen = self._groups[group].seen
            return [f"{place}: {count} times" for place, count in seen.items() if count > 1]

    def deliveries(self, group: str) -> int:
        """The number of messages that its members took, with all repeats."""
        return self._groups[group].deliveries

    def unseen(self, group: str, queue: Queue, end: int) -> int:
        """The number of messages before `end` that the group has not seen."""
        with self._lock:
            seen = self._groups[group].seen
            return sum(Place(queue, at) not in seen for at in range(end))

    def problems(self) -> list[Problem]:
        with self._lock:
            return [
                *self._found,
                *self._wrong_places(),
                *self._wrong_contents(),
                *self._wrong_orders(),
                *self._unread(),
            ]

    def _wrong_places(self) -> Iterator[Problem]:
        """Wrong places of acknowledged messages."""
        bodies = {message.body for message in self._stored.values()}
        for send in self._sends.values():
            if send.outcome is not Outcome.ACKNOWLEDGED or send.may_vanish:
                continue
            if send.body not in bodies:
                where = f"at {send.place}" if send.place else "somewhere"
                queue = send.place.queue if send.place else None
                yield Problem("lost", f"{send.body!r}, acknowledged {where}", queue, send.body)
            elif send.place is not None:
                there = self._stored.get(send.place)
                if there is None or there.body != send.body:
                    found = repr(there.body) if there else "nothing"
                    text = f"{send.place} has {found}, and {send.body!r} was acknowledged there"
                    yield Problem("wrong place", text, send.place.queue, send.body)
                elif send.message_id not in ("", there.message_id):
                    text = f"{send.place} is {there.message_id}, and was said to be "
                    text += send.message_id
                    yield Problem("wrong id", text, send.place.queue, send.body)

    def _wrong_contents(self) -> Iterator[Problem]:
        """Wrong contents of queues: messages that should not be there, or not as often."""
        places: dict[bytes, list[Place]] = defaultdict(list)
        for place, message in self._stored.items():
            places[message.body].append(place)
            seen = self._seen_bodies.get(place, message.body)
            if seen != message.body:
                text = f"{place} is {message.body!r}, and was {seen!r} when it was consumed"
                yield Problem("wrong content", text, place.queue)
        for body, found in places.items():
            send = self._sends.get(body)
            where = ", ".join(map(str, found))
            if send is None:
                yield Problem("phantom", f"{body!r} at {where} was never sent", found[0].queue)
            elif send.outcome is Outcome.REFUSED:
                text = f"{body!r} is stored at {where}, and was refused"
                yield Problem("phantom", text, found[0].queue, body)
            elif len(found) > 1 and not send.may_repeat:
                yield Problem("stored twice", f"{body!r} at {where}", found[0].queue, body)

    def _wrong_orders(self) -> Iterator[Problem]:
        """Wrong orders of lanes, in each queue."""
        before: dict[tuple[Queue, str], Send] = {}
        for place, message in sorted(self._stored.items()):
            send = self._sends.get(message.body)
            if send is None or not send.lane or send.may_repeat:
                continue
            former = before.get((place.queue, send.lane))
            if former is not None and former.number > send.number:
                text = f"{send.body!r} of {send.lane} stands behind {former.body!r} at {place}"
                yield Problem("reordered", text, place.queue, send.body)
            before[place.queue, send.lane] = send

    def _unread(self) -> Iterator[Problem]:
        for name, group in self._groups.items():
            for place in sorted(self._stored):
                if place.queue.topic in group.topics and place not in group.seen:
                    yield Problem("missed", f"{name} never saw {place}", place.queue)
            for place in sorted(group.seen.keys() - self._stored.keys()):
                if self._stored:
                    yield Problem("phantom", f"{name} saw {place}, which is not there", place.queue)

    def check(self) -> None:
        problems = self.problems()
        assert not problems, self.report(problems)

    def report(self, problems: Sequence[Problem] = ()) -> str:
        """All events of the wrong messages, and the last events of their queues. Without any, the
        last events.
        """
        lines = [f"{self._title}: {len(problems)} problems"]
        lines += [f"  {one.kind}: {one.text}" for one in problems[:_PROBLEMS_SHOWN]]
        with self._lock:
            events = list(self._events)
        shown = {at for at, event in enumerate(events) if event.is_note}
        if not problems:
            shown |= set(range(len(events))[-_EVENTS_SHOWN:])
        for one in problems[:_PROBLEMS_SHOWN]:
            about = range(len(events) if one.after < 0 else one.after)
            shown |= set([at for at in about if events[at].is_about(one)][-_EVENTS_SHOWN:])
            shown |= {at for at, event in enumerate(events) if event.is_about_message(one)}
        lines.append(f"{len(shown)} of {len(events)} events:")
        lines += [_line(at, events[at]) for at in sorted(shown)]
        return "\n".join(lines)

    def text(self) -> str:
        """All events."""
        with self._lock:
            return "\n".join([self._title, *map(_line, itertools.count(), self._events)])


def _line(number: int, event: _Event) -> str:
    return f"  {number:6} {event.at_s:.3f} {event.text}"
