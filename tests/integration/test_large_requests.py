"""A request with too many elements is refused before it costs anything; one with as many as are
allowed does not keep the broker from answering others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest

from mq.rpc.limits import LIMITS
from mq.wire.v1 import admin_pb2 as admin
from mq.wire.v1 import cluster_pb2 as cluster
from mq.wire.v1 import consumer_pb2 as consumer
from mq.wire.v1 import message_pb2, producer_pb2, status_pb2, transaction_pb2
from tests.conformance.calls import (
    CHANNEL_OPTIONS,
    METHODS,
    STREAMS,
    Calls,
    path_of,
    prepared,
    publish_request,
    refusal_of,
)
from tests.integration.test_rpc_fuzz import GOOD
from tests.support.answer_gaps import AnswerGaps
from tests.support.broker_process import BrokerProcess
from tests.support.repeated_fields import RepeatedField, repeated_fields

if TYPE_CHECKING:
    from collections.abc import Iterator

# Just below what gRPC lets through.
FLOOD_BYTES = 8 << 20
# A stall that a loaded machine does not make by itself; of the floods some took minutes, and the
# largest Subscribe 42 s.
STALL_S = 5.0
# What is left of the largest request in buffers that are used again; of the floods some took 10 GB.
GROWTH_BYTES_MAX = 300 << 20
HALF = 3
FLOODS = [
    (method, place)
    for method, descriptor in METHODS.items()
    for place in repeated_fields(descriptor.input_type)
]

# As many queues as one request can name.
WIDE, QUEUES = "wide", 20_000
AT_MS = 1_700_000_000_000


def positions(field: str) -> list[consumer.QueuePosition]:
    return [consumer.QueuePosition(topic=WIDE, queue_id=at) for at in range(LIMITS[field])]


def queues(field: str) -> list[consumer.QueueId]:
    return [consumer.QueueId(topic=WIDE, queue_id=at) for at in range(LIMITS[field])]


def handles(field: str) -> list[consumer.Handle]:
    return [consumer.Handle(lease=b"12345678", queue_offset=at) for at in range(LIMITS[field])]


def messages() -> list[message_pb2.Message]:
    """As many as the broker opens at once, with as many keys and properties as that allows."""
    properties = dict.fromkeys("abcde", "value")
    return [
        message_pb2.Message(
            body=b"body", tag=f"t{at}", keys=[f"a{at}", f"b{at}"], properties=properties
        )
        for at in range(LIMITS["SendRequest.messages"])
    ]


def atoms() -> list[message_pb2.Batch]:
    return [
        prepared(WIDE, b"x", queue_id=at, producer_id="atoms", sequence=at + 1)
        for at in range(LIMITS["AtomicRequest.batches"])
    ]


def published() -> list[producer_pb2.PublishRequest]:
    small = [prepared(WIDE, b"x", queue_id=at) for at in range(LIMITS["PublishRequest.batches"])]
    plain = message_pb2.Batch(topic=WIDE, messages=messages())
    return [publish_request(1, *small), publish_request(2, *[plain] * 5)]


def member() -> list[consumer.SubscribeRequest]:
    start = consumer.SubscribeStart(
        group="stream",
        member_id="m",
        subscriptions=[consumer.Subscription(topic=WIDE)],
        positions=positions("SubscribeStart.positions"),
    )
    request = consumer.SubscribeRequest
    return [
        request(start=start),
        request(progress=consumer.Progress(positions=positions("Progress.positions"))),
        request(seek=consumer.Seek(positions=positions("Seek.positions"))),
        request(resume=consumer.Resume(positions=positions("Resume.positions"))),
        request(released=consumer.Released(queues=queues("Released.queues"))),
    ]


def transacted() -> list[transaction_pb2.TransactRequest]:
    request, end = transaction_pb2.TransactRequest, transaction_pb2.EndTransactionRequest
    ends = [
        request(
            request_id=at,
            end=end(transaction_id=f"set-0:{at}", resolution=transaction_pb2.RESOLUTION_COMMIT),
        )
        for at in range(LIMITS["TransactRequest.more"])
    ]
    start = transaction_pb2.TransactStart(producer_group="g", producer_id="p", reads_more=True)
    return [request(start=start), request(more=ends)]


def sets(count: int) -> list[cluster.PeerSet]:
    addresses = [f"127.0.0.1:{at + 1}" for at in range(32)]
    return [cluster.PeerSet(name=f"other-{at}", addresses=addresses) for at in range(count)]


def of_consumers() -> dict[str, Any]:
    return {
        "ConsumerService/CommitOffsets": consumer.CommitOffsetsRequest(
            group="committed", positions=positions("CommitOffsetsRequest.positions")
        ),
        "ConsumerService/QueryOffsets": consumer.QueryOffsetsRequest(
            group="committed", queues=queues("QueryOffsetsRequest.queues")
        ),
        "ConsumerService/FindOffsets": consumer.FindOffsetsRequest(
            topic=WIDE, kind=consumer.OFFSET_AT_TIME, at_ms=AT_MS
        ),
        "ConsumerService/Join": consumer.JoinRequest(
            group="joined",
            member_id="m",
            subscriptions=[consumer.Subscription(topic=WIDE)],
            owned=queues("JoinRequest.owned"),
        ),
        "ConsumerService/Heartbeat": consumer.HeartbeatRequest(
            group="joined", member_id="m", owned=queues("HeartbeatRequest.owned")
        ),
        "ConsumerService/Leave": consumer.LeaveRequest(group="joined", member_id="m"),
        "ConsumerService/Subscribe": member(),
        "ConsumerService/Ack": consumer.AckRequest(
            group="received", handles=handles("AckRequest.handles")
        ),
        "ConsumerService/Nack": consumer.NackRequest(
            group="received", handles=handles("NackRequest.handles")
        ),
        "ConsumerService/ChangeInvisible": consumer.ChangeInvisibleRequest(
            group="received",
            handles=handles("ChangeInvisibleRequest.handles"),
            invisible_ms=20_000,
        ),
        "ConsumerService/Retry": consumer.RetryRequest(
            group="committed",
            member_id="m",
            sequence=1,
            messages=[
                consumer.FailedMessage(topic=WIDE, queue_id=at, reason="x" * 1_000)
                for at in range(LIMITS["RetryRequest.messages"])
            ],
        ),
    }


def largest() -> dict[str, Any]:
    """The largest legal request of each method, of streams all requests of one."""
    found: dict[str, Any] = {
        "ProducerService/Send": producer_pb2.SendRequest(topic=WIDE, messages=messages()),
        "ProducerService/Publish": published(),
        "ProducerService/SendAtomically": producer_pb2.AtomicRequest(
            batches=atoms(),
            group="committed",
            positions=positions("AtomicRequest.positions"),
            starts=[
                producer_pb2.WorkStart(topic=WIDE, queue_id=at)
                for at in range(LIMITS["AtomicRequest.starts"])
            ],
        ),
        **of_consumers(),
        "TransactionService/Transact": transacted(),
        "ClusterService/Route": cluster.RouteRequest(
            topics=[f"t{at}" for at in range(LIMITS["RouteRequest.topics"])]
        ),
        "AdminService/DescribeTopic": admin.DescribeTopicRequest(topic=WIDE),
        "AdminService/DescribeGroup": admin.DescribeGroupRequest(group="committed"),
        "AdminService/ListGroups": admin.ListGroupsRequest(),
        "AdminService/ResetOffsets": admin.ResetOffsetsRequest(
            group="committed", topic=WIDE, kind=consumer.OFFSET_AT_TIME, at_ms=AT_MS
        ),
        "AdminService/ResendDeadLetters": admin.ResendDeadLettersRequest(
            group="committed", queue_offsets=range(LIMITS["ResendDeadLettersRequest.queue_offsets"])
        ),
    }
    # The others have no repeated fields, or come last because they leave many sets behind.
    found |= {method: good for method, good in GOOD.items() if method not in found}
    found["ClusterService/Greet"] = cluster.GreetRequest(
        cluster="mq", sender=sets(1)[0], others=sets(LIMITS["GreetRequest.others"])
    )
    return found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("large") / "data") as process:
        yield process


@pytest.fixture(scope="module")
def calls(broker: BrokerProcess) -> Iterator[Calls]:
    with grpc.insecure_channel(broker.address, options=CHANNEL_OPTIONS) as channel:
        yield Calls(channel)


def refusal(calls: Calls, method: str, place: RepeatedField) -> str:
    """Code and text of it."""
    width = len(place.filled(1_001)) - len(place.filled(1))
    data = place.filled(1_000 * FLOOD_BYTES // width)
    try:
        if method not in STREAMS:
            calls.raw(method, data)
            return ""
        requests = [data]
        if method.endswith("Transact") and place.path[:1] == (HALF,):
            start = transaction_pb2.TransactStart(producer_group="g", producer_id="p")
            requests.insert(0, transaction_pb2.TransactRequest(start=start).SerializeToString())
        *_, last = calls.channel.stream_stream(path_of(method))(iter(requests), timeout=60)
    except grpc.RpcError as error:
        return " ".join(refusal_of(error)[:2])
    answer: Any = (
        producer_pb2.PublishResponse.FromString(last).results[0]
        if method.endswith("Publish")
        else transaction_pb2.TransactResponse.FromString(last).failed
    )
    return f"{status_pb2.Code.Name(answer.code)} {answer.text}"


def test_floods_of_empty_elements_are_refused_and_cost_nothing(
    broker: BrokerProcess, calls: Calls
) -> None:
    before_bytes = calls("BrokerStatus").rss_bytes
    with AnswerGaps(broker.address) as gaps:
        for method, place in FLOODS:
            said = refusal(calls, method, place)
            gap_s = gaps.reset()
            what = f"{method}, {place.name}: {said}, nothing answered for {gap_s:.2f} s"
            assert said, what
            # A column is no object for each element; what is wrong with it first is said.
            if not place.name.startswith("Batch.") or place.field.name == "messages":
                assert said.startswith(f"ILLEGAL_REQUEST {place.name} has at least "), what
                assert f"at most {LIMITS[place.name]} " in said, what
            assert gap_s < STALL_S, what
            grown = calls("BrokerStatus").rss_bytes - before_bytes
            assert grown < GROWTH_BYTES_MAX, f"{grown >> 20} MiB more by {what}"


def call(calls: Calls, method: str, request: Any) -> str:
    """The outcome; most requests are refused in the end."""
    try:
        if method in STREAMS:
            requests = request if isinstance(request, list) else [request]
            data = iter([one.SerializeToString() for one in requests])
            answers = list(calls.channel.stream_stream(path_of(method))(data, timeout=60))
            return f"{len(answers)} answers"
        calls.raw(method, request.SerializeToString())
    except grpc.RpcError as error:
        return refusal_of(error).text
    return "answered"


def test_the_largest_request_of_each_method_leaves_turns_for_others(
    broker: BrokerProcess, calls: Calls
) -> None:
    requests = largest()
    assert set(requests) == set(METHODS)
    calls.create(WIDE, QUEUES)
    with AnswerGaps(broker.address) as gaps:
        for method, request in requests.items():
            said = call(calls, method, request)
            gap_s = gaps.reset()
            assert gap_s < STALL_S, f"{method}: {said}, nothing answered for {gap_s:.2f} s"
            limited = [one for one in LIMITS if one in said]
            assert not limited, f"{method}: {said}"
