"""What each broker set has to hear of the queues that a consumer has in hand: how far it is, where
it wants to go, what it lets go of.

Pure; `PrefetchBuffer` has the lock. Said once: what was said is forgotten with the stream on which
it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from mq.client.messages import QueueRef
from mq.wire.v1 import consumer_pb2 as wire
from mq.wire.v1.consumer_pb2 import QueueId, QueuePosition, SubscribeRequest

if TYPE_CHECKING:
    from mq.client.consumer.prefetch import PrefetchQueue


class OnReport(Protocol):
    def __call__(self, broker_set: str, *, is_urgent: bool) -> None: ...


class Released(NamedTuple):
    """What was let go of on this stream."""

    epoch: int
    done_to: int


class _OfSet:
    __slots__ = ("dirty", "is_asked", "released")

    def __init__(self) -> None:
        self.dirty: dict[PrefetchQueue, None] = {}
        self.released: dict[QueueRef, Released] = {}
        # Somebody was asked to tell it, and has not done so yet.
        self.is_asked = False


class Reports:
    def __init__(self, on_report: OnReport) -> None:
        """`on_report` is called when a set should hear something: at once, or soon."""
        self._on_report = on_report
        self._sets: dict[str, _OfSet] = {}

    def _of(self, broker_set: str) -> _OfSet:
        found = self._sets.get(broker_set)
        if found is None:
            found = self._sets[broker_set] = _OfSet()
        return found

    def begin(self, broker_set: str) -> None:
        """A new stream: the set knows nothing of the last one."""
        self._of(broker_set).released.clear()

    def take_released(self, ref: QueueRef) -> Released | None:
        """The queue comes again: what was said when it was let go of."""
        return self._of(ref.broker_set).released.pop(ref, None)

    def unheard(self, broker_set: str) -> dict[QueueRef, Released]:
        """Once: what was let go of on the last stream. The set may not have heard of it."""
        mine = self._of(broker_set)
        found, mine.released = mine.released, {}
        return found

    def note(self, queue: PrefetchQueue, *, is_urgent: bool = False) -> None:
        if queue.is_noted and not is_urgent:
            return
        queue.is_noted = True
        broker_set = queue.ref.broker_set
        mine = self._sets.get(broker_set) or self._of(broker_set)
        mine.dirty[queue] = None
        if is_urgent or not mine.is_asked:
            mine.is_asked = True
            self._on_report(broker_set, is_urgent=is_urgent)

    def outgoing(
        self, broker_set: str, held: dict[QueueRef, PrefetchQueue]
    ) -> list[SubscribeRequest]:
        """In the order in which to say it. Queues that are let go of are taken out of `held`."""
        mine = self._of(broker_set)
        dirty, mine.dirty = mine.dirty, {}
        mine.is_asked = False
        seek, progress, released = wire.Seek(), wire.Progress(), wire.Released()
        for queue in dirty:
            queue.is_noted = False
            if queue.sought is not None and queue.sent_seek is None:
                queue.sent_seek = queue.sought
                seek.positions.append(_position(queue.ref, queue.sought))
            elif queue.sought is None and queue.reportable != queue.reported:
                progress.positions.append(_position(queue.ref, queue.report(), queue.epoch))
            # One that was dropped may have a successor.
            is_held = held.get(queue.ref) is queue
            if queue.is_leaving and not queue.running and is_held:
                released.queues.append(QueueId(topic=queue.ref.topic, queue_id=queue.ref.queue_id))
                mine.released[queue.ref] = Released(queue.epoch, queue.progress.done_to)
                del held[queue.ref]
        requests = [
            SubscribeRequest(seek=seek) if seek.positions else None,
            SubscribeRequest(progress=progress) if progress.positions else None,
            SubscribeRequest(released=released) if released.queues else None,
        ]
        return [one for one in requests if one is not None]

    def drop(self, broker_set: str) -> None:
        """Nobody is told any more."""
        self._sets.pop(broker_set, None)


def _position(ref: QueueRef, queue_offset: int, epoch: int = 0) -> QueuePosition:
    return QueuePosition(
        topic=ref.topic, queue_id=ref.queue_id, queue_offset=queue_offset, epoch=epoch
    )
