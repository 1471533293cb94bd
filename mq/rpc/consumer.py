"""ConsumerService: Pull with its long poll, the Subscribe stream, groups and offsets for clients
that pull, Receive and its handles, Retry.
"""

from __future__ import annotations

import asyncio
import functools
import math
import operator
from collections.abc import Iterable, Sequence

from mq import names
from mq.broker.attribution import Actor, actor_of
from mq.broker.broker import Broker
from mq.broker.consumer.filters import canonical, compile_filter
from mq.broker.consumer.groups import Start
from mq.broker.consumer.membership import Group, Spec
from mq.broker.consumer.pulling import READ_BYTES_MAX, Query
from mq.broker.consumer.subscriber import Assigned, CacheLimits, Position, Redirected, Subscriber
from mq.broker.consumer.unsent import Unsent
from mq.broker.long_work import TimeSlice, encode_in_turns, in_turns
from mq.broker.queue import Queue
from mq.broker.receive import acks
from mq.broker.receive.grants import GrantedRun, Receive
from mq.broker.receive.leases import Handle, parse_handles
from mq.broker.receive.members import ReceiveSpec
from mq.broker.retry.retrying import Failed, MessagePosition, RetryResult
from mq.broker.security.quotas import DEBT_MS_MAX
from mq.errors import IllegalRequest, UnknownMember
from mq.http2.calls import CallEnded
from mq.rpc import framing, limits, listeners
from mq.rpc.access import LIVE, Rules, subscription_needs
from mq.rpc.context import Context
from mq.rpc.limits import HANDLES_MAX, TOPICS_MAX
from mq.rpc.methods import Answer
from mq.rpc.queues import (
    decode_offset_kind,
    decode_positions,
    decode_queues,
    decode_start,
    encode_positions,
    start_offsets,
    topic_queues,
)
from mq.rpc.status import wire_status
from mq.wire.v1 import consumer_pb2 as pb
from mq.wire.v1.status_pb2 import Code

MEMBER_ID_CHARACTERS_MAX = 255
_MODES = frozenset(pb.ConsumeMode.values())
# Of a Subscribe stream.
CACHE_MESSAGES_MAX = 1_000_000
CACHE_BYTES_MAX = 1 << 30
# Positions of a report of progress, in one turn of the loop.
_REPORTED_MAX = 2_000
# gRPC cancels the call of a broken connection within this time.
_BREAK_S = 0.05
# Of Receive.
MESSAGES_DEFAULT, MESSAGES_MAX = 32, 1_000
INVISIBLE_MS_MIN, INVISIBLE_MS_DEFAULT, INVISIBLE_MS_MAX = 10_000, 60_000, 12 * 3_600_000
_REASON_CHARACTERS_MAX = 1_000
# Time for an answer to reach its client.
_ANSWER_S = 1.0

# What most acknowledgements are.
_ONE_DONE_RESPONSE = pb.HandleResponse(codes=[Code.SEND_OK]).SerializeToString()

# Of a Receive that is read once and then remembered.
_REMEMBERED_BYTES_MAX = 1 << 10

_COMMITTED_RESPONSE = pb.CommitOffsetsResponse().SerializeToString()
# Of a commit that is decoded in one go.
_FEW_POSITIONS = 64

_read_subscribe = limits.Reader(pb.SubscribeRequest)
_read_commit = limits.Reader(pb.CommitOffsetsRequest)
_read_ack = limits.Reader(pb.AckRequest)
_read_nack = limits.Reader(pb.NackRequest)
_read_change_invisible = limits.Reader(pb.ChangeInvisibleRequest)


