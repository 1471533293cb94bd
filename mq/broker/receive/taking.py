"""What the leader remembers of a group that receives from a topic: where there is something to
give, when there will be, who waits for it, and what the members agreed on.

All of it can be learnt anew from the replicated leases, and is, whenever it may be wrong: after a
fail-over, a reset, a write that failed. `ready` has every queue that has something to give, and
perhaps some that have not; a queue that is looked at and has nothing leaves it until it is told of
an arrival, a change or a time. Knows neither the log nor what messages are.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from mq.broker.queue import Queue
from mq.broker.state.leases import Leases, QueueLeases, Range
from mq.broker.state.topics import Topic
from mq.errors import MqError, SubscriptionMismatch

# Heap entries of leases that are over long before their time: so many more than there are ranges.
_STALE_MAX = 256
# Of a topic with priorities: one receive in so many begins with another than the highest.
_FAIR_EVERY = 10
_NEVER_MS = 1 << 62
# When a queue with a damaged file is looked at again: while it is rebuilt, or if it cannot be.
_MENDED_S, _DAMAGED_S = 0.05, 5.0


class Again:
    """Ranges of one queue, by the time at which they are to be given out again. Those that have
    changed since they were put in are passed over.
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
        """The next one that is due; it is not in here any more."""
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
    __slots__ = ("again", "is_full", "keys", "passed", "spent")

    def __init__(self, passed: int) -> None:
        self.again = Again()
        # Nothing new that the group wants stands before it; never less than the leases' `next`.
        self.passed = passed
        # So much is in hand, or put off, that nothing new is looked at.
        self.is_full = False
        # There are messages that were given out too often.
        self.spent = False
        # In an ordered group: the ordering keys of messages that are not done.
        self.keys: dict[int, str] = {}


class Spec(NamedTuple):
    """What all members of a group have to agree on. The filter is a canonical text."""

    filter: str
    is_ordered: bool

    def describe(self) -> str:
        return f"filter {self.filter}{', in order' if self.is_ordered else ''}"


class Waiter(NamedTuple):
    woken: asyncio.Future[None]
    messages_max: int


class _Member:
    __slots__ = ("calls", "seen_ms")

    def __init__(self) -> None:
        self.seen_ms = 0
        self.calls = 0  # under way


