"""The groups that receive, in the leader's memory: one `ReceiveGroup` a group and topic, which
knows the queues with messages to give, the times at which more come back, the calls that wait, and
what the members agreed on.

All of it can be learnt again from the replicated leases, and is whenever it may be wrong: after a
fail-over, a reset, a failed write. `ready` has every queue with messages to give, and perhaps some
without; a queue that is looked at in vain leaves it until an arrival, a change or a time brings it
back. Knows neither the log nor the contents of messages.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from mq.broker.consumer.arrivals import Arrivals
from mq.broker.consumer.filters import ALL_MESSAGES
from mq.broker.queue import Queue, queues_of
from mq.broker.receive.leases import LeaseDraft, attempt_of
from mq.broker.state.leases import Leases, QueueLeases, Range
from mq.broker.state.state import State
from mq.broker.state.topics import Topic
from mq.errors import MqError, SubscriptionMismatch
from mq.wire.v1 import state_pb2

# Heap items of leases that ended before their time: so many more than there are ranges.
_STALE_MAX = 256
# Attempts that are remembered without need: so many more than there are with leases.
_ATTEMPTS_MAX = 256
# With priorities, one receive in so many begins with another priority than the highest.
_FAIR_EVERY = 10
_NEVER_MS = 1 << 62
# Pause before a queue with a damaged file is tried again: while it is rebuilt, or if it cannot be.
_MENDED_S, _DAMAGED_S = 0.05, 5.0
# A group without members is forgotten here after so long; its replicated state stays.
_FORGET_MS = 600_000


class Redeliveries:
    """Ranges of one queue by the time at which they are given out again. Ranges that have changed
    since they were added are skipped.
    """

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, int]] = []  # visible_at_ms, start, end, lease

    @property
    def next_ms(self) -> int:
        return self._heap[0][0] if self._heap else _NEVER_MS

    def push(self, one: Range) -> None:
        heapq.heappush(self._heap, (one.visible_at_ms, one.start, one.end, one.lease))

    def tidy(self, leases: QueueLeases) -> None:
        if len(self._heap) > 2 * len(leases.ranges) + _STALE_MAX:
            self._heap = [
                (one.visible_at_ms, one.start, one.end, one.lease) for one in leases.ranges
            ]
            heapq.heapify(self._heap)

    def pop(self, now_ms: int, leases: QueueLeases) -> Range | None:
        """Removes and returns the next range that is due."""
        while self._heap and self._heap[0][0] <= now_ms:
            visible_at_ms, start, end, lease = heapq.heappop(self._heap)
            for one in leases.within(start, end):
                if one.lease == lease and one.visible_at_ms == visible_at_ms:
                    found = one._replace(start=max(start, one.start), end=min(end, one.end))
                    if found.end < end:
                        self.push(found._replace(start=found.end, end=end))
                    return found
        return None

    def is_due(self, now_ms: int, leases: QueueLeases) -> bool:
        found = self.pop(now_ms, leases)
        if found is not None:
            self.push(found)
        return found is not None


class QueueMemory:
    __slots__ = ("exhausted", "is_full", "keys", "passed", "redeliveries")

    def __init__(self, passed: int) -> None:
        self.redeliveries = Redeliveries()
        # No new message before it passes the filter; never less than the leases' `next`.
        self.passed = passed
        # So many messages are leased or put off that no new ones are given out.
        self.is_full = False
        # There are messages that were given out too often.
        self.exhausted = False
        # In an ordered group: the ordering keys of messages that are not done.
        self.keys: dict[int, str] = {}


class ReceiveSpec(NamedTuple):
    """The settings that all members of a group have to agree on. The filter is a canonical text."""

    filter: str
    is_ordered: bool
    # A group is used by one protocol at a time: each has rules of its own for redeliveries.
    protocol: str = "mq's own protocol"

    def filters_of(self, topic: str) -> tuple[tuple[str, str], ...]:
        """For traces; none if all messages are let through."""
        return () if self.filter == ALL_MESSAGES else ((topic, self.filter),)

    def describe(self) -> str:
        order = ", in order" if self.is_ordered else ""
        return f"filter {self.filter}{order}, by {self.protocol}"


class WaitingCall(Protocol):
    """A receive that waits for messages."""

    @property
    def messages_max(self) -> int: ...

    def wake(self, error: MqError | None = None, /) -> None:
        """So many messages are reserved for the call, which looks again; or it fails with the
        error. Must not call back at once.
        """
        ...


class _Receiver:
    __slots__ = ("calls", "seen_ms")

    def __init__(self) -> None:
        self.seen_ms = 0
        self.calls = 0  # in flight


class ReceiveGroup:
    """A group that receives from one topic."""

    def __init__(self, group: str, topic: Topic, extent_end: Callable[[Queue], int]) -> None:
        """`extent_end` returns the end of a queue."""
        self.group = group
        self.topic = topic
        self._end = extent_end
        self.spec: ReceiveSpec | None = None
        self.ready: dict[Queue, None] = {}
        self.memories: dict[Queue, QueueMemory] = {}
        # Queues without leases in the replicated state; None: not known. The last one is next.
        self.missing: list[Queue] | None = None
        # The highest queue that was known to the group when these were looked for.
        self.last_known = -1
        # Every queue has leases in the replicated state.
        self.is_begun = False
        # It gets no more events.
        self.is_dropped = False
        self.next_due_ms = _NEVER_MS
        # Messages that calls in flight may be given: no waiter has to be woken for those.
        self.reserved = 0
        self.exhausted_queues: set[Queue] = set()
        self._members: dict[str, _Receiver] = {}
        self._waiting: OrderedDict[WaitingCall, None] = OrderedDict()
        # The messages that they want.
        self._waiting_messages = 0
        self._receives = 0
        self._attempts_max = 0
        self.renew(topic)

    def renew(self, topic: Topic) -> None:
        """Forgets what is known of the queues: it is learnt again from the leases."""
        self.topic = topic
        self.queues = queues_of(topic.name, topic.read_queues)
        self.memories.clear()
        self.exhausted_queues.clear()
        self.ready = dict.fromkeys(self.queues)
        self.missing, self.is_begun = None, False
        self.next_due_ms = _NEVER_MS
        # Queues with leases of each attempt, and perhaps some without; None: not known.
        self._attempts: dict[int, list[Queue]] | None = None

    # -- members ----------------------------------------------------------------------------------

    def enter(self, member_id: str, spec: ReceiveSpec, now_ms: int, expires_ms: int) -> None:
        """A call of this member begins. Raises SubscriptionMismatch if other members differ."""
        if spec != self.spec:
            for other_id, other in self._members.items():
                is_there = now_ms - other.seen_ms < expires_ms and other_id != member_id
                if self.spec is not None and (other.calls or is_there):
                    raise SubscriptionMismatch(
                        f"all members of group {self.group!r} must receive the same of topic "
                        f"{self.topic.name}: member {member_id!r} wants {spec.describe()}; member "
                        f"{other_id!r} has {self.spec.describe()}. Use another group, or stop the "
                        "others first"
                    )
            if self.spec is not None:
                # The new filter may let messages through that the old one left out.
                self.renew(self.topic)
            self.spec = spec
        member = self._members.get(member_id)
        if member is None:
            member = self._members[member_id] = _Receiver()
        member.seen_ms = now_ms
        member.calls += 1

    def exit(self, member_id: str, now_ms: int) -> None:
        """A call has ended."""
        member = self._members.get(member_id)
        if member is not None:
            member.calls -= 1
            member.seen_ms = now_ms

    def leave(self, member_id: str) -> None:
        """Removes the member, unless it has a call in flight."""
        member = self._members.get(member_id)
        if member is not None and not member.calls:
            del self._members[member_id]

    def active_members(self, now_ms: int, expires_ms: int) -> dict[str, int]:
        """The members that are not expired, each with the time since its last call."""
        silent_ms = {
            member_id: 0 if member.calls else max(0, now_ms - member.seen_ms)
            for member_id, member in self._members.items()
        }
        return {one: silent for one, silent in silent_ms.items() if silent < expires_ms}

    def expire(self, now_ms: int, expires_ms: int) -> bool:
        """Returns whether no member is left."""
        for member_id, member in list(self._members.items()):
            if not member.calls and now_ms - member.seen_ms >= expires_ms:
                del self._members[member_id]
        return not self._members

    # -- queues -----------------------------------------------------------------------------------

    def first_ready(self, count: int) -> list[Queue]:
        """The ready queues that one receive looks at, in that order."""
        self._receives += 1
        priorities = self.topic.priorities
        if priorities <= 1:
            return list(itertools.islice(self.ready, count))
        turn, rest = divmod(self._receives, _FAIR_EVERY)
        # Each priority is first in its turn: also one between two that are always busy.
        top = priorities - 1 if rest else turn % (priorities - 1)
        return heapq.nsmallest(
            count, self.ready, key=lambda queue: (top - queue.queue_id) % priorities
        )

    def memory(self, queue: Queue, leases: QueueLeases) -> QueueMemory:
        found = self.memories.get(queue)
        if found is None:
            found = self.memories[queue] = QueueMemory(leases.next)
            for one in leases.ranges:
                self._note(found, one)
        return found

    def look_again(self, queue: Queue) -> None:
        """Forgets what is known of the queue."""
        self.memories.pop(queue, None)
        self.exhausted_queues.discard(queue)
        self._is_ready(queue)

    def set_aside(self, queue: Queue, *, is_mended: bool) -> None:
        """A file of the queue is damaged, and that was reported: the queue is tried again later."""
        pause_s = _MENDED_S if is_mended else _DAMAGED_S
        asyncio.get_running_loop().call_later(pause_s, self.try_again, queue)

    def try_again(self, queue: Queue) -> None:
        """The queue may be read again."""
        if not self.is_dropped:
            self.look_again(queue)
            self.wake()

    def changed(self, queue: Queue, change: Range | None, now_ms: int) -> None:
        """A change of the queue's leases was applied; None: its messages are done."""
        memory = self.memories.get(queue)
        if memory is None or change is None:
            # There may be room for more, or the next message of a key is free.
            if memory is None or memory.is_full or self.is_ordered:
                self._is_ready(queue)
            return
        self._note(memory, change)
        if change.visible_at_ms <= now_ms:
            self._is_ready(queue)

    @property
    def is_ordered(self) -> bool:
        return self.spec is not None and self.spec.is_ordered

    def _note(self, memory: QueueMemory, one: Range) -> None:
        if self.is_ordered and not one.lease and not one.visible_at_ms:
            return  # put off: it waits for other messages of its key, not for a time
        memory.redeliveries.push(one)
        self.next_due_ms = min(self.next_due_ms, one.visible_at_ms)

    def _is_ready(self, queue: Queue) -> None:
        if queue.queue_id < self.topic.read_queues:
            self.ready[queue] = None

    def pass_time(self, now_ms: int, leases: Leases) -> None:
        """Queues with messages that are to be given out again by now become ready."""
        if now_ms < self.next_due_ms:
            return
        self.next_due_ms = _NEVER_MS
        for queue, memory in self.memories.items():
            known = leases.get(self.group, queue)
            if known is not None and memory.redeliveries.is_due(now_ms, known):
                self._is_ready(queue)
            self.sleep(memory, now_ms)

    def sleep(self, memory: QueueMemory, now_ms: int) -> None:
        """Notes when the next range of the queue is due, unless one is due now."""
        next_ms = memory.redeliveries.next_ms
        if next_ms > now_ms:
            self.next_due_ms = min(self.next_due_ms, next_ms)

    # -- attempts ---------------------------------------------------------------------------------

    def may_have_attempt(self, attempt: int) -> bool:
        """Whether messages may be leased to a former call of this attempt."""
        return bool(attempt) and (self._attempts is None or attempt in self._attempts)

    def attempt_queues(self, attempt: int, leases: LeaseDraft) -> list[Queue]:
        """The queues that may have leases of the attempt. Part of a turn: the draft is all that is
        not applied.
        """
        if self._attempts is None:
            self._attempts = self._find_attempts(leases)
            self._attempts_max = 2 * len(self._attempts) + _ATTEMPTS_MAX
        return self._attempts.get(attempt, [])

    def note_attempt(self, attempt: int, queues: list[Queue]) -> None:
        if self._attempts is not None:
            self._attempts[attempt] = queues
            if len(self._attempts) > self._attempts_max:
                # Most of it is done: it is learnt again.
                self._attempts = None

    def _find_attempts(self, leases: LeaseDraft) -> dict[int, list[Queue]]:
        found: dict[int, list[Queue]] = {}
        for queue in self.queues:
            known = leases.get(self.group, queue)
            for attempt in {attempt_of(one.lease) for one in known.ranges} if known else ():
                found.setdefault(attempt, []).append(queue)
        return found

    # -- waiting calls -----------------------------------------------------------------------------

    def arrived(self, queue: Queue) -> None:
        memory = self.memories.get(queue)
        if memory is not None and memory.is_full:
            return
        self._is_ready(queue)
        if self._waiting:
            self.wake()

    def wait(self, call: WaitingCall) -> None:
        """The call is woken once, unless it is forgotten before."""
        self._waiting[call] = None
        self._waiting_messages += call.messages_max

    def forget(self, call: WaitingCall) -> None:
        """The call waits no longer."""
        del self._waiting[call]
        self._waiting_messages -= call.messages_max

    def release(self, messages_max: int) -> None:
        """Ends the reservation of a call."""
        self.reserved -= messages_max
        if self._waiting:
            self.wake()

    def wake(self, *, is_all: bool = False) -> None:
        """Wakes as many waiting calls as there are messages for."""
        if not self._waiting:
            return
        asked = self.reserved + self._waiting_messages
        wanted = _NEVER_MS if is_all else self._available(asked) - self.reserved
        while self._waiting and wanted > 0:
            call = next(iter(self._waiting))
            self.forget(call)
            wanted -= call.messages_max
            self.reserved += call.messages_max
            call.wake()

    def dismiss(self, error: MqError) -> None:
        for call in list(self._waiting):
            self.forget(call)
            call.wake(error)

    def _available(self, asked: int) -> int:
        """An estimate of the messages there are, exact only below `asked`: a woken call that finds
        none waits on, and one that leaves some wakes the next.
        """
        count = 0
        for queue in self.ready:
            if count >= asked:
                break
            memory = self.memories.get(queue)
            is_known = memory is not None and not memory.is_full and not self.is_ordered
            count += max(1, self._end(queue) - memory.passed) if memory and is_known else 1
        return count


