"""The consumer that is polled for messages.

With `auto_commit` a message counts as done when the next poll begins, so that a crash repeats the
messages of the last one and loses none. Offsets are reported in the background, in order; `commit`
makes them durable.

The messages of the consumer without asyncio take no turn of the background loop: the thread that
polls takes them from the buffer that the streams fill (`ThreadedConsumer`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from mq.client.batches import MessageBatch
from mq.client.consumer.group_session import JOIN_S, LOOK_AT_TROUBLE_S, GroupSession
from mq.client.consumer.options import ConsumerOptions, Start
from mq.client.consumer.prefetch import PrefetchBuffer
from mq.client.consumer.prefetch_queue import InFlight
from mq.client.consumer.retries import FailurePolicy, Nack
from mq.client.decode import Decoder
from mq.client.lifecycle import AsyncClient, Background, SyncClient
from mq.client.messages import QueueRef, ReceivedMessage
from mq.client.public import arguments_of, renamed
from mq.errors import MqError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class PollOptions(ConsumerOptions):
    auto_commit: bool = True


class Consumer(AsyncClient):
    """Joins its group when it is first asked for something.

    >>> async def read() -> None:
    ...     async with Consumer(servers, "readers", "greetings", start="earliest") as consumer:
    ...         for message in await consumer.poll(timeout_s=10):
    ...             print(message.queue_offset, message.body)
    >>> asyncio.run(read())
    0 b'hello'
    1 b'world'

    `subscriptions` is a topic, some topics, or topics with filters: {"orders": "paid || shipped",
    "returns": Sql("amount > 100")}. All members of a group must have the same. `start` says where
    to begin in a topic of which the group has no offset yet: "latest", "earliest", or a time in
    milliseconds. In `mode` "ordered" a queue is not given to another member before this one has let
    go of it, also when a broker fails; in "broadcast" every member gets all messages, and offsets
    are kept here: in memory, or in `offsets_file`. After a `with` block that ends with an exception
    the messages of the last poll are not done.
    """

    @arguments_of(PollOptions)
    def __init__(self, options: PollOptions) -> None:
        self._session = GroupSession(options.connect(), options)
        self._polled = PolledMessages(self._session.buffer)
        self._failures = FailurePolicy(self._session)
        self._auto_commit = options.auto_commit

    # Messages

    @renamed(messages_max="max_messages")
    async def poll(
        self, max_messages: int = 32, timeout_s: float | None = 1.0
    ) -> list[ReceivedMessage]:
        """Messages that are there, or come first within the time. With auto_commit, all messages
        that were polled before are done. Raises the error that ended the consumer, such as
        SubscriptionMismatch; and Unreachable or NoLeader if the group was never joined and could
        not be in 5 s: the attempts go on, so that a later poll may succeed.
        """
        return _messages(await self._poll(max_messages, timeout_s))

    async def poll_batch(
        self, max_messages: int = 1_000, timeout_s: float | None = 1.0
    ) -> MessageBatch | None:
        """As `poll`, but messages of one queue that were delivered together, as one object: see
        `MessageBatch`. None if no messages come within the time.
        """
        taken = await self._poll(max_messages, timeout_s, ranges_max=1)
        return self._polled.batch(taken[0], self._session.decoder) if taken else None

    async def poll_arrow(
        self,
        max_messages: int = 16_384,
        timeout_s: float | None = 1.0,
        *,
        with_properties: bool = False,
    ) -> pa.RecordBatch:
        """As `poll`, but all messages in one Arrow record batch, whose columns docs/ARROW.md lists;
        it is empty if none come within the time. The consumer holds `cache_messages` at most: with
        more of them batches are larger. Needs `mq[arrow]`.
        """
        from mq.client.arrow.polling import joined_columns  # noqa: PLC0415 # an extra

        taken = await self._poll(max_messages, timeout_s)
        # Not on a thread: it would wait for the interpreter, which the loop needs to receive, after
        # every call of pyarrow.
        batches = [self._polled.batch(one, self._session.decoder) for one in taken]
        return joined_columns(batches, with_properties=with_properties)

    async def _poll(
        self, max_messages: int, timeout_s: float | None, ranges_max: int | None = None
    ) -> list[InFlight]:
        self._session.check_open()
        await self._session.start()
        # A caller that finds messages each time must let the streams run.
        await asyncio.sleep(0)
        found: list[InFlight] = []
        with self._polling():
            for wait_s in self._waits(timeout_s):
                if found := await self._session.take(max_messages, wait_s, ranges_max):
                    break
        self._polled.add(found)
        return found

    @contextlib.contextmanager
    def _polling(self) -> Iterator[None]:
        """Around the takes of one poll."""
        if self._auto_commit:
            self._polled.all_done()
        try:
            yield
        except MqError:
            self._session.told()
            raise

    def _waits(self, timeout_s: float | None) -> Iterator[float | None]:
        """The waits of the takes of one poll. Until the group is joined, each is short and is
        preceded by a look at the reason, which is raised.
        """
        session, deadline_s = self._session, time.monotonic() + (timeout_s or 0.0)
        while not session.is_joined:
            session.raise_trouble()
            left_s = math.inf if timeout_s is None else deadline_s - time.monotonic()
            yield max(0.0, min(left_s, LOOK_AT_TROUBLE_S))
            if session.buffer.is_stopped or left_s <= LOOK_AT_TROUBLE_S:
                return
        yield None if timeout_s is None else max(0.0, deadline_s - time.monotonic())

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Endless, until the consumer is closed."""
        return self

    async def __anext__(self) -> ReceivedMessage:
        found = [] if self._session.buffer.is_stopped else await self.poll(1, None)
        if not found:
            raise StopAsyncIteration
        return found[0]

    def done(self, *messages: ReceivedMessage) -> None:
        """The messages are done, in any order. The group's offset passes them when all messages
        before them are done as well.
        """
        self._polled.done(messages)

    def nack(
        self, message: ReceivedMessage, delay_s: float | None = None, reason: str = ""
    ) -> None:
        """The message has failed: it is delivered again after `delay_s`, or when its next attempt
        is due, to any member; after too many attempts it is a dead letter. In ordered and broadcast
        mode it is delivered again here. Sent in the background; `commit` waits for it.
        """
        self._failures.failed(self._polled.take_back([message]), Nack(reason, delay_s=delay_s))

    async def commit(self, messages: Iterable[ReceivedMessage] | None = None) -> None:
        """These messages are done, or all that were polled; durable when it returns. commit([])
        makes earlier `done` durable. Raises NotAssigned if another member has a queue now.
        """
        if messages is None:
            self._polled.all_done()
        else:
            self._polled.done(messages)
        await self._session.commit()

    # Places

    @property
    def assignment(self) -> set[QueueRef]:
        """The queues that this member has now; changes when members come and go."""
        return self._session.buffer.assignment

    async def seek(
        self, topic: str, queue_id: int, queue_offset: int, broker_set: str = ""
    ) -> None:
        """Continues there; messages of the queue that were polled before are void. Raises
        NotAssigned, or IllegalOffset behind the end. The broker set may be left out if only one has
        the topic.
        """
        await self._session.joined(JOIN_S)
        ref = self._session.resolve(topic, queue_id, broker_set)
        await self._session.seek({ref: queue_offset})

    async def seek_to_earliest(self, topic: str | None = None) -> None:
        """All assigned queues of the topics of this consumer, or of one topic."""
        await self._seek_to("earliest", topic)

    async def seek_to_latest(self, topic: str | None = None) -> None:
        """Behind the last message."""
        await self._seek_to("latest", topic)

    async def seek_to_time(self, at_ms: int, topic: str | None = None) -> None:
        """The first message that was stored at this time or later."""
        await self._seek_to(at_ms, topic)

    async def _seek_to(self, to: Start, topic: str | None) -> None:
        await self._session.joined(JOIN_S)
        await self._session.seek_to(to, topic)

    def pause(self, *queues: QueueRef | tuple[str, int]) -> None:
        """Polls return no messages of these queues; without arguments, of all, also of those that
        are assigned later. A pair of topic and queue id is enough if only one broker set has the
        topic.
        """
        self._session.buffer.pause(self._refs(queues))

    def resume(self, *queues: QueueRef | tuple[str, int]) -> None:
        self._session.buffer.resume(self._refs(queues))

    def _refs(self, queues: Iterable[QueueRef | tuple[str, int]]) -> list[QueueRef] | None:
        return [self._session.resolve(*one) for one in queues] or None

    @property
    def unreadable_messages(self) -> int:
        """The number of messages that could not be read and were skipped; the log names them."""
        return self._session.decoder.unreadable_messages

    # Ending

    async def close(self) -> None:
        """With auto_commit all polled messages are done. Commits, and leaves the group: other
        members continue at once. Raises the error that ended the consumer, unless it was raised
        before.
        """
        await self._exit(is_orderly=True)

    async def _exit(self, *, is_orderly: bool) -> None:
        if is_orderly and self._auto_commit:
            self._polled.all_done()
        await self._session.close()
        if is_orderly:
            self._session.raise_untold()