class Taking:
    def __init__(self, group: str, topic: Topic, extent_end: Callable[[Queue], int]) -> None:
        """`extent_end` says where a queue ends now."""
        self.group = group
        self.topic = topic
        self._end = extent_end
        self.spec: Spec | None = None
        self.ready: dict[Queue, None] = {}
        self.memories: dict[Queue, QueueMemory] = {}
        # Every queue has leases in the replicated state.
        self.is_begun = False
        # Nobody tells it of anything any more.
        self.is_dropped = False
        self.next_due_ms = _NEVER_MS
        # Messages that calls under way may take: nobody need be woken for those.
        self.reserved = 0
        self.spent_queues: set[Queue] = set()
        self._members: dict[str, _Member] = {}
        self._waiting: deque[Waiter] = deque()
        self._receives = 0
        self.renew(topic)

    def renew(self, topic: Topic) -> None:
        """Everything that is known of the queues is learnt anew."""
        self.topic = topic
        self.queues = [Queue(topic.name, at) for at in range(topic.read_queues)]
        self.memories.clear()
        self.spent_queues.clear()
        self.ready = dict.fromkeys(self.queues)
        self.is_begun = False
        self.next_due_ms = _NEVER_MS

    # -- members ----------------------------------------------------------------------------------

    def enter(self, member_id: str, spec: Spec, now_ms: int, expires_ms: int) -> None:
        """A call of this member begins. SubscriptionMismatch: others want something else."""
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
            self.spec = spec
            # Where the old filter found nothing the new one may.
            self.renew(self.topic)
        member = self._members.setdefault(member_id, _Member())
        member.seen_ms = now_ms
        member.calls += 1

    def exit(self, member_id: str, now_ms: int) -> None:
        """The call is over."""
        member = self._members.get(member_id)
        if member is not None:
            member.calls -= 1
            member.seen_ms = now_ms

    def leave(self, member_id: str) -> None:
        """The member is not there any more, unless it calls just now."""
        member = self._members.get(member_id)
        if member is not None and not member.calls:
            del self._members[member_id]

    def active_members(self, now_ms: int, expires_ms: int) -> dict[str, int]:
        """For how long each was silent."""
        silent_ms = {
            member_id: 0 if member.calls else max(0, now_ms - member.seen_ms)
            for member_id, member in self._members.items()
        }
        return {one: silent for one, silent in silent_ms.items() if silent < expires_ms}

    def expire(self, now_ms: int, expires_ms: int) -> bool:
        """Whether nobody is left."""
        for member_id, member in list(self._members.items()):
            if not member.calls and now_ms - member.seen_ms >= expires_ms:
                del self._members[member_id]
        return not self._members

    # -- queues -----------------------------------------------------------------------------------

    def order(self) -> list[Queue]:
        """The queues that are ready, in the order in which one receive looks at them."""
        self._receives += 1
        ready = list(self.ready)
        priorities = self.topic.priorities
        if priorities > 1:
            turn, rest = divmod(self._receives, _FAIR_EVERY)
            # Each priority in its turn is the first: also one between two that are always busy.
            top = priorities - 1 if rest else turn % (priorities - 1)
            ready.sort(key=lambda queue: (top - queue.queue_id) % priorities)
        return ready

    def memory(self, queue: Queue, leases: QueueLeases) -> QueueMemory:
        found = self.memories.get(queue)
        if found is None:
            found = self.memories[queue] = QueueMemory(leases.next)
            for one in leases.ranges:
                self._note(found, one)
        return found

    def look_again(self, queue: Queue) -> None:
        """What is known of the queue is learnt anew."""
        self.memories.pop(queue, None)
        self.spent_queues.discard(queue)
        self._is_ready(queue)

    def set_aside(self, queue: Queue, *, is_mended: bool) -> None:
        """A file of the queue is damaged, which was reported: it is looked at again in a while."""
        pause_s = _MENDED_S if is_mended else _DAMAGED_S
        asyncio.get_running_loop().call_later(pause_s, self._try_again, queue)

    def _try_again(self, queue: Queue) -> None:
        if not self.is_dropped:
            self.look_again(queue)
            self.wake()

    def changed(self, queue: Queue, change: Range | None, now_ms: int) -> None:
        """A change of the queue's leases was applied; None: messages are done."""
        memory = self.memories.get(queue)
        if memory is None or change is None:
            # There may be room, or the way free for others of a key.
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
            return  # put off: it waits for others of its key, and not for a time
        memory.again.push(one)
        self.next_due_ms = min(self.next_due_ms, one.visible_at_ms)

    def _is_ready(self, queue: Queue) -> None:
        if queue.queue_id < self.topic.read_queues:
            self.ready[queue] = None

    def pass_time(self, now_ms: int, leases: Leases) -> None:
        """Queues with something to be given out again by now are ready."""
        if now_ms < self.next_due_ms:
            return
        self.next_due_ms = _NEVER_MS
        for queue, memory in self.memories.items():
            known = leases.get(self.group, queue)
            if known is not None and memory.again.is_due(now_ms, known):
                self._is_ready(queue)
            # What is due is seen when the queue is looked at.
            self.sleep(memory, now_ms)

    def sleep(self, memory: QueueMemory, now_ms: int) -> None:
        """The queue is looked at again when the next of its ranges is due, if none is now."""
        next_ms = memory.again.next_ms
        if next_ms > now_ms:
            self.next_due_ms = min(self.next_due_ms, next_ms)

    # -- who waits --------------------------------------------------------------------------------

    def arrived(self, queue: Queue) -> None:
        memory = self.memories.get(queue)
        if memory is not None and memory.is_full:
            return  # more of it helps nobody
        self._is_ready(queue)
        if self._waiting:
            self.wake()

    async def wait(self, messages_max: int, seconds: float) -> bool:
        """Whether it was woken. Then so many messages are reserved for it."""
        waiter = Waiter(asyncio.get_running_loop().create_future(), messages_max)
        self._waiting.append(waiter)
        try:
            await asyncio.wait([waiter.woken], timeout=seconds)
        except asyncio.CancelledError:
            if not self._forget(waiter) and waiter.woken.exception() is None:
                self.release(messages_max)  # somebody else can have it
            raise
        if self._forget(waiter):
            return False
        waiter.woken.result()
        return True

    def _forget(self, waiter: Waiter) -> bool:
        """Whether it had not been woken."""
        if waiter.woken.done():
            return False
        self._waiting.remove(waiter)
        return True

    def release(self, messages_max: int) -> None:
        """What was reserved by a call is free for others."""
        self.reserved -= messages_max
        self.wake()

    def wake(self, *, is_all: bool = False) -> None:
        """As many of those who wait as there is something for."""
        if not self._waiting:
            return
        wanted = _NEVER_MS if is_all else self._available() - self.reserved
        while self._waiting and wanted > 0:
            waiter = self._waiting.popleft()
            wanted -= waiter.messages_max
            self.reserved += waiter.messages_max
            waiter.woken.set_result(None)

    def dismiss(self, error: MqError) -> None:
        while self._waiting:
            self._waiting.popleft().woken.set_exception(error)

    def _available(self) -> int:
        """About how many messages there are: who finds nothing waits on, and who finds some and
        leaves some wakes the next one.
        """
        count = 0
        for queue in self.ready:
            memory = self.memories.get(queue)
            is_known = memory is not None and not memory.is_full and not self.is_ordered
            count += max(1, self._end(queue) - memory.passed) if memory and is_known else 1
        return count
