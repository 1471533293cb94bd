"""Messages that were delivered together, as one object.

A batch has the bytes as they were delivered and the places of its messages in them; objects are
made of those that are asked for. Which messages can be read, and pass the filter, was decided when
the batch was taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Self, overload

from mq.client.decode import Decoder, Runs
from mq.client.messages import QueueRef, ReceivedMessage

if TYPE_CHECKING:
    import pyarrow as pa


class MessageBatch(Sequence[ReceivedMessage]):
    """Messages of one queue, in its order, that came in one delivery.

    A sequence of ReceivedMessage. `bodies` are all bodies, as they were sent; `offsets` the queue
    offsets; `ack` says that all messages are done. Keeping a batch keeps the bytes of its delivery.
    """

    def __init__(
        self,
        queue: QueueRef,
        runs: Runs,
        start: int,
        end: int,
        decoder: Decoder,
        messages: list[ReceivedMessage] | None = None,
        rows: Sequence[int] | None = None,
    ) -> None:
        """The rows [start, end), without those that are filtered or unreadable; `messages` if they
        are made already, and their `rows` if those are not all.
        """
        self.queue = queue
        self._runs = runs
        self._start, self._end = start, end
        self._decoder = decoder
        self._acknowledge: Callable[[], None] | None = None
        self._messages = messages
        # The rows of the messages.
        self._rows: Sequence[int] = range(start, end) if rows is None else rows
        if messages is None and not decoder.is_plain(queue, runs):
            found = list(zip(self._rows, self._make(), strict=True))
            self._rows = [row for row, message in found if message is not None]
            self._messages = [message for _, message in found if message is not None]

    def _make(self) -> list[ReceivedMessage | None]:
        return self._decoder.messages(self.queue, self._runs, self._start, self._end)

    # For users

    @property
    def topic(self) -> str:
        return self.queue.topic

    @property
    def messages(self) -> list[ReceivedMessage]:
        if self._messages is None:
            self._messages = [one for one in self._make() if one is not None]
        return self._messages

    @property
    def bodies(self) -> list[bytes]:
        if self._messages is not None:
            return [one.body for one in self._messages]
        return self._runs.bodies(self._start, self._end)

    @property
    def offsets(self) -> Sequence[int]:
        """The queue offset of each message."""
        if isinstance(self._rows, range):
            return self._runs.queue_offsets(self._start, self._end)
        return [self._runs.queue_offset(row) for row in self._rows]

    def ack(self) -> None:
        """All messages are done, as by `Consumer.done`."""
        if self._acknowledge is not None:
            self._acknowledge()

    def acknowledged_by(self, acknowledge: Callable[[], None]) -> Self:
        """The consumer that gives it out says what `ack` does."""
        self._acknowledge = acknowledge
        return self

    @property
    def rows(self) -> Sequence[int]:
        """The places of the messages in their delivery."""
        return self._rows

    def part(self, start: int, end: int) -> MessageBatch:
        """The messages [start, end), of which there is one at least."""
        messages = None if self._messages is None else self._messages[start:end]
        return self._copy(self._rows[start:end], messages)

    def next_attempt(self) -> MessageBatch:
        """The same messages as new objects, with one more attempt."""
        again = [replace(one, attempt=one.attempt + 1) for one in self.messages]
        return self._copy(self._rows, again)

    def _copy(self, rows: Sequence[int], messages: list[ReceivedMessage] | None) -> MessageBatch:
        start, end = rows[0], rows[-1] + 1
        return MessageBatch(self.queue, self._runs, start, end, self._decoder, messages, rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return iter(self.messages)

    @overload
    def __getitem__(self, at: int) -> ReceivedMessage: ...
    @overload
    def __getitem__(self, at: slice) -> list[ReceivedMessage]: ...
    def __getitem__(self, at: int | slice) -> ReceivedMessage | list[ReceivedMessage]:
        return self.messages[at]

    def __repr__(self) -> str:
        return f"<MessageBatch of {len(self)} messages of {self.queue}>"

    def to_arrow(self, *, with_properties: bool = False) -> pa.RecordBatch:
        """The messages as columns, see docs/ARROW.md. Needs `mq[arrow]`."""
        from mq.client.arrow.polling import joined_columns  # noqa: PLC0415 # an extra

        return joined_columns([self], with_properties=with_properties)

    @property
    def runs(self) -> Runs:
        """Its delivery, for readers of whole columns."""
        return self._runs
