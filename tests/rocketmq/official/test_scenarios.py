"""The official RocketMQ 5 clients, unchanged, against our broker: client x scenario."""

from __future__ import annotations

import itertools
import os
import time
from typing import TYPE_CHECKING

import pytest

from mq.client import Admin, Consumer, Message, Producer, ReceivedMessage
from tests.rocketmq.official.client import Client, ClientError
from tests.support.certificates import Authority, Files
from tests.support.secured_broker import SecuredBroker
from tests.support.waiting import poll

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.broker_process import BrokerProcess

# Whole seconds: Python's client knows no others.
SECOND_MS = 1000
# For a hundred clients to start.
CROWD_S = 120.0
# All of it.
LOG_CHARS = 1 << 20


def now_ms() -> int:
    return int(time.time() * 1000)


def simple(client: Client, topic: str, group: str, **more: str) -> int:
    """A simple consumer."""
    number: int = client.do("simple", topic=topic, group=group, await_s=5, **more)["consumer"]
    return number


def push(client: Client, topic: str, group: str, **more: str) -> int:
    """A push consumer, which ends with the client: to close, Go's waits for its long polls."""
    number: int = client.do("push", topic=topic, group=group, **more)["consumer"]
    return number


def bodies(messages: list[dict[str, str]]) -> list[str]:
    return [one["body"] for one in messages]


@pytest.mark.every_client("the smoke test of a client")
def test_a_message_arrives_as_it_was_sent(client: Client, topic: str, name: str) -> None:
    consumer = simple(client, topic, name)
    begin_ms = now_ms()
    sent = client.do(
        "send",
        topic=topic,
        body="grüße",
        tag="a",
        keys=["k1", "k2"],
        properties={"colour": "red", "n": "7"},
    )
    (found,) = client.receive_all(consumer, 1)
    client.do("ack", consumer=consumer, message_id=found["message_id"])
    # Python's client says whole seconds.
    assert begin_ms - SECOND_MS <= found.pop("born_at_ms") <= now_ms()
    del found["at_ms"]
    assert found == {
        "message_id": sent["message_id"],
        "topic": topic,
        "body": "grüße",
        "tag": "a",
        "keys": ["k1", "k2"],
        "properties": {"colour": "red", "n": "7"},
        "message_group": "",
        "deliver_at_ms": 0,
        "attempt": 1,
    }
    client.do("close", consumer=consumer)


def test_what_is_acknowledged_does_not_come_again_and_what_is_not_does(
    client: Client, topic: str, name: str
) -> None:
    consumer = simple(client, topic, name)
    for body in ("acknowledged", "kept"):
        client.do("send", topic=topic, body=body)
    found = {one["body"]: one for one in client.receive_all(consumer, 2, invisible_s=10)}
    client.do("ack", consumer=consumer, message_id=found["acknowledged"]["message_id"])
    (again,) = client.receive_all(consumer, 1)
    assert again["message_id"] == found["kept"]["message_id"]
    assert again["attempt"] == 2
    assert again["at_ms"] - found["kept"]["at_ms"] >= 9 * SECOND_MS
    client.do("close", consumer=consumer)


def test_a_changed_invisibility_holds_in_place_of_the_first(
    client: Client, topic: str, name: str
) -> None:
    consumer = simple(client, topic, name)
    client.do("send", topic=topic, body="again")
    (first,) = client.receive_all(consumer, 1, invisible_s=300)
    client.do("change", consumer=consumer, message_id=first["message_id"], invisible_s=1)
    (second,) = client.receive_all(consumer, 1, invisible_s=300)
    assert (second["message_id"], second["attempt"]) == (first["message_id"], 2)
    client.do("ack", consumer=consumer, message_id=second["message_id"])
    assert client.receive(consumer, 1) == []
    client.do("close", consumer=consumer)


def test_a_push_consumer_gets_the_tags_that_it_wants(client: Client, topic: str, name: str) -> None:
    consumer = push(client, topic, name, tags="a || b")
    for tag in "abcabc":
        client.do("send", topic=topic, body=tag, tag=tag)
    assert sorted(bodies(client.messages(consumer, 4))) == ["a", "a", "b", "b"]