class ConsumerService:
    def __init__(self, broker: Broker, rules: Rules) -> None:
        self._broker = broker
        self._rules = rules
        self._options = broker.settings.config.broker

    async def pull(self, request: pb.PullRequest, context: Context) -> bytes:
        leadership, puller = self._broker.leadership, self._broker.puller
        if not request.any_replica or leadership.term:
            await leadership.settled()
        query = Query(
            Queue(request.topic, request.queue_id),
            request.queue_offset,
            compile_filter(request.filter),
            request.bytes_max,
            request.messages_max,
        )
        wait_s = request.wait_ms / 1000
        query, wait_s = await self._within_quotas(query, wait_s, context.caller.user)
        if not request.any_replica:
            result, read_from = await puller.pull(query, wait_s), ""
        else:
            result, place = await puller.pull_anywhere(query, wait_s, request.zone)
            read_from = listeners.chosen(place.address, place.external_address) if place else ""
        size_bytes = sum(len(run.frames) for run in result.runs)
        self._broker.quotas.deliver(context.caller.user, request.topic, size_bytes)
        return _held(framing.pull_response(result, read_from), context, self._broker.unsent)

    async def _within_quotas(self, query: Query, wait_s: float, user: str) -> tuple[Query, float]:
        """Returns what may be read now, and how long there is to wait for it. What its caller was
        given before may be too much: then this waits, for the time that there is. FlowControl.
        """
        quotas, topic = self._broker.quotas, query.queue.topic
        if not quotas.is_limiting:
            return query, wait_s
        wait_s -= await self._pay(user, topic, wait_s)
        bytes_max = quotas.delivery_bytes_max(user, topic)
        if bytes_max is not None:
            query = query._replace(bytes_max=min(query.bytes_max or bytes_max, bytes_max))
        return query, wait_s

    def _within_rate(self, limits: CacheLimits, topics: Iterable[str]) -> CacheLimits:
        """With deliveries that the quotas of the stream's caller let through in short steps."""
        user = LIVE.get().principal.user
        found = [self._broker.quotas.delivery_bytes_max(user, topic) for topic in topics]
        steps = [one for one in found if one is not None]
        return limits._replace(delivery_bytes=min([limits.delivery_bytes, *steps]))

    async def _pay(self, user: str, topic: str, wait_s: float) -> float:
        """Waits until the user owes nothing for deliveries; at most so long, and for what may be
        owed at least. Returns how much of that time it took. FlowControl: more is owed.
        """
        quotas = self._broker.quotas
        pause_s = quotas.delivery_debt_ms(user, topic) / 1000
        if not pause_s:
            return 0.0
        await asyncio.sleep(min(pause_s, max(wait_s, DEBT_MS_MAX / 1000)))
        quotas.check_delivery(user, topic)
        return min(pause_s, wait_s)

    # -- Subscribe --------------------------------------------------------------------------------

    async def subscribe(self, context: Context) -> None:
        caller = LIVE.get().principal
        with self._broker.quotas.streaming(caller.user, caller.namespace):
            await self._subscribe(context)

    async def _subscribe(self, context: Context) -> None:
        """Requests go to the group while its assignments and deliveries go out."""
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
            # The status cannot be sent before a write that is in flight has ended.
            subscriber.end(UnknownMember(f"the stream of {subscriber.member_id} is over"))
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _begin(self, context: Context) -> Subscriber:
        data, turn = await context.read(), TimeSlice()
        request = pb.SubscribeRequest() if data is None else _read_subscribe(data)
        if request.WhichOneof("kind") != "start":
            raise IllegalRequest("the first message of the stream must be `start`")
        start, groups = request.start, self._broker.groups
        user = LIVE.get().principal.user
        spec = _member_spec(start, context.peer(), user, is_streaming=True)
        self._rules.hold(subscription_needs(start))
        filters = {one.topic: compile_filter(one.filter) for one in start.subscriptions}
        limits, first = self._within_rate(_cache_limits(start), filters), decode_start(start)
        await turn.over()
        positions = await decode_positions(start.positions)
        await turn.over()
        claims = await in_turns(
            (queue, groups.claim(start.group, spec, queue, at)) for queue, at in positions.items()
        )
        await self._broker.expect(filters)
        await turn.over()
        await self._broker.catalog.begin_group(start.group)
        self._broker.receiving.check_inactive(start.group)
        subscriber = groups.subscribe(start.group, spec, filters, limits, first, dict(claims))
        if start.takes_redirects:
            subscriber.allow_redirects(self._broker.replicas, spec.zone)
        return subscriber

    async def _listen(self, subscriber: Subscriber, context: Context) -> None:
        groups = self._broker.groups
        while (data := await context.read()) is not None:
            request = _read_subscribe(data)
            match request.WhichOneof("kind"):
                case "progress":
                    reported = await _decode_epochs(request.progress.positions)
                    await subscriber.until_applied(reported)
                    groups.alive(subscriber)
                    turn = TimeSlice()
                    for at in range(0, len(reported), _REPORTED_MAX):
                        groups.progress(subscriber, reported[at : at + _REPORTED_MAX])
                        await turn.over()
                case "resume":
                    wanted = await _decode_epochs(request.resume.positions)
                    await subscriber.until_applied(wanted)
                    groups.alive(subscriber)
                    subscriber.resume(wanted)
                case "released":
                    groups.released(subscriber, await _decode_released(request.released.queues))
                case "seek":
                    groups.seek(subscriber, await decode_positions(request.seek.positions))
                case "alive":
                    groups.alive(subscriber)
                case _:
                    raise IllegalRequest("only the first message of the stream is `start`")
        # A broken connection reads as the end of the requests until gRPC cancels the call: only a
        # stream that ends in good order lets go of its queues at once.
        await asyncio.sleep(_BREAK_S)

    async def _deliver(self, subscriber: Subscriber, context: Context) -> None:
        unsent, quotas, live = self._broker.unsent, self._broker.quotas, LIVE.get()
        while True:
            out = await subscriber.next()
            if isinstance(out, Assigned):
                await context.write(await self._assignment(out))
            elif isinstance(out, Redirected):
                await context.write(_redirect(out))
            else:
                parts = framing.delivery(out)
                size_bytes = sum(map(len, parts))
                # Unsent until the transport has passed on at least half of it, which it does as far
                # as the client reads.
                unsent.hold(size_bytes)
                try:
                    await context.write_parts(parts)
                finally:
                    unsent.release(size_bytes)
                if quotas.is_limiting:
                    user = live.principal.user
                    subscriber.pause(quotas.deliver(user, out.queue.topic, size_bytes) / 1000)

    async def _assignment(self, assigned: Assigned) -> bytes:
        assignment = pb.Assignment(
            generation=assigned.generation,
            heartbeat_ms=self._options.heartbeat_ms,
            expires_ms=self._options.member_expires_ms,
        )
        queues = (
            {
                "topic": queue.topic,
                "queue_id": queue.queue_id,
                "queue_offset": at,
                "epoch": epoch,
                "rank": assigned.ranks.get(queue, 0),
            }
            for queue, at, epoch in assigned.positions
        )
        return framing.assignment(await encode_in_turns(assignment, "queues", queues))

    # -- groups of members that pull --------------------------------------------------------------

    async def join(self, request: pb.JoinRequest, context: Context) -> bytes:
        spec = _member_spec(request, context.peer(), context.caller.user, is_streaming=False)
        for one in request.subscriptions:
            compile_filter(one.filter)
        owned = await decode_queues(request.owned)
        await self._broker.expect(spec.subscriptions)
        await self._broker.catalog.begin_group(request.group)
        self._broker.receiving.check_inactive(request.group)
        group = self._broker.groups.join(request.group, spec, owned)
        await self._broker.groups.until_arranged(request.group)
        return await self._membership(group, request.member_id)

    async def heartbeat(self, request: pb.HeartbeatRequest, context: Context) -> bytes:
        owned = await decode_queues(request.owned)
        group = self._broker.groups.heartbeat(request.group, request.member_id, owned)
        await self._broker.groups.until_arranged(request.group)
        return await self._membership(group, request.member_id)

    async def leave(self, request: pb.LeaveRequest, context: Context) -> pb.LeaveResponse:
        reason = request.reason[:_REASON_CHARACTERS_MAX]
        self._broker.groups.leave(request.group, request.member_id, reason)
        self._broker.receiving.leave(request.group, request.member_id)
        return pb.LeaveResponse()

    async def _membership(self, group: Group, member_id: str) -> bytes:
        membership = pb.Membership(
            generation=group.generation,
            is_rebalancing=group.is_rebalancing,
            heartbeat_ms=self._options.heartbeat_ms,
            expires_ms=self._options.member_expires_ms,
        )
        queues = (
            {"topic": queue.topic, "queue_id": queue.queue_id}
            for queue in group.assigned_in_order(member_id)
        )
        return await encode_in_turns(membership, "assigned", queues)

    # -- offsets ----------------------------------------------------------------------------------

    def begin_commit_offsets(self, data: bytes, context: Context, answer: Answer) -> bool:
        """Serves a commit of few offsets that are not ahead of this node; False: `commit_offsets`
        waits until it has applied them.
        """
        request = _read_commit(data)
        if len(request.positions) > _FEW_POSITIONS:
            return False
        names.check_group(request.group)
        positions = {Queue(one.topic, one.queue_id): one.queue_offset for one in request.positions}
        end = self._broker.puller.end
        if any(end(queue) < queue_offset for queue, queue_offset in positions.items()):
            return False

        def committed(done: asyncio.Future[None]) -> None:
            error = done.exception()
            answer(_COMMITTED_RESPONSE if error is None else error)

        durable = self._broker.groups.commit(
            request.group, request.member_id, positions, _caller(context)
        )
        durable.add_done_callback(committed)
        return True

    async def commit_offsets(
        self, request: pb.CommitOffsetsRequest, context: Context
    ) -> pb.CommitOffsetsResponse:
        names.check_group(request.group)
        positions = await decode_positions(request.positions)
        await self._broker.puller.until_applied(positions)
        await self._broker.groups.commit(
            request.group, request.member_id, positions, _caller(context)
        )
        return pb.CommitOffsetsResponse()

    async def query_offsets(self, request: pb.QueryOffsetsRequest, context: Context) -> bytes:
        names.check_group(request.group)
        wanted = await decode_queues(request.queues)
        # Only durable offsets: one that was told never goes back by itself.
        known = self._broker.state.offsets.positions(request.group)
        found = dict(known)
        if wanted:
            found = {queue: known[queue] for queue in wanted if queue in known}
        return await encode_positions(pb.QueryOffsetsResponse(), "positions", found)

    async def find_offsets(self, request: pb.FindOffsetsRequest, context: Context) -> bytes:
        start = decode_offset_kind(request.kind, request.at_ms)
        queues = await topic_queues(self._broker, request.topic, request.queue_ids)
        found = await start_offsets(self._broker, queues, start)
        return await encode_positions(pb.FindOffsetsResponse(), "positions", found)

    # -- Receive and its handles ------------------------------------------------------------------

    def begin_receive(self, data: bytes, context: Context, answer: Answer) -> bool:
        """Serves a receive from a topic that exists; False: `receive` waits for the topic, or
        because of quotas.
        """
        wanted = _read_receive(data, context.peer(), context.caller.user)
        quotas, user = self._broker.quotas, context.caller.user
        if wanted.topic not in self._broker.state.topics or (
            quotas.is_limiting
            and (
                quotas.delivery_debt_ms(user, wanted.topic)
                or quotas.limits_groups(user, wanted.group)
            )
        ):
            return False
        unsent = self._broker.unsent
        held_bytes = 0

        def answered(runs: list[GrantedRun] | Exception) -> None:
            nonlocal held_bytes
            if isinstance(runs, Exception):
                answer(runs)
                return
            response = framing.receive_response(runs)
            held_bytes = len(response)
            quotas.deliver(user, wanted.topic, held_bytes)
            unsent.hold(held_bytes)
            answer(response)

        def ended() -> None:
            # The answer is not in memory any longer, or the client has gone before it.
            unsent.release(held_bytes)
            if call.cancel():
                answer(CallEnded())

        time_left_s = functools.partial(_time_left_s, context)
        call = self._broker.receiving.begin_receive(wanted, answered, time_left_s)
        context.add_done_callback(ended)
        return True

    async def receive(self, request: pb.ReceiveRequest, context: Context) -> bytes:
        wanted = _decode_receive(request, context.peer(), context.caller.user)
        wanted = wanted._replace(wait_s=min(wanted.wait_s, _time_left_s(context)))
        await self._broker.expect([request.topic])
        await self._broker.catalog.begin_group(request.group)
        user = context.caller.user
        paid_s = await self._pay(user, request.topic, wanted.wait_s)
        wanted = wanted._replace(wait_s=wanted.wait_s - paid_s)
        answer = framing.receive_response(await self._received(wanted))
        self._broker.quotas.deliver(user, request.topic, len(answer))
        return _held(answer, context, self._broker.unsent)

    async def _received(self, wanted: Receive) -> list[GrantedRun]:
        missing = self._broker.missing_topics
        if missing.is_awaited(wanted.topic):
            began_s = asyncio.get_running_loop().time()
            if not await missing.until_created(wanted.topic, wanted.wait_s):
                return []
            passed_s = asyncio.get_running_loop().time() - began_s
            # The call came before the first message of the topic, which is therefore not too old.
            wanted = wanted._replace(
                wait_s=max(0.0, wanted.wait_s - passed_s), start=Start(is_earliest=True)
            )
        return await self._broker.receiving.receive(wanted)

    def begin_ack(self, data: bytes, context: Context, answer: Answer) -> bool:
        self._begin_settling(_ack(_read_ack(data)), answer)
        return True

    async def ack(self, request: pb.AckRequest, context: Context) -> bytes:
        return await self._settled(_ack(request))

    def begin_nack(self, data: bytes, context: Context, answer: Answer) -> bool:
        """False: `nack` creates the topic of dead letters first, if there is none."""
        nack = self._nack(_read_nack(data))
        if self._broker.receiving.makes_dead_letters(nack):
            return False
        self._begin_settling(nack, answer)
        return True

    async def nack(self, request: pb.NackRequest, context: Context) -> bytes:
        return await self._settled(self._nack(request))

    def _nack(self, request: pb.NackRequest) -> acks.Nack:
        handles = _handles(request.group, request.handles)
        delay_ms = request.delay_ms if request.HasField("delay_ms") else None
        if delay_ms is not None and delay_ms > INVISIBLE_MS_MAX:
            raise IllegalRequest(
                f"delay_ms = {delay_ms}: at most 12 h, which are {INVISIBLE_MS_MAX}"
            )
        reason = request.reason[:_REASON_CHARACTERS_MAX]
        retries_max = self._broker.receiving.retries_max(request.group)
        return acks.Nack(request.group, handles, delay_ms, retries_max, reason)

    def begin_change_invisible(self, data: bytes, context: Context, answer: Answer) -> bool:
        self._begin_settling(_change_invisible(_read_change_invisible(data)), answer)
        return True

    async def change_invisible(self, request: pb.ChangeInvisibleRequest, context: Context) -> bytes:
        return await self._settled(_change_invisible(request))

    def _begin_settling(self, request: acks.HandleRequest, answer: Answer) -> None:
        def settled(outcome: acks.HandlesSettled | Exception) -> None:
            answer(outcome if isinstance(outcome, Exception) else _handle_response(outcome))

        self._broker.receiving.begin(request, settled)

    async def _settled(self, request: acks.HandleRequest) -> bytes:
        return _handle_response(await self._broker.receiving.settle(request))

    # -- Retry ------------------------------------------------------------------------------------

    async def retry(self, request: pb.RetryRequest, context: Context) -> pb.RetryResponse:
        results = await self._broker.retrying.retry(
            request.group,
            request.member_id,
            request.sequence,
            [_failed(one) for one in request.messages],
        )
        return pb.RetryResponse(results=map(_retry_result, results))


