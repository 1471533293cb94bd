"""ReceiveMessage, and what consumers do with the messages that they have.

A consumer's member id is that of its client. Messages that failed in a member that subscribes by
our own protocol wait in the group's retry topic: they are given out first.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time

from mq import names
from mq.broker.attribution import Actor
from mq.broker.broker import Broker
from mq.broker.consumer.filters import canonical, compile_filter
from mq.broker.consumer.groups import Start
from mq.broker.consumer.pulling import READ_BYTES_MAX
from mq.broker.queue import Queue
from mq.broker.receive import acks
from mq.broker.receive.grants import GrantedRun, Receive
from mq.broker.receive.leases import Handle, lease_bytes
from mq.broker.receive.members import ReceiveSpec
from mq.broker.retry.retries import stored_messages
from mq.errors import MqError
from mq.rpc.access import Rules
from mq.rpc.rocketmq import handles, messages
from mq.rpc.rocketmq.calls import Answer, Call, Calls
from mq.rpc.rocketmq.codes import OK, Refused
from mq.rpc.rocketmq.forwarding import PASSED_ON
from mq.rpc.rocketmq.renewing import INVISIBLE_MS, Path, Renewals, attempt_mark, client_mark
from mq.rpc.rocketmq.sessions import Sessions
from mq.store.lookup import StoredMessage
from mq.wire.rocketmq import definition_pb2 as pb
from mq.wire.rocketmq import service_pb2 as service
from mq.wire.rocketmq.definition_pb2 import Code, FilterType
from mq.wire.v1.consumer_pb2 import Filter

PROTOCOL = "RocketMQ's protocol"
MESSAGES_MAX = 1_000
INVISIBLE_MS_MAX = 12 * 3_600_000
# Without a word of the client: what is left of its time, and a little for the answer.
_ANSWER_S = 1.5
_WAIT_S_MAX = 60.0
# A new group begins with the first message of a topic that has lost none yet and is not long.
_SMALL_QUEUE = 100_000
_PUSH_CONSUMER = pb.PUSH_CONSUMER
_NO_SUCH_HANDLE = pb.Status(
    code=Code.INVALID_RECEIPT_HANDLE,
    message="the handle is of no message in flight: acknowledged before, or its time was over and "
    "another consumer has it",
)


class Receiving:
    def __init__(
        self,
        broker: Broker,
        broker_set: str,
        rules: Rules,
        calls: Calls,
        sessions: Sessions,
        renewals: Renewals,
    ) -> None:
        self._broker = broker
        self._broker_set = broker_set
        self._rules = rules
        self._calls = calls
        self._sessions = sessions
        self._renewals = renewals
        self._host = broker.settings.config.node.id

    # -- Heartbeat --------------------------------------------------------------------------------

    async def heartbeat(
        self, request: service.HeartbeatRequest, call: Call
    ) -> service.HeartbeatResponse:
        """Also of a client that is not known."""
        client_id = call.check_client()
        self._sessions.touch(client_id)
        if request.client_type == _PUSH_CONSUMER:
            # One that is named wrong has received nothing.
            with contextlib.suppress(MqError):
                self._renewals.adopt(call.group(request.group), client_id)
        return service.HeartbeatResponse(status=OK)

    # -- ReceiveMessage ---------------------------------------------------------------------------

    async def receive(self, request: service.ReceiveMessageRequest, call: Call) -> None:
        client_id = call.check_client()
        topic, group = call.topic(request.message_queue.topic), call.group(request.group)
        self._rules.check_consume_group(call.principal, group)
        self._rules.check_consume_topic(call.principal, topic)
        self._sessions.touch(client_id)
        path = _path(request, call)
        if request.auto_renew:
            self._renewals.adopt(group, client_id)
            self._renewals.asked(path)
        wanted = self._wanted(request, call, group, topic)
        await self._broker.expect([topic])
        await self._broker.catalog.begin_group(group)
        wanted = await self._paid(wanted, call)
        runs = await self._received(wanted)
        if not runs:
            raise Refused(Code.MESSAGE_NOT_FOUND, "no message came in time")
        self._check_again(request, wanted, runs, call)
        if request.auto_renew:
            self._renewals.add(group, path, runs, wanted.invisible_ms)
        await self._deliver(request, wanted, runs, call)

    def _check_again(
        self,
        request: service.ReceiveMessageRequest,
        wanted: Receive,
        runs: list[GrantedRun],
        call: Call,
    ) -> None:
        """The caller may have lost its rights while it waited. Raises Unauthenticated,
        PermissionDenied.
        """
        if self._broker.gate.is_current(call.principal):
            return
        try:
            caller = self._calls.call(call.context, request.message_queue.topic).principal
            self._rules.check_consume_group(caller, wanted.group)
            self._rules.check_consume_topic(caller, wanted.topic)
        except MqError:
            self._broker.receiving.give_back(wanted.group, runs)
            raise

    async def _deliver(
        self,
        request: service.ReceiveMessageRequest,
        wanted: Receive,
        runs: list[GrantedRun],
        call: Call,
    ) -> None:
        answers = [
            service.ReceiveMessageResponse(message=one).SerializeToString()
            for run in runs
            for one in self._shown(run, request, wanted, call)
        ]
        size = sum(map(len, answers))
        self._broker.quotas.deliver(call.principal.user, wanted.topic, size)
        unsent, write = self._broker.unsent, call.context.write
        unsent.hold(size)
        call.context.add_done_callback(functools.partial(unsent.release, size))
        try:
            await write(service.ReceiveMessageResponse(status=OK).SerializeToString())
            for one in answers:
                await write(one)
            last = service.ReceiveMessageResponse()
            messages.set_time(last.delivery_timestamp, int(time.time() * 1000))
            await write(last.SerializeToString())
        except BaseException:
            # The client has gone: others get the messages at once.
            self._broker.receiving.give_back(wanted.group, runs)
            raise

    def _wanted(
        self, request: service.ReceiveMessageRequest, call: Call, group: str, topic: str
    ) -> Receive:
        """Raises IllegalFilter, Refused."""
        filter_ = filter_of(request.filter_expression)
        spec = ReceiveSpec(canonical(filter_), self._sessions.is_ordered(group, topic), PROTOCOL)
        invisible_ms = INVISIBLE_MS
        if request.HasField("invisible_duration") and not request.auto_renew:
            invisible_ms = messages.milliseconds(request.invisible_duration)
            if not 0 < invisible_ms <= INVISIBLE_MS_MAX:
                raise Refused(
                    Code.ILLEGAL_INVISIBLE_TIME, f"{invisible_ms} ms: more than 0, at most 12 h"
                )
        return Receive(
            group,
            topic,
            call.client_id,
            spec,
            compile_filter(filter_),
            min(max(request.batch_size, 1), MESSAGES_MAX),
            READ_BYTES_MAX,
            invisible_ms,
            self._wait_s(request, call),
            self._start(topic),
            Actor(
                call.principal.user,
                call.context.peer(),
                "",
                group,
                call.client_id,
                spec.filters_of(topic),
            ),
            client_mark(call.client_id) if request.auto_renew else 0,
            attempt_mark(call.client_id, request.attempt_id)
            if spec.is_ordered and request.attempt_id
            else 0,
        )

    def _wait_s(self, request: service.ReceiveMessageRequest, call: Call) -> float:
        left_s = call.context.time_remaining()
        wait_s = float("inf") if left_s is None else max(0.0, left_s - 0.25)
        if request.HasField("long_polling_timeout"):
            return min(
                wait_s, messages.milliseconds(request.long_polling_timeout) / 1000, _WAIT_S_MAX
            )
        settings = self._sessions.settings(call.client_id)
        if settings is not None and settings.subscription.HasField("long_polling_timeout"):
            told_s = messages.milliseconds(settings.subscription.long_polling_timeout) / 1000
            return min(wait_s, told_s, _WAIT_S_MAX)
        return min(_WAIT_S_MAX, 0.0 if left_s is None else max(0.0, left_s - _ANSWER_S))

    def _start(self, topic: str) -> Start:
        """Where a new group begins: as RocketMQ's, with the first message as long as the topic has
        lost none and is small, otherwise with what comes next. Dead letters are always read from
        the first.
        """
        if topic.startswith(names.DEAD_LETTER_PREFIX):
            return Start(is_earliest=True)
        queues = self._broker.store.queues
        extents = (queues.get(topic, queue_id) for queue_id in queues.ids_of(topic))
        is_whole = all(
            one is None or (one.start == 0 and one.end <= _SMALL_QUEUE) for one in extents
        )
        return Start(is_earliest=is_whole)

    async def begin_group(self, subscription: pb.Subscription, call: Call) -> None:
        """Fixes where a new group begins that is not to have what is there already: messages that
        are sent from now on are for it, however late its first poll comes.
        """
        if not subscription.group.name or not self._broker.leadership.is_serving:
            return
        group = call.group(subscription.group)
        for one in subscription.subscriptions:
            topic = call.topic(one.topic)
            is_known = (group, Queue(topic, 0)) in self._broker.state.leases
            if is_known or topic not in self._broker.state.topics:
                continue
            if self._start(topic).is_earliest:
                continue
            self._rules.check_consume_group(call.principal, group)
            self._rules.check_consume_topic(call.principal, topic)
            request = service.ReceiveMessageRequest(filter_expression=one.expression, batch_size=1)
            wanted = self._wanted(request, call, group, topic)._replace(wait_s=0.0)
            # One that came in between is as if it had not been given out.
            runs = await self._broker.receiving.receive(wanted)
            self._broker.receiving.give_back(group, runs)

    async def _paid(self, wanted: Receive, call: Call) -> Receive:
        """Waits until the user owes nothing for deliveries. Raises FlowControl."""
        quotas, user = self._broker.quotas, call.principal.user
        pause_s = quotas.delivery_debt_ms(user, wanted.topic) / 1000
        if not pause_s:
            return wanted
        await asyncio.sleep(min(pause_s, wanted.wait_s))
        quotas.check_delivery(user, wanted.topic)
        return wanted._replace(wait_s=max(0.0, wanted.wait_s - pause_s))

    async def _received(self, wanted: Receive) -> list[GrantedRun]:
        receiving, missing = self._broker.receiving, self._broker.missing_topics
        retry_topic = names.retry_topic(wanted.group)
        if retry_topic in self._broker.state.topics:
            runs = await receiving.receive(
                wanted._replace(topic=retry_topic, wait_s=0.0, start=Start(is_earliest=True))
            )
            if runs:
                return runs
        if missing.is_awaited(wanted.topic):
            began_s = asyncio.get_running_loop().time()
            if not await missing.until_created(wanted.topic, wanted.wait_s):
                return []
            passed_s = asyncio.get_running_loop().time() - began_s
            wanted = wanted._replace(
                wait_s=max(0.0, wanted.wait_s - passed_s), start=Start(is_earliest=True)
            )
        return await receiving.receive(wanted)

    def _shown(
        self,
        granted: GrantedRun,
        request: service.ReceiveMessageRequest,
        wanted: Receive,
        call: Call,
    ) -> list[pb.Message]:
        queue, number, attempt, _, run = granted
        lease = lease_bytes(queue, number)
        asked = request.message_queue.topic
        found = []
        for stored in stored_messages(queue, run):
            shown = messages.shown(
                stored.message,
                call.resource(_topic(stored), asked),
                messages.Place(*stored[1:5]),
                self._broker_set,
                self._host,
            )
            system = shown.system_properties
            system.receipt_handle = handles.receipt(lease, stored.queue_offset)
            system.delivery_attempt = attempt + _failures(stored)
            system.invisible_duration.seconds = wanted.invisible_ms // 1000
            system.invisible_duration.nanos = wanted.invisible_ms % 1000 * 1_000_000
            if stored.topic.startswith(names.DEAD_LETTER_PREFIX):
                origin = stored.message.origin
                system.dead_letter_queue.topic = call.resource(origin.topic, asked).name
                system.dead_letter_queue.message_id = system.message_id
            found.append(shown)
        return found

    # -- handles ----------------------------------------------------------------------------------

    def begin_ack(
        self, request: service.AckMessageRequest, _size: int, call: Call, answer: Answer
    ) -> bool:
        """False: there is nothing to acknowledge, which `ack` refuses."""
        if not request.entries:
            return False
        ack = self._ack(request, call)

        def settled(outcome: acks.HandlesSettled | Exception) -> None:
            if isinstance(outcome, Exception):
                answer(outcome)
            else:
                answer(_acked(request, outcome).SerializeToString())

        self._broker.receiving.begin(ack, settled)
        return True

    async def ack(
        self, request: service.AckMessageRequest, call: Call
    ) -> service.AckMessageResponse:
        if not request.entries:
            raise Refused(Code.BAD_REQUEST, "an AckMessageRequest without entries")
        return _acked(request, await self._broker.receiving.settle(self._ack(request, call)))

    def _ack(self, request: service.AckMessageRequest, call: Call) -> acks.Ack:
        group = self._of_group(request, call)
        parsed = [handles.parse_receipt(one.receipt_handle) for one in request.entries]
        for one in parsed:
            self._renewals.forget(one)
        return acks.Ack(group, parsed)

    async def change_invisible(
        self, request: service.ChangeInvisibleDurationRequest, call: Call
    ) -> service.ChangeInvisibleDurationResponse:
        group = self._of_group(request, call)
        invisible_ms = messages.milliseconds(request.invisible_duration)
        if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
            raise Refused(Code.ILLEGAL_INVISIBLE_TIME, f"{invisible_ms} ms: 0 to 12 h")
        handle = self._handle(request.receipt_handle)
        await self._settled(acks.ChangeInvisible(group, [handle], invisible_ms))
        return service.ChangeInvisibleDurationResponse(
            status=OK, receipt_handle=request.receipt_handle
        )

    async def to_dead_letters(
        self, request: service.ForwardMessageToDeadLetterQueueRequest, call: Call
    ) -> service.ForwardMessageToDeadLetterQueueResponse:
        """Of a message that is gone it is done already: clients repeat any other answer for
        ever.
        """
        group = self._of_group(request, call)
        handle = handles.parse_receipt(request.receipt_handle)
        self._renewals.forget(handle)
        attempts = request.delivery_attempt
        nack = acks.Nack(group, [handle], None, -1, f"given up after {attempts} attempts")
        await self._broker.receiving.settle(nack)
        return service.ForwardMessageToDeadLetterQueueResponse(status=OK)

    def _of_group(
        self,
        request: service.AckMessageRequest
        | service.ChangeInvisibleDurationRequest
        | service.ForwardMessageToDeadLetterQueueRequest,
        call: Call,
    ) -> str:
        self._sessions.touch(call.check_client())
        group = call.group(request.group)
        call.topic(request.topic)
        self._rules.check_consume_group(call.principal, group)
        return group

    def _handle(self, text: str) -> Handle | None:
        handle = handles.parse_receipt(text)
        self._renewals.forget(handle)
        return handle

    async def _settled(self, request: acks.HandleRequest) -> None:
        """Raises Refused."""
        settled = await self._broker.receiving.settle(request)
        if not all(settled.valid):
            raise Refused(Code.INVALID_RECEIPT_HANDLE, _NO_SUCH_HANDLE.message)


def _path(request: service.ReceiveMessageRequest, call: Call) -> Path:
    passed_on = call.context.header(PASSED_ON) or ""
    connections = f"{call.context.peer()} {passed_on}"
    return Path(call.client_id, request.message_queue.broker.name, connections)


def _acked(
    request: service.AckMessageRequest, settled: acks.HandlesSettled
) -> service.AckMessageResponse:
    entries = [
        service.AckMessageResultEntry(
            message_id=one.message_id,
            receipt_handle=one.receipt_handle,
            status=OK if is_valid else _NO_SUCH_HANDLE,
        )
        for one, is_valid in zip(request.entries, settled.valid, strict=True)
    ]
    status = entries[0].status
    if len(set(settled.valid)) > 1:
        status = pb.Status(code=Code.MULTIPLE_RESULTS, message="see the result of each entry")
    return service.AckMessageResponse(status=status, entries=entries)


def filter_of(expression: pb.FilterExpression) -> Filter:
    if expression.type == FilterType.SQL:
        return Filter(sql=expression.expression)
    return Filter(tags=expression.expression)


def _topic(stored: StoredMessage) -> str:
    """A message that is tried again is of the topic that it was sent to."""
    if stored.topic.startswith(names.RETRY_PREFIX) and stored.message.origin.topic:
        return stored.message.origin.topic
    return stored.topic


def _failures(stored: StoredMessage) -> int:
    """Before it came to its retry topic."""
    return stored.message.origin.attempts if stored.topic.startswith(names.RETRY_PREFIX) else 0