class ReceiveGroups:
    """All of them, by group and topic."""

    def __init__(
        self, state: State, arrivals: Arrivals, end: Callable[[Queue], int], expires_ms: int
    ) -> None:
        """`end` returns the end of a queue."""
        self._state = state
        self._arrivals = arrivals
        self._end = end
        self._expires_ms = expires_ms
        self._groups: dict[str, dict[str, ReceiveGroup]] = {}  # by group and topic
        self._empty_since_ms: dict[ReceiveGroup, int] = {}

    def __iter__(self) -> Iterator[ReceiveGroup]:
        for by_topic in list(self._groups.values()):
            yield from list(by_topic.values())

    def of(self, group: str, topic: str) -> ReceiveGroup:
        """Creates it at the first call. Raises TopicNotFound, PermissionDenied."""
        by_topic = self._groups.get(group)
        receiver = by_topic.get(topic) if by_topic is not None else None
        if receiver is None:
            receiver = ReceiveGroup(group, self._state.topics.readable(topic), self._end)
            self._groups.setdefault(group, {})[topic] = receiver
            self._arrivals.watch_topic(topic, receiver.arrived)
        if self._empty_since_ms:
            self._empty_since_ms.pop(receiver, None)
        return receiver

    def active_members(self, group: str, steady_ms: int) -> dict[str, int]:
        """The members that are not expired, each with the time since its last call."""
        found: dict[str, int] = {}
        for receiver in self._groups.get(group, {}).values():
            for member_id, silent_ms in receiver.active_members(
                steady_ms, self._expires_ms
            ).items():
                found[member_id] = min(silent_ms, found.get(member_id, silent_ms))
        return found

    def leave(self, group: str, member_id: str) -> None:
        for receiver in self._groups.get(group, {}).values():
            receiver.leave(member_id)

    def dismiss(self, error: MqError) -> None:
        """Forgets everything; waiting calls fail with the error."""
        for receiver in self:
            self._drop(receiver)
            receiver.dismiss(error)

    def pass_time(self, now_ms: int, steady_ms: int) -> None:
        for receiver in self:
            receiver.pass_time(now_ms, self._state.leases)
            receiver.wake()
            if receiver.expire(steady_ms, self._expires_ms):
                since_ms = self._empty_since_ms.setdefault(receiver, steady_ms)
                if steady_ms - since_ms >= _FORGET_MS:
                    self._drop(receiver)

    # -- applied commands -------------------------------------------------------------------------

    def on_command(self, command: state_pb2.Command, now_ms: int) -> None:
        if not self._groups:
            return
        match command.WhichOneof("kind"):
            case "change_leases":
                for one in command.change_leases.queues:
                    self._changed(one, now_ms)
            case "commit_positions":
                self._moved(command.commit_positions)
            case "drop_group":
                for receiver in list(self._groups.get(command.drop_group.group, {}).values()):
                    self._renew(receiver)
            case "put_topic":
                self._renew_topic(command.put_topic.topic)
            case "drop_topic":
                self._renew_topic(command.drop_topic.topic)

    def _changed(self, change: state_pb2.QueueLeases, now_ms: int) -> None:
        receiver = self._groups.get(change.group, {}).get(change.topic)
        if receiver is None:
            return
        queue = Queue(change.topic, change.queue_id)
        for one in change.changes:
            value = Range(one.start, one.end, one.lease, one.visible_at_ms, one.attempts)
            receiver.changed(queue, None if one.is_done else value, now_ms)
        memory, leases = receiver.memories.get(queue), self._state.leases.get(change.group, queue)
        if memory is not None and leases is not None:
            memory.redeliveries.tidy(leases)
        receiver.wake()

    def _moved(self, commit: state_pb2.CommitPositions) -> None:
        for each in commit.groups:
            for topic in {one.topic for one in each.positions}:
                self._renew(self._groups.get(each.group, {}).get(topic))

    def _renew_topic(self, topic: str) -> None:
        for by_topic in list(self._groups.values()):
            self._renew(by_topic.get(topic))

    def _renew(self, receiver: ReceiveGroup | None) -> None:
        """A topic or a group has changed: all waiting calls look again."""
        if receiver is None:
            return
        name = receiver.topic.name
        if name in self._state.topics:
            receiver.renew(self._state.topics.find(name))
        else:
            self._drop(receiver)
        receiver.wake(is_all=True)

    def _drop(self, receiver: ReceiveGroup) -> None:
        by_topic = self._groups[receiver.group]
        del by_topic[receiver.topic.name]
        if not by_topic:
            del self._groups[receiver.group]
        receiver.is_dropped = True
        self._empty_since_ms.pop(receiver, None)
        self._arrivals.unwatch_topic(receiver.topic.name, receiver.arrived)
