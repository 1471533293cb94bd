"""One member's stream: which queues it has, how far it has come in each, and what goes out next.

Nothing is kept for a slow client: a message is read when it is sent, and sent only while the client
has room for it, by its own limits. What a queue has delivered and the client has not reported as
done counts against them. Queues of a higher priority come first, but one delivery in ten goes to
whichever queue has waited longest, so that none starves.

A client that takes redirects may be told to read a queue from another node. The queue stays its
own, and its progress comes here, but nothing is delivered until the client wants it (`resume`), the
position is changed, or the queue leaves. None of it outlives the stream: a member that comes back
starts as any other.
A queue that cannot be read because a file is damaged is set aside for a while; the others go on.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import NamedTuple

from mq.broker.consumer.arrivals import Arrivals
from mq.broker.consumer.cursor import Cursor, Sent, returned
from mq.broker.consumer.filters import CompiledFilter
from mq.broker.consumer.pulling import Puller, Query
from mq.broker.consumer.replicas import Reader, Replicas
from mq.broker.consumer.setting_aside import SetAside
from mq.broker.consumer.unsent import Allowance
from mq.broker.contracts import Peer
from mq.broker.long_work import in_turns
from mq.broker.queue import Queue
from mq.errors import IllegalOffset, MessagesDamaged, MqError, QueueDamaged, Rebuilding
from mq.store.reading import ReadResult, Status

# One delivery of so many goes to the queue that has waited longest.
_FAIR_EACH = 10
# A queue that came back from another node is delivered here for a while, wherever it stands: the
# other node may be one that cannot serve it, and looks well from here.
_STAYS_S = 5.0
# Queues of a stream that is gone, in one turn of the loop.
_UNWATCHED_MAX = 8_192


class CacheLimits(NamedTuple):
    """The client's cache of one queue, and its limits for one delivery."""

    messages: int = 1_000
    size_bytes: int = 100 << 20
    delivery_bytes: int = 1 << 20


class Position(NamedTuple):
    queue: Queue
    queue_offset: int
    epoch: int


class Assigned(NamedTuple):
    generation: int
    positions: list[Position]
    # Of queues below the highest priority of their topic: how far.
    ranks: Mapping[Queue, int] = MappingProxyType({})


class Delivered(NamedTuple):
    queue: Queue
    epoch: int
    result: ReadResult


class Redirected(NamedTuple):
    """The client reads this queue from another node, from `queue_offset` on."""

    queue: Queue
    epoch: int
    queue_offset: int
    to: Peer


