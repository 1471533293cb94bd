"""Exactly-once processing: messages in, messages out, and each input takes effect once.

The messages of a queue are handled in batches, one after the other. The outputs of a batch and the
new offset of the group are one atomic request, which also names the offset that the group had and
the first message of the batch. The broker refuses it when another member had the queue in between,
when the group's offset was moved, or when the membership of this one has expired. Then all messages
in flight are dropped, and the processor joins again and goes on at the offset of the group.

Batches are numbered, so that a request whose answer was lost takes effect once; the numbers belong
to one membership. They are not derived from input offsets: after a crash the same messages may come
in other batches, and a longer batch would pass for the one that is stored.

A request goes to one broker set: outputs go to a queue of the set that their input came from. A set
that does not answer does not delay the messages of other sets.

Outputs without an ordering key go to one queue of their topic and priority, another one for each
batch. A missing topic is created in the set where it is needed, if the broker creates topics; one
that other sets have is not: its operator decides where it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import logging
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field

from mq.client import encode
from mq.client.cluster.connection import Connection
from mq.client.cluster.errors import REFUSALS, mistake, retry_after_s
from mq.client.cluster.retry import Throttle, back_off_s, is_being_cancelled, is_set
from mq.client.cluster.topology import is_writable, queues_of, topic_not_found
from mq.client.consumer.group_session import JOIN_S, GroupClient, GroupSession
from mq.client.consumer.offsets import query_offsets
from mq.client.consumer.options import CACHE_BYTES, CACHE_MESSAGES, ConsumerOptions, GroupOptions
from mq.client.consumer.prefetch_queue import InFlight, PrefetchQueue
from mq.client.consumer.retries import doubled_s, failure_reason
from mq.client.messages import Message, QueueRef, ReceivedMessage
from mq.client.public import arguments_of
from mq.errors import (
    ClientClosed,
    IllegalConfig,
    IllegalDelay,
    IllegalOffset,
    IllegalSequence,
    MessageTooLarge,
    MqError,
    NotAssigned,
    PermissionDenied,
    TopicNotFound,
    UnknownMember,
    Unreachable,
)
from mq.names import check_topic
from mq.wire.v1.cluster_pb2 import TopicRoute
from mq.wire.v1.consumer_pb2 import FailedMessage, QueuePosition
from mq.wire.v1.message_pb2 import Batch
from mq.wire.v1.producer_pb2 import AtomicRequest, DeadLetterBatch

log = logging.getLogger(__name__)

Output = tuple[str, Message | bytes | str]
Handler = Callable[
    [list[ReceivedMessage]], Iterable[Output] | Awaitable[Iterable[Output] | None] | None
]

_ATTEMPT_S = 10.0
# All outputs of a batch are one entry of the broker's log.
ENTRY_BYTES_MAX = 4 << 20
# The route that a broker tells may lag behind what an operator has just done.
_LOOKS, _LOOK_EVERY_S = 3, 0.5
# The wait for some sets when others have answered.
_ALL_SETS_S = 2.0
# A new leader knows the member when its stream is back.
_UNKNOWN_S_MAX = 10.0
# The longest delay of closing a processor by a request without an answer.
_GOODBYE_S_MAX = 5.0
# When a broker takes longer, another worker takes over the other queues of this one.
_ASIDE_S = 1.0
# Answers to a request: another member has the queue, or has done the work.
_REFUSALS = (NotAssigned, UnknownMember, IllegalOffset, IllegalSequence)


class _OwnershipLost(Exception):
    """Another member may have a queue of this one: all messages in flight are dropped."""


@dataclass(slots=True)
class _QueueState:
    """The number of the next request of a queue, and the offset that the group has there."""

    held: PrefetchQueue
    version: int = -1
    stood_at: int = 0
    producer_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    sequence: int = 1


@dataclass(frozen=True)
class ProcessorOptions(GroupOptions):
    handler: Handler
    _: KW_ONLY
    batch_messages: int = 32
    tasks: int = 4
    retry_delay_s: float = 1.0
    max_attempts: int | None = None
    compress_above_bytes: int = 4096
    cache_messages: int = CACHE_MESSAGES
    cache_bytes: int = CACHE_BYTES

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_messages < 1 or self.tasks < 1 or self.retry_delay_s < 0:
            raise IllegalConfig(
                "batch_messages and tasks are at least 1, and retry_delay_s is not negative"
            )
        if self.max_attempts is not None and self.max_attempts < 1:
            raise IllegalConfig("max_attempts: at least 1, or None, without dead letters")


class Processor(GroupClient):
    """Processes messages exactly once: reads topics, and writes its outputs in one step with the
    offsets of its group.

    >>> async def shout(messages):
    ...     return [("loud", message.body.upper()) for message in messages]
    >>> async def serve() -> None:
    ...     async with Processor(servers, "shouters", "greetings", shout, start="earliest"):
    ...         async with Consumer(servers, "listeners", "loud", start="earliest") as listener:
    ...             heard = await listener.poll(timeout_s=10)
    ...             print([message.body for message in heard])
    >>> asyncio.run(serve())
    [b'HELLO', b'WORLD']

    `handler` gets up to `batch_messages` messages of one queue, in order, and returns pairs of a
    topic and a message, or nothing. When it fails the same messages come again, after
    `retry_delay_s`, then later and later: the queue waits for them. With `max_attempts`, messages
    that fail together are tried one by one, and one that failed so often is moved to the dead
    letters of the group, in one step with its offset; failures that pass by themselves, such as
    an unreachable broker, do not count. It may be called more than once for a message: its
    result takes effect once, and its other effects should be idempotent. `tasks` queues are
    worked on at the same time.

    Outputs stay in the broker set of their input: their topics need queues in each set that
    messages come from. A topic that has none there ends the processor with TopicNotFound, one that
    is not writable there with PermissionDenied. See `Consumer` for the rest.
    """

    @arguments_of(ProcessorOptions)
    def __init__(self, options: ProcessorOptions) -> None:
        self._options = options
        self._turns = itertools.count()
        self._closing = asyncio.Event()
        self._is_over = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._throttle = Throttle()
        self._join_anew()

    def _join_anew(self) -> None:
        """A new membership, with nothing in flight."""
        options = self._options
        self._connection = options.connect()
        joining = ConsumerOptions(
            group=options.group,
            subscriptions=options.subscriptions,
            start=options.start,
            cache_messages=options.cache_messages,
            cache_bytes=options.cache_bytes,
            **options.shared,
        )
        self._session = GroupSession(self._connection, joining, commits_at_end=False)
        self._outputs = Outputs(self._connection, options.compress_above_bytes)
        self._queues: dict[QueueRef, _QueueState] = {}
        self._workers: set[asyncio.Task[None]] = set()
        # The next batches of each worker, except those that have stepped aside.
        self._waiting: dict[asyncio.Task[None], deque[list[InFlight]]] = {}

    # Beginning and ending

    async def start(self) -> None:
        """Returns when it has joined its group. Raises why it could not: Unreachable,
        SubscriptionMismatch, TopicNotFound...
        """
        if self._closing.is_set():
            raise ClientClosed("the processor is closed: make another one")
        if self._running is not None:
            return
        try:
            try:
                await self._session.joined(_ALL_SETS_S)
            except Unreachable:
                await self._session.joined(JOIN_S - _ALL_SETS_S)
        except MqError:
            await self._close()
            raise
        self._running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            while True:
                await self._work_together()
                if self._closing.is_set() or self._session.buffer.failure is not None:
                    break
                await self._session.close()
                if self._closing.is_set():
                    break
                self._join_anew()
                await self._session.start()
        except Exception as error:
            # A bug of the client. `join` must not wait for ever.
            log.exception("a processor of group %s cannot go on", self._options.group)
            self._session.buffer.fail(mistake(error))
        finally:
            self._is_over.set()

    async def _work_together(self) -> None:
        """Runs the workers until the session gives out no more messages."""
        for _ in range(self._options.tasks):
            self._add_worker(deque())
        try:
            while self._workers:
                done, _ = await asyncio.wait(self._workers, return_when=asyncio.FIRST_COMPLETED)
                self._workers -= done
                for worker in done:
                    worker.result()
        finally:
            for worker in self._workers:
                worker.cancel()

    async def _close(self) -> None:
        self._closing.set()
        self._session.buffer.stop()
        if self._running is not None:
            await asyncio.wait([self._running])
        await self._session.close()
        self._is_over.set()

    # Work

    def _add_worker(self, waiting: deque[list[InFlight]]) -> None:
        worker = asyncio.create_task(self._work(waiting))
        self._workers.add(worker)
        self._waiting[worker] = waiting

    @contextlib.contextmanager
    def _stepping_aside(self) -> Iterator[None]:
        """Around a call to a broker. When it takes long, a new worker takes over the next batches,
        and this worker ends with the batch that it has.
        """
        worker = asyncio.current_task()

        def step_aside() -> None:
            if worker is not None and (waiting := self._waiting.pop(worker, None)) is not None:
                self._add_worker(waiting)

        timer = asyncio.get_running_loop().call_later(_ASIDE_S, step_aside)
        try:
            yield
        finally:
            timer.cancel()

    async def _work(self, waiting: deque[list[InFlight]]) -> None:
        """Ends with the session, when a queue is lost to another member, or when another worker has
        taken over.
        """
        buffer = self._session.buffer
        worker = asyncio.current_task()
        try:
            while worker in self._waiting:
                if not waiting and not await self._fetch(waiting):
                    return
                taken = waiting.popleft()
                try:
                    await self._process(taken)
                except _OwnershipLost as lost:
                    log.warning("group %s is joined anew: %s", self._options.group, lost)
                    buffer.stop()
                except CannotGoOn as end:
                    self._session.fail(end.reason)
                if buffer.is_stopped or buffer.failure is not None:
                    return
                with contextlib.suppress(NotAssigned):
                    buffer.resume([taken[0].queue.ref])
        finally:
            if worker is not None and self._waiting.pop(worker, None) is not None:
                buffer.give_up(one for taken in waiting for one in taken)

    async def _fetch(self, waiting: deque[list[InFlight]]) -> bool:
        """Takes messages, in batches of one queue. Returns False if there are none."""
        try:
            found = await self._session.take(self._options.batch_messages, None)
        except MqError:
            return False
        waiting += [list(taken) for _, taken in itertools.groupby(found, lambda one: one.queue)]
        # One batch of a queue at a time: other workers get none of it meanwhile.
        for taken in waiting:
            with contextlib.suppress(NotAssigned):
                self._session.buffer.pause([taken[0].queue.ref])
        return bool(waiting)

    async def _process(self, taken: list[InFlight]) -> bool:
        """Returns True when it is done or void, and False when it was given up. _OwnershipLost,
        CannotGoOn.
        """
        failures = counted = 0
        attempts_max = self._options.max_attempts
        # The failure after which there is no further attempt.
        last: BaseException | None = None
        while not any(one.is_void for one in taken):
            if last is None:
                failure = await self._failure_of(taken, self._attempt(taken))
            else:
                letter = self._to_dead_letters(taken, last, counted)
                failure = await self._failure_of(taken, letter)
            if failure is None:
                break
            failures += 1
            if len(_messages(taken)) > 1 and self._is_to_be_halved(failure):
                _log_failure(taken, failure, failures, 0.0)
                return await self._process_halves(taken)
            counted += _counts(failure)
            if last is None and attempts_max is not None and counted >= attempts_max:
                last = failure
            elif not await self._put_off(taken, failure, failures):
                return False
        self._session.buffer.done(taken)
        return True

    async def _failure_of(
        self, taken: list[InFlight], work: Awaitable[None]
    ) -> BaseException | None:
        """Returns why these messages are not done; None: they are. _OwnershipLost, CannotGoOn:
        they are given up.
        """
        try:
            await work
        except (_OwnershipLost, CannotGoOn):
            self._session.buffer.give_up(taken)
            raise
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            return error  # the handler was cancelled, not this task
        except Exception as error:  # noqa: BLE001 # whatever it is, the messages are not done
            return error
        return None

    def _is_to_be_halved(self, failure: BaseException) -> bool:
        """The outputs do not fit, or one of the messages may be a dead letter."""
        is_narrowing = self._options.max_attempts is not None and _counts(failure)
        return is_narrowing or isinstance(failure, MessageTooLarge)

    async def _put_off(self, taken: list[InFlight], failure: BaseException, failures: int) -> bool:
        """Waits for the next attempt. Returns False when there is none. _OwnershipLost."""
        delay_s = doubled_s(self._options.retry_delay_s, failures)
        _log_failure(taken, failure, failures, delay_s)
        is_closing = await self._pause(delay_s)
        if not is_closing and not taken[0].queue.is_leaving:
            return True
        self._session.buffer.give_up(taken)
        if not is_closing:
            # The queue goes to another member. If it came back, going on behind these messages
            # would skip them.
            raise _OwnershipLost("a queue goes to another member while its messages fail")
        return False

    async def _process_halves(self, taken: list[InFlight]) -> bool:
        """For outputs that do not fit into one entry of the broker's log, and to find the message
        that fails.
        """
        single = [part for one in taken for part in one.singles]
        half, is_done = len(single) // 2, False
        try:
            is_done = await self._process(single[:half])
        finally:
            # The second half must not be done before the first: that would be skipped.
            if not is_done:
                self._session.buffer.give_up(single[half:])
        return is_done and await self._process(single[half:])

    async def _attempt(self, taken: list[InFlight]) -> None:
        """Calls the handler and sends the request. When it raises, nothing took effect."""
        state = await self._queue_state(taken[0])
        made = self._options.handler(_messages(taken))
        outputs = await made if inspect.isawaitable(made) else made
        topic, queue_id, broker_set = state.held.ref
        with self._stepping_aside():
            batches = await self._outputs.batches(
                outputs or (), broker_set, state.producer_id, state.sequence, next(self._turns)
            )
        if any(one.is_void for one in taken):
            return
        end = taken[-1].messages[-1].queue_offset + 1
        request = AtomicRequest(
            batches=batches,
            positions=[QueuePosition(topic=topic, queue_id=queue_id, queue_offset=end)],
        )
        try:
            await self._commit(state, taken, request)
        except REFUSALS as error:
            raise await self._outputs.why_refused(error, broker_set, batches) from error
        except MqError:
            # Topics may have changed.
            for topic in {batch.topic for batch in batches}:
                self._connection.topology.forget(topic)
            raise
        state.sequence += len(batches)

    async def _to_dead_letters(
        self, taken: list[InFlight], failure: BaseException, attempts: int
    ) -> None:
        """Gives up one message: it is done, and among the dead letters of the group. When it
        raises, nothing took effect.
        """
        state = await self._queue_state(taken[0])
        topic, queue_id, _ = state.held.ref
        message = taken[0].message
        failed = FailedMessage(
            topic=topic,
            queue_id=queue_id,
            queue_offset=message.queue_offset,
            reason=failure_reason(failure),
            attempts=attempts,
        )
        letters = DeadLetterBatch(
            producer_id=state.producer_id, sequence=state.sequence, messages=[failed]
        )
        try:
            await self._commit(state, taken, AtomicRequest(dead_letters=letters))
        except REFUSALS as error:
            raise CannotGoOn(error) from error
        state.sequence += 1
        log.error(
            "message %s has failed %d times and is a dead letter of group %s now",
            (message.origin or message).message_id,
            attempts,
            self._options.group,
            exc_info=failure,
        )

    async def _commit(
        self, state: _QueueState, taken: list[InFlight], request: AtomicRequest
    ) -> None:
        """Sends the request, by which these messages are done. _OwnershipLost."""
        topic, queue_id, broker_set = state.held.ref
        first = taken[0].message.queue_offset
        request.group, request.member_id = self._options.group, self._session.options.member
        request.starts.add(topic=topic, queue_id=queue_id, stood_at=state.stood_at, first=first)
        try:
            with self._stepping_aside():
                await self._send(broker_set, request)
        except _REFUSALS as error:
            raise _OwnershipLost(str(error)) from error
        state.stood_at = taken[-1].messages[-1].queue_offset + 1

    async def _queue_state(self, first: InFlight) -> _QueueState:
        held = first.queue
        state = self._queues.get(held.ref)
        if state is None or state.held is not held:
            state = self._queues[held.ref] = _QueueState(held)
        # A queue that an operator has set back may be delivered before the offset of the group is
        # seen to have moved.
        if state.version != held.version or state.stood_at > first.message.queue_offset:
            version = held.version
            try:
                with self._stepping_aside():
                    known = await query_offsets(self._connection, self._options.group, [held.ref])
            except REFUSALS as error:
                raise CannotGoOn(error) from error
            state.stood_at, state.version = known.get(held.ref, 0), version
        return state

    async def _send(self, broker_set: str, request: AtomicRequest) -> None:
        """Repeats the request until there is an answer: it may have taken effect before."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for attempt in itertools.count():
            try:
                await self._throttle.wait()
                response = await self._connection.of(broker_set).call(request, _ATTEMPT_S)
            except MqError as error:
                waited_s = loop.time() - began_s
                is_early = isinstance(error, UnknownMember) and waited_s < _UNKNOWN_S_MAX
                if not (error.retryable or is_early):
                    raise
                if self._session.buffer.is_stopped and not self._closing.is_set():
                    # The next membership sees by the group's offset whether it took effect.
                    raise _OwnershipLost("all messages in flight are dropped") from error
                is_closing = await self._pause(max(back_off_s(attempt), retry_after_s(error)))
                if is_closing and waited_s > _GOODBYE_S_MAX:
                    raise
            else:
                self._throttle.asked(response.throttle_ms)
                return

    async def _pause(self, seconds: float) -> bool:
        """Waits. Returns whether the processor is being closed."""
        if self._closing.is_set():
            # Requests in flight may still succeed; failed ones are not repeated for long.
            await asyncio.sleep(min(seconds, 0.1))
            return True
        return await is_set(self._closing, seconds)


