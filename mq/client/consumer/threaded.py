"""The parts of the consumers without asyncio that are written by hand.

Messages take no turn of the background loop: the thread that polls, and each thread that runs
handlers, takes them from the buffer that the streams fill.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterator

from mq.client.consumer.consumer import Consumer
from mq.client.consumer.group_session import LOOK_AT_TROUBLE_S
from mq.client.consumer.prefetch import InFlight
from mq.client.consumer.push import PushConsumer
from mq.client.consumer.retries import Nack
from mq.client.lifecycle import Background, HandlerThreads, SyncClient
from mq.client.messages import ReceivedMessage
from mq.client.signatures import renamed
from mq.errors import MqError


class ThreadedConsumer(Consumer):
    """A consumer that another thread than that of its loop may poll."""

    def poll_here(
        self, background: Background, max_messages: int, timeout_s: float | None
    ) -> list[ReceivedMessage]:
        self._session.check_open()
        if not self._session.is_started:
            background.run(self._session.start())
        if self._auto_commit:
            self._polled.all_done()
        try:
            return self._polled.add(self._take_here(max_messages, timeout_s))
        except MqError:
            self._session.told()
            raise

    def _take_here(self, max_messages: int, timeout_s: float | None) -> list[InFlight]:
        """As long as the group is not joined, looks why: that is raised."""
        session, wait_take = self._session, self._session.buffer.wait_take
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not session.is_joined:
            session.raise_trouble()
            left_s = deadline_s - time.monotonic()
            found = wait_take(max_messages, max(0.0, min(left_s, LOOK_AT_TROUBLE_S)))
            if found or session.buffer.is_stopped or left_s <= LOOK_AT_TROUBLE_S:
                return found
        left_s = deadline_s - time.monotonic()
        return wait_take(max_messages, None if timeout_s is None else max(0.0, left_s))

    @property
    def is_stopped(self) -> bool:
        return self._session.buffer.is_stopped


class SyncPoll(SyncClient[ThreadedConsumer]):
    """The base of the generated consumer."""

    @renamed(messages_max="max_messages")
    def poll(self, max_messages: int = 32, timeout_s: float | None = 1.0) -> list[ReceivedMessage]:
        """Messages that are there, or come first within the time. With auto_commit, all messages
        that were polled before are done. Raises the error that ended the consumer, such as
        SubscriptionMismatch; and Unreachable or NoLeader if the group was never joined and could
        not be in 5 s: the attempts go on, so that a later poll may succeed.
        """
        return self._client.poll_here(self._background, max_messages, timeout_s)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Endless, until the consumer is closed."""
        return self

    def __next__(self) -> ReceivedMessage:
        found = [] if self._client.is_stopped else self.poll(1, None)
        if not found:
            raise StopIteration
        return found[0]


class ThreadedPushConsumer(PushConsumer):
    """A consumer whose handlers run on threads. Each worker is a task that waits for its thread."""

    @functools.cached_property
    def handlers(self) -> HandlerThreads:
        return HandlerThreads(self._options.tasks, f"mq-{self._options.group}")

    async def _work(self) -> None:
        if await self.handlers.run(self._handle_all):
            self._is_over.set()

    def _handle_all(self) -> bool:
        """Returns when the consumer is closed; True when it was ended by the broker."""
        while True:
            try:
                found = self._session.buffer.wait_take(1, None)
            except MqError:
                return True
            if not found:
                return False
            self._handle_here(found[0])

    def _handle_here(self, taken: InFlight) -> None:
        try:
            outcome = self._handler(taken.message)
        except BaseException as error:  # noqa: BLE001 # whatever it is, the message is not done
            self._failures.failed([taken], error)
        else:
            if isinstance(outcome, Nack):
                self._failures.failed([taken], outcome)
            else:
                self._session.buffer.done([taken])
