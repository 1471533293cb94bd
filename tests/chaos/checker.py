"""The answers and sightings of the clients of a chaos run, and the broker's promises that they
break.

Every message has a name of its own. A name that was acknowledged must be seen, and stands on its
topic once, whatever consumers were given twice. What was rolled back, or was never sent, is never
seen; what was delayed is not seen before its time; what a consumer has acknowledged does not come
again. Messages of one lane are numbered, stand in one queue by their numbers, and are seen for the
first time in that order, by one member of a group at a time.

It knows nothing of clients and brokers, and reads no clock.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAMES_SHOWN = 10
_REFUSAL_CHARACTERS = 200
WRONG = ("lost", "duplicated", "reordered", "early", "phantom", "reappeared", "errors")


@dataclass(slots=True)
class Work:
    """The work on one topic: the messages sent, and their outcomes."""

    topic: str
    # Its client may store a message twice: copies are counted, and are no broken promise.
    may_repeat: bool = False
    # All that was ever begun; the outcome of those without an answer is unknown.
    sent: set[str] = field(default_factory=set)
    acked: set[str] = field(default_factory=set)
    # Sends that ended with an error: stored or not.
    unknown: set[str] = field(default_factory=set)
    # Those that were seen and have their name as a key.
    keyed: list[str] = field(default_factory=list)
    # Must never be seen.
    forbidden: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)
    sightings: int = 0
    # When each is due.
    due_ms: dict[str, int] = field(default_factory=dict)
    early: set[str] = field(default_factory=set)
    # Acknowledged by a consumer; and those of them that were given out again.
    done: set[str] = field(default_factory=set)
    reappeared: set[str] = field(default_factory=set)
    out_of_order: set[str] = field(default_factory=set)
    # How often each stands on the topic in the end; None: the topic was not read.
    stored: Counter[str] | None = None
    # When lanes changed their queue, as producers were told: for people.
    moves: list[str] = field(default_factory=list)
    _told: dict[str, str] = field(default_factory=dict)
    # The progress of each lane, its worker, and its queue.
    _tops: dict[str, int] = field(default_factory=dict)
    _at_work: dict[str, str] = field(default_factory=dict)
    _places: dict[str, str] = field(default_factory=dict)

    # -- while it goes on --------------------------------------------------------------------------

    def see(self, name: str, now_ms: int, clock_error_ms: int = 0) -> None:
        """Clocks of brokers and observers may differ by so much."""
        self.sightings += 1
        if now_ms + clock_error_ms < self.due_ms.get(name, 0):
            self.early.add(name)
        lane, number = lane_of(name)
        if lane and name not in self.seen:
            if number < self._tops.get(lane, 0):
                self.out_of_order.add(name)
            self._tops[lane] = max(number, self._tops.get(lane, 0))
        self.seen.add(name)

    def take(self, name: str, member: str) -> None:
        """A member of an ordered group begins with it."""
        lane, _ = lane_of(name)
        if self._at_work.setdefault(lane, member) != member:
            self.out_of_order.add(name)

    def leave(self, name: str, member: str) -> None:
        """It is through with it."""
        lane, _ = lane_of(name)
        if self._at_work.get(lane) == member:
            del self._at_work[lane]

    def told(self, name: str, queue: str, at_s: float) -> None:
        """Its producer was told that it stands there."""
        lane, _ = lane_of(name)
        if lane and self._told.setdefault(lane, queue) != queue:
            self.moves.append(f"{name} went to {queue} at {at_s:.1f} s, before: {self._told[lane]}")
            self._told[lane] = queue

    def receive(self, name: str) -> None:
        """It is given out to be acknowledged."""
        if name in self.done:
            self.reappeared.add(name)

    # -- the end -----------------------------------------------------------------------------------

    def holds(self, queue: str, names: Iterable[str]) -> None:
        """All that one of its queues holds, from the beginning."""
        if self.stored is None:
            self.stored = Counter()
        tops: dict[str, int] = {}
        for name in names:
            self.stored[name] += 1
            lane, number = lane_of(name)
            if not lane:
                continue
            # A second copy is no matter of order.
            is_copy = self.stored[name] > 1
            if not is_copy and (
                number < tops.get(lane, 0) or self._places.setdefault(lane, queue) != queue
            ):
                self.out_of_order.add(name)
            tops[lane] = max(number, tops.get(lane, 0))

    @property
    def missing(self) -> set[str]:
        """Acknowledged, and not seen yet."""
        return self.acked - self.seen

    @property
    def lost(self) -> set[str]:
        unstored = set() if self.stored is None else self.acked - self.stored.keys()
        return self.missing | unstored

    @property
    def duplicated(self) -> set[str]:
        return set() if self.may_repeat else self.repeated

    @property
    def repeated(self) -> set[str]:
        return {name for name, count in (self.stored or {}).items() if count > 1}

    @property
    def reordered(self) -> set[str]:
        return self.out_of_order

    @property
    def phantom(self) -> set[str]:
        visible = self.seen | (self.stored or {}).keys()
        return (self.forbidden & visible) | (visible - self.sent)

    @property
    def redelivered(self) -> int:
        """The number of repeated sightings: allowed, and good to know."""
        return self.sightings - len(self.seen)


def lane_of(name: str) -> tuple[str, int]:
    """ "red.7" is the seventh of its lane; a name without a number has none."""
    lane, _, number = name.rpartition(".")
    return lane, int(number) if lane else 0


class Ledger:
    """The work on all topics."""

    def __init__(self) -> None:
        self.works: dict[str, Work] = {}
        # What failed in a way that no client should meet.
        self.errors: list[str] = []
        # Why sends ended with an error, and how many did.
        self.refusals: Counter[str] = Counter()
        # Places on disks that were damaged, by kind of file, and that are again as they were.
        self.rotted: Counter[str] = Counter()
        self.mended: Counter[str] = Counter()

    def work(self, topic: str) -> Work:
        return self.works.setdefault(topic, Work(topic))

    @property
    def is_drained(self) -> bool:
        return not any(one.missing for one in self.works.values())

    def failed(self, work: Work, name: str, why: Exception) -> None:
        """A send ended with an error: it may be stored."""
        work.unknown.add(name)
        self.refuse(work, why)

    def refuse(self, work: Work, why: Exception) -> None:
        """A send ended with an error, and is repeated."""
        self.refusals[f"{work.topic}: {type(why).__name__}: {why}"[:_REFUSAL_CHARACTERS]] += 1

    def progress(self) -> str:
        """For people, while it goes on."""
        works = self.works.values()
        acked = sum(len(one.acked) for one in works)
        waiting = sum(len(one.missing) for one in works)
        return f"{acked:,} acknowledged, {waiting:,} of them not seen yet"

    def waiting(self) -> str:
        """For people: what was acknowledged and not seen yet, by topic."""
        missing = {one.topic: sorted(one.missing) for one in self.works.values() if one.missing}
        parts = [f"{topic} has {len(names)}: {names[:3]}" for topic, names in missing.items()]
        return ", ".join(parts) or "everything was seen"

    def verdict(self) -> dict[str, int]:
        """Sums over all topics."""
        works = self.works.values()
        return {
            "acked": sum(len(one.acked) for one in works),
            "lost": sum(len(one.lost) for one in works),
            "duplicated": sum(len(one.duplicated) for one in works),
            "reordered": sum(len(one.reordered) for one in works),
            "phantom": sum(len(one.phantom) for one in works),
            "early": sum(len(one.early) for one in works),
            "reappeared": sum(len(one.reappeared) for one in works),
            "unknown": sum(len(one.unknown) for one in works),
            "redelivered": sum(one.redelivered for one in works),
            "repeated": sum(len(one.repeated) for one in works if one.may_repeat),
            "errors": len(self.errors),
            "rotted": self.rotted.total(),
            "mended": self.mended.total(),
        }

    def is_good(self) -> bool:
        """A run in which nothing was acknowledged, or topics were not read, has shown nothing."""
        verdict = self.verdict()
        is_shown = verdict["acked"] > 0 and all(one.stored is not None for one in self._used())
        is_mended = self.rotted == self.mended
        return is_shown and is_mended and not any(verdict[name] for name in WRONG)

    def _used(self) -> Iterable[Work]:
        return (one for one in self.works.values() if one.acked)

    def details(self) -> str:
        """For people: what is wrong, with some names."""
        lines = list(self.errors[:_NAMES_SHOWN])
        if unmended := self.rotted - self.mended:
            lines.append(f"damaged on a disk, and not mended: {dict(unmended)}")
        for one in self.works.values():
            for what in WRONG[:-1]:
                names = sorted(getattr(one, what))
                if names:
                    shown = names[:_NAMES_SHOWN]
                    lines.append(f"{one.topic}: {len(names)} {what}, such as {shown}")
            lines += one.moves[:_NAMES_SHOWN]
            if one.acked and one.stored is None:
                lines.append(f"{one.topic}: what it holds was not read")
        return "\n".join(lines)
