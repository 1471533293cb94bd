"""Consumer groups on the leader: their members, and which member has which queues.

Membership is the leader's memory alone (`membership` decides); offsets, and the locks of ordered
groups, are in the log. A lock counts once its entry is applied, and not before. After a fail-over
members come back with the queues that they have in hand, and keep them. The queues of a group's
retry topic are assigned like others, as soon as there are some, from the beginning and without a
filter.

A member whose stream breaks has a moment to come back; one that ends it in good order has left.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import NamedTuple

from mq.broker.attribution import Actor
from mq.broker.consumer.arrivals import Arrivals
from mq.broker.consumer.commits import Commits
from mq.broker.consumer.cursor import Cursor, claimed
from mq.broker.consumer.filters import CompiledFilter, compile_filter
from mq.broker.consumer.membership import Group, Member, Plan, Spec
from mq.broker.consumer.pulling import Puller
from mq.broker.consumer.shares import Surroundings
from mq.broker.consumer.subscriber import CacheLimits, Position, Subscriber
from mq.broker.directory import Directory
from mq.broker.leading import Leadership
from mq.broker.long_work import TimeSlice
from mq.broker.queue import Queue, queues_of
from mq.broker.state.machine import Machine
from mq.broker.writing import EntryWriter
from mq.errors import (
    GroupNotEmpty,
    IllegalOffset,
    MqError,
    NotAssigned,
    PermissionDenied,
    UnknownMember,
)
from mq.logging import get_logger
from mq.wire.v1.consumer_pb2 import MODE_BROADCAST, Filter
from mq.wire.v1.state_pb2 import Command, LockQueues, QueueLock

log = get_logger(__name__)

# After a fail-over members come back one by one; meanwhile nothing is handed to others. Longer than
# a client goes on with its queues while it finds no broker.
_SETTLE_MS = 4_500
_RECONNECT_MS = 5_000  # a broken stream: as long as a client may need to find the way back
_MOVED_MAX = 2_000  # queues that are reset in one turn of the loop


class Start(NamedTuple):
    """The first position of a member in a queue without an offset: earliest, latest, or a time."""

    is_earliest: bool = False
    at_ms: int | None = None


class _Layout(NamedTuple):
    """The topics of a group as they are laid out: its queues follow from it."""

    # How many can be read of each topic, and its priorities.
    topics: tuple[tuple[str, int, int], ...]
    surroundings: Surroundings

    @property
    def queues(self) -> dict[Queue, str]:
        """All of them, with their zone, in the order of topics and queue ids."""
        zone = self.surroundings.zone
        found: dict[Queue, str] = {}
        for topic, count, _ in self.topics:
            found.update(dict.fromkeys(queues_of(topic, count), zone))
        return found


class _Stream:
    """A member's stream, and where it starts in a queue that it gets."""

    __slots__ = ("claims", "start", "subscriber")

    def __init__(
        self, subscriber: Subscriber, start: Start, claims: Mapping[Queue, Cursor]
    ) -> None:
        self.subscriber = subscriber
        self.start = start
        # Queues that it came back with, until it is told which of them it keeps.
        self.claims = claims


