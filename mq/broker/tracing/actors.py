"""Users, members and producers of entries: the numbers that `Provenance` gives them, read back from
the log.

A number holds for one term, and is said again in every segment that uses it. One that was not said
in the part that was read stays unknown: an older version wrote the entry, or the reader began in
the middle.
"""

from __future__ import annotations

from collections.abc import Sequence

from mq.broker.attribution import NOBODY, Actor
from mq.broker.tracing.entries import TracedEntry
from mq.wire.v1.state_pb2 import Actor as WireActor


class ActorTable:
    def __init__(self) -> None:
        self._actors: dict[tuple[int, int], Actor] = {}
        self._producers: dict[str, Actor] = {}
        # Of the members of a group, which all have the same for a topic.
        self._filters: dict[tuple[str, str], str] = {}
        # Some entry said whose it is: the version that wrote it knows how.
        self.is_told = False

    def learn(self, entry: TracedEntry) -> None:
        if entry.command is None or not entry.command.HasField("provenance"):
            return
        for one in entry.command.provenance.actors:
            actor = _actor(one)
            self.is_told = True
            for topic, text in actor.filters:
                self._filters[actor.group, topic] = text
            self._actors[entry.ref.term, one.number] = actor
            if actor.producer_id:
                self._producers[actor.producer_id] = actor

    def get(self, term: int, number: int) -> Actor:
        return self._actors.get((term, number), NOBODY)

    def filter_of(self, group: str, topic: str) -> str:
        """Empty: none was said."""
        return self._filters.get((group, topic), "")

    def one_of(self, term: int, numbers: Sequence[int], at: int) -> Actor:
        """The actor of the element `at` of a list: one number stands for all elements."""
        if len(numbers) == 1:
            return self.get(term, numbers[0])
        return self.get(term, numbers[at]) if at < len(numbers) else NOBODY

    def sender(self, entry: TracedEntry, batch_at: int, message_at: int) -> Actor:
        """Of a message, by the number of its batch in the entry and its number in the batch."""
        batch = entry.batches[batch_at][0]
        if batch.producer_id:
            return self._producers.get(batch.producer_id, Actor(producer_id=batch.producer_id))
        if entry.command is None:
            return NOBODY
        left = iter(entry.command.provenance.senders)
        for number, (one, _) in enumerate(entry.batches):
            if one.producer_id:
                continue
            covered = 0
            while covered < one.message_count:
                actor, count = next(left, 0), next(left, 0)
                if not count:
                    return NOBODY
                covered += count
                if number == batch_at and message_at < covered:
                    return self.get(entry.ref.term, actor)
        return NOBODY


def _actor(wire: WireActor) -> Actor:
    return Actor(
        wire.user,
        wire.address,
        wire.producer_id,
        wire.group,
        wire.member_id,
        tuple((one.topic, one.filter) for one in wire.filters),
    )
