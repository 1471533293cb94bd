"""What the driver asks the brokers: which queues there are, and where they begin and end.

One connection, kept between triggers. While a leader is being elected an answer takes longer, up to
`patience_s`; then an MqSparkError names the servers. That something is gone is believed only when
every broker set was asked: a broker that has just started knows less than there is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from mq.client import QueueRef
from mq.client.administering.admin import Admin
from mq.client.connecting.wiring import Connection
from mq.client.consuming import offset_calls
from mq.client.consuming.subscription import Start
from mq.client.sync import background
from mq.errors import MqError, TopicNotFound, Unreachable
from mq.names import is_internal_topic
from mq_spark.errors import MqSparkError
from mq_spark.offsets import named, queue_name
from mq_spark.options import EARLIEST, LATEST, AtOffsets, AtTime, Position, ReadOptions

Queues = dict[QueueRef, int]
T = TypeVar("T")

# A user who mistypes an address waits so long; a query that runs is patient with an election.
START_PATIENCE_S = 8.0
PATIENCE_S = 60.0
# New broker sets of a topic, and new topics of a pattern, are noticed after so long.
_NAMES_AGE_S = 2.0
_PAUSE_S = 0.2


class Cluster:
    """For one thread at a time. Methods raise MqSparkError."""

    def __init__(self, options: ReadOptions, *, patience_s: float = PATIENCE_S) -> None:
        self._servers = options.servers
        self._topics = options.topics
        self._patience_s = patience_s
        self._background = background()
        self._connection = Connection(options.servers, options.zone)
        self._admin = Admin(options.servers)
        self._names: list[str] = []
        self._names_at_s = 0.0
        # Queues that `assign` names, with their sets.
        self._assigned: frozenset[QueueRef] = frozenset()

    # Questions

    def check(self, *, all_exist: bool) -> None:
        """That brokers answer; and, if that is asked for, that all that is named is there."""
        self._ask(self._existing if all_exist else self._reached)

    def find(self, *starts: Start) -> list[Queues]:
        """Where each of these is, in all queues that are selected; all answers have the same
        queues. Topics that do not exist are left out, and perhaps queues that nobody has told of.
        """
        return self._ask(lambda: self._find(starts))

    def places(self, position: Position) -> Queues:
        """Where that is in all queues that are selected. Offsets are taken as they are, and have to
        be given for each of the queues.
        """
        if isinstance(position, AtOffsets):
            return self._ask(lambda: self._given_places(position))
        start: Start = position.at_ms if isinstance(position, AtTime) else position
        return self._ask(lambda: self._found_places([start]))[0]

    def gone(self, refs: Iterable[QueueRef]) -> set[QueueRef]:
        """Those that do not exist any more, by the word of all broker sets."""
        wanted = set(refs)
        return self._ask(lambda: self._gone(wanted))

    def is_selected(self, ref: QueueRef) -> bool:
        """Whether the options ask for it. A queue of `assign` may be named without its set."""
        if self._topics.queues:
            plain = ref._replace(broker_set="")
            return ref in self._topics.queues or plain in self._topics.queues
        if self._topics.pattern:
            return self._topics.matches(ref.topic)
        return ref.topic in self._topics.names

    def close(self) -> None:
        self._background.run(self._connection.close())
        self._background.run(self._admin.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Asking

    def _ask(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Again, while nobody leads or nobody answers."""
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
        await self._connection.brokers()

    async def _existing(self) -> set[QueueRef]:
        """All that are selected, by the word of all broker sets. What is named and does not exist
        is an error.
        """
        names = await self._topic_names(fresh=True)
        parts = await asyncio.gather(*(self._queues_of(name) for name in names))
        missing = [name for name, part in zip(names, parts, strict=True) if part is None]
        if missing:
            raise MqSparkError(
                f"topic {named(missing)} does not exist: create it (mq topic create NAME), or "
                f"correct {'assign' if self._topics.queues else 'subscribe'}"
            )
        existing = {ref for part in parts for ref in part or ()}
        if not self._topics.queues:
            return existing
        self._assigned = frozenset(resolved("assign", self._topics.queues, existing))
        return set(self._assigned)

    async def _topic_names(self, *, fresh: bool = False) -> list[str]:
        is_old = time.monotonic() > self._names_at_s + _NAMES_AGE_S
        if not (fresh or is_old or not self._names):
            return self._names
        if self._topics.pattern:
            self._names = await self._matching()
        else:
            self._names = sorted({*self._topics.names, *(ref.topic for ref in self._topics.queues)})
        for name in self._names:
            self._connection.forget_route(name)
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
        if self._topics.queues and not self._assigned:
            await self._existing()
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
            return await offset_calls.find_offsets(self._connection, topic, start)
        except TopicNotFound:
            self._connection.forget_route(topic)
            # Gone in one of the sets, or in all of them: in none, as far as this question goes.
            self._names_at_s = 0.0
            return {}

    async def _found_places(self, starts: Sequence[Start]) -> list[Queues]:
        """Of all that there are."""
        existing = await self._existing()
        found = await self._find(starts)
        if any(existing - one.keys() for one in found):
            self._names_at_s = 0.0
            raise Unreachable(f"nobody tells of {_list(existing - found[0].keys())}")
        return [{ref: one[ref] for ref in sorted(existing)} for one in found]

    async def _given_places(self, position: AtOffsets) -> Queues:
        existing = await self._existing()
        given = resolved(position.option, position.queue_offsets, existing)
        if existing - given.keys():
            raise MqSparkError(
                f"{position.option} must name every queue: add {_list(existing - given.keys())} "
                "(-2 for earliest, -1 for latest)"
            )
        earliest, latest = await self._found_places(["earliest", "latest"])
        known = {EARLIEST: earliest, LATEST: latest}
        places = {ref: position.queue_offsets[name] for ref, name in given.items()}
        return {ref: known[at][ref] if at in known else at for ref, at in places.items()}


def resolved(
    option: str, given: Collection[QueueRef], existing: Collection[QueueRef]
) -> dict[QueueRef, QueueRef]:
    """By the queues that exist: what they were called. MqSparkError for others."""
    sets: dict[QueueRef, list[QueueRef]] = {}
    for ref in existing:
        sets.setdefault(ref._replace(broker_set=""), []).append(ref)
    found: dict[QueueRef, QueueRef] = {}
    for name in sorted(given):
        plain = name._replace(broker_set="")
        matching = [ref for ref in sets.get(plain, ()) if name.broker_set in ("", ref.broker_set)]
        topics = {ref.topic for ref in existing}
        if name.topic not in topics:
            raise MqSparkError(
                f"{option}: topic {name.topic} is none of those that are read: {named(topics)}"
            )
        if not matching:
            has = _list(ref for ref in existing if ref.topic == name.topic)
            raise MqSparkError(f"{option}: there is no queue {_text(name)}; there are: {has}")
        if len({ref.broker_set for ref in existing if ref.topic == name.topic}) > 1 and (
            not name.broker_set
        ):
            raise MqSparkError(
                f"{option}: topic {name.topic} is in several broker sets: say which one has queue "
                f"{name.queue_id}, as in {queue_name(matching[0])!r}"
            )
        found[matching[0]] = name
    return found


def _check_complete(missing_sets: Collection[str]) -> None:
    if missing_sets:
        raise Unreachable(f"broker set {named(missing_sets)} does not answer")


def _text(ref: QueueRef) -> str:
    return f"{ref.topic} {queue_name(ref) if ref.broker_set else ref.queue_id}"


def _list(refs: Iterable[QueueRef]) -> str:
    return named((_text(ref) for ref in sorted(refs)), count_max=8)
