"""MessagingService: every method, and what serves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf import message_factory
from google.protobuf.message import Message

from mq.broker.broker import Broker
from mq.rpc.access import Rules
from mq.rpc.context import Handlers, StreamHandler, UnaryHandler
from mq.rpc.methods import Observer
from mq.rpc.rocketmq.calls import NAME, Call, Calls, Method
from mq.rpc.rocketmq.codes import Refused
from mq.rpc.rocketmq.forwarding import Forwarder
from mq.rpc.rocketmq.offsets import Offsets
from mq.rpc.rocketmq.receiving import Receiving
from mq.rpc.rocketmq.renewing import Renewals
from mq.rpc.rocketmq.routes import Routes
from mq.rpc.rocketmq.sending import Sending
from mq.rpc.rocketmq.sessions import Sessions
from mq.rpc.rocketmq.telemetry import Telemetry
from mq.rpc.rocketmq.transactions import Transactions, set_of_recall, set_of_transaction
from mq.rpc.tls import Connect
from mq.wire.rocketmq import service_pb2 as pb
from mq.wire.rocketmq.definition_pb2 import Code

_SERVICE = pb.DESCRIPTOR.services_by_name["MessagingService"]


class MessagingService:
    def __init__(
        self, broker: Broker, broker_set: str, rules: Rules, observe: Observer, connect: Connect
    ) -> None:
        self._forwarder = Forwarder(broker, connect)
        self._calls = Calls(broker, observe, self._forwarder)
        self._routes = Routes(broker, rules, self._calls)
        self._sending = Sending(broker, broker_set, rules)
        self._sessions = Sessions(broker, self._sending)
        self._renewals = Renewals(broker, self._sessions)
        self._receiving = Receiving(
            broker, broker_set, rules, self._calls, self._sessions, self._renewals
        )
        self._transactions = Transactions(broker, rules)
        self._offsets = Offsets(broker, broker_set, rules)
        self._telemetry = Telemetry(
            broker, broker_set, rules, self._sessions, self._receiving, self._forwarder
        )

    def handlers(self, *, is_external: bool) -> Handlers:
        """Clients of an external listener are told external addresses."""
        found: dict[str, UnaryHandler | StreamHandler] = {}
        receiving = self._receiving

        def unary(name: str, serve: Callable[..., Any], **how: Any) -> None:
            found[name] = self._calls.unary(_method(name, is_external=is_external), serve, **how)

        # From what every node knows.
        unary("QueryRoute", self._routes.query_route, anywhere=True)
        unary("QueryAssignment", self._routes.query_assignment, anywhere=True)
        found["Telemetry"] = self._calls.live_stream(
            "Telemetry", self._telemetry.telemetry, is_external=is_external
        )
        unary("Heartbeat", receiving.heartbeat)
        unary("NotifyClientTermination", self._sessions.notify_termination)
        unary("SendMessage", self._sending.send, begin=self._sending.begin, repeats=True)
        found["ReceiveMessage"] = self._calls.server_stream(
            _method("ReceiveMessage", is_external=is_external), receiving.receive
        )
        unary("AckMessage", receiving.ack, begin=receiving.begin_ack, repeats=True)
        unary("ChangeInvisibleDuration", receiving.change_invisible, repeats=True)
        unary("ForwardMessageToDeadLetterQueue", receiving.to_dead_letters)
        unary("EndTransaction", self._transactions.end, set_of=set_of_transaction)
        unary("RecallMessage", self._transactions.recall, set_of=set_of_recall)
        found["PullMessage"] = self._calls.server_stream(
            _method("PullMessage", is_external=is_external), self._offsets.pull
        )
        unary("UpdateOffset", self._offsets.update)
        unary("GetOffset", self._offsets.get)
        unary("QueryOffset", self._offsets.query)
        unary("SyncLiteSubscription", _no_lite_topics, anywhere=True)
        return {f"/{NAME}/{name}": handler for name, handler in found.items()}

    def drain(self) -> None:
        """The node stops: streams end, and clients go to another one."""
        self._calls.is_draining = True
        self._telemetry.drain()

    async def close(self) -> None:
        self._renewals.stop()
        await self._forwarder.close()


def _method(name: str, *, is_external: bool) -> Method:
    described = _SERVICE.methods_by_name[name]
    request, response = (
        message_factory.GetMessageClass(one)
        for one in (described.input_type, described.output_type)
    )
    return Method(name, request, response, is_external)


async def _no_lite_topics(_request: pb.SyncLiteSubscriptionRequest, _call: Call) -> Message:
    raise Refused(Code.UNSUPPORTED, "lite topics are not supported")
