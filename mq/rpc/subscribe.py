"""The Subscribe stream: what the client says goes to the group, what its member gets goes out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import grpc

from mq.broker.broker import Broker
from mq.broker.consumer.filters import compile_filter
from mq.broker.consumer.groups import Start
from mq.broker.consumer.pulling import READ_BYTES_MAX
from mq.broker.consumer.subscriber import Assigned, Limits, Position, Redirected, Subscriber
from mq.broker.long_work import in_turns
from mq.broker.queue import Queue
from mq.errors import IllegalRequest, UnknownMember
from mq.rpc import framing, limits, listeners
from mq.rpc.consumer import checked_time, member_spec, offsets_of, queues_of
from mq.rpc.methods import Context
from mq.wire.v1 import consumer_pb2 as pb

_CACHE_MESSAGES_MAX = 1_000_000
_CACHE_BYTES_MAX = 1 << 30
_BREAK_S = 0.05
_parse = limits.Reader(pb.SubscribeRequest)


class SubscribeService:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._options = broker.settings.config.broker

    async def subscribe(self, context: Context) -> None:
        await self._broker.leadership.settled()
        subscriber = await self._begin(context)
        reader = asyncio.ensure_future(self._listen(subscriber, context))
        writer = asyncio.ensure_future(self._deliver(subscriber, context))
        is_over = False
        try:
            await asyncio.wait([reader, writer], return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                writer.result()
            is_over = reader.done() and not reader.cancelled() and reader.exception() is None
            if reader.done():
                reader.result()
        except asyncio.CancelledError:
            writer.cancel()
            raise
        finally:
            reader.cancel()
            self._broker.groups.unsubscribe(subscriber, is_over=is_over)
            # The status cannot be sent before a write that is under way has ended.
            subscriber.end(UnknownMember(f"{subscriber.member_id} has no stream any more"))
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _begin(self, context: Context) -> Subscriber:
        data = await context.read()
        request = pb.SubscribeRequest() if data is grpc.aio.EOF else _parse(data)
        if request.WhichOneof("kind") != "start":
            raise IllegalRequest("the first message of the stream must be `start`")
        start = request.start
        spec = member_spec(start, context.peer(), is_streaming=True)
        filters = {one.topic: compile_filter(one.filter) for one in start.subscriptions}
        limits, first, positions = (
            _limits(start),
            start_position(start),
            await offsets_of(start.positions),
        )
        await self._broker.expect(filters)
        self._broker.receiving.check_inactive(start.group)
        subscriber = self._broker.groups.subscribe(
            start.group, spec, filters, limits, first, positions
        )
        if start.takes_redirects:
            subscriber.allow_redirects(self._broker.replicas, spec.zone)
        return subscriber

    async def _listen(self, subscriber: Subscriber, context: Context) -> None:
        groups = self._broker.groups
        while (data := await context.read()) is not grpc.aio.EOF:
            request = _parse(data)
            match request.WhichOneof("kind"):
                case "progress":
                    reported = await _positions(request.progress.positions)
                    await subscriber.until_applied(reported)
                    groups.progress(subscriber, reported)
                case "resume":
                    wanted = await _positions(request.resume.positions)
                    await subscriber.until_applied(wanted)
                    groups.alive(subscriber)
                    subscriber.resume(wanted)
                case "released":
                    groups.released(subscriber, await queues_of(request.released.queues))
                case "seek":
                    groups.seek(subscriber, await offsets_of(request.seek.positions))
                case "alive":
                    groups.alive(subscriber)
                case _:
                    raise IllegalRequest("only the first message of the stream is `start`")
        # A connection that breaks looks like a stream that ends in good order, until gRPC cancels
        # the call a moment later.
        await asyncio.sleep(_BREAK_S)

    async def _deliver(self, subscriber: Subscriber, context: Context) -> None:
        unsent = self._broker.unsent
        while True:
            out = await subscriber.next()
            if isinstance(out, Assigned):
                await context.write(await self._assignment(out))
            elif isinstance(out, Redirected):
                await context.write(_redirect(out))
            else:
                data = framing.delivery(out)
                # Until gRPC has passed it on, which it does as far as the client reads.
                unsent.hold(len(data))
                try:
                    await context.write(data)
                finally:
                    unsent.release(len(data))

    async def _assignment(self, assigned: Assigned) -> bytes:
        assignment = pb.Assignment(
            generation=assigned.generation,
            queues=await in_turns(
                pb.AssignedQueue(
                    topic=queue.topic,
                    queue_id=queue.queue_id,
                    queue_offset=at,
                    epoch=epoch,
                    rank=assigned.ranks.get(queue, 0),
                )
                for queue, at, epoch in assigned.positions
            ),
            heartbeat_ms=self._options.heartbeat_ms,
            expires_ms=self._options.member_expires_ms,
        )
        return pb.SubscribeResponse(assignment=assignment).SerializeToString()


async def _positions(wire: Iterable[pb.QueuePosition]) -> list[Position]:
    return await in_turns(
        Position(Queue(one.topic, one.queue_id), one.queue_offset, one.epoch) for one in wire
    )


def _redirect(redirected: Redirected) -> bytes:
    queue, epoch, queue_offset, place = redirected
    redirect = pb.Redirect(
        topic=queue.topic,
        queue_id=queue.queue_id,
        epoch=epoch,
        queue_offset=queue_offset,
        address=listeners.chosen(place.address, place.external_address),
    )
    return pb.SubscribeResponse(redirect=redirect).SerializeToString()


def _limits(start: pb.SubscribeStart) -> Limits:
    default = Limits()
    return Limits(
        min(start.cache_messages or default.messages, _CACHE_MESSAGES_MAX),
        min(start.cache_bytes or default.size_bytes, _CACHE_BYTES_MAX),
        min(start.delivery_bytes or default.delivery_bytes, READ_BYTES_MAX),
    )


def start_position(start: pb.SubscribeStart | pb.ReceiveRequest) -> Start:
    match start.start_position:
        case pb.START_LATEST:
            return Start()
        case pb.START_EARLIEST:
            return Start(is_earliest=True)
        case pb.START_TIMESTAMP:
            return Start(at_ms=checked_time(start.start_at_ms))
    raise IllegalRequest(f"start_position = {start.start_position} is none")
