"""Greetings that brokers do not believe: foreign sets, and impossible claims."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq.broker import directory as module
from mq.broker.contracts import Peer
from mq.errors import IllegalRequest
from mq.wire.v1.cluster_pb2 import (
    BrokerSet,
    GreetRequest,
    GreetResponse,
    NodeRoute,
    PeerSet,
    TopicRoute,
)
from tests.unit.broker.directory_scene import T0, Node, known


def test_a_set_of_another_cluster_is_refused() -> None:
    a, b = Node("a"), Node("b", cluster="other")
    with pytest.raises(IllegalRequest, match=r"cluster mq, not to 'other'.*node.cluster"):
        b.greet(a, as_set="")
    assert list(a.directory.targets()) == []


@pytest.mark.parametrize("nodes", [("n0",), ("n7",)])
def test_another_set_of_the_same_name_is_refused(nodes: tuple[str, ...]) -> None:
    """Whether or not its nodes are called the same."""
    a = Node("a", seeds=["a-moon:1"])
    double = Node("a", nodes[0], of=nodes)
    double.address = "a-moon:1"
    double.log.peers = [Peer(nodes[0], "a-moon:1", "")]
    with pytest.raises(IllegalRequest, match=r"also called a: .* of its own"):
        a.greet(double, as_set="")
    # It is asked again: an operator may correct it.
    assert ("", ["a-moon:1"]) in list(a.directory.targets())


def test_of_two_sets_of_one_name_the_one_that_lives_is_believed() -> None:
    a, b = known("a", "b")
    double = Node("b")
    double.address, double.log.peers = "b-moon:1", [Peer("n0", "b-moon:1", "")]
    double.topic("t")
    with pytest.raises(IllegalRequest, match="also called b"):
        a.greet(double)
    assert a.directory.topic("t") == []
    # The other one is gone: it moved there.
    a.greet(double, T0 + 20_000)
    assert len(a.directory.topic("t")) == 1
    assert b.directory.own_name == "b"


def test_an_address_that_another_set_has_by_now_is_not_mistaken_for_the_old_one() -> None:
    a, b = known("a", "b")
    c = Node("c")
    c.address, c.log.peers = b.address, [Peer("n0", b.address, "")]
    with pytest.raises(IllegalRequest, match="b-n0:1 is of broker set c, not of b"):
        a.greet(c, as_set="b")
    assert ("c", [b.address]) in list(a.directory.targets())
    assert a.sets() == ["a", "b"]


def garbage() -> list[Any]:
    node = NodeRoute(node_id="n0", address="b-n0:1")
    return [
        BrokerSet(),
        BrokerSet(name="no name"),
        BrokerSet(name="x" * 200),
        BrokerSet(name="b", nodes=[NodeRoute(node_id="", address="b:1")]),
        BrokerSet(name="b", nodes=[NodeRoute(node_id="n0", address="no address")]),
        BrokerSet(name="b", nodes=[NodeRoute(node_id="n0", address="b:99999")]),
        BrokerSet(name="b", nodes=[NodeRoute(node_id="n0", external_address="b:0")]),
        BrokerSet(name="b", nodes=[NodeRoute(node_id="n0", zone="z" * 1_000)]),
        BrokerSet(name="b", nodes=[node] * 65),
    ]


@pytest.mark.parametrize("said", garbage(), ids=lambda one: str(one)[:30])
def test_an_illegal_answer_is_refused_and_changes_nothing(said: BrokerSet) -> None:
    a, b = known("a", "b")
    before = a.directory.sets(T0)
    with pytest.raises(IllegalRequest):
        a.directory.heard("b", b.address, GreetResponse(broker_set=said), T0 + 1)
    assert a.directory.sets(T0) == before


def test_topics_that_cannot_be_are_left_out() -> None:
    a, b = known("a", "b")
    response = b.directory.answer(a.directory.greeting("b", ""), T0)
    good = TopicRoute(topic="good", broker_set="b", read_queues=1, is_readable=True)
    bad = [
        TopicRoute(topic="of-another", broker_set="c", read_queues=1),
        TopicRoute(topic="", broker_set="b"),
        TopicRoute(topic="x" * 1_000, broker_set="b"),
        TopicRoute(topic="too-many", broker_set="b", read_queues=1 << 31, is_readable=True),
        TopicRoute(topic="too-many", broker_set="b", write_queues=1 << 31),
    ]
    response.topics_version += 1
    del response.topics[:]
    response.topics.extend([*bad, good])
    a.directory.heard("b", b.address, response, T0)
    assert len(a.directory.topic("good")) == 1
    assert not any(a.directory.topic(one.topic) for one in bad if one.topic)


@pytest.mark.parametrize(
    "sender",
    [PeerSet(), PeerSet(name="no name", addresses=["x:1"]), PeerSet(name="y" * 128)],
    ids=["nobody", "spaces", "long"],
)
def test_a_greeting_without_a_name_is_refused(sender: PeerSet) -> None:
    a = Node("a")
    with pytest.raises(IllegalRequest, match="is no name of a broker set"):
        a.directory.answer(GreetRequest(cluster="mq", sender=sender), T0)
    assert list(a.directory.targets()) == []


def test_greetings_full_of_garbage_are_answered_and_leave_nothing_behind() -> None:
    a = Node("a")
    others = [PeerSet(name=f"s{at}", addresses=["x y", "", "z:0", "nul\0:1"]) for at in range(500)]
    others += [PeerSet(name="", addresses=["x:1"]), PeerSet(name="a", addresses=["x:1"])]
    sender = PeerSet(name="b", addresses=["no", "b-n0:1", *(f"b:{at}" for at in range(1, 1_000))])
    a.directory.answer(GreetRequest(cluster="mq", sender=sender, others=others), T0)
    ((name, places),) = a.directory.targets()
    assert (name, places[0], len(places)) == ("b", "b-n0:1", 32)


def test_there_are_only_so_many_sets() -> None:
    a = Node("a")
    others = [PeerSet(name=f"s{at}", addresses=[f"s{at}:1"]) for at in range(5_000)]
    sender = PeerSet(name="b", addresses=["b:1"])
    a.directory.answer(GreetRequest(cluster="mq", sender=sender, others=others), T0)
    assert len(list(a.directory.targets())) == module.SETS_MAX


TEXTS = st.sampled_from(["", "a", "b", "c", "mq", "b:1", "c:2", "no name", "x" * 300, "\0"])
PEERS = st.builds(PeerSet, name=TEXTS, addresses=st.lists(TEXTS, max_size=3))
REQUESTS = st.builds(
    GreetRequest,
    cluster=st.sampled_from(["mq", "mq", "mq", "other"]),
    sender=PEERS,
    others=st.lists(PEERS, max_size=3),
    topics_version=st.integers(0, (1 << 64) - 1),
)
NUMBERS = st.sampled_from([0, 1, 5, 65_536, (1 << 32) - 1])
RESPONSES = st.builds(
    GreetResponse,
    broker_set=st.builds(
        BrokerSet,
        name=TEXTS,
        leader_id=TEXTS,
        term=NUMBERS,
        nodes=st.lists(st.builds(NodeRoute, node_id=TEXTS, address=TEXTS, zone=TEXTS), max_size=3),
    ),
    others=st.lists(PEERS, max_size=3),
    topics_version=NUMBERS,
    topics=st.lists(
        st.builds(TopicRoute, topic=TEXTS, broker_set=TEXTS, read_queues=NUMBERS), max_size=3
    ),
)


@settings(max_examples=2 * settings().max_examples)
@given(st.lists(st.tuples(TEXTS, st.one_of(REQUESTS, RESPONSES)), max_size=8))
def test_the_directory_can_be_read_after_any_greeting(
    said: list[tuple[str, GreetRequest | GreetResponse]],
) -> None:
    node = Node("a", seeds=["b:1"])
    for now_ms, (name, one) in enumerate(said, start=T0):
        try:
            if isinstance(one, GreetRequest):
                node.directory.answer(one, now_ms)
            else:
                node.directory.heard(name, "b:1", one, now_ms)
        except IllegalRequest:
            pass
        for target, places in list(node.directory.targets()):
            assert places
            assert all(":" in place for place in places)
            node.directory.greeted(target, places, is_answered=False)
        node.directory.sets(now_ms)
        node.directory.surroundings({"b", "c"}, "a")
        assert len(node.directory.greeting("b", "b:1").others) <= 3
