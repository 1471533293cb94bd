"""Consumer groups on the leader: who is there, and who has which queues.

Membership is the leader's memory alone (`membership` decides); what must outlive it is in the log:
offsets, and the locks of ordered groups. After a fail-over members come back with the queues that
they have in hand, and keep them. The queues of a group's retry topic are its members' like others,
as soon as there are some, from the beginning and without a filter.

A member whose stream breaks has a moment to come back; one that ends it in good order has left.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping

from mq.broker.consumer.arrivals import Arrivals
from mq.broker.consumer.commits import Commits
from mq.broker.consumer.filters import CompiledFilter, compile_filter
from mq.broker.consumer.locking import write_locks
from mq.broker.consumer.membership import Group, Member, Spec
from mq.broker.consumer.places import Places, Start
from mq.broker.consumer.pulling import Puller
from mq.broker.consumer.subscriber import Limits, Position, Subscriber
from mq.broker.directory import Directory
from mq.broker.leading import Leadership
from mq.broker.queue import Queue
from mq.broker.state.machine import Machine
from mq.broker.writing import EntryWriter
from mq.errors import GroupNotEmpty, MqError, NotAssigned, UnknownMember
from mq.logging import get_logger
from mq.wire.v1.consumer_pb2 import MODE_BROADCAST, MODE_ORDERED, Filter
from mq.wire.v1.state_pb2 import Command

__all__ = ["Groups", "Start", "is_ordered"]

log = get_logger(__name__)

# After a fail-over members come back one by one; meanwhile nothing is handed to others. Longer than
# a client goes on with its queues while it finds no broker.
_SETTLE_MS = 4_500
_RECONNECT_MS = 5_000  # a broken stream: as long as a client may need to find the way back


class _Live:
    """A group that has, or just had, members."""

    __slots__ = ("arranged_for", "broken", "group", "is_locking", "subscribers")

    def __init__(self, group: Group) -> None:
        self.group = group
        self.subscribers: dict[str, tuple[Subscriber, Start, Mapping[Queue, int]]] = {}
        self.broken: dict[str, int] = {}  # members without their stream, and since when
        self.arranged_for = -1, -1  # versions of the topics here and elsewhere
        self.is_locking = False


class Groups:
    def __init__(  # noqa: PLR0913 - the parts it brings together
        self,
        writer: EntryWriter,
        machine: Machine,
        leadership: Leadership,
        commits: Commits,
        puller: Puller,
        arrivals: Arrivals,
        now_ms: Callable[[], int],
        *,
        directory: Directory,
        is_awaited: Callable[[str], bool],
        expires_ms: int,
    ) -> None:
        """`is_awaited`: no set has this topic yet, and consumers may wait for it."""
        self._writer = writer
        self._machine = machine
        self._leadership = leadership
        self._commits = commits
        self._places = Places(machine, commits)
        self.extent, self.start_offset = self._places.extent, self._places.start_offset
        self._puller = puller
        self._arrivals = arrivals
        self._directory = directory
        self._is_awaited = is_awaited
        self._now_ms = now_ms
        self._expires_ms = expires_ms
        self._live: dict[str, _Live] = {}
        self._led_since_ms = 0
        # Groups that this leader has met: whoever joins one again is known to nobody else.
        self._met: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    # -- streams ----------------------------------------------------------------------------------

    def subscribe(
        self,
        name: str,
        spec: Spec,
        filters: Mapping[str, CompiledFilter],
        limits: Limits,
        start: Start,
        positions: Mapping[Queue, int],
    ) -> Subscriber:
        """Joins the group with a stream. SubscriptionMismatch; TopicNotFound and others for what
        cannot be read.
        """
        self._leadership.check()
        self._check_readable(spec.subscriptions)
        live = self._join(name, spec, positions)
        self._dismiss(live, spec.member_id, f"{spec.member_id} has a newer stream in group {name}")
        if live.group.retry_topic is not None:
            # Messages that failed here once passed the filters then.
            filters = {live.group.retry_topic: compile_filter(Filter()), **filters}
        subscriber = Subscriber(name, spec.member_id, filters, limits, self._puller, self._arrivals)
        subscriber.on_untold = functools.partial(self.released, subscriber)
        live.subscribers[spec.member_id] = subscriber, start, positions
        if spec.mode != MODE_BROADCAST:
            self._places.begin(name, spec.subscriptions, start)
            for queue, in_hand in positions.items():
                if live.group.owner(queue) == spec.member_id:
                    done = self._commits.position(name, queue) or 0
                    subscriber.claim(queue, in_hand, done, self.extent(queue)[1])
        self._arrange(name, live)
        if spec.mode != MODE_BROADCAST:
            # What it came back with counts now or never: what is assigned to it later, it has
            # let go of, and another may have had it.
            live.subscribers[spec.member_id] = subscriber, start, {}
        if not live.subscribers[spec.member_id][0].queues:
            subscriber.assign(live.group.generation, {})  # nothing yet: say so
        return subscriber

    def unsubscribe(self, subscriber: Subscriber, *, is_over: bool) -> None:
        """The stream has ended; `is_over`: because the client wanted it to."""
        subscriber.detach()
        live = self._live.get(subscriber.group)
        known = live.subscribers.get(subscriber.member_id) if live else None
        if live is None or known is None or known[0] is not subscriber:
            return  # there is a newer one, or this node does not lead any more
        del live.subscribers[subscriber.member_id]
        if is_over:
            live.group.leave(subscriber.member_id)
        else:
            live.broken[subscriber.member_id] = self._now_ms()
        self._arrange(subscriber.group, live)

    def alive(self, subscriber: Subscriber) -> None:
        live = self._live.get(subscriber.group)
        if live is not None and subscriber.member_id in live.group.members:
            live.group.heartbeat(subscriber.member_id, self._now_ms())

    def progress(self, subscriber: Subscriber, reported: Iterable[Position]) -> None:
        """IllegalOffset ends the stream."""
        self.alive(subscriber)
        news = subscriber.progress(reported)
        live = self._live.get(subscriber.group)
        if live is not None and news and not _is_broadcast(live.group):
            # What another member has by now is not this one's to report; and a commit of the
            # member's own may have overtaken its report.
            name, member_id = subscriber.group, subscriber.member_id
            own = {
                queue: at
                for queue, at in news.items()
                if live.group.owner(queue) == member_id and at > self._commits.reached(name, queue)
            }
            self._commits.note(name, own)

    def released(self, subscriber: Subscriber, queues: Iterable[Queue]) -> None:
        self.alive(subscriber)
        live = self._live.get(subscriber.group)
        found = subscriber.released(queues)
        # A place at first sight is found again by whoever leads.
        begun = self._machine.state.offsets.positions(subscriber.group).keys() & found
        if live is not None and self._commits.is_pending(subscriber.group, begun):
            self._start(self._release_durably(live, subscriber, found))
        elif live is not None:
            self._release(live, subscriber, found)

    async def _release_durably(self, live: _Live, former: Subscriber, queues: list[Queue]) -> None:
        """How far it came is in the log before another starts there: the next leader knows it."""
        await self._commits.flush()
        if self._live.get(former.group) is live:
            self._release(live, former, queues)

    def _release(self, live: _Live, former: Subscriber, queues: list[Queue]) -> None:
        live.group.release(former.member_id, queues)
        self._arrange(former.group, live)

    def seek(self, subscriber: Subscriber, positions: Mapping[Queue, int]) -> None:
        """IllegalOffset."""
        self.alive(subscriber)
        for queue, queue_offset in positions.items():
            self._places.check(queue, queue_offset)
        # What has left its assignment meanwhile is late, not wrong.
        assigned = subscriber.queues
        positions = {q: at for q, at in positions.items() if q in assigned}
        subscriber.move(positions)
        live = self._live.get(subscriber.group)
        if live is not None and not _is_broadcast(live.group):
            self._commits.note(subscriber.group, positions)

    # -- members that pull ------------------------------------------------------------------------

    def join(self, name: str, spec: Spec, owned: Collection[Queue]) -> Group:
        self._leadership.check()
        self._check_readable(spec.subscriptions)
        live = self._join(name, spec, owned)
        self._arrange(name, live)
        return live.group

    def heartbeat(self, name: str, member_id: str, owned: Collection[Queue]) -> Group:
        """UnknownMember."""
        self._leadership.check()
        live = self._live.get(name)
        if live is None:
            raise UnknownMember(f"group {name} has no member {member_id}: join again")
        live.group.heartbeat(member_id, self._now_ms(), owned)
        self._arrange(name, live)
        return live.group

    def leave(self, name: str, member_id: str) -> None:
        self._leadership.check()
        live = self._live.get(name)
        if live is None or member_id not in live.group.members:
            return
        live.group.leave(member_id)
        live.broken.pop(member_id, None)
        self._dismiss(live, member_id, f"{member_id} has left group {name}")
        self._arrange(name, live)

    def _dismiss(self, live: _Live, member_id: str, why: str) -> None:
        former = live.subscribers.pop(member_id, None)
        if former is not None:
            former[0].end(UnknownMember(why))
            former[0].detach()

    def _check_readable(self, topics: Iterable[str]) -> None:
        """TopicNotFound, PermissionDenied: neither here nor in another set. What is there and not
        here has no queues here, as yet; nor has what is awaited.
        """
        for topic in topics:
            if not self._directory.is_readable_elsewhere(topic) and not self._is_awaited(topic):
                self._machine.state.topics.readable(topic)

    def _join(self, name: str, spec: Spec, owned: Collection[Queue]) -> _Live:
        now_ms = self._now_ms()
        live = self._live.get(name)
        if live is None:
            # Who has queues in hand got them from another leader, whatever was committed there.
            offsets = self._machine.state.offsets
            is_known = bool(owned or offsets.positions(name) or offsets.locks(name))
            is_after_fail_over = is_known and self._is_early and name not in self._met
            group = Group(
                name,
                expires_ms=self._expires_ms,
                settle_until_ms=self._led_since_ms + _SETTLE_MS if is_after_fail_over else 0,
            )
            group.set_locks(self._machine.state.offsets.locks(name), now_ms)
            if self._is_early:
                self._met.add(name)
            live = self._live[name] = _Live(group)
        live.group.join(spec, owned, now_ms)
        live.broken.pop(spec.member_id, None)
        live.arranged_for = -1, -1  # it may be the first with these topics
        return live

    # -- offsets ----------------------------------------------------------------------------------

    async def commit(self, name: str, member_id: str, positions: Mapping[Queue, int]) -> None:
        """Durable when this returns. As `check_commit`: nothing was committed."""
        self._leadership.check()
        self.check_commit(name, member_id, positions)
        await self._commits.commit(name, positions)

    def check_commit(self, name: str, member_id: str, positions: Mapping[Queue, int]) -> None:
        """Whether it may. UnknownMember, NotAssigned, GroupNotEmpty, IllegalOffset, and whatever
        is wrong with a queue.
        """
        live = self._live.get(name)
        if member_id:
            self.member(name, member_id)
        elif live and live.group.members:
            raise GroupNotEmpty(
                f"group {name} has members, which commit for themselves: "
                "commit as one of them, or stop them first"
            )
        for queue, queue_offset in positions.items():
            self._machine.state.topics.readable(*queue)
            if live and member_id and live.group.owner(queue) != member_id:
                raise NotAssigned(
                    f"queue {queue.queue_id} of {queue.topic} is not {member_id}'s any more in "
                    f"group {name}"
                )
            self._places.check(queue, queue_offset)

    async def reset(self, name: str, positions: Mapping[Queue, int]) -> None:
        """Moves the group, also while it consumes by streams."""
        live = self._live.get(name)
        pulling = [one for one in live.group.members if one not in live.subscribers] if live else []
        if pulling:
            raise GroupNotEmpty(
                f"{', '.join(sorted(pulling)[:5])} of group {name} would not hear of it: "
                "stop members that pull or are just reconnecting, then reset"
            )
        if live is not None:
            for subscriber, *_ in live.subscribers.values():
                subscriber.move(positions)
        await self._commits.commit(name, positions)

    def _position(self, name: str, queue: Queue, member_id: str, live: _Live) -> int:
        _, start, claimed = live.subscribers[member_id]
        first, end = self.extent(queue)
        in_hand = claimed.get(queue)
        if _is_broadcast(live.group):
            return self.start_offset(queue, start) if in_hand is None else min(in_hand, end)
        committed = self._commits.position(name, queue)
        if committed is None:
            committed = first  # a queue that came later: from its beginning
        if in_hand is not None and committed <= in_hand <= end:
            return in_hand  # it has come back, and has what stands before
        return min(max(committed, first), end)

    # -- arrangement ------------------------------------------------------------------------------

    def _arrange(self, name: str, live: _Live) -> None:
        """Whatever has changed: decides anew, and tells the members."""
        group = live.group
        versions = self._machine.state.topics.version, self._directory.changes
        if live.arranged_for != versions:
            live.arranged_for = versions
            self._set_queues(name, live)
        # After a start others have to say what they have: by less, queues move, and move back.
        group.wait(is_waiting=self._is_early and not self._directory.is_complete)
        group.rebalance(self._now_ms())
        for member_id, (subscriber, *_) in live.subscribers.items():
            assigned = group.assigned(member_id)
            if assigned != subscriber.queues:
                subscriber.assign(
                    group.generation,
                    {queue: self._position(name, queue, member_id, live) for queue in assigned},
                )
        self._lock(name, live)
        if group.is_idle and not live.is_locking:
            self._live.pop(name, None)

    def _set_queues(self, name: str, live: _Live) -> None:
        group, topics = live.group, self._machine.state.topics
        wanted = {topic for one in group.members.values() for topic in one.spec.subscriptions}
        retry_topic = group.retry_topic if group.members else None
        surroundings = self._directory.surroundings(wanted, retry_topic)
        if live.subscribers and not _is_broadcast(group):
            # What comes to this set while the group consumes it elsewhere, it has from the
            # beginning, also when it stops before the first message.
            self._places.begin(name, wanted, Start(is_earliest=True))
        zone = surroundings.zone
        queues = {
            Queue(topic, queue_id): zone
            for topic in (*wanted, *([retry_topic] if retry_topic else []))
            for queue_id in range(self._places.read_queues(topic))
        }
        found = [topics.find(topic) for topic in {queue.topic for queue in queues}]
        priorities = {one.name: one.priorities for one in found if one.priorities}
        group.set_queues(queues, priorities, surroundings)

    def _lock(self, name: str, live: _Live) -> None:
        changes = live.group.lock_changes()
        if changes and not live.is_locking:
            live.is_locking = True
            self._start(self._write_locks(name, live, changes))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write_locks(self, name: str, live: _Live, changes: Mapping[Queue, str]) -> None:
        try:
            is_written = await write_locks(self._writer, self._commits, name, changes)
        finally:
            live.is_locking = False
        if is_written and self._live.get(name) is live:
            self._arrange(name, live)  # there may be more to lock by now

    # -- time and change --------------------------------------------------------------------------

    def tick(self) -> None:
        """A few times a second, on the leader."""
        now_ms = self._now_ms()
        for name, live in list(self._live.items()):
            for member_id, since_ms in list(live.broken.items()):
                # Who works on an ordered queue may not know yet that its stream is broken.
                grace_ms = self._expires_ms if is_ordered(live.group) else _RECONNECT_MS
                if now_ms - since_ms >= grace_ms:
                    del live.broken[member_id]
                    live.group.leave(member_id)
            for member_id in live.group.expire(now_ms):
                live.broken.pop(member_id, None)
                why = f"{member_id} was silent for too long in group {name}"
                self._dismiss(live, member_id, why)
                log.info("a consumer is gone", group=name, member=member_id)
            self._arrange(name, live)

    def on_command(self, command: Command) -> None:
        """A command was applied: locks and topics concern groups."""
        match command.WhichOneof("kind"):
            case "lock_queues":
                name = command.lock_queues.group
                live = self._live.get(name)
                if live is not None:
                    live.group.set_locks(self._machine.state.offsets.locks(name), self._now_ms())
                    self._arrange(name, live)
            case "put_topic" | "drop_topic":
                for name, live in list(self._live.items()):
                    live.group.set_locks(self._machine.state.offsets.locks(name), self._now_ms())
                    self._arrange(name, live)

    def lead(self) -> None:
        """This node leads from now on."""
        self._led_since_ms = self._now_ms()
        self._met.clear()

    def step_down(self, refusal: MqError) -> None:
        """This node does not lead any more: its members go to the next leader."""
        for live in self._live.values():
            for subscriber, *_ in live.subscribers.values():
                subscriber.end(refusal)
                subscriber.detach()
        self._live.clear()
        self._commits.forget()

    # -- questions --------------------------------------------------------------------------------

    @property
    def _is_early(self) -> bool:
        return self._now_ms() < self._led_since_ms + _SETTLE_MS

    def member(self, name: str, member_id: str) -> Member:
        """UnknownMember."""
        live = self._live.get(name)
        found = live.group.members.get(member_id) if live else None
        if found is None:
            raise UnknownMember(f"group {name} has no member {member_id}: join again")
        return found

    def owner(self, name: str, queue: Queue) -> str | None:
        """Who has the queue in hand."""
        live = self._live.get(name)
        return live.group.owner(queue) if live else None

    def position(self, name: str, queue: Queue) -> int | None:
        """How far the group is, also what is not committed yet."""
        return self._commits.position(name, queue)

    def live(self, name: str) -> Group | None:
        found = self._live.get(name)
        return found.group if found else None

    def names(self) -> list[str]:
        return sorted({*self._machine.state.offsets.groups(), *self._live})

    def silent_ms(self, member: Member) -> int:
        return max(0, self._now_ms() - member.last_seen_ms)

    def in_flight(self, name: str) -> int:
        """Messages that members have and did not report as done."""
        live = self._live.get(name)
        return sum(one.cached_messages for one, *_ in live.subscribers.values()) if live else 0

    @property
    def member_count(self) -> int:
        return sum(len(live.group.members) for live in self._live.values())


def _is_broadcast(group: Group) -> bool:
    return any(member.spec.mode == MODE_BROADCAST for member in group.members.values())


def is_ordered(group: Group) -> bool:
    return any(member.spec.mode == MODE_ORDERED for member in group.members.values())
