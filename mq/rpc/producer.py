"""ProducerService: the unary Send, the Publish stream, Recall and SendAtomically."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Iterable
from typing import cast

from mq import names
from mq.broker import held
from mq.broker.atomic_sends import WorkStart
from mq.broker.attribution import actor_of
from mq.broker.broker import Broker
from mq.broker.joined_sends import Placed
from mq.broker.long_work import TimeSlice, in_turns
from mq.broker.queue import Queue
from mq.broker.security.gate import Principal
from mq.broker.state.dedup import StoredAt
from mq.errors import (
    IllegalDelay,
    IllegalRequest,
    MessageNotFound,
    NodeStopped,
    NotLeader,
    PermissionDenied,
    ReplicationTimeout,
    TopicNotFound,
)
from mq.hashing import text_hash
from mq.rpc import limits
from mq.rpc.access import LIVE, Rules
from mq.rpc.context import Context
from mq.rpc.methods import Answer
from mq.rpc.publish_stream import PublishStream, check_ack, outcome, room_owner, stored_result
from mq.rpc.queues import decode_positions
from mq.store import batch as batches
from mq.store.batch import Batch
from mq.wire import varint
from mq.wire.v1 import admin_pb2, message_pb2, producer_pb2
from mq.wire.v1.producer_pb2 import (
    ACK_LEADER,
    ACK_NONE,
    ACK_QUORUM,
)

_read_send = limits.Reader(producer_pb2.SendRequest)


class ProducerService:
    def __init__(self, broker: Broker, broker_set: str, rules: Rules) -> None:
        self._broker = broker
        self._broker_set = broker_set
        self._rules = rules
        config = broker.settings.config
        self._message_bytes_max = config.store.message_bytes_max
        self._timeout_s = config.broker.send_timeout_ms / 1000
        self._turn = itertools.count()
        # Used again and again, for its numbers alone: texts would add up in its memory.
        self._response = producer_pb2.SendResponse()
        # Tasks of Publish streams, which end when the node drains.
        self._streams: set[asyncio.Task[None]] = set()
        self._is_draining = False

    # -- Send -------------------------------------------------------------------------------------

    def begin_send(self, data: bytes, context: Context, answer: Answer) -> bool:
        """Joins a small send with others; False: `send` has to serve it."""
        quotas, throttle_ms = self._broker.quotas, 0

        def admit(topic: str, size: int, messages: int) -> None:
            nonlocal throttle_ms
            throttle_ms = quotas.publish(context.caller.user, topic, size, messages)

        def placed(outcome: Placed | BaseException) -> None:
            if isinstance(outcome, BaseException):
                answer(outcome)
                return
            numbers = self._response
            numbers.throttle_ms = throttle_ms
            numbers.queue_id, numbers.queue_offset, numbers.stored_at_ms, log_offsets = outcome
            ids = [self._message_id(at) for at in log_offsets]
            answer(b"".join((numbers.SerializeToString(), *ids)))

        placed.sender = actor_of(context.caller.user, context.peer())  # type: ignore[attr-defined]
        request = _read_send(data)
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
        return take(
            request.topic,
            queue_id,
            request.messages,
            len(data),
            placed,
            admit if quotas.is_limiting else None,
        )

    def _message_id(self, log_offset: int) -> bytes:
        """As a field of a SendResponse, behind its numbers."""
        text = names.message_id(self._broker_set, log_offset).encode()
        return _message_id_head(len(text)) + text

    async def send(
        self, request: producer_pb2.SendRequest, context: Context
    ) -> producer_pb2.SendResponse:
        broker = self._broker
        check_ack(request.ack)
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
        owner = room_owner(context.caller, context)
        await broker.publisher.room(len(batch.data), self._timeout_s, owner)
        slot = await broker.submit(
            batch,
            user=context.caller.user,
            owner=owner,
            tells_appended=request.ack == ACK_LEADER,
            sender=actor_of(context.caller.user, context.peer()),
        )
        if request.ack == ACK_NONE:
            return producer_pb2.SendResponse(
                queue_id=queue_id, queue_offset=-1, throttle_ms=slot.throttle_ms
            )
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        stored = await outcome(broker, slot, request.ack, deadline_s)
        response = producer_pb2.SendResponse(
            queue_id=stored.queue_id,
            queue_offset=stored.queue_offset,
            stored_at_ms=stored.stored_at_ms,
            is_duplicate=stored.is_duplicate,
            deliver_at_ms=stored.deliver_at_ms,
            throttle_ms=slot.throttle_ms,
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
        caller = LIVE.get().principal
        with self._broker.quotas.streaming(caller.user, caller.namespace):
            await self._publish(context)

    async def _publish(self, context: Context) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._streams.add(task)
        stream = PublishStream(self._broker, self._rules, context)
        try:
            await stream.run()
            await stream.finish()
        except (IllegalRequest, NotLeader):
            # The requests before it get their answers.
            await stream.finish()
            raise
        except asyncio.CancelledError:
            if not self._is_draining:
                raise
            await stream.finish()
            raise NodeStopped("this node is stopping: send to another one, or again") from None
        finally:
            self._streams.discard(task)
            stream.close()

    def drain(self) -> None:
        """The node stops: streams take no more requests, answer what they took, and end."""
        self._is_draining = True
        for task in self._streams:
            task.cancel()

    # -- Recall -----------------------------------------------------------------------------------

    async def recall(
        self, request: producer_pb2.RecallRequest, context: Context
    ) -> producer_pb2.RecallResponse:
        await recall(self._broker, self._broker_set, request)
        return producer_pb2.RecallResponse()

    # -- SendAtomically ---------------------------------------------------------------------------

    async def send_atomically(
        self, request: producer_pb2.RawAtomicRequest, context: Context
    ) -> producer_pb2.AtomicResponse:
        try:
            async with asyncio.timeout(self._timeout_s):
                stored, throttle_ms = await self._send_atomically(request, context.caller)
        except TimeoutError:
            raise ReplicationTimeout(
                "no majority of the broker set had it in time: it may become part of the log or "
                "not. Send the same again, with the same sequences"
            ) from None
        results = map(stored_result, stored)
        return producer_pb2.AtomicResponse(results=results, throttle_ms=throttle_ms)

    async def _send_atomically(
        self, request: producer_pb2.RawAtomicRequest, caller: Principal
    ) -> tuple[list[StoredAt], int]:
        """Where the batches are, and for how long the caller should pause."""
        batches = await self._accepted(request.batches, caller)
        throttle_ms = self._admitted(batches, caller)
        stored = await self._broker.atomic_sends.send(
            batches,
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
            dead_letters=request.dead_letters if request.HasField("dead_letters") else None,
        )
        return stored, throttle_ms

    def _admitted(self, batches: Iterable[Batch], caller: Principal) -> int:
        """Raises FlowControl, QuotaExceeded. What is stored already is not asked about."""
        admit, producers = self._broker.admission(caller.user), self._broker.state.producers
        if admit is None:
            return 0
        new = (one for one in batches if producers.find(one.producer_id, one.sequence) is None)
        return max(map(admit, new), default=0)

    async def _accepted(self, data: Iterable[bytes], caller: Principal) -> list[Batch]:
        found, turn = [], TimeSlice()
        for one in data:
            batch = limits.accept_batch(one, self._message_bytes_max)
            self._rules.publish_to(caller, batch.topic)
            found.append(batch)
            await turn.over()
        return found


def _delay_ms(request: producer_pb2.SendRequest) -> int:
    """Raises IllegalDelay if there is no such level, or the delay is given twice."""
    if not request.delay_level:
        return request.delay_ms
    if request.delay_ms or request.deliver_at_ms:
        raise IllegalDelay("delay_level, delay_ms and deliver_at_ms: say one of them")
    return held.level_ms(request.delay_level)


@functools.lru_cache(maxsize=256)
def _message_id_head(length: int) -> bytes:
    return b"\x2a" + varint.encode(length)  # `message_ids` of a SendResponse


async def recall(
    broker: Broker,
    broker_set: str,
    request: producer_pb2.RecallRequest | admin_pb2.RecallScheduledRequest,
) -> None:
    """For producers and for operators. Raises as `Recalls.recall`; IllegalRequest."""
    owner, log_offset = names.parse_message_id(request.message_id)
    names.check_topic(request.topic)
    if names.is_internal_topic(request.topic):
        raise PermissionDenied(f"what waits for topic {request.topic} is the broker's own")
    if request.deliver_at_ms <= 0:
        raise IllegalRequest(
            f"deliver_at_ms = {request.deliver_at_ms}: say when the message is delivered, as the "
            "send returned it"
        )
    if owner != broker_set:
        raise MessageNotFound(
            f"message {request.message_id} is in broker set {owner}, this is {broker_set}"
        )
    broker.state.topics.find(request.topic)
    await broker.delays.recalls.recall(request.topic, log_offset, request.deliver_at_ms)
