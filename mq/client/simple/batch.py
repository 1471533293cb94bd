"""Messages of one receive, as one object.

A response has a run of messages for each lease. `LeasedMessages` is one run or a part of it, which
becomes message objects when they are asked for; `ReceivedMessages` is all that one receive gives
out. Acknowledging either takes no step for each message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, overload

from mq.client.batches import MessageBatch
from mq.client.decode import Decoder, Runs
from mq.client.messages import Lease, QueueRef, ReceivedMessage

if TYPE_CHECKING:
    import pyarrow as pa


class LeasedMessages(MessageBatch):
    """Messages of one lease, without those that are filtered or unreadable."""

    def __init__(
        self, queue: QueueRef, runs: Runs, decoder: Decoder, handle: bytes, attempt: int
    ) -> None:
        self._handle, self._attempt = handle, attempt
        super().__init__(queue, runs, 0, runs.count, decoder)

    def _make(self) -> list[ReceivedMessage | None]:
        return self._decoder.messages(
            self.queue,
            self._runs,
            self._start,
            self._end,
            attempt=self._attempt,
            handle=self._handle,
        )

    @property
    def lease(self) -> Lease:
        return Lease(self.queue.broker_set, self._handle, self.offsets)

    def part(self, start: int, end: int) -> Self:
        """The messages [start, end) of it."""
        messages = None if self._messages is None else self._messages[start:end]
        return self._with(self._rows[start:end], messages)

    def without(self, queue_offsets: Collection[int]) -> Self:
        kept = [at for at, one in enumerate(self.offsets) if one not in queue_offsets]
        return self._with([self._rows[at] for at in kept], [self.messages[at] for at in kept])

    def _with(self, rows: Sequence[int], messages: list[ReceivedMessage] | None) -> Self:
        other = copy(self)
        other._rows, other._messages = rows, messages  # noqa: SLF001
        if isinstance(rows, range):
            other._start, other._end = rows.start, rows.stop  # noqa: SLF001
        return other


class ReceivedMessages(Sequence[ReceivedMessage]):
    """The messages of one receive, of any queues: those of one queue in its order."""

    def __init__(self, parts: Sequence[LeasedMessages]) -> None:
        self.parts = parts

    @cached_property
    def messages(self) -> list[ReceivedMessage]:
        return [message for part in self.parts for message in part.messages]

    @property
    def bodies(self) -> list[bytes]:
        """All bodies, as they were sent."""
        return [body for part in self.parts for body in part.bodies]

    @property
    def leases(self) -> list[Lease]:
        return [part.lease for part in self.parts]

    def to_arrow(self, *, with_properties: bool = False) -> pa.RecordBatch:
        """The messages as columns, see docs/ARROW.md. Needs `mq[arrow]`."""
        from mq.client.arrow.polling import joined_columns  # noqa: PLC0415 # an extra

        return joined_columns(self.parts, with_properties=with_properties)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return iter(self.messages)

    @overload
    def __getitem__(self, at: int) -> ReceivedMessage: ...
    @overload
    def __getitem__(self, at: slice) -> list[ReceivedMessage]: ...
    def __getitem__(self, at: int | slice) -> ReceivedMessage | list[ReceivedMessage]:
        return self.messages[at]

    def __repr__(self) -> str:
        return f"<ReceivedBatch of {len(self)} messages>"


class ReceivedBatch(ReceivedMessages):
    """The messages of one `SimpleConsumer.receive_batch`; it is empty if none came.

    A sequence of ReceivedMessage, of any queues: those of one queue stand in its order. `bodies`
    are all bodies, as they were sent. Keeping a batch keeps the bytes that were received.
    """

    def __init__(
        self,
        parts: Sequence[LeasedMessages],
        acknowledge: Callable[[ReceivedMessages], Coroutine[Any, Any, None]],
    ) -> None:
        super().__init__(parts)
        self._acknowledge = acknowledge

    async def ack(self) -> None:
        """All messages are done, as by `SimpleConsumer.ack`, which also takes a batch."""
        await self._acknowledge(self)