def _messages(taken: Iterable[InFlight]) -> list[ReceivedMessage]:
    return [message for one in taken for message in one.messages]


class _Part(NamedTuple):
    """The messages [start, end) of those that were taken together."""

    taken: InFlight
    start: int
    end: int


class PolledMessages:
    """Messages that `poll` has returned and that are not done, for both faces. May be used from
    any thread.
    """

    def __init__(self, buffer: PrefetchBuffer) -> None:
        self._buffer = buffer
        self._lock = threading.Lock()
        # By their places, not by the objects: users may hand back a copy. The parts of a queue are
        # disjoint, and in the order of the queue.
        self._open: dict[QueueRef, list[_Part]] = {}

    def add(self, taken: Iterable[InFlight]) -> None:
        with self._lock:
            for one in taken:
                parts = self._open.setdefault(one.queue.ref, [])
                if parts and parts[0].taken.is_void:
                    # The queue was moved: what was polled before may come again.
                    self._buffer.give_up(_in_flight(parts))
                    parts.clear()
                insort(parts, _Part(one, 0, len(one.messages)), key=_queue_offset)

    def batch(self, taken: InFlight, decoder: Decoder) -> MessageBatch:
        """The messages as one object; its `ack` finishes those of them that are not done."""
        return taken.to_batch(decoder).acknowledged_by(lambda: self._ack(taken))

    def _ack(self, taken: InFlight) -> None:
        with self._lock:
            parts = self._open.get(taken.queue.ref, [])
            own = [one for one in parts if one.taken is taken]
            parts[:] = [one for one in parts if one.taken is not taken]
            self._buffer.done(_in_flight(own))

    def done(self, messages: Iterable[ReceivedMessage]) -> None:
        """Messages that are done already, or void, have no effect."""
        with self._lock:
            self._buffer.done(self._pop(messages))

    def take_back(self, messages: Iterable[ReceivedMessage]) -> list[InFlight]:
        """Returns the messages that are not done, for the caller to finish."""
        with self._lock:
            return self._pop(messages)

    def _pop(self, messages: Iterable[ReceivedMessage]) -> list[InFlight]:
        found = [self._pop_one(one) for one in messages]
        return [one for one in found if one is not None]

    def _pop_one(self, message: ReceivedMessage) -> InFlight | None:
        parts = self._open.get(message.queue)
        if not parts:
            return None
        number, offset = 0, message.queue_offset
        if len(parts) > 1:
            number = max(0, bisect_right(parts, offset, key=_queue_offset) - 1)
        taken, start, end = parts[number]
        found = taken.messages if taken.batch is None else taken.batch.messages
        # Mostly they are neighbours, and are done in their order.
        at = start + offset - found[start].queue_offset
        if not start <= at < end or found[at] is not message:
            at = bisect_left(found, offset, start, end, key=lambda one: one.queue_offset)
            # A copy; but not of a message that stood there before the topic was created again.
            if at == end or found[at].message_id != message.message_id:
                return None
        rest = [_Part(taken, start, at)] if at > start else []
        if at + 1 < end:
            rest.append(_Part(taken, at + 1, end))
        parts[number : number + 1] = rest
        return taken.part(at, at + 1)

    def all_done(self) -> None:
        with self._lock:
            taken, self._open = self._open, {}
            for parts in taken.values():
                self._buffer.done(_in_flight(parts))