def _held(answer: bytes, context: Context, unsent: Unsent) -> bytes:
    """An answer with messages counts as unsent until the call has ended: gRPC has passed it on, as
    far as the client reads, or the client has gone.
    """
    unsent.hold(len(answer))
    context.add_done_callback(lambda: unsent.release(len(answer)))
    return answer


def _member_spec(
    request: pb.JoinRequest | pb.SubscribeStart, address: str, user: str, *, is_streaming: bool
) -> Spec:
    """Raises IllegalGroup, IllegalRequest, IllegalFilter."""
    names.check_group(request.group)
    member_id = request.member_id
    if not 0 < len(member_id) <= MEMBER_ID_CHARACTERS_MAX or not member_id.isprintable():
        raise IllegalRequest(
            f"member_id has 1 to {MEMBER_ID_CHARACTERS_MAX} printable characters, unique in its "
            "group"
        )
    if request.mode not in _MODES:
        raise IllegalRequest(
            f"unknown mode {request.mode}: use 0 (clustering), 1 (ordered) or 2 (broadcast)"
        )
    if not request.subscriptions:
        raise IllegalRequest(f"a member subscribes to 1 to {TOPICS_MAX} topics")
    subscriptions = {one.topic: canonical(one.filter) for one in request.subscriptions}
    if len(subscriptions) < len(request.subscriptions):
        raise IllegalRequest("a topic is subscribed to twice: combine the filters into one")
    zone = request.zone[:127]
    return Spec(member_id, zone, request.mode, subscriptions, address, is_streaming, user)


