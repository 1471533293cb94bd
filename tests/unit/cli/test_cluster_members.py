"""`mq cluster members` and its kin, against a stand-in for the client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mq.cli import nodes as module
from mq.cli.cluster import cluster
from mq.errors import IllegalMembership, NotLeader, Unreachable
from mq.wire.v1 import admin_pb2 as pb
from mq.wire.v1.cluster_pb2 import BrokerSet, NodeRoute, RouteResponse
from tests.support.commands import FakeAdmin, assert_fits, run, run_json

if TYPE_CHECKING:
    from collections.abc import Iterator

JOINING = pb.FollowerStatus(node_id="n9", address="n9:8082", behind=1234, is_connected=True)


def members(*names: str) -> list[pb.SetMember]:
    return [pb.SetMember(node_id=one, address=f"{one}:8082") for one in names]


class Cluster(FakeAdmin):
    """Sets of two nodes, the same names in each."""

    def __init__(self, *sets: str, silent: str = "", **answers: Any) -> None:
        self._silent = silent
        nodes = {
            name: [NodeRoute(node_id=one, address=f"{name}-{one}:81") for one in ("n0", "n1")]
            for name in sets
        }
        route = RouteResponse(
            cluster="mq",
            broker_sets=[
                BrokerSet(name=name, leader_id="n1", term=3, nodes=found)
                for name, found in nodes.items()
            ],
        )
        super().__init__(route=route, broker_status=self._status, **answers)

    def _status(self, server: str) -> pb.BrokerStatusResponse:
        if server == self._silent:
            raise Unreachable("gone")
        leads = server.endswith("n1:81")
        followers = [pb.FollowerStatus(node_id="n0", behind=7)] if leads else []
        return pb.BrokerStatusResponse(
            role="leader" if leads else "follower",
            leader_id="n1",
            is_ready=True,
            is_voter=leads,
            version="0.1.0",
            topics=3 if server.startswith("a") else 5,
            set_members=members("n0", "n1"),
            followers=followers,
            joining=JOINING if leads and server.startswith("b") else None,
        )


@pytest.fixture(autouse=True)
def _everybody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "trouble_at", lambda _: "")


def test_members_are_listed_with_their_set() -> None:
    text = run(cluster, "members", admin=Cluster("a", "b")).stdout
    assert_fits(text)
    found = run_json(cluster, "members", admin=Cluster("a", "b"))
    assert [(one["broker_set"], one["node_id"], one["behind"]) for one in found] == [
        *(("a", "n0", 7), ("a", "n1", None), ("b", "n0", 7), ("b", "n1", None), ("b", "n9", 1234))
    ]
    assert "does not vote" in found[0]["state"]
    assert found[-1]["role"] == "joining"
    assert [
        one["node_id"]
        for one in run_json(cluster, "members", "--set", "a", admin=Cluster("a", "b"))
    ] == ["n0", "n1"]


def test_a_member_that_does_not_answer_is_still_one() -> None:
    found = run_json(cluster, "members", admin=Cluster("a", silent="a-n1:81"))
    assert [(one["node_id"], one["state"]) for one in found][1] == ("n1", "does not answer")


def test_the_status_of_several_sets_has_a_line_for_each() -> None:
    text = run(cluster, "status", admin=Cluster("a", "b", silent="b-n0:81")).stdout
    assert_fits(text)
    assert "3 topics" in text
    assert "5 topics" in text
    assert "b/n0: does not answer" in text
    health = run(cluster, "health", admin=Cluster("a", "b"))
    assert_fits(health.stdout)
    assert health.exit_code == 1
    assert health.stdout.count("does not vote") == 2


def test_a_node_is_named_by_its_set_where_there_are_several() -> None:
    admin = Cluster("a", "b", get_config=[])
    result = run(cluster, "config", "--node", "n0", admin=admin)
    assert "node n0 is in a, b: say which with --set" in result.stderr
    run(cluster, "config", "--node", "n0", "--set", "b", admin=admin)
    assert admin.called("get_config") == [(("b-n0:81",), {})]
    run(cluster, "config", "--set", "b", admin=admin)
    assert admin.called("get_config")[-1] == (("b-n1:81",), {})


def test_adding_is_watched_until_the_node_is_a_member() -> None:
    answers: Iterator[pb.MemberList | Exception] = iter(
        [
            pb.MemberList(members=members("n0", "n1"), joining=pb.FollowerStatus(node_id="n9")),
            pb.MemberList(members=members("n0", "n1"), joining=JOINING),
            NotLeader(None, None),
            pb.MemberList(members=members("n0", "n1"), joining=JOINING),
            pb.MemberList(members=members("n0", "n1", "n9")),
        ]
    )

    def add(node_id: str, address: str, *, broker_set: str) -> pb.MemberList:
        assert (node_id, address, broker_set) == ("n9", "n9:8082", "a")
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    result = run(cluster, "add-member", "n9", "n9:8082", admin=Cluster("a", add_member=add))
    assert result.exit_code == 0, result.output
    assert "n9 is a member of a now, with n0, n1, n9" in result.stdout
    assert "not connected" in result.stderr
    assert "1,234 entries behind" in result.stderr


def test_adding_that_takes_too_long_goes_on_without_the_command() -> None:
    waiting = pb.MemberList(members=members("n0"), joining=JOINING)
    admin = Cluster("a", add_member=waiting)
    flags = ("n9", "n9:8082", "--wait-s", "0.01")
    result = run(cluster, "add-member", *flags, admin=admin)
    assert result.exit_code == 1
    assert "The leader goes on with it" in result.stderr
    refused = Cluster("a", add_member=IllegalMembership("n3 is being added"))
    assert "n3 is being added" in run(cluster, "add-member", *flags, admin=refused).stderr


def test_removing_is_asked_about_and_names_its_set() -> None:
    admin = Cluster("a", "b", remove_member=pb.MemberList(members=members("n0")))
    assert "say which with --set" in run(cluster, "remove-member", "n1", admin=admin).stderr
    flags = ("n1", "--set", "b")
    assert run(cluster, "remove-member", *flags, admin=admin, stdin="n\n").exit_code == 1
    assert admin.called("remove_member") == []
    result = run(cluster, "remove-member", *flags, "--yes", admin=admin)
    assert "n1 is no member of b; there are n0" in result.stdout
    assert admin.called("remove_member") == [(("n1",), {"broker_set": "b"})]


def test_the_leadership_moves_to_the_one_that_is_named_or_to_the_best() -> None:
    moved = pb.TransferLeadershipResponse(leader_id="n0", term=4)
    admin = Cluster("a", transfer_leadership=moved)
    assert "n0 leads a now, term 4" in run(cluster, "transfer-leader", admin=admin).stdout
    assert run_json(cluster, "transfer-leader", "n0", admin=admin)["leader_id"] == "n0"
    asked = [args for args, _ in admin.called("transfer_leadership")]
    assert asked == [("",), ("n0",)]


def test_the_leadership_moves_away_from_a_node_only_if_it_has_it() -> None:
    moved = pb.TransferLeadershipResponse(leader_id="n0", term=4)
    admin = Cluster("a", transfer_leadership=moved)
    stays = run(cluster, "transfer-leader", "--from", "n0", admin=admin)
    assert (stays.exit_code, stays.stdout) == (0, "n0 does not lead a: n1 does.\n")
    assert run_json(cluster, "transfer-leader", "--from", "n0", admin=admin)["leader_id"] == "n1"
    assert admin.called("transfer_leadership") == []
    assert "n0 leads a now" in run(cluster, "transfer-leader", "--from", "n1", admin=admin).stdout
    assert len(admin.called("transfer_leadership")) == 1
