"""Receiving, acknowledging and giving up, by raw calls: what a consumer of RocketMQ relies on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from mq.client import Message, Nack, Producer, PushConsumer, SimpleConsumer
from mq.errors import SubscriptionMismatch
from mq.wire.rocketmq import definition_pb2 as pb
from mq.wire.rocketmq import service_pb2 as service
from mq.wire.rocketmq.definition_pb2 import Code
from tests.rocketmq.raw import RawClient, message, new_name, resource, set_duration
from tests.support.lost_answer import LostAnswer

if TYPE_CHECKING:
    from mq.client import Admin
    from tests.support.broker_process import BrokerProcess


def code(answer: Any) -> str:
    return Code.Name(answer.status.code)


def sent(client: RawClient, topic: str, *bodies: bytes, **system: Any) -> None:
    for body in bodies:
        assert code(client.send(message(topic, body, **system))) == "OK"


def change_invisible(
    client: RawClient, topic: str, group: str, one: pb.Message, seconds: float
) -> service.ChangeInvisibleDurationResponse:
    request = service.ChangeInvisibleDurationRequest(
        group=resource(group),
        topic=resource(topic),
        receipt_handle=one.system_properties.receipt_handle,
        message_id=one.system_properties.message_id,
    )
    set_duration(request.invisible_duration, seconds)
    found: service.ChangeInvisibleDurationResponse = client.call("ChangeInvisibleDuration", request)
    return found


def to_dead_letters(
    client: RawClient, topic: str, group: str, one: pb.Message
) -> service.ForwardMessageToDeadLetterQueueResponse:
    found: service.ForwardMessageToDeadLetterQueueResponse = client.call(
        "ForwardMessageToDeadLetterQueue",
        service.ForwardMessageToDeadLetterQueueRequest(
            group=resource(group),
            topic=resource(topic),
            receipt_handle=one.system_properties.receipt_handle,
            message_id=one.system_properties.message_id,
            delivery_attempt=one.system_properties.delivery_attempt,
            max_delivery_attempts=3,
        ),
    )
    return found


# -- receives -------------------------------------------------------------------------------------


def test_a_receive_waits_for_messages_and_says_that_none_came(
    client: RawClient, topic: str, group: str
) -> None:
    sent(client, topic, b"first")
    (first,) = client.receive(topic, group)
    client.ack(topic, group, first)
    began_s = time.monotonic()
    (status,) = client.receive_raw(topic, group, wait_s=1.0)
    assert code(status) == "MESSAGE_NOT_FOUND"
    assert time.monotonic() - began_s >= 0.9


def test_a_message_that_is_not_acknowledged_comes_again(
    client: RawClient, topic: str, group: str
) -> None:
    sent(client, topic, b"x")
    (first,) = client.receive(topic, group, invisible_s=0.5)
    (again,) = client.receive(topic, group, wait_s=10)
    assert again.system_properties.message_id == first.system_properties.message_id
    assert again.system_properties.delivery_attempt == 2
    assert client.ack(topic, group, first).status.code == Code.INVALID_RECEIPT_HANDLE
    assert client.ack(topic, group, again).status.code == Code.OK


def test_filters_by_tag_and_by_sql(client: RawClient, topic: str) -> None:
    sent(client, topic, b"red", tag="red", properties={"size": "1"})
    sent(client, topic, b"blue", tag="blue", properties={"size": "7"})
    found = client.receive(topic, new_name("group"), tags="red || green")
    assert [one.body for one in found] == [b"red"]
    found = client.receive(topic, new_name("group"), sql="size > 5")
    assert [one.body for one in found] == [b"blue"]
    assert len(client.receive(topic, new_name("group"), tags="")) == 2


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"sql": "size >"}, "ILLEGAL_FILTER_EXPRESSION"),
        ({"tags": "a b"}, "ILLEGAL_FILTER_EXPRESSION"),
        ({"invisible_s": 13 * 3600}, "ILLEGAL_INVISIBLE_TIME"),
        ({"invisible_s": 0}, "ILLEGAL_INVISIBLE_TIME"),
        ({"group": "%g"}, "ILLEGAL_CONSUMER_GROUP"),
        ({"topic": "a b"}, "ILLEGAL_TOPIC"),
        ({"topic": "%SYS%HALF"}, "TOPIC_NOT_FOUND"),
    ],
)
def test_a_bad_receive_is_one_status_and_no_message(
    client: RawClient, topic: str, group: str, wanted: dict[str, Any], expected: str
) -> None:
    sent(client, topic, b"x")
    wanted = {"topic": topic, "group": group, "wait_s": 0, **wanted}
    (status,) = client.receive_raw(**wanted)
    assert code(status) == expected


def test_members_of_a_group_have_to_agree(
    broker: BrokerProcess, client: RawClient, topic: str, group: str
) -> None:
    sent(client, topic, b"x")
    client.receive(topic, group)
    with RawClient(broker.address, new_name("other")) as other:
        (status,) = other.receive_raw(topic, group, tags="other", wait_s=0)
        assert code(status) == "ILLEGAL_FILTER_EXPRESSION"


def test_a_group_is_used_by_one_protocol_at_a_time(
    broker: BrokerProcess, client: RawClient, topic: str
) -> None:
    sent(client, topic, b"x")
    first, second = new_name("group"), new_name("group")
    client.receive(topic, first)
    with (
        SimpleConsumer(broker.address, first, topic, start="earliest") as consumer,
        pytest.raises(SubscriptionMismatch, match=r"mq's own protocol.*RocketMQ's protocol"),
    ):
        consumer.receive(wait_s=0)
    with SimpleConsumer(broker.address, second, topic, start="earliest") as consumer:
        assert consumer.receive(wait_s=5)
        (status,) = client.receive_raw(topic, second, wait_s=0)
        assert code(status) == "ILLEGAL_FILTER_EXPRESSION"
        assert "RocketMQ's protocol" in status.status.message
        assert "mq's own protocol" in status.status.message


def test_a_new_group_begins_with_the_first_message(
    client: RawClient, topic: str, group: str
) -> None:
    sent(client, topic, b"before the group")
    assert [one.body for one in client.receive(topic, group)] == [b"before the group"]


def test_a_message_of_a_push_consumer_stays_its_own(
    client: RawClient, topic: str, group: str
) -> None:
    sent(client, topic, b"x")
    (found,) = client.receive(topic, group, auto_renew=True)
    assert found.system_properties.invisible_duration.seconds == 60
    assert client.ack(topic, group, found).status.code == Code.OK


# -- receives that are repeated -------------------------------------------------------------------


def test_an_ordered_receive_is_repeated_when_its_answer_was_lost(
    broker: BrokerProcess, client: RawClient, admin: Admin, topic: str, group: str
) -> None:
    admin.create_topic(topic, queues=2, type="ordered")
    sent(client, topic, b"the first", b"the second", message_group="x", message_type=pb.FIFO)
    push: dict[str, Any] = {"auto_renew": True, "wait_s": 0}
    name = new_name("client")
    with LostAnswer(b"the first", broker.address) as relay:
        with RawClient(relay.address, name) as consumer, pytest.raises(grpc.RpcError):
            consumer.receive(topic, group, attempt_id="one", **push)
        assert relay.is_lost.is_set()
        # Over another connection: gRPC may take the broken one for well.
        with RawClient(broker.address, name) as consumer:
            # Neither as another receive, nor by another consumer.
            assert consumer.receive(topic, group, attempt_id="two", **push) == []
            assert consumer.receive(topic, group, **push) == []
            assert client.receive(topic, group, attempt_id="one", **push) == []
            (first,) = consumer.receive(topic, group, attempt_id="one", **push)
            assert (first.body, first.system_properties.delivery_attempt) == (b"the first", 1)
            assert client.receive(topic, group, attempt_id="two", **push) == []
            assert code(consumer.ack(topic, group, first)) == "OK"
            (second,) = consumer.receive(topic, group, attempt_id="two", **push)
            assert second.body == b"the second"
            assert code(consumer.ack(topic, group, second)) == "OK"


def test_handles_of_an_answer_are_stale_when_its_receive_was_repeated(
    client: RawClient, admin: Admin, topic: str, group: str
) -> None:
    admin.create_topic(topic, queues=1, type="ordered")
    sent(client, topic, b"x", message_group="x", message_type=pb.FIFO)
    (lost,) = client.receive(topic, group, auto_renew=True, attempt_id="one")
    (again,) = client.receive(topic, group, auto_renew=True, attempt_id="one")
    assert again.system_properties.message_id == lost.system_properties.message_id
    assert code(change_invisible(client, topic, group, lost, 30)) == "INVALID_RECEIPT_HANDLE"
    assert code(client.ack(topic, group, lost)) == "INVALID_RECEIPT_HANDLE"
    assert code(client.ack(topic, group, again)) == "OK"


def test_another_ordered_receive_waits_until_the_time_is_over(
    client: RawClient, admin: Admin, topic: str, group: str
) -> None:
    admin.create_topic(topic, queues=1, type="ordered")
    sent(client, topic, b"first", b"second", message_group="x", message_type=pb.FIFO)
    began_s = time.monotonic()
    client.receive(topic, group, invisible_s=2, attempt_id="one")
    (again,) = client.receive(topic, group, wait_s=20, attempt_id="two")
    assert time.monotonic() - began_s >= 1.9
    assert (again.body, again.system_properties.delivery_attempt) == (b"first", 2)


def test_without_an_order_a_receive_is_not_repeated(
    client: RawClient, topic: str, group: str
) -> None:
    sent(client, topic, b"x")
    assert client.receive(topic, group, auto_renew=True, attempt_id="one")
    assert client.receive(topic, group, auto_renew=True, attempt_id="one", wait_s=0) == []


# -- handles --------------------------------------------------------------------------------------


def test_each_handle_of_an_acknowledgement_has_a_result(
    client: RawClient, topic: str, group: str
) -> None:
    sent(client, topic, b"1", b"2")
    found: list[pb.Message] = []
    while len(found) < 2:
        found += client.receive(topic, group)
    answer = client.ack(topic, group, *found)
    assert code(answer) == "OK"
    assert [one.message_id for one in answer.entries] == [
        one.system_properties.message_id for one in found
    ]
    broken = pb.Message()
    broken.system_properties.receipt_handle = "no handle"
    sent(client, topic, b"3")
    (third,) = client.receive(topic, group)
    answer = client.ack(topic, group, third, broken)
    assert code(answer) == "MULTIPLE_RESULTS"
    codes = [Code.Name(one.status.code) for one in answer.entries]
    assert codes == ["OK", "INVALID_RECEIPT_HANDLE"]
    assert code(client.ack(topic, group)) == "BAD_REQUEST"


@pytest.mark.parametrize("seconds", [0, 1])
def test_a_message_can_be_put_off_for_any_time(
    client: RawClient, topic: str, group: str, seconds: int
) -> None:
    sent(client, topic, b"x")
    (first,) = client.receive(topic, group, invisible_s=60)
    began_s = time.monotonic()
    answer = change_invisible(client, topic, group, first, seconds)
    assert code(answer) == "OK"
    assert answer.receipt_handle
    (again,) = client.receive(topic, group, wait_s=10)
    assert time.monotonic() - began_s >= seconds - 0.05
    assert again.system_properties.delivery_attempt == 2


def test_the_handle_stays_good_when_the_time_was_changed(
    client: RawClient, topic: str, group: str
) -> None:
    sent(client, topic, b"x")
    (found,) = client.receive(topic, group)
    answer = change_invisible(client, topic, group, found, 30)
    found.system_properties.receipt_handle = answer.receipt_handle
    assert code(client.ack(topic, group, found)) == "OK"
    assert code(change_invisible(client, topic, group, found, 30)) == "INVALID_RECEIPT_HANDLE"
    assert code(change_invisible(client, topic, group, found, 13 * 3600)) == (
        "ILLEGAL_INVISIBLE_TIME"
    )


def test_a_message_that_fails_too_often_is_a_dead_letter_with_the_same_id(
    client: RawClient, admin: Admin, topic: str, group: str
) -> None:
    sent(client, topic, b"poison")
    admin.alter_group(group, retries_max=1)
    for attempt in (1, 2):
        (found,) = client.receive(topic, group, wait_s=10)
        assert found.system_properties.delivery_attempt == attempt
        assert code(change_invisible(client, topic, group, found, 0)) == "OK"
    assert client.receive(topic, group, wait_s=1) == []
    letters: list[pb.Message] = []
    deadline_s = time.monotonic() + 30
    while not letters and time.monotonic() < deadline_s:
        answers = client.receive_raw(f"%DLQ%{group}", new_name("operators"), wait_s=1)
        letters = [one.message for one in answers if one.WhichOneof("content") == "message"]
    assert letters[0].body == b"poison"
    system = letters[0].system_properties
    assert system.message_id == found.system_properties.message_id
    assert system.dead_letter_queue.topic == topic
    assert system.dead_letter_queue.message_id == system.message_id


def test_a_message_is_given_up_when_its_consumer_says_so(
    client: RawClient, topic: str, group: str
) -> None:
    sent(client, topic, b"poison")
    (found,) = client.receive(topic, group)
    assert code(to_dead_letters(client, topic, group, found)) == "OK"
    # Again, of a message that is gone.
    assert code(to_dead_letters(client, topic, group, found)) == "OK"
    assert client.receive(topic, group, wait_s=0) == []
    (letter,) = client.receive(f"%DLQ%{group}", new_name("operators"), wait_s=10)
    assert letter.body == b"poison"


def test_messages_that_failed_in_own_consumers_come_from_the_retry_topic(
    broker: BrokerProcess, client: RawClient, topic: str, group: str
) -> None:
    with Producer(broker.address) as producer:
        producer.send(topic, Message(b"x"))
    failed: list[bytes] = []

    def handle(one: Any) -> None:
        failed.append(one.body)
        raise Nack("not now", delay_s=0.1)

    with PushConsumer(broker.address, group, topic, handle, start="earliest"):
        deadline_s = time.monotonic() + 30
        while not failed and time.monotonic() < deadline_s:
            time.sleep(0.01)
    found: list[pb.Message] = []
    deadline_s = time.monotonic() + 60
    while not found and time.monotonic() < deadline_s:
        answers = client.receive_raw(topic, group, wait_s=1)
        found = [one.message for one in answers if one.WhichOneof("content") == "message"]
    assert found[0].body == b"x"
    assert found[0].topic.name == topic
    assert found[0].system_properties.delivery_attempt >= 2
