"""The driver's questions to the brokers: the queues, and where they begin and end.

One connection, kept between triggers. While a leader is being elected an answer takes longer, up to
`patience_s`; then an MqSparkError names the servers. That something is gone is believed only when
every broker set was asked: a broker that has just started knows less than there is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeVar

from mq.client import QueueRef
from mq.client.aio import Admin
from mq.client.lowlevel import QueueOffsets, Start, background
from mq.errors import MqError, TopicNotFound, Unreachable
from mq.names import is_internal_topic
from mq_spark.errors import MqSparkError
from mq_spark.options import EARLIEST, LATEST, AtOffsets, AtTime, Position, ReadOptions
from mq_spark.reading.offsets import named, queue_name, within

Queues = dict[QueueRef, int]
T = TypeVar("T")

# A mistyped address fails after this time; a running query is patient with an election.
START_PATIENCE_S = 8.0
PATIENCE_S = 60.0
# New broker sets of a topic, and new topics of a pattern, are noticed after so long.
_NAMES_AGE_S = 2.0
_PAUSE_S = 0.2


class Cluster(AbstractContextManager["Cluster"]):
    """For one thread at a time. Methods raise MqSparkError."""

    def __init__(self, options: ReadOptions, *, patience_s: float = PATIENCE_S) -> None:
        self._servers = options.connection.servers
        self._topics = options.topics
        self._patience_s = patience_s
        self._background = background()
        self._offsets = QueueOffsets(**options.connection.shared)
        self._admin = Admin(**options.connection.shared)
        self._names: list[str] = []
        self._names_at_s = 0.0
        self._named = frozenset(options.topics.queues)
        # The sets of queues that `assign` names without one. None: no broker was asked yet.
        self._homes: dict[QueueRef, str] | None = None

    # Questions

    def check(self, *, all_exist: bool) -> None:
        """That brokers answer; and, if that is asked for, that all that is named is there."""
        self._ask(self._existing if all_exist else self._reached)

    def find(self, *starts: Start) -> list[Queues]:
        """The position of each of these starts in all selected queues; all answers have the same
        queues. Topics that do not exist are left out, and perhaps queues that no broker has
        reported.
        """
        return self._ask(lambda: self._find(starts))

    def find_all(self, *starts: Start) -> list[Queues]:
        """As `find`, but by the word of all broker sets no queue is left out."""

        async def found() -> list[Queues]:
            return await self._find_these(await self._existing(all_exist=False), starts)

        return self._ask(found)

    def places(self, position: Position, *, fail: bool = True) -> Queues:
        """The offsets of this position in all selected queues, as reported by all broker sets.
        Offsets have to be given for each of the queues; those outside of one are an error, or,
        unless it is to fail, the nearest that are inside.
        """
        return self._ask(lambda: self._places([position], fail=fail))[0]

    def between(self, starting: Position, ending: Position, *, fail: bool) -> tuple[Queues, Queues]:
        """As `places`, of two positions at the same moment; both have the same queues."""
        starts, ends = self._ask(lambda: self._places([starting, ending], fail=fail))
        return starts, ends

    def gone(self, refs: Iterable[QueueRef]) -> set[QueueRef]:
        """Those that no longer exist, as reported by all broker sets."""
        wanted = set(refs)
        return self._ask(lambda: self._gone(wanted))

    def is_selected(self, ref: QueueRef) -> bool:
        """Whether the options ask for it. A queue of `assign` that is named without a set is the
        one of the set that had the topic first.
        """
        if self._named:
            plain = ref._replace(broker_set="")
            is_at_home = (self._homes or {}).get(plain, ref.broker_set) == ref.broker_set
            return ref in self._named or (plain in self._named and is_at_home)
        if self._topics.pattern:
            return self._topics.matches(ref.topic)
        return ref.topic in self._topics.names

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._background.run(self._offsets.close())
        self._background.run(self._admin.close())

    # Asking

    def _ask(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Asks again while there is no leader or no answer."""
        deadline_s = time.monotonic() + self._patience_s
        why = "nothing came back"
        while True:
            try:
                left_s = deadline_s - time.monotonic()
                return self._background.run(question(), max(left_s, _PAUSE_S))
            except TimeoutError:
                raise self._silent(why) from None
            except MqError as error:
                if not error.retryable:
                    raise MqSparkError(str(error)) from None
                why = str(error)
                if time.monotonic() + _PAUSE_S > deadline_s:
                    raise self._silent(why) from None
            time.sleep(_PAUSE_S)

    def _silent(self, why: str) -> MqSparkError:
        return MqSparkError(
            f"servers = {','.join(self._servers)}: no answer within {self._patience_s:g} s; is a "
            f"broker running there? ({why})"
        )

    # Which queues there are

    async def _reached(self) -> None:
        await self._offsets.check()

    async def _existing(self, *, all_exist: bool = True) -> set[QueueRef]:
        """All that are selected, by the word of all broker sets. What is named and does not exist
        is an error, or left out.
        """
        names = await self._topic_names(fresh=True)
        parts = await asyncio.gather(*(self._queues_of(name) for name in names))
        missing = [name for name, part in zip(names, parts, strict=True) if part is None]
        if missing and all_exist:
            raise MqSparkError(
                f"topic {named(missing)} does not exist: create it (mq topic create NAME), or "
                f"correct {'assign' if self._named else 'subscribe'}"
            )
        existing = {ref for part in parts for ref in part or ()}
        if not self._named:
            return existing
        given = self._named if all_exist else _those_of(self._named, existing)
        assigned = resolved("assign", given, existing)
        self._homes = {
            name: ref.broker_set for ref, name in assigned.items() if not name.broker_set
        }
        return set(assigned)

    async def _topic_names(self, *, fresh: bool = False) -> list[str]:
        is_old = time.monotonic() > self._names_at_s + _NAMES_AGE_S
        if not (fresh or is_old or not self._names):
            return self._names
        if self._topics.pattern:
            self._names = await self._matching()
        else:
            self._names = sorted({*self._topics.names, *(ref.topic for ref in self._named)})
        for name in self._names:
            self._offsets.forget(name)
        self._names_at_s = time.monotonic()
        return self._names

    async def _matching(self) -> list[str]:
        listed = await self._admin.list_topics()
        _check_complete(listed.missing_sets)
        return sorted(
            {
                one.info.topic
                for one in listed
                if self._topics.matches(one.info.topic) and not is_internal_topic(one.info.topic)
            }
        )

    async def _queues_of(self, topic: str) -> set[QueueRef] | None:
        """None: no such topic."""
        try:
            found = await self._admin.describe_topic(topic)
        except TopicNotFound:
            return None
        _check_complete(found.missing_sets)
        return {
            QueueRef(topic, queue_id, part.broker_set)
            for part in found.parts
            for queue_id in range(part.read_queues if part.is_readable else 0)
        }

    async def _gone(self, refs: set[QueueRef]) -> set[QueueRef]:
        topics = sorted({ref.topic for ref in refs})
        parts = await asyncio.gather(*(self._queues_of(topic) for topic in topics))
        return refs - {ref for part in parts for ref in part or ()}

    # Where they are

    async def _find(self, starts: Sequence[Start]) -> list[Queues]:
        names = await self._topic_names()
        if self._named and self._homes is None:
            await self._existing(all_exist=False)
        answers = await asyncio.gather(
            *(self._find_in(name, start) for start in starts for name in names)
        )
        merged: list[Queues] = []
        for at in range(len(starts)):
            parts = answers[at * len(names) : (at + 1) * len(names)]
            found = {ref: place for part in parts for ref, place in part.items()}
            merged.append({ref: found[ref] for ref in found if self.is_selected(ref)})
        # One may have been made between two questions.
        common = set.intersection(*(set(one) for one in merged))
        return [{ref: one[ref] for ref in sorted(common)} for one in merged]

    async def _find_in(self, topic: str, start: Start) -> Queues:
        try:
            return await self._offsets.find(topic, start)
        except TopicNotFound:
            self._offsets.forget(topic)
            # Gone in one of the sets, or in all of them: in none, as far as this question goes.
            self._names_at_s = 0.0
            return {}

    async def _find_these(self, wanted: set[QueueRef], starts: Sequence[Start]) -> list[Queues]:
        """The same for just these queues. Raises Unreachable if an answer leaves one out."""
        found = await self._find(starts)
        if any(wanted - one.keys() for one in found):
            self._names_at_s = 0.0
            raise Unreachable(f"no broker reports {_list(wanted - found[0].keys())}")
        return [{ref: one[ref] for ref in sorted(wanted)} for one in found]

    async def _places(self, positions: Sequence[Position], *, fail: bool) -> list[Queues]:
        existing = await self._existing()
        given = {
            at: _given(one, existing)
            for at, one in enumerate(positions)
            if isinstance(one, AtOffsets)
        }
        # The ends of the queues, by which offsets are judged, and what stands for one of them.
        plain = [_start(one) for one in positions if not isinstance(one, AtOffsets)]
        starts = list(dict.fromkeys([*(("earliest", "latest") if given else ()), *plain]))
        found = dict(zip(starts, await self._find_these(existing, starts), strict=True))
        places = []
        for at, position in enumerate(positions):
            if isinstance(position, AtOffsets):
                earliest, latest = found["earliest"], found["latest"]
                known = {EARLIEST: earliest, LATEST: latest}
                wanted = {
                    ref: known[place][ref] if place in known else place
                    for ref, place in given[at].items()
                }
                places.append(within(position.option, wanted, earliest, latest, fail=fail))
            else:
                places.append(found[_start(position)])
        return places