def _messages(taken: Iterable[InFlight]) -> list[ReceivedMessage]:
    return [message for one in taken for message in one.messages]


def _counts(failure: BaseException) -> bool:
    """Whether the failure counts against `max_attempts`: it does not pass by itself."""
    return not (isinstance(failure, MqError) and failure.retryable)


def _log_failure(
    taken: list[InFlight], failure: BaseException, failures: int, delay_s: float
) -> None:
    first = taken[0].message
    log.error(
        "messages %d to %d of queue %d of topic %s could not be processed, attempt %d; next one in "
        "%.1f s",
        first.queue_offset,
        taken[-1].messages[-1].queue_offset,
        first.queue_id,
        first.topic,
        failures,
        delay_s,
        exc_info=failure,
    )


class CannotGoOn(Exception):
    """An operator has to change something first: a topic of outputs has no writable queue in the
    set of the input, or the broker refuses the processor.
    """

    def __init__(self, reason: MqError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Outputs:
    """Outputs as batches for one broker set, and the routes of their topics."""

    def __init__(self, connection: Connection, compress_above_bytes: int) -> None:
        self._connection = connection
        self._compress_above_bytes = compress_above_bytes

    async def batches(
        self,
        outputs: Iterable[tuple[str, Message | bytes | str]],
        broker_set: str,
        producer_id: str,
        sequence: int,
        turn: int,
    ) -> list[Batch]:
        """The outputs as encoded batches, numbered from `sequence` on. TopicNotFound,
        MessageTooLarge, IllegalRequest; CannotGoOn.
        """
        born_at_ms = time.time_ns() // 1_000_000
        queues: dict[tuple[str, int], list[encode.Encoded]] = {}
        size_bytes = 0
        for at, (topic, message) in enumerate(outputs):
            encoded = encode.encode_message(message, born_at_ms, self._compress_above_bytes)
            *_, key_hash, delay, priority = encoded
            if delay:
                raise IllegalDelay("what a processor sends is delivered at once")
            size_bytes += len(encoded[0])
            if at > 0 and size_bytes > ENTRY_BYTES_MAX:
                raise MessageTooLarge(
                    f"more than {ENTRY_BYTES_MAX} bytes are to be sent at once, which do not fit "
                    "an entry of the broker's log"
                )
            part = await self._part(topic, broker_set)
            candidates = queues_of(part, priority)
            queue_id = candidates[(turn if key_hash is None else key_hash) % len(candidates)]
            queues.setdefault((topic, queue_id), []).append(encoded)
        return [
            Batch.FromString(
                encode.place(topic, queue_id, producer_id, sequence + at) + encode.columns(messages)
            )
            for at, ((topic, queue_id), messages) in enumerate(queues.items())
        ]

    async def why_refused(
        self, error: MqError, broker_set: str, batches: Iterable[Batch]
    ) -> CannotGoOn:
        """The error that ends the processor after this refusal: the state of a topic, or itself."""
        try:
            for topic in {batch.topic for batch in batches}:
                self._connection.topology.forget(topic)
                await self._part(topic, broker_set)
        except CannotGoOn as end:
            return end
        return CannotGoOn(error)

    async def _part(self, topic: str, broker_set: str) -> TopicRoute:
        """The part by the word of the leader of the set."""
        topology = self._connection.topology
        part = topology.part_in(topic, broker_set)
        if part is not None and is_writable(part):
            return part
        check_topic(topic)
        for look in range(_LOOKS):
            if look:
                await asyncio.sleep(_LOOK_EVERY_S)
            asked = self._connection.of(broker_set)
            try:
                response = await topology.ask_leader(asked, [topic], create=True)
            except REFUSALS as error:
                raise CannotGoOn(error) from error
            part = topology.part_in(topic, broker_set)
            if part is not None and is_writable(part):
                return part
        if not response.topics:
            raise topic_not_found(topic, response)
        raise CannotGoOn(_why_nowhere(topic, broker_set, is_there=part is not None))


def _why_nowhere(topic: str, broker_set: str, *, is_there: bool) -> MqError:
    why = (
        f"broker set {broker_set}, where the messages come from that are processed: what is made "
        "of them is written there, in one step with their offsets"
    )
    if is_there:
        return PermissionDenied(
            f"topic {topic} takes no messages in {why}. Make it writable there, or let this group "
            "finish before the topic is drained"
        )
    return TopicNotFound(
        f"topic {topic} has no queues in {why}. Extend the topic to that set: "
        f"mq topic extend {topic} --set {broker_set} --queues 4"
    )
