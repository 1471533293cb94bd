"""Whatever is sent to whichever port of a broker: it answers with an error that has a code, or with
nothing, and lives. Seeds are fixed; a failure names the method and the bytes.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import urllib.request
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from mq.wire.v1 import (
    admin_pb2,
    cluster_pb2,
    consumer_pb2,
    message_pb2,
    producer_pb2,
    security_pb2,
    transaction_pb2,
)
from mq.wire.v1.security_pb2 import AccessChange
from tests.conformance.calls import (
    CHANNEL_OPTIONS,
    STREAMS,
    UNARY,
    Calls,
    path_of,
    prepared,
    publish_request,
    refusal_of,
    request_type,
    until,
)
from tests.support.broker_process import BrokerProcess
from tests.support.raft_cluster import free_port
from tests.support.secured_broker import SecuredBroker
from tests.support.wire_fuzz import fill, mutate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from google.protobuf.message import Message

ROUNDS = 240
STREAM_ROUNDS = 120
AT_ONCE = 32
# A wait that fuzzing asked for is cut short by the client.
TIMEOUT_S = 0.5
RSS_GROWTH_BYTES_MAX = 200 << 20
TOPIC, GROUP, MEMBER = "fuzzed", "fuzzers", "fuzzer"
NAMES = (TOPIC, GROUP, MEMBER)
MISTAKE = "a request failed by a mistake of the broker"

POSITION = consumer_pb2.QueuePosition(topic=TOPIC, queue_id=1, queue_offset=1)
QUEUE = consumer_pb2.QueueId(topic=TOPIC, queue_id=1)
WANTED = consumer_pb2.Subscription(topic=TOPIC, filter=consumer_pb2.Filter(sql="a = 1 OR b > 2"))
MESSAGE = message_pb2.Message(body=b"body", tag="a", keys=["k"], properties={"a": "1"})
AT_TIME = consumer_pb2.OFFSET_AT_TIME
HANDLE = consumer_pb2.Handle(lease=b"12345678", queue_offset=1, count=2)
LINE = "allow publish,describe topic orders-* from 10.0.0.0/8"
# An address without a server.
OTHER_SET = cluster_pb2.PeerSet(name="set-9", addresses=["127.0.0.1:1", "localhost:2"])
GOOD: dict[str, Message] = {
    "AdminService/AddBrokerSet": admin_pb2.AddBrokerSetRequest(broker_set=OTHER_SET),
    "AdminService/AddMember": admin_pb2.AddMemberRequest(node_id="n9", address="127.0.0.1:1"),
    "AdminService/AlterGroup": admin_pb2.AlterGroupRequest(group=GROUP, retries_max=3),
    "AdminService/AlterTopic": admin_pb2.AlterTopicRequest(topic=TOPIC, read_queues=9),
    "AdminService/BrokerStatus": admin_pb2.BrokerStatusRequest(),
    "AdminService/BrowseMessages": admin_pb2.BrowseMessagesRequest(
        topic=TOPIC, queue_id=1, messages_max=10, filter=WANTED.filter
    ),
    "AdminService/CheckTransactionNow": admin_pb2.CheckTransactionNowRequest(
        transaction_id="set-0:150"
    ),
    "AdminService/CreateTopic": admin_pb2.CreateTopicRequest(
        topic="created", queues=3, type=cluster_pb2.TOPIC_ORDERED
    ),
    "AdminService/DeleteGroup": admin_pb2.DeleteGroupRequest(group="other"),
    "AdminService/DeleteTopic": admin_pb2.DeleteTopicRequest(topic="created"),
    "AdminService/DescribeGroup": admin_pb2.DescribeGroupRequest(group=GROUP),
    "AdminService/DescribeTopic": admin_pb2.DescribeTopicRequest(topic=TOPIC),
    "AdminService/GetConfig": admin_pb2.GetConfigRequest(),
    "AdminService/GetMessage": admin_pb2.GetMessageRequest(message_id="set-0:150"),
    "AdminService/TraceMessage": admin_pb2.TraceMessageRequest(
        message_id="set-0:1", budget_ms=100, continue_token=7
    ),
    "AdminService/CountScheduled": admin_pb2.CountScheduledRequest(buckets_max=5),
    "AdminService/ListClients": admin_pb2.ListClientsRequest(clients_max=5, page="1"),
    "AdminService/ListLeases": admin_pb2.ListLeasesRequest(
        group=GROUP, topic=TOPIC, leases_max=5, page=f"{TOPIC}/0/1"
    ),
    "AdminService/ListScheduled": admin_pb2.ListScheduledRequest(
        topic=TOPIC, begin_ms=1, messages_max=5, page="1-1-1"
    ),
    "AdminService/RecallScheduled": admin_pb2.RecallScheduledRequest(
        topic=TOPIC, message_id="set-0:150", deliver_at_ms=1 << 41
    ),
    "AdminService/SettleDeadLetters": admin_pb2.SettleDeadLettersRequest(
        group=GROUP, queue_offsets=[1, 2], action=admin_pb2.LETTER_ACTION_RESEND, again=True
    ),
    "AdminService/ListDeadLetters": admin_pb2.ListDeadLettersRequest(group=GROUP),
    "AdminService/ListGroups": admin_pb2.ListGroupsRequest(),
    "AdminService/ListTopics": admin_pb2.ListTopicsRequest(include_internal=True),
    "AdminService/ListTransactions": admin_pb2.ListTransactionsRequest(
        producer_group=GROUP, transactions_max=5
    ),
    "AdminService/PurgeDeadLetters": admin_pb2.PurgeDeadLettersRequest(
        group=GROUP, before_offset=2
    ),
    "AdminService/QueryMessages": admin_pb2.QueryMessagesRequest(
        topic=TOPIC, key="k", begin_ms=1, end_ms=1 << 50, messages_max=5
    ),
    "AdminService/ReadLog": admin_pb2.ReadLogRequest(log_offset=150, bytes_max=1_000),
    "AdminService/RemoveBrokerSet": admin_pb2.RemoveBrokerSetRequest(name="set-9"),
    "AdminService/RemoveMember": admin_pb2.RemoveMemberRequest(node_id="n9"),
    "AdminService/ResendDeadLetters": admin_pb2.ResendDeadLettersRequest(
        group=GROUP, queue_offsets=[1]
    ),
    "AdminService/ResetOffsets": admin_pb2.ResetOffsetsRequest(
        group=GROUP,
        topic=TOPIC,
        queue_ids=[1],
        kind=consumer_pb2.OFFSET_AT_TIME,
        at_ms=1_700_000_000_000,
    ),
    "AdminService/SetConfig": admin_pb2.SetConfigRequest(name="retention.hours", value="48"),
    "AdminService/TransferLeadership": admin_pb2.TransferLeadershipRequest(node_id="n9"),
    "ClusterService/Greet": cluster_pb2.GreetRequest(
        cluster="mq", sender=OTHER_SET, others=[OTHER_SET], topics_version=7
    ),
    "ClusterService/Route": cluster_pb2.RouteRequest(topics=[TOPIC, "created"]),
    "ConsumerService/Ack": consumer_pb2.AckRequest(group=GROUP, handles=[HANDLE]),
    "ConsumerService/ChangeInvisible": consumer_pb2.ChangeInvisibleRequest(
        group=GROUP, handles=[HANDLE], invisible_ms=10_000
    ),
    "ConsumerService/CommitOffsets": consumer_pb2.CommitOffsetsRequest(
        group="other", positions=[POSITION]
    ),
    "ConsumerService/FindOffsets": consumer_pb2.FindOffsetsRequest(
        topic=TOPIC, queue_ids=[1], kind=AT_TIME, at_ms=1_700_000_000_000
    ),
    "ConsumerService/Heartbeat": consumer_pb2.HeartbeatRequest(
        group=GROUP, member_id=MEMBER, owned=[QUEUE]
    ),
    "ConsumerService/Join": consumer_pb2.JoinRequest(
        group=GROUP, member_id=MEMBER, zone="z", subscriptions=[WANTED], owned=[QUEUE]
    ),
    "ConsumerService/Leave": consumer_pb2.LeaveRequest(group=GROUP, member_id=MEMBER),
    "ConsumerService/Nack": consumer_pb2.NackRequest(
        group=GROUP, handles=[HANDLE], delay_ms=5, reason="why"
    ),
    "ConsumerService/Pull": consumer_pb2.PullRequest(
        topic=TOPIC, queue_id=1, messages_max=3, bytes_max=1_000, filter=WANTED.filter
    ),
    "ConsumerService/QueryOffsets": consumer_pb2.QueryOffsetsRequest(group=GROUP, queues=[QUEUE]),
    "ConsumerService/Receive": consumer_pb2.ReceiveRequest(
        group="receivers", topic=TOPIC, messages_max=3, filter=WANTED.filter, member_id=MEMBER
    ),
    "ConsumerService/Retry": consumer_pb2.RetryRequest(
        group=GROUP,
        member_id=MEMBER,
        sequence=1,
        messages=[
            consumer_pb2.FailedMessage(topic=TOPIC, queue_id=1, queue_offset=1, reason="why")
        ],
    ),
    "ProducerService/Recall": producer_pb2.RecallRequest(
        topic=TOPIC, message_id="set-0:150", deliver_at_ms=1_700_000_000_000
    ),
    "ProducerService/SendAtomically": producer_pb2.AtomicRequest(
        batches=[prepared(TOPIC, messages=[MESSAGE], producer_id="p", sequence=9)],
        group=GROUP,
        member_id=MEMBER,
        positions=[POSITION],
    ),
    "ProducerService/Send": producer_pb2.SendRequest(
        topic=TOPIC, queue_id=1, producer_id="p", sequence=7, messages=[MESSAGE, MESSAGE]
    ),
    "ProducerService/Publish": publish_request(
        1, prepared(TOPIC, messages=[MESSAGE, MESSAGE], producer_id="p", sequence=3)
    ),
    "SecurityService/ChangeAccess": security_pb2.ChangeAccessRequest(
        changes=[
            AccessChange(put_user=security_pb2.User(name=MEMBER, roles=["r"])),
            AccessChange(put_policy=security_pb2.AccessPolicy(subject="role:r", line=LINE)),
            AccessChange(put_quota=security_pb2.Quota(subject="default", streams=9_000)),
            AccessChange(put_namespace=security_pb2.AccessNamespace(name="ns")),
            AccessChange(drop_credential="abc"),
        ]
    ),
    "SecurityService/CheckAccess": security_pb2.CheckAccessRequest(
        user="root", action="publish", kind="topic", name=TOPIC, address="10.0.0.1"
    ),
    "SecurityService/DescribeAccess": security_pb2.DescribeAccessRequest(),
    "SecurityService/Login": security_pb2.LoginRequest(
        user="root", password="x" * 12, key_id="abcdefghijkl", key_digest=b"d" * 32
    ),
    "SecurityService/WhoAmI": security_pb2.WhoAmIRequest(),
    "TransactionService/EndTransaction": transaction_pb2.EndTransactionRequest(
        transaction_id="set-0:150", resolution=transaction_pb2.RESOLUTION_COMMIT
    ),
    "TransactionService/Transact": transaction_pb2.TransactRequest(
        request_id=1,
        half=prepared(TOPIC, messages=[MESSAGE], half=message_pb2.Half(producer_group=GROUP)),
    ),
    "ConsumerService/Subscribe": consumer_pb2.SubscribeRequest(
        start=consumer_pb2.SubscribeStart(
            group=GROUP, member_id=MEMBER, subscriptions=[WANTED], positions=[POSITION]
        )
    ),
}


@pytest.fixture(scope="module")
def raft_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, raft_port: int) -> Iterator[SecuredBroker]:
    """It admits all, and is changed by root alone."""
    flags = ["--raft-listen", f"127.0.0.1:{raft_port}", "--store-segment-bytes", "1MiB"]
    flags += ["--store-checkpoint-log-bytes", "256KiB", "--broker-member-expires-ms", "2s"]
    with SecuredBroker(tmp_path_factory.mktemp("fuzz"), *flags, mode="observe") as process:
        yield process


@pytest.fixture(scope="module")
def calls(broker: BrokerProcess) -> Iterator[Calls]:
    with grpc.insecure_channel(broker.address, options=CHANNEL_OPTIONS) as channel:
        found = Calls(channel)
        found.create(TOPIC, 4)
        found.send(TOPIC, messages=[MESSAGE] * 20, queue_id=1)
        yield found


@pytest.fixture(autouse=True)
def unharmed(broker: BrokerProcess, calls: Calls) -> Iterator[None]:
    """After each test the broker serves, has made no mistake, and has not grown."""
    before_bytes = calls("BrokerStatus").rss_bytes
    yield
    with grpc.insecure_channel(broker.address) as fresh:
        serving = Calls(fresh)
        with contextlib.suppress(grpc.RpcError):
            serving("CreateTopic", topic="unharmed", queues=1)
        sent = serving.send("unharmed", b"still here")
        answer = serving("Pull", topic="unharmed", queue_offset=sent.queue_offset)
        assert [one.body for run in answer.runs for one in run.messages] == [b"still here"]
    assert [line["exception"] for line in broker.log() if line["event"] == MISTAKE] == []
    assert "Traceback" not in broker.output(), broker.output()
    assert calls("BrokerStatus").rss_bytes - before_bytes < RSS_GROWTH_BYTES_MAX


def requests(method: str) -> list[bytes]:
    """Random bytes, good requests damaged, and messages with any fields at all."""
    rng = random.Random(method)
    good = GOOD[method].SerializeToString()
    found = [b"", good]
    for number in range(ROUNDS):
        match number % 4:
            case 0:
                found.append(rng.randbytes(rng.choice((1, 3, 20, 2_000))))
            case 1 | 2:
                found.append(mutate(good, rng))
            case _:
                found.append(fill(request_type(method)(), rng, NAMES).SerializeToString())
    return found


def waits(what: str) -> bool:
    """For messages, as long as it is asked to."""
    return "Service/Pull" in what or "Service/Receive" in what


def check(error: Any, what: str) -> None:
    """It has a code, and it is not the broker's fault."""
    if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
        assert waits(what) or "mq-code" in dict(error.trailing_metadata() or ()), what
        return
    refusal = refusal_of(error)
    assert refusal.code != "INTERNAL", f"{what}: {refusal.text}"


