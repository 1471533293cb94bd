"""Two tenants with the same names for everything, on one broker: neither sees the other, by any
method and any client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mq.client import Admin, Consumer, Nack, Producer, PullConsumer, PushConsumer
from mq.errors import PermissionDenied
from mq.wire.v1.consumer_pb2 import (
    MODE_CLUSTERING,
    START_EARLIEST,
    FailedMessage,
    Handle,
    QueuePosition,
    Subscription,
)
from mq.wire.v1.message_pb2 import Message
from mq.wire.v1.security_pb2 import AccessChange, User
from mq.wire.v1.status_pb2 import Code
from mq.wire.v1.transaction_pb2 import RESOLUTION_COMMIT, RESOLUTION_ROLLBACK
from tests.conformance.calls import Calls, code_of, plain, prepared, until
from tests.conformance.streams import PublishStream, SubscribeStream
from tests.conformance.test_transactions import TransactStream
from tests.integration.test_client_security import KINDS
from tests.support.tenants import Tenants, tenants_broker

if TYPE_CHECKING:
    from collections.abc import Iterator


USERS = {"ann": ["acme"], "ben": ["rival"], "tom": ["east", "west"], "all": []}


@pytest.fixture(scope="module", params=["mq", "grpcio"])
def tenants(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tenants]:
    folder = tmp_path_factory.mktemp("tenants")
    with tenants_broker(folder, "--broker-transport", request.param, **USERS) as found:
        yield found
        assert "Traceback" not in found.broker.output(), found.broker.output()


@pytest.fixture(scope="module")
def ann(tenants: Tenants) -> Calls:
    return tenants.calls("ann")


@pytest.fixture(scope="module")
def ben(tenants: Tenants) -> Calls:
    return tenants.calls("ben")


@pytest.fixture(scope="module")
def root(tenants: Tenants) -> Calls:
    return tenants.calls("root")


def topics_of(calls: Calls, *, include_internal: bool = False) -> set[str]:
    answer = calls("ListTopics", include_internal=include_internal)
    return {one.info.topic for one in answer.topics}


def groups_of(calls: Calls) -> set[str]:
    return {one.group for one in calls("ListGroups").groups}


def test_topics_of_the_same_name_are_two(ann: Calls, ben: Calls, root: Calls) -> None:
    ann.create("orders", queues=2)
    ben.create("orders", queues=3)
    ann.send("orders", b"of ann")
    ben.send("orders", b"of ben", b"twice")
    assert ann.bodies("orders") == [b"of ann"]
    assert ben.bodies("orders") == [b"of ben", b"twice"]
    assert "orders" in topics_of(ann)
    assert len(ann("DescribeTopic", topic="orders").queues) == 2
    assert {"acme%orders", "rival%orders"} <= topics_of(root)
    assert root.bodies("rival%orders") == [b"of ben", b"twice"]
    for tenant in (ann, ben):
        assert not [one for one in topics_of(tenant, include_internal=True) if "%SYS" in one]
    ann("DeleteTopic", topic="orders")
    assert ann.refused("DescribeTopic", topic="orders").code == "TOPIC_NOT_FOUND"
    assert ben.bodies("orders") == [b"of ben", b"twice"]


def test_a_first_message_creates_the_topic_in_the_namespace(
    tenants: Tenants, ann: Calls, ben: Calls, root: Calls
) -> None:
    route = ann("Route", topics=["routed"], create_missing=True)
    assert {one.topic for one in route.topics} == {"routed"}
    with PublishStream(tenants.channel("ann")) as stream:
        for make in (plain, prepared):
            assert code_of(stream.result(make("published", b"x", b"y"))) == "SEND_OK"
        bad = stream.result(plain("rival%published", b"x"))
        assert code_of(bad) == "ILLEGAL_TOPIC"
        assert code_of(stream.result(plain("published", b"z"))) == "SEND_OK"
    assert ann.bodies("published") == [b"x", b"y", b"x", b"y", b"z"]
    assert {"acme%routed", "acme%published"} <= topics_of(root)
    assert not {"routed", "published"} & topics_of(ben)
    missing = ben("Route", topics=["publishe"]).missing
    assert [(one.topic, list(one.similar)) for one in missing] == [("publishe", [])]
    refusal = ann.refused("DescribeTopic", topic="publishedd")
    assert "did you mean published?" in refusal.text
    assert "%" not in refusal.text
    assert "did you mean" not in ben.refused("DescribeTopic", topic="publishedd").text


def test_one_number_of_two_producers_is_two_messages(ann: Calls, ben: Calls) -> None:
    for tenant in (ann, ben, ann):
        answer = tenant.send("numbered", b"x", producer_id="same", sequence=1)
    assert answer.is_duplicate
    assert ann.ends("numbered")[0] == ben.ends("numbered")[0] == 1


def joined(calls: Calls, topic: str, group: str) -> None:
    answer = calls(
        "Join",
        group=group,
        member_id="m",
        mode=MODE_CLUSTERING,
        subscriptions=[Subscription(topic=topic)],
    )
    assert {one.topic for one in answer.assigned} <= {topic, f"%RETRY%{group}"}
    assert topic in {one.topic for one in answer.assigned}


def test_groups_of_the_same_name_are_two(ann: Calls, ben: Calls, root: Calls) -> None:
    for tenant, count in ((ann, 1), (ben, 2)):
        tenant.create("read", queues=1)
        tenant.send("read", *[b"x"] * 3)
        joined(tenant, "read", "billing")
        position = QueuePosition(topic="read", queue_id=0, queue_offset=count)
        tenant("CommitOffsets", group="billing", member_id="m", positions=[position])
        assert tenant.committed("billing", "read") == {0: count}
        found = tenant("DescribeGroup", group="billing")
        assert found.summary.group == "billing"
        assert {one.topic for one in found.queues} <= {"read", "%RETRY%billing"}
        assert [one.topic for one in found.subscriptions] == ["read"]
        assert found.summary.lag == 3 - count
        assert tenant("DescribeTopic", topic="read").groups == ["billing"]
    assert "billing" in groups_of(ann)
    assert {"acme%billing", "rival%billing"} <= groups_of(root)
    assert not [one for one in groups_of(ann) | groups_of(ben) if "%" in one]


def test_deliveries_retries_and_dead_letters_stay_inside(
    tenants: Tenants, ann: Calls, ben: Calls, root: Calls
) -> None:
    ann.create("pushed", queues=1)
    ann.send("pushed", b"fails")
    ann("AlterGroup", group="workers", retries_max=1)
    with SubscribeStream(
        tenants.channel("ann"), "workers", "pushed", start_position=START_EARLIEST
    ) as stream:
        first = until(lambda: stream.next().delivery.topic, "it is delivered")
        assert first == "pushed"
        failed = FailedMessage(topic="pushed", queue_id=0, queue_offset=0, delay_ms=0)
        retried = ann("Retry", group="workers", member_id="member-1", messages=[failed])
        assert [Code.Name(one.code) for one in retried.results] == ["SEND_OK"]
        delivery = until(
            lambda: found if (found := stream.next().delivery).topic == "%RETRY%workers" else None,
            "it comes back",
        )
        (run,) = delivery.runs
        (message,) = run.messages
        assert (message.body, message.origin.topic) == (b"fails", "pushed")
        message_id = f"set-0:{run.log_offset}"
        assert ann("GetMessage", message_id=message_id).message.origin.topic == "pushed"
        failed = FailedMessage(
            topic="%RETRY%workers", queue_id=0, queue_offset=run.queue_offset, reason="50%off"
        )
        ann("Retry", group="workers", member_id="member-1", messages=[failed])
    counts = ann("ListDeadLetters").groups
    assert [(one.group, one.messages) for one in counts] == [("workers", 1)]
    (letter,) = ann("ListDeadLetters", group="workers").messages
    assert letter.topic == "%DLQ%workers"
    assert (letter.message.origin.topic, letter.message.origin.reason) == ("pushed", "50%off")
    (pulled,) = ann("Pull", topic="%DLQ%workers").runs
    assert pulled.messages[0].origin.topic == "pushed"
    assert {"%RETRY%workers", "%DLQ%workers"} <= topics_of(ann, include_internal=True)
    assert "%DLQ%acme%workers" in topics_of(root, include_internal=True)
    assert not ben("ListDeadLetters").groups
    assert ben.refused("ListDeadLetters", group="workers").code == "TOPIC_NOT_FOUND"
    assert ann("ResendDeadLetters", group="workers").messages == 1
    assert not ann("ListDeadLetters").groups


def test_delayed_messages_come_to_their_namespace(ann: Calls, ben: Calls) -> None:
    for tenant in (ann, ben):
        tenant.create("later", queues=1)
    ann.send("later", b"soon", delay_ms=50)
    sent = ben.send("later", b"never", delay_ms=3_600_000)
    (message_id,) = sent.message_ids
    recall = {"topic": "later", "message_id": message_id, "deliver_at_ms": sent.deliver_at_ms}
    waiting = ben("ListScheduled").messages
    assert [(one.topic, one.message_id) for one in waiting] == [("later", message_id)]
    assert message_id not in [one.message_id for one in ann("ListScheduled").messages]
    assert ann.refused("RecallScheduled", **recall).code == "MESSAGE_NOT_FOUND"
    assert ann.refused("ListClients").code == "PERMISSION_DENIED"
    assert ann.refused("Recall", **recall).code == "MESSAGE_NOT_FOUND"
    ben("Recall", **recall)
    until(lambda: ann.bodies("later") == [b"soon"], "it is delivered")
    assert ben.bodies("later") == []


# -- ids and handles of others --------------------------------------------------------------------


def test_a_message_of_another_namespace_is_not_shown_by_its_id(ann: Calls, ben: Calls) -> None:
    (message_id,) = ann.send("private", b"x").message_ids
    assert ann("GetMessage", message_id=message_id).topic == "private"
    refusal = ben.refused("GetMessage", message_id=message_id)
    assert refusal.code == "PERMISSION_DENIED"
    assert "acme" not in refusal.text
    assert "private" not in refusal.text


def test_what_one_has_received_another_cannot_acknowledge(ann: Calls, ben: Calls) -> None:
    for tenant in (ann, ben):
        tenant.create("received", queues=1)
        tenant.send("received", b"x")
    wanted = {"group": "receivers", "topic": "received", "start_position": START_EARLIEST}
    (run,) = ann("Receive", **wanted).runs
    (own,) = ben("Receive", **wanted).runs
    assert (run.topic, own.topic) == ("received", "received")
    for method in ("Ack", "Nack", "ChangeInvisible"):
        extra = {"invisible_ms": 10_000} if method == "ChangeInvisible" else {}
        answer = ben(method, group="receivers", handles=[Handle(lease=run.lease)], **extra)
        assert [Code.Name(one) for one in answer.codes] == ["ILLEGAL_HANDLE"]
    for tenant, lease in ((ann, run.lease), (ben, own.lease)):
        answer = tenant("Ack", group="receivers", handles=[Handle(lease=lease)])
        assert [Code.Name(one) for one in answer.codes] == ["SEND_OK"]


def test_transactions_of_others_are_neither_seen_nor_ended(
    tenants: Tenants, ann: Calls, ben: Calls
) -> None:
    for tenant in (ann, ben):
        tenant.create("transacted", queues=1)
    with (
        TransactStream(tenants.channel("ann"), "p") as of_ann,
        TransactStream(tenants.channel("ben"), "p") as of_ben,
    ):
        of_ann.started()
        of_ben.started()
        half = of_ann.begin("transacted", b"x")
        others = of_ben.begin("transacted", b"y")
        for tenant, mine in ((ann, half), (ben, others)):
            listed = tenant("ListTransactions")
            assert [
                (one.transaction_id, one.topic, one.producer_group) for one in listed.transactions
            ] == [(mine, "transacted", "p")]
            assert listed.open == 1
        for resolution in (RESOLUTION_COMMIT, RESOLUTION_ROLLBACK):
            refusal = ben.refused("EndTransaction", transaction_id=half, resolution=resolution)
            assert (refusal.code, "acme" in refusal.text) == ("PERMISSION_DENIED", False)
            assert of_ben.end_code(half, resolution) == "PERMISSION_DENIED"
        assert ben.refused("CheckTransactionNow", transaction_id=half).code == "PERMISSION_DENIED"
        assert ann("CheckTransactionNow", transaction_id=half).producer_id == "p"
        check = of_ann.next().check
        assert (check.topic, check.messages[0].body) == ("transacted", b"x")
        ann("EndTransaction", transaction_id=half, resolution=RESOLUTION_COMMIT)
        of_ben.end(others, RESOLUTION_ROLLBACK)
    assert ann.bodies("transacted") == [b"x"]
    assert ben.bodies("transacted") == []


# -- which namespace ------------------------------------------------------------------------------


def test_a_user_of_several_namespaces_chooses_one(tenants: Tenants, root: Calls) -> None:
    tenants.calls("tom").create("chosen")
    tenants.calls("tom", mq_namespace="west").create("chosen-too")
    assert {"east%chosen", "west%chosen-too"} <= topics_of(root)
    assert topics_of(tenants.calls("tom")) == {"chosen"}
    assert topics_of(tenants.calls("tom", mq_namespace="west")) == {"chosen-too"}
    for namespace in ("acme", "", "east%", "x" * 2_000):
        refusal = tenants.calls("tom", mq_namespace=namespace).refused("ListTopics")
        assert refusal.code == "PERMISSION_DENIED"
        assert "east or west" in refusal.text
    assert (
        tenants.calls("all", mq_namespace="acme").refused("ListTopics").code == "PERMISSION_DENIED"
    )


def test_a_superuser_looks_at_all_from_outside_or_at_one_from_inside(
    tenants: Tenants, ann: Calls, root: Calls
) -> None:
    ann.create("looked-at")
    assert "acme%looked-at" in topics_of(root)
    inside = tenants.calls("root", mq_namespace="acme")
    assert topics_of(inside, include_internal=True) == topics_of(ann, include_internal=True)
    assert inside.refused("ReadLog").code == "PERMISSION_DENIED"
    assert root("ReadLog").end_offset
    refusal = tenants.calls("root", mq_namespace="a%b").refused("ListTopics")
    assert refusal.code == "ILLEGAL_REQUEST"


@pytest.mark.parametrize("topic", ["rival%orders", "%SYS%HALF", "%RETRY%rival%g", "%SYS%GIVE_UP"])
def test_full_names_are_not_legal_inside(ann: Calls, topic: str) -> None:
    for method in ("Pull", "CreateTopic", "DeleteTopic", "BrowseMessages", "FindOffsets"):
        assert ann.refused(method, topic=topic).code == "ILLEGAL_TOPIC"
    refusal = ann.refused("Send", topic=topic, messages=[Message(body=b"x")])
    assert refusal.code == "ILLEGAL_TOPIC"
    assert topic.removeprefix("%RETRY%") in refusal.text
    assert ann.refused("Leave", group=topic, member_id="m").code == "ILLEGAL_GROUP"


def test_a_user_that_loses_its_namespace_loses_its_streams(tenants: Tenants) -> None:
    tenants.change(
        *tenants.user_changes("eve", "passing"), authorization=f"Bearer {tenants.keys['root']}"
    )
    calls = tenants.calls("eve")
    calls.create("watched", queues=1)
    with SubscribeStream(tenants.channel("eve"), "g", "watched") as stream:
        until(lambda: stream.next().HasField("assignment"), "it is a member")
        tenants.change(
            AccessChange(put_user=User(name="eve")),
            authorization=f"Bearer {tenants.keys['root']}",
        )
        _, refusal = stream.refusal(timeout_s=10)
    assert refusal.code == "PERMISSION_DENIED"
    assert "passing%watched" in topics_of(calls)  # by policies alone


# -- clients --------------------------------------------------------------------------------------


def given(tenants: Tenants, user: str, **more: Any) -> dict[str, Any]:
    """The arguments of any client."""
    return {"servers": tenants.broker.address, "api_key": tenants.keys[user], **more}


def test_every_kind_of_client_works_in_its_namespace_with_plain_names(tenants: Tenants) -> None:
    for act in KINDS:
        for user in ("ann", "ben"):
            with Producer(**given(tenants, user)) as producer:
                producer.send("t", f"of {user}".encode())
            act(given(tenants, user))
    with PullConsumer(**given(tenants, "ann")) as consumer:
        found = {
            one.body for ref in consumer.queues("t") for one in consumer.pull(*ref[:2], 0).messages
        }
    assert b"of ann" in found
    assert b"of ben" not in found


def test_a_consumer_gets_what_failed_again_and_then_it_is_a_dead_letter(tenants: Tenants) -> None:
    seen: list[tuple[str, int, bytes]] = []

    def fail(message: Any) -> None:
        seen.append((message.topic, message.attempt, message.body))
        raise Nack(delay_s=0)

    for user in ("ann", "ben"):
        with Admin(**given(tenants, user)) as admin, Producer(**given(tenants, user)) as producer:
            admin.create_topic("failing")
            admin.alter_group("failers", retries_max=1)
            producer.send("failing", user.encode())
    with (
        Admin(**given(tenants, "ann")) as admin,
        PushConsumer(
            group="failers",
            subscriptions="failing",
            handler=fail,
            start="earliest",
            **given(tenants, "ann"),
        ),
    ):
        until(admin.count_dead_letters, "it has failed twice")
        letters = admin.list_dead_letters("failers").messages
        assert [one.message.origin.topic for one in letters] == ["failing"]
        assert {one.info.topic for one in admin.list_topics(include_internal=True)} >= {
            "failing",
            "%RETRY%failers",
            "%DLQ%failers",
        }
    assert seen == [("failing", 1, b"ann"), ("failing", 2, b"ann")]
    with Admin(**given(tenants, "ben")) as admin:
        assert not admin.count_dead_letters()


def test_a_client_says_which_namespace(tenants: Tenants) -> None:
    for namespace in ("east", "west"):
        with Producer(**given(tenants, "tom", namespace=namespace)) as producer:
            producer.send("spoken", namespace.encode())
    with Consumer(
        group="g",
        subscriptions="spoken",
        start="earliest",
        **given(tenants, "tom", namespace="west"),
    ) as consumer:
        assert [one.body for one in consumer.poll(timeout_s=20)] == [b"west"]
    with (
        pytest.raises(PermissionDenied, match="east or west"),
        Producer(**given(tenants, "tom", namespace="acme")) as producer,
    ):
        producer.send("spoken", b"x")
