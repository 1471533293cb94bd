"""Policies: a line denies whatever others allow, and names mean what they say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.access import policies
from mq.access.policies import Action, Kind, Policy, Resource, decide, parse, topic_resource
from mq.errors import IllegalPolicy

names = st.text("abc%-", min_size=1, max_size=6).filter(lambda name: not name.startswith("%"))
patterns = st.one_of(names, names.map(lambda name: f"{name}*"), st.just("*"))
actions = st.frozensets(st.sampled_from(Action), min_size=1)
networks = st.sampled_from([None, "10.0.0.0/8", "10.1.0.0/16", "::/0", "fd00::/8"])
addresses = st.sampled_from(["10.1.2.3", "10.9.0.1", "192.168.0.1", "fd00::1", ""])


@st.composite
def lines(draw: st.DrawFn, *, effect: str | None = None) -> tuple[str, Policy]:
    chosen = effect or draw(st.sampled_from(["allow", "deny"]))
    network = draw(networks)
    text = " ".join(
        [
            chosen,
            ",".join(sorted(draw(actions))),
            draw(st.sampled_from(["topic", "group"])),
            draw(patterns),
            *(["from", network] if network else []),
        ]
    )
    return draw(st.sampled_from(["user:u", "role:r"])), parse(text)


resources = st.builds(Resource, st.sampled_from([Kind.TOPIC, Kind.GROUP]), names)
questions = st.tuples(st.sampled_from(Action), resources, addresses)


@given(st.lists(lines(), max_size=6), questions, st.data())
def test_the_order_of_lines_does_not_matter(
    found: list[tuple[str, Policy]],
    question: tuple[Action, Resource, str],
    data: st.DataObject,
) -> None:
    other = data.draw(st.permutations(found))
    assert decide(found, *question).is_allowed == decide(other, *question).is_allowed


@given(st.lists(lines(), max_size=6), lines(effect="deny"), questions)
def test_any_line_that_denies_wins(
    found: list[tuple[str, Policy]],
    denial: tuple[str, Policy],
    question: tuple[Action, Resource, str],
) -> None:
    if denial[1].covers(*question):
        ruling = decide([*found, denial], *question)
        assert not ruling.is_allowed
        assert ruling.policy is not None
        assert not ruling.policy.is_allow


@given(st.lists(lines(effect="deny"), max_size=6), questions)
def test_nothing_is_allowed_that_no_line_allows(
    found: list[tuple[str, Policy]], question: tuple[Action, Resource, str]
) -> None:
    assert not decide(found, *question).is_allowed


@given(lines())
def test_a_policy_has_one_spelling(line: tuple[str, Policy]) -> None:
    _, policy = line
    assert parse(str(policy)) == policy
    assert parse(f"  {str(policy).replace(' ', '   ')} ") == policy


@given(st.permutations(list(Action)), st.lists(st.sampled_from(Action), max_size=3), patterns)
def test_all_actions_are_spelled_with_a_star(
    named: list[Action], again: list[Action], pattern: str
) -> None:
    policy = parse(f"allow {','.join([*named, *again])} topic {pattern}")
    assert policy == parse(f"allow * topic {pattern}")
    assert str(policy) == f"allow * topic {pattern}"


@given(lines())
def test_a_star_means_all_actions_and_nothing_less(line: tuple[str, Policy]) -> None:
    _, policy = line
    is_star = str(policy).split()[1] == "*"
    assert is_star == (policy.actions == frozenset(Action))


@given(names, names)
def test_a_prefix_covers_every_name_that_starts_so_and_no_other(prefix: str, name: str) -> None:
    policy = parse(f"allow publish topic {prefix}*")
    for each in (name, prefix, f"{prefix}{name}", f"{prefix}%{name}"):
        covered = policy.covers(Action.PUBLISH, Resource(Kind.TOPIC, each), "")
        assert covered == each.startswith(prefix)


@pytest.mark.parametrize("topic", ["%RETRY%billing", "%DLQ%billing"])
def test_retries_and_dead_letters_belong_to_their_group(topic: str) -> None:
    resource = topic_resource(topic)
    assert resource == Resource(Kind.GROUP, "billing")
    everything = [("user:u", parse("allow * topic *"))]
    assert not decide(everything, Action.CONSUME, resource).is_allowed
    assert decide([("user:u", parse("allow consume group billing"))], Action.CONSUME, resource)[0]


def test_topics_of_the_broker_belong_to_the_cluster() -> None:
    resource = topic_resource("%SYS%AUDIT")
    assert not decide([("u", parse("allow * topic *"))], Action.CONSUME, resource).is_allowed
    assert decide([("u", parse("allow consume cluster %SYS%AUDIT"))], Action.CONSUME, resource)[0]


def test_every_action_that_is_allowed_allows_to_describe() -> None:
    orders = Resource(Kind.TOPIC, "orders")
    publisher = parse("allow publish topic orders")
    assert publisher.covers(Action.DESCRIBE, orders, "")
    assert not parse("deny publish topic orders").covers(Action.DESCRIBE, orders, "")
    assert not publisher.covers(Action.CONSUME, orders, "")


def test_a_network_holds_for_its_addresses_also_when_they_are_mapped_into_ipv6() -> None:
    policy = parse("allow publish topic orders from 10.0.0.0/8")
    orders = Resource(Kind.TOPIC, "orders")
    assert policy.covers(Action.PUBLISH, orders, "10.1.2.3")
    assert policy.covers(Action.PUBLISH, orders, "::ffff:10.1.2.3")
    for address in ("11.0.0.1", "", "unix", "::1"):
        assert not policy.covers(Action.PUBLISH, orders, address)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "is no policy"),
        ("allow publish topic", "is no policy"),
        ("permit publish topic t", "starts with allow or deny"),
        ("allow write topic t", "'write' is no action"),
        ("allow publish queue t", "'queue' is none of"),
        ("allow publish topic t*x", "no name or prefix"),
        ("allow publish topic or.ders$", "no name or prefix"),
        ("allow publish topic %RETRY%g", "belong to their group"),
        ("allow publish topic t from 10.0.0.1/8", "no network"),
        ("allow publish topic t from here", "no network"),
        ("allow publish topic " + "t" * 200, "no name or prefix"),
        ("allow " + "publish," * 500 + "publish topic t", "is no policy"),
    ],
)
def test_a_line_that_is_no_policy_is_refused_with_what_is_wrong(line: str, reason: str) -> None:
    with pytest.raises(IllegalPolicy, match=reason):
        policies.parse(line)