def test_a_push_consumer_gets_what_its_sql_selects(client: Client, topic: str, name: str) -> None:
    consumer = push(client, topic, name, sql="n > 2 AND TAGS = 'a'")
    for number in range(6):
        tag = "ab"[number % 2]
        client.do("send", topic=topic, body=str(number), tag=tag, properties={"n": str(number)})
    client.do("send", topic=topic, body="last", tag="a", properties={"n": "9"})
    poll(lambda: "last" in bodies(client.messages(consumer, 1)), "the last message")
    poll(lambda: "4" in bodies(client.messages(consumer, 1)), "the other")
    assert sorted(bodies(client.messages(consumer, 2))) == ["4", "last"]


def test_messages_of_a_group_keep_their_order_and_a_failed_one_is_retried_in_place(
    client: Client, admin: Admin, name: str
) -> None:
    admin.create_topic(name, queues=4, type="ordered")
    consumer = push(client, name, name)
    for number in range(6):
        for group in ("x", "y", "z"):
            failures = {"failures": "1"} if (group, number) == ("y", 2) else {}
            client.do(
                "send",
                topic=name,
                body=f"{group}{number}",
                message_group=group,
                properties=failures,
            )
    client.messages(consumer, 19)
    handled = client.calls(consumer)
    for group in ("x", "y", "z"):
        seen = bodies([c["message"] for c in handled if c["message"]["message_group"] == group])
        expected = [f"{group}{number}" for number in range(6)]
        if group == "y":
            expected.insert(3, "y2")
        assert seen == expected


def test_an_ordered_message_that_fails_too_often_is_a_dead_letter_and_the_next_comes(
    client: Client, admin: Admin, name: str
) -> None:
    admin.create_topic(name, queues=1, type="ordered")
    admin.alter_group(name, retries_max=1)
    consumer = push(client, name, name)
    client.do("send", topic=name, body="bad", message_group="x", properties={"failures": "99"})
    client.do("send", topic=name, body="good", message_group="x")
    assert bodies(client.messages(consumer, 3)) == ["bad", "bad", "good"]
    assert dead_letters(admin, name) == [b"bad"]


