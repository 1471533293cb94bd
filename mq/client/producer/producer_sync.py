"""The producer for programs without asyncio: threads add messages, the core (see `producer`) runs
on the background thread of `sync`. Adding a message takes no turn of that thread.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

from mq.client.closing import Closing
from mq.client.cluster.connection import Connection
from mq.client.encode import Encoded, delay_field, encode_message
from mq.client.messages import AckName, Message, SendResult
from mq.client.producer.accumulator import NOT_ADDED, Outcome
from mq.client.producer.grouping import common_delay, group_batch, priority_of
from mq.client.producer.lines import Awaited
from mq.client.producer.producer import ProducerCore
from mq.client.producer.producer_settings import GRACE_S, Settings, too_late
from mq.client.producer.recall import recall, recall_request
from mq.client.producer.send_future import SendFuture
from mq.client.sync import background
from mq.errors import IllegalRequest


class Producer(Closing):
    """Sends messages. Any number of threads may use one.

    >>> from mq.client import Message, Producer
    >>> with Producer("127.0.0.1:8081") as producer:
    ...     producer.send("orders", Message(b"paid", tag="paid", keys=["order-7"])).status
    ...     futures = [producer.send_async("orders", f"event {n}") for n in range(3)]
    ...     [future.result().status for future in futures]
    'SEND_OK'
    ['SEND_OK', 'SEND_OK', 'SEND_OK']

    `ack`: "quorum", an answer comes when a majority of the brokers has the message on disk;
    "leader", when the leader has it, which is sooner and is lost with that disk; "none", never.
    `timeout_s`: a message fails when there is no answer for so long. The wait behind others that
    are being answered does not count, except for `send`, which returns in time.
    `retries`: how often a batch is sent again after an answer that may be another one next time.
    While nobody leads or nobody is reached it is tried again for all of `timeout_s`.
    `linger_ms`, `batch_bytes`: messages of `send_async` wait so long for others, until there is so
    much of them. While an answer is due the next batch grows by itself. `send` waits for nothing.
    `compress_above_bytes`: longer bodies are compressed by lz4.
    `idempotent`: batches are numbered, and one that is sent again is stored once. Without it a
    retry can store it twice. `producer_id` is made up when it is not given. Never use one for two
    producers, or for two runs of a program: their batches would be taken for repetitions.
    `buffer_bytes`: what may wait for an answer; who sends more waits.
    `in_flight_max`: requests without an answer. A queue has one batch under way at a time, so that
    what is retried is not overtaken: messages of one queue stand in the order they were sent.
    `zone`: of brokers that were not tried yet, those of this zone are asked first.

    A topic may have queues in several broker sets. Messages with an ordering key go to one queue of
    one set, and wait for it. Others are balanced over all queues, and avoid a set that is slow or
    gone; what may be stored there already waits for its answer. A queue that is chosen by
    `queue_id` needs its `broker_set` when more than one has the topic.

    Callbacks of futures run on the thread that receives answers: they must not wait. A process that
    has clients must not fork others that want some: start those by spawn.
    """

    def __init__(  # noqa: PLR0913 # settings, all of them by name
        self,
        servers: str | Sequence[str] = "127.0.0.1:8081",
        *,
        ack: AckName = "quorum",
        timeout_s: float = 3.0,
        retries: int = 2,
        linger_ms: float = 2,
        batch_bytes: int = 256 << 10,
        compress_above_bytes: int = 4096,
        idempotent: bool = True,
        producer_id: str | None = None,
        buffer_bytes: int = 64 << 20,
        in_flight_max: int = 32,
        zone: str = "",
    ) -> None:
        settings = Settings(
            ack=ack,
            timeout_s=timeout_s,
            retries=retries,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            compress_above_bytes=compress_above_bytes,
            idempotent=idempotent,
            producer_id=producer_id,
            buffer_bytes=buffer_bytes,
            in_flight_max=in_flight_max,
        )
        connection = Connection(servers, zone)
        self._timeout_s = timeout_s
        self._compress_above_bytes = compress_above_bytes
        self._background = background()
        self._core = self._background.run(_make_core(connection, settings))
        self._accumulator = self._core.accumulator
        atexit.register(self.close)

    def send(
        self,
        topic: str,
        message: Message | bytes | str,
        *,
        queue_id: int | None = None,
        broker_set: str = "",
        timeout_s: float | None = None,
    ) -> SendResult:
        """Returns when the message is stored, as safely as `ack` says.

        >>> with Producer("127.0.0.1:8081") as producer:
        ...     result = producer.send("orders", Message(b"paid", ordering_key="customer-3"))
        >>> result.topic, result.status, result.is_duplicate
        ('orders', 'SEND_OK', False)
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        self._background.refuse_own_thread()
        future = SendFuture()
        deadline_s = time.monotonic() + timeout_s + GRACE_S
        try:
            self._add(topic, message, queue_id, broker_set, future, timeout_s, deadline_s)
            return future.result(max(0.0, deadline_s - time.monotonic()))
        except TimeoutError:
            raise too_late(topic, timeout_s) from None

    def send_batch(
        self,
        topic: str,
        messages: Sequence[Message | bytes | str],
        *,
        queue_id: int | None = None,
        broker_set: str = "",
    ) -> list[SendResult]:
        """All of them, or none: one batch, when their ordering keys lead to one queue. Keys that
        lead to several make a batch for each, and each of those stands or fails alone.

        >>> with Producer("127.0.0.1:8081") as producer:
        ...     results = producer.send_batch("orders", ["packed", "shipped"])
        >>> results[1].queue_offset - results[0].queue_offset
        1
        """
        self._background.refuse_own_thread()
        encoded = [self._encode(message) for message in messages]
        delay = common_delay(messages)
        given = [priority_of(message) for message in messages]
        groups = None
        while groups is None:
            try:
                groups = group_batch(
                    self._accumulator, topic, encoded, queue_id, delay, given, broker_set
                )
            except IllegalRequest:
                if not self._background.run(self._core.is_route_newer()):
                    raise
                continue
            if groups is None:
                self._background.run(self._core.prepare(topic, self._timeout_s))
        futures = [SendFuture() for _ in messages]
        for group in groups:
            awaited = [futures[at] for at in group.indices]
            while (outcome := group.add(self._accumulator, awaited, self._timeout_s)) in NOT_ADDED:
                self._make_way(topic, outcome, self._timeout_s)
            self._wake()
        return [future.result() for future in futures]

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
        """Like `send_async`, but nobody hears what became of it, but for a warning in the log."""
        self._add(topic, message, queue_id, broker_set, None, self._timeout_s)

    def recall(
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

        >>> with Producer("127.0.0.1:8081") as producer:
        ...     result = producer.send("orders", Message(b"cancel if not paid", delay_s=1800))
        ...     producer.recall(result)
        """
        request = recall_request(result, topic, message_id, deliver_at_ms)
        self._background.run(recall(self._core.connection, request, self._timeout_s))

    def flush(self, timeout_s: float | None = None) -> None:
        """Returns when everything that was sent before is stored, or has failed; with ack="none",
        when it was handed over.
        """
        self._background.run(self._core.flush(timeout_s))

    def close(self) -> None:
        """Sends what there is, waits for the answers, and ends. Nothing is lost."""
        atexit.unregister(self.close)
        if not self._background.is_forked:
            self._background.run(self._core.close())

    def _encode(self, message: Message | bytes | str) -> Encoded:
        return encode_message(message, time.time_ns() // 1_000_000, self._compress_above_bytes)

    def _add(
        self,
        topic: str,
        message: Message | bytes | str,
        queue_id: int | None,
        broker_set: str,
        future: Awaited | None,
        timeout_s: float,
        deadline_s: float | None = None,
    ) -> None:
        """With a deadline somebody waits for this very message; TimeoutError when it is over."""
        encoded, delay = self._encode(message), delay_field(message)
        self._background.check_not_forked()
        is_urgent = deadline_s is not None
        while True:
            try:
                outcome = self._accumulator.add(
                    topic,
                    encoded,
                    queue_id,
                    future,
                    timeout_s,
                    is_urgent=is_urgent,
                    delay=delay,
                    priority=priority_of(message) if self._accumulator.has_priorities else 0,
                    broker_set=broker_set,
                )
            except IllegalRequest:
                if not self._background.run(self._core.is_route_newer(), _left_s(deadline_s)):
                    raise
                continue
            if outcome is Outcome.ADDED:
                return
            if outcome is Outcome.WAKE:
                self._wake()
                return
            self._make_way(topic, outcome, timeout_s, deadline_s)

    def _wake(self) -> None:
        self._background.loop.call_soon_threadsafe(self._core.wake)

    def _make_way(
        self, topic: str, outcome: Outcome, timeout_s: float, deadline_s: float | None = None
    ) -> None:
        """Whatever keeps a message from being added."""
        self._background.refuse_own_thread()
        left_s = _left_s(deadline_s)
        if outcome is Outcome.UNROUTED:
            self._background.run(self._core.prepare(topic, timeout_s), left_s)
        else:
            room = threading.Event()
            self._accumulator.call_when_room(room.set)
            if not room.wait(left_s):
                raise TimeoutError


def _left_s(deadline_s: float | None) -> float | None:
    return None if deadline_s is None else max(0.0, deadline_s - time.monotonic())


async def _make_core(connection: Connection, settings: Settings) -> ProducerCore:
    return ProducerCore(connection, settings)