async def _decode_epochs(wire: Iterable[pb.QueuePosition]) -> list[Position]:
    return await in_turns(
        Position(Queue(one.topic, one.queue_id), one.queue_offset, one.epoch) for one in wire
    )


async def _decode_released(wire: Iterable[pb.QueueId]) -> dict[Queue, int | None]:
    epochs: dict[Queue, int | None] = {}
    await in_turns(
        operator.setitem(
            epochs,
            Queue(one.topic, one.queue_id),
            one.epoch if one.HasField("epoch") else None,
        )
        for one in wire
    )
    return epochs


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


def _cache_limits(start: pb.SubscribeStart) -> CacheLimits:
    default = CacheLimits()
    return CacheLimits(
        min(start.cache_messages or default.messages, CACHE_MESSAGES_MAX),
        min(start.cache_bytes or default.size_bytes, CACHE_BYTES_MAX),
        min(start.delivery_bytes or default.delivery_bytes, READ_BYTES_MAX),
    )


def _decode_receive(request: pb.ReceiveRequest, peer: str, user: str) -> Receive:
    """Raises IllegalGroup, IllegalRequest, IllegalFilter."""
    names.check_group(request.group)
    spec = ReceiveSpec(canonical(request.filter), request.is_ordered)
    # Calls without a member id that want different things are not of one member.
    unnamed = f"{peer} {hash(spec) & 0xFFFF:04x}"
    member_id = _member_id(request.member_id)
    return Receive(
        request.group,
        request.topic,
        member_id or unnamed,
        spec,
        compile_filter(request.filter),
        min(request.messages_max or MESSAGES_DEFAULT, MESSAGES_MAX),
        min(request.bytes_max or READ_BYTES_MAX, READ_BYTES_MAX),
        _invisible_ms(request.invisible_ms or INVISIBLE_MS_DEFAULT),
        request.wait_ms / 1000,
        decode_start(request),
        Actor(user, peer, "", request.group, member_id, spec.filters_of(request.topic)),
    )


