"""The hand-written parts of the synchronous producer: a thread that sends a message does not wait
for a turn of the background loop. It adds the message to the accumulator, from which the sender, on
that loop, takes it.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

from mq.client.encode import delay_field, encode_message
from mq.client.lifecycle import StartedClient
from mq.client.messages import Message, SendResult
from mq.client.producer.batching import AddResult, priority_of
from mq.client.producer.options import GRACE_S, ProducerOptions, too_late
from mq.client.producer.outcomes import SendFuture
from mq.client.producer.producer import Producer
from mq.client.producer.queues import ResultFuture
from mq.client.producer.sender import Sender
from mq.errors import IllegalRequest


class ThreadedProducer(Producer):
    """A producer that gives threads access to its sender."""

    @property
    def core(self) -> Sender:
        return self._started()

    @property
    def options(self) -> ProducerOptions:
        return self._options


class SyncSend(StartedClient[ThreadedProducer]):
    """The base of the generated producer."""

    def __init__(self, client: ThreadedProducer) -> None:
        super().__init__(client)
        self._timeout_s = client.options.timeout_s
        self._compress_above_bytes = client.options.compress_above_bytes
        self._core = client.core
        self._accumulator = self._core.accumulator

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
        self._add(topic, message, queue_id, broker_set, None, self._timeout_s)

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
        encoded = encode_message(message, time.time_ns() // 1_000_000, self._compress_above_bytes)
        delay = delay_field(message)
        self._background.check_not_forked()
        is_urgent = deadline_s is not None
        while True:
            try:
                result = self._accumulator.add(
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
            if result is AddResult.ADDED:
                return
            if result is AddResult.WAKE:
                self._background.loop.call_soon_threadsafe(self._core.wake)
                return
            self._make_way(topic, result, timeout_s, deadline_s)

    def _make_way(
        self, topic: str, result: AddResult, timeout_s: float, deadline_s: float | None
    ) -> None:
        """Waits until a message can be added."""
        self._background.refuse_own_thread()
        left_s = _left_s(deadline_s)
        if result is AddResult.UNROUTED:
            self._background.run(self._core.prepare(topic, timeout_s), left_s)
        else:
            room = threading.Event()
            self._accumulator.call_when_room(room.set)
            if not room.wait(left_s):
                raise TimeoutError


def _left_s(deadline_s: float | None) -> float | None:
    return None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
