"""Administration of a cluster of several broker sets: the client's, and the commands on top."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from mq.cli import main as cli
from mq.cli.cluster import cluster as cluster_command
from mq.cli.dead_letters import dlq
from mq.cli.groups import group as group_command
from mq.cli.messages import message as message_command
from mq.cli.produce import produce
from mq.cli.topics import topic as topic_command
from mq.client import Admin, Consumer, HalfMessage, Producer, Resolution, TransactionProducer
from mq.errors import (
    GroupNotEmpty,
    GroupNotFound,
    IllegalRequest,
    MessageNotFound,
    MqError,
    QueueNotFound,
    TopicExists,
    TopicNotFound,
    Unreachable,
)
from mq.wire.v1.admin_pb2 import ScheduledMessage
from mq.wire.v1.message_pb2 import Message as WireMessage
from tests.support import topics
from tests.support.broker_cluster import BrokerCluster
from tests.support.broker_set import BrokerSet
from tests.support.raft_cluster import poll

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with BrokerCluster(tmp_path_factory.mktemp("sets"), "a", "b") as made:
        yield made


@pytest.fixture(scope="module")
def admin(cluster: BrokerCluster) -> Iterator[Admin]:
    with Admin(cluster.servers) as made:
        yield made


def address(cluster: BrokerCluster, name: str) -> str:
    return cluster.sets[name].address("n0")


def mq(cluster: BrokerCluster, *arguments: str, exit_code: int = 0) -> Result:
    """In this process, against the real brokers, on a terminal of 80 columns."""
    commands = (topic_command, group_command, message_command, dlq, cluster_command, produce)
    main = cli._Group("mq", commands={str(one.name): one for one in commands})
    runner = CliRunner(env={"COLUMNS": "80", "MQ_SERVER": cluster.servers})
    result = runner.invoke(main, arguments, prog_name="mq")
    assert result.exit_code == exit_code, (result.output, result.exception)
    if "--json" not in arguments:
        assert max([len(line.rstrip()) for line in result.stdout.splitlines()], default=0) <= 80
    return result


def mq_json(cluster: BrokerCluster, *arguments: str) -> Any:
    return json.loads(mq(cluster, *arguments, "--json").stdout)


def both(cluster: BrokerCluster, topic: str, queues: int = 1, each: int = 0) -> None:
    """A topic in both sets, without waiting until all have heard of it."""
    for name in cluster.sets:
        topics.create_topic(address(cluster, name), topic, queues)
        for queue_id in range(queues if each else 0):
            bodies = [f"{name}-{queue_id}-{at}".encode() for at in range(each)]
            topics.send(address(cluster, name), topic, queue_id, bodies)


def shares(admin: Admin, topic: str) -> dict[str, int]:
    return {one.broker_set: one.write_queues for one in admin.describe_topic(topic).parts}


def consumed(cluster: BrokerCluster, group: str, topic: str, count: int) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    with Consumer(cluster.servers, group, [topic], start="earliest") as consumer:
        while count > 0:
            assert time.monotonic() < deadline_s
            got = consumer.poll()
            consumer.done(*got)
            count -= len(got)


# -- topics ----------------------------------------------------------------------------------------


def test_a_topic_is_spread_over_all_sets_and_every_broker_shows_it(
    cluster: BrokerCluster, admin: Admin
) -> None:
    made = admin.create_topic("spread")
    assert (made.write_queues, made.read_queues, made.broker_set) == (8, 8, "")
    for server in cluster.nodes:
        with Admin(server) as other:
            parts = [(one.broker_set, one.write_queues) for one in other.route(["spread"]).topics]
            assert parts == [("a", 4), ("b", 4)]
    with pytest.raises(TopicExists, match="a, b"):
        admin.create_topic("spread")
    with pytest.raises(TopicExists):
        admin.create_topic("spread", 4, sets=["a"])
    assert shares(admin, "spread") == {"a": 4, "b": 4}
    queues = [(one.broker_set, one.queue_id) for one in admin.describe_topic("spread").queues]
    assert queues == [(name, at) for name in "ab" for at in range(4)]
    [listed] = [one for one in admin.list_topics() if one.info.topic == "spread"]
    assert (listed.info.write_queues, list(listed.broker_sets)) == (8, ["a", "b"])


def test_a_remainder_goes_to_the_set_with_fewer_queues_and_priorities_stay_together(
    admin: Admin, cluster: BrokerCluster
) -> None:
    topics.create_topic(address(cluster, "a"), "weight", 50)
    text = mq(cluster, "topic", "create", "uneven", "--queues", "3").stdout
    assert "3 queues (1 in a, 2 in b)" in text
    admin.create_topic("ranked", priorities=5)
    assert shares(admin, "ranked") == {"b": 8}
    with pytest.raises(IllegalRequest, match="there is no broker set 'x': the cluster has a, b"):
        admin.create_topic("nowhere", sets=["a", "x"])
    with pytest.raises(TopicNotFound):
        admin.describe_topic("nowhere")


def test_a_topic_that_only_some_sets_got_is_completed_by_the_same_call(
    cluster: BrokerCluster, admin: Admin
) -> None:
    topics.create_topic(address(cluster, "b"), "broken-off", 4)
    with pytest.raises(TopicExists):
        admin.create_topic("broken-off", 6)
    with pytest.raises(TopicExists):
        admin.create_topic("broken-off", type="ordered")
    assert shares(admin, "broken-off") == {"b": 4}
    assert admin.create_topic("broken-off").write_queues == 8
    assert shares(admin, "broken-off") == {"a": 4, "b": 4}


def test_a_topic_is_extended_drained_and_removed_from_a_set(
    cluster: BrokerCluster, admin: Admin
) -> None:
    topics.create_topic(address(cluster, "a"), "moving", 2)
    with pytest.raises(IllegalRequest, match="no other broker set than a"):
        admin.drain_topic("moving", "a")
    with pytest.raises(TopicNotFound, match="no queues in broker set b: it is in a"):
        admin.drain_topic("moving", "b")
    assert (
        "3 queues in b, 5 in all"
        in mq(cluster, "topic", "extend", "moving", "--set", "b", "--queues", "3").stdout
    )
    with pytest.raises(IllegalRequest, match="has 3 queues already"):
        admin.extend_topic("moving", "b", 2)
    topics.send(address(cluster, "a"), "moving", 0, [b"1", b"2", b"3"])
    # One that was never there, one in part, and one that has all.
    consumed(cluster, "mover", "moving", 3)
    admin.reset_offsets("mover", "moving", "earliest", broker_set="a")
    text = mq(cluster, "topic", "delete", "moving", "--set", "a", "-y", exit_code=1).stderr
    assert "it takes messages: drain it first; group mover has 3 to consume" in text
    drained = mq(cluster, "topic", "drain", "moving", "--set", "a").stdout
    assert "When the 3 messages there are consumed" in drained
    described = mq(cluster, "topic", "describe", "moving").stdout
    assert "read and write; in a read" in described
    with pytest.raises(IllegalRequest, match="is drained"):
        admin.extend_topic("moving", "a", 4)
    with pytest.raises(IllegalRequest, match="group mover has 3 to consume"):
        admin.remove_part("moving", "a")
    consumed(cluster, "mover", "moving", 3)
    admin.remove_part("moving", "a")
    assert shares(admin, "moving") == {"b": 3}
    with pytest.raises(IllegalRequest, match="only broker set b"):
        admin.remove_part("moving", "b", force=True)
    admin.delete_topic("moving")
    with pytest.raises(TopicNotFound):
        admin.delete_topic("moving")


def test_a_group_that_never_came_to_a_part_has_not_consumed_it(
    cluster: BrokerCluster, admin: Admin
) -> None:
    topics.create_topic(address(cluster, "a"), "unseen", 1)
    topics.send(address(cluster, "a"), "unseen", 0, [b"1"])
    consumed(cluster, "early", "unseen", 1)
    topics.create_topic(address(cluster, "b"), "unseen", 1)
    topics.send(address(cluster, "b"), "unseen", 0, [b"2", b"3"])
    admin.drain_topic("unseen", "b")
    with pytest.raises(IllegalRequest, match="group early has 2 to consume"):
        admin.remove_part("unseen", "b")
    admin.remove_part("unseen", "b", force=True)
    assert shares(admin, "unseen") == {"a": 1}


def test_queues_are_changed_in_one_set_and_access_in_all(
    cluster: BrokerCluster, admin: Admin
) -> None:
    both(cluster, "altered", 2)
    with pytest.raises(IllegalRequest, match="a, b, and each broker set counts its own"):
        admin.alter_topic("altered", write_queues=3, read_queues=3)
    with pytest.raises(IllegalRequest, match="no broker set 'x'"):
        admin.alter_topic("altered", is_writable=False, broker_set="x")
    assert admin.alter_topic("altered", read_queues=3, broker_set="b").read_queues == 3
    assert admin.alter_topic("altered", is_writable=False).is_writable is False
    assert [one.is_writable for one in admin.describe_topic("altered").parts] == [False, False]
    mq(cluster, "topic", "alter", "altered", "--writable", "--set", "a")
    assert [one.is_writable for one in admin.describe_topic("altered").parts] == [True, False]


# -- groups ----------------------------------------------------------------------------------------


def test_a_member_of_two_sets_is_one_and_lag_is_of_all(
    cluster: BrokerCluster, admin: Admin
) -> None:
    both(cluster, "grouped", 2, each=5)
    cluster.wait_known("grouped")
    with Consumer(cluster.servers, "grouped", ["grouped"], start="earliest") as consumer:
        poll(lambda: consumer.poll() and len(consumer.assignment) == 4, "all queues", DEADLINE_S)
        [member] = admin.describe_group("grouped").members
        assert (member.queues, list(member.broker_sets)) == (4, ["a", "b"])
        [listed] = [one for one in admin.list_groups() if one.group == "grouped"]
        assert listed.members == 1
        with pytest.raises(GroupNotEmpty):
            admin.delete_group("grouped")
    found = admin.reset_offsets("grouped", "grouped", "latest", dry_run=True)
    assert [(one.broker_set, one.queue_id, one.queue_offset) for one in found.after] == [
        (name, at, 5) for name in "ab" for at in range(2)
    ]
    admin.reset_offsets("grouped", "grouped", "earliest")
    assert admin.describe_group("grouped").summary.lag == 20
    with pytest.raises(IllegalRequest, match="is in a, b: say which broker set"):
        admin.reset_offsets("grouped", "grouped", "latest", [0])
    admin.reset_offsets("grouped", "grouped", "latest", [0], broker_set="b")
    described = mq_json(cluster, "group", "describe", "grouped")
    lags = {(one["broker_set"], one["queue_id"]): one["lag"] for one in described["queues"]}
    assert lags == {("a", 0): 5, ("a", 1): 5, ("b", 0): 0, ("b", 1): 5}
    assert described["summary"]["lag"] == 15
    assert " b " in mq(cluster, "group", "describe", "grouped").stdout
    admin.delete_group("grouped")
    for name in cluster.sets:
        with Admin(address(cluster, name)) as one, pytest.raises(GroupNotFound):
            one.describe_group("grouped")
    with pytest.raises(GroupNotFound):
        admin.delete_group("grouped")


def test_a_reset_reaches_a_set_in_which_the_group_never_was(
    cluster: BrokerCluster, admin: Admin
) -> None:
    topics.create_topic(address(cluster, "a"), "late", 1)
    topics.send(address(cluster, "a"), "late", 0, [b"1"])
    consumed(cluster, "late", "late", 1)
    topics.create_topic(address(cluster, "b"), "late", 1)
    topics.send(address(cluster, "b"), "late", 0, [b"2", b"3"])
    found = admin.reset_offsets("late", "late", "latest")
    assert [(one.broker_set, one.queue_offset) for one in found.after] == [("a", 1), ("b", 2)]
    assert admin.describe_group("late").summary.lag == 0
    with pytest.raises(GroupNotFound):
        admin.reset_offsets("nobody", "late", "latest")
    with pytest.raises(TopicNotFound):
        admin.reset_offsets("late", "nothing", "latest")


def test_dead_letters_of_both_sets_are_listed_sent_again_and_let_go(
    cluster: BrokerCluster, admin: Admin
) -> None:
    both(cluster, "deadly", 1, each=2)
    cluster.wait_known("deadly")
    assert admin.alter_group("letters", retries_max=0).retries_max == 0
    deadline_s = time.monotonic() + DEADLINE_S
    with Consumer(cluster.servers, "letters", ["deadly"], start="earliest") as consumer:
        failed = 0
        while failed < 4:
            assert time.monotonic() < deadline_s
            for one in consumer.poll():
                consumer.nack(one, reason="no")
                failed += 1
    poll(
        lambda: [one.messages for one in admin.count_dead_letters()] == [4],
        "dead letters",
        DEADLINE_S,
    )
    [count] = admin.count_dead_letters()
    assert list(count.broker_sets) == ["a", "b"]
    first = admin.list_dead_letters("letters", max_messages=3)
    rest = admin.list_dead_letters("letters", dict(first.next_offsets))
    found = [*first.messages, *rest.messages]
    assert len({one.message_id for one in found}) == 4
    assert len(first.messages) == 3
    assert not admin.list_dead_letters("letters", dict(rest.next_offsets)).messages
    for refused in (
        lambda: admin.list_dead_letters("letters", 1),
        lambda: admin.resend_dead_letters("letters", [0]),
        lambda: admin.purge_dead_letters("letters", 1),
        lambda: admin.settle_dead_letters("letters", [0], "purge"),
    ):
        with pytest.raises(IllegalRequest, match="a, b, and each broker set counts its own"):
            refused()
    assert "--set" in mq(cluster, "dlq", "show", "letters", "1", exit_code=1).stderr
    shown = mq_json(cluster, "dlq", "show", "letters", "1", "--set", "b")
    assert shown["message_id"].startswith("b:")
    assert mq(cluster, "dlq", "list", "letters").stdout.endswith("4 dead letters\n")
    [outcome] = admin.settle_dead_letters("letters", [0], "resend", broker_set="b")
    assert outcome.message_id.startswith("b:")
    [resent] = admin.list_dead_letters("letters", max_messages=10).resent_ids
    assert resent.startswith("b:")
    assert admin.resend_dead_letters("letters", [0], broker_set="b") == 1
    assert admin.purge_dead_letters("letters", 1, broker_set="a") == 1
    assert admin.resend_dead_letters("letters", broker_set="b") == 2
    assert admin.purge_dead_letters("letters") == 1
    assert admin.count_dead_letters() == []
    with pytest.raises(TopicNotFound):
        admin.purge_dead_letters("nobody")


# -- messages that wait ----------------------------------------------------------------------------


def test_what_waits_in_all_sets_is_one_list_in_the_order_of_time(
    cluster: BrokerCluster, admin: Admin
) -> None:
    both(cluster, "later")
    at_ms = time.time_ns() // 1_000_000 + 3_600_000
    for name, minutes in (("a", [1, 2, 9]), ("b", [3, 4, 5]), ("a", [6]), ("b", [0])):
        for minute in minutes:
            due_ms = at_ms + minute * 60_000
            topics.send(address(cluster, name), "later", 0, [b"x"], deliver_at_ms=due_ms)
    for size in (1, 2, 3, 100):
        found: list[ScheduledMessage] = []
        page = ""
        while True:
            part = admin.list_scheduled("later", max_messages=size, page=page)
            assert len(part.messages) <= size
            found += part.messages
            page = part.next_page
            if not page:
                break
        listed = [(one.deliver_at_ms - at_ms) // 60_000 for one in found]
        assert listed == [0, 1, 2, 3, 4, 5, 6, 9]
    counts = admin.count_scheduled()
    assert (counts.messages, counts.topics[0].messages) == (8, 8)
    assert sum(one.count for one in counts.buckets) == 8
    admin.recall_scheduled("later", found[0].message_id, found[0].deliver_at_ms)
    assert admin.count_scheduled().messages == 7
    for bad in ("x", "c=1-1-1", "a="):
        with pytest.raises(IllegalRequest, match="next_page"):
            admin.list_scheduled(page=bad)


# -- messages and transactions ---------------------------------------------------------------------


def test_messages_are_found_in_the_set_of_their_id_and_by_key_in_all(
    cluster: BrokerCluster, admin: Admin
) -> None:
    both(cluster, "looked-up", 1)
    for number in range(40):
        name = "ab"[number % 2]
        message = WireMessage(body=b"%d" % number, keys=["k"])
        topics.send(address(cluster, name), "looked-up", 0, [message])
    found = admin.query_messages("looked-up", "k")
    assert len(found) == 40
    moments = [one.stored_at_ms for one in found]
    assert moments == sorted(moments, reverse=True)
    for one in found[:2]:
        assert admin.get_message(one.message_id) == one
    assert {one.message_id.partition(":")[0] for one in found[:2]} == {"a", "b"}
    with pytest.raises(MessageNotFound, match="is of broker set x: the cluster has a, b"):
        admin.get_message("x:17")
    with pytest.raises(IllegalRequest, match="no message id"):
        admin.get_message("17")
    with pytest.raises(IllegalRequest, match="is in a, b: say which broker set"):
        admin.browse_messages("looked-up", 0, 0)
    browsed = admin.browse_messages("looked-up", 0, 19, broker_set="b")
    assert [one.message.body for one in browsed.messages] == [b"39"]
    shown = mq_json(
        cluster, "message", "browse", "--topic", "looked-up", "--from", "latest", "--count", "1"
    )
    assert [one["body"] for one in shown] == ["38", "39"]
    with pytest.raises(QueueNotFound):
        admin.browse_messages("looked-up", 7, 0, broker_set="b")
    both(cluster, "many", 1)
    for name in cluster.sets:
        keyed = [WireMessage(body=b"x", keys=["many"])] * 50
        topics.send(address(cluster, name), "many", 0, keyed)
    assert len(admin.query_messages("many", "many")) == 64


def test_a_queue_is_named_with_its_set_on_the_command_line(cluster: BrokerCluster) -> None:
    both(cluster, "named", 1)
    cluster.wait_known("named")
    assert "say which" in mq(cluster, "produce", "named", "x", "--queue", "0", exit_code=1).stderr
    mq(cluster, "produce", "named", "x", "--set", "b", exit_code=2)
    sent = mq_json(cluster, "produce", "named", "x", "--queue", "0", "--set", "b")
    assert sent["message_id"].startswith("b:")


def test_transactions_of_both_sets_are_listed_and_ended_where_they_are(
    cluster: BrokerCluster, admin: Admin
) -> None:
    for name in "ab":
        topics.create_topic(address(cluster, name), f"paid-{name}", 1)
    for name in "ab":
        # A broker that has not heard of it yet would create another one.
        cluster.wait_known(f"paid-{name}", sets=1)
    begun: list[str] = []

    def execute(half: HalfMessage, _: object) -> Resolution:
        begun.append(half.transaction_id)
        return Resolution.UNKNOWN

    with TransactionProducer(
        cluster.servers, "payers", execute, lambda _: Resolution.UNKNOWN
    ) as producer:
        for name in "ab":
            producer.send_in_transaction(f"paid-{name}", b"half")
        assert [one.partition(":")[0] for one in begun] == ["a", "b"]
        found = admin.list_transactions("payers")
        assert [one.transaction_id for one in found.transactions] == begun
        assert found.open == 2
        assert len(admin.list_transactions("payers", 1).transactions) == 1
        for one in begun:
            admin.end_transaction(one, commit=True)
    assert admin.list_transactions("payers").open == 0
    ends = [one.end for name in "ab" for one in admin.describe_topic(f"paid-{name}").queues]
    assert ends == [1, 1]


# -- a set that is silent --------------------------------------------------------------------------


def outcome(work: Callable[[], Any]) -> Any:
    """The answer, or the error."""
    try:
        return work()
    except MqError as error:
        return error


def test_reads_show_what_there_is_and_writes_change_nothing_while_a_set_is_down(
    cluster: BrokerCluster,
) -> None:
    both(cluster, "halved", 1, each=3)
    cluster.wait_known("halved")
    with Producer(address(cluster, "a")) as producer:
        kept = producer.send("halved", b"x", queue_id=0, broker_set="a")
    cluster.sets["b"].nodes["n0"].kill()
    try:
        # Each waits for the silent set: all at once.
        with Admin(address(cluster, "a"), timeout_s=2) as admin, ThreadPoolExecutor(9) as pool:
            reads = (
                admin.list_topics,
                lambda: admin.describe_topic("halved"),
                admin.list_transactions,
                admin.list_groups,
                admin.count_dead_letters,
                lambda: admin.query_messages("halved", "k"),
            )
            answers = list(pool.map(outcome, reads))
            assert [list(one.missing_sets) for one in answers] == [["b"]] * len(reads)
            assert [one.end for one in answers[1].queues] == [4]
            writes = (
                lambda: admin.delete_topic("halved"),
                lambda: admin.alter_topic("halved", is_writable=False),
                lambda: admin.create_topic("never"),
                lambda: admin.alter_group("anybody", retries_max=1),
                lambda: admin.remove_part("halved", "b"),
                lambda: admin.drain_topic("halved", "b"),
                lambda: admin.remove_broker_set("b"),
                lambda: mq(cluster, "topic", "describe", "halved", "--timeout", "2", exit_code=1),
            )
            # What does not concern it goes on.
            here = pool.submit(lambda: admin.create_topic("here", 2, sets=["a"]))
            *errors, shown = pool.map(outcome, writes)
            for error in errors:
                assert isinstance(error, Unreachable)
                assert "broker set b" in str(error)
            assert "1 queue, 4 messages" in shown.stdout
            assert shown.stderr.startswith("error: UNREACHABLE: broker set b did not answer")
            assert admin.describe_topic("halved").info.is_writable
            assert admin.get_message(kept.message_id).message.body == b"x"
            assert here.result().write_queues == 2
    finally:
        cluster.sets["b"].start("n0")
    with Admin(cluster.servers) as admin:
        listed = admin.list_topics()
        assert not listed.missing_sets
        assert "never" not in [one.info.topic for one in listed]
        admin.delete_topic("halved")


# -- sets ------------------------------------------------------------------------------------------


def test_a_set_is_added_used_and_removed(cluster: BrokerCluster, tmp_path: Path) -> None:
    with BrokerSet(tmp_path, "--node-broker-set", "c", count=1) as new:
        server = new.address("n0")
        topics.create_topic(server, "clash", 1)
        with Admin(cluster.servers) as admin:
            admin.create_topic("clash", 2, "ordered", sets=["a"])
            with pytest.raises(IllegalRequest, match="topic clash is normal in c and ordered in a"):
                admin.add_broker_set(server)
            admin.delete_topic("clash")
            with (
                pytest.raises(IllegalRequest, match="so is the broker that was asked"),
                Admin(server) as c,
            ):
                c.add_broker_set(server)
            mq(cluster, "cluster", "add-set", server)
            for each in (*cluster.nodes, server):
                with Admin(each) as one:
                    assert [found.name for found in one.route().broker_sets] == ["a", "b", "c"]
            admin.add_broker_set(server)
            with pytest.raises(IllegalRequest, match=r"queues of 1 topics \(clash\)"):
                admin.remove_broker_set("c")
            with Admin(server) as one:
                one.delete_topic("clash")
            mq(cluster, "cluster", "remove-set", "c", "--yes")
            for each, names in ((cluster.nodes[0], ["a", "b"]), (server, ["c"])):
                with Admin(each) as one:
                    assert [found.name for found in one.route().broker_sets] == names
            with pytest.raises(IllegalRequest, match="no broker set 'c'"):
                admin.remove_broker_set("c")


def test_a_set_of_a_name_that_is_taken_is_refused(cluster: BrokerCluster, tmp_path: Path) -> None:
    with BrokerSet(tmp_path, "--node-broker-set", "a", count=1) as same:
        text = mq(cluster, "cluster", "add-set", same.address("n0"), exit_code=1).stderr
        assert "is called a, as one that the cluster has already" in text
