"""Attribution of the leader's entries: numbers for users, members and producers, and which of the
numbers the log explains already.

A number holds for one term. What it stands for is said in the first entry of a segment that uses
it, so that a reader of that segment needs no other; applying never looks at it. A producer with an
id is said once, and its batches carry nothing. If an entry that said something is lost, everything
is said again. Work is done for each batch or report, never for each message.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple

from mq.wire.v1 import state_pb2 as pb

# Then all are forgotten, and said again when they are heard of.
_ACTORS_MAX = 20_000
_NAME_CHARACTERS_MAX = 255
_FILTER_CHARACTERS_MAX = 500


class Actor(NamedTuple):
    """Somebody who sends, consumes or administers; empty where it is not known."""

    user: str = ""
    address: str = ""
    producer_id: str = ""
    group: str = ""
    member_id: str = ""
    # Of a member, by topic, in their canonical form; those that let everything through are left
    # out.
    filters: tuple[tuple[str, str], ...] = ()


NOBODY = Actor()


# Asked for every call. Sends of one caller that follow each other are told by their being the same.
@functools.lru_cache(maxsize=4_096)
def actor_of(user: str, address: str) -> Actor:
    return Actor(user, address)


class Attribution:
    def __init__(self, term: Callable[[], int], segment: Callable[[], int]) -> None:
        """`term` is that in which this node leads, `segment` a number of the newest segment."""
        self._term = term
        self._segment = segment
        self._scope = 0, 0
        self._numbers: dict[Actor, int] = {}
        self._last = 0
        # In this segment.
        self._said: set[int] = set()
        self._producers: dict[str, Actor] = {}
        self._new: list[pb.Actor] = []

    def number(self, actor: Actor) -> int:
        """0: nobody. The next entry that is proposed says it, if that is needed."""
        if actor == NOBODY:
            return 0
        self._look_at_scope()
        found = self._numbers.get(actor)
        if found is None:
            if len(self._numbers) >= _ACTORS_MAX:
                self.forget()
            self._last += 1
            found = self._numbers[actor] = self._last
        if found not in self._said:
            self._said.add(found)
            self._new.append(_wire(found, actor))
        return found

    def producer(self, producer_id: str, actor: Actor) -> None:
        """Batches with this id are of this actor."""
        self._look_at_scope()
        if self._producers.get(producer_id) != actor:
            if len(self._producers) >= _ACTORS_MAX:
                self.forget()
            self._producers[producer_id] = actor
            self._last += 1
            self._new.append(_wire(self._last, actor._replace(producer_id=producer_id)))

    def numbers(self, actors: Iterable[Actor]) -> list[int]:
        """One if all are the same, none if all are nobody."""
        found = list(map(self.number, actors))
        if len(set(found)) == 1:
            return found[:1] if found[0] else []
        return found

    def take(self) -> list[pb.Actor]:
        """Returns the provenance that the entry proposed now has to carry."""
        found = self._new
        if found:
            self._new = []
        return found

    def give_back(self, said: list[pb.Actor]) -> None:
        """They did not fit into their entry: the next one says them."""
        self._new = said + self._new

    def forget(self) -> None:
        """An entry was lost, with what it said; or there are too many."""
        self._numbers.clear()
        self._said.clear()
        self._producers.clear()
        self._new = []

    def _look_at_scope(self) -> None:
        scope = self._term(), self._segment()
        if scope != self._scope:
            if scope[0] != self._scope[0]:
                self.forget()
            self._said.clear()
            self._producers.clear()
            self._scope = scope


def _wire(number: int, actor: Actor) -> pb.Actor:
    return pb.Actor(
        number=number,
        user=actor.user[:_NAME_CHARACTERS_MAX],
        address=actor.address[:_NAME_CHARACTERS_MAX],
        producer_id=actor.producer_id,
        group=actor.group,
        member_id=actor.member_id[:_NAME_CHARACTERS_MAX],
        filters=[
            pb.TopicFilter(topic=topic, filter=text[:_FILTER_CHARACTERS_MAX])
            for topic, text in actor.filters
        ],
    )
