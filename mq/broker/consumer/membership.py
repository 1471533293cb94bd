"""The members of one consumer group, and which member has which queues: soft state of the leader.

A queue is *in hand* of a member from the moment that it is assigned until the member lets go of it,
leaves, or is gone; it is in the hand of one member at a time. A queue that is to move leaves the
assignment of its holder first, and goes to the next one when no member has it in hand. In ordered
groups the replicated lock must name the member as well, before and as long as it is assigned.
In broadcast groups every member has all queues, and no queue is ever in hand.

A group may have very many queues: what is known of each stands in arrays, a row a queue, with
numbers in place of the names of members.

Decides only: `now_ms` comes in; members, locks and queues are told by the driver, which calls
`rebalance` after it. Knows nothing of streams, of offsets, or of the log.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from mq import names
from mq.broker.attribution import Actor
from mq.broker.consumer.assignment import Candidate, assign
from mq.broker.consumer.filters import ALL_MESSAGES
from mq.broker.consumer.queue_table import (
    NONE,
    Flags,
    Numbers,
    QueueTable,
    Rows,
    at,
    distinct,
    rows_where,
)
from mq.broker.consumer.shares import ALONE, Surroundings
from mq.broker.queue import Queue
from mq.errors import SubscriptionMismatch, UnknownMember
from mq.wire.v1.consumer_pb2 import MODE_BROADCAST, MODE_CLUSTERING, MODE_ORDERED

_MODES = {
    int(MODE_CLUSTERING): "clustering",
    int(MODE_ORDERED): "ordered",
    int(MODE_BROADCAST): "broadcast",
}
# A lock that was on its way when its member left must not be waited for; older ones may be.
_DEPARTED_MAX = 1_024
# Queues that change hands in one rebalance, and locks that change in one entry of the log. A larger
# move takes several, so that the driver can serve other groups in between.
HANDED_OVER_MAX = 2_000
# Names without a member or a lock that may be remembered.
_NUMBERS_SPARE = 256


class Spec(NamedTuple):
    """A member's description of itself. A filter is in its canonical form: one text for one
    meaning.
    """

    member_id: str
    zone: str
    mode: int
    subscriptions: Mapping[str, str]
    address: str
    is_streaming: bool
    user: str = ""

    def actor(self, group: str) -> Actor:
        """Of what it does in the group."""
        wanted = self.subscriptions.items()
        filters = tuple((topic, text) for topic, text in wanted if text != ALL_MESSAGES)
        return Actor(self.user, self.address, "", group, self.member_id, filters)


@dataclass(frozen=True, slots=True)
class Subscriptions:
    """The settings that all members of a group have in common."""

    mode: int
    filters: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, spec: Spec) -> Subscriptions:
        return cls(spec.mode, tuple(sorted(spec.subscriptions.items())))

    @property
    def topics(self) -> frozenset[str]:
        """Those that were asked for."""
        return frozenset(topic for topic, _ in self.filters)

    def describe(self) -> str:
        """For the texts of errors: `clustering, orders (new || paid), returns (*)`."""
        parts = [f"{topic} ({text or '*'})" for topic, text in self.filters]
        return ", ".join([_MODES.get(self.mode, f"mode {self.mode}"), *parts])


class Change(NamedTuple):
    """Queues that an assignment has more, and those that it has no longer."""

    gained: list[Queue]
    lost: list[Queue]


_NO_CHANGE = Change([], [])


class Broadcast:
    """The queues that are assigned to one member of a broadcast group."""

    __slots__ = ("_change", "_readable", "_seen", "queues")

    def __init__(self) -> None:
        self.queues: set[Queue] = set()
        # Since the driver asked.
        self._change = Change([], [])
        # All of the first of these, so many, are assigned.
        self._readable: Mapping[Queue, str] = {}
        self._seen = 0

    def assign(self, readable: Mapping[Queue, str], most: int) -> Change:
        """All of these, but only so many at a time."""
        gained: list[Queue] = []
        lost: list[Queue] = []
        if readable is not self._readable:
            self._readable, self._seen = readable, 0
            lost += self.queues - readable.keys()
        for queue in itertools.islice(readable, self._seen, None):
            if len(gained) == most:
                break
            self._seen += 1
            if queue not in self.queues:
                gained.append(queue)
        self.queues.difference_update(lost)
        self.queues.update(gained)
        self._change.gained.extend(gained)
        self._change.lost.extend(lost)
        return Change(gained, lost)

    def take_change(self) -> Change:
        change, self._change = self._change, Change([], [])
        return change


@dataclass(slots=True)
class Member:
    spec: Spec
    last_seen_ms: int
    number: int
    broadcast: Broadcast = field(default_factory=Broadcast)


class Plan(NamedTuple):
    """The facts that the shares of the members follow from. None of them changes, so that the
    shares of a large group can be computed in another thread.
    """

    queues: Mapping[Queue, str]
    # The number and the zone of each member.
    members: Mapping[str, tuple[int, str]]
    # By row: the member that has it, and the member that should keep it.
    owners: Numbers
    pins: Numbers
    priorities: Mapping[str, int]
    quotas: Mapping[str, int] | None

    @property
    def is_large(self) -> bool:
        return len(self.members) > 1 and len(self.queues) > HANDED_OVER_MAX

    def targets(self) -> Numbers:
        """By row: the member that should have it."""
        if len(self.members) == 1:
            ((number, _),) = self.members.values()
            return np.full(len(self.queues), number, np.int32)
        order = list(self.queues)
        candidates, pins = [], {}
        for name, (number, zone) in self.members.items():
            candidates.append(Candidate(name, zone, frozenset(at(order, self.owners == number))))
            pins.update(dict.fromkeys(at(order, self.pins == number), name))
        shares = assign(self.queues, candidates, pins, self.priorities, self.quotas)
        found = {q: self.members[name][0] for name, hand in shares.items() for q in hand}
        return np.fromiter(map(found.__getitem__, order), np.int32, len(order))


class Group:
    def __init__(
        self,
        name: str,
        *,
        expires_ms: int = 30_000,
        settle_until_ms: int = 0,
        revoke_timeout_ms: int = 15_000,
        generation: int = 0,
    ) -> None:
        """`settle_until_ms`: members that another leader knew may come back until then, so a queue
        without a claim is not assigned, and no member loses what it came back with. A free queue of
        an ordered group needs no such time: its lock tells.
        `revoke_timeout_ms`: a member that does not let go of a queue loses it after that, which
        may let two work on one message. That never happens to an ordered group: there the queue
        stays with its member as long as that one lives.
        """
        self.name = name
        self.generation = generation
        self._expires_ms = expires_ms
        self._settle_until_ms = settle_until_ms
        self._revoke_timeout_ms = revoke_timeout_ms
        self._members: dict[str, Member] = {}
        self._subscriptions = Subscriptions(int(MODE_CLUSTERING), ())
        self._table = QueueTable({})
        self._has_locks = False
        # The names of members and of holders of locks, by their numbers.
        self._names = [""]
        self._numbers = {"": NONE}
        self._priorities: Mapping[str, int] = {}
        self._surroundings = ALONE
        # Holders of locks that this leader has not met: when they count as gone. And those of whom
        # it knows that they are.
        self._awaited: dict[str, int] = {}
        self._departed: dict[str, None] = {}
        # Removed, and not yet told to the driver.
        self._buried: list[str] = []
        self._is_settling = self._is_waiting = False
        # Members, queues or claims are others than those that the targets were made for.
        self._is_stale = False
        # A queue was released or locked, or waits for the next rebalance to be handed over.
        self._has_news = False
        # A large one, whose targets are to come: see `adopt`. No queue changes hands meanwhile.
        self.plan: Plan | None = None
        # Some assignment may have changed since the last rebalance; since the driver asked.
        self._may_have_changed = self._has_changes = False
        # The earliest of the table.
        self._next_deadline_ms = self._table.next_deadline_ms

    # -- what is so -------------------------------------------------------------------------------

    @property
    def members(self) -> Mapping[str, Member]:
        return MappingProxyType(self._members)

    @property
    def is_empty(self) -> bool:
        return not self._members

    @property
    def is_idle(self) -> bool:
        """Nothing is lost when it is forgotten: no members, and no locks of former ones, for which
        the next member would have to wait.
        """
        return not self._members and not self._has_locks and not self._buried

    @property
    def is_rebalancing(self) -> bool:
        """Assignments are about to change, when a member releases a queue or a time is over."""
        if self._is_stale or self._is_settling or self._has_news:
            return True
        table = self._table
        is_moving = table.holders != table.targets
        if self.is_ordered:
            is_moving |= table.locks != table.targets
        return bool(is_moving.any())

    @property
    def topics(self) -> frozenset[str]:
        """Those that the members subscribe to."""
        return self._subscriptions.topics if self._members else frozenset()

    @property
    def is_large(self) -> bool:
        """One rebalance is a noticeable piece of work."""
        return self._table.count > HANDED_OVER_MAX

    @property
    def has_more(self) -> bool:
        """The last rebalance left queues for the next one, which can follow at once."""
        return self._has_news and self.plan is None

    @property
    def retry_topic(self) -> str | None:
        """The topic of the group's retries: its members get its queues without asking for them.
        None: failed messages are tried again in place.
        """
        is_shared = self._subscriptions.mode == MODE_CLUSTERING
        return names.retry_topic(self.name) if is_shared else None

    def assigned(self, member_id: str) -> frozenset[Queue]:
        """The queues that it may consume, as of the last rebalance; none for an unknown member."""
        return frozenset(self.assigned_in_order(member_id))

    def assigned_in_order(self, member_id: str) -> list[Queue]:
        """The same, by topic and queue id."""
        member, table = self._members.get(member_id), self._table
        if member is None:
            return []
        if self.is_broadcast:
            return [queue for queue in table.readable if queue in member.broadcast.queues]
        return at(table.queues, table.assigned == member.number)

    def assigned_count(self, member_id: str) -> int:
        member = self._members.get(member_id)
        if member is None:
            return 0
        if self.is_broadcast:
            return len(member.broadcast.queues)
        return int(np.count_nonzero(self._table.assigned == member.number))

    def assignees(self) -> dict[Queue, str]:
        """By queue the member that it is assigned to; the last one in broadcast groups."""
        found: dict[Queue, str] = {}
        for member_id in self._members:
            found.update(dict.fromkeys(self.assigned_in_order(member_id), member_id))
        return found

    def in_hand(self, member_id: str) -> list[Queue]:
        """The queues that are assigned to the member, and those that it still has to let go of."""
        number = self._numbers.get(member_id, NONE)
        return at(self._table.queues, self._table.holders == number) if number else []

    def owner(self, queue: Queue) -> str | None:
        """The member that has the queue in hand and may report progress, also while it has to
        release it. None in broadcast groups.
        """
        row = self._table.row(queue)
        return None if row is None else self._names[self._table.holders[row]] or None

    def take_changes(self) -> dict[str, Change]:
        """How the assignments of members with streams have changed since the last call. A member
        that joins with another stream gets all of its queues again.
        """
        if not self._has_changes:
            return {}
        self._has_changes = False
        if self.is_broadcast:
            changes = {name: one.broadcast.take_change() for name, one in self._members.items()}
            return {name: change for name, change in changes.items() if change != _NO_CHANGE}
        table = self._table
        rows = rows_where(table.reported != table.assigned)
        before, after = table.reported[rows], table.assigned[rows]
        table.reported[rows] = after
        return {
            name: Change(
                at(table.queues, rows[after == number]), at(table.queues, rows[before == number])
            )
            for number in distinct(np.concatenate((before, after)))
            if (name := self._names[number]) in self._members
            and self._members[name].spec.is_streaming
        }

    # -- members come and go ----------------------------------------------------------------------

    def join(self, spec: Spec, owned: Collection[Queue], now_ms: int) -> None:
        """A new member, or one that joins again: it keeps its queues. `owned` is all that it has in
        hand; of a queue that two claim, the one with the lock has it, else the first.

        SubscriptionMismatch when another member wants something else. One that is alone may change
        its mind; what it no longer wants, it has let go of.
        """
        self._bury(now_ms, but=spec.member_id)
        wanted = Subscriptions.of(spec)
        if wanted != self._subscriptions:
            self._check_alone(spec, wanted)
            self._resubscribe(wanted)
        member = self._members.get(spec.member_id)
        if member is None:
            number = self._number(spec.member_id)
            member = self._members[spec.member_id] = Member(spec, now_ms, number)
            self._is_stale = True
        elif spec.is_streaming:
            self._assign_anew(member)
        member.spec, member.last_seen_ms = spec, now_ms
        self._awaited.pop(spec.member_id, None)
        self._claim(member, owned)
        self._keep_only(member, owned)

    def heartbeat(
        self, member_id: str, now_ms: int, owned: Collection[Queue] | None = None
    ) -> None:
        """`owned`, of members that say it each time, is all that it has in hand: whatever left its
        assignment and is not there has been let go of. UnknownMember: join again, also for one that
        is too late before `expire` noticed: it has stopped to work by itself.
        """
        member = self._members.get(member_id)
        if member is None or self._is_late(member, now_ms):
            self._bury(now_ms)
            raise UnknownMember(
                f"{member_id!r} is no member of group {self.name!r}: it never joined, or was not "
                f"heard of for {self._expires_ms} ms. Join, with the queues that are in hand"
            )
        member.last_seen_ms = now_ms
        if owned is not None:
            self._keep_only(member, owned)

    def release(self, member_id: str, queues: Collection[Queue]) -> None:
        """The member has let go of them. What is assigned to it stays so: it was assigned again
        while the message was on its way, and the member will learn of it.
        """
        member = self._members.get(member_id)
        if member is not None:
            table = self._table
            rows = table.rows_of(queues)
            is_let_go = (table.holders[rows] == member.number) & (table.assigned[rows] == NONE)
            self._let_go(rows[is_let_go])

    def leave(self, member_id: str) -> None:
        """Its queues are free at once. Nothing happens when it is not there."""
        member = self._members.pop(member_id, None)
        if member is None:
            return
        table, number = self._table, member.number
        self._may_have_changed |= bool(member.broadcast.queues or (table.assigned == number).any())
        self._let_go(rows_where(table.holders == number))
        table.forget(number)
        self._is_stale = True
        self._depart(member_id)
        if len(self._names) > _NUMBERS_SPARE + 2 * len(self._members):
            self._renumber()

    def expire(self, now_ms: int) -> list[str]:
        """Removes members that were not heard of for too long, and returns those removed since the
        last call. The locks of a member that did not come back in time count no longer.
        """
        self._bury(now_ms)
        for member_id in [one for one, gone_ms in self._awaited.items() if gone_ms <= now_ms]:
            del self._awaited[member_id]
            self._depart(member_id)
            self._has_news = True
        buried, self._buried = self._buried, []
        return buried

    def set_queues(
        self,
        queues: Mapping[Queue, str],
        priorities: Mapping[str, int] | None = None,
        surroundings: Surroundings = ALONE,
    ) -> None:
        """All that can be read of the subscribed topics, in order and with the zone of each, how
        many priorities topics have, and what other sets have. The mapping must not change. To be
        called before the first rebalance, and again whenever topics or subscriptions change, here
        or elsewhere.
        """
        self._priorities = dict(priorities or {})
        if queues != self._table.readable:
            self._table = self._table.with_readable(queues)
            self._is_stale = True
        if surroundings != self._surroundings:
            self._surroundings = surroundings
            self._is_stale = True

    def wait(self, *, is_waiting: bool) -> None:
        """The queues of other sets are not known yet, so nothing is assigned or revoked. To be
        called before a rebalance.
        """
        if is_waiting != self._is_waiting:
            self._is_waiting = is_waiting
            self._is_stale = True

    def _check_alone(self, spec: Spec, wanted: Subscriptions) -> None:
        for member_id, other in self._members.items():
            if member_id != spec.member_id:
                raise SubscriptionMismatch(
                    f"all members of group {self.name!r} must subscribe to the same: "
                    f"member {spec.member_id!r} at {spec.address} wants {wanted.describe()}; "
                    f"member {member_id!r} at {other.spec.address} has "
                    f"{self._subscriptions.describe()}. Use another group, or stop the others first"
                )

    def _resubscribe(self, wanted: Subscriptions) -> None:
        """There is one member at the most, and it is the one that wants this."""
        before, self._subscriptions = self._subscriptions, wanted
        self._is_stale = True
        if not self._members:
            return
        dropped = before.topics - wanted.topics
        table = self._table
        is_dropped = [queue.topic in dropped for queue in table.queues]
        is_let_go = np.array(is_dropped, np.bool_) | (before.mode != wanted.mode)
        self._let_go(rows_where(is_let_go & (table.holders != NONE)))
        if dropped:
            left = {queue: z for queue, z in table.readable.items() if queue.topic not in dropped}
            self._table = table.with_readable(left)
        for member in self._members.values():
            member.broadcast = Broadcast()
        self._revoke()

    def _assign_anew(self, member: Member) -> None:
        """Nothing is assigned to it until the next rebalance. What it has in hand stays so."""
        table = self._table
        for numbers in (table.assigned, table.reported):
            numbers[numbers == member.number] = NONE
        member.broadcast = Broadcast()
        self._has_news = self._may_have_changed = True

    def _claim(self, member: Member, owned: Collection[Queue]) -> None:
        if self.is_broadcast or not owned:
            return
        topics = {*member.spec.subscriptions, self.retry_topic}
        rows = self._table.add(queue for queue in owned if queue.topic in topics)
        locks = self._valid_locks()[rows]
        is_free = (locks == NONE) | (locks == member.number)
        rows = rows[is_free & (self._table.holders[rows] == NONE)]
        self._table.holders[rows] = member.number
        self._is_stale |= bool(len(rows))

    def _keep_only(self, member: Member, owned: Collection[Queue]) -> None:
        table = self._table
        is_let_go = (table.holders == member.number) & (table.assigned == NONE)
        if is_let_go.any():
            is_let_go[table.rows_of(owned)] = False
            self._let_go(rows_where(is_let_go))

    def _let_go(self, rows: Rows) -> None:
        self._table.holders[rows] = NONE
        self._table.deadlines_ms[rows] = 0
        self._has_news |= bool(len(rows))

    def _number(self, name: str) -> int:
        """The number of a member, or of the holder of a lock."""
        if name not in self._numbers:
            self._numbers[name] = len(self._names)
            self._names.append(name)
        return self._numbers[name]

    def _renumber(self) -> None:
        """Forgets the names of those that have left and have no locks."""
        is_used = self._flags(self._members)
        is_used[[NONE, *self._table.used]] = True
        self._table.renumber((np.cumsum(is_used) - 1).astype(np.int32))
        self._names = list(itertools.compress(self._names, is_used.tolist()))
        self._numbers = {name: number for number, name in enumerate(self._names)}
        for name, member in self._members.items():
            member.number = self._numbers[name]
        self.plan, self._is_stale = None, True  # a plan has the old numbers

    def _bury(self, now_ms: int, but: str = "") -> None:
        self._buried = [member_id for member_id in self._buried if member_id != but]
        for member_id, member in list(self._members.items()):
            if member_id != but and self._is_late(member, now_ms):
                self.leave(member_id)
                self._buried.append(member_id)

    def _is_late(self, member: Member, now_ms: int) -> bool:
        return member.last_seen_ms + self._expires_ms <= now_ms

    def _depart(self, member_id: str) -> None:
        self._departed[member_id] = None
        if len(self._departed) > _DEPARTED_MAX:
            del self._departed[next(iter(self._departed))]

    # -- locks of ordered groups ------------------------------------------------------------------

    def set_locks(self, locks: Mapping[Queue, str], now_ms: int) -> None:
        """All locks of the group, as they are replicated: to be called before the first member
        joins, and after each change that `change_locks` was not told of. One that names a member
        that this leader has not met is respected for `expires_ms` from now on; that one may be at
        work.
        """
        if locks or self._has_locks:
            held = at(self._table.queues, self._table.locks != NONE)
            self.change_locks({**dict.fromkeys(held, ""), **locks}, now_ms)

    def change_locks(self, changes: Mapping[Queue, str], now_ms: int) -> None:
        """Locks that are others from now on; an empty name: the queue is free."""
        numbers = {name: self._number(name) for name in set(changes.values())}
        table, rows = self._table, self._table.add(changes)
        after = np.fromiter(map(numbers.__getitem__, changes.values()), np.int32, len(rows))
        self._has_news |= bool((table.locks[rows] != after).any())
        table.locks[rows] = after
        self._has_locks = bool(table.locks.any())
        # A member that has lost the lock has the queue in hand all the same, so that no other
        # member gets it before it is released.
        self._revoke()
        lockers = {self._names[number] for number in distinct(table.locks)} - {""}
        self._awaited = {name: ms for name, ms in self._awaited.items() if name in lockers}
        for name in sorted(lockers - self._members.keys() - self._departed.keys()):
            self._awaited.setdefault(name, now_ms + self._expires_ms)

    def lock_changes(self) -> dict[Queue, str]:
        """The lock commands to replicate so that the locks name the present or next member of each
        queue; an empty name frees it. As of the last rebalance; the same again until the locks are
        told. Very many come in several calls.
        """
        table = self._table
        if self._is_stale or self.plan or not (self.is_ordered or self._has_locks):
            return {}
        wanted = np.zeros(len(table.locks), np.int32)
        if self.is_ordered:
            wanted = np.where(table.holders, table.holders, table.targets)
            wanted[table.count :] = NONE
        is_awaited = self._flags(self._awaited)[table.locks]
        rows = rows_where((table.locks != wanted) & ~is_awaited)[:HANDED_OVER_MAX]
        members = map(self._names.__getitem__, wanted[rows].tolist())
        return dict(zip(at(table.queues, rows), members, strict=True))

    @property
    def is_ordered(self) -> bool:
        return self._subscriptions.mode == MODE_ORDERED

    @property
    def is_broadcast(self) -> bool:
        return self._subscriptions.mode == MODE_BROADCAST

    def _valid_locks(self) -> Numbers:
        """The lock of a member that is gone does not count."""
        locks = self._table.locks
        if not self._has_locks:
            return locks
        counts = self._flags(self._members) | self._flags(self._awaited)
        return np.where(counts[locks], locks, np.int32(NONE))

    def _flags(self, names: Iterable[str]) -> Flags:
        """By number, whether its name is one of these."""
        found = np.zeros(len(self._names), np.bool_)
        found[[self._numbers[name] for name in names]] = True
        return found

    # -- assignment -------------------------------------------------------------------------------

    def rebalance(self, now_ms: int) -> bool:
        """Whether some assignment changed since the last call; `generation` went up by one then.
        Costs next to nothing when nothing happened. If there is a `plan` afterwards, its targets
        are to be found and adopted.
        """
        if self._is_settling and not self._is_waiting and now_ms >= self._settle_until_ms:
            self._is_stale = True
        if self._is_stale:
            self._is_stale = False
            plan = self._make_plan(now_ms)
            self.plan = plan if plan and plan.is_large else None
            self._has_news = True
            if self.plan is None:
                self._aim(plan.targets() if plan else None, now_ms)
        if self.plan is None and (self._has_news or self._next_deadline_ms <= now_ms):
            self._hand_over(now_ms)
        if not self._may_have_changed:
            return False
        self._may_have_changed = False
        self._has_changes = True
        table = self._table
        is_same = np.array_equal(table.assigned, table.assigned_before)
        has_changed = self.is_broadcast or not is_same
        table.assigned_before[:] = table.assigned
        self.generation += has_changed
        return has_changed

    def adopt(self, plan: Plan, targets: Numbers, now_ms: int) -> None:
        """The targets of a large plan, to be followed by a rebalance. They are dropped if members,
        queues or claims are others by now: there is another plan then, or will be.
        """
        if plan is self.plan and not self._is_stale:
            self.plan = None
            self._aim(targets, now_ms)

    def _make_plan(self, now_ms: int) -> Plan | None:
        """None: nothing is shared out among the members."""
        mode, self._is_settling = self._subscriptions.mode, False
        if not self._members or mode == MODE_BROADCAST:
            return None
        is_early = now_ms < self._settle_until_ms
        self._is_settling = is_early or self._is_waiting
        if self._is_waiting or (is_early and mode == MODE_CLUSTERING):
            return None
        table, home = self._table, self._surroundings.home
        zones = {name: one.spec.zone for name, one in self._members.items()}
        return Plan(
            table.readable,
            {name: (one.number, home(one.spec.zone)) for name, one in self._members.items()},
            # A free queue is as good as in the hand of the member that is to get it.
            np.where(table.holders, table.holders, table.targets)[: table.count],
            self._pins()[: table.count],
            self._priorities,
            self._surroundings.quotas(zones, table.count),
        )

    def _aim(self, targets: Numbers | None, now_ms: int) -> None:
        """Sets the target of each queue, and how long the holder may keep one that is to move."""
        table = self._table
        table.targets[:] = NONE
        if targets is not None:
            table.targets[: table.count] = targets
        if self._is_settling:
            kept = np.where(table.holders, table.holders, self._locked())[: table.count]
            np.copyto(table.targets[: table.count], kept, where=kept != NONE)
        is_moving = (table.holders != NONE) & (table.holders != table.targets)
        if self.is_ordered:
            is_moving[:] = False
        deadlines_ms = np.where(
            table.deadlines_ms, table.deadlines_ms, now_ms + self._revoke_timeout_ms
        )
        table.deadlines_ms = np.where(is_moving, deadlines_ms, 0)
        self._next_deadline_ms = table.next_deadline_ms
        self._revoke()

    def _locked(self) -> Numbers:
        """Of queues that no member has in hand and only one member can get: that one."""
        table = self._table
        if not self.is_ordered:
            return np.zeros_like(table.locks)
        is_member = self._flags(self._members)[table.locks]
        return np.where(is_member & (table.holders == NONE), table.locks, np.int32(NONE))

    def _pins(self) -> Numbers:
        """A queue that a member may consume weighs more than one it was told to release. A lock
        weighs the same if its member lives and no other member holds the queue.
        """
        return np.where(self._table.assigned, self._table.assigned, self._locked())

    def _hand_over(self, now_ms: int) -> None:
        self._has_news = False
        table = self._table
        if self._next_deadline_ms <= now_ms:
            is_late = (table.deadlines_ms > 0) & (table.deadlines_ms <= now_ms)
            self._let_go(rows_where(is_late))
            self._next_deadline_ms = table.next_deadline_ms
        if self.is_broadcast:
            self._hand_to_all()
            return
        locks = table.locks if self.is_ordered else self._valid_locks()
        may_have = (locks == table.targets) | ((locks == NONE) & (not self.is_ordered))
        may_have &= (table.holders == NONE) | (table.holders == table.targets)
        rows = rows_where(may_have & (table.assigned != table.targets))
        self._has_news = len(rows) > HANDED_OVER_MAX
        self._may_have_changed |= bool(len(rows))
        rows = rows[:HANDED_OVER_MAX]
        table.holders[rows] = table.assigned[rows] = table.targets[rows]

    def _hand_to_all(self) -> None:
        readable, left = self._table.readable, HANDED_OVER_MAX
        for member in self._members.values():
            change = member.broadcast.assign(readable, left)
            left -= len(change.gained)
            self._may_have_changed |= change != _NO_CHANGE
            self._has_news |= len(member.broadcast.queues) < len(readable)

    def _revoke(self) -> None:
        """Takes queues out of assignments that have another target, or not the lock, by now."""
        table = self._table
        is_wrong = (table.assigned != table.targets) | (table.assigned != table.holders)
        if self.is_ordered:
            is_wrong |= table.assigned != table.locks
        is_wrong &= table.assigned != NONE
        self._may_have_changed |= bool(is_wrong.any())
        table.assigned[is_wrong] = NONE
