"""Routes, settings and sends, by raw calls: what a producer of RocketMQ relies on."""

from __future__ import annotations

import gzip
import hashlib
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from mq.client import Message as OwnMessage
from mq.client import Producer, SimpleConsumer
from mq.wire.rocketmq import definition_pb2 as pb
from mq.wire.rocketmq import service_pb2 as service
from mq.wire.rocketmq.definition_pb2 import Code
from tests.rocketmq.raw import RawClient, message, new_name, resource

if TYPE_CHECKING:
    from mq.client import Admin
    from tests.support.broker_process import BrokerProcess


def code(answer: Any) -> str:
    return Code.Name(answer.status.code)


# -- routes ---------------------------------------------------------------------------------------


def test_a_route_has_every_queue_with_this_door_and_the_types_of_messages(
    client: RawClient, admin: Admin, topic: str, broker: BrokerProcess
) -> None:
    admin.create_topic(topic, queues=3)
    answer = client.call("QueryRoute", service.QueryRouteRequest(topic=resource(topic)))
    assert code(answer) == "OK"
    assert [one.id for one in answer.message_queues] == [0, 1, 2]
    for one in answer.message_queues:
        assert one.topic.name == topic
        assert one.permission == pb.READ_WRITE
        assert one.broker.name == "set-0"
        (address,) = one.broker.endpoints.addresses
        assert f"{address.host}:{address.port}" == broker.address
        assert one.broker.endpoints.scheme == pb.IPv4
        assert list(one.accept_message_types) == [pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION]


def test_a_topic_with_a_type_takes_its_messages_and_no_others(
    client: RawClient, admin: Admin
) -> None:
    wanted = {"ordered": pb.FIFO, "delayed": pb.DELAY, "transactional": pb.TRANSACTION}
    for kind, accepted in wanted.items():
        name = new_name(kind)
        admin.create_topic(name, queues=1, type=kind)  # type: ignore[arg-type]
        route = client.call("QueryRoute", service.QueryRouteRequest(topic=resource(name)))
        assert list(route.message_queues[0].accept_message_types) == [accepted]
        assert code(client.send(message(name))) == "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"
    fifo = new_name("fifo")
    admin.create_topic(fifo, queues=1, type="ordered")
    assert code(client.send(message(fifo, message_group="g"))) == "OK"


def test_assignments_are_any_queue_of_a_set(
    client: RawClient, admin: Admin, topic: str, group: str
) -> None:
    """Consumers alone ask for them: they create no topic, as a first route does."""
    request = service.QueryAssignmentRequest(topic=resource(topic), group=resource(group))
    for _ in range(2):
        assert code(client.call("QueryAssignment", request)) == "TOPIC_NOT_FOUND"
    admin.create_topic(topic, queues=4)
    answer = client.call("QueryAssignment", request)
    assert code(answer) == "OK"
    (assigned,) = answer.assignments
    assert assigned.message_queue.id == -1
    assert assigned.message_queue.broker.name == "set-0"


@pytest.mark.parametrize(
    ("method", "request_", "expected"),
    [
        ("QueryRoute", service.QueryRouteRequest(topic=resource("a b")), "ILLEGAL_TOPIC"),
        ("QueryRoute", service.QueryRouteRequest(topic=resource("%DLQ%none")), "TOPIC_NOT_FOUND"),
        ("QueryRoute", service.QueryRouteRequest(topic=resource("t", "n n")), "BAD_REQUEST"),
        ("QueryRoute", b"\xff", "BAD_REQUEST"),
        (
            "QueryAssignment",
            service.QueryAssignmentRequest(topic=resource("t"), group=resource("%g")),
            "ILLEGAL_CONSUMER_GROUP",
        ),
        ("SendMessage", service.SendMessageRequest(), "BAD_REQUEST"),
        ("SendMessage", service.SendMessageRequest(messages=[message("a b")]), "ILLEGAL_TOPIC"),
        (
            "SyncLiteSubscription",
            service.SyncLiteSubscriptionRequest(topic=resource("t")),
            "UNSUPPORTED",
        ),
    ],
)
def test_a_bad_request_is_refused_inside_of_the_answer(
    client: RawClient, method: str, request_: Any, expected: str
) -> None:
    assert code(client.call(method, request_)) == expected


# -- settings -------------------------------------------------------------------------------------


