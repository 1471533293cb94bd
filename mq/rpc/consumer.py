"""ConsumerService: Pull with its long poll, groups and offsets for clients that pull."""

from __future__ import annotations

from collections.abc import Iterable

from mq import names
from mq.broker.broker import Broker
from mq.broker.consumer.filters import canonical, compile_filter
from mq.broker.consumer.groups import Start
from mq.broker.consumer.membership import Group, Spec
from mq.broker.consumer.pulling import Query
from mq.broker.consumer.unsent import Unsent
from mq.broker.inspect import positions_of
from mq.broker.long_work import in_turns
from mq.broker.queue import Queue
from mq.errors import IllegalRequest
from mq.rpc import framing, listeners
from mq.rpc.limits import TOPICS_MAX
from mq.rpc.methods import Context
from mq.wire.v1 import consumer_pb2 as pb

MEMBER_ID_CHARACTERS_MAX = 255
_MODES = frozenset(pb.ConsumeMode.values())


class ConsumerService:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
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
        if not request.any_replica:
            result, read_from = await puller.pull(query, wait_s), ""
        else:
            result, place = await puller.pull_anywhere(query, wait_s, request.zone)
            read_from = listeners.chosen(place.address, place.external_address) if place else ""
        return held(framing.pull_response(result, read_from), context, self._broker.unsent)

    # -- groups -----------------------------------------------------------------------------------

    async def join(self, request: pb.JoinRequest, context: Context) -> pb.Membership:
        await self._broker.leadership.settled()
        spec = member_spec(request, context.peer(), is_streaming=False)
        for one in request.subscriptions:
            compile_filter(one.filter)
        owned = await queues_of(request.owned)
        await self._broker.expect(spec.subscriptions)
        self._broker.receiving.check_inactive(request.group)
        group = self._broker.groups.join(request.group, spec, owned)
        return await self._membership(group, request.member_id)

    async def heartbeat(self, request: pb.HeartbeatRequest, context: Context) -> pb.Membership:
        owned = await queues_of(request.owned)
        group = self._broker.groups.heartbeat(request.group, request.member_id, owned)
        return await self._membership(group, request.member_id)

    async def leave(self, request: pb.LeaveRequest, context: Context) -> pb.LeaveResponse:
        self._broker.groups.leave(request.group, request.member_id)
        self._broker.receiving.leave(request.group, request.member_id)
        return pb.LeaveResponse()

    async def _membership(self, group: Group, member_id: str) -> pb.Membership:
        generation, is_rebalancing = group.generation, group.is_rebalancing
        return pb.Membership(
            generation=generation,
            assigned=await in_turns(
                pb.QueueId(topic=queue.topic, queue_id=queue.queue_id)
                for queue in sorted(group.assigned(member_id))
            ),
            is_rebalancing=is_rebalancing,
            heartbeat_ms=self._options.heartbeat_ms,
            expires_ms=self._options.member_expires_ms,
        )

    # -- offsets ----------------------------------------------------------------------------------

    async def commit_offsets(
        self, request: pb.CommitOffsetsRequest, context: Context
    ) -> pb.CommitOffsetsResponse:
        await self._broker.leadership.settled()
        names.check_group(request.group)
        positions = await offsets_of(request.positions)
        await self._broker.puller.until_applied(positions)
        await self._broker.groups.commit(request.group, request.member_id, positions)
        return pb.CommitOffsetsResponse()

    async def query_offsets(
        self, request: pb.QueryOffsetsRequest, context: Context
    ) -> pb.QueryOffsetsResponse:
        await self._broker.leadership.settled()
        names.check_group(request.group)
        wanted = await queues_of(request.queues)
        # Only what is durable: an offset that was told never goes back by itself.
        known = self._broker.state.offsets.positions(request.group)
        found = {queue: known[queue] for queue in wanted or known if queue in known}
        return pb.QueryOffsetsResponse(positions=await positions_of(found))

    async def find_offsets(
        self, request: pb.FindOffsetsRequest, context: Context
    ) -> pb.FindOffsetsResponse:
        await self._broker.leadership.settled()
        start = start_of(request.kind, request.at_ms)
        queues = await topic_queues(self._broker, request.topic, request.queue_ids)
        found = await start_offsets(self._broker, queues, start)
        return pb.FindOffsetsResponse(positions=await positions_of(found))


def held(answer: bytes, context: Context, unsent: Unsent) -> bytes:
    """An answer with messages, which counts as unsent until the call has ended: gRPC has passed it
    on, as far as the client reads, or the client is gone.
    """
    unsent.hold(len(answer))
    context.add_done_callback(lambda _: unsent.release(len(answer)))
    return answer


def member_spec(
    request: pb.JoinRequest | pb.SubscribeStart, address: str, *, is_streaming: bool
) -> Spec:
    """IllegalGroup, IllegalRequest, IllegalFilter."""
    names.check_group(request.group)
    member_id = request.member_id
    if not 0 < len(member_id) <= MEMBER_ID_CHARACTERS_MAX or not member_id.isprintable():
        raise IllegalRequest(
            f"member_id has 1 to {MEMBER_ID_CHARACTERS_MAX} printable characters, unique in its "
            "group"
        )
    if request.mode not in _MODES:
        raise IllegalRequest(f"mode = {request.mode} is none: 0 clustering, 1 ordered, 2 broadcast")
    if not request.subscriptions:
        raise IllegalRequest(f"a member subscribes to 1 to {TOPICS_MAX} topics")
    subscriptions = {one.topic: canonical(one.filter) for one in request.subscriptions}
    if len(subscriptions) < len(request.subscriptions):
        raise IllegalRequest("a topic is subscribed to twice: combine the filters into one")
    return Spec(member_id, request.zone[:127], request.mode, subscriptions, address, is_streaming)


async def queues_of(wire: Iterable[pb.QueueId]) -> list[Queue]:
    return await in_turns(Queue(one.topic, one.queue_id) for one in wire)


async def offsets_of(wire: Iterable[pb.QueuePosition]) -> dict[Queue, int]:
    return dict(await in_turns((Queue(one.topic, one.queue_id), one.queue_offset) for one in wire))


def start_of(kind: int, at_ms: int) -> Start:
    match kind:
        case pb.OFFSET_EARLIEST:
            return Start(is_earliest=True)
        case pb.OFFSET_LATEST:
            return Start()
        case pb.OFFSET_AT_TIME:
            return Start(at_ms=checked_time(at_ms))
    raise IllegalRequest(f"kind = {kind} is none: 0 earliest, 1 latest, 2 a time")


def checked_time(at_ms: int) -> int:
    if at_ms < 0:
        raise IllegalRequest(f"{at_ms} is no time: milliseconds since 1970")
    return at_ms


async def start_offsets(broker: Broker, queues: Iterable[Queue], start: Start) -> dict[Queue, int]:
    return dict(
        await in_turns((queue, broker.groups.start_offset(queue, start)) for queue in queues)
    )


async def topic_queues(broker: Broker, name: str, queue_ids: Iterable[int]) -> list[Queue]:
    """Those that are named, or all. TopicNotFound, QueueNotFound."""
    topic = broker.state.topics.readable(name)
    wanted = list(queue_ids) or range(topic.read_queues)
    return await in_turns(_readable(broker, Queue(name, queue_id)) for queue_id in wanted)


def _readable(broker: Broker, queue: Queue) -> Queue:
    broker.state.topics.readable(*queue)
    return queue
