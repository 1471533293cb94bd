"""Clients that were heard of, and the settings that they are told.

Nothing depends on a session: after a fail-over clients open their Telemetry stream again late, and
send and receive meanwhile. It is what makes an answer better: the settings of a simple consumer say
how long it polls, and messages of a client that is alive are kept invisible for it.
"""

from __future__ import annotations

from collections import OrderedDict

from mq.broker.broker import Broker
from mq.rpc.rocketmq.calls import Call
from mq.rpc.rocketmq.codes import OK, Refused
from mq.rpc.rocketmq.sending import Sending
from mq.wire.rocketmq import definition_pb2 as pb
from mq.wire.rocketmq import service_pb2 as service
from mq.wire.rocketmq.definition_pb2 import ClientType, Code, Language
from mq.wire.v1.cluster_pb2 import TopicType

SESSIONS_MAX = 100_000
_RECEIVE_BATCH_SIZE = 32
_LONG_POLLING_S = 20
_SEND_ATTEMPTS = 3
_MINUTE = 60
# As RocketMQ's own, by the number of the attempt that failed.
_BACKOFF_S = (1, 5, 10, 30, *range(_MINUTE, 11 * _MINUTE, _MINUTE), 1_200, 1_800, 3_600, 7_200)
_LITE = (ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER)


class Sessions:
    def __init__(self, broker: Broker, sending: Sending) -> None:
        self._broker = broker
        self._sending = sending
        # When each client was heard of, the one heard of last at the end.
        self._seen_ms: OrderedDict[str, int] = OrderedDict()
        self._settings: dict[str, pb.Settings] = {}

    def touch(self, client_id: str) -> None:
        seen = self._seen_ms
        seen[client_id] = self._broker.steady_ms()
        seen.move_to_end(client_id)
        if len(seen) > SESSIONS_MAX:
            oldest, _ = seen.popitem(last=False)
            self._settings.pop(oldest, None)

    def silent_ms(self, client_id: str) -> int | None:
        """For how long nothing was heard of it; None: nothing ever was."""
        seen_ms = self._seen_ms.get(client_id)
        return None if seen_ms is None else self._broker.steady_ms() - seen_ms

    def settings(self, client_id: str) -> pb.Settings | None:
        return self._settings.get(client_id)

    def drop(self, client_id: str) -> None:
        self._seen_ms.pop(client_id, None)
        self._settings.pop(client_id, None)

    # -- methods ----------------------------------------------------------------------------------

    async def notify_termination(
        self, request: service.NotifyClientTerminationRequest, call: Call
    ) -> service.NotifyClientTerminationResponse:
        """Messages that it holds are given out again when their time is over."""
        client_id = call.check_client()
        self.drop(client_id)
        if request.group.name:
            self._broker.receiving.leave(call.group(request.group), client_id)
        return service.NotifyClientTerminationResponse(status=OK)

    def answer(self, told: pb.Settings, call: Call) -> pb.Settings:
        """The settings of the client, merged with those of the broker. Raises Refused."""
        client_id = call.check_client()
        settings = pb.Settings()
        settings.CopyFrom(told)
        settings.metric.on = False
        kind = told.WhichOneof("pub_sub")
        if told.client_type in _LITE:
            raise Refused(Code.UNSUPPORTED, "lite topics are not supported")
        if kind == "publishing":
            for resource in told.publishing.topics:
                call.topic(resource)
            settings.publishing.max_body_size = self._sending.body_bytes_max
            settings.publishing.validate_message_type = True
            settings.backoff_policy.CopyFrom(_send_policy())
        elif kind == "subscription":
            self._subscription(settings, call)
        else:
            raise Refused(
                Code.UNRECOGNIZED_CLIENT_TYPE, "settings of neither a producer nor a consumer"
            )
        self.touch(client_id)
        self._settings[client_id] = settings
        return settings

    def _subscription(self, settings: pb.Settings, call: Call) -> None:
        subscription = settings.subscription
        group = call.group(subscription.group) if subscription.group.name else ""
        topics = [call.topic(one.topic) for one in subscription.subscriptions]
        ordered = [self.is_ordered(group, one) for one in topics]
        subscription.fifo = all(ordered) if ordered else self.is_ordered(group, "")
        subscription.receive_batch_size = _RECEIVE_BATCH_SIZE
        if not subscription.long_polling_timeout.seconds:
            subscription.long_polling_timeout.seconds = _LONG_POLLING_S
        retries_max = self._broker.receiving.retries_max(group)
        policy = settings.backoff_policy
        policy.Clear()
        policy.max_attempts = retries_max + 1
        if settings.user_agent.language == Language.NODE_JS:
            # It knows no other.
            policy.exponential_backoff.initial.seconds = _BACKOFF_S[2]
            policy.exponential_backoff.max.seconds = _BACKOFF_S[-1]
            policy.exponential_backoff.multiplier = 2.0
        else:
            for seconds in _BACKOFF_S:
                policy.customized_backoff.next.add(seconds=seconds)

    def is_ordered(self, group: str, topic: str) -> bool:
        """Whether consumers of the group get the messages of a message group in order, one at a
        time: as the group is set, or the type of the topic says.
        """
        own = self._broker.state.offsets.is_ordered(group)
        if own is not None:
            return own
        found = self._broker.directory.topic(topic)
        return bool(found) and all(one.type == TopicType.TOPIC_ORDERED for one in found)


def _send_policy() -> pb.RetryPolicy:
    policy = pb.RetryPolicy(max_attempts=_SEND_ATTEMPTS)
    policy.exponential_backoff.initial.nanos = 10_000_000
    policy.exponential_backoff.max.seconds = 1
    policy.exponential_backoff.multiplier = 2.0
    return policy
