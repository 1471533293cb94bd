"""Reports to a broker set about the queues of a consumer.

`SetReports` collects seeks, progress and releases of one set; `PrefetchBuffer` calls it under its
lock. `ReportSignal` wakes the stream that sends them. A report is made once on a stream; a new
stream starts with the positions of all queues, and reports are made anew.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mq.client.cluster.retry import is_set
from mq.client.messages import QueueRef
from mq.wire.v1 import consumer_pb2 as wire
from mq.wire.v1.consumer_pb2 import QueueId, QueuePosition, SubscribeRequest

if TYPE_CHECKING:
    from mq.client.consumer.prefetch_queue import PrefetchQueue

# A report that is not urgent waits so long for more progress.
REPORT_S = 0.1


class Signal(Protocol):
    def tell(self, *, is_urgent: bool) -> None:
        """Called under the lock of the buffer, on any thread: must not call back."""
        ...


class ReportSignal:
    """Wakes the writer of a stream, soon or at once. Made on the loop of the stream; `tell` may be
    called on any thread.
    """

    def __init__(self) -> None:
        self._some, self._urgent = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def tell(self, *, is_urgent: bool) -> None:
        # A closed loop has no stream to wake.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._set_urgent if is_urgent else self._some.set)

    def _set_urgent(self) -> None:
        self._some.set()
        self._urgent.set()

    async def wait(self, timeout_s: float) -> bool:
        """Returns True when a report is due, after more progress had its time to arrive; False
        after the time-out.
        """
        if not await is_set(self._some, timeout_s):
            return False
        await is_set(self._urgent, REPORT_S)
        self._some.clear()
        self._urgent.clear()
        return True


class Released(NamedTuple):
    """The state of a queue when its release was reported."""

    epoch: int
    done_to: int


class SetReports:
    """The pending reports of one broker set."""

    def __init__(self, signal: Signal) -> None:
        self._signal = signal
        # Queues with something to report, in the order in which it came up.
        self._pending: dict[PrefetchQueue, None] = {}
        # True from a signal to the next `outgoing`: one is enough for all that is not urgent.
        self._is_signalled = False
        # Queues whose release was reported on the current stream.
        self._released: dict[QueueRef, Released] = {}

    def note(self, queue: PrefetchQueue, *, is_urgent: bool = False) -> None:
        """The queue has something to report; what that is, `outgoing` finds out."""
        if queue in self._pending and not is_urgent:
            return
        self._pending[queue] = None
        if is_urgent or not self._is_signalled:
            self._is_signalled = True
            self._signal.tell(is_urgent=is_urgent)

    def is_pending(self, queue: PrefetchQueue) -> bool:
        """The next `outgoing` reports what there is of the queue then."""
        return queue in self._pending

    def outgoing(self) -> tuple[list[SubscribeRequest], list[QueueRef]]:
        """The requests in the order in which to send them, and the queues that they release. A
        queue that leaves is released as soon as no handler works on it.
        """
        pending, self._pending = self._pending, {}
        self._is_signalled = False
        seek, progress, released = wire.Seek(), wire.Progress(), wire.Released()
        gone: list[QueueRef] = []
        for queue in pending:
            if (sought := queue.next_seek()) is not None:
                seek.positions.append(position(queue.ref, sought))
            if (done_to := queue.next_progress()) is not None:
                progress.positions.append(position(queue.ref, done_to, queue.epoch))
            if queue.is_leaving and not queue.running:
                released.queues.append(QueueId(topic=queue.ref.topic, queue_id=queue.ref.queue_id))
                self._released[queue.ref] = Released(queue.epoch, queue.done_to)
                gone.append(queue.ref)
        requests = []
        if seek.positions:
            requests.append(SubscribeRequest(seek=seek))
        if progress.positions:
            requests.append(SubscribeRequest(progress=progress))
        if released.queues:
            requests.append(SubscribeRequest(released=released))
        return requests, gone

    # Releases

    def take_released(self, ref: QueueRef) -> Released | None:
        """The queue is assigned again: its state when it was released on this stream."""
        return self._released.pop(ref, None)

    def take_all_released(self) -> dict[QueueRef, Released]:
        """The releases of a stream that is over: the broker may not have heard of them."""
        released, self._released = self._released, {}
        return released


def position(ref: QueueRef, queue_offset: int, epoch: int = 0) -> QueuePosition:
    return QueuePosition(
        topic=ref.topic, queue_id=ref.queue_id, queue_offset=queue_offset, epoch=epoch
    )
