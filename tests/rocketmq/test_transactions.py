"""Transactions, recalls and offsets, by raw calls."""

from __future__ import annotations

import queue
import time
from typing import TYPE_CHECKING, Any

import pytest

from mq.wire.rocketmq import definition_pb2 as pb
from mq.wire.rocketmq import service_pb2 as service
from mq.wire.rocketmq.definition_pb2 import Code
from tests.rocketmq.raw import RawClient, message, new_name, resource, set_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mq.client import Admin


def code(answer: Any) -> str:
    return Code.Name(answer.status.code)


def half(client: RawClient, topic: str, **system: Any) -> service.SendResultEntry:
    answer = client.send(message(topic, b"half", message_type=pb.TRANSACTION, **system))
    assert code(answer) == "OK"
    assert answer.entries[0].transaction_id
    return answer.entries[0]


def end(
    client: RawClient, topic: str, transaction_id: str, resolution: pb.TransactionResolution
) -> str:
    request = service.EndTransactionRequest(
        topic=resource(topic), transaction_id=transaction_id, resolution=resolution
    )
    return code(client.call("EndTransaction", request))


# -- transactions ---------------------------------------------------------------------------------


def test_a_half_message_is_delivered_when_it_is_committed(
    client: RawClient, topic: str, group: str
) -> None:
    entry = half(client, topic)
    assert client.receive(topic, group, wait_s=0) == []
    unknown = pb.TRANSACTION_RESOLUTION_UNSPECIFIED
    assert end(client, topic, entry.transaction_id, unknown) == "OK"
    assert client.receive(topic, group, wait_s=0) == []
    assert end(client, topic, entry.transaction_id, pb.COMMIT) == "OK"
    (found,) = client.receive(topic, group)
    assert found.system_properties.message_id == entry.message_id
    assert found.system_properties.message_type == pb.TRANSACTION
    # The same end again gets the same answer; another one does not.
    assert end(client, topic, entry.transaction_id, pb.COMMIT) == "OK"
    assert end(client, topic, entry.transaction_id, pb.ROLLBACK) == "INVALID_TRANSACTION_ID"


def test_a_half_message_that_is_rolled_back_is_never_delivered(
    client: RawClient, topic: str, group: str
) -> None:
    entry = half(client, topic)
    assert end(client, topic, entry.transaction_id, pb.ROLLBACK) == "OK"
    assert client.receive(topic, group, wait_s=0.5) == []


@pytest.mark.parametrize("transaction_id", ["", "nothing", "set-0:999999999"])
def test_a_transaction_that_is_none_is_not_ended(
    client: RawClient, topic: str, transaction_id: str
) -> None:
    assert end(client, topic, transaction_id, pb.COMMIT) == "INVALID_TRANSACTION_ID"


def test_a_producer_is_asked_about_a_transaction_without_an_end(
    client: RawClient, topic: str, group: str
) -> None:
    commands: queue.Queue[service.TelemetryCommand | None] = queue.Queue()
    settings = pb.Settings(
        client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[resource(topic)])
    )
    commands.put(service.TelemetryCommand(settings=settings))

    def outgoing() -> Iterator[service.TelemetryCommand]:
        while (one := commands.get()) is not None:
            yield one

    stream = client.telemetry(outgoing())
    assert next(stream).WhichOneof("command") == "settings"
    entry = half(client, topic, first_check_s=1, properties={"p": "v"})
    command = next(stream)
    assert command.WhichOneof("command") == "recover_orphaned_transaction_command"
    asked = command.recover_orphaned_transaction_command
    assert asked.transaction_id == entry.transaction_id
    assert asked.message.body == b"half"
    assert asked.message.topic.name == topic
    assert asked.message.system_properties.message_id == entry.message_id
    assert dict(asked.message.user_properties) == {"p": "v"}
    assert end(client, topic, asked.transaction_id, pb.COMMIT) == "OK"
    assert len(client.receive(topic, group)) == 1
    commands.put(None)
    assert list(stream) == []


# -- recalls --------------------------------------------------------------------------------------


def recall(client: RawClient, topic: str, handle: str) -> Any:
    request = service.RecallMessageRequest(topic=resource(topic), recall_handle=handle)
    return client.call("RecallMessage", request)


