"""Assignment of queues to the members of a consumer group: a pure decision over plain values.

In this order: even, so that the numbers of queues of any two members differ by one at most; sticky,
so that no more queues move than evenness asks for; near, so that of equal choices a queue goes to
the zone that it is in; spread, so that members share each topic, and each priority of it, and not
only the sum of all. The answer depends on the values alone, not on the order in which they are
given. Where other broker sets have queues of the group as well, how many each member gets here is
decided by `shares`, and comes in. Knows nothing of time, of locks, or of what a member still has in
hand.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from mq.broker.queue import Queue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Candidate(NamedTuple):
    member_id: str
    zone: str
    owned: frozenset[Queue]


_NO_PINS: Mapping[Queue, str] = MappingProxyType({})
_NO_PRIORITIES: Mapping[str, int] = MappingProxyType({})


def assign(
    queues: Mapping[Queue, str],
    members: Sequence[Candidate],
    pinned: Mapping[Queue, str] = _NO_PINS,
    priorities: Mapping[str, int] = _NO_PRIORITIES,
    quotas: Mapping[str, int] | None = None,
) -> dict[str, frozenset[Queue]]:
    """`queues` has the zone of each; an empty zone is unknown and near to no member. `priorities`
    has the number of those of topics with some: queue i has the priority i modulo that. `quotas`,
    if there are any, say how many each member gets, of all queues together, in place of an even
    share.

    A pinned queue counts as owned by its member, also if others claim it, and is the last that
    the member gives up: it does so only when its pins alone are more than its share. A pin to
    a member that is no candidate means nothing. Of two that own a queue without a pin, the first by
    name has it.
    """
    if not members:
        return {}
    ranked = sorted(members)
    share, extras = divmod(len(queues), len(ranked)) if quotas is None else (0, 0)
    room = quotas or dict.fromkeys((one.member_id for one in ranked), share)
    hands = _queues_before(queues, ranked, pinned)
    suits = {one: (one.topic, one.queue_id % priorities.get(one.topic, 1)) for one in queues}
    extras -= _trim(hands, queues, ranked, pinned, (room, extras), suits)
    kept = {queue for hand in hands.values() for queue in hand}
    # Those of one suit follow each other, and so go to different members.
    free = sorted((suits[queue], queue) for queue in queues if queue not in kept)
    if free:
        _Dealer(ranked, hands, room, extras).deal([queue for _, queue in free], queues)
    return {member_id: frozenset(hand) for member_id, hand in hands.items()}


def _queues_before(
    queues: Mapping[Queue, str], ranked: Sequence[Candidate], pinned: Mapping[Queue, str]
) -> dict[str, list[Queue]]:
    """The queues of each member before anything moves; every queue at most once."""
    hands: dict[str, list[Queue]] = {member.member_id: [] for member in ranked}
    owners = {queue: name for queue, name in pinned.items() if name in hands and queue in queues}
    for member in ranked:
        for queue in member.owned:
            if queue in queues:
                owners.setdefault(queue, member.member_id)
    for queue, name in owners.items():
        hands[name].append(queue)
    return hands


def _trim(
    hands: dict[str, list[Queue]],
    queues: Mapping[Queue, str],
    ranked: Sequence[Candidate],
    pinned: Mapping[Queue, str],
    limits: tuple[Mapping[str, int], int],
    suits: Mapping[Queue, tuple[str, int]],
) -> int:
    """Cuts each hand to its share. Returns how many keep one more than the share, which is for
    those whose queue at stake is dearest.
    """
    room, extras = limits
    zones = {member.zone for member in ranked}
    stakes: list[tuple[int, str]] = []
    for member in ranked:
        name, hand = member.member_id, hands[member.member_id]
        if len(hand) <= room[name]:
            continue
        costs = {
            queue: _cost(queues[queue], member.zone, zones) + 3 * (pinned.get(queue) != name)
            for queue in hand
        }
        hands[name] = _dearest_first(costs, suits)
        stakes.append((costs[hands[name][room[name]]], name))
    keepers = {name for _, name in sorted(stakes)[:extras]}
    for _, name in stakes:
        del hands[name][room[name] + (name in keepers) :]
    return len(keepers)


def _cost(zone: str, home: str, zones: set[str]) -> int:
    """The less, the dearer: near to its member; near to no member; near to another member."""
    if zone and zone == home:
        return 0
    return 2 if zone and zone in zones else 1


def _dearest_first(
    costs: Mapping[Queue, int], suits: Mapping[Queue, tuple[str, int]]
) -> list[Queue]:
    """By cost; of the same cost in proportion to the suits (topics, and priorities of a topic), so
    that a cut anywhere leaves a part of each.
    """
    sizes = Counter((cost, suits[queue]) for queue, cost in costs.items())
    seen: Counter[tuple[int, tuple[str, int]]] = Counter()
    order: list[tuple[int, float, Queue]] = []
    for queue in sorted(costs):
        kind = costs[queue], suits[queue]
        seen[kind] += 1
        order.append((costs[queue], (seen[kind] - 0.5) / sizes[kind], queue))
    return [queue for _, _, queue in sorted(order)]


class _Dealer:
    """Gives free queues to members with room, first to the one with the least of its share. There
    is room for exactly the free queues, so the result does not depend on the order.
    """

    def __init__(
        self,
        ranked: Sequence[Candidate],
        hands: dict[str, list[Queue]],
        room: Mapping[str, int],
        extras: int,
    ) -> None:
        self._ranked = ranked
        self._queues_before = hands
        self._room = room
        self._extras = extras

    def deal(self, free: Sequence[Queue], queues: Mapping[Queue, str]) -> None:
        # All that stay in their zone come first: a place that one of them could have is not given
        # to a stranger.
        zones: dict[str, list[tuple[float, str]]] = defaultdict(list)
        for member in self._ranked:
            if member.zone:
                zones[member.zone].append(self._load(member))
        for heap in zones.values():
            heapq.heapify(heap)
        strangers = [
            queue
            for queue in free
            if queues[queue] not in zones or not self._give(queue, zones[queues[queue]])
        ]
        all_members = [self._load(member) for member in self._ranked]
        heapq.heapify(all_members)
        for queue in strangers:
            self._give(queue, all_members)

    def _load(self, member: Candidate) -> tuple[float, str]:
        return self._part(member.member_id), member.member_id

    def _part(self, name: str) -> float:
        """The part of its share that the member would have with half a queue more: above 1 it has
        all.
        """
        load, room = len(self._queues_before[name]), self._room[name]
        return (load + 0.5) / room if room else load + 1.5

    def _give(self, queue: Queue, heap: list[tuple[float, str]]) -> bool:
        _, name = heap[0]
        beyond = len(self._queues_before[name]) - self._room[name]
        if beyond > 0 or (beyond == 0 and not self._extras):
            return False
        if beyond == 0:
            self._extras -= 1
        self._queues_before[name].append(queue)
        heapq.heapreplace(heap, (self._part(name), name))
        return True
