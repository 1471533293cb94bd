"""ProducerService: the unary Send, the Publish stream, Recall and SendAtomically."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias, cast

from google.protobuf.message import DecodeError

from mq import names
from mq.broker import held
from mq.broker.atomic_sends import WorkStart
from mq.broker.broker import Broker
from mq.broker.joined_sends import Placed
from mq.broker.long_work import TimeSlice, in_turns
from mq.broker.publishing import Slot
from mq.broker.queue import Queue
from mq.broker.state.dedup import StoredAt
from mq.errors import (
    IllegalDelay,
    IllegalRequest,
    MessageNotFound,
    MqError,
    NodeStopped,
    NotLeader,
    PermissionDenied,
    ReplicationTimeout,
    TopicNotFound,
)
from mq.hashing import text_hash
from mq.rpc import framing, limits, status
from mq.rpc.context import Context
from mq.rpc.methods import Answer
from mq.rpc.queues import decode_positions
from mq.rpc.waiting import done_by
from mq.store import batch as batches
from mq.store.batch import Batch
from mq.wire.v1 import message_pb2, producer_pb2
from mq.wire.v1.producer_pb2 import (
    ACK_LEADER,
    ACK_NONE,
    ACK_QUORUM,
    Ack,
    BatchResult,
    PublishResponse,
)

_ACKS = frozenset(Ack.values())
# Answers that a stream keeps for a client that does not read them; then it stops reading requests.
_ANSWERS_MAX = 256
# Of a batch that is joined with others: opening each message costs more than it gains.
_JOINED_BYTES_MAX = 8 << 10


# Of a batch: the slot, or where it is placed when it was joined, or the result if it was refused,
# because an exception would keep alive everything that its traceback references.
_Outcome: TypeAlias = Slot | asyncio.Future[Placed] | BatchResult


class _Pending(NamedTuple):
    """A request whose answer is due."""

    request_id: int
    ack: int
    slots: list[_Outcome]
    began_s: float


class ProducerService:
    def __init__(self, broker: Broker, broker_set: str) -> None:
        self._broker = broker
        self._broker_set = broker_set
        config = broker.settings.config
        self._message_bytes_max = config.store.message_bytes_max
        self._timeout_s = config.broker.send_timeout_ms / 1000
        self._turn = itertools.count()
        # Tasks of Publish streams, which end when the node drains.
        self._streams: set[asyncio.Task[None]] = set()
        self._is_draining = False

    # -- Send -------------------------------------------------------------------------------------

    def begin_send(
        self, request: producer_pb2.SendRequest, size: int, context: Context, answer: Answer
    ) -> bool:
        """Joins a small send with others; False: `send` has to serve it."""

        def placed(outcome: Placed | BaseException) -> None:
            if isinstance(outcome, BaseException):
                answer(outcome)
                return
            queue_id, queue_offset, stored_at_ms, log_offsets = outcome
            response = producer_pb2.SendResponse(
                queue_id=queue_id,
                queue_offset=queue_offset,
                stored_at_ms=stored_at_ms,
                message_ids=[names.message_id(self._broker_set, at) for at in log_offsets],
            )
            answer(response.SerializeToString())

        if (
            request.ack != ACK_QUORUM
            or request.producer_id
            or request.sequence
            or request.delay_level
            or request.delay_ms
            or request.deliver_at_ms
        ):
            return False
        queue_id = request.queue_id if request.HasField("queue_id") else None
        take = self._broker.joined_sends.take
        return take(request.topic, queue_id, request.messages, size, placed)

    async def send(
        self, request: producer_pb2.SendRequest, context: Context
    ) -> producer_pb2.SendResponse:
        broker = self._broker
        _check_ack(request.ack)
        queue_id = await self._queue(request)
        wire = message_pb2.Batch(
            topic=request.topic,
            queue_id=queue_id,
            producer_id=request.producer_id,
            sequence=request.sequence,
            deliver_at_ms=request.deliver_at_ms,
            delay_ms=_delay_ms(request),
            messages=request.messages,
        )
        batch = batches.accept(wire.SerializeToString(), self._message_bytes_max)
        await broker.publisher.room(len(batch.data), self._timeout_s)
        slot = await broker.submit(batch, tells_appended=request.ack == ACK_LEADER)
        if request.ack == ACK_NONE:
            return producer_pb2.SendResponse(queue_id=queue_id, queue_offset=-1)
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        stored = await self._outcome(slot, request.ack, deadline_s)
        response = producer_pb2.SendResponse(
            queue_id=stored.queue_id,
            queue_offset=stored.queue_offset,
            stored_at_ms=stored.stored_at_ms,
            is_duplicate=stored.is_duplicate,
            deliver_at_ms=stored.deliver_at_ms,
        )
        if stored.log_offset >= 0:
            starts = batch.frame_starts - batch.region_start + stored.log_offset
            ids = [names.message_id(self._broker_set, at) for at in starts.tolist()]
            response.message_ids.extend(ids)
        return response

    async def _queue(self, request: producer_pb2.SendRequest) -> int:
        if request.HasField("queue_id"):
            return request.queue_id
        topics = self._broker.state.topics
        try:
            topic = topics.find(request.topic)
        except TopicNotFound:
            if not self._broker.settings.creates_topics:
                raise
            await self._broker.catalog.ensure([request.topic])
            topic = topics.find(request.topic)
        first = request.messages[0] if request.messages else message_pb2.Message()
        turn = text_hash(first.ordering_key) if first.ordering_key else next(self._turn)
        queues = topic.queues_of(first.priority)
        return queues[turn % len(queues)]

    # -- Publish ----------------------------------------------------------------------------------

    async def publish(self, context: Context) -> None:
        """Reads and answers at the same time. After the last request every answer is given before
        the stream ends.
        """
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._streams.add(task)
        try:
            await self._publish(context)
        finally:
            self._streams.discard(task)

    def drain(self) -> None:
        """The node stops: streams take no more requests, answer what they took, and end."""
        self._is_draining = True
        for task in self._streams:
            task.cancel()

    async def _publish(self, context: Context) -> None:
        pending: asyncio.Queue[_Pending | None] = asyncio.Queue(_ANSWERS_MAX)
        writer = asyncio.ensure_future(self._answer(pending, context))
        try:
            while (data := await context.read()) is not None:
                request = await self._take(data)
                if request.ack != ACK_NONE:
                    await _put(pending, request, writer)
            await _put(pending, None, writer)
            await writer
        except (IllegalRequest, NotLeader):
            # The requests before it get their answers.
            await _put(pending, None, writer)
            await writer
            raise
        except asyncio.CancelledError:
            if not self._is_draining:
                raise
            await _put(pending, None, writer)
            await writer
            raise NodeStopped("this node is stopping: send to another one, or again") from None
        finally:
            writer.cancel()

    async def _take(self, data: bytes) -> _Pending:
        request_id, ack, blobs = framing.read_publish(data)
        _check_ack(ack)
        slots: list[_Outcome] = []
        turn = TimeSlice()
        for blob in blobs:
            try:
                slots.append(self._join(blob, ack) or await self._submit(blob, ack))
            except MqError as error:
                # One-way: only the end of the stream can say that another node leads.
                if ack == ACK_NONE and isinstance(error, NotLeader):
                    raise
                slots.append(_failed(error))
            await turn.over()
        # The time-out starts here: waiting for room does not count.
        return _Pending(request_id, ack, slots, asyncio.get_running_loop().time())

    def _join(self, blob: memoryview, ack: int) -> asyncio.Future[Placed] | None:
        """Joins a small plain batch with others; None: it is not one."""
        if ack != ACK_QUORUM or len(blob) > _JOINED_BYTES_MAX:
            return None
        try:
            batch = message_pb2.Batch.FromString(bytes(blob))
        except DecodeError:
            return None  # and `_submit` says why
        if (
            batch.frame_sizes
            or batch.tag_hashes
            or batch.key_hashes
            or batch.key_counts
            or batch.producer_id
            or batch.sequence
            or batch.delay_ms
            or batch.deliver_at_ms
            or batch.origin_log_offset
            or batch.HasField("half")
        ):
            return None
        joined: asyncio.Future[Placed] = asyncio.get_running_loop().create_future()
        fulfil = functools.partial(_fulfil, joined)
        take = self._broker.joined_sends.take
        is_taken = take(batch.topic, batch.queue_id, batch.messages, len(blob), fulfil)
        return joined if is_taken else None

    async def _submit(self, blob: memoryview, ack: int) -> Slot:
        self._broker.joined_sends.submit()
        batch = limits.accept_batch(blob, self._message_bytes_max)
        await self._broker.publisher.room(len(blob), self._timeout_s)
        return await self._broker.submit(batch, tells_appended=ack == ACK_LEADER)

    async def _answer(self, pending: asyncio.Queue[_Pending | None], context: Context) -> None:
        while (request := await pending.get()) is not None:
            deadline_s = request.began_s + self._timeout_s
            results = [await self._settled(slot, request.ack, deadline_s) for slot in request.slots]
            response = PublishResponse(request_id=request.request_id, results=results)
            await context.write(response.SerializeToString())

    async def _settled(self, slot: _Outcome, ack: int, deadline_s: float) -> BatchResult:
        if isinstance(slot, BatchResult):
            return slot
        try:
            if isinstance(slot, asyncio.Future):
                queue_id, queue_offset, stored_at_ms, log_offsets = await slot
                return BatchResult(
                    queue_id=queue_id,
                    queue_offset=queue_offset,
                    log_offset=log_offsets[0],
                    stored_at_ms=stored_at_ms,
                )
            stored = await self._outcome(slot, ack, deadline_s)
        except MqError as error:
            return _failed(error)
        return _result(stored)

    async def _outcome(self, slot: Slot, ack: int, deadline_s: float) -> StoredAt:
        """Raises FlushTimeout, ReplicationTimeout, or the error of the batch."""
        waited: asyncio.Future[object] = slot.outcome  # type: ignore[assignment]
        if ack == ACK_LEADER and not slot.outcome.done():
            waited = asyncio.ensure_future(self._broker.on_leader(slot))
            waited.add_done_callback(_retrieve)
        if not waited.done() and not await done_by(waited, deadline_s):
            raise self._broker.publisher.timed_out(slot)
        if waited is slot.outcome or slot.outcome.done():
            return slot.outcome.result()
        waited.result()
        return StoredAt(slot.batch.queue_id, -1, -1, 0, deliver_at_ms=slot.batch.deliver_at_ms)

    # -- Recall -----------------------------------------------------------------------------------

    async def recall(
        self, request: producer_pb2.RecallRequest, context: Context
    ) -> producer_pb2.RecallResponse:
        broker_set, log_offset = names.parse_message_id(request.message_id)
        names.check_topic(request.topic)
        if names.is_internal_topic(request.topic):
            raise PermissionDenied(f"what waits for topic {request.topic} is the broker's own")
        if request.deliver_at_ms <= 0:
            raise IllegalRequest(
                f"deliver_at_ms = {request.deliver_at_ms}: say when the message is delivered, as "
                "the send returned it"
            )
        if broker_set != self._broker_set:
            raise MessageNotFound(
                f"message {request.message_id} is in broker set {broker_set}, this is "
                f"{self._broker_set}"
            )
        self._broker.state.topics.find(request.topic)
        await self._broker.delays.recalls.recall(request.topic, log_offset, request.deliver_at_ms)
        return producer_pb2.RecallResponse()

    # -- SendAtomically ---------------------------------------------------------------------------

    async def send_atomically(
        self, request: producer_pb2.RawAtomicRequest, context: Context
    ) -> producer_pb2.AtomicResponse:
        try:
            async with asyncio.timeout(self._timeout_s):
                stored = await self._send_atomically(request)
        except TimeoutError:
            raise ReplicationTimeout(
                "no majority of the broker set had it in time: it may become part of the log or "
                "not. Send the same again, with the same sequences"
            ) from None
        return producer_pb2.AtomicResponse(results=map(_result, stored))

    async def _send_atomically(self, request: producer_pb2.RawAtomicRequest) -> list[StoredAt]:
        return await self._broker.atomic_sends.send(
            await self._accepted(request.batches),
            request.group,
            request.member_id,
            await decode_positions(request.positions),
            request.handles,
            starts=dict(
                await in_turns(
                    (Queue(one.topic, one.queue_id), WorkStart(one.stood_at, one.first))
                    for one in request.starts
                )
            ),
        )

    async def _accepted(self, data: Iterable[bytes]) -> list[Batch]:
        found, turn = [], TimeSlice()
        for one in data:
            found.append(limits.accept_batch(one, self._message_bytes_max))
            await turn.over()
        return found


def _result(stored: StoredAt) -> BatchResult:
    return BatchResult(
        queue_id=stored.queue_id,
        queue_offset=stored.queue_offset,
        log_offset=stored.log_offset,
        stored_at_ms=stored.stored_at_ms,
        is_duplicate=stored.is_duplicate,
        deliver_at_ms=stored.deliver_at_ms,
    )


def _failed(error: MqError) -> BatchResult:
    details = status.wire_status(error)
    return BatchResult(
        code=details.code,
        text=details.text,
        queue_offset=-1,
        log_offset=-1,
        leader_address=details.leader_address,
        retry_after_ms=details.retry_after_ms,
    )


def _delay_ms(request: producer_pb2.SendRequest) -> int:
    """Raises IllegalDelay if there is no such level, or the delay is given twice."""
    if not request.delay_level:
        return request.delay_ms
    if request.delay_ms or request.deliver_at_ms:
        raise IllegalDelay("delay_level, delay_ms and deliver_at_ms: say one of them")
    return held.level_ms(request.delay_level)


def _fulfil(joined: asyncio.Future[Placed], placed: Placed | BaseException) -> None:
    if joined.done():
        return  # the stream has ended
    if isinstance(placed, BaseException):
        joined.set_exception(placed)
        _retrieve(joined)
    else:
        joined.set_result(placed)


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Retrieves the exception so that asyncio does not warn: the client may have gone."""
    if not future.cancelled():
        future.exception()


def _check_ack(ack: int) -> None:
    if ack not in _ACKS:
        raise IllegalRequest(f"unknown ack {ack}: use 0 (quorum), 1 (leader) or 2 (none)")


async def _put(
    pending: asyncio.Queue[_Pending | None], request: _Pending | None, writer: asyncio.Future[None]
) -> None:
    """Waits for room in the queue; raises what the writer failed with."""
    if pending.full():
        put = asyncio.ensure_future(pending.put(request))
        await asyncio.wait([put, writer], return_when=asyncio.FIRST_COMPLETED)
        if not put.done():
            put.cancel()
            await writer
    elif writer.done():
        await writer
    else:
        pending.put_nowait(request)
