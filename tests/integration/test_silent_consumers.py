"""Consumers that never read what they get cost little memory, and do not slow down others."""

from __future__ import annotations

import contextlib
import time
import urllib.request
from typing import TYPE_CHECKING

import grpc
import pytest

from mq.wire.v1 import consumer_pb2 as pb
from tests.conformance.calls import CHANNEL_OPTIONS, Calls, path_of, until
from tests.support.broker_process import BrokerProcess
from tests.support.silent_consumer import silent_calls, silent_consumer

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC, MESSAGES, BODY = "t", 1_000, bytes(10_000)
SILENT = 60
# They cost 3 MB each when a delivery had 1 MiB from the start.
GROWTH_BYTES_MAX = SILENT * 500_000
# Each has an answer of 3 MiB, unless others are unread.
PULLS = 100
PULLS_ANSWERED = 'mq_rpc_latency_seconds_count{code="OK",method="ConsumerService/Pull"}'
# They cost 600 MiB when each had its 3 MiB.
PULLS_GROWTH_BYTES_MAX = 150 << 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("silent") / "data") as process:
        yield process


@pytest.fixture(scope="module")
def calls(broker: BrokerProcess) -> Iterator[Calls]:
    with grpc.insecure_channel(broker.address, options=CHANNEL_OPTIONS) as channel:
        found = Calls(channel)
        found.create(TOPIC, 1)
        for _ in range(MESSAGES // 100):
            found.send(TOPIC, *[BODY] * 100)
        # A first consumer, so that what every one needs is there.
        assert consumed(found, "first") == MESSAGES
        yield found


def consumed(calls: Calls, group: str) -> int:
    """Messages that a consumer gets which reads and reports; all there are."""
    start = pb.SubscribeStart(
        group=group,
        member_id="m",
        subscriptions=[pb.Subscription(topic=TOPIC)],
        start_position=pb.START_EARLIEST,
    )
    reports = [pb.SubscribeRequest(start=start).SerializeToString()]

    def said() -> Iterator[bytes]:
        deadline_s = time.monotonic() + 30
        while time.monotonic() < deadline_s and not is_over:
            if reports:
                yield reports.pop(0)
            else:
                time.sleep(0.001)

    count, is_over = 0, False
    for data in calls.channel.stream_stream(path_of("ConsumerService/Subscribe"))(said()):
        delivery = pb.SubscribeResponse.FromString(data).delivery
        count += sum(len(run.messages) for run in delivery.runs)
        if delivery.runs:
            position = pb.QueuePosition(
                topic=TOPIC, queue_offset=delivery.next_offset, epoch=delivery.epoch
            )
            progress = pb.SubscribeRequest(progress=pb.Progress(positions=[position]))
            reports.append(progress.SerializeToString())
        if count == MESSAGES:
            is_over = True
    return count


@pytest.mark.parametrize("window_bytes", [65_535, (1 << 31) - 1], ids=["64 KiB", "2 GiB"])
def test_consumers_that_never_read_cost_little_and_others_are_served(
    broker: BrokerProcess, calls: Calls, window_bytes: int
) -> None:
    before_bytes = calls("BrokerStatus").rss_bytes
    groups = {f"silent-{window_bytes}-{number}" for number in range(SILENT)}
    with contextlib.ExitStack() as stack:
        for group in sorted(groups):
            stack.enter_context(silent_consumer(broker.address, TOPIC, group, window_bytes))
        until(lambda: groups <= members(calls), "all of them are members")
        assert consumed(calls, f"healthy-{window_bytes}") == MESSAGES
        grown = calls("BrokerStatus").rss_bytes - before_bytes
        assert grown < GROWTH_BYTES_MAX, f"{SILENT} silent consumers cost {grown >> 20} MiB"


def members(calls: Calls) -> set[str]:
    return {one.group for one in calls("ListGroups").groups if one.members}


def test_answers_that_are_never_read_cost_little_and_others_are_served(
    broker: BrokerProcess, calls: Calls
) -> None:
    before_bytes = calls("BrokerStatus").rss_bytes
    pull = pb.PullRequest(topic=TOPIC)
    answered = metric(broker, PULLS_ANSWERED)
    with silent_calls(broker.address, "ConsumerService/Pull", [pull] * PULLS):
        until(lambda: metric(broker, PULLS_ANSWERED) == answered + PULLS, "all are answered")
        grown = calls("BrokerStatus").rss_bytes - before_bytes
        assert grown < PULLS_GROWTH_BYTES_MAX, f"{PULLS} unread answers cost {grown >> 20} MiB"
        assert metric(broker, "mq_unsent_bytes") > 0
        assert consumed(calls, "healthy-while-pulls") == MESSAGES
    until(lambda: metric(broker, "mq_unsent_bytes") == 0, "answers to a client that left are gone")


@pytest.mark.usefixtures("calls")
def test_messages_received_and_never_read_count_until_the_client_leaves(
    broker: BrokerProcess,
) -> None:
    receives = [
        pb.ReceiveRequest(group=f"r-{number}", topic=TOPIC, start_position=pb.START_EARLIEST)
        for number in range(10)
    ]
    with silent_calls(broker.address, "ConsumerService/Receive", receives):
        until(lambda: metric(broker, "mq_unsent_bytes") >= 9 * len(BODY), "they count")
    until(lambda: metric(broker, "mq_unsent_bytes") == 0, "they count no longer")


def metric(broker: BrokerProcess, name: str) -> float:
    """0: it has no value yet."""
    url = f"http://127.0.0.1:{broker.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    values = [line.split()[1] for line in lines if line.startswith(f"{name} ")]
    return float(values[0]) if values else 0.0