def _queue_offset(part: _Part) -> int:
    return part.taken.queue_offset(part.start)


def _in_flight(parts: Iterable[_Part]) -> list[InFlight]:
    return [taken.part(start, end) for taken, start, end in parts]


class ThreadedConsumer(Consumer):
    """A consumer that another thread than that of its loop may poll."""

    def poll_here(
        self, background: Background, max_messages: int, timeout_s: float | None
    ) -> list[ReceivedMessage]:
        return _messages(self._poll_here(background, max_messages, timeout_s))

    def poll_batch_here(
        self, background: Background, max_messages: int, timeout_s: float | None
    ) -> MessageBatch | None:
        taken = self._poll_here(background, max_messages, timeout_s, ranges_max=1)
        return self._polled.batch(taken[0], self._session.decoder) if taken else None

    def _poll_here(
        self,
        background: Background,
        max_messages: int,
        timeout_s: float | None,
        ranges_max: int | None = None,
    ) -> list[InFlight]:
        self._session.check_open()
        if not self._session.is_started:
            background.run(self._session.start())
        found: list[InFlight] = []
        with self._polling():
            for wait_s in self._waits(timeout_s):
                if found := self._session.buffer.wait_take(max_messages, wait_s, ranges_max):
                    break
        self._polled.add(found)
        return found

    @property
    def is_stopped(self) -> bool:
        return self._session.buffer.is_stopped


class SyncPoll(SyncClient[ThreadedConsumer]):
    """The base of the generated consumer."""

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Endless, until the consumer is closed."""
        return self

    def __next__(self) -> ReceivedMessage:
        found = [] if self._client.is_stopped else self._client.poll_here(self._background, 1, None)
        if not found:
            raise StopIteration
        return found[0]