def settings_of(client: RawClient, settings: pb.Settings) -> pb.Settings:
    answer = next(client.telemetry([service.TelemetryCommand(settings=settings)]))
    assert answer.status.code == Code.OK
    found: pb.Settings = answer.settings
    return found


def test_a_producer_is_told_what_it_may_send(client: RawClient, topic: str) -> None:
    told = pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[resource(topic)]))
    told.request_timeout.seconds = 3
    found = settings_of(client, told)
    assert found.publishing.max_body_size == (4 << 20) - (64 << 10)
    assert found.publishing.validate_message_type
    assert found.publishing.topics == told.publishing.topics
    assert found.request_timeout.seconds == 3
    assert found.HasField("metric")
    assert not found.metric.on
    assert found.backoff_policy.max_attempts == 3
    assert found.backoff_policy.WhichOneof("strategy") == "exponential_backoff"


@pytest.mark.parametrize("language", [pb.JAVA, pb.NODE_JS])
def test_a_consumer_is_told_how_to_poll_and_to_back_off(
    client: RawClient, admin: Admin, language: pb.Language
) -> None:
    ordered, group = new_name("ordered"), new_name("group")
    admin.create_topic(ordered, queues=1, type="ordered")
    told = pb.Settings(client_type=pb.PUSH_CONSUMER, user_agent=pb.UA(language=language))
    told.subscription.group.name = group
    told.subscription.subscriptions.add(topic=resource(ordered))
    found = settings_of(client, told)
    assert found.subscription.fifo
    assert found.subscription.receive_batch_size == 32
    assert found.subscription.long_polling_timeout.seconds == 20
    assert found.backoff_policy.max_attempts == 17
    strategy = "exponential" if language == pb.NODE_JS else "customized"
    assert found.backoff_policy.WhichOneof("strategy") == f"{strategy}_backoff"
    told.subscription.subscriptions.add(topic=resource(new_name("untyped")))
    assert not settings_of(client, told).subscription.fifo


@pytest.mark.parametrize(
    "settings",
    [
        pb.Settings(),
        pb.Settings(publishing=pb.Publishing(topics=[resource("a b")])),
        pb.Settings(client_type=pb.LITE_PUSH_CONSUMER, subscription=pb.Subscription()),
    ],
)
def test_settings_that_make_no_sense_end_the_stream(
    client: RawClient, settings: pb.Settings
) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        settings_of(client, settings)
    assert raised.value.code() in (
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNAVAILABLE,
    )


def test_without_a_client_id_nothing_is_served(broker: BrokerProcess) -> None:
    with RawClient(broker.address, "") as client:
        answer = client.call("Heartbeat", service.HeartbeatRequest())
        assert code(answer) == "CLIENT_ID_REQUIRED"
        with pytest.raises(grpc.RpcError):
            next(client.telemetry([]))


def test_heartbeats_and_terminations_of_strangers_are_fine(client: RawClient, group: str) -> None:
    heartbeat = service.HeartbeatRequest(group=resource(group), client_type=pb.PUSH_CONSUMER)
    assert code(client.call("Heartbeat", heartbeat)) == "OK"
    ended = service.NotifyClientTerminationRequest(group=resource(group))
    assert code(client.call("NotifyClientTermination", ended)) == "OK"


# -- sends ----------------------------------------------------------------------------------------


def test_a_message_comes_as_it_was_sent(client: RawClient, topic: str, group: str) -> None:
    sent = message(
        topic, b"content", tag="red", keys=["k1", "k2"], properties={"a": "1"}, trace_context="tc"
    )
    answer = client.send(sent)
    assert code(answer) == "OK"
    (entry,) = answer.entries
    assert entry.message_id == sent.system_properties.message_id
    assert entry.status.code == Code.OK
    (found,) = client.receive(topic, group)
    system = found.system_properties
    assert found.topic.name == topic
    assert found.body == b"content"
    assert dict(found.user_properties) == {"a": "1"}
    assert system.message_id == sent.system_properties.message_id
    assert (system.tag, list(system.keys), system.trace_context) == ("red", ["k1", "k2"], "tc")
    assert system.message_type == pb.NORMAL
    assert system.body_encoding == pb.IDENTITY
    assert system.body_digest.type == pb.MD5
    expected = hashlib.md5(b"content", usedforsecurity=False).hexdigest().upper()
    assert system.body_digest.checksum == expected
    assert system.born_host == "test"
    assert system.born_timestamp.seconds == sent.system_properties.born_timestamp.seconds
    assert system.store_timestamp.seconds > 0
    assert system.delivery_attempt == 1
    assert system.receipt_handle


