"""What brokers of different sets learn of each other by greetings, and what they do not believe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq.broker import directory as module
from mq.broker.consuming.shares import Portion, Surroundings
from mq.broker.contracts import Leading, Peer
from mq.broker.directory import Directory
from mq.broker.replicated.state import State
from mq.errors import IllegalRequest, TopicNotFound
from mq.store.identity import Identity
from mq.wire.v1.cluster_pb2 import (
    BrokerSet,
    GreetRequest,
    GreetResponse,
    NodeRoute,
    PeerSet,
    TopicRoute,
)
from mq.wire.v1.state_pb2 import PutTopic

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

T0 = 1_000_000


class _Log:
    """A `Consensus` that is only asked who is there."""

    def __init__(self, peers: list[Peer]) -> None:
        self.peers = peers
        self.term, self.leader = 1, peers[0].node_id

    @property
    def leading_term(self) -> int:
        return self.term

    @property
    def leading(self) -> Leading:
        return Leading(self.term, self.leader, f"{self.leader}:1")

    def propose(self, *_: Any) -> Awaitable[object]:
        raise NotImplementedError


class Node:
    """A broker of a set, as far as other sets see it."""

    births = iter(range(1 << 40, 1 << 50, 1 << 20))

    def __init__(
        self,
        broker_set: str,
        node: str = "n0",
        *,
        of: Sequence[str] = ("n0",),
        seeds: Sequence[str] = (),
        zone: str = "",
        cluster: str = "mq",
        state: State | None = None,
    ) -> None:
        self.state = state or State()
        self.address = f"{broker_set}-{node}:1"
        self.log = _Log([Peer(one, f"{broker_set}-{one}:1", zone) for one in of])
        self.is_current = True
        self.directory = Directory(
            Identity(cluster, broker_set, node),
            self.state,
            self.log,
            seeds,
            next(self.births),
            lambda: self.is_current,
        )

    def topic(self, name: str, queues: int = 4, *, is_readable: bool = True) -> None:
        put = PutTopic(
            topic=name,
            write_queues=queues,
            read_queues=queues,
            is_readable=is_readable,
            is_writable=True,
        )
        self.state.topics.put(put, 0)

    def sets(self, now_ms: int = T0) -> list[str]:
        return [one.name for one in self.directory.sets(now_ms)]

    def greet(self, other: Node, now_ms: int = T0, *, as_set: str | None = None) -> int:
        """As the greeter does; how many topics came."""
        name = other.directory.own_name if as_set is None else as_set
        request = self.directory.greeting(name, other.address)
        response = other.directory.answer(_travelled(request), now_ms)
        self.directory.heard(name, other.address, _travelled(response), now_ms)
        self.directory.greeted(name, [other.address], is_answered=True)
        return len(response.topics)


def _travelled(message: Any) -> Any:
    return type(message).FromString(message.SerializeToString())


def greet_all(nodes: Sequence[Node], now_ms: int = T0) -> None:
    """One round: everybody greets the first that answers, of each set and seed that it knows."""
    by_address = {one.address: one for one in nodes}
    for node in nodes:
        for name, places in list(node.directory.targets()):
            found = next((by_address[one] for one in places if one in by_address), None)
            if found is not None:
                node.greet(found, now_ms, as_set=name)
            else:
                node.directory.greeted(name, places, is_answered=False)


def known(*sets: str) -> list[Node]:
    """One broker of each set; all know all."""
    first, *others = (Node(name) for name in sets)
    nodes = [first, *(Node(one.directory.own_name, seeds=[first.address]) for one in others)]
    for _ in range(3):
        greet_all(nodes)
    assert all(node.sets() == sorted(sets) for node in nodes)
    return nodes


# -- finding each other ----------------------------------------------------------------------------


def test_a_broker_alone_knows_its_own_set() -> None:
    alone = Node("a")
    assert alone.sets() == ["a"]
    assert list(alone.directory.targets()) == []
    assert alone.directory.is_complete


def test_sets_that_know_one_seed_find_each_other() -> None:
    known("a", "b", "c", "d")


def test_all_nodes_of_a_set_hear_of_others_though_only_one_is_greeted() -> None:
    """Those without seeds learn it from their own leader."""
    of = ("n0", "n1", "n2")
    nodes = [Node("a", one, of=of) for one in of] + [Node("b", seeds=["a-n0:1"])]
    for _ in range(4):
        greet_all(nodes)
    assert [node.sets() for node in nodes] == [["a", "b"]] * 4
    # Whoever leads is not greeted by itself.
    assert ("a", ["a-n1:1", "a-n2:1"]) in list(nodes[0].directory.targets())
    assert ("a", ["a-n0:1", "a-n2:1"]) in list(nodes[1].directory.targets())


def test_a_seed_of_its_own_set_does_no_harm() -> None:
    node = Node("a", seeds=["a-n0:1"])
    greet_all([node])
    assert node.sets() == ["a"]
    assert list(node.directory.targets()) == []


def test_the_leader_is_asked_first() -> None:
    a, b = known("a", "b")
    b.log.peers = [Peer(one, f"b-{one}:1", "") for one in ("n0", "n1", "n2")]
    b.log.leader, b.log.term = "n1", 2
    a.greet(b)
    assert dict(a.directory.targets())["b"] == ["b-n1:1", "b-n0:1", "b-n2:1"]


def test_a_set_that_is_silent_stays_known_and_grows_old() -> None:
    a, _ = known("a", "b")
    for _ in range(30):
        a.directory.greeted("b", ["b-n0:1"], is_answered=False)
    assert a.sets() == ["a", "b"]
    ages = {one.name: one.age_ms for one in a.directory.sets(T0 + 5_000)}
    assert ages == {"a": 0, "b": 5_000}
    # For ever, also beyond what the field can hold.
    assert a.directory.sets(T0 + (1 << 40))[1].age_ms == (1 << 32) - 1


def test_hearsay_is_not_told_on_and_forgotten_when_nobody_is_there() -> None:
    a, b = known("a", "b")
    ghost = PeerSet(name="ghost", addresses=["nowhere:1"])
    request = b.directory.greeting("a", a.address)
    request.others.append(ghost)
    a.directory.answer(request, T0)
    assert ("ghost", ["nowhere:1"]) in list(a.directory.targets())
    assert "ghost" not in a.sets()
    assert [one.name for one in a.directory.greeting("b", b.address).others] == []
    for _ in range(module._FAILURES_MAX):
        a.directory.greeted("ghost", ["nowhere:1"], is_answered=False)
    assert "ghost" not in dict(a.directory.targets())


def test_a_set_that_moved_says_where_it_is_now() -> None:
    a, b = known("a", "b")
    b.address = "b-moved:1"
    b.log.peers = [Peer("n0", "b-moved:1", "")]
    b.greet(a, T0 + 20_000)
    assert "b-moved:1" in dict(a.directory.targets())["b"]
    a.greet(b, T0 + 20_000)
    assert dict(a.directory.targets())["b"][0] == "b-moved:1"


def test_what_a_lagging_broker_says_does_not_replace_what_is_newer() -> None:
    a, b = known("a", "b")
    b.log.term, b.log.leader = 5, "n0"
    a.greet(b)
    b.log.term, b.log.leader = 4, "old"
    a.greet(b, T0 + 1_000)
    assert a.directory.sets(T0)[1].leader_id == "n0"
    # A set that was made anew counts from the beginning.
    a.greet(b, T0 + 20_000)
    assert a.directory.sets(T0)[1].leader_id == "old"


# -- topics ----------------------------------------------------------------------------------------


def test_topics_are_routed_by_every_set() -> None:
    a, b = known("a", "b")
    a.topic("t", 4)
    b.topic("t", 2)
    b.topic("only-b")
    a.greet(b)
    assert [(one.broker_set, one.read_queues) for one in a.directory.topic("t")] == [
        ("a", 4),
        ("b", 2),
    ]
    assert [one.broker_set for one in a.directory.topic("only-b")] == ["b"]
    assert a.directory.topic("none") == []
    with pytest.raises(TopicNotFound, match="in b: ask for its route"):
        a.directory.check_nowhere_else("only-b")
    a.directory.check_nowhere_else("none")


def test_topics_travel_once_and_not_with_every_greeting() -> None:
    a, b = known("a", "b")
    for number in range(10_000):
        b.topic(f"t{number}", 1)
    assert a.greet(b) == 10_000
    made = b.directory._routes
    assert [a.greet(b) for _ in range(3)] == [0, 0, 0]
    assert len(a.directory.topic("t9999")) == 1
    # Who asks for the first time gets those that were made before.
    c = Node("c")
    assert c.greet(b) == 10_000
    assert b.directory._routes is made
    request = a.directory.greeting("b", b.address)
    answer = b.directory.answer(request, T0)
    assert len(request.SerializeToString()) + len(answer.SerializeToString()) < 500
    b.topic("one-more")
    assert a.greet(b) == 10_001


def test_a_topic_that_is_deleted_elsewhere_is_gone() -> None:
    a, b = known("a", "b")
    b.topic("t")
    a.greet(b)
    b.state.topics.drop("t")
    a.greet(b)
    assert a.directory.topic("t") == []


def test_versions_of_another_broker_or_another_start_are_not_mistaken_for_the_same() -> None:
    a, b = known("a", "b")
    b.topic("t")
    a.greet(b)
    other = Node("b", "n1", of=("n0", "n1"))
    other.topic("u")
    a.greet(other)
    assert (a.directory.topic("t"), len(a.directory.topic("u"))) == ([], 1)
    again = Node("b")
    assert again.directory._birth != b.directory._birth
    again.topic("v")
    a.greet(again)
    assert len(a.directory.topic("v")) == 1


def test_who_has_not_read_its_log_yet_does_not_say_that_there_are_no_topics() -> None:
    a, b = known("a", "b")
    b.topic("t")
    a.greet(b)
    restarted = Node("b")
    restarted.is_current = False
    a.greet(restarted)
    assert len(a.directory.topic("t")) == 1
    restarted.is_current = True
    a.greet(restarted)
    assert a.directory.topic("t") == []


def test_topics_of_the_broker_alone_stay_at_home() -> None:
    a, b = known("a", "b")
    b.topic("%SYS%SCHEDULE")
    b.topic("%RETRY%g")
    assert a.greet(b) == 1
    assert a.directory.surroundings(["t"], "%RETRY%g").elsewhere == {}


def test_surroundings_are_what_groups_have_elsewhere() -> None:
    a, b, c = known("a", "b", "c")
    b.log.peers = [Peer("n0", b.address, "x"), Peer("n1", "b-n1:1", ""), Peer("n2", "b-n2:1", "y")]
    a.log.peers = [Peer("n0", a.address, "z")]
    b.topic("t", 3)
    b.topic("u", 2)
    b.topic("%RETRY%g", 1)
    b.topic("dark", 8, is_readable=False)
    c.topic("other", 5)
    a.greet(b)
    a.greet(c)
    found = a.directory.surroundings({"t", "u", "dark", "none"}, "%RETRY%g")
    assert found == Surroundings("a", frozenset("z"), {"b": Portion(6, frozenset("xy"))})
    assert a.directory.surroundings({"t"}, None).elsewhere == {"b": Portion(3, frozenset("xy"))}
    assert a.directory.is_readable_elsewhere("t")
    assert not a.directory.is_readable_elsewhere("dark")


def test_changes_are_counted_when_something_matters_and_only_then() -> None:
    a, b = known("a", "b")

    def changed(now_ms: int = T0) -> bool:
        before = a.directory.changes
        list(a.directory.targets())
        a.greet(b, now_ms)
        return a.directory.changes > before

    changed()
    assert not changed()
    b.log.term += 1
    assert not changed()
    b.topic("t")
    assert changed()
    b.topic("dark", is_readable=False)
    assert not changed()
    b.log.peers = [Peer("n0", b.address, "x")]
    assert changed()
    a.log.peers = [Peer("n0", a.address, "y")]
    assert changed()
    assert not changed()
    a.state.sets.drop("b")
    before = a.directory.changes
    list(a.directory.targets())
    assert a.directory.changes > before


# -- operators -------------------------------------------------------------------------------------


def test_a_set_that_was_added_is_found_without_any_seed() -> None:
    a, b = Node("a"), Node("b")
    a.state.sets.put(PeerSet(name="b", addresses=["b-n0:1", "b-n9:1"]))
    assert not a.directory.is_complete
    for _ in range(2):
        greet_all([a, b])
    assert a.sets() == b.sets() == ["a", "b"]
    assert dict(a.directory.targets())["b"] == ["b-n0:1", "b-n9:1"]


def test_a_removed_set_is_refused_and_told_of_no_more() -> None:
    a, b, c = known("a", "b", "c")
    b.topic("t")
    a.greet(b)
    a.state.sets.drop("b")
    assert a.sets() == ["a", "c"]
    assert a.directory.topic("t") == []
    with pytest.raises(IllegalRequest, match="b was removed from this cluster"):
        b.greet(a)
    # What others say of it changes nothing.
    for _ in range(3):
        greet_all([a, c])
    assert a.sets() == ["a", "c"]
    assert c.sets() == ["a", "b", "c"]
    assert "b" not in dict(a.directory.targets())
    # Neither does an answer that was on its way.
    a.directory.heard("b", b.address, b.directory.answer(c.directory.greeting("b", ""), T0), T0)
    assert a.sets() == ["a", "c"]
    # Until it is added again.
    a.state.sets.put(PeerSet(name="b", addresses=[b.address]))
    greet_all([a, b, c])
    assert a.sets() == ["a", "b", "c"]
    assert len(a.directory.topic("t")) == 1


def test_a_broker_that_has_not_asked_everybody_yet_knows_that() -> None:
    a, b = Node("a"), Node("b", seeds=["a-n0:1", "x:1"])
    assert not b.directory.is_complete
    b.greet(a, as_set="")
    assert not b.directory.is_complete
    b.directory.greeted("", ["x:1"], is_answered=False)
    # The first answer told of the set, which is greeted by its name from now on.
    assert not b.directory.is_complete
    b.greet(a)
    assert b.directory.is_complete


# -- mistakes --------------------------------------------------------------------------------------


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
    # It is asked again: somebody may correct it.
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
def test_an_answer_that_makes_no_sense_is_refused_and_changes_nothing(said: BrokerSet) -> None:
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


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(TEXTS, st.one_of(REQUESTS, RESPONSES)), max_size=8))
def test_whatever_is_said_the_directory_can_be_asked(
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
