"""SendMessage: normal messages, those of a group in order, delayed ones, halves of transactions,
and those with a priority. Each message of a request has a result of its own.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import NamedTuple

from mq import names
from mq.broker.attribution import actor_of
from mq.broker.broker import Broker
from mq.broker.joined_sends import Placed
from mq.broker.publishing import Slot
from mq.broker.state.topics import Topic
from mq.errors import NotLeader, OutcomeUnknown
from mq.hashing import text_hash
from mq.rpc.access import Rules
from mq.rpc.publish_stream import outcome, room_owner
from mq.rpc.rocketmq import messages
from mq.rpc.rocketmq.calls import Answer, Call
from mq.rpc.rocketmq.codes import OK, Refused, status_of
from mq.rpc.rocketmq.handles import Recall
from mq.rpc.rocketmq.routes import check_type
from mq.store import batch as batches
from mq.wire import varint
from mq.wire.rocketmq import definition_pb2 as pb
from mq.wire.rocketmq import service_pb2 as service
from mq.wire.rocketmq.definition_pb2 import Code, MessageType
from mq.wire.v1 import message_pb2
from mq.wire.v1.producer_pb2 import ACK_QUORUM

# The limit of a message is for all of it: this is left for what is not its body.
PROPERTIES_BYTES = 64 << 10
_CHECK_MS_MAX = 86_400_000
# Field 1 of a response and of its entries, as bytes; and the tag of field 2, an entry.
_OK_FIELD = service.SendResultEntry(status=OK).SerializeToString()
_ENTRY_TAG = b"\x12"
# The first number that takes two bytes.
_TWO_BYTES = 0x80
_HELD = (MessageType.DELAY, MessageType.TRANSACTION)


class _Sent(NamedTuple):
    """A message on its way into the log."""

    wire: pb.Message
    topic: str
    slot: Slot


class Sending:
    def __init__(self, broker: Broker, broker_set: str, rules: Rules) -> None:
        self._broker = broker
        self._broker_set = broker_set
        self._rules = rules
        config = broker.settings.config
        self._message_bytes_max = config.store.message_bytes_max
        self.body_bytes_max = max(1, self._message_bytes_max - PROPERTIES_BYTES)
        self._timeout_s = config.broker.send_timeout_ms / 1000
        self._turn = itertools.count()

    def begin(
        self, request: service.SendMessageRequest, size: int, call: Call, answer: Answer
    ) -> bool:
        """Joins one message with those of other calls; False: `send` has to serve it."""
        wires = request.messages
        if len(wires) != 1:
            return False
        wire = wires[0]
        resource = wire.topic
        is_namespaced = resource.resource_namespace or call.principal.namespace
        # A topic that exists has a legal name.
        name = call.topic(resource) if is_namespaced else resource.name
        topic = self._broker.state.topics.get(name)
        if topic is None or messages.type_of(wire.system_properties) in _HELD:
            return False
        message = self._accepted(wire, topic, call)
        quotas = self._broker.quotas

        def admit(topic: str, size: int, count: int) -> None:
            quotas.publish(call.principal.user, topic, size, count)

        def placed(found: Placed | BaseException) -> None:
            if isinstance(found, BaseException):
                answer(found)
            else:
                answer(_stored(message.rocketmq.message_id, found.queue_offset))

        placed.sender = actor_of(call.principal.user, call.context.peer())  # type: ignore[attr-defined]
        return self._broker.joined_sends.take(
            topic.name, None, [message], size, placed, admit if quotas.is_limiting else None
        )

    async def send(
        self, request: service.SendMessageRequest, call: Call
    ) -> service.SendMessageResponse:
        """Submitted in their order, so that those of one group keep it."""
        if not request.messages:
            raise Refused(Code.BAD_REQUEST, "a SendMessageRequest without messages")
        sent: list[_Sent | Exception] = []
        for wire in request.messages:
            try:
                sent.append(await self._submit(wire, call))
            except Exception as error:
                if isinstance(error, NotLeader) and not sent:
                    raise
                sent.append(error)
        found = await asyncio.gather(*map(self._result, sent), return_exceptions=True)
        entries = [
            service.SendResultEntry(status=status_of(one))
            if isinstance(one, BaseException)
            else one
            for one in found
        ]
        if isinstance(found[0], (NotLeader, OutcomeUnknown)) and len(found) == 1:
            raise found[0]
        codes = {one.status.code for one in entries}
        status = entries[0].status
        if len(codes) > 1:
            status = pb.Status(code=Code.MULTIPLE_RESULTS, message="see the result of each message")
        return service.SendMessageResponse(status=status, entries=entries)

    async def _submit(self, wire: pb.Message, call: Call) -> _Sent:
        broker, system = self._broker, wire.system_properties
        name = call.topic(wire.topic)
        topic = await self._topic(name, call)
        message = self._accepted(wire, topic, call)
        batch = message_pb2.Batch(
            topic=name,
            queue_id=self._queue(topic, message),
            deliver_at_ms=messages.deliver_at_ms(system),
            messages=[message],
        )
        if messages.type_of(system) == MessageType.TRANSACTION:
            # Producers of a topic are one group: a client does not name another.
            batch.half.producer_group = name
            batch.half.first_check_ms = _first_check_ms(system)
        accepted = batches.accept(batch.SerializeToString(), self._message_bytes_max)
        owner = room_owner(call.principal, call.context)
        await broker.publisher.room(len(accepted.data), self._timeout_s, owner)
        sender = actor_of(call.principal.user, call.context.peer())
        slot = await broker.submit(accepted, user=call.principal.user, owner=owner, sender=sender)
        return _Sent(wire, name, slot)

    def _accepted(self, wire: pb.Message, topic: Topic, call: Call) -> message_pb2.Message:
        self._rules.publish_to(call.principal, topic.name)
        message = messages.accepted(wire, self.body_bytes_max)
        if topic.type:
            check_type(topic.name, topic.type, message.rocketmq.message_type)
        return message

    async def _topic(self, name: str, call: Call) -> Topic:
        """Raises TopicNotFound, PermissionDenied."""
        topics = self._broker.state.topics
        if name not in topics and self._broker.settings.creates_topics:
            self._rules.publish_to(call.principal, name)
            self._broker.directory.check_nowhere_else(name)
            await self._broker.create_missing([name])
        return topics.find(name)

    def _queue(self, topic: Topic, message: message_pb2.Message) -> int:
        key = message.ordering_key
        queues = topic.queues_of(message.priority)
        return queues[(text_hash(key) if key else next(self._turn)) % len(queues)]

    async def _result(self, sent: _Sent | Exception) -> service.SendResultEntry:
        if isinstance(sent, Exception):
            raise sent
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        stored = await outcome(self._broker, sent.slot, ACK_QUORUM, deadline_s)
        system = sent.wire.system_properties
        entry = service.SendResultEntry(
            status=OK, message_id=system.message_id, offset=max(0, stored.queue_offset)
        )
        if messages.type_of(system) == MessageType.TRANSACTION:
            entry.transaction_id = names.message_id(self._broker_set, stored.log_offset)
        elif stored.deliver_at_ms:
            entry.recall_handle = Recall(
                self._broker_set,
                sent.topic,
                stored.log_offset,
                stored.deliver_at_ms,
                system.message_id,
            ).text()
        return entry


def _stored(message_id: str, queue_offset: int) -> bytes:
    """The answer to a send of one message."""
    placed = service.SendResultEntry(message_id=message_id, offset=queue_offset)
    entry = _OK_FIELD + placed.SerializeToString()
    size = len(entry)
    length = bytes((size,)) if size < _TWO_BYTES else varint.encode(size)
    return b"".join((_OK_FIELD, _ENTRY_TAG, length, entry))


def _first_check_ms(system: pb.SystemProperties) -> int:
    """0: as the broker is configured."""
    if not system.HasField("orphaned_transaction_recovery_duration"):
        return 0
    after = system.orphaned_transaction_recovery_duration
    return min(max(after.seconds * 1000 + after.nanos // 1_000_000, 0), _CHECK_MS_MAX)