def test_several_messages_of_a_request_have_a_result_each(client: RawClient, topic: str) -> None:
    answer = client.send(message(topic, b"1"), message(topic, b""), message(topic, b"3"))
    assert code(answer) == "MULTIPLE_RESULTS"
    codes = [Code.Name(one.status.code) for one in answer.entries]
    assert codes == ["OK", "MESSAGE_BODY_EMPTY", "OK"]
    all_of_a_group = [message(topic, b"%d" % n, message_group="g") for n in range(10)]
    answer = client.send(*all_of_a_group)
    assert code(answer) == "OK"
    offsets = [one.offset for one in answer.entries]
    assert offsets == sorted(offsets)


def test_packed_bodies_are_stored_unpacked(client: RawClient, topic: str, group: str) -> None:
    body = b"much " * 1000
    assert code(client.send(message(topic, gzip.compress(body), body_encoding=pb.GZIP))) == "OK"
    (found,) = client.receive(topic, group)
    assert found.body == body
    assert found.system_properties.body_encoding == pb.IDENTITY


def wrong_digest(topic: str) -> pb.Message:
    made = message(topic)
    made.system_properties.body_digest.type = pb.MD5
    made.system_properties.body_digest.checksum = "00"
    return made


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda t: message(t, b""), "MESSAGE_BODY_EMPTY"),
        (lambda t: message(t, b"x" * (4 << 20)), "MESSAGE_BODY_TOO_LARGE"),
        (lambda t: message(t, b"no gzip", body_encoding=pb.GZIP), "MESSAGE_CORRUPTED"),
        (
            lambda t: message(t, gzip.compress(b"x")[:-9], body_encoding=pb.GZIP),
            "MESSAGE_CORRUPTED",
        ),
        (wrong_digest, "MESSAGE_CORRUPTED"),
        (lambda t: message(t, tag="a|b"), "ILLEGAL_MESSAGE_TAG"),
        (lambda t: message(t, keys=[" "]), "ILLEGAL_MESSAGE_KEY"),
        (lambda t: message(t, message_group=" "), "ILLEGAL_MESSAGE_GROUP"),
        (lambda t: message(t, properties={"": "x"}), "ILLEGAL_MESSAGE_PROPERTY_KEY"),
        (lambda t: message(t, message_id="x" * 300), "ILLEGAL_MESSAGE_ID"),
        (lambda t: message(t, message_type=pb.FIFO), "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
        (lambda t: message(t, message_type=pb.DELAY), "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
        (
            lambda t: message(t, message_type=pb.NORMAL, message_group="g"),
            "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE",
        ),
        (lambda t: message(t, message_type=99), "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"),
        (lambda t: message(t, message_type=pb.LITE), "UNSUPPORTED"),
        (lambda t: message(t, deliver_at_s=time.time() + 50 * 86_400), "ILLEGAL_DELIVERY_TIME"),
    ],
)
def test_a_bad_message_is_refused_and_nothing_is_stored(
    client: RawClient, topic: str, group: str, made: Any, expected: str
) -> None:
    answer = client.send(made(topic))
    assert code(answer) == expected
    assert Code.Name(answer.entries[0].status.code) == expected if answer.entries else True
    assert client.receive(topic, group, wait_s=0) == []


def test_messages_of_a_group_stay_in_one_queue_in_order(
    client: RawClient, admin: Admin, group: str
) -> None:
    topic = new_name("ordered")
    admin.create_topic(topic, queues=4, type="ordered")
    for number in range(6):
        answer = client.send(message(topic, b"%d" % number, message_group=f"g{number % 2}"))
        assert code(answer) == "OK"
    first = client.receive(topic, group)
    # One of each group at a time.
    assert sorted(one.body for one in first) == [b"0", b"1"]
    assert {one.system_properties.message_group for one in first} == {"g0", "g1"}
    assert {one.system_properties.message_type for one in first} == {pb.FIFO}
    assert client.receive(topic, group, wait_s=0) == []
    client.ack(topic, group, *first)
    assert sorted(one.body for one in client.receive(topic, group)) == [b"2", b"3"]


