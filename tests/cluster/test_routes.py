"""Every broker answers for the whole cluster, whatever happens to its sets; and by the listener
that the question came in by.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from mq.wire.v1 import admin_pb2, cluster_pb2
from mq.wire.v1.consumer_pb2 import QueueId, Released, SubscribeRequest, Subscription
from tests.conformance.calls import Calls, code_of, prepared, refusal_of
from tests.conformance.streams import PublishStream, SubscribeStream
from tests.support.broker_process import BrokerProcess
from tests.support.broker_set import BrokerSet
from tests.support.raft_cluster import free_port, poll
from tests.support.topics import OPTIONS, call, create_topic, send

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEADLINE_S = 120.0
SILENT = "another broker set does not answer"


def route(address: str, *topics: str) -> cluster_pb2.RouteResponse:
    request = cluster_pb2.RouteRequest(topics=topics)
    answer = call(address, "ClusterService/Route", request, cluster_pb2.RouteResponse)
    assert isinstance(answer, cluster_pb2.RouteResponse)
    return answer


def found(address: str) -> dict[str, cluster_pb2.BrokerSet]:
    return {one.name: one for one in route(address).broker_sets}


def parts(address: str, topic: str) -> dict[str, int]:
    return {one.broker_set: one.read_queues for one in route(address, topic).topics}


def troubles(node: BrokerProcess, address: str) -> list[str]:
    """The node's reasons for not hearing from there."""
    return [
        line["error"]
        for line in node.log()
        if line.get("event") == SILENT and line["address"] == address
    ]


class Cluster:
    """Sets a and c of one node, b of three; b and c have an address of a, which has no seeds."""

    def __init__(self, directory: Path) -> None:
        def made(name: str, *flags: str, count: int = 1) -> BrokerSet:
            (directory / name).mkdir()
            common = ("--node-broker-set", name, "--broker-zone", f"zone-{name}")
            return BrokerSet(
                directory / name, *common, "--broker-auto-create-topics", "yes", *flags, count=count
            )

        self.a = made("a")
        seeds = ("--broker-seeds", self.a.servers)
        self.b = made("b", *seeds, "--broker-external-listen", "127.0.0.1:0", count=3)
        self.c = made("c", *seeds)
        self.sets = {"a": self.a, "b": self.b, "c": self.c}

    @property
    def nodes(self) -> list[str]:
        """Addresses of those that run."""
        return [
            node.address
            for one in self.sets.values()
            for node in one.nodes.values()
            if node.is_running
        ]

    def wait(self, question: Any, what: str) -> None:
        """Until it is so as every broker sees it."""
        poll(lambda: all(question(address) for address in self.nodes), what, DEADLINE_S)

    def wait_known(self) -> None:
        def is_known(address: str) -> bool:
            sets = found(address)
            return sets.keys() == self.sets.keys() and all(one.leader_id for one in sets.values())

        self.wait(is_known, "all know all")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("routes"))
    with ExitStack() as stack:
        for one in made.sets.values():
            stack.push(one.__exit__)
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda one: one.start(*one.nodes), made.sets.values()))
        made.wait_known()
        yield made


def test_brokers_of_different_sets_find_each_other_by_one_seed(cluster: Cluster) -> None:
    cluster.wait_known()
    sets = found(cluster.c.servers)
    assert [len(one.nodes) for one in sets.values()] == [1, 3, 1]
    cluster.wait(
        lambda address: (
            {one.address for one in found(address)["b"].nodes} == set(cluster.b.servers.split(","))
        ),
        "all know all nodes of b",
    )
    assert {node.zone for node in found(cluster.c.servers)["a"].nodes} == {"zone-a"}


def test_a_topic_is_routed_by_all_and_each_part_goes_by_itself(cluster: Cluster) -> None:
    create_topic(cluster.a.servers, "t", 3)
    create_topic(cluster.b.address(cluster.b.leader()), "t", 2)
    cluster.wait(lambda address: parts(address, "t") == {"a": 3, "b": 2}, "both parts")
    request = admin_pb2.DeleteTopicRequest(topic="t")
    call(cluster.a.servers, "AdminService/DeleteTopic", request, admin_pb2.DeleteTopicResponse)
    cluster.wait(lambda address: parts(address, "t") == {"b": 2}, "the part of b alone")
    # By an old route: it is not created again, though topics are when they are missing.
    with pytest.raises(grpc.RpcError) as raised:
        send(cluster.a.servers, "t", 0, [b"late"])
    assert refusal_of(raised.value).code == "TOPIC_NOT_FOUND"
    assert parts(cluster.a.servers, "t") == {"b": 2}