class _Live:
    """A group that has, or just had, members."""

    __slots__ = (
        "arranged",
        "arranged_for",
        "broken",
        "group",
        "is_locking",
        "layout",
        "streams",
    )

    def __init__(self, group: Group) -> None:
        self.group = group
        self.streams: dict[str, _Stream] = {}
        self.broken: dict[str, int] = {}  # members without their stream, and since when
        self.arranged_for = -1, -1  # versions of the topics here and elsewhere
        self.layout: _Layout | None = None
        # No further step of the arrangement is to come.
        self.arranged = asyncio.Event()
        self.arranged.set()
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
        """`is_awaited` says whether consumers may wait for a topic that no set has yet."""
        self._writer = writer
        self._machine = machine
        self._leadership = leadership
        self._commits = commits
        self._puller = puller
        self._arrivals = arrivals
        self._directory = directory
        self._is_awaited = is_awaited
        self._now_ms = now_ms
        self._expires_ms = expires_ms
        self._live: dict[str, _Live] = {}
        self._led_since_ms = 0
        # Of all queues, when this node began to lead.
        self._former_ends: dict[Queue, int] = {}
        # Groups that had members under this leader: no former leader knows more of them.
        self._met: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    # -- streams ----------------------------------------------------------------------------------

    def claim(self, name: str, spec: Spec, queue: Queue, next_offset: int) -> Cursor:
        """For `subscribe`: a member comes back with this queue in hand.

        A member that this leader has not met got its messages from a former one: they stood in the
        queue when this one began to lead. If not, they were lost, and others have their offsets by
        now.
        """
        done = self._commits.position(name, queue) or 0
        end, live = self.extent(queue)[1], self._live.get(name)
        is_met = live is not None and spec.member_id in live.group.members
        if not is_met and spec.mode != MODE_BROADCAST:
            end = min(end, self._former_ends.get(queue, 0))
        return claimed(next_offset, done, end, asyncio.get_running_loop().time())

    def subscribe(
        self,
        name: str,
        spec: Spec,
        filters: Mapping[str, CompiledFilter],
        limits: CacheLimits,
        start: Start,
        claims: Mapping[Queue, Cursor],
    ) -> Subscriber:
        """Joins the group with a stream. SubscriptionMismatch; TopicNotFound and others for what
        cannot be read.
        """
        self._leadership.check()
        self._check_readable(spec.subscriptions)
        live = self._join(name, spec, claims)
        why = UnknownMember(f"{spec.member_id} has a newer stream in group {name}")
        self._dismiss(live, spec.member_id, why)
        if live.group.retry_topic is not None:
            # Messages that failed here once passed the filters then.
            filters = {live.group.retry_topic: compile_filter(Filter()), **filters}
        subscriber = Subscriber(
            name,
            spec.member_id,
            filters,
            limits,
            self._puller,
            self._arrivals,
            on_untold=self.released,
        )
        live.streams[spec.member_id] = _Stream(subscriber, start, claims)
        if spec.mode != MODE_BROADCAST:
            self._fix_positions(name, spec.subscriptions, start)
            held = claims.keys() & live.group.in_hand(spec.member_id) if claims else ()
            subscriber.claim({queue: claims[queue] for queue in held})
        self._arrange(name, live)
        if not subscriber.queues:
            subscriber.assign(live.group.generation, {})  # nothing yet: say so
        return subscriber

    def unsubscribe(self, subscriber: Subscriber, *, is_over: bool) -> None:
        """The stream has ended; `is_over`: because the client wanted it to."""
        subscriber.detach()
        live = self._live.get(subscriber.group)
        known = live.streams.get(subscriber.member_id) if live else None
        if live is None or known is None or known.subscriber is not subscriber:
            return  # there is a newer stream, or this node has stepped down
        del live.streams[subscriber.member_id]
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
        """Raises IllegalOffset, which ends the stream."""
        self.alive(subscriber)
        news = subscriber.progress(reported)
        live = self._live.get(subscriber.group)
        if live is not None and news and not live.group.is_broadcast:
            # Progress is dropped for a queue that another member has by now, and if a commit of
            # the member has overtaken its report.
            name, member_id = subscriber.group, subscriber.member_id
            own = {
                queue: at
                for queue, at in news.items()
                if live.group.owner(queue) == member_id and at > self._commits.reached(name, queue)
            }
            member = live.group.members.get(member_id)
            self._commits.note(name, own, member.spec.actor(name) if member else None)

    def released(self, subscriber: Subscriber, epochs: Mapping[Queue, int | None]) -> None:
        """Each with the epoch that the client had it under; None: it did not say."""
        self.alive(subscriber)
        live = self._live.get(subscriber.group)
        found = subscriber.released(epochs)
        # A position at first sight is found again by the next leader.
        begun = self._machine.state.offsets.positions(subscriber.group).keys() & found
        if live is not None and self._commits.is_pending(subscriber.group, begun):
            self._start(self._release_durably(live, subscriber, found))
        elif live is not None:
            self._release(live, subscriber, found)

    async def _release_durably(self, live: _Live, former: Subscriber, queues: list[Queue]) -> None:
        """Its position is in the log before another member starts there, for the next leader."""
        await self._commits.flush()
        if self._live.get(former.group) is live:
            self._release(live, former, queues)

    def _release(self, live: _Live, former: Subscriber, queues: list[Queue]) -> None:
        live.group.release(former.member_id, queues)
        self._arrange(former.group, live)

    def seek(self, subscriber: Subscriber, positions: Mapping[Queue, int]) -> None:
        """Raises IllegalOffset."""
        self.alive(subscriber)
        for queue, queue_offset in positions.items():
            self._check_offset(queue, queue_offset)
        # A queue that has left its assignment meanwhile is stale, not an error.
        assigned = subscriber.queues
        positions = {q: at for q, at in positions.items() if q in assigned}
        subscriber.move(positions)
        live = self._live.get(subscriber.group)
        if live is not None and not live.group.is_broadcast:
            self._commits.note(subscriber.group, positions)

    # -- members that pull ------------------------------------------------------------------------

    def join(self, name: str, spec: Spec, owned: Collection[Queue]) -> Group:
        self._leadership.check()
        self._check_readable(spec.subscriptions)
        live = self._join(name, spec, owned)
        self._arrange(name, live)
        return live.group

    def heartbeat(self, name: str, member_id: str, owned: Collection[Queue]) -> Group:
        """Raises UnknownMember."""
        self._leadership.check()
        live = self._live.get(name)
        if live is None:
            raise UnknownMember(f"group {name} has no member {member_id}: join again")
        live.group.heartbeat(member_id, self._now_ms(), owned)
        self._arrange(name, live)
        return live.group

    def leave(self, name: str, member_id: str, reason: str = "") -> None:
        """With a reason, an operator sends it away: its queues are free at once, also in an ordered
        group, whatever its handler is doing.
        """
        self._leadership.check()
        live = self._live.get(name)
        if live is None or member_id not in live.group.members:
            return
        live.group.leave(member_id)
        live.broken.pop(member_id, None)
        if reason:
            log.warning("a consumer is sent away", group=name, member=member_id, reason=reason)
            why: MqError = PermissionDenied(
                f"an operator has sent {member_id} away from group {name}: {reason}"
            )
        else:
            why = UnknownMember(f"{member_id} has left group {name}")
        self._dismiss(live, member_id, why)
        self._arrange(name, live)

    def _dismiss(self, live: _Live, member_id: str, why: MqError) -> None:
        former = live.streams.pop(member_id, None)
        if former is not None:
            former.subscriber.end(why)
            former.subscriber.detach()

    def _check_readable(self, topics: Iterable[str]) -> None:
        """Raises TopicNotFound or PermissionDenied if no set has it. A topic of another set, and
        one that is awaited, has no queues here yet.
        """
        for topic in topics:
            if not self._directory.is_readable_elsewhere(topic) and not self._is_awaited(topic):
                self._machine.state.topics.readable(topic)

    def _join(self, name: str, spec: Spec, owned: Collection[Queue]) -> _Live:
        now_ms = self._now_ms()
        live = self._live.get(name)
        if live is None:
            # A member with queues in hand got them from a former leader.
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

    def commit(
        self,
        name: str,
        member_id: str,
        positions: Mapping[Queue, int],
        caller: Actor | None = None,
    ) -> asyncio.Future[None]:
        """Done when they are durable. Raises as `check_commit`: nothing was committed. `caller` is
        whose they are if they are not a member's.
        """
        self._leadership.check()
        self.check_commit(name, member_id, positions)
        actor = self.member(name, member_id).spec.actor(name) if member_id else caller
        return self._commits.commit(name, positions, actor)

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
        last_ids: dict[str, int] = {}
        for topic, queue_id in positions:
            last_ids[topic] = max(queue_id, last_ids.get(topic, 0))
        for topic, queue_id in last_ids.items():
            self._machine.state.topics.readable(topic, queue_id)
        for queue, queue_offset in positions.items():
            if live and member_id and live.group.owner(queue) != member_id:
                raise NotAssigned(
                    f"queue {queue.queue_id} of {queue.topic} is not assigned to {member_id} in "
                    f"group {name}"
                )
            self._check_offset(queue, queue_offset)

    async def reset(
        self, name: str, positions: Mapping[Queue, int], caller: Actor | None = None
    ) -> None:
        """Moves the group, also while it consumes by streams."""
        live = self._live.get(name)
        pulling = [one for one in live.group.members if one not in live.streams] if live else []
        if pulling:
            raise GroupNotEmpty(
                f"{', '.join(sorted(pulling)[:5])} of group {name} would not hear of it: "
                "stop members that pull or are just reconnecting, then reset"
            )
        # Also for a caller that has gone: half of it would be worse than all of it.
        await asyncio.shield(self._start(self._move(name, positions, caller)))

    async def _move(self, name: str, positions: Mapping[Queue, int], caller: Actor | None) -> None:
        """A queue is moved and noted in one turn, so that no report of progress comes between."""
        left, turn = iter(positions.items()), TimeSlice()
        committed = []
        while part := dict(itertools.islice(left, _MOVED_MAX)):
            live = self._live.get(name)
            for stream in live.streams.values() if live else ():
                stream.subscriber.move(part)
            committed.append(self._commits.commit(name, part, caller))
            await turn.over()
        await asyncio.gather(*committed)

    def _position(self, name: str, queue: Queue, stream: _Stream, *, is_broadcast: bool) -> int:
        claim = stream.claims.get(queue)
        if is_broadcast:
            return self.start_offset(queue, stream.start) if claim is None else claim.next_offset
        first, end = self.extent(queue)
        committed = self._commits.position(name, queue)
        if committed is None:
            committed = first  # a queue that came later: from its beginning
        if claim and not claim.is_told_of_end and committed <= claim.next_offset <= end:
            return claim.next_offset  # it has come back, and has what stands before
        return min(max(committed, first), end)

    def _fix_positions(self, name: str, topics: Iterable[str], start: Start) -> None:
        """The first sight of a topic fixes the group's position in all of its queues. So a consumer
        that stops before its first commit misses nothing, nor does one when queues are added.
        """
        for topic in topics:
            count = self._read_queues(topic)
            if count and not self._commits.has_position(name, topic):
                offsets = self._start_offsets(topic, queues_of(topic, count), start)
                self._commits.note(name, offsets)

    def _check_offset(self, queue: Queue, queue_offset: int) -> None:
        _, end = self.extent(queue)
        if queue_offset > end:
            raise IllegalOffset(
                f"{queue_offset} is behind the end of queue {queue.queue_id} of {queue.topic}, "
                f"which is {end}"
            )

    # -- arrangement ------------------------------------------------------------------------------

    def _arrange(self, name: str, live: _Live) -> None:
        """Rebalances after any change, and tells the members. Very many queues take several turns
        of the loop: every step leaves the group in a state of its own, as if the other queues were
        still to be released.
        """
        versions = self._machine.state.topics.version, self._directory.changes
        is_other = live.arranged_for != versions and self._set_queues(name, live)
        live.arranged_for = versions
        if is_other and live.group.is_large:
            self._arrange_soon(name, live)
        else:
            self._rebalance(name, live)
        is_waiting = not live.arranged.is_set()
        for stream in live.streams.values():
            stream.subscriber.wait(is_waiting=is_waiting)
            if stream.claims and not is_waiting and not live.group.is_broadcast:
                # A queue that it gets later may have had another holder in between.
                stream.claims = {}

    def _rebalance(self, name: str, live: _Live) -> None:
        group = live.group
        # After a start the other sets have not reported yet: queues would move, and move back.
        group.wait(is_waiting=self._is_early and not self._directory.is_complete)
        group.rebalance(self._now_ms())
        for member_id, (gained, lost) in group.take_changes().items():
            if stream := live.streams.get(member_id):
                positions = {
                    queue: self._position(name, queue, stream, is_broadcast=group.is_broadcast)
                    for queue in gained
                }
                stream.subscriber.assign(group.generation, positions, lost)
        self._lock(name, live)
        if group.has_more:
            self._arrange_soon(name, live)
        elif group.plan is not None and live.arranged.is_set():
            live.arranged.clear()
            self._start(self._carry_out(name, live, group.plan))
        if group.is_idle and not live.is_locking:
            self._live.pop(name, None)

    def _arrange_soon(self, name: str, live: _Live) -> None:
        """In a turn of its own."""
        if live.arranged.is_set():
            live.arranged.clear()
            asyncio.get_running_loop().call_soon(self._arrange_more, name, live)

    async def _carry_out(self, name: str, live: _Live, plan: Plan) -> None:
        targets = await asyncio.to_thread(plan.targets)
        live.group.adopt(plan, targets, self._now_ms())
        self._arrange_more(name, live)

    def _arrange_more(self, name: str, live: _Live) -> None:
        live.arranged.set()
        if self._live.get(name) is live:
            self._arrange(name, live)

    async def until_arranged(self, name: str) -> None:
        """Returns when all steps of the present arrangement are done."""
        live = self._live.get(name)
        while live is not None and not live.arranged.is_set():
            await live.arranged.wait()

    def _layout(self, group: Group) -> _Layout:
        wanted = group.topics
        retry_topic = group.retry_topic if group.members else None
        topics = sorted({*wanted, retry_topic} if retry_topic else wanted)
        counts = ((topic, self._read_queues(topic)) for topic in topics)
        find = self._machine.state.topics.find
        return _Layout(
            tuple((topic, count, find(topic).priorities) for topic, count in counts if count),
            self._directory.surroundings(wanted, retry_topic),
        )

    def _set_queues(self, name: str, live: _Live) -> bool:
        """Whether they are others."""
        group, layout = live.group, self._layout(live.group)
        if layout == live.layout:
            return False
        live.layout = layout
        if live.streams and not group.is_broadcast:
            # What comes to this set while the group consumes it elsewhere, it has from the
            # beginning, also when it stops before the first message.
            self._fix_positions(name, group.topics, Start(is_earliest=True))
        priorities = {topic: count for topic, _, count in layout.topics if count}
        group.set_queues(layout.queues, priorities, layout.surroundings)
        return True

    def _lock(self, name: str, live: _Live) -> None:
        if not live.is_locking and (changes := live.group.lock_changes()):
            live.is_locking = True
            self._start(self._write_locks(name, live, changes))

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _write_locks(self, name: str, live: _Live, changes: Mapping[Queue, str]) -> None:
        """The position of the last holder is in the log before the lock is: whichever node leads
        next, the next holder starts there. If the locks are not written, the next tick tries again,
        or another node leads.
        """
        locks = [
            QueueLock(topic=queue.topic, queue_id=queue.queue_id, member_id=member_id)
            for queue, member_id in changes.items()
        ]
        try:
            await self._commits.flush()
            await self._writer.write(Command(lock_queues=LockQueues(group=name, locks=locks)))
        except MqError as error:
            log.info("queue locks are not written", group=name, error=str(error))
            return
        finally:
            live.is_locking = False
        if self._live.get(name) is live:
            self._arrange(name, live)  # there may be more to lock by now

    # -- time and change --------------------------------------------------------------------------

    def tick(self) -> None:
        """A few times a second, on the leader."""
        now_ms = self._now_ms()
        for name, live in list(self._live.items()):
            for member_id, since_ms in list(live.broken.items()):
                # A member of an ordered group may not know yet that its stream is broken.
                grace_ms = self._expires_ms if live.group.is_ordered else _RECONNECT_MS
                if now_ms - since_ms >= grace_ms:
                    del live.broken[member_id]
                    live.group.leave(member_id)
            for member_id in live.group.expire(now_ms):
                live.broken.pop(member_id, None)
                why = UnknownMember(f"{member_id} was silent for too long in group {name}")
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
                    locks = command.lock_queues.locks
                    changes = {Queue(one.topic, one.queue_id): one.member_id for one in locks}
                    live.group.change_locks(changes, self._now_ms())
                    self._arrange(name, live)
            case "put_topic":
                for name, live in list(self._live.items()):
                    if live.group.is_large:
                        self._arrange_soon(name, live)
                    else:
                        self._arrange(name, live)
            case "drop_topic":  # its locks went with it
                for name, live in list(self._live.items()):
                    live.group.set_locks(self._machine.state.offsets.locks(name), self._now_ms())
                    self._arrange(name, live)

    def lead(self) -> None:
        """This node leads from now on."""
        self._led_since_ms = self._now_ms()
        self._former_ends = {
            Queue(topic, queue_id): end
            for topic, queue_id, _, end in self._machine.store.queues.extents()
        }
        self._met.clear()

    def step_down(self, refusal: MqError) -> None:
        """Its members go to the next leader."""
        for live in self._live.values():
            for stream in live.streams.values():
                stream.subscriber.end(refusal)
                stream.subscriber.detach()
        self._live.clear()
        self._commits.forget()

    # -- questions --------------------------------------------------------------------------------

    def extent(self, queue: Queue) -> tuple[int, int]:
        """Start and end; (0, 0) for a queue that was never written to."""
        found = self._machine.store.queues.get(*queue)
        return (found.start, found.end) if found else (0, 0)

    def start_offset(self, queue: Queue, start: Start) -> int:
        first, end = self.extent(queue)
        if start.at_ms is not None:
            found = self._machine.store.offset_at_time(*queue, start.at_ms)
            return end if found is None else found
        return first if start.is_earliest else end

    def _start_offsets(
        self, topic: str, queues: Collection[Queue], start: Start
    ) -> dict[Queue, int]:
        """As `start_offset` of each; a queue that was never written to costs next to nothing."""
        found = dict.fromkeys(queues, 0)
        for queue_id in self._machine.store.queues.ids_of(topic):
            queue = Queue(topic, queue_id)
            if queue in found:
                found[queue] = self.start_offset(queue, start)
        return found

    def _read_queues(self, topic: str) -> int:
        """0 for a topic that was deleted, or that cannot be read."""
        try:
            return self._machine.state.topics.readable(topic).read_queues
        except MqError:
            return 0

    @property
    def _is_early(self) -> bool:
        return self._now_ms() < self._led_since_ms + _SETTLE_MS

    def member(self, name: str, member_id: str) -> Member:
        """Raises UnknownMember."""
        live = self._live.get(name)
        found = live.group.members.get(member_id) if live else None
        if found is None:
            raise UnknownMember(f"group {name} has no member {member_id}: join again")
        return found

    def owner(self, name: str, queue: Queue) -> str | None:
        """The member that has the queue in hand."""
        live = self._live.get(name)
        return live.group.owner(queue) if live else None

    def position(self, name: str, queue: Queue) -> int | None:
        """The position of the group, also if it is not committed yet."""
        return self._commits.position(name, queue)

    def live(self, name: str) -> Group | None:
        found = self._live.get(name)
        return found.group if found else None

    def names(self) -> list[str]:
        return sorted({*self._machine.state.offsets.groups(), *self._live})

    def silent_ms(self, member: Member) -> int:
        return max(0, self._now_ms() - member.last_seen_ms)

    def stalled_ms(self, name: str) -> dict[str, int]:
        """By member with a stream, for how long it has made no progress in a queue of which it has
        messages; 0 without such a queue.
        """
        live = self._live.get(name)
        streams = live.streams.items() if live else ()
        return {member_id: round(1000 * one.subscriber.stalled_s) for member_id, one in streams}

    def in_flight(self, name: str) -> int:
        """Messages that members have and did not report as done."""
        live = self._live.get(name)
        streams = live.streams.values() if live else ()
        return sum(one.subscriber.cached_messages for one in streams)

    @property
    def member_count(self) -> int:
        return sum(len(live.group.members) for live in self._live.values())
