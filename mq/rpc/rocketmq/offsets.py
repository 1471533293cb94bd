"""Queues by their offsets: PullMessage, and where a group stands in a queue. The official clients
have no use for them yet.
"""

from __future__ import annotations

import functools

from mq.access.policies import Action, group_resource, topic_resource
from mq.broker.broker import Broker
from mq.broker.consumer.filters import compile_filter
from mq.broker.consumer.groups import Start
from mq.broker.consumer.pulling import READ_BYTES_MAX, Query
from mq.broker.queue import Queue
from mq.broker.retry.retries import stored_messages
from mq.errors import QueueNotFound
from mq.rpc.access import Rules
from mq.rpc.rocketmq import messages
from mq.rpc.rocketmq.calls import Call
from mq.rpc.rocketmq.codes import OK, Refused
from mq.rpc.rocketmq.receiving import MESSAGES_MAX, filter_of
from mq.store.lookup import StoredMessage
from mq.store.reading import Status
from mq.wire.rocketmq import definition_pb2 as pb
from mq.wire.rocketmq import service_pb2 as service
from mq.wire.rocketmq.definition_pb2 import Code

_WAIT_S_MAX = 60.0


class Offsets:
    def __init__(self, broker: Broker, broker_set: str, rules: Rules) -> None:
        self._broker = broker
        self._broker_set = broker_set
        self._rules = rules
        self._host = broker.settings.config.node.id

    async def pull(self, request: service.PullMessageRequest, call: Call) -> None:
        queue = self._queue(request.message_queue, call)
        self._rules.check_consume_group(call.principal, call.group(request.group))
        self._rules.check_consume_topic(call.principal, queue.topic)
        if request.offset < 0:
            raise Refused(Code.ILLEGAL_OFFSET, f"offset {request.offset}: from 0 on")
        query = Query(
            queue,
            request.offset,
            compile_filter(filter_of(request.filter_expression)),
            READ_BYTES_MAX,
            min(max(request.batch_size, 1), MESSAGES_MAX),
        )
        wait_s = min(messages.milliseconds(request.long_polling_timeout) / 1000, _WAIT_S_MAX)
        result = await self._broker.puller.pull(query, max(0.0, min(wait_s, call.time_left_s())))
        if result.status in (Status.TOO_SMALL, Status.TOO_LARGE):
            raise Refused(
                Code.ILLEGAL_OFFSET,
                f"offset {request.offset}: the queue has [{result.start}, {result.end})",
            )
        answers = [
            service.PullMessageResponse(message=self._shown(one, request, call))
            for run in result.runs
            for one in stored_messages(queue, run)
        ]
        size = sum(one.ByteSize() for one in answers)
        self._broker.quotas.deliver(call.principal.user, queue.topic, size)
        unsent = self._broker.unsent
        unsent.hold(size)
        call.context.add_done_callback(functools.partial(unsent.release, size))
        status = OK
        if not answers:
            status = pb.Status(code=Code.MESSAGE_NOT_FOUND, message="no message came in time")
        for one in (
            service.PullMessageResponse(status=status),
            *answers,
            service.PullMessageResponse(next_offset=result.next_offset),
        ):
            await call.context.write(one.SerializeToString())

    def _shown(
        self, stored: StoredMessage, request: service.PullMessageRequest, call: Call
    ) -> pb.Message:
        return messages.shown(
            stored.message,
            call.resource(stored.topic, request.message_queue.topic),
            messages.Place(*stored[1:5]),
            self._broker_set,
            self._host,
        )

    async def update(
        self, request: service.UpdateOffsetRequest, call: Call
    ) -> service.UpdateOffsetResponse:
        """Durable when this returns."""
        queue, group = self._queue(request.message_queue, call), call.group(request.group)
        self._rules.check_consume_group(call.principal, group)
        self._rules.check_consume_topic(call.principal, queue.topic)
        start, end = self._broker.groups.extent(queue)
        if not start <= request.offset <= end:
            raise Refused(
                Code.ILLEGAL_OFFSET, f"offset {request.offset}: the queue has [{start}, {end})"
            )
        await self._broker.catalog.begin_group(group)
        await self._broker.groups.commit(group, "", {queue: request.offset})
        return service.UpdateOffsetResponse(status=OK)

    async def get(self, request: service.GetOffsetRequest, call: Call) -> service.GetOffsetResponse:
        queue, group = self._queue(request.message_queue, call), call.group(request.group)
        self._broker.gate.check(call.principal, Action.DESCRIBE, group_resource(group))
        found = self._broker.state.offsets.positions(group).get(queue)
        if found is None:
            raise Refused(Code.OFFSET_NOT_FOUND, f"group {group} has no offset in this queue")
        return service.GetOffsetResponse(status=OK, offset=found)

    async def query(
        self, request: service.QueryOffsetRequest, call: Call
    ) -> service.QueryOffsetResponse:
        queue = self._queue(request.message_queue, call)
        self._broker.gate.check(call.principal, Action.DESCRIBE, topic_resource(queue.topic))
        match request.query_offset_policy:
            case service.BEGINNING:
                start = Start(is_earliest=True)
            case service.END:
                start = Start()
            case service.TIMESTAMP if request.HasField("timestamp"):
                start = Start(at_ms=max(0, messages.milliseconds(request.timestamp)))
            case _:
                raise Refused(Code.BAD_REQUEST, "the policy is unknown, or has no timestamp")
        offset = self._broker.groups.start_offset(queue, start)
        return service.QueryOffsetResponse(status=OK, offset=offset)

    def _queue(self, wire: pb.MessageQueue, call: Call) -> Queue:
        """Raises TopicNotFound, QueueNotFound, PermissionDenied."""
        topic = call.topic(wire.topic)
        if wire.id < 0:
            raise QueueNotFound(f"queue {wire.id} of topic {topic}: from 0 on")
        self._broker.state.topics.readable(topic, wire.id)
        return Queue(topic, wire.id)
