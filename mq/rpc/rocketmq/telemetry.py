"""Telemetry: settings in both directions, and questions about transactions without an end.

The leader alone asks. A node that does not lead opens a stream of its own to the leader, as the
client, and passes its questions on: so a client hears them wherever it is connected, also after the
leader has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from mq import names
from mq.broker.broker import Broker
from mq.broker.transaction.questions import Question, Respondent
from mq.errors import MqError, NodeStopped
from mq.http2.calls import CallEnded
from mq.rpc import limits
from mq.rpc.access import Rules
from mq.rpc.rocketmq import messages
from mq.rpc.rocketmq.calls import LIMITS, NAME, Call, live_principal
from mq.rpc.rocketmq.codes import OK, Refused
from mq.rpc.rocketmq.forwarding import PASSED_ON, Forwarder, Gone
from mq.rpc.rocketmq.receiving import Receiving
from mq.rpc.rocketmq.sessions import Sessions
from mq.store.batch import message_of_frame
from mq.wire.rocketmq import definition_pb2 as pb
from mq.wire.rocketmq.service_pb2 import RecoverOrphanedTransactionCommand, TelemetryCommand
from mq.wire.v1.message_pb2 import Message

_PATH = f"/{NAME}/Telemetry"
# Between two looks for the leader.
_LOOK_S = 0.5
_QUESTION = "recover_orphaned_transaction_command"
_read = limits.Reader(TelemetryCommand, LIMITS)


class Telemetry:
    def __init__(
        self,
        broker: Broker,
        broker_set: str,
        rules: Rules,
        sessions: Sessions,
        receiving: Receiving,
        forwarder: Forwarder,
    ) -> None:
        self._broker = broker
        self._broker_set = broker_set
        self._rules = rules
        self._sessions = sessions
        self._receiving = receiving
        self._forwarder = forwarder
        self._streams: set[asyncio.Task[object]] = set()
        self._is_draining = False

    def drain(self) -> None:
        """The node stops: streams end."""
        self._is_draining = True
        for task in self._streams:
            task.cancel()

    async def telemetry(self, call: Call) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        self._streams.add(task)
        stream = _Stream(self, call)
        caller = call.principal
        try:
            with self._broker.quotas.streaming(caller.user, caller.namespace):
                await stream.run()
        except asyncio.CancelledError:
            if not self._is_draining:
                raise
            raise NodeStopped("this node is stopping") from None
        finally:
            self._streams.discard(task)
            stream.close()

    # -- questions --------------------------------------------------------------------------------

    async def ask(self, told: pb.Settings, stream: _Stream) -> None:
        """For as long as the stream lasts: questions of whichever node leads."""
        call = stream.call
        while True:
            with contextlib.suppress(MqError, Gone, CallEnded):
                if self._broker.leadership.is_serving:
                    await self._ask_as_leader(told, stream)
                elif call.context.header(PASSED_ON) is None and self._forwarder.leader():
                    await self._pass_on(told, stream, self._forwarder.leader())
            await asyncio.sleep(_LOOK_S)

    async def _ask_as_leader(self, told: pb.Settings, stream: _Stream) -> None:
        """Returns when this node does not lead any longer."""
        topics = {stream.call.topic(one): one for one in told.publishing.topics}
        await asyncio.gather(*(self._ask_of(*one, stream) for one in topics.items()))

    async def _ask_of(self, topic: str, resource: pb.Resource, stream: _Stream) -> None:
        """Producers of a topic are one group, called like it."""
        respondent = Respondent(topic, stream.call.client_id, answers_checks=True)
        transacting = self._broker.transacting
        with contextlib.suppress(MqError):
            transacting.join(respondent)
            try:
                while True:
                    question = await respondent.next()
                    # A half message is shown to those alone who could have sent it.
                    self._rules.publish_to(live_principal(), topic)
                    await stream.write(self._command(question, resource, stream.call))
            finally:
                transacting.leave(respondent)

    def _command(self, question: Question, resource: pb.Resource, call: Call) -> TelemetryCommand:
        one, batch = question
        size = int(batch.frame_sizes[0])
        frame = memoryview(batch.data)[batch.region_start : batch.region_start + size]
        message = Message.FromString(bytes(message_of_frame(frame)))
        place = messages.Place(batch.queue_id, 0, one.id, one.stored_at_ms)
        host = self._broker.settings.config.node.id
        shown = messages.shown(
            message, call.resource(one.topic, resource), place, self._broker_set, host
        )
        command = RecoverOrphanedTransactionCommand(
            message=shown, transaction_id=names.message_id(self._broker_set, one.id)
        )
        return TelemetryCommand(status=OK, recover_orphaned_transaction_command=command)

    async def _pass_on(self, told: pb.Settings, stream: _Stream, address: str) -> None:
        """Returns when another node leads."""
        first = TelemetryCommand(settings=told).SerializeToString()
        relay = asyncio.ensure_future(self._relay(first, stream, address))
        try:
            while self._forwarder.leader() == address and not relay.done():
                await asyncio.wait([relay], timeout=_LOOK_S)
        finally:
            relay.cancel()
            await asyncio.gather(relay, return_exceptions=True)

    async def _relay(self, first: bytes, stream: _Stream, address: str) -> None:
        async with self._forwarder.stream(address, _PATH, [first], stream.call.context) as upstream:
            async for data in upstream:
                command = TelemetryCommand.FromString(data)
                if command.WhichOneof("command") == _QUESTION:
                    await stream.write(command)

    def settings(self, told: pb.Settings, call: Call) -> pb.Settings:
        return self._sessions.answer(told, call)

    async def begin_group(self, subscription: pb.Subscription, call: Call) -> None:
        """A group that cannot begin now hears of it when it polls."""
        with contextlib.suppress(MqError, Refused):
            await self._receiving.begin_group(subscription, call)

    def touch(self, call: Call) -> None:
        self._sessions.touch(call.client_id)


class _Stream:
    def __init__(self, telemetry: Telemetry, call: Call) -> None:
        self._telemetry = telemetry
        self.call = call
        # One message at a time: settings and questions come from several tasks.
        self._writing = asyncio.Lock()
        self._asking: asyncio.Task[None] | None = None
        self._topics: tuple[tuple[str, str], ...] = ()

    async def run(self) -> None:
        self.call.check_client()
        while (data := await self.call.context.read()) is not None:
            command = _read(data)
            self._telemetry.touch(self.call)
            if command.WhichOneof("command") == "settings":
                await self._settings(command.settings)

    async def _settings(self, told: pb.Settings) -> None:
        answer = self._telemetry.settings(told, self.call)
        if told.HasField("subscription"):
            await self._telemetry.begin_group(told.subscription, self.call)
        await self.write(TelemetryCommand(status=OK, settings=answer))
        topics = tuple(sorted(_names(told.publishing)))
        if topics and topics != self._topics:
            self._topics = topics
            self.close()
            kept = pb.Settings()
            kept.CopyFrom(told)
            self._asking = asyncio.ensure_future(self._telemetry.ask(kept, self))

    async def write(self, command: TelemetryCommand) -> None:
        async with self._writing:
            await self.call.context.write(command.SerializeToString())

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None


def _names(publishing: pb.Publishing) -> Iterator[tuple[str, str]]:
    for one in publishing.topics:
        yield one.resource_namespace, one.name
