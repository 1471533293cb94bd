"""The public producers. Retries, routes and streams belong to their sender, in `sender`.

The producer without asyncio is generated but for `send`, `send_async` and `send_one_way`, in
`SyncSend`: a thread that sends a message does not wait for a turn of the background loop. It adds
the message to the accumulator, from which the sender, on that loop, takes it.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from mq import names
from mq.client.encode import encode_message, sole_body
from mq.client.lifecycle import AsyncClient, StartedClient
from mq.client.messages import Message, SendResult
from mq.client.producer.batching import AddResult
from mq.client.producer.bulk import BulkSend, SendResults
from mq.client.producer.queues import ResultFuture, SendFuture
from mq.client.producer.sender import ProducerOptions, Sender
from mq.client.public import arguments_of
from mq.errors import ClientClosed, IllegalRequest, Unreachable
from mq.wire.v1.producer_pb2 import RecallRequest

if TYPE_CHECKING:
    from mq.client.arrow.sending import ArrowData, ArrowSendResult

# `send` waits a little longer than the time-out of its message, for the error with the reason.
GRACE_S = 0.3


class Producer(AsyncClient):
    """Sends messages.

    >>> import asyncio
    >>> from mq.client.aio import Message, Producer
    >>> async def main():
    ...     async with Producer("127.0.0.1:8081") as producer:
    ...         result = await producer.send("orders", Message(b"paid", tag="paid"))
    ...         print(result.status)
    ...         future = await producer.send_async("orders", "shipped")
    ...         result = await future
    ...         print(result.queue_offset >= 0)
    >>> asyncio.run(main())
    SEND_OK
    True

    `ack`: "quorum", an answer comes when a majority of the brokers has the message on disk;
    "leader", when the leader has it, which is sooner and is lost with that disk; "none", never.
    `timeout_s`: a message fails when there is no answer for so long. The wait behind others that
    are being answered does not count, except for `send`, which returns in time.
    `retries`: how often a batch is sent again after an answer that may be another one next time.
    While no leader is reached it is tried again for all of `timeout_s`.
    `linger_ms`, `batch_bytes`: messages of `send_async` wait so long for others, until a batch has
    so many bytes. While an answer is due the next batch grows by itself. `send` does not wait.
    `compress_above_bytes`: longer bodies are compressed by lz4.
    `idempotent`: batches are numbered, and one that is sent again is stored once. Without it a
    retry can store it twice. `producer_id` is made up when it is not given. Never use one for two
    producers, or for two runs of a program: their batches would be taken for repetitions.
    `buffer_bytes`: what may wait for an answer; a send beyond that waits.
    `in_flight_max`: requests without an answer. A queue has one batch under way at a time, so that
    what is retried is not overtaken: messages of one queue stand in the order they were sent.
    `zone`: of brokers that were not tried yet, those of this zone are asked first.

    A topic may have queues in several broker sets. Messages with an ordering key go to one queue of
    one set, and wait for it. Others are balanced over all queues, and avoid a set that is slow or
    gone; what may be stored there already waits for its answer. A queue that is chosen by
    `queue_id` needs its `broker_set` when more than one has the topic.

    It belongs to the event loop on which it is used first.
    """

    @arguments_of(ProducerOptions)
    def __init__(self, options: ProducerOptions) -> None:
        self._options = options
        self._connection = options.connect()
        self._core: Sender | None = None
        self._is_closed = False

    async def start(self) -> None:
        """From now on it belongs to the running loop. Otherwise its first use starts it."""
        self._started()

    async def _enter(self) -> None:
        await self.start()

    async def send(
        self,
        topic: str,
        message: Message | bytes | str,
        *,
        queue_id: int | None = None,
        broker_set: str = "",
        timeout_s: float | None = None,
    ) -> SendResult:
        """Returns when the message is stored, as safely as `ack` says.

        >>> async def main():
        ...     async with Producer("127.0.0.1:8081") as producer:
        ...         message = Message(b"paid", ordering_key="customer-3")
        ...         result = await producer.send("orders", message)
        ...         print(result.topic, result.status, result.is_duplicate)
        >>> asyncio.run(main())
        orders SEND_OK False
        """
        timeout_s = self._options.timeout_s if timeout_s is None else timeout_s
        future: asyncio.Future[SendResult] = self._started().loop.create_future()
        try:
            async with asyncio.timeout(timeout_s + GRACE_S):
                await self._add(
                    topic, message, queue_id, broker_set, future, timeout_s, is_urgent=True
                )
                return await future
        except TimeoutError:
            raise too_late(topic, timeout_s) from None

    async def send_batch(
        self,
        topic: str,
        messages: Sequence[Message | bytes | str],
        *,
        queue_id: int | None = None,
        broker_set: str = "",
    ) -> list[SendResult]:
        """All of them, or none: one batch, when their ordering keys lead to one queue. Keys that
        lead to several make a batch for each, and each of those stands or fails alone.

        >>> async def main():
        ...     async with Producer("127.0.0.1:8081") as producer:
        ...         first, second = await producer.send_batch("orders", ["packed", "shipped"])
        ...         print(second.queue_offset - first.queue_offset)
        >>> asyncio.run(main())
        1
        """
        core, timeout_s = self._started(), self._options.timeout_s
        futures: list[asyncio.Future[SendResult]] = [core.loop.create_future() for _ in messages]
        if messages:
            encoded = [core.encode(message) for message in messages]
            args = topic, encoded, queue_id, futures, timeout_s, broker_set
            await core.added(topic, functools.partial(core.accumulator.add_batch, *args), timeout_s)
        return await asyncio.gather(*futures)

    async def send_many(
        self,
        topic: str,
        messages: Sequence[Message | bytes | str],
        *,
        queue_id: int | None = None,
        broker_set: str = "",
        return_exceptions: bool = False,
    ) -> SendResults:
        """Sends any number of messages as fast as it can, and returns when all of them are stored.
        They are batched and spread over the queues as those of `send_async`; messages of one
        ordering key keep their order. Bodies of bytes are several times as fast as other messages.

        Each message stands or fails alone, one that is illegal too; the others are sent. When all
        are answered, raises the error of the first one that failed, with its index; with
        `return_exceptions` it returns, and the `errors` of the results tell what failed.

        >>> async def main():
        ...     async with Producer("127.0.0.1:8081") as producer:
        ...         results = await producer.send_many("orders", [b"paid"] * 10_000)
        ...         print(len(results), results[-1].status)
        >>> asyncio.run(main())
        10000 SEND_OK
        """
        bulk = BulkSend(self._started(), topic, queue_id, broker_set)
        results = await bulk.send(messages)
        if not return_exceptions:
            results.raise_first()
        return results

    async def send_async(
        self,
        topic: str,
        message: Message | bytes | str,
        *,
        queue_id: int | None = None,
        broker_set: str = "",
    ) -> asyncio.Future[SendResult]:
        """Returns at once, with a future; waits only while the buffer is full, and for the first
        message of a topic until it is known how many queues that has.
        """
        core = self._core or self._started()
        future: asyncio.Future[SendResult] = core.loop.create_future()
        body = message if type(message) is bytes else sole_body(message)
        if body is None or queue_id is not None or not core.add_body(topic, body, future):
            await self._add(topic, message, queue_id, broker_set, future, self._options.timeout_s)
        return future

    async def send_one_way(
        self,
        topic: str,
        message: Message | bytes | str,
        *,
        queue_id: int | None = None,
        broker_set: str = "",
    ) -> None:
        """Like `send_async`, without a future: a failure is only a warning in the log."""
        core = self._core or self._started()
        body = message if type(message) is bytes else sole_body(message)
        if body is None or queue_id is not None or not core.add_body(topic, body, None):
            await self._add(topic, message, queue_id, broker_set, None, self._options.timeout_s)

    async def send_arrow(  # noqa: PLR0913
        self,
        topic: str,
        table: ArrowData,
        *,
        body: str = "body",
        keys: str | None = None,
        tag: str | None = None,
        ordering_key: str | None = None,
        properties: str | None = None,
        born_at: str | None = None,
        timeout_s: float | None = None,
    ) -> ArrowSendResult:
        """Sends each row of a table as a message; needs `mq[arrow]`. `table`: a pyarrow Table or
        RecordBatch, or a data frame that exports Arrow, as those of Polars and pandas do.

        The other arguments name columns. Without one, the column that has the name of the argument
        is taken if it is there, as in a table that `to_arrow` or `poll_arrow` gave. Returns when
        all rows are stored, as safely as `ack` says; when it raises, some may be. Rows of one
        ordering key stay in their order. IllegalRequest names a column of a wrong type, or with
        null bodies; MessageTooLarge.
        """
        from mq.client.arrow.sending import send_arrow  # noqa: PLC0415 # an extra

        names_of_columns = {
            "body": body,
            "keys": keys,
            "tag": tag,
            "ordering_key": ordering_key,
            "properties": properties,
            "born_at": born_at,
        }
        timeout_s = self._options.timeout_s if timeout_s is None else timeout_s
        return await send_arrow(self._started(), topic, table, names_of_columns, timeout_s)

    async def recall(
        self,
        result: SendResult | None = None,
        *,
        topic: str = "",
        message_id: str = "",
        deliver_at_ms: int = 0,
    ) -> None:
        """Takes back a message that waits for its delivery time: what its send returned, or topic,
        id and time of it. When this returns, it will not be delivered.

        MessageNotFound: it is on its topic, was taken back already (perhaps by an attempt of this
        very call, whose answer was lost), or never was.

        >>> async def main():
        ...     async with Producer("127.0.0.1:8081") as producer:
        ...         message = Message(b"cancel if not paid", delay_s=1800)
        ...         await producer.recall(await producer.send("orders", message))
        >>> asyncio.run(main())
        """
        request = recall_request(result, topic, message_id, deliver_at_ms)
        connection = self._started().connection
        owner = await connection.named(names.parse_message_id(request.message_id)[0])
        await owner.call(request, self._options.timeout_s)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Returns when everything that was sent before is stored, or has failed; with ack="none",
        when it was handed over.
        """
        if self._core is not None:
            await self._core.flush(timeout_s)

    async def close(self) -> None:
        """Sends what there is, waits for the answers, and ends. Nothing is lost."""
        self._is_closed = True
        if self._core is not None:
            await self._core.close()

    def _started(self) -> Sender:
        if self._is_closed:
            raise ClientClosed("the producer is closed: make another one")
        if self._core is None:
            self._core = Sender(self._connection, self._options)
        return self._core

    async def _add(
        self,
        topic: str,
        message: Message | bytes | str,
        queue_id: int | None,
        broker_set: str,
        future: ResultFuture | None,
        timeout_s: float,
        *,
        is_urgent: bool = False,
    ) -> None:
        core = self._started()
        args = topic, core.encode(message), queue_id, future, timeout_s, broker_set, is_urgent
        await core.added(topic, functools.partial(core.accumulator.add, *args), timeout_s)


