"""Traces of messages by real brokers: over many segments, restarts, rebuilds, and what is gone."""

from __future__ import annotations

import functools
import json
import shutil
import threading
from typing import TYPE_CHECKING, Any

import pytest

from mq.client import (
    Admin,
    Consumer,
    Message,
    Nack,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionProducer,
)
from mq.client.messages import Sql
from mq.errors import MessageNotFound, PermissionDenied
from mq.wire.v1 import admin_pb2
from tests.support.broker_process import BrokerProcess
from tests.support.secured_broker import SecuredBroker
from tests.support.waiting import poll
from tests.support.warm_process import run_mq

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FLAGS = (
    "--store-message-bytes-max=16KiB",
    "--store-entry-bytes-max=32KiB",
    "--store-segment-bytes=64KiB",
    "--transactions-first-check-ms=100",
    "--transactions-check-interval-ms=100",
    "--transactions-checks-max=2",
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", *FLAGS) as process:
        yield process


@pytest.fixture
def admin(broker: BrokerProcess) -> Iterator[Admin]:
    with Admin(broker.address) as made:
        yield made


@pytest.fixture
def topic(name: str, admin: Admin) -> str:
    admin.create_topic(name, queues=1)
    return name


def kinds(trace: Any, group: str | None = None) -> list[str]:
    return [
        admin_pb2.TraceKind.Name(one.kind).removeprefix("TRACE_").lower()
        for one in trace.events
        if group is None or one.group == group
    ]


def standings(trace: Any) -> dict[str, str]:
    name = admin_pb2.TraceStanding.Name
    return {one.group: name(one.standing).removeprefix("STANDING_").lower() for one in trace.groups}


def fill(server: str, topic: str, segments: int = 2) -> None:
    """Other messages, so many segments of them."""
    with Producer(server) as producer:
        for _ in range(5 * segments):
            producer.send(topic, bytes(14_000))


def check_commands(broker: BrokerProcess, topic: str, message_id: str, trace: Any) -> None:
    """`mq message trace` shows it, by its key and by its id."""
    ran = run_mq(
        *("message", "trace", "--topic", topic, "--key", "order-7"),
        *("--server", broker.address, "--json"),
    )
    document = json.loads(ran.stdout)
    assert document["message_id"] == message_id
    assert [one["kind"] for one in document["events"]] == kinds(trace)
    shown = run_mq(
        *("message", "trace", message_id, "--server", broker.address),
        environment={"COLUMNS": "80"},
    ).stdout.decode()
    assert "dead letter after 3 attempts" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_message_that_was_delayed_retried_twice_and_given_up_over_many_segments(
    broker: BrokerProcess, admin: Admin, topic: str
) -> None:
    admin.create_topic("noise", queues=2)
    admin.alter_group("billing", retries_max=2)
    given_up = threading.Event()

    def handle(message: Any) -> None:
        fill(broker.address, "noise")
        if message.attempt == 3:
            given_up.set()
        raise Nack(delay_s=0.2, reason=f"no stock on attempt {message.attempt}")

    with (
        Producer(broker.address) as producer,
        PushConsumer(broker.address, "billing", topic, handle, start="earliest"),
        Consumer(broker.address, "audit", topic, start="earliest") as consumer,
    ):
        message = Message(b"order 7", tag="paid", keys=["order-7"], delay_s=0.5)
        sent = producer.send(topic, message)
        assert sent.message_id is not None
        fill(broker.address, "noise")
        poll(lambda: consumer.poll(timeout_s=1), "it was delivered")
        consumer.commit()
        assert given_up.wait(60)
        id_ = sent.message_id

        def given_up_and_passed() -> Any:
            found = admin.trace_message(id_)
            return found if {"dead_letter", "passed"} <= {*kinds(found)} else None

        trace = poll(given_up_and_passed, "it is a dead letter")
    assert kinds(trace, "") == ["born", "delayed", "delivered"]
    retried = ["retry", "redelivered"]
    assert kinds(trace, "billing") == [*retried, *retried, "dead_letter"]
    assert kinds(trace, "audit") == ["passed"]
    reasons = [one.reason for one in trace.events if one.reason]
    assert reasons == [f"no stock on attempt {at}" for at in (1, 2, 3)]
    assert standings(trace) == {"audit": "passed", "billing": "dead_letter"}
    assert trace.is_complete
    assert [one.at_ms for one in trace.events] == sorted(one.at_ms for one in trace.events)
    born, failed = trace.events[0], next(one for one in trace.events if one.reason)
    assert born.producer_id
    assert born.address
    assert failed.member_id
    assert failed.address != born.address
    # By its key, by the id that it was delivered with, and by its dead letter: the same life.
    (letter,) = admin.list_dead_letters("billing").messages
    for each in (trace.events[2].message_id, letter.message_id):
        assert admin.trace_message(each).events == trace.events
    check_commands(broker, topic, sent.message_id, trace)
    # What is derived from the log does not matter, nor does a restart.
    broker.stop()
    data = broker._data
    for name in ("consumequeue", "index"):
        shutil.rmtree(data / name)
    (data / "checkpoint").unlink()
    broker.start()
    again = poll(lambda: admin.trace_message(sent.message_id or ""), "it is back")
    assert again.events == trace.events
    assert again.groups == trace.groups


def test_transactions_that_are_committed_rolled_back_and_given_up(
    broker: BrokerProcess, admin: Admin, topic: str
) -> None:
    with TransactionProducer(
        broker.address, "shop", lambda _, outcome: outcome, lambda _: "UNKNOWN"
    ) as producer:
        ids = {
            outcome: producer.send_in_transaction(
                topic, Message(outcome.encode(), keys=[outcome]), outcome
            ).transaction_id
            for outcome in ("COMMIT", "ROLLBACK", "UNKNOWN")
        }
        poll(
            lambda: kinds(admin.trace_message(ids["UNKNOWN"]))[-1] == "given_up",
            "it was given up",
        )
    assert kinds(admin.trace_message(ids["COMMIT"])) == ["born", "half", "committed"]
    assert kinds(admin.trace_message(ids["ROLLBACK"])) == ["born", "half", "rolled_back"]
    given_up = admin.trace_message(ids["UNKNOWN"])
    assert kinds(given_up) == ["born", "half", "checked", "checked", "given_up"]
    assert "no word of producer group shop" in given_up.events[-1].reason
    assert all(one.group == "shop" for one in given_up.events[1:])
    # The id that consumers see leads back to the half message.
    (found,) = admin.query_messages(topic, "COMMIT")
    assert found.message_id != ids["COMMIT"]
    assert admin.trace_message(found.message_id).message_id == ids["COMMIT"]


def test_consumers_that_pass_skip_lock_and_leave_nothing(
    broker: BrokerProcess, admin: Admin, topic: str
) -> None:
    with Producer(broker.address) as producer:
        message = Message(b"m", tag="paid", properties={"amount": "120"})
        sent = producer.send(topic, message)
        last = producer.send(topic, Message(b"n", tag="open", properties={"amount": "1"}))
    wanted: dict[str, dict[str, Any]] = {
        "by-tag": {"subscriptions": {topic: "open"}},
        "by-sql": {"subscriptions": {topic: Sql("amount < 100")}},
        "ordered": {"subscriptions": topic, "mode": "ordered"},
        "broadcast": {"subscriptions": topic, "mode": "broadcast"},
    }
    for group, options in wanted.items():
        with Consumer(broker.address, group, start="earliest", **options) as consumer:
            seen: list[bytes] = []
            while b"n" not in seen:
                seen += [one.body for one in consumer.poll(timeout_s=10)]
    with Consumer(broker.address, "late", topic, start="latest") as consumer:
        consumer.poll(timeout_s=0.5)

    def traced() -> Any:
        found = admin.trace_message(sent.message_id or "")
        return found if len(found.groups) == 4 else None

    trace = poll(traced, "all groups are there")
    poll(lambda: standings(traced())["ordered"] == "passed", "all have committed")
    trace = traced()
    assert standings(trace) == {
        "by-tag": "skipped",
        "by-sql": "skipped",
        "ordered": "passed",
        "late": "began_behind",
    }
    filters = {one.group: one.filter for one in trace.events if one.filter}
    assert filters == {"by-tag": "TAG open", "by-sql": "SQL amount < 100"}
    assert all(one.member_id for one in trace.events if one.group in ("by-tag", "ordered"))
    assert standings(admin.trace_message(last.message_id or ""))["by-tag"] == "passed"


def test_receivers_are_told_with_their_leases(
    broker: BrokerProcess, admin: Admin, topic: str
) -> None:
    with (
        Producer(broker.address) as producer,
        SimpleConsumer(broker.address, "mailers", topic, start="earliest") as consumer,
    ):
        sent = producer.send(topic, b"m")
        (first,) = consumer.receive(max_messages=1, wait_s=10)
        consumer.nack(first, delay_s=0.05, reason="too hot")
        (second,) = consumer.receive(max_messages=1, wait_s=10)
        consumer.ack(second)
    trace = admin.trace_message(sent.message_id or "")
    assert kinds(trace, "mailers") == ["received", "nacked", "received", "acknowledged"]
    received, nacked, *_ = [one for one in trace.events if one.group]
    assert (nacked.reason, nacked.member_id) == ("too hot", received.member_id)
    assert received.member_id


def test_a_trace_whose_time_is_over_goes_on_where_it_stopped(
    broker: BrokerProcess, admin: Admin, topic: str
) -> None:
    with Producer(broker.address, linger_ms=0) as producer:
        sent = producer.send(topic, b"m")
        # Small entries: there is much to look at.
        for at in range(1_500):
            producer.send("noise", b"%d" % at, queue_id=0)
    with Consumer(broker.address, "slow", topic, start="earliest") as consumer:
        poll(lambda: consumer.poll(timeout_s=1), "it was consumed")
    id_ = sent.message_id or ""
    poll(lambda: kinds(admin.trace_message(id_), "slow"), "it was passed")
    whole = admin.trace_message(id_, budget_s=10)
    found, answers = admin.trace_message(id_, budget_s=0.001), 1
    assert not found.is_complete
    assert "time was over" in found.incomplete_reason
    while found.continue_token:
        found = admin.trace_message(id_, budget_s=0.001, continue_token=found.continue_token)
        answers += 1
    assert answers > 1
    assert (found.is_complete, found.events) == (True, whole.events)


def test_a_message_that_retention_has_dropped_is_not_found(tmp_path: Path) -> None:
    flags = ("--retention-bytes=256KiB", "--retention-check-ms=50")
    with BrokerProcess(tmp_path / "data", *FLAGS, *flags) as broker, Admin(broker.address) as admin:
        admin.create_topic("t", queues=1)
        with Producer(broker.address) as producer:
            sent = producer.send("t", b"m")

        def dropped() -> str:
            fill(broker.address, "t")
            try:
                admin.trace_message(sent.message_id or "")
            except MessageNotFound as error:
                return str(error)
            return ""

        assert "retention has dropped" in poll(dropped, "its segment is gone")


def test_a_trace_shows_what_its_caller_may_see(tmp_path: Path) -> None:
    """Names of users are in it; so are those of groups that the caller may describe."""
    with (
        SecuredBroker(tmp_path) as broker,
        Admin(broker.address, api_key=broker.root) as root,
    ):
        root.create_topic("acme%orders", queues=1)
        for user in ("alice", "bob", "eve"):
            root.create_user(user)
        keys = {user: root.create_key(user).text for user in ("alice", "bob", "eve")}
        for line in (
            "alice allow publish topic acme%orders",
            "bob allow consume,describe topic acme%orders",
            "bob allow consume,describe group acme%billing",
            "eve allow describe topic acme%orders",
        ):
            subject, _, rule = line.partition(" ")
            root.add_policy(f"user:{subject}", rule)
        with Producer(broker.address, api_key=keys["alice"]) as producer:
            sent = producer.send("acme%orders", b"m")
        id_ = sent.message_id or ""
        for group, key in (("acme%billing", keys["bob"]), ("acme%secret", broker.root)):
            with Consumer(
                broker.address, group, "acme%orders", start="earliest", api_key=key
            ) as consumer:
                poll(functools.partial(consumer.poll, timeout_s=1), "it was delivered")

        def traced() -> Any:
            found = root.trace_message(id_)
            return found if len(found.groups) == 2 else None

        whole = poll(traced, "both groups have it")
        assert [one.user for one in whole.events] == ["alice", "alice", "bob", "root"]
        with Admin(broker.address, api_key=keys["bob"]) as bob:
            assert [one.group for one in bob.trace_message(id_).groups] == ["acme%billing"]
            assert "secret" not in str(bob.trace_message(id_))
        for user in ("alice", "eve"):
            with (
                Admin(broker.address, api_key=keys[user]) as other,
                pytest.raises(PermissionDenied),
            ):
                other.trace_message(id_)
        # In a namespace names are local, and messages of others are none.
        for user, namespace in (("nina", "acme"), ("otto", "other")):
            root.create_namespace(namespace)
            root.create_user(user, namespaces=[namespace])
            root.add_policy(f"user:{user}", "allow consume,describe topic *")
            root.add_policy(f"user:{user}", "allow consume,describe group *")
        with Admin(broker.address, api_key=root.create_key("nina").text) as nina:
            local = nina.trace_message(id_)
            assert local.topic == "orders"
            assert [one.group for one in local.groups] == ["billing", "secret"]
            assert "acme" not in str(local)
        with (
            Admin(broker.address, api_key=root.create_key("otto").text) as otto,
            pytest.raises((MessageNotFound, PermissionDenied)),
        ):
            otto.trace_message(id_)