def _read_receive(data: bytes, peer: str, user: str) -> Receive:
    """As `_decode_receive`; DecodeError."""
    read = _remembered_receive if len(data) <= _REMEMBERED_BYTES_MAX else _read_anew
    return read(data, peer, user)


def _read_anew(data: bytes, peer: str, user: str) -> Receive:
    return _decode_receive(pb.ReceiveRequest.FromString(data), peer, user)


# A consumer asks for the same again and again.
_remembered_receive = functools.lru_cache(maxsize=1_024)(_read_anew)


def _caller(context: Context) -> Actor:
    return actor_of(context.caller.user, context.peer())


def _handles(group: str, handles: Sequence[pb.Handle]) -> list[Handle | None]:
    names.check_group(group)
    if not handles:
        raise IllegalRequest(f"no handles in the request: 1 to {HANDLES_MAX}")
    return parse_handles(handles)


def _ack(request: pb.AckRequest) -> acks.Ack:
    return acks.Ack(request.group, _handles(request.group, request.handles))


def _change_invisible(request: pb.ChangeInvisibleRequest) -> acks.ChangeInvisible:
    handles = _handles(request.group, request.handles)
    return acks.ChangeInvisible(request.group, handles, _invisible_ms(request.invisible_ms))


def _handle_response(settled: acks.HandlesSettled) -> bytes:
    if settled is acks.ONE_DONE:
        return _ONE_DONE_RESPONSE
    codes = [Code.SEND_OK if one else Code.ILLEGAL_HANDLE for one in settled.valid]
    until_ms = settled.invisible_until_ms
    return pb.HandleResponse(codes=codes, invisible_until_ms=until_ms).SerializeToString()


