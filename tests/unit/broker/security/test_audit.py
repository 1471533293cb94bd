"""The audit trail: what is recorded, in which entry, and how much of it."""

from __future__ import annotations

from typing import Any

import pytest

from mq.access.policies import Action, topic_resource
from mq.broker.security.audit import CALLER, Record
from mq.broker.security.gate import Principal
from mq.errors import DiskFull, PermissionDenied, Unauthenticated
from mq.names import AUDIT_TOPIC
from tests.support.consensus import Node, on_loop, soon, turns
from tests.unit.broker.security.access_scene import By, trail, user

ALICE = By("alice", "alicekeyalic", "10.1.1.1")


def shown(record: dict[str, Any]) -> tuple[Any, ...]:
    return record["user"], record["what"], record["subject"], record["before"], record["after"]


@on_loop
async def test_a_change_of_the_catalogue_is_recorded_by_its_entry() -> None:
    node = Node(auth="required")
    token = CALLER.set(ALICE)
    catalog, count = node.broker.catalog, len(node.consensus.proposed)
    await soon(catalog.create("t", 2, 0))
    await soon(catalog.alter("t", read_queues=3, write_queues=3))
    await soon(catalog.ensure_internal("%RETRY%g"))
    await soon(catalog.delete("t"))
    CALLER.reset(token)
    await soon(catalog.ensure(["u"]))
    assert len(node.consensus.proposed) == count + 5
    created, altered, deleted, by_itself = trail(node)
    assert shown(created)[:4] == ("alice", "create_topic", "topic:t", None)
    assert (created["address"], created["credential"]) == ("10.1.1.1", "alicekeyalic")
    assert (altered["before"]["read_queues"], altered["after"]["read_queues"]) == (2, 3)
    assert deleted["before"] == altered["after"]
    assert shown(by_itself)[:3] == ("%broker", "create_topic", "topic:u")


@on_loop
async def test_without_authentication_only_changes_of_users_are_recorded() -> None:
    node = Node()
    await node.topic("t")
    node.broker.audit.changed(Record("set_config", "config:x"), ALICE)
    await turns()
    assert AUDIT_TOPIC not in node.machine.state.topics


@on_loop
async def test_what_is_not_in_the_log_is_recorded_right_after_it() -> None:
    node = Node(auth="observe")
    node.broker.audit.changed(Record("set_config", "config:x", "1", "2"), ALICE)
    await turns()
    (record,) = trail(node)
    assert shown(record) == ("alice", "set_config", "config:x", "1", "2")
    node.consensus.depose()
    count = len(node.consensus.proposed)
    node.broker.audit.changed(Record("set_config", "config:x"), ALICE)
    await turns()
    assert len(node.consensus.proposed) == count


def refuse(node: Node, principal: Principal, topic: str) -> None:
    with pytest.raises(PermissionDenied):
        node.broker.gate.check(principal, Action.PUBLISH, topic_resource(topic))


@on_loop
async def test_the_first_refusal_of_each_kind_in_a_minute_is_recorded() -> None:
    node = Node(auth="required", now_ms=60_000_000)
    await node.change_access(user("bob"))
    bob = Principal("bob", credential="bobskeybobsk", address="10.0.0.2")
    count = len(node.consensus.proposed)
    for _ in range(500):
        refuse(node, bob, "t")
    refuse(node, bob, "u")
    with pytest.raises(Unauthenticated):
        node.broker.gate.identify(None, (), "10.0.0.3")
    # All of a second are one entry.
    node.pass_time(1_000)
    await turns()
    assert len(node.consensus.proposed) == count + 1
    first, second, third = trail(node)
    assert (first["user"], first["action"], first["subject"]) == ("bob", "publish", "topic:t")
    assert (first["tag"], first["outcome"]) == ("denied", "denied")
    assert "no policy allows" in first["reason"]
    assert second["subject"] == "topic:u"
    assert (third["user"], third["address"]) == ("", "10.0.0.3")
    # A minute later those left out are told, and it begins again.
    node.pass_time(60_000)
    refuse(node, bob, "t")
    node.pass_time(1_000)
    await turns()
    *_, left_out, again = trail(node)
    assert left_out["left_out"] == 499
    assert again["subject"] == "topic:t"
    assert node.broker.audit.denials_total == 503


@on_loop
async def test_what_would_be_refused_is_recorded_as_such() -> None:
    node = Node(auth="observe")
    await node.change_access(user("bob"))
    node.broker.gate.check(Principal("bob"), Action.PUBLISH, topic_resource("t"))
    node.pass_time(1_000)
    await turns()
    (record,) = trail(node)
    assert record["outcome"] == "observed"


@on_loop
async def test_refusals_are_bounded_whatever_callers_ask_for() -> None:
    node = Node(auth="required")
    await node.change_access(user("bob"))
    bob = Principal("bob")
    for at in range(1_000):
        refuse(node, bob, f"t{at}")
    node.pass_time(1_000)
    await turns()
    assert len(trail(node)) == 200
    assert node.broker.audit.unrecorded_total == 800


@on_loop
async def test_a_node_that_does_not_lead_counts_and_writes_nothing() -> None:
    node = Node(auth="required")
    await node.change_access(user("bob"))
    count = len(node.consensus.proposed)
    refuse(node, Principal("bob"), "t")
    node.consensus.depose()
    node.broker.tick()
    refuse(node, Principal("bob"), "u")
    node.pass_time(5_000)
    await turns()
    assert len(node.consensus.proposed) == count
    assert node.broker.audit.unrecorded_total == 2
    node.consensus.elect()
    node.pass_time(5_000)
    await turns()
    assert AUDIT_TOPIC not in node.machine.state.topics


@on_loop
async def test_records_that_cannot_be_written_are_counted() -> None:
    node = Node(auth="required")
    await node.change_access(user("bob"))
    node.consensus.failure = DiskFull("full")
    refuse(node, Principal("bob"), "t")
    node.pass_time(1_000)
    await turns()
    assert node.broker.audit.unrecorded_total == 1


@on_loop
async def test_groups_are_recorded_too() -> None:
    node = Node(auth="required")
    await node.topic("t")
    CALLER.set(ALICE)
    await soon(node.broker.dead_letters.set_retries("g", 3))
    await soon(node.broker.catalog.delete_group("g", 0))
    altered, deleted = trail(node)[1:]
    assert shown(altered) == (
        "alice",
        "alter_group",
        "group:g",
        {"retries_max": None},
        {"retries_max": 3},
    )
    assert shown(deleted) == ("alice", "delete_group", "group:g", None, None)