def test_a_leader_that_falls_is_replaced_in_all_routes(cluster: Cluster) -> None:
    create_topic(cluster.b.address(cluster.b.leader()), "kept", 2)
    cluster.wait(lambda address: parts(address, "kept") == {"b": 2}, "the topic")
    killed = cluster.b.kill_leader()
    leader = cluster.b.leader(other_than=killed)
    cluster.wait(lambda address: found(address)["b"].leader_id == leader, "the new leader")
    assert parts(cluster.c.servers, "kept") == {"b": 2}
    cluster.b.start(killed)
    cluster.wait_known()


def test_a_set_that_is_down_stays_known_and_is_found_again(cluster: Cluster) -> None:
    create_topic(cluster.c.servers, "of-c", 2)
    cluster.wait(lambda address: parts(address, "of-c") == {"c": 2}, "the topic")
    cluster.c.nodes["n0"].kill()
    cluster.wait(lambda address: found(address)["c"].age_ms > 2_500, "c grows old")
    # Others are heard as ever, and everything that is known of c stays so.
    assert found(cluster.a.servers)["b"].age_ms < 60_000
    cluster.wait(lambda address: parts(address, "of-c") == {"c": 2}, "the topic stays")
    cluster.c.start("n0")
    cluster.wait(lambda address: found(address)["c"].age_ms < 2_000, "c is heard of")
    cluster.wait(lambda address: parts(address, "of-c") == {"c": 2}, "the topic")
    cluster.wait_known()


def test_a_set_that_was_removed_is_refused_until_it_is_added_again(cluster: Cluster) -> None:
    a, c = cluster.a.servers, cluster.c.servers
    removal = admin_pb2.RemoveBrokerSetRequest(name="c")
    call(a, "AdminService/RemoveBrokerSet", removal, admin_pb2.BrokerSetList)
    assert found(a).keys() == {"a", "b"}
    node = cluster.c.nodes["n0"]
    poll(lambda: any("c was removed" in one for one in troubles(node, a)), "c is told", DEADLINE_S)
    # b knows c, and tells a of it all the time.
    leader = cluster.b.address(cluster.b.leader())
    assert found(leader).keys() == {"a", "b", "c"}
    assert found(a).keys() == {"a", "b"}
    addition = admin_pb2.AddBrokerSetRequest(
        broker_set=cluster_pb2.PeerSet(name="c", addresses=[c])
    )
    call(a, "AdminService/AddBrokerSet", addition, admin_pb2.BrokerSetList)
    cluster.wait_known()


# -- the external listener -------------------------------------------------------------------------


def external(address: str) -> dict[str, str]:
    """By node, where clients from outside connect."""
    request = cluster_pb2.GreetRequest(
        cluster="mq", sender=cluster_pb2.PeerSet(name="a", addresses=["127.0.0.1:1"])
    )
    answer = call(address, "ClusterService/Greet", request, cluster_pb2.GreetResponse)
    return {node.node_id: node.external_address for node in answer.broker_set.nodes}


def test_external_clients_get_external_addresses(cluster: Cluster) -> None:
    b = cluster.b
    leader = b.leader()
    outside = external(b.address(leader))
    assert all(outside.values())
    assert set(outside.values()).isdisjoint(b.servers.split(","))
    (follower, heir) = b.others(leader)
    create_topic(outside[leader], "seen", 1)
    cluster.wait(lambda address: parts(address, "seen"), "the topic")

    def inside_addresses(said: object) -> list[str]:
        return [one for one in b.servers.split(",") if one in str(said)]

    with ExitStack() as stack:
        channels = {
            name: stack.enter_context(grpc.insecure_channel(outside[name], options=OPTIONS))
            for name in outside
        }
        # Routes of one set by another one, and of itself, too.
        answer = Calls(channels[follower])("Route", topics=["seen"])
        told = {one.name: {node.address for node in one.nodes} for one in answer.broker_sets}
        assert told["b"] == set(outside.values())
        assert not inside_addresses(answer)
        # A node without an address for outside has the other one.
        assert told["a"] == {cluster.a.servers}
        assert len(inside_addresses(route(b.address(leader)))) == 3
        # Another node leads.
        refusals = [Calls(channels[follower]).refused("ListTopics")]
        with PublishStream(channels[follower]) as publish:
            refusals.append(publish.refusal()[1])
        with SubscribeStream(channels[follower], "outside", "seen") as member:
            refusals.append(member.refusal()[1])
        for refusal in refusals:
            assert refusal.code == "NOT_LEADER"
            assert refusal.status.leader_address == outside[leader]
            assert not inside_addresses(refusal)
        # The leadership moves below streams that are open.
        with (
            PublishStream(channels[leader]) as publish,
            SubscribeStream(channels[leader], "outside", "seen") as member,
        ):
            member.until_assigned(0)
            assert code_of(publish.result(prepared("seen", b"one"))) == "SEND_OK"
            Calls(channels[leader])("TransferLeadership", node_id=heir)
            refusal = member.refusal()[1]
            assert refusal.code == "NOT_LEADER"
            # There was no leader to name when it ended, unless the heir was quick.
            assert refusal.status.leader_address in ("", outside[heir])
            result = publish.result(prepared("seen", b"two"))
            assert code_of(result) == "NOT_LEADER"
            assert result.leader_address == outside[heir]
            assert not inside_addresses((refusal, result))


