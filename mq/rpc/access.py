"""Rules: which action on which resource a call of a method needs.

Every method has a rule in the table of services (`mq.rpc.services`). A rule gets the caller and the
request, and raises PermissionDenied. Methods about several resources are checked for each of them.
What is only known later is checked by the service itself: the topic of each batch on a stream, the
topic of a message that is found by its id, the entries of a list.

Areas of the cluster that policies can name: `members`, `sets`, `config`, `status`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, TypeAlias

from mq.access.policies import Action, Kind, Resource, group_resource, topic_resource
from mq.broker.broker import Broker
from mq.broker.security.gate import LiveStream, Need, Principal
from mq.errors import MqError
from mq.names import parse_message_id
from mq.wire.v1 import consumer_pb2

Rule: TypeAlias = Callable[[Principal, Any], None]

# The stream that the current task serves: its caller is always that of now.
LIVE: ContextVar[LiveStream] = ContextVar("LIVE")


def open_to_all(caller: Principal, request: Any) -> None:
    """Without an identity. The dispatcher does not even ask for one."""


def any_caller(caller: Principal, request: Any) -> None:
    """With an identity. The service checks what is only known there, or shows what may be seen."""


class Rules:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._gate = broker.gate

    # -- of the table -----------------------------------------------------------------------------

    def topic(self, action: Action) -> Rule:
        return lambda caller, request: self._gate.check(
            caller, action, topic_resource(request.topic)
        )

    def group(self, *actions: Action) -> Rule:
        def rule(caller: Principal, request: Any) -> None:
            for action in actions:
                self._gate.check(caller, action, group_resource(request.group))

        return rule

    def cluster(self, action: Action, area: str) -> Rule:
        resource = Resource(Kind.CLUSTER, area)
        return lambda caller, _: self._gate.check(caller, action, resource)

    def superuser(self, area: str) -> Rule:
        return lambda caller, _: self._gate.check_superuser(caller, area)

    def publish(self, caller: Principal, request: Any) -> None:
        """Also of one batch of a stream. The first message of a topic creates it."""
        self.publish_to(caller, request.topic)

    def consume_all(self, caller: Principal, request: Any) -> None:
        """A group, and the topics that it subscribes to or reads."""
        self._gate.check_all(caller, subscription_needs(request))

    def receive(self, caller: Principal, request: consumer_pb2.ReceiveRequest) -> None:
        self._gate.check(caller, Action.CONSUME, group_resource(request.group))
        self._gate.check(caller, Action.CONSUME, topic_resource(request.topic))

    def leave(self, caller: Principal, request: consumer_pb2.LeaveRequest) -> None:
        """With a reason, another member is sent away."""
        action = Action.ALTER if request.reason else Action.CONSUME
        self._gate.check(caller, action, group_resource(request.group))

    def retry(self, caller: Principal, request: consumer_pb2.RetryRequest) -> None:
        """A copy is made of each message."""
        self._gate.check(caller, Action.CONSUME, group_resource(request.group))
        for topic in {one.topic for one in request.messages}:
            self._gate.check(caller, Action.CONSUME, topic_resource(topic))

    def send_atomically(self, caller: Principal, request: Any) -> None:
        """The topics of the batches are checked by the service, which opens them."""
        letters = request.dead_letters.messages
        if request.group or request.positions or request.handles or letters:
            self._gate.check(caller, Action.CONSUME, group_resource(request.group))
        for topic in {one.topic for one in (*request.positions, *letters)}:
            self._gate.check(caller, Action.CONSUME, topic_resource(topic))

    def reset_offsets(self, caller: Principal, request: Any) -> None:
        self._gate.check(caller, Action.ALTER, group_resource(request.group))
        self._gate.check(caller, Action.DESCRIBE, topic_resource(request.topic))

    def scheduled(self, caller: Principal, request: Any) -> None:
        """Without a topic it is a list of what may be seen."""
        if request.topic:
            self._gate.check(caller, Action.DESCRIBE, topic_resource(request.topic))

    def dead_letters(self, caller: Principal, request: Any) -> None:
        """Bodies are for those who may consume; without a group it is a list."""
        if request.group:
            self._gate.check(caller, Action.CONSUME, group_resource(request.group))

    def route(self, caller: Principal, request: Any) -> None:
        for topic in request.topics:
            resource = topic_resource(topic)
            self._gate.check(caller, Action.DESCRIBE, resource)
            if request.create_missing and self.is_new(topic):
                self._gate.check(caller, Action.CREATE, resource)

    def transfer_leadership(self, caller: Principal, request: Any) -> None:
        """A broker that is about to stop asks for it, too, by the key of the cluster."""
        if not caller.is_broker:
            self._gate.check(caller, Action.ALTER, Resource(Kind.CLUSTER, "members"))

    def transaction(self, action: Action) -> Rule:
        """Of the topic that the half message is for. One that is not open is not found later."""

        def rule(caller: Principal, request: Any) -> None:
            self.check_transaction(caller, action, request.transaction_id)

        return rule

    # -- of services ------------------------------------------------------------------------------

    def is_new(self, topic: str) -> bool:
        """Whether a first message would create it."""
        return self._broker.settings.creates_topics and not (
            topic in self._broker.state.topics or self._broker.directory.topic(topic)
        )

    def publish_to(self, caller: Principal, topic: str) -> None:
        # The usual cases first: this is asked for every batch.
        if caller.is_superuser:
            return
        if topic not in caller.publishes or topic not in self._broker.state.topics:
            self._gate.check_publish(caller, topic, is_new=self.is_new(topic))

    def check_transaction(self, caller: Principal, action: Action, transaction_id: str) -> None:
        if caller.is_superuser:
            return
        _, log_offset = parse_message_id(transaction_id)
        one = self._broker.state.transactions.open.get(log_offset)
        if one is not None:
            self._gate.check(caller, action, topic_resource(one.topic))

    def may_describe_topic(self, caller: Principal, topic: str) -> bool:
        return self._gate.may(caller, Action.DESCRIBE, topic_resource(topic))

    def may_describe_group(self, caller: Principal, group: str) -> bool:
        return self._gate.may(caller, Action.DESCRIBE, group_resource(group))

    def may_consume_topic(self, caller: Principal, topic: str) -> bool:
        return self._gate.may(caller, Action.CONSUME, topic_resource(topic))

    def check_describe_topic(self, caller: Principal, topic: str) -> None:
        self._gate.check(caller, Action.DESCRIBE, topic_resource(topic))

    def check_consume_group(self, caller: Principal, group: str) -> None:
        self._gate.check(caller, Action.CONSUME, group_resource(group))

    def check_consume_topic(self, caller: Principal, topic: str) -> None:
        self._gate.check(caller, Action.CONSUME, topic_resource(topic))

    def hold(self, needs: Iterable[Need]) -> None:
        """The stream of this task has to be allowed these for as long as it lasts."""
        stream = LIVE.get()
        stream.needs.extend(needs)
        self._gate.check_all(stream.principal, stream.needs)

    def explained(self, error: MqError, caller: Principal) -> MqError:
        """The error as this caller is told of it: without names that it may not see."""
        return self._broker.missing_topics.explained(
            error, lambda topic: self.may_describe_topic(caller, topic)
        )


def subscription_needs(request: Any) -> list[Need]:
    """Of a member of a group: `JoinRequest`, `SubscribeStart`."""
    topics = {one.topic for one in request.subscriptions}
    return [
        (Action.CONSUME, group_resource(request.group)),
        *((Action.CONSUME, topic_resource(topic)) for topic in sorted(topics)),
    ]
