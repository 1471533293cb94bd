"""A request with too many elements is refused before it costs anything; one with as many as are
allowed does not keep the broker from answering others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest

from mq.rpc.limits import LIMITS
from mq.wire.v1 import producer_pb2, status_pb2, transaction_pb2
from tests.conformance.calls import CHANNEL_OPTIONS, METHODS, STREAMS, Calls, path_of, refusal_of
from tests.support.answer_gaps import AnswerGaps
from tests.support.broker_process import BrokerProcess
from tests.support.repeated_fields import RepeatedField, repeated_fields

if TYPE_CHECKING:
    from collections.abc import Iterator

# Just below what gRPC lets through.
FLOOD_BYTES = 8 << 20
# A stall that a loaded machine does not make by itself; of the floods some took minutes.
STALL_S = 1.0
# What is left of the largest request in buffers that are used again; of the floods some took 10 GB.
GROWTH_BYTES_MAX = 300 << 20
HALF = 3
FLOODS = [
    (method, place)
    for method, descriptor in METHODS.items()
    for place in repeated_fields(descriptor.input_type)
]


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