# -- groups ----------------------------------------------------------------------------------------


def test_members_of_a_group_get_a_fair_share_of_all_sets(cluster: Cluster) -> None:
    """Each set decides for itself; what one has too much here, it has too little there."""
    sets = {"a": cluster.a.servers, "c": cluster.c.servers}
    create_topic(sets["a"], "shared", 3)
    create_topic(sets["c"], "shared", 1)
    create_topic(sets["c"], "of-c-alone", 2)
    for address in sets.values():
        poll(lambda at=address: len(parts(at, "shared")) == 2, "both parts", DEADLINE_S)  # type: ignore[misc]
        poll(lambda at=address: parts(at, "of-c-alone"), "the other topic", DEADLINE_S)  # type: ignore[misc]
    wanted = [Subscription(topic=one) for one in ("shared", "of-c-alone")]
    with ExitStack() as stack:
        channels = {
            name: stack.enter_context(grpc.insecure_channel(address, options=OPTIONS))
            for name, address in sets.items()
        }
        for member_id, zone in (("A", "zone-c"), ("B", ""), ("C", "zone-a")):
            for channel in channels.values():
                member = SubscribeStream(
                    channel, "fair", "", member_id, zone=zone, subscriptions=wanted
                )
                stack.callback(member.close)
                threading.Thread(target=_let_go, args=(member,), daemon=True).start()

        def shares() -> dict[str, dict[str, int]]:
            found: dict[str, dict[str, int]] = {}
            for name, channel in channels.items():
                for one in Calls(channel)("DescribeGroup", group="fair").members:
                    found.setdefault(one.member_id, {})[name] = one.queues
            return found

        # Two each, near ones first.
        expected = {"A": {"a": 0, "c": 2}, "B": {"a": 1, "c": 1}, "C": {"a": 2, "c": 0}}
        poll(lambda: shares() == expected, "fair shares", DEADLINE_S)


def _let_go(member: SubscribeStream) -> None:
    """Releases every queue that leaves its assignment."""
    held: set[tuple[str, int]] = set()
    with contextlib.suppress(AssertionError):
        while True:
            now = {(one.topic, one.queue_id) for one in member.assignment(DEADLINE_S).queues}
            queues = [QueueId(topic=topic, queue_id=at) for topic, at in sorted(held - now)]
            held = now
            member.send(SubscribeRequest(released=Released(queues=queues)))


# -- sets that are added, and sets that are none of ours -------------------------------------------


def test_an_added_set_is_found_again_after_everything_has_stopped(tmp_path: Path) -> None:
    nodes = {
        name: BrokerProcess(
            tmp_path / name, "--node-broker-set", name, "--metrics-enabled", "no", port=free_port()
        )
        for name in ("d", "e")
    }
    with ExitStack() as stack:
        for node in nodes.values():
            stack.enter_context(node)
        addition = admin_pb2.AddBrokerSetRequest(
            broker_set=cluster_pb2.PeerSet(name="e", addresses=[nodes["e"].address])
        )
        call(nodes["d"].address, "AdminService/AddBrokerSet", addition, admin_pb2.BrokerSetList)

        def know_each_other() -> bool:
            return all(found(one.address).keys() == {"d", "e"} for one in nodes.values())

        poll(know_each_other, "both know both", DEADLINE_S)
        for node in nodes.values():
            node.kill()
        for node in nodes.values():
            node.start()
        poll(know_each_other, "both know both again", DEADLINE_S)


def test_a_set_of_another_cluster_or_with_a_taken_name_is_refused(
    tmp_path: Path, cluster: Cluster
) -> None:
    seed = cluster.a.servers
    flags = ("--broker-seeds", seed, "--metrics-enabled", "no")
    with ExitStack() as stack:
        foreign, double = (
            stack.enter_context(BrokerProcess(tmp_path / name, *wrong, *flags))
            for name, wrong in (
                ("foreign", ("--node-cluster", "other", "--node-broker-set", "f")),
                ("double", ("--node-broker-set", "a", "--node-id", "n0")),
            )
        )
        poll(lambda: troubles(foreign, seed), "it is refused", DEADLINE_S)
        (text,) = troubles(foreign, seed)
        assert "belongs to cluster mq, not to 'other': correct broker.seeds or node.cluster" in text
        poll(lambda: troubles(double, seed), "it finds its double", DEADLINE_S)
        (text,) = troubles(double, seed)
        assert "another broker set that is also called a: give each set" in text
        assert found(foreign.address).keys() == {"f"}
        assert found(double.address).keys() == {"a"}
    cluster.wait_known()
