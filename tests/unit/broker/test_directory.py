"""Greetings between brokers of different sets, and what they learn by them."""

from __future__ import annotations

import pytest

from mq.broker import directory as module
from mq.broker.consumer.shares import Portion, Surroundings
from mq.broker.contracts import Peer
from mq.errors import IllegalRequest, TopicNotFound
from mq.wire.v1.cluster_pb2 import PeerSet
from mq.wire.v1.security_pb2 import AccessChange, User
from tests.unit.broker.directory_scene import T0, Node, greet_all, known

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
    # Topics they have from the log.
    nodes[0].topic("t")
    assert nodes[1].greet(nodes[0]) == 0
    # A leader does not greet itself.
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


def test_hearsay_is_not_passed_on_and_forgotten_without_an_answer() -> None:
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
    b.greet(a, T0 + 1)
    assert "b-moved:1" in dict(a.directory.targets())["b"]
    # It is not mistaken for another one of its name when it was silent for a moment.
    a.greet(b, T0 + 4_000)
    assert dict(a.directory.targets())["b"][0] == "b-moved:1"


def test_a_greeting_of_a_lagging_broker_does_not_replace_newer_news() -> None:
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
    # A first question is answered with those that were made before.
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


def test_a_broker_that_is_still_reading_its_log_does_not_claim_to_have_no_topics() -> None:
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


def test_an_answer_that_comes_late_does_not_wipe_out_what_came_since() -> None:
    """A set is greeted by its name and as a seed at the same time."""
    a, b = known("a", "b")
    b.topic("t")
    a.greet(b)
    early = a.directory.greeting("b", b.address)
    answer = b.directory.answer(early, T0)
    assert not answer.topics
    b.topic("u")
    a.greet(b)
    a.directory.heard("", b.address, answer, T0, early.topics_version)
    a.greet(b)
    assert [len(a.directory.topic(name)) for name in "tu"] == [1, 1]


def test_a_set_whose_topics_are_not_known_is_not_shown_beside_topics() -> None:
    a, b = Node("a"), Node("b")
    b.is_current = False
    a.greet(b)
    assert a.sets() == ["a", "b"]
    assert [one.name for one in a.directory.sets(T0, with_topics=True)] == ["a"]
    b.is_current = True
    a.greet(b)
    b.is_current = False
    a.greet(b)
    assert [one.name for one in a.directory.sets(T0, with_topics=True)] == ["a", "b"]


def test_a_broker_that_has_read_its_log_answers_during_elections() -> None:
    node = Node("a")
    said = []
    for node.is_current in (False, True, False):
        greet_all([node])
        said.append(node.directory.is_informed)
    assert said == [False, True, True]


def test_topics_of_the_broker_alone_stay_at_home() -> None:
    a, b = known("a", "b")
    b.topic("%SYS%SCHEDULE")
    b.topic("%RETRY%g")
    assert a.greet(b) == 1
    assert a.directory.surroundings(["t"], "%RETRY%g").elsewhere == {}
    # But those that clients may read are found from everywhere.
    b.topic("%SYS%GIVE_UP")
    a.greet(b)
    assert [one.broker_set for one in a.directory.topic("%SYS%GIVE_UP")] == ["b"]
    assert a.directory.topic("%SYS%SCHEDULE") == []


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


def test_a_removed_set_is_refused_and_no_longer_named() -> None:
    a, b, c = known("a", "b", "c")
    b.topic("t")
    a.greet(b)
    a.state.sets.drop("b")
    assert a.sets() == ["a", "c"]
    assert a.directory.topic("t") == []
    with pytest.raises(IllegalRequest, match="b was removed from this cluster"):
        b.greet(a)
    # What others say of it changes nothing.
    list(a.directory.targets())
    before = a.directory.changes
    for _ in range(3):
        greet_all([a, c])
    assert a.directory.changes == before
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


def test_a_broker_that_has_not_asked_all_sets_yet_knows_that() -> None:
    a, b = Node("a"), Node("b", seeds=["a-n0:1", "x:1"])
    assert not b.directory.is_complete
    b.greet(a, as_set="")
    assert not b.directory.is_complete
    b.directory.greeted("", ["x:1"], is_answered=False)
    # The first answer told of the set, which is greeted by its name from now on.
    assert not b.directory.is_complete
    b.greet(a)
    assert b.directory.is_complete


def test_a_set_whose_users_are_others_is_seen_by_its_digest() -> None:
    a, b, c = known("a", "b", "c")
    change = [AccessChange(put_user=User(name="alice"))]
    a.state.access.change(change)
    b.state.access.change(change)
    greet_all([a, b, c])
    told = {one.broker_set: (one.version, one.digest) for one in a.directory.accesses()}
    assert told == {"b": (1, a.state.access.digest()), "c": (0, c.state.access.digest())}
    assert told["c"][1] != a.state.access.digest()
    # A broker that has not read its own log says nothing of its users.
    c.state.access.change(change)
    c.is_current = False
    greet_all([a, b, c])
    assert a.directory.accesses()[1].version == 0
    c.is_current = True
    greet_all([a, b, c])
    assert {one.digest for one in a.directory.accesses()} == {a.state.access.digest()}


def test_a_digest_that_is_none_is_not_kept() -> None:
    a, b = known("a", "b")
    request = a.directory.greeting("b", b.address)
    response = b.directory.answer(request, T0)
    response.access_version, response.access_digest = 7, b"short"
    a.directory.heard("b", b.address, response, T0)
    assert [one.version for one in a.directory.accesses()] == [0]
