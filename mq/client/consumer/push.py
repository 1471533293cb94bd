"""The consumer that calls a handler for each message.

Handlers run concurrently; the group's offset is that of the first message that is not done. A
message whose handler fails goes back to the broker and is delivered again later; after too many
attempts it is a dead letter. In ordered mode the messages of a queue come one at a time, and a
failed one is tried again in place, before the rest of its queue. In broadcast mode it is tried
again in place, too, without stopping others.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from types import CoroutineType

from mq.client.cluster.connection import Connection
from mq.client.cluster.retry import cancelled
from mq.client.consumer.group_session import JOIN_S, GroupClient, GroupSession
from mq.client.consumer.options import ConsumerOptions
from mq.client.consumer.prefetch import InFlight
from mq.client.consumer.retries import FailurePolicy, Nack, RetryDelay
from mq.client.lifecycle import HandlerThreads
from mq.client.messages import ReceivedMessage
from mq.client.public import arguments_of
from mq.errors import IllegalConfig, MqError

Handler = Callable[[ReceivedMessage], Awaitable[object] | object]

# A handler that never waits must let other tasks run now and then.
_MESSAGES_IN_A_ROW = 16


@dataclass(frozen=True)
class PushOptions(ConsumerOptions):
    handler: Handler
    _: KW_ONLY
    tasks: int = 20
    retry_delay_s: RetryDelay = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tasks < 1:
            raise IllegalConfig(f"tasks = {self.tasks}: at least 1 handler at a time")


class PushConsumer(GroupClient):
    """Calls `handler` for each message.

    >>> async def serve() -> None:
    ...     seen = asyncio.Queue()
    ...     async with PushConsumer(servers, "mailers", "greetings", seen.put, start="earliest"):
    ...         print(sorted([(await seen.get()).body, (await seen.get()).body]))
    >>> asyncio.run(serve())
    [b'hello', b'world']

    See `Consumer` for subscriptions, modes and starts. `tasks` handlers run at the same time. What
    a handler raises is logged, and the message comes again: after 10 s, 30 s, 1 min and so on, or
    when `retry_delay_s` says: a number that doubles with each attempt, a list with one for each, or
    a function of the attempt. A handler that knows better raises or returns a `Nack`.
    """

    @arguments_of(PushOptions)
    def __init__(self, options: PushOptions) -> None:
        self._options = options
        self._session = GroupSession(Connection(options.servers, options.zone), options)
        self._failures = FailurePolicy(self._session, options.retry_delay_s)
        self._handler = options.handler
        self._workers: list[asyncio.Task[None]] = []
        self._is_over = asyncio.Event()

    async def start(self) -> None:
        """Returns when the group is joined. Raises why that failed: Unreachable,
        SubscriptionMismatch, TopicNotFound...
        """
        self._session.check_open()
        try:
            await self._session.joined(JOIN_S)
        except MqError:
            await self._close()
            raise
        if not self._workers:
            self._workers = [asyncio.create_task(self._work()) for _ in range(self._options.tasks)]

    async def _work(self) -> None:
        in_a_row = 0
        while True:
            try:
                found = self._session.buffer.take(1) or await self._session.take(1, None)
            except MqError:
                self._is_over.set()
                return
            if not found:
                return
            await self._handle(found[0])
            in_a_row += 1
            if in_a_row % _MESSAGES_IN_A_ROW == 0:
                await asyncio.sleep(0)

    async def _handle(self, taken: InFlight) -> None:
        try:
            outcome = self._handler(taken.messages[0])
            # What most handlers return is told apart at less cost.
            if isinstance(outcome, CoroutineType) or (
                outcome is not None and inspect.isawaitable(outcome)
            ):
                outcome = await outcome
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self._session.buffer.give_up([taken])
                raise
            # The handler has cancelled a task of its own: the consumer goes on.
            self._failures.failed([taken], error)
        except Exception as error:  # noqa: BLE001 # whatever it is, the message is not done
            self._failures.failed([taken], error)
        else:
            self._handled(taken, outcome)

    def _handled(self, taken: InFlight, outcome: object) -> None:
        if isinstance(outcome, Nack):
            self._failures.failed([taken], outcome)
        else:
            self._session.buffer.done([taken])

    @property
    def unreadable_messages(self) -> int:
        """The number of messages that could not be read and were skipped; the log names them."""
        return self._session.decoder.unreadable_messages

    async def close(self, timeout_s: float | None = None) -> None:
        """Takes no more messages, waits `timeout_s` for the handlers that run, and commits. Raises
        the error that ended the consumer, unless it was raised before.
        """
        await self._close(timeout_s)
        self._session.raise_untold()

    async def _close(self, timeout_s: float | None = None) -> None:
        if asyncio.current_task() in self._workers:
            raise RuntimeError(
                "a handler must not close its own consumer: it would wait for itself"
            )
        self._session.buffer.stop()
        if self._workers:
            await asyncio.wait(self._workers, timeout=timeout_s)
        await cancelled(*self._workers)
        await self._session.close()
        self._is_over.set()


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
            self._handled(taken, outcome)