class Subscriber:
    """Made by `Groups`. `next` is for one task, everything else for the loop."""

    def __init__(
        self,
        group: str,
        member_id: str,
        filters: Mapping[str, CompiledFilter],
        limits: CacheLimits,
        puller: Puller,
        arrivals: Arrivals,
        *,
        on_untold: Callable[[Subscriber, Mapping[Queue, None]], None] = lambda *_: None,
    ) -> None:
        """`on_untold` gets queues that left again before the client was told that it has them: the
        client cannot release those.
        """
        self.group = group
        self.member_id = member_id
        self._filters = filters
        self._limits = limits
        self._puller = puller
        self._arrivals = arrivals
        self._generation = 0
        self._cursors: dict[Queue, Cursor] = {}
        # Revoked, and not released yet: the client may still report progress.
        self._leaving: dict[Queue, Cursor] = {}
        self._on_untold = on_untold
        # Queues that may have something to send, in the order of their turn.
        self._ready: dict[Queue, None] = {}
        self._ranks: dict[Queue, int] = {}
        self._deliveries = 0
        self._is_assignment_due = self._is_waiting = False
        self._error: Exception | None = None
        self._wake = asyncio.Event()
        self._allowance = Allowance()
        self._replicas: Replicas | None = None
        self._zone = ""
        # Reads of what is far behind, and what they have brought.
        self._fetching: dict[Queue, asyncio.Task[None]] = {}
        self._fetched: dict[Queue, tuple[int, ReadResult | MqError]] = {}
        self._aside = SetAside(self._is_ready)
        # Until it fires, nothing is delivered.
        self._pause: asyncio.TimerHandle | None = None

    def allow_redirects(self, replicas: Replicas, zone: str) -> None:
        """Before the first `next`: the client understands them."""
        self._replicas, self._zone = replicas, zone

    @property
    def queues(self) -> AbstractSet[Queue]:
        return self._cursors.keys()

    @property
    def stalled_s(self) -> float:
        """For how long the client has made no progress in one of the queues of which it has
        messages, also in one that it is to release.
        """
        cursors = itertools.chain(self._cursors.values(), self._leaving.values())
        busy = [one.busy_since_s for one in cursors if one.busy_since_s]
        return asyncio.get_running_loop().time() - min(busy) if busy else 0.0

    @property
    def cached_messages(self) -> int:
        return sum(cursor.cached()[0] for cursor in self._cursors.values())

    # -- from the group ---------------------------------------------------------------------------

    def assign(
        self,
        generation: int,
        positions: Mapping[Queue, int],
        lost: Collection[Queue] | None = None,
    ) -> None:
        """`positions` says where to start in the queues that are new. Those that are `lost`, by
        default all others, leave its assignment.
        """
        cursors = self._cursors
        lost = list(cursors.keys() - positions.keys()) if lost is None else lost
        self._arrivals.unwatch(lost, self._arrived)
        for queue in lost:
            self._leaving[queue] = cursors.pop(queue)
            self._aside.forget(queue)
        for known in (self._ready, self._ranks, self._fetched):
            if known:
                for queue in lost:
                    known.pop(queue, None)
        gained = sorted(positions.keys() - cursors.keys())
        self._arrivals.watch(gained, self._arrived)
        for queue in gained:
            cursors[queue] = returned(self._leaving.pop(queue, None), positions[queue])
            if rank := self._puller.rank(queue):
                self._ranks[queue] = rank
        self._ready.update(dict.fromkeys(gained))
        self._generation = generation
        self._is_assignment_due = True
        self._wake.set()

    def wait(self, *, is_waiting: bool) -> None:
        """The assignment is told as a whole: not before all parts of it are known."""
        if is_waiting != self._is_waiting:
            self._is_waiting = is_waiting
            self._wake.set()

    def claim(self, in_hand: Mapping[Queue, Cursor]) -> None:
        """It came back with these queues in hand. One that is not in the first assignment is one to
        finish and to release, under epoch 0.
        """
        self._leaving.update(in_hand)

    def move(self, positions: Mapping[Queue, int]) -> None:
        """A seek of the client's or a reset by an operator: what was sent before is void."""
        for queue, queue_offset in positions.items():
            cursor = self._cursors.get(queue)
            if cursor is not None:
                self._cursors[queue] = cursor.moved(queue_offset, cursor.epoch + 1)
                self._ready[queue] = None
            elif queue in self._leaving:
                former = self._leaving[queue]
                former.epoch += 1  # its last reports are void, too
                former.is_told_of_end = True  # should it come back, it starts again
        self._is_assignment_due = True
        self._wake.set()

    def end(self, error: MqError) -> None:
        """The stream ends with this, after nothing else."""
        self._error = self._error or error
        self._wake.set()

    def pause(self, seconds: float) -> None:
        """No messages go out for this time; assignments do."""
        if seconds > 0 and self._pause is None:
            self._pause = asyncio.get_running_loop().call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._pause = None
        self._wake.set()

    def detach(self) -> None:
        """The stream is gone."""
        if self._pause is not None:
            self._pause.cancel()
        self._unwatch(list(self._cursors))
        for task in self._fetching.values():
            task.cancel()
        self._aside.clear()
        self._cursors.clear()
        self._ready.clear()
        self._fetched.clear()

    def _unwatch(self, queues: list[Queue]) -> None:
        """In several turns of the loop, if they are very many."""
        self._arrivals.unwatch(queues[-_UNWATCHED_MAX:], self._arrived)
        del queues[-_UNWATCHED_MAX:]
        if queues:
            asyncio.get_running_loop().call_soon(self._unwatch, queues)

    # -- from the client --------------------------------------------------------------------------

    def progress(self, reported: Iterable[Position]) -> dict[Queue, int]:
        """Returns the positions that are new. Reports with a stale queue or epoch are dropped.
        Raises IllegalOffset if a position is behind what was delivered.
        """
        news = {}
        for queue, queue_offset, epoch in reported:
            cursor = self._cursors.get(queue) or self._leaving.get(queue)
            if cursor is None or epoch != cursor.epoch:
                continue
            if queue_offset > (reached := self._reached(queue, cursor)):
                raise IllegalOffset(
                    f"progress up to {queue_offset} in queue {queue.queue_id} of {queue.topic}, of "
                    f"which only messages before {reached} were delivered"
                )
            if queue_offset > cursor.done:
                news[queue] = queue_offset
                earned = cursor.advance(queue_offset, asyncio.get_running_loop().time())
                self._allowance.earn(earned, self._limits.delivery_bytes)
                if queue in self._cursors:
                    self._ready[queue] = None
        if news:
            self._wake.set()
        return news

    def _reached(self, queue: Queue, cursor: Cursor) -> int:
        """The queue offset that the client may have reached."""
        if not cursor.is_redirected:
            return cursor.next_offset
        return max(cursor.next_offset, self._puller.end(queue))

    async def until_applied(self, reported: Iterable[Position]) -> None:
        """Before `progress` or `resume`: what the client has from another node may not have been
        applied here yet. Returns when it is, or when it ought to be.
        """
        if self._replicas is None:
            return
        news = {}
        for queue, queue_offset, _ in reported:
            cursor = self._cursors.get(queue) or self._leaving.get(queue)
            if cursor is not None and queue_offset > cursor.next_offset and cursor.is_redirected:
                news[queue] = queue_offset
        await self._puller.until_applied(news)

    def resume(self, wanted: Iterable[Position]) -> None:
        """Queues that were redirected are delivered here again, from these offsets on. A queue that
        is not assigned now, or has another epoch, is late, not wrong. IllegalOffset: the queue does
        not reach so far, or it is done already.
        """
        for queue, queue_offset, epoch in wanted:
            cursor = self._cursors.get(queue)
            if cursor is None or not cursor.is_redirected or epoch != cursor.epoch:
                continue
            reached = self._reached(queue, cursor)
            if not cursor.done <= queue_offset <= reached:
                raise IllegalOffset(
                    f"queue {queue.queue_id} of {queue.topic} cannot go on at {queue_offset}: "
                    f"it is done up to {cursor.done} and ends at {reached}"
                )
            cursor.is_redirected = False
            now_s = asyncio.get_running_loop().time()
            cursor.stays_until_s = now_s + _STAYS_S
            cursor.has_in_hand(queue_offset, now_s)
            self._ready[queue] = None
        self._wake.set()

    def released(self, epochs: Mapping[Queue, int | None]) -> list[Queue]:
        """Returns the queues that were the member's to release, under these epochs; None: under
        any. The release of an earlier epoch is stale: the queue was assigned again since.
        """
        found = [
            queue
            for queue, epoch in epochs.items()
            if (cursor := self._leaving.get(queue)) and cursor.is_released_by(epoch)
        ]
        for queue in found:
            del self._leaving[queue]
        return found

    # -- to the client ----------------------------------------------------------------------------

    async def next(self) -> Assigned | Delivered | Redirected:
        """Waits for the next response. Raises the error that `end` was given."""
        while True:
            # Before anything is looked at: what comes from here on wakes.
            self._wake.clear()
            if self._error is not None:
                raise self._error
            if self._is_assignment_due and not self._is_waiting:
                return await self._assignment()
            while self._ready and self._pause is None and not self._is_assignment_due:
                queue = self._next_queue()
                del self._ready[queue]
                delivered = self._try_to_deliver(queue, self._cursors[queue])
                if delivered is not None:
                    self._deliveries += 1
                    return delivered
                # A filter may look at much and find nothing: others get their turn.
                await asyncio.sleep(0)
            await self._wake.wait()

    def _next_queue(self) -> Queue:
        """The queue to deliver next, of those that may have messages."""
        if not self._ranks or self._deliveries % _FAIR_EACH == _FAIR_EACH - 1:
            return next(iter(self._ready))
        # The first one of those with the best rank.
        return min(self._ready, key=lambda queue: self._ranks.get(queue, 0))

    async def _assignment(self) -> Assigned:
        self._is_assignment_due = False
        generation, ranks, cursors = self._generation, dict(self._ranks), dict(self._cursors)
        for cursor in cursors.values():
            cursor.tell()
        for cursor in self._leaving.values():
            cursor.is_told_of_end = True
        untold = [queue for queue, one in self._leaving.items() if one.told_epoch is None]
        if untold:
            self._on_untold(self, dict.fromkeys(untold))
        # A cursor that is replaced meanwhile makes another assignment due.
        positions = await in_turns(
            Position(queue, cursor.next_offset, cursor.epoch) for queue, cursor in cursors.items()
        )
        return Assigned(generation, positions, ranks)

    def _try_to_deliver(self, queue: Queue, cursor: Cursor) -> Delivered | Redirected | None:
        try:
            return self._deliver(queue, cursor)
        except Rebuilding:
            self._aside.add(queue)
            return None
        except (MessagesDamaged, QueueDamaged):
            return self._evade(queue, cursor)

    def _deliver(self, queue: Queue, cursor: Cursor) -> Delivered | Redirected | None:
        if cursor.is_redirected or queue in self._aside:
            return None
        messages, size_bytes = cursor.cached()
        messages_left = self._limits.messages - messages
        bytes_left = self._limits.size_bytes - size_bytes
        if messages_left <= 0 or bytes_left <= 0:
            return None  # its turn comes with the next progress
        query = Query(
            queue,
            cursor.next_offset,
            self._filters[queue.topic],
            min(self._limits.delivery_bytes, self._allowance.bytes, bytes_left),
            messages_left,
        )
        result = self._fetched_for(queue, cursor)
        if result is None:
            found = self._puller.locate(query)
            place = self._better_place(cursor, self._puller.behind_bytes(found))
            if place is not None:
                cursor.is_redirected, cursor.has_unsent_gap = True, False
                return Redirected(queue, cursor.epoch, cursor.next_offset, place)
            result = self._puller.load_warm(query, found)
            if result is None:
                self._fetch(query)
                return None
        return self._took(queue, cursor, result)

    def _took(self, queue: Queue, cursor: Cursor, result: ReadResult) -> Delivered | None:
        self._aside.worked(queue)
        match result.status:
            case Status.FOUND:
                return self._found(queue, cursor, result)
            case Status.NOTHING_MATCHED:
                cursor.next_offset = result.next_offset
                cursor.has_unsent_gap = True
                self._ready[queue] = None
            case Status.TOO_SMALL | Status.TOO_LARGE:
                # Retention was faster, or the topic is a new one: go on where there is something.
                cursor.next_offset = (
                    result.start if result.status == Status.TOO_SMALL else result.end
                )
                cursor.done = min(cursor.done, cursor.next_offset)
                cursor.has_unsent_gap = True
                self._ready[queue] = None
            case _ if cursor.has_unsent_gap:
                cursor.has_unsent_gap = False
                return Delivered(queue, cursor.epoch, result)
        return None

    def _found(self, queue: Queue, cursor: Cursor, result: ReadResult) -> Delivered:
        cursor.next_offset = result.next_offset
        cursor.has_unsent_gap = False
        count = sum(run.message_count for run in result.runs)
        size_bytes = sum(len(run.frames) for run in result.runs)
        now_s = asyncio.get_running_loop().time()
        cursor.add_sent(Sent(result.next_offset, count, size_bytes), now_s)
        if result.next_offset < result.end:
            self._ready[queue] = None
        return Delivered(queue, cursor.epoch, result)

    # -- what is far behind -----------------------------------------------------------------------

    def _better_place(self, cursor: Cursor, behind_bytes: int) -> Peer | None:
        if self._replicas is None or self._ranks or not behind_bytes:
            return None  # priorities are kept by this stream alone
        if cursor.stays_until_s and asyncio.get_running_loop().time() < cursor.stays_until_s:
            return None
        return self._replicas.better_place(Reader(self._zone, behind_bytes))

    def _evade(self, queue: Queue, cursor: Cursor) -> Redirected | None:
        """The next messages are damaged here: another node has them, or this one mends them."""
        now_s = asyncio.get_running_loop().time()
        if self._replicas is not None and not self._ranks and now_s >= cursor.stays_until_s:
            place = self._replicas.other_place()
            if place is not None:
                cursor.is_redirected, cursor.has_unsent_gap = True, False
                return Redirected(queue, cursor.epoch, cursor.next_offset, place)
        self._aside.add(queue)
        return None

    def _fetch(self, query: Query) -> None:
        """The other queues do not wait for it."""
        if query.queue not in self._fetching:
            work = self._fetch_cold(query)
            self._fetching[query.queue] = asyncio.get_running_loop().create_task(work)

    async def _fetch_cold(self, query: Query) -> None:
        queue = query.queue
        try:
            result = await self._puller.load_cold(query)
        except (MessagesDamaged, QueueDamaged, Rebuilding) as error:
            self._fetched[queue] = query.queue_offset, error
        except Exception as error:  # noqa: BLE001 - the caller of `next` gets it
            self._error = self._error or error
        else:
            self._fetched[queue] = query.queue_offset, result
        finally:
            del self._fetching[queue]
        if queue in self._cursors:
            self._ready[queue] = None
        self._wake.set()

    def _fetched_for(self, queue: Queue, cursor: Cursor) -> ReadResult | None:
        """Takes the result of a cold read; drops it if the queue moved. Raises its error."""
        queue_offset, result = self._fetched.pop(queue, (-1, None))
        if queue_offset != cursor.next_offset:
            return None
        if isinstance(result, MqError):
            raise result
        return result

    def _arrived(self, queue: Queue) -> None:
        cursor = self._cursors.get(queue)
        if cursor is not None and not cursor.is_redirected:
            self._is_ready(queue)

    def _is_ready(self, queue: Queue) -> None:
        self._ready[queue] = None
        self._wake.set()
