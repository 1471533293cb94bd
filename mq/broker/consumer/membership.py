"""The members of one consumer group, and which member has which queues: soft state of the leader.

A queue is *in hand* of a member from the moment that it is assigned until the member lets go of it,
leaves, or is gone; it is in the hand of one member at a time. A queue that is to move leaves the
assignment of its holder first, and goes to the next one when no member has it in hand. In ordered
groups the replicated lock must name the member as well, before and as long as it is assigned.
In broadcast groups every member has all queues, and no queue is ever in hand.

Decides only: `now_ms` comes in; members, locks and queues are told by the driver, which calls
`rebalance` after it. Knows nothing of streams, of offsets, or of the log.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from mq import names
from mq.broker.consumer.assignment import Candidate, assign
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
# Queues that change hands in one rebalance. A larger move takes several, so that the driver can
# serve other groups in between.
HANDED_OVER_MAX = 4_096


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


@dataclass(slots=True)
class Member:
    spec: Spec
    last_seen_ms: int
    in_hand: set[Queue] = field(default_factory=set)
    # Never more than what is in hand, except in broadcast groups.
    assigned: frozenset[Queue] = frozenset()


class Plan(NamedTuple):
    """The facts that the shares of the members follow from. None of them changes, so that the
    shares of a large group can be computed in another thread.
    """

    queues: Mapping[Queue, str]
    candidates: list[Candidate]
    pins: Mapping[Queue, str]
    priorities: Mapping[str, int]
    quotas: Mapping[str, int] | None

    @property
    def is_large(self) -> bool:
        return len(self.candidates) > 1 and len(self.queues) > HANDED_OVER_MAX

    def targets(self) -> dict[Queue, str]:
        """The member that each queue should have."""
        if len(self.candidates) == 1:
            return dict.fromkeys(self.queues, self.candidates[0].member_id)
        found: dict[Queue, str] = {}
        for name, hand in assign(*self).items():
            found.update(dict.fromkeys(hand, name))
        return found


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
        self._queues: Mapping[Queue, str] = {}
        self._priorities: Mapping[str, int] = {}
        self._surroundings = ALONE
        # By queue: the member that has it in hand, and the member that should.
        self._holders: dict[Queue, str] = {}
        self._targets: dict[Queue, str] = {}
        # The queues where holder, target and lock are not yet the same; of those whose holder
        # shall let go, when it has to.
        self._moving: dict[Queue, None] = {}
        self._deadlines: dict[Queue, int] = {}
        self._locks: dict[Queue, str] = {}
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
        # Some assignment changed since the last rebalance.
        self._has_changed = False

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
        return not self._members and not self._locks and not self._buried

    @property
    def is_rebalancing(self) -> bool:
        """Assignments are about to change, when a member releases a queue or a time is over."""
        return (
            self._is_stale
            or self._is_settling
            or self._has_news
            or any(
                self._holders.get(queue) != self._targets.get(queue)
                or (self._is_ordered and self._locks.get(queue) != self._targets.get(queue))
                for queue in self._moving
            )
        )

    @property
    def topics(self) -> frozenset[str]:
        """Those that the members subscribe to."""
        return self._subscriptions.topics if self._members else frozenset()

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
        member = self._members.get(member_id)
        return member.assigned if member else frozenset()

    def assigned_in_order(self, member_id: str) -> Iterator[Queue]:
        """The same, by topic and queue id, as of now: it may be read while the group changes."""
        assigned = self.assigned(member_id)
        # Both are replaced and never changed.
        return (queue for queue in self._queues if queue in assigned)

    def owner(self, queue: Queue) -> str | None:
        """The member that has the queue in hand and may report progress, also while it has to
        release it. None in broadcast groups.
        """
        return self._holders.get(queue)

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
            member = self._members[spec.member_id] = Member(spec, now_ms)
            self._is_stale = True
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
            self._let_go(member.in_hand.intersection(queues) - member.assigned)

    def leave(self, member_id: str) -> None:
        """Its queues are free at once. Nothing happens when it is not there."""
        member = self._members.pop(member_id, None)
        if member is None:
            return
        for queue in member.in_hand:
            del self._holders[queue]
            self._deadlines.pop(queue, None)
        self._has_news |= bool(member.in_hand)
        self._has_changed |= bool(member.assigned)
        self._is_stale = True
        self._depart(member_id)

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
        if (queues, surroundings) != (self._queues, self._surroundings):
            self._queues, self._surroundings = queues, surroundings
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
        dropped = before.topics - wanted.topics
        self._let_go(
            [
                queue
                for queue in self._holders
                if before.mode != wanted.mode or queue.topic in dropped
            ]
        )
        self._queues = {queue: z for queue, z in self._queues.items() if queue.topic not in dropped}
        for member in self._members.values():
            self._refresh(member)
        self._is_stale = True

    def _claim(self, member: Member, owned: Iterable[Queue]) -> None:
        if self._subscriptions.mode == MODE_BROADCAST:
            return
        member_id, topics = member.spec.member_id, {*member.spec.subscriptions, self.retry_topic}
        for queue in owned:
            if queue in self._holders or queue.topic not in topics:
                continue
            if self._locked_by(queue) in ("", member_id):
                self._holders[queue] = member_id
                member.in_hand.add(queue)
                self._is_stale = True

    def _keep_only(self, member: Member, owned: Collection[Queue]) -> None:
        if len(member.in_hand) > len(member.assigned):
            self._let_go(member.in_hand.difference(owned) - member.assigned)

    def _let_go(self, queues: Collection[Queue]) -> None:
        for queue in list(queues):
            self._members[self._holders.pop(queue)].in_hand.discard(queue)
            self._deadlines.pop(queue, None)
            self._has_news = True

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
        self.change_locks(dict.fromkeys(self._locks, "") | dict(locks), now_ms)

    def change_locks(self, changes: Mapping[Queue, str], now_ms: int) -> None:
        """Locks that are others from now on; an empty name: the queue is free."""
        losers: set[str] = set()
        for queue, name in changes.items():
            if self._locks.get(queue, "") == name:
                continue
            if name:
                self._locks[queue] = name
            else:
                del self._locks[queue]
            self._moving[queue] = None
            self._has_news = True
            if queue in self._holders:
                losers.add(self._holders[queue])
        for member_id in losers:
            # It may have lost the lock. It has the queue in hand all the same, so that no other
            # member gets it before it is released.
            self._refresh(self._members[member_id])
        names = set(self._locks.values())
        self._awaited = {name: ms for name, ms in self._awaited.items() if name in names}
        for name in sorted(names - self._members.keys() - self._departed.keys()):
            self._awaited.setdefault(name, now_ms + self._expires_ms)

    def lock_changes(self) -> dict[Queue, str]:
        """The lock commands to replicate so that the locks name the present or next member of each
        queue; an empty name frees it. As of the last rebalance; the same again until `set_locks`
        has them.
        """
        changes: dict[Queue, str] = {}
        is_ordered, locks = self._is_ordered, self._locks
        if self._is_stale or self.plan or not (is_ordered or locks):
            return changes
        for queue in self._moving:
            lock, wanted = locks.get(queue, ""), ""
            if is_ordered and queue in self._queues:
                wanted = self._holders.get(queue) or self._targets.get(queue, "")
            if lock != wanted and lock not in self._awaited:
                changes[queue] = wanted
        return changes

    @property
    def _is_ordered(self) -> bool:
        return self._subscriptions.mode == MODE_ORDERED

    def _locked_by(self, queue: Queue) -> str:
        """The lock of a member that is gone does not count."""
        name = self._locks.get(queue, "")
        return name if name in self._members or name in self._awaited else ""

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
                self._aim(plan.targets() if plan else {}, now_ms)
        is_due = self._has_news or any(ms <= now_ms for ms in self._deadlines.values())
        if self.plan is None and is_due:
            self._hand_over(now_ms)
        has_changed, self._has_changed = self._has_changed, False
        self.generation += has_changed
        return has_changed

    def adopt(self, plan: Plan, targets: dict[Queue, str], now_ms: int) -> None:
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
        zones = {name: one.spec.zone for name, one in self._members.items()}
        return Plan(
            self._queues,
            self._candidates(),
            self._pins() if len(self._members) > 1 else {},
            self._priorities,
            self._surroundings.quotas(zones, len(self._queues)),
        )

    def _aim(self, targets: dict[Queue, str], now_ms: int) -> None:
        """Sets the target of each queue, and the queues that have to move for it."""
        self._targets = targets
        if self._is_settling:
            self._targets |= self._kept()
        self._moving = self._out_of_place()
        deadline_ms = now_ms + self._revoke_timeout_ms
        self._deadlines = {
            queue: self._deadlines.get(queue, deadline_ms)
            for queue in (() if self._is_ordered else self._moving)
            if queue in self._holders and self._holders[queue] != self._targets.get(queue)
        }
        for member in self._members.values():
            self._refresh(member)

    def _out_of_place(self) -> dict[Queue, None]:
        """The queues where holder, target and lock are not the same."""
        targets, holders, locks = self._targets, self._holders, self._locks
        wanted = targets if self._is_ordered else {}
        found = dict.fromkeys(queue for queue, one in targets.items() if holders.get(queue) != one)
        found.update(dict.fromkeys(holders.keys() - targets.keys()))
        if locks or wanted:
            known = locks.keys() | wanted.keys()
            found.update((q, None) for q in known if locks.get(q) != wanted.get(q))
        return found

    def _kept(self) -> dict[Queue, str]:
        """By queue the member that has it, or is to have it by the lock."""
        found = self._locked() | self._holders
        return {queue: name for queue, name in found.items() if queue in self._queues}

    def _locked(self) -> dict[Queue, str]:
        """Queues that no member has in hand, and only one member can get."""
        locks = self._locks.items() if self._is_ordered else ()
        return {q: one for q, one in locks if one in self._members and q not in self._holders}

    def _candidates(self) -> list[Candidate]:
        home = self._surroundings.home
        return [
            Candidate(member_id, home(member.spec.zone), frozenset(member.in_hand))
            for member_id, member in self._members.items()
        ]

    def _pins(self) -> dict[Queue, str]:
        """A queue that a member may consume weighs more than one it was told to release. A lock
        weighs the same if its member lives and no other member holds the queue.
        """
        pins = self._locked()
        for member_id, member in self._members.items():
            pins.update(dict.fromkeys(member.assigned & member.in_hand, member_id))
        return pins

    def _hand_over(self, now_ms: int) -> None:
        self._has_news = False
        is_ordered = self._is_ordered
        self._let_go([queue for queue, ms in self._deadlines.items() if ms <= now_ms])
        if self._subscriptions.mode == MODE_BROADCAST:
            self._hand_to_all()
            return
        received: dict[str, list[Queue]] = {}
        left = HANDED_OVER_MAX
        for queue in list(self._moving):
            target, holder = self._targets.get(queue), self._holders.get(queue)
            if holder is None and target is not None and self._may_have(target, queue):
                if not left:
                    self._has_news = True
                    break
                left -= 1
                holder = self._holders[queue] = target
                received.setdefault(target, []).append(queue)
            if holder == target and self._locks.get(queue) == (target if is_ordered else None):
                del self._moving[queue]
        for member_id, queues in received.items():
            # Target, holder and lock are the same, so the member may consume them.
            member = self._members[member_id]
            member.in_hand.update(queues)
            self._assign_more(member, queues)

    def _hand_to_all(self) -> None:
        left = HANDED_OVER_MAX
        for member in self._members.values():
            missing = self._queues.keys() - member.assigned
            self._assign_more(member, itertools.islice(missing, left))
            left -= min(left, len(missing))
            self._has_news |= len(member.assigned) < len(self._queues)

    def _assign_more(self, member: Member, queues: Iterable[Queue]) -> None:
        assigned = member.assigned.union(queues)
        self._has_changed |= len(assigned) > len(member.assigned)
        member.assigned = assigned

    def _may_have(self, member_id: str, queue: Queue) -> bool:
        if self._is_ordered:
            return self._locks.get(queue) == member_id
        return self._locked_by(queue) in ("", member_id)

    def _refresh(self, member: Member) -> None:
        if self._subscriptions.mode == MODE_BROADCAST:
            assigned = member.assigned.intersection(self._queues)
        else:
            member_id = member.spec.member_id
            assigned = frozenset(
                queue
                for queue in member.in_hand
                if self._targets.get(queue) == member_id
                and (not self._is_ordered or self._locks.get(queue) == member_id)
            )
        if assigned != member.assigned:
            member.assigned = assigned
            self._has_changed = True
