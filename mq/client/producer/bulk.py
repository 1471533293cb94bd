"""Many messages at once: `send_many`, and the results of it.

Messages that are only a body are cut into batches, which are encoded as a whole, and spread over
the queues as other batches are. Messages with more than a body go the way of single ones, so that
keys, delays and priorities mean the same. No message has a future of its own: a batch has one.
"""

from __future__ import annotations

import asyncio
import bisect
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

from mq.client.cluster.errors import reworded
from mq.client.encode import Bodies, Prepared, prepare, sole_body
from mq.client.messages import Message, SendResult
from mq.client.producer.batching import AddResult
from mq.client.producer.queues import BODY_OVERHEAD_BYTES, BatchOutcome, SendFuture
from mq.client.producer.sender import Sender
from mq.errors import IllegalDelay, IllegalRequest, MessageTooLarge, MqError

# Messages that are looked at without a turn of the event loop: at first, and at most.
_SLICE_MESSAGES, _SLICE_MESSAGES_MAX = 1_024, 16_384
# Errors of one message: those behind it are sent.
_OF_MESSAGE = (IllegalRequest, IllegalDelay, MessageTooLarge, TypeError)


class SendResults(Sequence[SendResult]):
    """The results of `send_many`, in the order of its messages. A result is made when it is read;
    that of a message which failed raises its error.
    """

    def __init__(self) -> None:
        # Messages that stand together in a batch: the index of the first, and its future.
        self._starts: list[int] = []
        self._futures: list[SendFuture] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> SendResult: ...
    @overload
    def __getitem__(self, at: slice) -> list[SendResult]: ...
    def __getitem__(self, at: int | slice) -> SendResult | list[SendResult]:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(self._count))]
        at = range(self._count)[at]
        of = bisect.bisect_right(self._starts, at) - 1
        outcome, index = self._futures[of].outcome()
        return outcome.result_of(index + at - self._starts[of])

    def __iter__(self) -> Iterator[SendResult]:
        for indices, outcome, index in self._parts():
            for at in range(len(indices)):
                yield outcome.result_of(index + at)

    @property
    def errors(self) -> dict[int, Exception]:
        """The errors of the messages that failed, by index; empty if all are stored."""
        return {
            at: outcome.error
            for indices, outcome, _ in self._parts()
            if outcome.error is not None
            for at in indices
        }

    def _parts(self) -> Iterator[tuple[range, BatchOutcome, int]]:
        ends = [*self._starts[1:], self._count][: len(self._starts)]
        for start, end, future in zip(self._starts, ends, self._futures, strict=True):
            yield range(start, end), *future.outcome()

    # For `send_many`

    def add(self, future: SendFuture, count: int) -> None:
        """The next messages, of which the first has this future."""
        self._starts.append(self._count)
        self._futures.append(future)
        self._count += count

    def add_failed(self, error: Exception, count: int) -> None:
        outcome, future = BatchOutcome(), SendFuture()
        outcome.fail(error)
        outcome.attach(0, future)
        self.add(future, count)

    async def settled(self) -> None:
        for future in self._futures:
            while not future.done():
                outcome, index = future.outcome()
                settled = _Settled()
                outcome.attach(index, settled)
                await settled.wait()

    def raise_first(self) -> None:
        """Raises the error of the first message that failed, with its index."""
        for indices, outcome, _ in self._parts():
            if (error := outcome.error) is not None:
                text = f"message {indices.start} of {self._count}: {error}"
                raise reworded(error, text) if isinstance(error, MqError) else type(error)(text)


class _Settled(asyncio.Event):
    """A future of which only the end matters."""

    def done(self) -> bool:
        return self.is_set()

    def set_result(self, _: object) -> None:
        self.set()

    set_exception = set_result


class BulkSend:
    """One `send_many`."""

    def __init__(self, core: Sender, topic: str, queue_id: int | None, broker_set: str) -> None:
        self._core = core
        self._topic = topic
        self._queue_id, self._broker_set = queue_id, broker_set
        self._results = SendResults()
        # The number of messages that probably fit a batch.
        self._fitting = _SLICE_MESSAGES

    async def send(self, messages: Sequence[Message | bytes | str]) -> SendResults:
        """Returns when all messages are stored, or have failed."""
        results = self._results
        try:
            while (start := len(results)) < len(messages):
                await self._add(messages[start : start + self._fitting])
                # Batches leave while the next one is encoded.
                await asyncio.sleep(0)
        except MqError as error:
            # Of the topic or the producer: no message behind this one can be sent.
            results.add_failed(error, len(messages) - len(results))
        await results.settled()
        return results

    async def _add(self, messages: Sequence[Message | bytes | str]) -> None:
        """Adds these messages; of bodies the first ones, up to a batch."""
        bodies = _sole_bodies(messages, self._core.body_bytes_max)
        if not bodies:
            for message in messages:
                await self._add_single(message)
            return
        ends = list(itertools.accumulate(map(len, bodies)))
        count, limit = len(bodies), self._core.options.batch_bytes
        size = ends[-1] + count * BODY_OVERHEAD_BYTES
        if size > limit:
            count = bisect.bisect_right(
                range(1, count), limit, key=lambda one: ends[one - 1] + one * BODY_OVERHEAD_BYTES
            )
            bodies = bodies[: max(1, count)]
        self._fitting = min(max(1, len(ends) * limit // size), _SLICE_MESSAGES_MAX)
        born_at_ms = time.time_ns() // 1_000_000
        await self._add_prepared(prepare([Bodies(born_at_ms, bodies)]))

    async def _add_prepared(self, prepared: Prepared) -> None:
        """Adds one batch."""
        core, future = self._core, SendFuture()
        args = prepared, self._queue_id, future, core.options.timeout_s, self._broker_set
        add = functools.partial(core.accumulator.add_prepared, self._topic, *args)
        await self._added(add, future, prepared.count)

    async def _add_single(self, message: Message | bytes | str) -> None:
        core, future = self._core, SendFuture()
        try:
            encoded = core.encode(message)
        except _OF_MESSAGE as error:
            self._results.add_failed(error, 1)
            return
        args = encoded, self._queue_id, future, core.options.timeout_s, self._broker_set
        add = functools.partial(core.accumulator.add, self._topic, *args)
        await self._added(add, future, 1)

    async def _added(self, add: Callable[[], AddResult], future: SendFuture, count: int) -> None:
        try:
            await self._core.added(self._topic, add, self._core.options.timeout_s)
        except IllegalRequest as error:
            self._results.add_failed(error, count)
        else:
            self._results.add(future, count)


def _sole_bodies(messages: Sequence[Message | bytes | str], bytes_max: int) -> Sequence[bytes]:
    """The messages, if all of them are only a body that is not compressed; else nothing."""
    if set(map(type, messages)) == {bytes}:
        bodies: Sequence[Any] = messages
    else:
        bodies = list(map(sole_body, messages))
        if None in bodies:
            return ()
    return bodies if max(map(len, bodies)) <= bytes_max else ()