def test_a_group_can_be_set_to_consume_in_order(
    client: RawClient, admin: Admin, topic: str, group: str
) -> None:
    admin.create_topic(topic, queues=1)
    admin.alter_group(group, is_ordered=True)
    told = pb.Settings(client_type=pb.PUSH_CONSUMER)
    told.subscription.group.name = group
    told.subscription.subscriptions.add(topic=resource(topic))
    assert settings_of(client, told).subscription.fifo
    for body in (b"0", b"1"):
        assert code(client.send(message(topic, body, message_group="g"))) == "OK"
    (first,) = client.receive(topic, group)
    assert first.body == b"0"
    admin.alter_group(group, is_ordered=False)
    assert not settings_of(client, told).subscription.fifo


def test_priorities_are_kept(client: RawClient, admin: Admin, topic: str, group: str) -> None:
    admin.create_topic(topic, queues=2, priorities=2)
    route = client.call("QueryRoute", service.QueryRouteRequest(topic=resource(topic)))
    assert pb.PRIORITY in route.message_queues[0].accept_message_types
    for priority in (0, 1):
        answer = client.send(message(topic, b"%d" % priority, priority=priority))
        assert code(answer) == "OK"
    found = client.receive(topic, group)
    assert [one.body for one in found] == [b"1", b"0"]
    assert found[0].system_properties.priority == 1


# -- delays ---------------------------------------------------------------------------------------


def test_a_delayed_message_comes_at_its_time_and_not_before(
    client: RawClient, topic: str, group: str
) -> None:
    at_s = time.time() + 1.5
    answer = client.send(message(topic, deliver_at_s=at_s))
    assert code(answer) == "OK"
    assert answer.entries[0].recall_handle
    assert client.receive(topic, group, wait_s=0) == []
    (found,) = client.receive(topic, group, wait_s=20)
    assert time.time() >= at_s - 0.01
    system = found.system_properties
    assert system.message_type == pb.DELAY
    assert abs(system.delivery_timestamp.seconds - at_s) <= 1
    assert system.message_id == answer.entries[0].message_id


def test_a_time_that_has_passed_is_now(client: RawClient, topic: str, group: str) -> None:
    answer = client.send(message(topic, deliver_at_s=time.time() - 60))
    assert code(answer) == "OK"
    assert len(client.receive(topic, group)) == 1


# -- both protocols -------------------------------------------------------------------------------


def test_own_consumers_read_messages_of_rocketmq(
    client: RawClient, broker: BrokerProcess, topic: str, group: str
) -> None:
    sent = message(topic, b"b", tag="t", keys=["k"], properties={"p": "v"}, message_group="g")
    assert code(client.send(sent)) == "OK"
    with SimpleConsumer(broker.address, group, topic, start="earliest") as consumer:
        (found,) = consumer.receive(wait_s=10)
        assert (found.body, found.tag, list(found.keys)) == (b"b", "t", ["k"])
        assert dict(found.properties) == {"p": "v"}
        assert found.ordering_key == "g"


def test_rocketmq_consumers_read_own_messages(
    client: RawClient, broker: BrokerProcess, topic: str, group: str
) -> None:
    body = b"packed " * 1_000
    with Producer(broker.address, compress_above_bytes=100) as producer:
        producer.send(
            topic, OwnMessage(body, tag="t", keys=["k"], properties={"p": "v"}, ordering_key="g")
        )
    (found,) = client.receive(topic, group)
    system = found.system_properties
    assert found.body == body
    assert (system.tag, list(system.keys), system.message_group) == ("t", ["k"], "g")
    assert dict(found.user_properties) == {"p": "v"}
    assert system.message_id.startswith("set-0:")
    assert system.message_type == pb.FIFO


def test_a_namespace_is_a_part_of_the_name(client: RawClient, topic: str, group: str) -> None:
    assert code(client.send(message(topic, b"in", namespace="acme"))) == "OK"
    assert code(client.send(message(topic, b"out"))) == "OK"
    (found,) = client.receive(topic, group, namespace="acme")
    assert found.body == b"in"
    assert (found.topic.resource_namespace, found.topic.name) == ("acme", topic)
    (found,) = client.receive(f"acme%{topic}", new_name("group"))
    assert found.body == b"in"
