"""Failed messages of a consumer on their way back to the broker set that they came from.

Each stays in hand until the broker has it: then it counts as done, so that the group's offset never
passes a message that is neither done nor kept. One request at a time for each set, with all that
failed by then, asked again under the same number until it is answered, also by the next leader:
done once. What the broker will not take is tried again in place. A set that does not answer holds
up no other. Lives on the loop of its session; `add` is for any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mq.client.cluster.connection import CALL_TIMEOUT_S, Connection, SetConnection
from mq.client.cluster.retry import back_off_s
from mq.client.consumer.held_queue import Taken
from mq.client.consumer.holdings import Holdings
from mq.client.consumer.subscription import Wanted
from mq.errors import Internal, MessageTooLarge, MqError, UnknownMember, Unreachable
from mq.wire.v1 import status_pb2
from mq.wire.v1.consumer_pb2 import FailedMessage, RetryRequest, RetryResponse, RetryResult

log = logging.getLogger(__name__)

# In one request; the broker writes their copies as one entry.
_MESSAGES_MAX = 200
_BYTES_MAX = 1 << 20
_COPY_BYTES = 5_000
# Before a message is tried again in place that the broker would not take.
_IN_PLACE_S = 5.0


class Failure(NamedTuple):
    taken: Taken
    # None: by its attempt.
    delay_ms: int | None
    reason: str


class Retries:
    """Of one consumer, to all sets."""

    def __init__(self, connection: Connection, wanted: Wanted, holdings: Holdings) -> None:
        self._connection = connection
        self._wanted = wanted
        self._holdings = holdings
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sets: dict[str, _SetRetries] = {}
        # Greater than the numbers of a former consumer with the same member id; should a clock have
        # been set back, at least others than those.
        self._numbers = itertools.count(
            (time.time_ns() // 1_000_000 << 21) + random.getrandbits(20)
        )

    def attach(self) -> None:
        """To the running loop."""
        self._loop = asyncio.get_running_loop()

    def add(self, failure: Failure) -> None:
        """Soon the broker has it."""
        mine = self._of(failure.taken.queue.ref.broker_set)
        mine.append(failure)
        if self._loop is not None:
            # A loop that is closed serves nobody any more.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(mine.begin)

    def _of(self, name: str) -> _SetRetries:
        with self._lock:
            found = self._sets.get(name)
            if found is None:
                broker_set = self._connection.of(name)
                found = _SetRetries(broker_set, self._wanted, self._holdings, self._numbers)
                self._sets[name] = found
            return found

    async def flush(self, broker_set: str, timeout_s: float) -> None:
        """The set has everything that was added so far, or the time is over."""
        await self._of(broker_set).flush(timeout_s)

    async def drop(self, broker_set: str) -> None:
        """Nobody there takes them any more."""
        with self._lock:
            dropped = self._sets.pop(broker_set, None)
        if dropped is not None:
            await dropped.close()

    async def close(self) -> None:
        """What the broker does not have by now, the group gets again."""
        await asyncio.gather(*(one.close() for one in self._sets.values()))


class _SetRetries:
    def __init__(
        self,
        broker_set: SetConnection,
        wanted: Wanted,
        holdings: Holdings,
        numbers: Iterator[int],
    ) -> None:
        self._broker_set = broker_set
        self._wanted = wanted
        self._holdings = holdings
        self._lock = threading.Lock()
        self._waiting: deque[Failure] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._numbers = numbers

    def append(self, failure: Failure) -> None:
        """For any thread; `begin` is to follow."""
        with self._lock:
            self._waiting.append(failure)

    async def flush(self, timeout_s: float) -> None:
        self.begin()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=max(timeout_s, 0.0))

    async def close(self) -> None:
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with self._lock:
            left, self._waiting = self._waiting, deque()
        self._holdings.give_up(one.taken for one in left)

    # On the loop

    def begin(self) -> None:
        if self._task is None and self._waiting and not self._is_closed:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            while batch := self._next():
                await self._send(batch)
        finally:
            self._task = None

    def _next(self) -> list[Failure]:
        batch: list[Failure] = []
        size = 0
        with self._lock:
            while self._waiting and len(batch) < _MESSAGES_MAX:
                size += self._waiting[0].taken.frame_bytes + _COPY_BYTES
                if batch and size > _BYTES_MAX:
                    break
                batch.append(self._waiting.popleft())
        return batch

    async def _send(self, batch: list[Failure]) -> None:
        # A seek has made some void: nobody wants them any more.
        self._holdings.give_up(one.taken for one in batch if one.taken.is_void)
        batch = [one for one in batch if not one.taken.is_void]
        if not batch:
            return
        try:
            self._settle(batch, await self._ask(batch))
        except asyncio.CancelledError:
            self._holdings.give_up(one.taken for one in batch)
            raise
        except MessageTooLarge as error:
            if len(batch) == 1:
                self._in_place(batch, error)
            for one in batch if len(batch) > 1 else ():
                await self._send([one])
        except MqError as error:
            if self._is_hopeless:
                self._holdings.give_up(one.taken for one in batch)
            else:
                self._in_place(batch, error)
        except Exception as error:
            # A mistake of ours. Nobody may wait for these messages for ever.
            log.exception("failed messages of group %s cannot go back", self._wanted.group)
            self._in_place(batch, Internal(f"the client has failed: {error!r}"))

    @property
    def _is_hopeless(self) -> bool:
        """The consumer is over: another one gets the messages."""
        return self._is_closed or self._holdings.failure is not None

    async def _ask(self, batch: list[Failure]) -> list[RetryResult]:
        """Until there is an answer, however long that takes."""
        request = RetryRequest(
            group=self._wanted.group,
            member_id=self._wanted.member_id,
            sequence=next(self._numbers),
            messages=map(_wire, batch),
        )
        attempt = 0
        while True:
            try:
                response: RetryResponse = await self._broker_set.call(
                    "ConsumerService", "Retry", request, CALL_TIMEOUT_S
                )
            except MqError as error:
                # A new leader knows the member as soon as there is a stream again.
                is_passing = error.retryable or isinstance(error, UnknownMember | Unreachable)
                if self._is_hopeless or not is_passing:
                    raise
                log.info("%d failed messages are not with the broker yet: %s", len(batch), error)
            else:
                if len(response.results) != len(batch):
                    raise Internal("the broker did not answer for each failed message")
                return list(response.results)
            await asyncio.sleep(back_off_s(attempt))
            attempt += 1

    def _settle(self, batch: list[Failure], results: Iterable[RetryResult]) -> None:
        done, lost = [], []
        for (taken, _, _), result in zip(batch, results, strict=True):
            if result.code == status_pb2.NOT_ASSIGNED:
                lost.append(taken)  # whoever has the queue by now gets it
                continue
            done.append(taken)
            if result.code != status_pb2.SEND_OK:
                log.error("failed message %s is gone: %s", taken.message.message_id, result.text)
            elif not result.deliver_at_ms:
                log.warning(
                    "message %s has failed %d times and is a dead letter of group %s now",
                    (taken.message.origin or taken.message).message_id,
                    result.attempts,
                    self._wanted.group,
                )
        self._holdings.done(done)
        self._holdings.give_up(lost)

    def _in_place(self, batch: list[Failure], error: MqError) -> None:
        log.error("%d failed messages are tried again in place: %s", len(batch), error)
        for one in batch:
            wanted_s = _IN_PLACE_S if one.delay_ms is None else one.delay_ms / 1000
            self._holdings.retry(one.taken, wanted_s)


def _wire(failure: Failure) -> FailedMessage:
    message = failure.taken.message
    return FailedMessage(
        topic=message.queue.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        delay_ms=failure.delay_ms,
        reason=failure.reason,
    )
