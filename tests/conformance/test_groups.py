"""Join, Heartbeat and Leave: groups for clients that pull."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest

from mq.wire.v1 import consumer_pb2 as pb
from tests.conformance.calls import Calls, numbers, until
from tests.support.broker_process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MODES = [
    pytest.param(pb.MODE_CLUSTERING, id="clustering"),
    pytest.param(pb.MODE_ORDERED, id="ordered"),
]


class Member:
    """A client that pulls, as one that does all it has to."""

    def __init__(self, calls: Calls, group: str, topic: str, member_id: str, **fields: Any) -> None:
        self._calls = calls
        self._who = {"group": group, "member_id": member_id}
        self.topic = topic
        self._fields = {"subscriptions": [pb.Subscription(topic=topic)], **fields}
        self.owned: set[int] = set()
        self.membership = pb.Membership()

    def join(self) -> set[int]:
        return self._take(self._calls("Join", **self._who, **self._fields, owned=self._owned()))

    def heartbeat(self) -> set[int]:
        """The queues that it may consume. It releases the others at once."""
        return self._take(self._calls("Heartbeat", **self._who, owned=self._owned()))

    def leave(self) -> None:
        self._calls("Leave", **self._who)

    def _take(self, membership: pb.Membership) -> set[int]:
        self.membership = membership
        self.owned = {one.queue_id for one in membership.assigned}
        return self.owned

    def _owned(self) -> list[pb.QueueId]:
        return [pb.QueueId(topic=self.topic, queue_id=at) for at in self.owned]


@pytest.fixture
def member(calls: Calls, topic: str, group: str) -> Callable[..., Member]:
    return lambda member_id, **fields: Member(calls, group, topic, member_id, **fields)


def settle(*members: Member) -> None:
    """Heartbeats until nothing moves."""

    def is_settled() -> bool:
        for one in members:
            one.heartbeat()
        return not any(one.membership.is_rebalancing for one in members)

    until(is_settled, "the group has settled")
    for one in members:
        one.heartbeat()


@pytest.mark.parametrize("mode", MODES)
def test_members_share_the_queues_evenly_and_each_has_one_owner(
    calls: Calls, member: Any, topic: str, group: str, mode: int
) -> None:
    members = [member(f"m{number}", mode=mode) for number in range(3)]
    generations = []
    for one in members:
        one.join()
        settle(*members[: members.index(one) + 1])
        generations.append(one.membership.generation)
    assert sorted(len(one.owned) for one in members) == [1, 1, 2]
    assert sorted(at for one in members for at in one.owned) == [0, 1, 2, 3]
    assert generations == sorted(set(generations))
    assert (members[0].membership.heartbeat_ms, members[0].membership.expires_ms) == (
        10_000,
        30_000,
    )
    described = calls("DescribeGroup", group=group)
    assert described.summary.mode == mode
    owners = {one.queue_id: one.member_id for one in described.queues}
    assert owners == {at: f"m{number}" for number, one in enumerate(members) for at in one.owned}
    assert list(described.subscriptions) == [
        pb.Subscription(topic=topic, filter=pb.Filter(tags="*"))
    ]


def test_a_queue_stays_assigned_until_its_member_releases_it(
    calls: Calls, member: Any, topic: str, group: str
) -> None:
    first, second = member("first"), member("second")
    assert first.join() == {0, 1, 2, 3}
    assert second.join() == set()
    assert second.membership.is_rebalancing
    # Told to release two, it works on: it may still commit.
    everything = [pb.QueueId(topic=topic, queue_id=at) for at in range(4)]
    told = calls("Heartbeat", group=group, member_id="first", owned=everything)
    moving = {0, 1, 2, 3} - {one.queue_id for one in told.assigned}
    assert len(moving) == 2
    assert second.heartbeat() == set()
    calls.send(topic, *numbers(5), queue_id=min(moving))
    position = pb.QueuePosition(topic=topic, queue_id=min(moving), queue_offset=3)
    calls("CommitOffsets", group=group, member_id="first", positions=[position])
    first.owned = {0, 1, 2, 3} - moving
    first.heartbeat()
    assert second.heartbeat() == moving
    assert not second.membership.is_rebalancing
    refusal = calls.refused("CommitOffsets", group=group, member_id="first", positions=[position])
    assert refusal.code == "NOT_ASSIGNED"
    assert calls.committed(group, topic) == {min(moving): 3}


@pytest.mark.parametrize("mode", MODES)
def test_a_leaving_member_makes_room_at_once(member: Any, mode: int) -> None:
    first, second = member("first", mode=mode), member("second", mode=mode)
    first.join()
    second.join()
    settle(first, second)
    first.leave()
    settle(second)
    assert second.owned == {0, 1, 2, 3}
    first.leave()  # again: nothing to do


def test_in_broadcast_mode_every_member_has_all_queues(member: Any) -> None:
    members = [member(f"m{number}", mode=pb.MODE_BROADCAST) for number in range(3)]
    assert [one.join() for one in members] == [{0, 1, 2, 3}] * 3


def test_a_member_that_joins_again_keeps_its_queues(member: Any) -> None:
    first, second = member("first"), member("second")
    first.join()
    second.join()
    settle(first, second)
    before = set(first.owned)
    assert first.join() == before
    settle(first, second)
    assert first.owned == before


def test_a_stranger_is_told_to_join(calls: Calls, member: Any, group: str) -> None:
    refusal = calls.refused("Heartbeat", group=group, member_id="nobody")
    assert (refusal.code, refusal.grpc_code) == (
        "UNKNOWN_MEMBER",
        grpc.StatusCode.FAILED_PRECONDITION,
    )
    assert "nobody" in refusal.text
    member("somebody").join()
    assert calls.refused("Heartbeat", group=group, member_id="nobody").code == "UNKNOWN_MEMBER"
    calls("Leave", group=group, member_id="nobody")
    calls("Leave", group="never-seen", member_id="nobody")
    assert calls("DescribeGroup", group=group).summary.members == 1


def test_a_zone_is_shown(calls: Calls, member: Any, group: str) -> None:
    member("m", zone="east").join()
    (shown,) = calls("DescribeGroup", group=group).members
    assert (shown.zone, shown.is_streaming) == ("east", False)


def test_a_claim_of_queues_that_do_not_exist_gives_none(
    calls: Calls, topic: str, group: str
) -> None:
    owned = [pb.QueueId(topic=name, queue_id=at) for name in (topic, "other") for at in range(99)]
    wanted = [pb.Subscription(topic=topic)]
    joined = calls("Join", group=group, member_id="m", subscriptions=wanted, owned=owned)
    assert {(one.topic, one.queue_id) for one in joined.assigned} == {
        (topic, at) for at in range(4)
    }


def test_too_many_claims_are_refused(calls: Calls, topic: str, group: str) -> None:
    owned = [pb.QueueId(topic=topic, queue_id=at) for at in range(20_001)]
    wanted = [pb.Subscription(topic=topic)]
    refusal = calls.refused("Join", group=group, member_id="m", subscriptions=wanted, owned=owned)
    assert refusal.code == "ILLEGAL_REQUEST"
    assert calls.refused("DescribeGroup", group=group).code == "GROUP_NOT_FOUND"


def test_a_member_that_is_silent_for_too_long_is_gone(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", "--broker-member-expires-ms", "1500") as broker,
        grpc.insecure_channel(broker.address) as channel,
    ):
        calls = Calls(channel)
        calls.create("t")
        silent, lively = Member(calls, "g", "t", "silent"), Member(calls, "g", "t", "lively")
        silent.join()
        lively.join()
        until(lambda: lively.heartbeat() == {0, 1, 2, 3}, "it has all of it")
        refusal = calls.refused("Heartbeat", group="g", member_id="silent")
        assert refusal.code == "UNKNOWN_MEMBER"
        # It may come back, and gets its share again.
        silent.owned = set()
        silent.join()
        settle(silent, lively)
        assert sorted((len(silent.owned), len(lively.owned))) == [2, 2]
