"""A broker that cannot do what it is asked: it follows another, is stopping, has a full disk,
cannot reach the others, or finds a file damaged. Each has an error of its own, and clients know
what to do.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import pytest

from mq.wire.v1 import consumer_pb2 as pb
from tests.conformance.calls import (
    CHANNEL_OPTIONS,
    UNARY,
    Calls,
    code_of,
    numbers,
    path_of,
    prepared,
    refusal_of,
    until,
)
from tests.conformance.streams import PublishStream, SubscribeStream
from tests.support.broker_process import BrokerProcess
from tests.support.raft_cluster import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
# Of the node itself, whichever leads.
ANYWHERE = {
    "AdminService/BrokerStatus",
    "AdminService/GetConfig",
    "AdminService/ListClients",
    "AdminService/ReadLog",
    "AdminService/SetConfig",
    "AdminService/TraceMessage",
    "ClusterService/Greet",
    "ClusterService/Route",
    "SecurityService/WhoAmI",
}
SEND_TIMEOUT_MS = 500


class Pair(NamedTuple):
    leader: BrokerProcess
    follower: BrokerProcess

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """The follower does nothing, as on a machine that hangs."""
        os.kill(self.follower.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.follower.pid, signal.SIGCONT)


@contextlib.contextmanager
def calling(broker: BrokerProcess) -> Iterator[Calls]:
    with grpc.insecure_channel(broker.address, options=CHANNEL_OPTIONS) as channel:
        yield Calls(channel)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BrokerProcess]]:
    """Two nodes of one broker set, which need each other."""
    directory = tmp_path_factory.mktemp("pair")
    members = f"a=127.0.0.1:{free_port()},b=127.0.0.1:{free_port()}"
    flags = ["--raft-members", members, "--broker-in-flight-bytes", "8MiB"]
    # A leader without its follower goes on leading for longer than a busy machine takes for a send.
    flags += [
        "--broker-send-timeout-ms",
        str(SEND_TIMEOUT_MS),
        "--raft-election-timeout-ms",
        "2000",
    ]
    with contextlib.ExitStack() as stack:
        found = {}
        for name in ("a", "b"):
            process = BrokerProcess(directory / name, "--node-id", name, *flags, port=free_port())
            stack.push(process.__exit__)
            found[name] = process.launch()
        yield found


@pytest.fixture
def pair(nodes: dict[str, BrokerProcess]) -> Pair:
    """With all well."""

    def led() -> Pair | None:
        found = {}
        for name, process in nodes.items():
            with calling(process) as calls, contextlib.suppress(grpc.RpcError):
                (broker_set,) = calls("Route").broker_sets
                known = {one.node_id: one.address for one in broker_set.nodes}
                if all(known.values()) and calls("BrokerStatus").is_ready:
                    found[name] = broker_set.leader_id
        leaders = set(found.values())
        if len(found) < 2 or len(leaders) != 1 or leaders == {""}:
            return None
        (leader,) = leaders
        (follower,) = {"a", "b"} - {leader}
        with calling(nodes[leader]) as calls, contextlib.suppress(grpc.RpcError):
            calls("Route", topics=["t"], create_missing=True)
            return Pair(nodes[leader], nodes[follower])
        return None

    found: Pair = until(led, "both know who leads")
    return found


# -- another node leads ----------------------------------------------------------------------------


def test_a_follower_names_the_leader(pair: Pair) -> None:
    with calling(pair.follower) as calls:
        for method in UNARY:
            if method in ANYWHERE:
                continue
            with pytest.raises(grpc.RpcError) as raised:
                calls.raw(method, b"")
            refusal = refusal_of(raised.value)
            assert (refusal.code, refusal.grpc_code) == ("NOT_LEADER", UNAVAILABLE), method
            assert refusal.status.leader_address == pair.leader.address
        for method in ("ProducerService/Publish", "ConsumerService/Subscribe"):
            with pytest.raises(grpc.RpcError) as raised:
                list(calls.channel.stream_stream(path_of(method))(iter([b"\x7a\x00"])))
            refusal = refusal_of(raised.value)
            assert refusal.code == "NOT_LEADER"
            assert refusal.status.leader_address == pair.leader.address


def test_every_node_answers_for_itself_and_knows_the_route(pair: Pair) -> None:
    answers = []
    for process, role in ((pair.leader, "leader"), (pair.follower, "follower")):
        with calling(process) as calls:
            # A follower is ready once it has applied the topic that the leader has just made.
            until(lambda: calls("BrokerStatus").is_ready)
            assert calls("BrokerStatus").role == role
            assert calls("GetConfig").options
            calls("SetConfig", name="retention.hours", value="70")
            until(lambda: calls("Route", topics=["t"]).topics)
            answers.append(calls("Route", topics=["t"]))
    assert answers[0] == answers[1]
    addresses = {one.address for one in answers[0].broker_sets[0].nodes}
    assert addresses == {pair.leader.address, pair.follower.address}
    with calling(pair.leader) as calls:
        until(lambda: [one.behind for one in calls("BrokerStatus").followers] == [0])


def test_a_topic_cannot_be_created_by_route_without_a_leader(pair: Pair) -> None:
    with calling(pair.follower) as calls:
        refusal = calls.refused("Route", topics=["unborn"], create_missing=True)
        assert refusal.code == "NOT_LEADER"
        assert refusal.status.leader_address == pair.leader.address


# -- the others do not answer ----------------------------------------------------------------------


def test_without_a_majority_the_outcome_is_not_known_and_a_retry_is_stored_once(
    pair: Pair,
) -> None:
    fields = {"topic": "t", "messages": [{"body": b"x"}], "producer_id": "p", "sequence": 1}
    with calling(pair.leader) as calls:
        before = calls.ends("t")[0]
        with pair.paused():
            refusal = calls.refused("Send", queue_id=0, **fields)
            assert (refusal.code, refusal.grpc_code) == (
                "REPLICATION_TIMEOUT",
                grpc.StatusCode.DEADLINE_EXCEEDED,
            )

    def is_stored() -> bool:
        for process in pair:
            with calling(process) as calls, contextlib.suppress(grpc.RpcError):
                calls("Send", queue_id=0, **fields)
                return calls.ends("t")[0] == before + 1
        return False

    until(is_stored, "it is there, once")


def test_sends_that_wait_for_a_quorum_are_bounded_and_others_get_flow_control(pair: Pair) -> None:
    batches = [
        prepared("t", bytes(3 << 20), queue_id=1, producer_id="q", sequence=number)
        for number in range(1, 5)
    ]
    with calling(pair.leader) as calls, PublishStream(calls.channel) as stream:
        with pair.paused():
            for batch in batches:
                stream.publish(batch)
            results = [stream.next().results[0] for _ in batches]
        codes = [code_of(one) for one in results]
        # Those that were proposed may be stored in the end; those that waited for room are not.
        assert codes[0] == "REPLICATION_TIMEOUT"
        assert set(codes) == {"REPLICATION_TIMEOUT", "FLOW_CONTROL"}
        for code, result in zip(codes, results, strict=True):
            assert (result.retry_after_ms > 0) == (code == "FLOW_CONTROL")


# -- stopping --------------------------------------------------------------------------------------


@pytest.mark.every_client("connecting again")
def test_a_node_that_stops_answers_what_it_took_and_sends_clients_away(
    tmp_path: Path, broker_flags: list[str], connect: Callable[[str], grpc.Channel]
) -> None:
    """Clients connect again by themselves when it is back."""
    broker = BrokerProcess(tmp_path / "data", *broker_flags, port=free_port())
    with broker, connect(broker.address) as channel:
        calls = Calls(channel)
        calls.create("t")
        calls.send("t", *numbers(5))
        member = SubscribeStream(channel, "g", "t", "m")
        member.messages(5)
        member.progress(0, 4)
        until(lambda: calls.lag("g") == 1, "its progress is committed")
        stream = PublishStream(channel)
        for body in numbers(20):
            stream.publish(prepared("t", body, queue_id=1))
        stream.next()
        assert broker.stop() == 0
        answers, refusal = stream.refusal()
        assert refusal.code in {"NODE_STOPPED", "NOT_LEADER"}
        assert refusal.grpc_code == UNAVAILABLE
        answered = 1 + len(answers)
        codes = [code_of(result) for one in answers for result in one.results]
        stored = 1 + codes.count("SEND_OK")
        assert set(codes) <= {"SEND_OK", "NODE_STOPPED", "NOT_LEADER"}
        assert member.refusal()[1].code in {"NODE_STOPPED", "NOT_LEADER"}
        for one in (stream, member):
            one.close()
        assert "Traceback" not in broker.output()
        broker.start()

        def is_back() -> bool:
            with contextlib.suppress(grpc.RpcError):
                return bool(calls("BrokerStatus").is_ready)
            return False

        until(is_back, "the client has connected again")
        found = calls.bodies("t", 1)
        assert found == numbers(len(found))
        assert stored <= len(found)
        assert answered <= 20
        assert calls.committed("g", "t")[0] == 4


# -- the disk --------------------------------------------------------------------------------------


def test_a_full_disk_refuses_writes_and_serves_reads(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", "--retention-check-ms", "20") as broker,
        calling(broker) as calls,
    ):
        calls.create("t")
        calls.send("t", b"before")
        for name, ratio in (
            ("clean_expired_ratio", "0.000001"),
            ("clean_oldest_ratio", "0.000002"),
            ("refuse_writes_ratio", "0.000003"),
        ):
            calls("SetConfig", name=f"retention.{name}", value=ratio)

        def sent() -> Any:
            with PublishStream(calls.channel) as stream:
                return code_of(stream.result(prepared("t", b"x", queue_id=1)))

        until(lambda: sent() == "DISK_FULL", "writes are refused")
        for method, fields in (
            ("Send", {"topic": "t", "messages": [{}]}),
            ("CreateTopic", {"topic": "more"}),
            ("CommitOffsets", {"group": "g", "positions": [{"topic": "t"}]}),
        ):
            refusal = calls.refused(method, **fields)
            assert (refusal.code, refusal.grpc_code) == (
                "DISK_FULL",
                grpc.StatusCode.RESOURCE_EXHAUSTED,
            )
        assert calls.bodies("t") == [b"before"]
        assert len(calls("ListTopics").topics) == 1
        calls("SetConfig", name="retention.refuse_writes_ratio", value="0.99")
        until(lambda: sent() == "SEND_OK", "writes go on by themselves")


def test_a_damaged_queue_is_rebuilt_in_a_moment_and_others_are_served(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with calling(broker) as calls:
            calls.create("t")
            for queue_id in (0, 1):
                calls.send("t", *numbers(5), queue_id=queue_id)
        assert broker.stop() == 0
        (file,) = (tmp_path / "data" / "consumequeue" / "t" / "0").iterdir()
        units = bytearray(file.read_bytes())
        units[:8] = b"\xff" * 8
        file.write_bytes(units)
        broker.start()
        with calling(broker) as calls:
            refusal = calls.refused("Pull", topic="t")
            assert (refusal.code, refusal.grpc_code) == (
                "REBUILDING",
                grpc.StatusCode.UNAVAILABLE,
            )
            assert "queue 0 of topic t" in refusal.text
            assert calls.bodies("t", 1) == numbers(5)

            def is_found() -> bool:
                with contextlib.suppress(grpc.RpcError):
                    return bool(calls("Pull", topic="t").status == pb.PULL_FOUND)
                return False

            until(is_found, "it is rebuilt")
            assert calls.bodies("t") == numbers(5)