def _invisible_ms(invisible_ms: int) -> int:
    if not INVISIBLE_MS_MIN <= invisible_ms <= INVISIBLE_MS_MAX:
        raise IllegalRequest(
            f"invisible_ms = {invisible_ms}: 10 s to 12 h, which are {INVISIBLE_MS_MIN} to "
            f"{INVISIBLE_MS_MAX}"
        )
    return invisible_ms


def _time_left_s(context: Context) -> float:
    """Ends before the deadline of the client, which would not get an answer after it."""
    left_s = context.time_remaining()
    return math.inf if left_s is None else max(0.0, left_s - _ANSWER_S)


def _member_id(member_id: str) -> str:
    if len(member_id) > MEMBER_ID_CHARACTERS_MAX or not member_id.isprintable():
        raise IllegalRequest(
            f"member_id has at most {MEMBER_ID_CHARACTERS_MAX} printable characters"
        )
    return member_id


def _failed(wire: pb.FailedMessage) -> Failed:
    return Failed(
        MessagePosition.of(wire),
        wire.delay_ms if wire.HasField("delay_ms") else None,
        wire.reason,
    )


def _retry_result(result: RetryResult) -> pb.RetryResult:
    if result.error is not None:
        status = wire_status(result.error)
        return pb.RetryResult(code=status.code, text=status.text)
    return pb.RetryResult(attempts=result.attempts, deliver_at_ms=result.deliver_at_ms)
