"""Three nodes: each serves clients of RocketMQ, and the death of one is at most a delay."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from mq.client import Admin
from mq.wire.rocketmq import definition_pb2 as pb
from mq.wire.rocketmq import service_pb2 as service
from mq.wire.rocketmq.definition_pb2 import Code
from tests.rocketmq.raw import RawClient, message, new_name, resource
from tests.support.broker_cluster import BrokerCluster
from tests.support.broker_set import BrokerSet
from tests.support.lost_answer import LostAnswer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def code(answer: Any) -> str:
    return Code.Name(answer.status.code)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerSet]:
    with BrokerSet(tmp_path_factory.mktemp("set")) as brokers:
        yield brokers


def follower(nodes: BrokerSet) -> str:
    """Its address."""
    return nodes.address(nodes.others(nodes.leader())[0])


def test_a_route_names_all_nodes_and_the_leader_first(nodes: BrokerSet) -> None:
    topic = new_name("topic")
    leader = nodes.leader()
    with Admin(nodes.servers) as admin:
        admin.create_topic(topic, queues=2)
    for name in nodes.nodes:
        with RawClient(nodes.address(name)) as client:
            route = client.call("QueryRoute", service.QueryRouteRequest(topic=resource(topic)))
            assert code(route) == "OK"
            for one in route.message_queues:
                found = [f"{at.host}:{at.port}" for at in one.broker.endpoints.addresses]
                assert found[0] == nodes.address(leader)
                assert sorted(found) == sorted(nodes.servers.split(","))


def test_a_follower_serves_everything(nodes: BrokerSet) -> None:
    topic, group = new_name("topic"), new_name("group")
    with RawClient(follower(nodes), new_name("client")) as client:
        # It creates the topic, too.
        route = client.call("QueryRoute", service.QueryRouteRequest(topic=resource(topic)))
        assert code(route) == "OK"
        assert code(client.call("Heartbeat", service.HeartbeatRequest())) == "OK"
        assert code(client.send(message(topic, b"x"))) == "OK"
        (found,) = client.receive(topic, group)
        assert found.body == b"x"
        assert code(client.ack(topic, group, found)) == "OK"
        assert client.receive(topic, group, wait_s=0) == []
        (status,) = client.receive_raw(topic, "%g", wait_s=0)
        assert code(status) == "ILLEGAL_CONSUMER_GROUP"
        delayed = client.send(message(topic, deliver_at_s=time.time() + 600)).entries[0]
        request = service.RecallMessageRequest(
            topic=resource(topic), recall_handle=delayed.recall_handle
        )
        assert code(client.call("RecallMessage", request)) == "OK"


def test_a_producer_of_a_follower_is_asked_about_its_transactions(nodes: BrokerSet) -> None:
    topic = new_name("topic")
    over = threading.Event()

    def settings() -> Iterator[service.TelemetryCommand]:
        publishing = pb.Publishing(topics=[resource(topic)])
        yield service.TelemetryCommand(settings=pb.Settings(publishing=publishing))
        over.wait(60)

    with RawClient(follower(nodes), new_name("client")) as client:
        stream = client.telemetry(settings())
        assert next(stream).WhichOneof("command") == "settings"
        made = message(topic, message_type=pb.TRANSACTION, first_check_s=2)
        entry = client.send(made).entries[0]
        asked = next(stream).recover_orphaned_transaction_command
        assert asked.transaction_id == entry.transaction_id
        end = service.EndTransactionRequest(
            topic=resource(topic), transaction_id=asked.transaction_id, resolution=pb.COMMIT
        )
        assert code(client.call("EndTransaction", end)) == "OK"
        over.set()


@pytest.mark.parametrize("first", ["leader", "follower"])
def test_a_send_while_the_leader_dies_is_at_most_late(tmp_path: Path, first: str) -> None:
    """A client is connected to the first address of a route that answers. One that was connected
    to the leader connects to another node first, and tries again meanwhile; one that was not needs
    no second time.
    """
    topic, group = new_name("topic"), new_name("group")
    with BrokerSet(tmp_path) as nodes:
        leader = nodes.leader()
        others = nodes.others(leader)
        names = [leader, *others] if first == "leader" else [*others, leader]
        address = ",".join(map(nodes.address, names))
        with RawClient(f"ipv4:{address}", new_name("client")) as client:
            assert code(client.send(message(topic, b"first"))) == "OK"
            sender = _Sender(client, topic, attempts=3 if first == "leader" else 1)
            sender.start()
            try:
                _until(lambda: sender.failed or len(sender.sent) > 20)
                nodes.kill_leader()
                count = len(sender.sent)
                _until(lambda: sender.failed or len(sender.sent) > count + 20)
            finally:
                sender.stop()
            assert not sender.failed, (sender.failed, nodes.logs())
            assert nodes.leader(other_than=leader) != leader
            found: set[str] = set()
            while not found.issuperset(sender.sent):
                runs = client.receive(topic, group, batch_size=100, wait_s=10)
                assert runs, "messages that were acknowledged are missing"
                found |= {one.system_properties.message_id for one in runs}
                client.ack(topic, group, *runs)


def test_a_send_that_a_change_of_the_leader_leaves_in_doubt_is_sent_again(
    nodes: BrokerSet,
) -> None:
    """The leader hears of no other node for long enough to step down, with sends under way that are
    neither written on a majority nor refused.
    """
    topic = new_name("topic")
    leader = nodes.leader()
    pids = [nodes.nodes[name].pid for name in nodes.others(leader)]
    with RawClient(nodes.address(leader)) as client, ThreadPoolExecutor() as pool:
        assert code(client.send(message(topic, b"first"))) == "OK"
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            sends = [pool.submit(client.send, message(topic, b"%d" % n)) for n in range(4)]
            acks = pool.submit(client.ack, topic, new_name("group"), message(topic))
            _until(lambda: not _leads(nodes, leader))
            # The others sleep: what is not answered waits for the next leader.
            assert not any(one.done() for one in sends)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        assert [code(one.result()) for one in sends] == ["OK"] * 4
        assert code(acks.result()) == "INVALID_RECEIPT_HANDLE"
        found = client.receive(topic, new_name("group"), batch_size=100)
        assert {one.body for one in found} >= {b"first", b"0", b"1", b"2", b"3"}


def test_a_receive_that_a_change_of_the_leader_leaves_in_doubt_is_repeated(
    nodes: BrokerSet,
) -> None:
    topic, group = new_name("topic"), new_name("group")
    leader = nodes.leader()
    pids = [nodes.nodes[name].pid for name in nodes.others(leader)]
    with Admin(nodes.servers) as admin:
        admin.create_topic(topic, queues=2, type="ordered")
    with RawClient(nodes.address(leader)) as client, ThreadPoolExecutor() as pool:
        assert code(client.send(fifo(topic, b"x"))) == "OK"
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            push: dict[str, Any] = {"auto_renew": True, "attempt_id": "one", "wait_s": 25}
            call = pool.submit(client.receive, topic, group, **push)
            _until(lambda: not _leads(nodes, leader))
            assert not call.done()
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        (found,) = call.result()
        assert (found.body, found.system_properties.delivery_attempt) == (b"x", 1)
        assert code(client.ack(topic, group, found)) == "OK"


def test_a_message_group_goes_on_at_once_when_an_answer_died_with_the_leader(
    tmp_path: Path,
) -> None:
    """A client repeats its receive at another node. With another attempt it would wait for a
    minute at least, which is longer than a call may take here.
    """
    topic, group, name = new_name("topic"), new_name("group"), new_name("client")
    with BrokerSet(tmp_path) as nodes:
        leader = nodes.leader()
        with Admin(nodes.servers) as admin:
            admin.create_topic(topic, queues=2, type="ordered")
        with (
            LostAnswer(b"the first", nodes.address(leader), nodes.nodes[leader].kill) as relay,
            RawClient(relay.address, name) as client,
        ):
            for body in (b"the first", b"the second"):
                assert code(client.send(fifo(topic, body))) == "OK"
            with pytest.raises(grpc.RpcError):
                client.receive(topic, group, auto_renew=True, attempt_id="one")
        address = nodes.address(nodes.leader(other_than=leader))
        with RawClient(address, name) as client, RawClient(address, new_name("other")) as other:
            push: dict[str, Any] = {"auto_renew": True, "wait_s": 0}
            assert client.receive(topic, group, attempt_id="two", **push) == []
            assert other.receive(topic, group, attempt_id="one", **push) == []
            (first,) = client.receive(topic, group, attempt_id="one", **push)
            assert (first.body, first.system_properties.delivery_attempt) == (b"the first", 1)
            assert other.receive(topic, group, attempt_id="two", **push) == []
            assert code(client.ack(topic, group, first)) == "OK"
            (second,) = client.receive(topic, group, attempt_id="two", **push)
            assert second.body == b"the second"


def test_a_node_repeats_a_receive_itself_when_the_leader_dies_with_the_answer(
    tmp_path: Path,
) -> None:
    """So do clients of every language get it, also those that do not repeat an attempt."""
    topic, group = new_name("topic"), new_name("group")
    nodes = BrokerSet(tmp_path)
    relays: dict[str, LostAnswer] = {}
    with contextlib.ExitStack() as stack:
        for name, node in nodes.nodes.items():
            relay = LostAnswer(b"", nodes.address(name), node.kill)
            relays[name] = stack.enter_context(relay)
            node._flags += ("--broker-advertised", relay.address)
        stack.enter_context(nodes)
        leader = nodes.leader()
        relays[leader].lost = b"the first"
        with Admin(nodes.servers) as admin:
            admin.create_topic(topic, queues=2, type="ordered")
        with RawClient(follower(nodes), new_name("client")) as client:
            assert code(client.send(fifo(topic, b"the first"))) == "OK"
            push: dict[str, Any] = {"auto_renew": True, "attempt_id": "one", "wait_s": 25}
            (first,) = client.receive(topic, group, **push)
            assert (first.body, first.system_properties.delivery_attempt) == (b"the first", 1)
            assert not nodes.nodes[leader].is_running
            assert code(client.ack(topic, group, first)) == "OK"


def fifo(topic: str, body: bytes) -> pb.Message:
    return message(topic, body, message_group="x", message_type=pb.FIFO)


def _leads(nodes: BrokerSet, name: str) -> bool:
    status = nodes.status(name)
    return status is not None and status.leader_id == name


class _Sender(threading.Thread):
    def __init__(self, client: RawClient, topic: str, attempts: int) -> None:
        super().__init__()
        self._client, self._topic, self._attempts = client, topic, attempts
        self._is_over = threading.Event()
        # Their ids; and what was answered to the others.
        self.sent: list[str] = []
        self.failed: list[str] = []

    def run(self) -> None:
        while not self._is_over.is_set() and not self.failed:
            made = message(self._topic, b"%d" % len(self.sent))
            answers = [self._try(made)]
            while answers[-1] != "OK" and len(answers) < self._attempts:
                # As official clients are told to, up to a second.
                time.sleep(min(1.0, 0.01 * 2 ** len(answers)))
                answers.append(self._try(made))
            if answers[-1] == "OK":
                self.sent.append(made.system_properties.message_id)
            else:
                self.failed += answers

    def _try(self, made: pb.Message) -> str:
        try:
            return code(self._client.send(made))
        except grpc.RpcError as error:
            return str(error)

    def stop(self) -> None:
        self._is_over.set()
        self.join()


def _until(is_so: Any, timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_what_is_held_back_in_another_set_is_found_from_here(tmp_path: Path) -> None:
    topic = new_name("topic")
    with BrokerCluster(tmp_path, "a", "b") as cluster:
        with Admin(cluster.servers) as admin:
            admin.create_topic(topic, queues=2)
        here, there = (cluster.sets[name].servers for name in ("a", "b"))
        with RawClient(here) as near, RawClient(there) as far:
            route = near.call("QueryRoute", service.QueryRouteRequest(topic=resource(topic)))
            assert sorted(one.broker.name for one in route.message_queues) == ["a", "b"]
            delayed = far.send(message(topic, deliver_at_s=time.time() + 600)).entries[0]
            request = service.RecallMessageRequest(
                topic=resource(topic), recall_handle=delayed.recall_handle
            )
            assert code(near.call("RecallMessage", request)) == "OK"
            half = far.send(message(topic, message_type=pb.TRANSACTION)).entries[0]
            end = service.EndTransactionRequest(
                topic=resource(topic), transaction_id=half.transaction_id, resolution=pb.COMMIT
            )
            assert code(near.call("EndTransaction", end)) == "OK"
