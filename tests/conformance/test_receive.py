"""ConsumerService/Receive, Ack, Nack, ChangeInvisible: messages in flight."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from mq.wire.v1 import consumer_pb2, status_pb2
from mq.wire.v1.consumer_pb2 import START_EARLIEST, START_TIMESTAMP, Filter, Handle
from mq.wire.v1.message_pb2 import Message
from tests.conformance.calls import Calls, path_of, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.streams import SubscribeStream

INVALID = grpc.StatusCode.INVALID_ARGUMENT
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION


def receive(calls: Calls, group: str, topic: str, **fields: Any) -> Any:
    fields.setdefault("start_position", START_EARLIEST)
    return calls("Receive", group=group, topic=topic, **fields)


def bodies(answer: Any) -> list[bytes]:
    return [message.body for one in answer.runs for message in one.run.messages]


def handles(answer: Any) -> list[Handle]:
    return [
        Handle(lease=one.lease, queue_offset=one.run.queue_offset + at)
        for one in answer.runs
        for at in range(len(one.run.messages))
    ]


def codes(answer: Any) -> list[str]:
    return [status_pb2.Code.Name(code) for code in answer.codes]


def test_a_received_run_says_what_there_is_to_know(calls: Calls, topic: str, group: str) -> None:
    sent = calls.send(topic, b"a", b"b", queue_id=2)
    before_ms = int(time.time() * 1000)
    (one,) = receive(calls, group, topic, invisible_ms=30_000).runs
    assert (one.topic, one.queue_id, one.attempt) == (topic, 2, 1)
    assert one.lease
    assert before_ms + 29_000 <= one.invisible_until_ms <= before_ms + 60_000
    assert (one.run.queue_offset, one.run.stored_at_ms) == (0, sent.stored_at_ms)
    assert len(one.run.frame_sizes) == 2
    ids = [f"set-0:{one.run.log_offset}", f"set-0:{one.run.log_offset + one.run.frame_sizes[0]}"]
    assert ids == list(sent.message_ids)


def test_acknowledged_messages_are_done_and_others_come_again(
    calls: Calls, topic: str, group: str
) -> None:
    calls.send(topic, b"a", b"b", b"c")
    shown = handles(receive(calls, group, topic))
    assert codes(calls("Ack", group=group, handles=[shown[0], shown[2]])) == ["SEND_OK"] * 2
    assert calls.committed(group, topic)[0] == 1
    assert calls.lag(group) == 1  # the third is done
    assert codes(calls("Nack", group=group, handles=shown[1:2], delay_ms=0)) == ["SEND_OK"]
    again = receive(calls, group, topic)
    assert (bodies(again), again.runs[0].attempt) == ([b"b"], 2)
    assert codes(calls("Ack", group=group, handles=shown)) == ["ILLEGAL_HANDLE"] * 3
    assert codes(calls("Ack", group=group, handles=handles(again))) == ["SEND_OK"]
    assert calls.committed(group, topic)[0] == 3
    assert calls.lag(group) == 0


def test_one_handle_may_stand_for_many_messages(calls: Calls, topic: str, group: str) -> None:
    calls.send(topic, *[b"%d" % i for i in range(10)])
    (one,) = receive(calls, group, topic).runs
    answer = calls("Ack", group=group, handles=[Handle(lease=one.lease, count=9)])
    assert codes(answer) == ["SEND_OK"]
    too_many = Handle(lease=one.lease, queue_offset=9, count=2)
    assert codes(calls("Ack", group=group, handles=[too_many])) == ["ILLEGAL_HANDLE"]
    assert calls.committed(group, topic)[0] == 9


def test_change_invisible_says_until_when(calls: Calls, topic: str, group: str) -> None:
    calls.send(topic, b"a")
    answer = receive(calls, group, topic, invisible_ms=10_000)
    changed = calls("ChangeInvisible", group=group, handles=handles(answer), invisible_ms=3_600_000)
    assert codes(changed) == ["SEND_OK"]
    until_ms = changed.invisible_until_ms
    assert until_ms >= answer.runs[0].invisible_until_ms + 3_500_000
    foreign = calls("ChangeInvisible", group="x", handles=handles(answer), invisible_ms=10_000)
    assert codes(foreign) == ["ILLEGAL_HANDLE"]


def test_more_members_than_queues_share_one_queue(
    calls: Calls, new_name: Callable[[], str], group: str
) -> None:
    topic = calls.create(new_name(), 1)
    calls.send(topic, *[b"%d" % i for i in range(60)])
    with ThreadPoolExecutor(6) as pool:
        answers = list(
            pool.map(
                lambda at: receive(calls, group, topic, messages_max=10, member_id=f"m{at}"),
                range(6),
            )
        )
    assert sorted(map(len, map(bodies, answers))) == [10] * 6
    assert len({body for answer in answers for body in bodies(answer)}) == 60


def test_a_receive_waits_for_what_comes(calls: Calls, topic: str, group: str) -> None:
    assert bodies(receive(calls, group, topic)) == []
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(receive, calls, group, topic, wait_ms=20_000)
        calls.send(topic, b"a", queue_id=3)
        assert bodies(call.result()) == [b"a"]


@pytest.mark.every_client("deadlines")
def test_a_receive_ends_before_its_client_gives_up(calls: Calls, topic: str, group: str) -> None:
    request = consumer_pb2.ReceiveRequest(group=group, topic=topic, wait_ms=60_000)
    ask = calls.channel.unary_unary(path_of("ConsumerService/Receive"))
    assert ask(request.SerializeToString(), timeout=1.5) == b""


@pytest.mark.every_client("cancellation")
def test_messages_granted_to_a_client_that_is_gone_go_to_others(
    calls: Calls, broker: Any, connect: Callable[..., Any], topic: str, group: str
) -> None:
    receive(calls, group, topic)
    request = consumer_pb2.ReceiveRequest(group=group, topic=topic, wait_ms=20_000)
    with connect(broker.address) as channel:
        call = channel.unary_unary(path_of("ConsumerService/Receive")).future(
            request.SerializeToString()
        )
        time.sleep(0.1)  # it may wait there by now, or not: both must go well
        call.cancel()
    calls.send(topic, b"a")
    until(lambda: bodies(receive(calls, group, topic)) == [b"a"], "it is there for others")


def test_filters_and_order(calls: Calls, topic: str, group: str) -> None:
    messages = [
        Message(body=b"%d" % i, tag="xy"[i % 2], ordering_key="k", properties={"n": str(i)})
        for i in range(6)
    ]
    calls.send(topic, messages=messages)
    ordered = {"is_ordered": True, "filter": Filter(tags="x")}
    first = receive(calls, group, topic, **ordered)
    assert bodies(first) == [b"0"]
    assert bodies(receive(calls, group, topic, **ordered)) == []
    calls("Ack", group=group, handles=handles(first))
    assert bodies(receive(calls, group, topic, **ordered)) == [b"2"]
    other = receive(calls, f"{group}-sql", topic, filter=Filter(sql="n >= 4"))
    assert bodies(other) == [b"4", b"5"]


def test_members_must_agree_and_a_group_does_not_subscribe_as_well(
    calls: Calls,
    topic: str,
    group: str,
    subscribe: Callable[..., SubscribeStream],
) -> None:
    receive(calls, group, topic, member_id="one")
    refused = calls.refused("Receive", group=group, topic=topic, member_id="two", is_ordered=True)
    assert (refused.code, refused.grpc_code) == ("SUBSCRIPTION_MISMATCH", PRECONDITION)
    assert "'one'" in refused.text
    assert "'two'" in refused.text
    joined = calls.refused(
        "Join",
        group=group,
        member_id="three",
        subscriptions=[consumer_pb2.Subscription(topic=topic)],
    )
    assert joined.code == "SUBSCRIPTION_MISMATCH"
    assert subscribe("four").refusal()[1].code == "SUBSCRIPTION_MISMATCH"
    assert calls.refused("DeleteGroup", group=group).code == "GROUP_NOT_EMPTY"
    described = calls("DescribeGroup", group=group)
    assert [(one.member_id, one.is_receiving) for one in described.members] == [("one", True)]
    assert described.summary.members == 1
    calls("Leave", group=group, member_id="one")
    calls("DeleteGroup", group=group)


def test_a_group_that_subscribes_does_not_receive(calls: Calls, topic: str, group: str) -> None:
    calls(
        "Join",
        group=group,
        member_id="m",
        subscriptions=[consumer_pb2.Subscription(topic=topic)],
    )
    assert calls.refused("Receive", group=group, topic=topic).code == "SUBSCRIPTION_MISMATCH"
    calls("Leave", group=group, member_id="m")
    receive(calls, group, topic)


@pytest.mark.parametrize(
    ("method", "fields", "code"),
    [
        ("Receive", {"invisible_ms": 9_999}, "ILLEGAL_REQUEST"),
        ("Receive", {"invisible_ms": 43_200_001}, "ILLEGAL_REQUEST"),
        ("Receive", {"start_position": 7}, "ILLEGAL_REQUEST"),
        ("Receive", {"start_position": START_TIMESTAMP, "start_at_ms": -1}, "ILLEGAL_REQUEST"),
        ("Receive", {"member_id": "x" * 256}, "ILLEGAL_REQUEST"),
        ("Receive", {"member_id": "a\nb"}, "ILLEGAL_REQUEST"),
        ("Receive", {"group": "%no"}, "ILLEGAL_GROUP"),
        ("Receive", {"topic": "no topic"}, "ILLEGAL_TOPIC"),
        ("Receive", {"topic": "%SYS%HALF"}, "TOPIC_NOT_FOUND"),
        ("Receive", {"filter": Filter(sql="(")}, "ILLEGAL_FILTER"),
        ("Ack", {}, "ILLEGAL_REQUEST"),
        ("Ack", {"handles": [Handle()] * 10_001}, "ILLEGAL_REQUEST"),
        ("Ack", {"handles": [Handle()], "group": ""}, "ILLEGAL_GROUP"),
        ("Nack", {"handles": [Handle()], "delay_ms": 43_200_001}, "ILLEGAL_REQUEST"),
        ("ChangeInvisible", {"handles": [Handle()], "invisible_ms": 0}, "ILLEGAL_REQUEST"),
    ],
)
def test_bad_requests_are_refused_by_name(
    calls: Calls, topic: str, group: str, method: str, fields: dict[str, Any], code: str
) -> None:
    plain = {"group": group, "topic": topic} if method == "Receive" else {"group": group}
    assert calls.refused(method, **{**plain, **fields}).code == code


def test_as_many_handles_as_are_allowed(calls: Calls, group: str) -> None:
    answer = calls("Nack", group=group, handles=[Handle(lease=b"x" * 30)] * 2_000)
    assert set(codes(answer)) == {"ILLEGAL_HANDLE"}
    assert len(answer.codes) == 2_000


def test_a_reset_moves_a_group_that_receives(calls: Calls, topic: str, group: str) -> None:
    calls.send(topic, b"a", b"b")
    shown = handles(receive(calls, group, topic))
    calls("Ack", group=group, handles=shown)
    position = consumer_pb2.QueuePosition(topic=topic, queue_id=0, queue_offset=1)
    calls("CommitOffsets", group=group, positions=[position])
    assert bodies(receive(calls, group, topic)) == [b"b"]
