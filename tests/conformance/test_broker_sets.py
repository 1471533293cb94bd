"""Other sets of the cluster, as their brokers and operators ask for them: Greet, AddBrokerSet,
RemoveBrokerSet. The addresses here have no servers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.calls import Calls, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def other(calls: Calls, new_name: Callable[[], str]) -> Iterator[str]:
    """The name of a set that is removed afterwards."""
    name = new_name()
    yield name
    calls("RemoveBrokerSet", name=name)


def peer(name: str, *addresses: str) -> dict[str, Any]:
    return {"name": name, "addresses": list(addresses)}


def greet(calls: Calls, name: str, **fields: Any) -> Any:
    return calls("Greet", cluster="mq", sender=peer(name, NOWHERE), **fields)


def test_a_greeting_is_answered_with_the_set_and_its_topics(
    calls: Calls, other: str, topic: str
) -> None:
    answer = greet(calls, other)
    (known,) = calls("Route").broker_sets
    assert answer.broker_set == known
    (found,) = (one for one in answer.topics if one.topic == topic)
    assert (found.broker_set, found.read_queues, found.is_readable) == ("set-0", 4, True)
    assert not any(one.topic.startswith("%SYS%") for one in answer.topics)


def test_topics_come_again_only_when_they_have_changed(
    calls: Calls, other: str, topic: str, new_name: Callable[[], str]
) -> None:
    version = greet(calls, other).topics_version
    again = greet(calls, other, topics_version=version)
    assert (again.topics_version, list(again.topics)) == (version, [])
    calls.create(new_name())
    changed = greet(calls, other, topics_version=version)
    assert changed.topics_version != version
    assert topic in {one.topic for one in changed.topics}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "belongs to cluster mq"),
        (
            {"cluster": "other", "sender": peer("x", NOWHERE)},
            "belongs to cluster mq, not to 'other'",
        ),
        ({"cluster": "x" * 5_000}, "belongs to cluster mq"),
        ({"cluster": "mq"}, "no name of a broker set"),
        ({"cluster": "mq", "sender": peer("no name", NOWHERE)}, "no name of a broker set"),
        ({"cluster": "mq", "sender": peer("x" * 128, NOWHERE)}, "no name of a broker set"),
    ],
    ids=["empty", "cluster", "long-cluster", "nobody", "spaces", "long"],
)
def test_an_illegal_greeting_is_refused(calls: Calls, fields: dict[str, Any], text: str) -> None:
    refusal = calls.refused("Greet", **fields)
    assert refusal.code == "ILLEGAL_REQUEST"
    assert text in refusal.text


def test_sets_that_never_answered_are_in_no_route(calls: Calls, other: str) -> None:
    garbage = [peer("", NOWHERE), peer("bad name", NOWHERE), peer("other", "no-address", "x:0")]
    answer = greet(calls, other, others=[*garbage, peer("heard-of", NOWHERE)])
    assert list(answer.others) == []
    assert [one.name for one in calls("Route").broker_sets] == ["set-0"]


def test_sets_are_added_changed_and_removed(calls: Calls, other: str) -> None:
    def added() -> dict[str, list[str]]:
        return {one.name: list(one.addresses) for one in answer.broker_sets}

    answer = calls("AddBrokerSet", broker_set=peer(other, "b:1", "b:2", "b:1"))
    assert added()[other] == ["b:1", "b:2"]
    # A caller that missed the answer asks again.
    answer = calls("AddBrokerSet", broker_set=peer(other, "b:1", "b:2"))
    assert added()[other] == ["b:1", "b:2"]
    answer = calls("AddBrokerSet", broker_set=peer(other, "[::1]:3"))
    assert added()[other] == ["[::1]:3"]
    for _ in range(2):
        answer = calls("RemoveBrokerSet", name=other)
        assert other not in added()
    refusal = calls.refused("Greet", cluster="mq", sender=peer(other, NOWHERE))
    assert refusal.code == "ILLEGAL_REQUEST"
    assert f"{other} was removed from this cluster" in refusal.text
    answer = calls("AddBrokerSet", broker_set=peer(other, "b:1"))
    assert added()[other] == ["b:1"]
    assert greet(calls, other).broker_set.name == "set-0"


@pytest.mark.parametrize(
    ("broker_set", "text"),
    [
        (peer("", "b:1"), "is no name"),
        (peer("no name", "b:1"), "is no name"),
        (peer("x:y", "b:1"), "is no name"),
        (peer("x" * 128, "b:1"), "is no name"),
        (peer("set-0", "b:1"), "belongs to set set-0"),
        (peer("b"), "1 to 32"),
        (peer("b", "no-port"), "host:port"),
        (peer("b", "b:1", "b:70000"), "host:port"),
        (peer("b", "b:1,c:1"), "host:port"),
        (peer("b", *(f"b:{at}" for at in range(1, 34))), "1 to 32"),
    ],
)
def test_a_set_that_cannot_be_is_not_added(
    calls: Calls, broker_set: dict[str, Any], text: str
) -> None:
    refusal = calls.refused("AddBrokerSet", broker_set=broker_set)
    assert refusal.code == "ILLEGAL_REQUEST"
    assert text in refusal.text


@pytest.mark.parametrize("name", ["", "no name", "set-0", "x" * 5_000])
def test_an_illegal_removal_is_refused(calls: Calls, name: str) -> None:
    assert calls.refused("RemoveBrokerSet", name=name).code == "ILLEGAL_REQUEST"


def test_a_set_that_does_not_answer_holds_nothing_up(
    calls: Calls, other: str, new_name: Callable[[], str]
) -> None:
    """Topics are created, after a look around."""
    calls("AddBrokerSet", broker_set=peer(other, NOWHERE))
    name = new_name()
    until(lambda: calls("Route", topics=[name], create_missing=True).topics)