def test_a_delayed_message_can_be_taken_back_once(
    client: RawClient, topic: str, group: str
) -> None:
    answer = client.send(message(topic, deliver_at_s=time.time() + 2))
    (entry,) = answer.entries
    taken = recall(client, topic, entry.recall_handle)
    assert code(taken) == "OK"
    assert taken.message_id == entry.message_id
    assert code(recall(client, topic, entry.recall_handle)) == "NOT_FOUND"
    assert client.receive(topic, group, wait_s=3) == []


def test_a_recall_handle_that_is_none_is_refused(client: RawClient, topic: str) -> None:
    assert code(recall(client, topic, "none")) == "BAD_REQUEST"
    assert code(recall(client, topic, "")) == "BAD_REQUEST"
    entry = client.send(message(topic, deliver_at_s=time.time() + 600)).entries[0]
    assert code(recall(client, new_name("other"), entry.recall_handle)) == "BAD_REQUEST"


# -- offsets --------------------------------------------------------------------------------------


def pull(client: RawClient, topic: str, offset: int, queue_id: int = 0, **more: Any) -> Any:
    request = service.PullMessageRequest(
        group=resource("puller"),
        message_queue=pb.MessageQueue(topic=resource(topic), id=queue_id),
        offset=offset,
        batch_size=10,
        **more,
    )
    return client.call("PullMessage", request)


def test_a_queue_is_pulled_by_offset(client: RawClient, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, queues=1)
    for number in range(3):
        client.send(message(topic, b"%d" % number, tag="even" if number % 2 == 0 else "odd"))
    answers = pull(client, topic, 1)
    assert code(answers[0]) == "OK"
    assert [one.message.body for one in answers[1:-1]] == [b"1", b"2"]
    assert [one.message.system_properties.queue_offset for one in answers[1:-1]] == [1, 2]
    assert answers[-1].next_offset == 3
    tagged = pb.FilterExpression(type=pb.TAG, expression="even")
    answers = pull(client, topic, 0, filter_expression=tagged)
    assert [one.message.body for one in answers[1:-1]] == [b"0", b"2"]
    answers = pull(client, topic, 3)
    assert code(answers[0]) == "MESSAGE_NOT_FOUND"
    assert answers[-1].next_offset == 3
    assert code(pull(client, topic, 4)[0]) == "ILLEGAL_OFFSET"
    assert code(pull(client, topic, -1)[0]) == "ILLEGAL_OFFSET"
    assert code(pull(client, topic, 0, queue_id=7)[0]) == "TOPIC_NOT_FOUND"
    assert code(pull(client, topic, 0, queue_id=-1)[0]) == "TOPIC_NOT_FOUND"


def test_offsets_of_a_group_are_kept(
    client: RawClient, admin: Admin, topic: str, group: str
) -> None:
    admin.create_topic(topic, queues=1)
    client.send(message(topic, b"1"))
    client.send(message(topic, b"2"))
    place: dict[str, Any] = {
        "group": resource(group),
        "message_queue": pb.MessageQueue(topic=resource(topic), id=0),
    }
    assert code(client.call("GetOffset", service.GetOffsetRequest(**place))) == "OFFSET_NOT_FOUND"
    update = service.UpdateOffsetRequest(offset=1, **place)
    assert code(client.call("UpdateOffset", update)) == "OK"
    assert client.call("GetOffset", service.GetOffsetRequest(**place)).offset == 1
    update = service.UpdateOffsetRequest(offset=9, **place)
    assert code(client.call("UpdateOffset", update)) == "ILLEGAL_OFFSET"


def test_offsets_are_found_by_place_and_by_time(
    client: RawClient, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, queues=1)
    client.send(message(topic, b"1"))
    where = pb.MessageQueue(topic=resource(topic), id=0)

    def found(policy: service.QueryOffsetPolicy, at_s: float | None = None) -> Any:
        request = service.QueryOffsetRequest(message_queue=where, query_offset_policy=policy)
        if at_s is not None:
            set_duration(request.timestamp, at_s)
        return client.call("QueryOffset", request)

    assert found(service.BEGINNING).offset == 0
    assert found(service.END).offset == 1
    assert found(service.TIMESTAMP, time.time() - 60).offset == 0
    assert found(service.TIMESTAMP, time.time() + 60).offset == 1
    assert code(found(service.TIMESTAMP)) == "BAD_REQUEST"