def _start(position: Literal["earliest", "latest"] | AtTime) -> Start:
    return position.at_ms if isinstance(position, AtTime) else position


def _given(position: AtOffsets, existing: Collection[QueueRef]) -> Queues:
    """By the queues that exist, of which none may be left out."""
    names = resolved(position.option, position.queue_offsets, existing)
    left_out = set(existing) - names.keys()
    if left_out:
        raise MqSparkError(
            f"{position.option} must name every queue: add {_list(left_out)} "
            "(-2 for earliest, -1 for latest)"
        )
    return {ref: position.queue_offsets[name] for ref, name in names.items()}


def resolved(
    option: str, given: Collection[QueueRef], existing: Collection[QueueRef]
) -> dict[QueueRef, QueueRef]:
    """By the queues that exist: what they were called. MqSparkError for others."""
    homes: dict[QueueRef, list[QueueRef]] = {}
    sets: dict[str, set[str]] = {}
    for ref in existing:
        homes.setdefault(ref._replace(broker_set=""), []).append(ref)
        sets.setdefault(ref.topic, set()).add(ref.broker_set)
    found: dict[QueueRef, QueueRef] = {}
    for name in sorted(given):
        here = homes.get(name._replace(broker_set=""), ())
        matching = [ref for ref in here if name.broker_set in ("", ref.broker_set)]
        if name.topic not in sets:
            raise MqSparkError(
                f"{option}: topic {name.topic} is not among those that are read: "
                f"{named(sorted(sets))}"
            )
        if not matching:
            has = _list(ref for ref in existing if ref.topic == name.topic)
            raise MqSparkError(f"{option}: there is no queue {_text(name)}; there are: {has}")
        if not name.broker_set and len(sets[name.topic]) > 1:
            raise MqSparkError(
                f"{option}: topic {name.topic} is in several broker sets: say which one has queue "
                f"{name.queue_id}, as in {queue_name(min(matching))!r}"
            )
        if matching[0] in found:
            raise MqSparkError(f"{option}: {_text(matching[0])} is named twice")
        found[matching[0]] = name
    return found


def _those_of(given: Collection[QueueRef], existing: Collection[QueueRef]) -> list[QueueRef]:
    """Those of the given ones that there are."""
    there = {*existing, *(ref._replace(broker_set="") for ref in existing)}
    return [name for name in given if name in there]


def _check_complete(missing_sets: Collection[str]) -> None:
    if missing_sets:
        raise Unreachable(f"broker set {named(missing_sets)} does not answer")


def _text(ref: QueueRef) -> str:
    return f"{ref.topic} {queue_name(ref) if ref.broker_set else ref.queue_id}"


def _list(refs: Iterable[QueueRef]) -> str:
    return named((_text(ref) for ref in sorted(refs)), count_max=8)
