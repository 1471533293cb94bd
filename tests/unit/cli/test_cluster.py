"""`mq cluster`: every node for itself, also when one does not answer."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import pytest

from mq.cli import nodes as module
from mq.cli.cluster import cluster, duration
from mq.errors import IllegalConfig, Unreachable
from mq.wire.v1 import admin_pb2 as pb
from mq.wire.v1.cluster_pb2 import BrokerSet, NodeRoute, RouteResponse, TopicRoute
from tests.support.commands import FakeAdmin, assert_fits, run, run_json

NODES = ("node-0", "node-1", "node-2")


def address(node_id: str) -> str:
    return f"127.0.0.1:80{node_id[-1]}1"


def routed(leader_id: str = "node-1", unknown: str = "") -> RouteResponse:
    nodes = [
        NodeRoute(node_id=each, address="" if each == unknown else address(each)) for each in NODES
    ]
    broker_set = BrokerSet(name="set-0", leader_id=leader_id, term=7, nodes=nodes)
    topics = [TopicRoute(topic="orders", broker_set="set-0", write_queues=8, read_queues=8)]
    return RouteResponse(cluster="mq", broker_sets=[broker_set], topics=topics)


def status(node_id: str, **fields: Any) -> pb.BrokerStatusResponse:
    given = {
        "node_id": node_id,
        "role": "leader" if node_id == "node-1" else "follower",
        "leader_id": "node-1",
        "is_ready": True,
        "is_voter": True,
        "log_bytes": 1 << 40,
        "disk_total_bytes": 200,
        "disk_used_bytes": 100,
        "applied_index": 1 << 40,
        "last_index": 1 << 40,
        "messages_in": 1 << 40,
        "followers": [pb.FollowerStatus(node_id="node-0", behind=5)],
    }
    return pb.BrokerStatusResponse(**{**given, **fields})


DAMAGES = [
    pb.StorageDamage(kind="queue", file="q", position=20, mended_at_ms=5),
    pb.StorageDamage(kind="log", file="0.log", position=80, affected="orders/0: 5 to 9"),
]


class Nodes(FakeAdmin):
    """Three of them; those in `fields` say something else, those in `silent` nothing."""

    def __init__(
        self, route: RouteResponse | None = None, silent: Collection[str] = (), **fields: Any
    ) -> None:
        def ask(server: str) -> pb.BrokerStatusResponse:
            node_id = next(each for each in NODES if address(each) == server)
            if node_id in silent:
                raise Unreachable("no broker answered")
            return status(node_id, **fields.get(node_id.replace("-", "_"), {}))

        super().__init__(route=route or routed(), broker_status=ask, set_config=self._set)

    def _set(self, name: str, value: str, server: str) -> list[pb.ConfigOption]:
        if server == address("node-2") and value == "unreachable":
            raise Unreachable("no broker answered")
        return [pb.ConfigOption(name=name, value=value, default="72")]


@pytest.fixture(autouse=True)
def _everybody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "trouble_at", lambda _: "")


# Status and health.


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_the_status_fits_the_terminal(columns: int) -> None:
    text = run(cluster, "status", admin=Nodes(), columns=columns).stdout
    assert_fits(text, columns)
    assert "node-1 leads, term 7" in text
    assert "1.0 TiB" in text


def test_the_status_counts_internal_topics_apart() -> None:
    has = {"topics": 5, "internal_topics": 3, "topic_queues": 16, "queues": 9, "groups": 1}
    text = run(cluster, "status", admin=Nodes(node_1=has), columns=120).stdout
    assert "2 topics with 16 queues (and 3 internal topics), 1 group, 0 consumers" in text
    text = run(cluster, "status", admin=Nodes(node_1={**has, "internal_topics": 0})).stdout
    assert "5 topics with 16 queues, 1 group, 0 consumers" in text


def test_the_status_as_json_has_what_each_node_says() -> None:
    document = run_json(cluster, "status", admin=Nodes())
    assert [each["node_id"] for each in document["nodes"]] == list(NODES)
    assert [each["role"] for each in document["nodes"]] == ["follower", "leader", "follower"]
    assert document["nodes"][0]["log_bytes"] == 1 << 40


def test_a_node_that_does_not_answer_is_shown_beside_the_others() -> None:
    text = run(cluster, "status", admin=Nodes(silent=["node-0"])).stdout
    assert "node-0: does not answer" in text
    assert "leader" in text
    document = run_json(cluster, "status", admin=Nodes(silent=["node-0"]))
    assert [each["is_healthy"] for each in document["nodes"]] == [False, True, True]


def test_a_node_that_does_not_listen_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module, "trouble_at", lambda at: "connection refused" * (at == address("node-2"))
    )
    admin = Nodes()
    assert "node-2: connection refused" in run(cluster, "status", admin=admin).stdout
    asked = [args[0] for args, _ in admin.called("broker_status")]
    assert sorted(asked) == [address("node-0"), address("node-1")]


def test_a_healthy_cluster_ends_with_0() -> None:
    result = run(cluster, "health", admin=Nodes())
    assert result.exit_code == 0
    assert result.stdout.count("healthy") == 3


def test_damage_that_was_mended_is_no_problem() -> None:
    nodes = Nodes(node_0={"damages": DAMAGES[:1]})
    assert run(cluster, "health", admin=nodes).exit_code == 0


@pytest.mark.parametrize(
    ("admin", "problem"),
    [
        (Nodes(silent=["node-2"]), "does not answer"),
        (Nodes(routed(unknown="node-0")), "its address is not known"),
        (Nodes(node_0={"leader_id": ""}), "knows of no leader"),
        (Nodes(node_0={"is_ready": False, "applied_index": (1 << 40) - 3}), "3 entries to apply"),
        (Nodes(node_0={"damages": DAMAGES, "open_damages": 1}), "1 place on the disk damaged"),
        (Nodes(node_0={"damages": DAMAGES, "open_damages": 1}), "byte 80"),
    ],
)
def test_a_cluster_with_a_problem_ends_with_1_and_names_it(admin: Nodes, problem: str) -> None:
    result = run(cluster, "health", admin=admin)
    assert result.exit_code == 1
    assert problem in result.stdout
    assert_fits(result.stdout)
    as_json = run(cluster, "health", "--json", admin=admin)
    assert as_json.exit_code == 1
    assert '"is_healthy": false' in as_json.stdout


UNLED = {"role": "follower", "leader_id": ""}


@pytest.mark.parametrize("command", ["status", "health"])
@pytest.mark.parametrize(
    ("admin", "told"),
    [
        (
            # The sender of the route may believe in a leader that is gone.
            Nodes(routed("node-1"), ["node-1", "node-2"], node_0=UNLED),
            "set-0 has no leader: 1 of 3 nodes up (node-0), a leader needs 2",
        ),
        (
            Nodes(routed(""), ["node-1"], node_0=UNLED, node_2=UNLED),
            "set-0 has no leader: 2 of 3 nodes up (node-0, node-2), none is elected yet",
        ),
        (Nodes(routed(""), NODES), "set-0: none of its 3 nodes answers"),
    ],
)
def test_a_set_without_a_leader_is_shown_with_its_nodes_that_are_up(
    command: str, admin: Nodes, told: str
) -> None:
    result = run(cluster, command, admin=admin)
    assert told in result.stdout.splitlines()
    assert " leads" not in result.stdout
    assert_fits(result.stdout)
    document = json.loads(run(cluster, command, "--json", admin=admin).stdout)
    assert document["broker_sets"] == [{"name": "set-0", "leader_id": "", "problem": told}]


@pytest.mark.parametrize(
    "admin",
    [
        Nodes(),
        # The leader is not reached from here, and the others follow it.
        Nodes(silent=["node-1"]),
        # One that was started a moment ago has not heard of the leader yet, and was asked first.
        Nodes(routed(""), node_0=UNLED),
    ],
)
def test_a_leader_that_a_node_knows_of_is_named(admin: Nodes) -> None:
    text = run(cluster, "status", admin=admin).stdout
    assert "node-1 leads, term 7" in text
    assert "no leader:" not in text
    (found,) = run_json(cluster, "status", admin=admin)["broker_sets"]
    assert found == {"name": "set-0", "leader_id": "node-1", "problem": ""}


# Routes.


def test_the_route_has_nodes_and_topics_and_says_what_is_missing() -> None:
    admin = Nodes()
    text = run(cluster, "route", "orders", "gone", admin=admin).stdout
    assert_fits(text)
    assert "Not there: gone" in text
    assert admin.calls == [("route", (("orders", "gone"),), {})]
    assert run_json(cluster, "route", admin=admin)["topics"][0]["type"] == "normal"


# Options.

OPTIONS = [
    pb.ConfigOption(name="retention.hours", value="24", default="72", is_dynamic=True),
    pb.ConfigOption(name="retention.bytes", value="0", default="0", is_dynamic=True),
    pb.ConfigOption(name="store.flush", value="sync", default="sync", description="d " * 60),
]


class Configured(Nodes):
    def __init__(self) -> None:
        super().__init__()
        self._answers["get_config"] = OPTIONS


def test_options_are_those_of_the_leader_or_of_a_node_by_name() -> None:
    admin = Configured()
    text = run(cluster, "config", admin=admin).stdout
    assert_fits(text)
    assert "retention.hours *" in text
    run(cluster, "config", "--node", "node-2", admin=admin)
    servers = [args[0] for args, _ in admin.called("get_config")]
    assert servers == [address("node-1"), address("node-2")]


def test_options_by_prefix_and_those_that_were_changed() -> None:
    def names(*flags: str) -> list[str]:
        return [each["name"] for each in run_json(cluster, "config", *flags, admin=Configured())]

    assert names("retention") == ["retention.hours", "retention.bytes"]
    assert names("--changed") == ["retention.hours"]
    assert names("nothing") == []
    assert run(cluster, "config", "nothing", admin=Configured()).stdout == "No such options.\n"


def test_set_changes_the_option_on_every_node() -> None:
    admin = Nodes()
    found = run_json(cluster, "set", "retention.hours", "24", admin=admin)
    assert [each["node_id"] for each in found] == list(NODES)
    asked = [args for args, _ in admin.called("set_config")]
    assert asked == [("retention.hours", "24", address(each)) for each in NODES]


def test_set_changes_one_node_when_it_is_named() -> None:
    admin = Nodes()
    flags = ("retention.hours", "24", "--node", "node-2")
    assert run(cluster, "set", *flags, admin=admin).exit_code == 0
    assert admin.called("set_config") == [(("retention.hours", "24", address("node-2")), {})]
    result = run(cluster, "set", "retention.hours", "24", "--node", "other", admin=admin)
    assert result.exit_code == 1
    assert "known: node-0, node-1, node-2" in result.stderr


def test_set_that_reaches_only_some_nodes_says_which() -> None:
    result = run(cluster, "set", "a.b", "unreachable", admin=Nodes())
    assert result.exit_code == 1
    assert "node-2 at 127.0.0.1:8021 does not answer. Changed already on node-0" in result.stderr
    result = run(cluster, "set", "a.b", "c", admin=Nodes(routed(unknown="node-0")))
    assert "the address of node-0 is not known: is it up? Nothing was changed" in result.stderr


def test_an_illegal_value_ends_with_2() -> None:
    admin = Nodes()
    admin._answers["set_config"] = IllegalConfig("retention.hours: 'x' is not legal")
    assert run(cluster, "set", "retention.hours", "x", admin=admin).exit_code == 2


@pytest.mark.parametrize(
    ("length_ms", "text"),
    [(-5, "0s"), (59_999, "59s"), (61_000, "1m 1s"), (3_661_000, "1h 1m"), (90_000_000, "1d 1h")],
)
def test_a_duration_has_its_two_largest_units(length_ms: int, text: str) -> None:
    assert duration(length_ms) == text
