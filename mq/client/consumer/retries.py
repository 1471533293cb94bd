"""Failed messages: when they are tried again, and how they go back to the broker.

`FailurePolicy` decides. In a clustering group a failed message goes back to the broker set that it
came from (`RetrySender`) and is delivered again later, to any member, with its attempts counted;
after too many it is a dead letter. In ordered and broadcast groups it is tried again in place: in
its queue, by this consumer.

A message stays in flight until the broker has it, so that the group's offset never passes a message
that is neither done nor stored. A set has one request at a time, with all messages that have failed
by then, which is repeated under the same number until it is answered, also by the next leader: it
takes effect once. Messages that the broker refuses are tried again in place. A set that does not
answer delays no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mq.client.cluster.connection import Connection, SetConnection
from mq.client.cluster.errors import mistake
from mq.client.cluster.retry import Retry, cancelled
from mq.client.consumer.options import ConsumerOptions
from mq.client.consumer.prefetch import PrefetchBuffer
from mq.client.consumer.prefetch_queue import InFlight
from mq.errors import (
    IllegalConfig,
    IllegalDelay,
    Internal,
    MessageTooLarge,
    MqError,
    UnknownMember,
    Unreachable,
)
from mq.wire.v1 import status_pb2
from mq.wire.v1.consumer_pb2 import FailedMessage, RetryRequest, RetryResponse, RetryResult

if TYPE_CHECKING:
    from mq.client.consumer.group_session import GroupSession

log = logging.getLogger(__name__)

# Seconds before the next attempt: a number that doubles with each attempt; one for each attempt, of
# which the last one counts for all further; or a function of the attempt that failed.
RetryDelay = float | Sequence[float] | Callable[[int], float] | None

IN_PLACE_S = 1.0
IN_PLACE_S_MAX = 30.0
_DELAY_S_MAX = 40 * 86_400
_REASON_CHARACTERS_MAX = 1_000


class Nack(Exception):
    """Raised or returned by a handler: the message is not done, and is delivered again after
    `delay_s`, or when its next attempt is due.

    >>> Nack("the bank is closed", delay_s=3600).delay_s
    3600
    """

    def __init__(self, reason: str = "", *, delay_s: float | None = None) -> None:
        if delay_s is not None and not 0 <= delay_s <= _DELAY_S_MAX:
            raise IllegalDelay(f"delay_s = {delay_s}: 0 s to 40 days")
        super().__init__(reason)
        self.reason = reason
        self.delay_s = delay_s


class FailurePolicy:
    """Decides what happens to the failed messages of one consumer. May be used from any thread;
    nothing here waits.
    """

    def __init__(self, session: GroupSession, retry_delay_s: RetryDelay = None) -> None:
        """Raises IllegalConfig for illegal delays."""
        self._session = session
        self._delay = _checked(retry_delay_s)

    def failed(self, taken: Iterable[InFlight], error: BaseException) -> None:
        """The messages are not done because of this error. Those that were taken together are
        tried again together in place; each by itself goes back to the broker.
        """
        for one in taken:
            self._failed(one, error)

    def _failed(self, taken: InFlight, error: BaseException) -> None:
        if self._session.options.is_clustering:
            # Each has its own number of attempts.
            singles, reason = taken.singles, failure_reason(error)
            delays_s = [self._delay_s(one, error) for one in singles]
            _log(taken, error, delays_s[0])
            self._session.retries.add(
                *(
                    Failure(one, None if delay_s is None else round(delay_s * 1000), reason)
                    for one, delay_s in zip(singles, delays_s, strict=True)
                )
            )
        else:
            found_s = self._delay_s(taken, error)
            in_s = doubled_s(IN_PLACE_S, taken.message.attempt) if found_s is None else found_s
            _log(taken, error, in_s)
            self._session.buffer.retry(taken, in_s)

    def _delay_s(self, taken: InFlight, error: BaseException) -> float | None:
        if isinstance(error, Nack) and error.delay_s is not None:
            return error.delay_s
        return self._configured_s(taken.message.attempt)

    def _configured_s(self, attempt: int) -> float | None:
        try:
            found = _delay_s(self._delay, attempt)
            if found is None or 0 <= found <= _DELAY_S_MAX:
                return found
            log.error("retry_delay_s gives %r for attempt %d: not used", found, attempt)
        except Exception:
            # A bug in the user's function must not lose the message.
            log.exception("retry_delay_s failed for attempt %d", attempt)
        return None


def doubled_s(first_s: float, attempt: int) -> float:
    """The pause before the next attempt: doubles with each attempt that failed."""
    return min(first_s * 2.0 ** min(attempt - 1, 30), max(IN_PLACE_S_MAX, first_s))


def _delay_s(delay: RetryDelay, attempt: int) -> float | None:
    if delay is None or isinstance(delay, int | float):
        return None if delay is None else doubled_s(delay, attempt)
    if callable(delay):
        return delay(attempt)
    return delay[min(attempt, len(delay)) - 1]


def _checked(delay: RetryDelay) -> RetryDelay:
    if delay is None or callable(delay):
        return delay
    given = [delay] if isinstance(delay, int | float) else list(delay)
    if not given or not all(0 <= one <= _DELAY_S_MAX for one in given):
        raise IllegalConfig(
            f"retry_delay_s = {delay!r}: 0 s to 40 days, one, several, or a function of the attempt"
        )
    return delay if isinstance(delay, int | float) else given


def failure_reason(error: BaseException) -> str:
    """The text that the broker keeps with the message."""
    if isinstance(error, Nack):
        text = _text(error.reason)
    else:
        text = ": ".join(filter(None, (type(error).__name__, _text(error))))
    # One character that cannot be encoded would fail the whole request.
    return text[:_REASON_CHARACTERS_MAX].encode(errors="replace").decode()


def _text(value: object) -> str:
    """The text of any object of the user: a worker must survive a bug in its __str__."""
    try:
        return "" if value is None else str(value)
    except Exception:  # noqa: BLE001 - the user's own
        return "it cannot be said"


def _log(taken: InFlight, error: BaseException, delay_s: float | None) -> None:
    message, is_nack = taken.message, isinstance(error, Nack)
    behind = len(taken.messages) - 1
    log.log(
        logging.INFO if is_nack else logging.ERROR,
        "the handler %s message %s%s, at %d of queue %d of topic %s, attempt %d; next one %s",
        f"gave back ({failure_reason(error)})" if is_nack else "failed on",
        message.message_id,
        f" and {behind} behind it" if behind else "",
        message.queue_offset,
        message.queue_id,
        message.topic,
        message.attempt,
        "when it is due" if delay_s is None else f"in {delay_s:.1f} s",
        exc_info=None if is_nack else error,
    )


# Of one request: the broker writes the copies of its messages as one entry.
_MESSAGES_MAX = 200
_BYTES_MAX = 1 << 20
_COPY_BYTES = 5_000
# The pause before a message that the broker refuses is tried again in place.
_IN_PLACE_S = 5.0


class Failure(NamedTuple):
    taken: InFlight
    # None: the broker decides by the attempt.
    delay_ms: int | None
    reason: str


class RetrySender:
    """Sends the failed messages of one consumer back, each to its broker set. Lives on the loop of
    its session; `add` may be called on any thread.
    """

    def __init__(
        self, connection: Connection, options: ConsumerOptions, buffer: PrefetchBuffer
    ) -> None:
        self._connection = connection
        self._options = options
        self._buffer = buffer
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        # By broker set.
        self._waiting: defaultdict[str, deque[Failure]] = defaultdict(deque)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_closed = False
        # Numbers of requests: greater than those of a former consumer with the same member id, and
        # different from them even if the clock was set back.
        self._numbers = itertools.count(
            (time.time_ns() // 1_000_000 << 21) + random.getrandbits(20)
        )

    def attach(self) -> None:
        """The running loop is the one of the session."""
        self._loop = asyncio.get_running_loop()

    def add(self, *failures: Failure) -> None:
        """The messages, one or more of one queue, are sent soon; `flush` waits for that."""
        name = failures[0].taken.queue.ref.broker_set
        with self._lock:
            self._waiting[name].extend(failures)
        if self._loop is not None:
            # A closed loop sends nothing: the group gets the message again.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._begin, name)

    async def flush(self, broker_set: str, timeout_s: float) -> None:
        """Waits until the set has all that was added so far, or the time is over."""
        self._begin(broker_set)
        if (task := self._tasks.get(broker_set)) is not None:
            await asyncio.wait([task], timeout=max(timeout_s, 0.0))

    async def drop(self, broker_set: str) -> None:
        """The consumer has left the set: its messages are given up."""
        if (task := self._tasks.get(broker_set)) is not None:
            await cancelled(task)
        with self._lock:
            left = self._waiting.pop(broker_set, deque())
        self._buffer.give_up(one.taken for one in left)

    async def close(self) -> None:
        """Messages that the broker does not have yet are given up: the group gets them again."""
        self._is_closed = True
        with self._lock:
            names = {*self._waiting, *self._tasks}
        await asyncio.gather(*map(self.drop, names))

    # On the loop

    def _begin(self, name: str) -> None:
        task = self._tasks.get(name)
        is_idle = task is None or task.done()
        if is_idle and self._waiting.get(name) and not self._is_closed:
            self._tasks[name] = asyncio.create_task(self._run(name))

    async def _run(self, name: str) -> None:
        while batch := self._next(name):
            await self._send(self._connection.of(name), batch)

    def _next(self, name: str) -> list[Failure]:
        batch: list[Failure] = []
        size = 0
        with self._lock:
            waiting = self._waiting[name]
            while waiting and len(batch) < _MESSAGES_MAX:
                size += waiting[0].taken.frame_bytes + _COPY_BYTES
                if batch and size > _BYTES_MAX:
                    break
                batch.append(waiting.popleft())
        return batch

    async def _send(self, broker_set: SetConnection, batch: list[Failure]) -> None:
        # A seek has made them void.
        self._buffer.give_up(one.taken for one in batch if one.taken.is_void)
        batch = [one for one in batch if not one.taken.is_void]
        if not batch:
            return
        try:
            self._settle(batch, await self._ask(broker_set, batch))
        except asyncio.CancelledError:
            self._buffer.give_up(one.taken for one in batch)
            raise
        except MessageTooLarge as error:
            if len(batch) == 1:
                self._in_place(batch, error)
            for one in batch if len(batch) > 1 else ():
                await self._send(broker_set, [one])
        except MqError as error:
            if self._is_over:
                self._buffer.give_up(one.taken for one in batch)
            else:
                self._in_place(batch, error)
        except Exception as error:
            # A bug of this client must not keep the messages in flight for ever.
            log.exception("failed messages of group %s cannot go back", self._options.group)
            self._in_place(batch, mistake(error))

    @property
    def _is_over(self) -> bool:
        """The consumer is closed or ended: another member gets the messages."""
        return self._is_closed or self._buffer.failure is not None

    async def _ask(self, broker_set: SetConnection, batch: list[Failure]) -> list[RetryResult]:
        """Repeats the request until it is answered, however long that takes."""
        request = RetryRequest(
            group=self._options.group,
            member_id=self._options.member,
            sequence=next(self._numbers),
            messages=map(_wire, batch),
        )
        retry = Retry()
        while True:
            try:
                response: RetryResponse = await broker_set.call(request)
            except MqError as error:
                # A new leader knows the member as soon as there is a stream again.
                is_passing = error.retryable or isinstance(error, UnknownMember | Unreachable)
                if self._is_over or not is_passing:
                    raise
                log.info("%d failed messages are not with the broker yet: %s", len(batch), error)
            else:
                if len(response.results) != len(batch):
                    raise Internal("the broker did not answer for each failed message")
                return list(response.results)
            await retry.pause()

    def _settle(self, batch: list[Failure], results: Iterable[RetryResult]) -> None:
        done, lost = [], []
        for (taken, _, _), result in zip(batch, results, strict=True):
            if result.code == status_pb2.NOT_ASSIGNED:
                lost.append(taken)  # the member that has the queue now gets it
                continue
            done.append(taken)
            if result.code != status_pb2.SEND_OK:
                log.error("failed message %s is gone: %s", taken.message.message_id, result.text)
            elif not result.deliver_at_ms:
                log.warning(
                    "message %s has failed %d times and is a dead letter of group %s now",
                    (taken.message.origin or taken.message).message_id,
                    result.attempts,
                    self._options.group,
                )
        self._buffer.done(done)
        self._buffer.give_up(lost)

    def _in_place(self, batch: list[Failure], error: MqError) -> None:
        log.error("%d failed messages are tried again in place: %s", len(batch), error)
        for one in batch:
            delay_s = _IN_PLACE_S if one.delay_ms is None else one.delay_ms / 1000
            self._buffer.retry(one.taken, delay_s)


def _wire(failure: Failure) -> FailedMessage:
    message = failure.taken.message
    return FailedMessage(
        topic=message.queue.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        delay_ms=failure.delay_ms,
        reason=failure.reason,
    )
