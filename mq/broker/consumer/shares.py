"""The number of queues of one broker set that each member of a group gets, where several sets have
queues of the group's topics: a pure decision over plain values.

Every set decides for its own queues, without asking the others, and comes to the same plan, because
the plan depends on the values alone: the members, and what each set has. In this order: even, so
that the sums over all sets of any two members differ by one at most; near, so that as many queues
as possible are with members in a zone of their set; spread, so that members share each set, and not
only the sum of all: when a set is away, no member is idle without need.

Knows nothing of single queues, of their present members, or of time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple


class Portion(NamedTuple):
    """The queues that one broker set has of a group's topics, and the zones of its nodes."""

    queues: int
    zones: frozenset[str]


class Surroundings(NamedTuple):
    """The broker set whose queues are shared, the zones of its nodes, and the queues that other
    sets have of the same topics.
    """

    broker_set: str
    zones: frozenset[str]
    elsewhere: Mapping[str, Portion]

    @property
    def zone(self) -> str:
        """One that stands for all of the set: a queue is near to each of them, whichever node
        leads, because followers are read from, too.
        """
        return min(self.zones, default="")

    def home(self, zone: str) -> str:
        """As that one counts the zone of a member."""
        return self.zone if zone in self.zones else zone

    def quotas(self, members: Mapping[str, str], queues: int) -> dict[str, int] | None:
        """None: no other set has any, and the queues of this one are shared evenly."""
        if not any(one.queues for one in self.elsewhere.values()):
            return None
        here = Portion(queues, self.zones)
        return quotas(members, {**self.elsewhere, self.broker_set: here}, self.broker_set)


ALONE = Surroundings("", frozenset(), MappingProxyType({}))

# A class of members that are near to the same sets: the names of those sets.
_Class = frozenset[str]
_Flow = dict[tuple[_Class, str], int]


def quotas(
    members: Mapping[str, str], portions: Mapping[str, Portion], here: str
) -> dict[str, int]:
    """For each member, of which `members` has the zone, its number of queues of the set `here`. An
    empty zone is unknown and near to no member.
    """
    found = plan(members, portions)
    return {member_id: found[member_id][here] for member_id in members}


def plan(members: Mapping[str, str], portions: Mapping[str, Portion]) -> dict[str, Counter[str]]:
    """For each member, how many queues of each set."""
    ranked = sorted(name for name, one in portions.items() if one.queues)
    classes = _classes(members, portions, ranked)
    hands = _Hands(members)
    left = {name: portions[name].queues for name in ranked}
    if not members:
        return hands.by_member
    near = _near({one: len(found) for one, found in classes.items()}, left)
    for (one, name), count in near.items():
        hands.deal(name, count, classes[one])
        left[name] -= count
    all_members = sorted(members)
    for name in ranked:
        hands.deal(name, left[name], all_members)
    return hands.by_member


def _classes(
    members: Mapping[str, str], portions: Mapping[str, Portion], ranked: Iterable[str]
) -> dict[_Class, list[str]]:
    """Members that are near to the same sets, by name. Zones alone do not tell them apart: with a
    node of each set in each zone all are alike.
    """
    classes: dict[_Class, list[str]] = defaultdict(list)
    names = list(ranked)
    near_to = {
        zone: frozenset(name for name in names if zone and zone in portions[name].zones)
        for zone in set(members.values())
    }
    for member_id in sorted(members):
        classes[near_to[members[member_id]]].append(member_id)
    return dict(sorted(classes.items(), key=lambda item: sorted(item[0])))


class _Hands:
    """Gives one to the member with the fewest, by name, as often as there are queues. So the
    result is even, whatever members had before, as long as none had more than an even share.
    """

    def __init__(self, members: Iterable[str]) -> None:
        self.by_member: dict[str, Counter[str]] = {one: Counter() for one in sorted(members)}
        self._loads = dict.fromkeys(self.by_member, 0)

    def deal(self, name: str, count: int, receivers: Iterable[str]) -> None:
        """As if one by one, but rounds in which all of the poorest get one are taken at once."""
        names = list(receivers)
        while count:
            lowest = min(self._loads[one] for one in names)
            poorest = [one for one in names if self._loads[one] == lowest]
            richer = [self._loads[one] for one in names if self._loads[one] > lowest]
            rounds = min(count // len(poorest), min(richer) - lowest if richer else count)
            # What is left is less than one for each.
            takers, each = (poorest, rounds) if rounds else (poorest[:count], 1)
            for one in takers:
                self.by_member[one][name] += each
                self._loads[one] += each
            count -= each * len(takers)


def _near(sizes: Mapping[_Class, int], queues: Mapping[str, int]) -> _Flow:
    """The number of queues of each set that go to near members of each class, as large as evenness
    allows: a maximum flow. It starts from the shares that each class would get of each set anyway,
    so that queues are spread where there is a choice.
    """
    share, extras = divmod(sum(queues.values()), sum(sizes.values()))
    total = max(1, sum(queues.values()))
    flow: _Flow = {
        (one, name): queues[name] * sizes[one] * share // total
        for one in sizes
        for name in sorted(one)
    }
    rooms = {one: sizes[one] * share - sum(flow[one, name] for name in one) for one in sizes}
    left = {
        name: count - sum(flow.get((one, name), 0) for one in sizes)
        for name, count in queues.items()
    }
    # Within the even share first. What is left of the sum is for some members, one for each.
    _augment(flow, rooms, left, sum(left.values()))
    _augment(flow, dict(sizes), left, extras)
    return flow


def _augment(flow: _Flow, rooms: dict[_Class, int], left: dict[str, int], most: int) -> None:
    """Makes the flow greater by `most`, or as much as can be: a class with room takes a queue that
    is left, or one of another class, which takes another in turn.
    """
    while most and (path := _path(flow, rooms, left)):
        taken = [flow[one, name] for one, name in path[1::2]]
        (first, _), (_, last) = path[0], path[-1]
        count = min(most, rooms[first], left[last], *taken)
        for at, step in enumerate(path):
            flow[step] += -count if at % 2 else count
        rooms[first] -= count
        left[last] -= count
        most -= count


def _path(
    flow: _Flow, rooms: Mapping[_Class, int], left: Mapping[str, int]
) -> list[tuple[_Class, str]]:
    """The shortest: what the first class takes, what another one gives up for it, what that one
    takes, and so on. Empty: there is none.
    """
    takers: dict[str, _Class] = {}
    givers: dict[_Class, str] = {}
    waiting = [one for one in rooms if rooms[one]]
    seen = set(waiting)
    for one in waiting:
        for name in sorted(one):
            if name in takers:
                continue
            takers[name] = one
            if left[name]:
                return _steps(name, takers, givers)
            for other in rooms:
                if other not in seen and flow.get((other, name)):
                    seen.add(other)
                    givers[other] = name
                    waiting.append(other)
    return []


def _steps(
    last: str, takers: Mapping[str, _Class], givers: Mapping[_Class, str]
) -> list[tuple[_Class, str]]:
    steps = [(takers[last], last)]
    while steps[-1][0] in givers:
        one, name = steps[-1][0], givers[steps[-1][0]]
        steps += [(one, name), (takers[name], name)]
    return steps[::-1]
