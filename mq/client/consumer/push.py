"""The consumer that calls a handler for each message, or for batches of them.

Handlers run concurrently; the group's offset is that of the first message that is not done. A
message whose handler fails goes back to the broker and is delivered again later; after too many
attempts it is a dead letter. In ordered mode the messages of a queue come one at a time, and a
failed one is tried again in place, before the rest of its queue. In broadcast mode it is tried
again in place, too, without stopping others. A batch has messages of one queue and fails as a
whole: in ordered mode it takes the place of the one message.

With asyncio, calls of a handler that neither wait nor fail are many to one step of a worker, which
takes a range of messages and finishes it at once. A handler that waits gives the messages behind
its own back, so that other workers go on with them: no message waits for another one's handler.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import KW_ONLY, dataclass
from types import CoroutineType
from typing import Any

from mq.client.batches import MessageBatch
from mq.client.cluster.retry import cancelled, is_being_cancelled
from mq.client.consumer.group_session import JOIN_S, GroupClient, GroupSession
from mq.client.consumer.options import ConsumerOptions
from mq.client.consumer.prefetch_queue import InFlight
from mq.client.consumer.retries import FailurePolicy, Nack, RetryDelay
from mq.client.lifecycle import HandlerThreads
from mq.client.messages import ReceivedMessage
from mq.client.public import arguments_of
from mq.errors import IllegalConfig, MqError

Handler = (
    Callable[[ReceivedMessage], Awaitable[object] | object]
    | Callable[[MessageBatch], Awaitable[object] | object]
)

# A handler that never waits must let other tasks run after so many messages.
_MESSAGES_IN_A_ROW = 16
# To find out whether a handler waits costs something: one that does is not looked at in so many
# calls, at most.
_UNWATCHED_MAX = 31


@dataclass(frozen=True)
class PushOptions(ConsumerOptions):
    handler: Handler
    _: KW_ONLY
    tasks: int = 20
    batch_messages: int | None = None
    retry_delay_s: RetryDelay = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tasks < 1:
            raise IllegalConfig(f"tasks = {self.tasks}: at least 1 handler at a time")
        if self.batch_messages is not None and self.batch_messages < 1:
            raise IllegalConfig(
                f"batch_messages = {self.batch_messages}: at least 1, or None for a handler of "
                "single messages"
            )


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

    With `batch_messages` the handler is called with a `MessageBatch` of up to so many messages of
    one queue: those that are there, without waiting for more. When it returns, all of them are
    done; when it raises, all of them come again, those that it has worked on as well.
    """

    @arguments_of(PushOptions)
    def __init__(self, options: PushOptions) -> None:
        self._options = options
        self._session = GroupSession(options.connect(), options, takes_ranges=True)
        self._failures = FailurePolicy(self._session, options.retry_delay_s)
        self._handler: Callable[[Any], object] = options.handler
        # Messages of a range: few while handlers wait, more while they do not.
        self._few = options.batch_messages or 1
        self._many = options.batch_messages or _MESSAGES_IN_A_ROW
        self._at_once = self._few
        # After a call that has waited: so many are awaited as they are, and how many are left.
        self._unwatched, self._unwatched_left = 0, 0
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
                found = self._session.buffer.take(self._at_once, 1)
                if not found:
                    found = await self._session.take(self._at_once, None, 1)
            except MqError:
                self._is_over.set()
                return
            if not found:
                return
            in_a_row += len(found[0].messages)
            await self._handle(found[0])
            if in_a_row >= _MESSAGES_IN_A_ROW:
                in_a_row = 0
                await asyncio.sleep(0)

    async def _handle(self, taken: InFlight) -> None:
        calls = self._calls(taken)
        try:
            if self._unwatched_left and len(calls) == 1:
                self._unwatched_left -= 1
                outcome = self._handler(calls[0])
                if isinstance(outcome, CoroutineType) or inspect.isawaitable(outcome):
                    outcome = await outcome
            else:
                at, begun = self._call(calls)
                self._adapt(waits=begun is not None)
                if begun is None:
                    self._session.buffer.done([taken])
                    return
                if len(calls) > 1:
                    taken = self._cut_out(taken, at)
                if isinstance(begun, BaseException):
                    raise begun  # noqa: TRY301
                outcome = await begun
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                self._session.buffer.give_up([taken])
                raise
            # The handler has cancelled a task of its own: the consumer goes on.
            self._failures.failed([taken], error)
        except Exception as error:  # noqa: BLE001 # whatever it is, the message is not done
            self._failures.failed([taken], error)
        else:
            self._handled(taken, outcome)

    def _adapt(self, *, waits: bool) -> None:
        """To handlers that wait, or do not."""
        self._at_once = self._few if waits else self._many
        self._unwatched = min(2 * self._unwatched + 1, _UNWATCHED_MAX) if waits else 0
        self._unwatched_left = self._unwatched

    def _calls(self, taken: InFlight) -> Sequence[ReceivedMessage | MessageBatch]:
        """The argument of each call of the handler."""
        if self._options.batch_messages is None:
            return taken.messages
        return [taken.to_batch(self._session.decoder)]

    def _call(
        self, calls: Sequence[ReceivedMessage | MessageBatch]
    ) -> tuple[int, Awaitable[object] | BaseException | None]:
        """Calls the handler until it waits or fails. Returns in which call that was, and what is to
        be waited for, or the error. None: all calls are done.
        """
        at, handler = 0, self._handler
        try:
            for at, one in enumerate(calls):
                outcome = handler(one)
                if isinstance(outcome, CoroutineType):
                    try:
                        waits_for = outcome.send(None)
                    except StopIteration as returned:
                        outcome = returned.value
                    else:
                        return at, _Begun(outcome, waits_for)
                elif outcome is not None and inspect.isawaitable(outcome):
                    return at, outcome
                if isinstance(outcome, Nack):
                    return at, outcome
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 # the user's own
            return at, error
        return at, None

    def _cut_out(self, taken: InFlight, at: int) -> InFlight:
        """Returns one message. Those before it are done, and those behind it are put back."""
        buffer, count = self._session.buffer, len(taken.messages)
        if at + 1 < count:
            buffer.put_back(taken.part(at + 1, count))
        if at:
            buffer.done([taken.part(0, at)])
        return taken.part(at, at + 1)

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
                found = self._session.buffer.wait_take(self._at_once, None, 1)
            except MqError:
                return True
            if not found:
                return False
            self._handle_here(found[0])

    def _handle_here(self, taken: InFlight) -> None:
        (argument,) = self._calls(taken)
        try:
            outcome = self._handler(argument)
        except BaseException as error:  # noqa: BLE001 # whatever it is, the message is not done
            self._failures.failed([taken], error)
        else:
            self._handled(taken, outcome)


class _Begun:
    """A coroutine that has run until it waits. Awaiting it is to go on with it."""

    def __init__(self, coroutine: CoroutineType[Any, Any, object], waits_for: object) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, object]:
        coroutine, waits_for = self._coroutine, self._waits_for
        while True:
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 # such as a cancellation
                try:
                    waits_for = coroutine.throw(error)
                except StopIteration as returned:
                    return returned.value
            else:
                return (yield from coroutine.__await__())
