"""ConsumerService/Subscribe by several members: queues change hands, streams break and come back,
and misfits are refused.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from mq.wire.v1 import consumer_pb2 as pb
from tests.conformance.calls import Calls, Refusal, numbers, until
from tests.conformance.streams import Stream, SubscribeStream
from tests.support.broker_process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

INVALID = grpc.StatusCode.INVALID_ARGUMENT
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
MODES = [
    pytest.param(pb.MODE_CLUSTERING, id="clustering"),
    pytest.param(pb.MODE_ORDERED, id="ordered"),
]


def take_over(first: SubscribeStream, second: SubscribeStream) -> set[int]:
    """The second one gets its share from the first; which queues that are."""
    kept = {one.queue_id for one in first.assignment().queues}
    first.release(*(set(range(4)) - kept))
    second.until_assigned(*(set(range(4)) - kept))
    return set(range(4)) - kept


# -- sharing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_queue_moves_when_its_owner_has_let_go_of_it(
    calls: Calls, subscribe: Any, topic: str, mode: int
) -> None:
    for queue_id in range(4):
        calls.send(topic, *numbers(10), queue_id=queue_id)
    first = subscribe("first", mode=mode)
    first.until_assigned(0, 1, 2, 3)
    first.messages(40)
    second = subscribe("second", mode=mode)
    assert second.assigned() == {}
    kept = first.assigned()
    assert len(kept) == 2
    # It is told, works on, and reports; meanwhile no other member has them.
    second.silence(0.2)
    moved = sorted(set(range(4)) - set(kept))
    for queue_id in moved:
        first.progress(queue_id, 7)
    first.release(*moved)
    given = second.assigned()
    assert {at: one.queue_offset for at, one in given.items()} == dict.fromkeys(moved, 7)
    assert [at for _, at, _ in second.messages(6)] == [7, 8, 9] * 2
    # It may not report progress of a queue that it has released.
    first.progress(moved[0], 9)
    first.progress(min(kept), 3)
    group = calls("DescribeTopic", topic=topic).groups[0]
    until(lambda: calls.committed(group, topic)[min(kept)] == 3)
    assert calls.committed(group, topic)[moved[0]] == 7


@pytest.mark.parametrize("mode", MODES)
def test_a_release_of_an_earlier_epoch_does_not_release_a_queue_that_was_assigned_again(
    calls: Calls, subscribe: Any, topic: str, group: str, mode: int
) -> None:
    """The release of the first time was on its way when the queue came back, and left again."""
    first = subscribe("first", mode=mode)
    first.until_assigned(0, 1, 2, 3)
    second = subscribe("second", mode=mode)
    moved = set(range(4)) - first.assigned().keys()
    second.leave()
    back = first.assigned()
    assert {queue_id for queue_id, one in back.items() if one.epoch == 1} == moved
    for queue_id in moved:
        calls.send(topic, *numbers(10, 10), queue_id=queue_id)
    first.messages(10 * len(moved))
    second = subscribe("second", mode=mode)
    assert set(range(4)) - first.assigned().keys() == moved
    first.release(*moved, epoch=0)
    # It has them still: its progress counts.
    for queue_id in moved:
        first.progress(queue_id, 3, epoch=1)
    until(lambda: all(calls.committed(group, topic).get(at) == 3 for at in moved))
    first.release(*moved, epoch=1)
    second.until_assigned(*moved)


@pytest.mark.parametrize("mode", MODES)
def test_a_member_that_is_sent_away_hears_why_and_loses_its_queues_at_once(
    calls: Calls, subscribe: Any, topic: str, group: str, mode: int
) -> None:
    calls.send(topic, *numbers(10))
    first = subscribe("first", mode=mode)
    first.messages(10)
    until(lambda: calls("DescribeGroup", group=group).members[0].stalled_ms > 0)
    first.progress(0, 10)
    until(lambda: calls("DescribeGroup", group=group).members[0].stalled_ms == 0)
    second = subscribe("second", mode=mode)
    second.assignment()
    calls("Leave", group=group, member_id="first", reason="it does nothing")
    second.until_assigned(0, 1, 2, 3)
    _, refusal = first.refusal()
    assert refusal.code == "PERMISSION_DENIED"
    assert "it does nothing" in refusal.text


@pytest.mark.every_client("half-close")
@pytest.mark.parametrize("mode", MODES)
def test_a_member_that_leaves_in_good_order_is_replaced_at_once(
    calls: Calls, subscribe: Any, topic: str, mode: int
) -> None:
    first = subscribe("first", mode=mode)
    first.until_assigned(0, 1, 2, 3)
    second = subscribe("second", mode=mode)
    second.assignment()
    take_over(first, second)
    first.leave()
    second.until_assigned(0, 1, 2, 3)
    calls.send(topic, b"x", queue_id=3)
    assert second.messages(1) == [(3, 0, b"x")]


def test_more_members_than_queues_leave_some_without(
    calls: Calls, subscribe: Any, group: str
) -> None:
    first = subscribe("m0")
    assert len(first.assigned()) == 4
    rest = [subscribe(f"m{number}") for number in range(1, 6)]
    for stream in rest:
        stream.assignment()
    kept = next(one for one in iter(first.assignment, None) if len(one.queues) == 1)
    first.release(*({0, 1, 2, 3} - {one.queue_id for one in kept.queues}))
    until(
        lambda: (
            sorted(one.queues for one in calls("DescribeGroup", group=group).members)
            == [0, 0, 1, 1, 1, 1]
        ),
        "four have one each",
    )
    for stream in rest:
        stream.leave()
    first.until_assigned(0, 1, 2, 3)


def test_members_that_stream_and_members_that_pull_share_a_group(
    calls: Calls, subscribe: Any, topic: str, group: str
) -> None:
    stream = subscribe("streams")
    stream.until_assigned(0, 1, 2, 3)
    wanted = [pb.Subscription(topic=topic)]
    joined = calls("Join", group=group, member_id="pulls", subscriptions=wanted)
    assert (list(joined.assigned), joined.is_rebalancing) == ([], True)
    kept = stream.assigned()
    stream.release(*(set(range(4)) - set(kept)))
    found = until(
        lambda: calls("Heartbeat", group=group, member_id="pulls").assigned, "it has its share"
    )
    assert {one.queue_id for one in found} == set(range(4)) - set(kept)
    described = calls("DescribeGroup", group=group)
    assert {one.member_id: one.is_streaming for one in described.members} == {
        "streams": True,
        "pulls": False,
    }


# -- mismatch --------------------------------------------------------------------------------------


def wants(topic: str, **wanted: str) -> list[pb.Subscription]:
    return [pb.Subscription(topic=topic, filter=pb.Filter(**wanted))]


def test_a_member_that_wants_something_else_is_refused_and_both_are_named(
    calls: Calls, subscribe: Any, topic: str, group: str
) -> None:
    first = subscribe("first", filter={"tags": "b||a"})
    first.assignment()
    for fields, named in (
        ({"filter": {"tags": "a"}}, "TAG a"),
        ({"filter": {"sql": "x = 1"}}, "SQL x = 1"),
        ({"filter": {"tags": "a || b"}, "mode": pb.MODE_BROADCAST}, "broadcast"),
        ({}, "(*)"),
    ):
        _, refusal = subscribe("second", **fields).refusal()
        assert (refusal.code, refusal.grpc_code) == ("SUBSCRIPTION_MISMATCH", PRECONDITION)
        assert all(one in refusal.text for one in ("first", "second", topic, "a || b", named))
    refusal = calls.refused(
        "Join", group=group, member_id="second", subscriptions=wants(topic, tags="c")
    )
    assert refusal.code == "SUBSCRIPTION_MISMATCH"
    # The same, written differently, is the same.
    assert subscribe("third", filter={"tags": " a || b || a"}).assignment() is not None
    assert calls("DescribeGroup", group=group).summary.members == 2


def test_a_member_that_is_alone_may_change_its_mind(subscribe: Any) -> None:
    subscribe("m", filter={"tags": "a"}).assignment()
    assert len(subscribe("m", filter={"tags": "b"}).assignment().queues) == 4


@pytest.mark.every_client("long trailers")
def test_a_mismatch_of_any_length_reaches_the_client(
    calls: Calls, subscribe: Any, new_name: Callable[[], str]
) -> None:
    names = [calls.create(new_name() + "-" * 90, 1) for _ in range(50)]
    wanted = [one for name in names for one in wants(name, sql=f"name = '{'ß' * 300}'")]
    subscribe("first", subscriptions=wanted).assignment()
    _, refusal = subscribe("second", subscriptions=wanted[:-1]).refusal()
    assert refusal.code == "SUBSCRIPTION_MISMATCH"
    assert "first" in refusal.text or "second" in refusal.text


# -- streams that break ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_member_that_comes_back_goes_on_with_what_it_has(
    calls: Calls, subscribe: Any, topic: str, mode: int
) -> None:
    calls.send(topic, *numbers(10))
    first = subscribe("m", mode=mode)
    first.messages(10)
    first.progress(0, 3)
    first.close()
    # No other member gets its queues meanwhile.
    other = subscribe("other", mode=mode)
    assert other.assigned() == {}
    other.silence(0.3)
    position = pb.QueuePosition(topic=topic, queue_id=0, queue_offset=10)
    again = subscribe("m", mode=mode, positions=[position])
    assignment = again.assigned()
    assert 0 in assignment
    assert assignment[0].queue_offset == 10
    calls.send(topic, b"next")
    assert again.messages(1) == [(0, 10, b"next")]


@pytest.mark.every_client("status of an idle stream")
def test_a_newer_stream_of_a_member_ends_the_older_one(
    calls: Calls, subscribe: Any, topic: str, group: str
) -> None:
    older = subscribe("m")
    older.assignment()
    newer = subscribe("m")
    assert len(newer.assignment().queues) == 4
    _, refusal = older.refusal()
    assert (refusal.code, refusal.grpc_code) == ("UNKNOWN_MEMBER", PRECONDITION)
    assert "newer" in refusal.text
    calls.send(topic, b"x")
    assert newer.messages(1) == [(0, 0, b"x")]
    assert calls("DescribeGroup", group=group).summary.members == 1


def test_a_stream_is_ended_when_its_member_is_told_to_leave(
    calls: Calls, subscribe: Any, group: str
) -> None:
    stream = subscribe("m")
    stream.assignment()
    calls("Leave", group=group, member_id="m")
    assert stream.refusal()[1].code == "UNKNOWN_MEMBER"


def test_positions_of_a_stranger_are_not_taken_for_progress(
    calls: Calls, subscribe: Any, topic: str
) -> None:
    """A member that comes with an offset that was never committed is given it, and it is not the
    group's.
    """
    calls.send(topic, *numbers(10))
    positions = [pb.QueuePosition(topic=topic, queue_id=0, queue_offset=1 << 40)]
    stream = subscribe("m", positions=positions)
    assert stream.assigned()[0].queue_offset == 0
    assert len(stream.messages(10)) == 10


# -- broadcast -------------------------------------------------------------------------------------


def test_in_broadcast_mode_every_member_gets_all_messages(
    calls: Calls, subscribe: Any, topic: str, group: str
) -> None:
    streams = [subscribe(f"m{number}", mode=pb.MODE_BROADCAST) for number in range(3)]
    assert [len(stream.assignment().queues) for stream in streams] == [4, 4, 4]
    calls.send(topic, *numbers(5), queue_id=2)
    for stream in streams:
        assert [at for _, at, _ in stream.messages(5)] == [0, 1, 2, 3, 4]
        stream.progress(2, 5)
    assert calls.committed(group, topic) == {}


def test_in_broadcast_mode_the_client_keeps_its_offsets(
    calls: Calls, subscribe: Any, topic: str
) -> None:
    calls.send(topic, *numbers(10))
    positions = [pb.QueuePosition(topic=topic, queue_id=0, queue_offset=7)]
    stream = subscribe("m", mode=pb.MODE_BROADCAST, positions=positions)
    assert stream.assigned()[0].queue_offset == 7
    assert [at for _, at, _ in stream.messages(3)] == [7, 8, 9]
    latest = subscribe("n", mode=pb.MODE_BROADCAST, start_position=pb.START_LATEST)
    assert latest.assigned()[0].queue_offset == 10


# -- the first message -----------------------------------------------------------------------------

BAD_STARTS: list[tuple[dict[str, Any], str, grpc.StatusCode, str]] = [
    ({"group": "a b"}, "ILLEGAL_GROUP", INVALID, "a b"),
    ({"group": ""}, "ILLEGAL_GROUP", INVALID, "''"),
    ({"group": "%DLQ%g"}, "ILLEGAL_GROUP", INVALID, "%DLQ%g"),
    ({"member_id": ""}, "ILLEGAL_REQUEST", INVALID, "member_id"),
    ({"member_id": "x" * 256}, "ILLEGAL_REQUEST", INVALID, "255"),
    ({"member_id": "a\tb"}, "ILLEGAL_REQUEST", INVALID, "printable"),
    ({"mode": 7}, "ILLEGAL_REQUEST", INVALID, "unknown mode 7"),
    (
        {"subscriptions": wants("unborn"), "start_position": 5},
        "ILLEGAL_REQUEST",
        INVALID,
        "unknown start_position 5",
    ),
    (
        {"start_position": pb.START_TIMESTAMP, "start_at_ms": -1},
        "ILLEGAL_REQUEST",
        INVALID,
        "-1",
    ),
    ({"subscriptions": []}, "ILLEGAL_REQUEST", INVALID, "subscribes"),
    ({"subscriptions": wants("%DLQ%x")}, "TOPIC_NOT_FOUND", grpc.StatusCode.NOT_FOUND, "%DLQ%x"),
    ({"subscriptions": wants("unborn") + wants("a b")}, "ILLEGAL_TOPIC", INVALID, "a b"),
    ({"subscriptions": wants("t") * 2}, "ILLEGAL_REQUEST", INVALID, "twice"),
    ({"subscriptions": wants("t") * 257}, "ILLEGAL_REQUEST", INVALID, "256"),
    ({"filter": {"sql": "a = = b"}}, "ILLEGAL_FILTER", INVALID, ""),
    ({"filter": {"tags": "a b"}}, "ILLEGAL_FILTER", INVALID, "a b"),
]


@pytest.mark.parametrize(("fields", "code", "grpc_code", "text"), BAD_STARTS)
def test_a_bad_start_is_refused_by_name_and_nothing_begins(
    calls: Calls,
    topic: str,
    group: str,
    fields: dict[str, Any],
    code: str,
    grpc_code: grpc.StatusCode,
    text: str,
) -> None:
    start = {"group": group, "topic": topic, "member_id": "m", **fields}
    with SubscribeStream(calls.channel, **start) as stream:
        answers, refusal = stream.refusal()
    assert answers == []
    assert (refusal.code, refusal.grpc_code) == (code, grpc_code)
    assert text in refusal.text
    assert calls.refused("DescribeGroup", group=group).code == "GROUP_NOT_FOUND"
    assert calls.refused("DescribeTopic", topic="unborn").code == "TOPIC_NOT_FOUND"
    # A client that pulls hears the same.
    if "start_position" not in fields:
        wanted = fields.get("subscriptions", wants(topic, **fields.get("filter", {})))
        request = {"group": group, "member_id": "m", **fields, "subscriptions": wanted}
        request.pop("filter", None)
        assert calls.refused("Join", **request).code == code


@contextlib.contextmanager
def raw_stream(channel: grpc.Channel) -> Iterator[Stream]:
    parse = pb.SubscribeResponse.FromString
    with Stream(channel, "ConsumerService/Subscribe", parse) as stream:
        yield stream


def refusal_of_first(channel: grpc.Channel, *requests: bytes) -> Refusal:
    with raw_stream(channel) as stream:
        for request in requests:
            stream.send_bytes(request)
        stream.half_close()
        return stream.refusal()[1]


def test_the_first_message_is_a_start(channel: grpc.Channel) -> None:
    requests = [
        pb.SubscribeRequest(),
        pb.SubscribeRequest(alive=pb.Alive()),
        pb.SubscribeRequest(progress=pb.Progress()),
    ]
    for request in requests:
        refusal = refusal_of_first(channel, request.SerializeToString())
        assert refusal.code == "ILLEGAL_REQUEST"
        assert "start" in refusal.text
    assert refusal_of_first(channel).code == "ILLEGAL_REQUEST"
    assert refusal_of_first(channel, b"\xff\xff\xff").code == "ILLEGAL_REQUEST"


def test_only_the_first_message_is_a_start(subscribe: Any, topic: str, group: str) -> None:
    start = pb.SubscribeStart(group=group, member_id="m", subscriptions=wants(topic))
    for bad in (pb.SubscribeRequest(start=start).SerializeToString(), b"", b"\x00\x01\x02"):
        stream = subscribe("m")
        stream.assignment()
        stream.send_bytes(bad)
        assert stream.refusal()[1].code == "ILLEGAL_REQUEST"


# -- silence, and restarts -------------------------------------------------------------------------


def test_a_member_that_is_silent_for_too_long_is_gone(tmp_path: Path) -> None:
    flags = ("--broker-member-expires-ms", "1500", "--broker-heartbeat-ms", "300")
    with (
        BrokerProcess(tmp_path / "data", *flags) as broker,
        grpc.insecure_channel(broker.address) as channel,
    ):
        calls = Calls(channel)
        calls.create("t", 2)
        silent = SubscribeStream(channel, "g", "t", "silent")
        lively = SubscribeStream(channel, "g", "t", "lively")
        assignment = silent.assignment()
        assert (assignment.heartbeat_ms, assignment.expires_ms) == (300, 1_500)

        def members() -> set[str]:
            lively.alive()
            found = calls("DescribeGroup", group="g").members
            return {one.member_id for one in found}

        until(lambda: members() == {"lively"}, "the silent one is gone")
        _, refusal = silent.refusal()
        assert refusal.code == "UNKNOWN_MEMBER"
        assert "silent" in refusal.text
        lively.until_assigned(0, 1)
        for stream in (silent, lively):
            stream.close()


def test_the_queues_of_an_ordered_group_are_kept_for_their_member_over_a_restart(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with grpc.insecure_channel(broker.address) as channel:
            calls = Calls(channel)
            calls.create("t", 2)
            calls.send("t", *numbers(5))
            stream = SubscribeStream(channel, "g", "t", "owner", mode=pb.MODE_ORDERED)
            stream.until_assigned(0, 1)
            stream.messages(5)
            stream.progress(0, 2)
            until(lambda: calls.lag("g") == 3, "its progress is committed")
            broker.kill()
            stream.close()
        broker.start()
        with grpc.insecure_channel(broker.address) as channel:
            stranger = SubscribeStream(channel, "g", "t", "stranger", mode=pb.MODE_ORDERED)
            assert stranger.assigned() == {}
            stranger.silence(0.5)
            positions = [pb.QueuePosition(topic="t", queue_id=0, queue_offset=5)]
            owner = SubscribeStream(
                channel, "g", "t", "owner", mode=pb.MODE_ORDERED, positions=positions
            )
            given = owner.assigned()
            assert given
            assert all(one.queue_offset == (5 if at == 0 else 0) for at, one in given.items())
            for one in (stranger, owner):
                one.close()