def test_a_delayed_message_does_not_come_before_its_time(
    client: Client, topic: str, name: str
) -> None:
    consumer = push(client, topic, name)
    # On the second: Python's client knows no others.
    due_ms = (now_ms() // SECOND_MS + 4) * SECOND_MS
    sent = client.do("send", topic=topic, body="late", deliver_at_ms=due_ms)
    client.do("send", topic=topic, body="at once")
    first, second = client.messages(consumer, 2)
    assert (first["body"], second["body"]) == ("at once", "late")
    assert second["message_id"] == sent["message_id"]
    assert second["deliver_at_ms"] == due_ms
    assert second["at_ms"] >= due_ms


def test_a_recalled_message_never_comes(client: Client, topic: str, name: str) -> None:
    consumer = push(client, topic, name)
    due_ms = (now_ms() // SECOND_MS + 5) * SECOND_MS
    recalled = client.do("send", topic=topic, body="recalled", deliver_at_ms=due_ms)
    client.do("send", topic=topic, body="kept", deliver_at_ms=due_ms + SECOND_MS)
    answer = client.do("recall", topic=topic, recall_handle=recalled["recall_handle"])
    assert answer["message_id"] == recalled["message_id"]
    assert bodies(client.messages(consumer, 1)) == ["kept"]
    with pytest.raises(ClientError):
        client.do("recall", topic=topic, recall_handle=recalled["recall_handle"])


def test_transactions_are_committed_rolled_back_and_asked_about(
    client: Client, topic: str, name: str
) -> None:
    consumer = push(client, topic, name)
    sent = {}
    for body, end, check in (
        ("rolled back", "rollback", "commit"),
        ("committed", "commit", "rollback"),
        ("orphan to roll back", "none", "rollback"),
        ("orphan to commit", "none", "commit"),
    ):
        properties = {"check": check}
        sent[body] = client.do("half", topic=topic, body=body, end=end, properties=properties)
    messages = client.messages(consumer, 2)
    assert sorted(bodies(messages)) == ["committed", "orphan to commit"]
    for one in messages:
        assert one["message_id"] == sent[one["body"]]["message_id"]

    def asked() -> set[str]:
        ids = {one["message_id"] for one in client.checks()}
        return {body for body, one in sent.items() if one["message_id"] in ids}

    poll(lambda: len(asked()) == 2, "both orphans are asked about")
    assert asked() == {"orphan to roll back", "orphan to commit"}
    client.do("send", topic=topic, body="after")
    assert "orphan to roll back" not in bodies(client.messages(consumer, 3))


def test_a_transaction_whose_end_is_unknown_is_asked_about_again(
    client: Client, topic: str
) -> None:
    properties = {"check": "unknown"}
    half = client.do("half", topic=topic, body="open", end="none", properties=properties)

    def questions() -> int:
        return [one["message_id"] for one in client.checks()].count(half["message_id"])

    poll(lambda: questions() >= 2, "a second question")


def test_a_failed_message_comes_again_counted_and_is_a_dead_letter_at_the_limit(
    client: Client, topic: str, admin: Admin, name: str
) -> None:
    admin.alter_group(name, retries_max=1)
    consumer = push(client, topic, name)
    once = client.do("send", topic=topic, body="once", properties={"failures": "1"})
    bad = client.do("send", topic=topic, body="bad", properties={"failures": "99"}, tag="t")
    seen = [(one["message_id"], one["attempt"]) for one in client.messages(consumer, 4)]
    expected = [(sent["message_id"], attempt) for sent in (once, bad) for attempt in (1, 2)]
    assert sorted(seen) == sorted(expected)
    poll(lambda: dead_letters(admin, name) == [b"bad"], "the dead letter")
    assert len(client.calls(consumer)) == 4


def dead_letters(admin: Admin, group: str) -> list[bytes]:
    counted = {one.group for one in admin.count_dead_letters()}
    if group not in counted:
        return []
    return [one.message.body for one in admin.list_dead_letters(group).messages]


def test_our_client_reads_what_theirs_sends_and_the_reverse(
    client: Client, broker: BrokerProcess, topic: str, name: str
) -> None:
    theirs = simple(client, topic, f"{name}-theirs")
    with (
        Producer(broker.address) as producer,
        Consumer(broker.address, f"{name}-ours", topic, start="earliest") as ours,
    ):
        fields = {"body": "to us", "tag": "a", "keys": ["k"], "properties": {"p": "v"}}
        client.do("send", topic=topic, message_group="x", **fields)
        message = Message(b"to them", tag="b", keys=["k"], properties={"q": "w"})
        producer.send(topic, message)
        received: dict[bytes, ReceivedMessage] = {}

        def both() -> bool:
            received.update({one.body: one for one in ours.poll()})
            return len(received) == 2

        poll(both, "both messages")
        found = received[b"to us"]
        assert (found.tag, found.keys, found.properties) == ("a", ("k",), {"p": "v"})
        assert found.ordering_key == "x"
    seen = {one["body"]: one for one in client.receive_all(theirs, 2)}
    assert seen["to us"]["message_group"] == "x"
    shown = seen["to them"]
    assert (shown["tag"], shown["keys"], shown["properties"]) == ("b", ["k"], {"q": "w"})
    client.do("close", consumer=theirs)


@pytest.mark.every_client("its TLS and its signatures")
def test_over_tls_with_an_access_key(command: list[str], tmp_path: Path, name: str) -> None:
    files = Authority(tmp_path / "authority").files()
    # Python and Node.js check certificates, by the authorities of the system or of this file.
    environment = {"ROCKETMQ_TLS": "1", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": files.ca}
    with secured(tmp_path, files) as broker:
        with Admin(broker.address, tls=True, ca=files.ca, api_key=broker.root) as admin:
            for topic in (name, f"{name}-other"):
                admin.create_topic(topic, queues=4)
            admin.create_user("shop")
            admin.add_policy("user:shop", f"allow publish,consume topic {name}")
            admin.add_policy("user:shop", f"allow consume group {name}")
            key = admin.create_access_key("shop")
        environment |= {"ROCKETMQ_ACCESS_KEY": key.id, "ROCKETMQ_SECRET_KEY": key.secret}
        with Client(command, broker.address, environment) as client:
            consumer = simple(client, name, name)
            client.do("send", topic=name, body="signed")
            assert bodies(client.receive_all(consumer, 1)) == ["signed"]
            with pytest.raises(ClientError) as refused:
                client.do("send", topic=f"{name}-other", body="not allowed")
            assert "no policy allows user shop" in f"{refused.value} {client.log(LOG_CHARS)}"
        environment["ROCKETMQ_SECRET_KEY"] = key.secret[::-1]
        with Client(command, broker.address, environment) as client:
            with pytest.raises(ClientError) as refused:
                client.do("send", topic=name, body="badly signed")
            assert f"access key {key.id} is not known" in f"{refused.value} {client.log(LOG_CHARS)}"


def secured(folder: Path, files: Files) -> SecuredBroker:
    secret = folder / "secret"
    secret.write_bytes(os.urandom(32))
    secret.chmod(0o600)
    flags = {"--broker-tls": "required", **files.flags("broker")}
    flags["--auth-secret-key-file"] = str(secret)
    return SecuredBroker(folder, *itertools.chain.from_iterable(flags.items()))


def test_a_namespace_has_topics_and_groups_of_its_own(
    command: list[str],
    broker: BrokerProcess,
    admin: Admin,
    client: Client,
    language: str,
    name: str,
) -> None:
    """Two namespaces, and none, with the same names of topic and group."""
    if language == "node":
        pytest.skip("its packages up to 1.0.8 take a namespace and send none")
    admin.create_topic(name, queues=1)
    one, other = f"{language}-a", f"{language}-b"
    with (
        Client(command, broker.address, {"ROCKETMQ_NAMESPACE": one}) as first,
        Client(command, broker.address, {"ROCKETMQ_NAMESPACE": other}) as second,
    ):
        consumers = {each: simple(each, name, name) for each in (first, second, client)}
        for each, body in ((first, "first"), (second, "second"), (client, "none")):
            each.do("send", topic=name, body=body)
        for each, body in ((first, "first"), (second, "second"), (client, "none")):
            (found,) = each.receive_all(consumers[each], 1)
            assert (found["body"], found["topic"]) == (body, name)
            each.do("ack", consumer=consumers[each], message_id=found["message_id"])
        client.do("close", consumer=consumers[client])
    # Outside of namespaces they have full names.
    for full in (name, f"{one}%{name}", f"{other}%{name}"):
        assert sum(queue.end for queue in admin.describe_topic(full).queues) == 1


def test_a_hundred_clients_at_once_get_all_of_their_messages(
    command: list[str], broker: BrokerProcess, admin: Admin, language: str, name: str
) -> None:
    """Each with connections, settings, heartbeats and polls of its own: twenty producers, and
    eighty push consumers, four in a group. Meanwhile the broker answers others.
    """
    if language == "python":
        pytest.skip("a process of Python is busy for a minute to be eighty of its consumers")
    topics = [f"{name}-{number}" for number in range(20)]
    for topic in topics:
        admin.create_topic(topic, queues=4)
    with Client(command, broker.address) as client:
        started = [
            (topic, client.begin("push", topic=topic, group=f"{topic}-group"))
            for topic in topics
            for _ in range(4)
        ]
        consumers = [(topic, begun(CROWD_S)["consumer"]) for topic, begun in started]
        bodies = {topic: [f"{topic} {number}" for number in range(20)] for topic in topics}
        sends = [
            client.begin("send", topic=topic, body=body)
            for topic in topics
            for body in bodies[topic]
        ]
        with Producer(broker.address) as producer:
            for _ in range(10):
                producer.send(f"{name}-ours", b"ours")
                assert len(admin.describe_topic(topics[0]).queues) == 4
        for sent in sends:
            sent(CROWD_S)

        def heard() -> list[tuple[str, str]]:
            """Of each call of a handler, the topic of its consumer and the body."""
            return [
                (topic, call["message"]["body"])
                for topic, consumer in consumers
                for call in client.calls(consumer)
            ]

        wanted = [(topic, body) for topic in topics for body in bodies[topic]]
        poll(lambda: len(heard()) >= len(wanted), "all messages", CROWD_S)
        # Each once, and by a member of its own group.
        assert sorted(heard()) == sorted(wanted)