def too_late(topic: str, timeout_s: float) -> Unreachable:
    """The error of a `send` whose message waits behind others that are still answered."""
    return Unreachable(
        f"no answer for a message to {topic} within {timeout_s:g} s: too many were sent before it; "
        "it may still be stored"
    )


def recall_request(
    result: SendResult | None, topic: str, message_id: str, deliver_at_ms: int
) -> RecallRequest:
    """For the result of a send, or its parts. Raises IllegalRequest if the message was not delayed,
    or not enough is known of it.
    """
    if result is not None:
        topic, message_id, deliver_at_ms = result.topic, result.message_id, result.deliver_at_ms
    if not (topic and message_id and deliver_at_ms):
        raise IllegalRequest(
            "to take a message back, its topic, id and deliver_at_ms must be known, as the send "
            "returned them; a message without a delay, or sent with ack other than quorum, cannot "
            "be taken back"
        )
    return RecallRequest(topic=topic, message_id=message_id, deliver_at_ms=deliver_at_ms)


class ThreadedProducer(Producer):
    """A producer that gives threads access to its sender."""

    @property
    def core(self) -> Sender:
        return self._started()


class SyncSend(StartedClient[ThreadedProducer]):
    """The base of the generated producer."""

    def __init__(self, client: ThreadedProducer) -> None:
        super().__init__(client)
        self._core = client.core
        self._accumulator = self._core.accumulator
        self._timeout_s = self._core.options.timeout_s
        self._compress_above_bytes = self._core.options.compress_above_bytes
        self._body_bytes_max = self._core.body_bytes_max

    def send(
        self,
        topic: str,
        message: Message | bytes | str,
        *,
        queue_id: int | None = None,
        broker_set: str = "",
        timeout_s: float | None = None,
    ) -> SendResult:
        """Returns when the message is stored, as safely as `ack` says."""
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        self._background.refuse_own_thread()
        future = SendFuture()
        deadline_s = time.monotonic() + timeout_s + GRACE_S
        try:
            self._add(topic, message, queue_id, broker_set, future, timeout_s, deadline_s)
            return future.result(max(0.0, deadline_s - time.monotonic()))
        except TimeoutError:
            raise too_late(topic, timeout_s) from None

    def send_async(
        self,
        topic: str,
        message: Message | bytes | str,
        *,
        queue_id: int | None = None,
        broker_set: str = "",
    ) -> Future[SendResult]:
        """Returns at once, with a future; waits only while the buffer is full, and for the first
        message of a topic until it is known how many queues that has.
        """
        future = SendFuture()
        if queue_id is not None or not self._add_body(topic, message, future):
            self._add(topic, message, queue_id, broker_set, future, self._timeout_s)
        return future

    def send_one_way(
        self,
        topic: str,
        message: Message | bytes | str,
        *,
        queue_id: int | None = None,
        broker_set: str = "",
    ) -> None:
        """Like `send_async`, without a future: a failure is only a warning in the log."""
        if queue_id is not None or not self._add_body(topic, message, None):
            self._add(topic, message, queue_id, broker_set, None, self._timeout_s)

    def _add_body(
        self, topic: str, message: Message | bytes | str, future: SendFuture | None
    ) -> bool:
        """As `Accumulator.add_body`."""
        body = message if type(message) is bytes else sole_body(message)
        if body is None or len(body) > self._body_bytes_max or self._background.is_forked:
            return False
        born_at_ms = time.time_ns() // 1_000_000
        return self._accumulator.add_body(topic, body, born_at_ms, future, self._timeout_s)

    def _add(
        self,
        topic: str,
        message: Message | bytes | str,
        queue_id: int | None,
        broker_set: str,
        future: ResultFuture | None,
        timeout_s: float,
        deadline_s: float | None = None,
    ) -> None:
        """A message with a deadline does not linger. TimeoutError when the deadline has passed."""
        self._background.check_not_forked()
        encoded = encode_message(message, time.time_ns() // 1_000_000, self._compress_above_bytes)
        urgent = deadline_s is not None
        try:
            result = self._accumulator.add(
                topic, encoded, queue_id, future, timeout_s, broker_set, urgent
            )
        except IllegalRequest:
            result = AddResult.UNROUTED  # by a route that may be stale
        if result is AddResult.WAKE:
            self._background.loop.call_soon_threadsafe(self._core.wake)
        elif result is not AddResult.ADDED:
            args = topic, encoded, queue_id, future, timeout_s, broker_set, urgent
            add = functools.partial(self._accumulator.add, *args)
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            self._background.run(self._core.added(topic, add, timeout_s), left_s)