def test_every_method_is_fuzzed() -> None:
    assert set(GOOD) == {*UNARY, *STREAMS}


@pytest.mark.parametrize("method", UNARY)
def test_no_request_harms_the_broker(broker: SecuredBroker, calls: Calls, method: str) -> None:
    call = calls.channel.unary_unary(path_of(method))
    sent = requests(method)
    is_root = "SecurityService" in method
    metadata = [("authorization", f"Bearer {broker.root}")] if is_root else []
    for start in range(0, len(sent), AT_ONCE):
        waiting = [
            (data, call.future(data, timeout=TIMEOUT_S if waits(method) else 20, metadata=metadata))
            for data in sent[start : start + AT_ONCE]
        ]
        for data, future in waiting:
            error = future.exception()
            if error is not None:
                check(error, f"{method} with {data!r}")


def run_stream(calls: Calls, method: str, sent: list[bytes]) -> None:
    call = calls.channel.stream_stream(path_of(method))(iter(sent), timeout=20)
    try:
        for _ in call:
            pass
    except grpc.RpcError as error:
        check(error, f"{method} with {sent!r}")


def in_threads(work: Callable[[int], None], count: int) -> None:
    """All of it, by a few threads; the first failure is raised."""
    failures: list[BaseException] = []

    def run(numbers: range) -> None:
        try:
            for number in numbers:
                work(number)
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    threads = [threading.Thread(target=run, args=(range(at, count, 8),)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_no_stream_of_publish_requests_harms_the_broker(calls: Calls) -> None:
    method = "ProducerService/Publish"
    bad = requests(method)
    good = GOOD[method].SerializeToString()

    def work(number: int) -> None:
        rng = random.Random(number)
        run_stream(calls, method, [good, *rng.choices(bad, k=3), good])

    in_threads(work, STREAM_ROUNDS)


def test_no_batch_harms_the_broker(calls: Calls) -> None:
    """Requests that are whole, with batches that are not: each is answered on its own."""
    batch = prepared("fuzzed-batches", messages=[MESSAGE] * 3).SerializeToString()
    rng = random.Random(5)
    sent = []
    for number in range(ROUNDS * 4):
        data = mutate(batch, rng)
        length = len(data)
        head = bytes([0x08, number % 100, 0x7A])
        sent.append(head + bytes([length & 0x7F | 0x80, length >> 7]) + data)
    call = calls.channel.stream_stream(path_of("ProducerService/Publish"))(iter(sent))
    answers = [producer_pb2.PublishResponse.FromString(data) for data in call]
    assert [one.request_id for one in answers] == [number % 100 for number in range(len(sent))]
    codes = {result.code for one in answers for result in one.results}
    assert 60 not in codes
    # What was let in can be read, by generated code.
    for topic in calls("ListTopics").topics:
        for queue_id in range(min(8, topic.info.read_queues)):
            request = consumer_pb2.PullRequest(topic=topic.info.topic, queue_id=queue_id)
            answer = calls.raw("ConsumerService/Pull", request.SerializeToString())
            consumer_pb2.PullResponse.FromString(answer)
            calls("BrowseMessages", topic=topic.info.topic, queue_id=queue_id, messages_max=1_000)


def test_no_stream_of_a_member_harms_the_broker(calls: Calls) -> None:
    method = "ConsumerService/Subscribe"
    bad = requests(method)
    rng = random.Random(9)
    for kind in ("progress", "released", "seek", "alive", "resume"):
        for _ in range(20):
            request = consumer_pb2.SubscribeRequest()
            getattr(request, kind).SetInParent()
            fill(getattr(request, kind), rng, NAMES)
            bad.append(request.SerializeToString())

    def work(number: int) -> None:
        rng = random.Random(number)
        start = consumer_pb2.SubscribeStart(
            group=f"group-{number % 5}", member_id=f"m-{number}", subscriptions=[WANTED]
        )
        first = consumer_pb2.SubscribeRequest(start=start).SerializeToString()
        run_stream(calls, method, [first, *rng.choices(bad, k=4)][number % 2 :])

    in_threads(work, STREAM_ROUNDS)


def test_no_stream_of_transactions_harms_the_broker(calls: Calls) -> None:
    method = "TransactionService/Transact"
    bad = requests(method)
    good = GOOD[method].SerializeToString()
    start = transaction_pb2.TransactStart(producer_group=GROUP, producer_id="p", reads_more=True)
    first = transaction_pb2.TransactRequest(start=start).SerializeToString()

    def work(number: int) -> None:
        rng = random.Random(number)
        run_stream(calls, method, [first, good, *rng.choices(bad, k=4), good][number % 2 :])

    in_threads(work, STREAM_ROUNDS)
    for one in calls("ListTransactions", transactions_max=1_000).transactions:
        end = transaction_pb2.RESOLUTION_COMMIT
        with contextlib.suppress(grpc.RpcError):
            calls("EndTransaction", transaction_id=one.transaction_id, resolution=end)


# -- bytes that are no gRPC ------------------------------------------------------------------------

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def noises(rng: random.Random) -> list[bytes]:
    settings = HTTP2_PREFACE + bytes.fromhex("000000040000000000")
    frames = [settings + rng.randbytes(9) + rng.randbytes(rng.randrange(100)) for _ in range(10)]
    return [
        b"",
        b"\x00" * 64,
        b"\xff" * 4_096,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 100,
        b"GET /" + b"a" * 100_000,
        bytes.fromhex("160301020001000001fc0303") + rng.randbytes(500),  # the start of a TLS hello
        HTTP2_PREFACE,
        settings,
        settings + bytes.fromhex("ffffff0000000000010000"),  # a frame of 16 MiB
        *frames,
        *(rng.randbytes(rng.choice((1, 10, 100, 10_000))) for _ in range(20)),
    ]


# Closed like this, a connection is reset.
ABRUPTLY = struct.pack("ii", 1, 0)


def break_off(port: int, noise: bytes) -> None:
    """Goes away before anything is answered."""
    with socket.create_connection(("127.0.0.1", port)) as sock, contextlib.suppress(OSError):
        sock.sendall(noise)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABRUPTLY)


def talk(port: int, noise: bytes) -> None:
    """Reads all responses."""
    with socket.create_connection(("127.0.0.1", port)) as sock, contextlib.suppress(OSError):
        sock.settimeout(0.05)
        sock.sendall(noise)
        while sock.recv(65_536):
            pass


def test_no_noise_on_any_port_harms_the_broker(broker: BrokerProcess, raft_port: int) -> None:
    rng = random.Random(1)
    client_port = int(broker.address.rpartition(":")[2])
    pairs = [
        (port, noise)
        for port in (client_port, broker.metrics_port, raft_port)
        for noise in noises(rng)
    ]
    in_threads(lambda number: talk(*pairs[number]), len(pairs))
    in_threads(lambda number: break_off(*pairs[number]), len(pairs))
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.metrics_port}/metrics") as response:
        assert b"mq_messages_in_total" in response.read()


def test_silent_connections_disturb_no_client(
    broker: BrokerProcess, calls: Calls, raft_port: int
) -> None:
    client_port = int(broker.address.rpartition(":")[2])
    with contextlib.ExitStack() as stack:
        for port in (client_port, broker.metrics_port, raft_port):
            for _ in range(20):
                sock = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                sock.sendall(HTTP2_PREFACE[:7])
        assert calls("BrokerStatus").is_ready
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.metrics_port}/metrics") as response:
            assert response.status == 200


def test_the_log_survives_a_kill_after_all_this_fuzzing(
    broker: BrokerProcess, calls: Calls
) -> None:
    """The last test: whatever came into the log can be read back."""

    def listed() -> list[tuple[str, int]]:
        topics = calls("ListTopics", include_internal=True).topics
        return [(one.info.topic, one.messages) for one in topics]

    before = listed()
    assert len(before) > 1
    broker.kill()
    broker.start()
    until(lambda: calls("BrokerStatus").is_ready)
    assert listed() == before
