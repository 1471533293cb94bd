"""`mq bench`: when a load is over, what the figures are, and how they are printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mq.cli import bench as module
from mq.cli.bench import bench
from mq.cli.bench_load import Load, Measured, percentile
from mq.errors import TopicNotFound
from mq.wire.v1 import admin_pb2 as pb
from mq.wire.v1.cluster_pb2 import BrokerSet, NodeRoute, RouteResponse
from tests.support.commands import FakeAdmin, assert_fits, run, run_json

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(
    ("values", "share", "found"),
    [
        ([], 0.5, 0.0),
        ([7.0], 0.99, 7.0),
        ([4.0, 1.0, 3.0, 2.0], 0.5, 3.0),
        ([float(at) for at in range(100)], 0.99, 99.0),
        ([float(at) for at in range(1000)], 0.99, 990.0),
        ([1.0, 2.0], 1.0, 2.0),
    ],
)
def test_percentiles(values: list[float], share: float, found: float) -> None:
    assert percentile(values, share) == found


@pytest.mark.parametrize(
    ("messages", "seconds", "is_over", "thousandths"),
    [
        (100, None, False, 500),
        (50, None, True, 1000),
        (None, 2.0, False, 500),
        (None, 1.0, True, 1000),
        (100, 1.0, True, 1000),
        (40, 9.0, True, 1000),
    ],
)
def test_a_load_ends_by_messages_or_by_time(
    messages: int | None, seconds: float | None, is_over: bool, thousandths: int
) -> None:
    load = Load("s", "t", 10, messages, seconds)
    assert load.is_over(50, 1.0) is is_over
    assert load.thousandths(50, 1.0) == thousandths


# The commands, around work that is made up.


class Broker(FakeAdmin):
    """One node whose CPU time goes up by a second with each look."""

    def __init__(self, queues: int = 8, messages: int = 0) -> None:
        self._cpu_s = 0.0
        info = pb.TopicInfo(topic="bench", write_queues=queues)
        stats = [pb.QueueStats(start=5, end=5 + messages)]
        nodes = [NodeRoute(node_id="n", address="h:1"), NodeRoute(node_id="down")]
        super().__init__(
            describe_topic=pb.DescribeTopicResponse(info=info, queues=stats),
            create_topic=info,
            delete_group=None,
            route=RouteResponse(broker_sets=[BrokerSet(nodes=nodes)]),
            broker_status=self._status,
        )

    def _status(self, server: str) -> pb.BrokerStatusResponse:
        assert server == "h:1"
        self._cpu_s += 1.0
        return pb.BrokerStatusResponse(cpu_seconds=self._cpu_s)


MEASURED = Measured(2000, 256_000, 0.5, [float(at) for at in range(100)])
WORKS: dict[str, Callable[..., Any]] = {
    "produce": lambda *_: MEASURED,
    "consume": lambda *_: MEASURED,
    "measure_latency": lambda *_: (MEASURED, Measured(1, 1, 1.0, [1.5])),
    "measure_delay": lambda *_: (MEASURED, Measured(2000, 256_000, 1.0)),
}


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The call of each work: its name, and its arguments without the meter."""
    asked: list[tuple[Any, ...]] = []

    def standing_in(name: str) -> Callable[..., Any]:
        def work(*args: Any) -> Any:
            asked.append((name, *args[:-1]))
            return WORKS[name](*args)

        return work

    for name in WORKS:
        monkeypatch.setattr(module, name, standing_in(name))
    return asked


@pytest.mark.usefixtures("loads")
@pytest.mark.parametrize("command", ["produce", "consume", "latency", "delay"])
def test_the_json_has_the_figures(command: str) -> None:
    found = run_json(bench, command, admin=Broker())
    assert found["bench"] == command
    assert found["messages_per_s"] == 4000
    assert found["mb_per_s"] == 0.512
    assert (found["p50_ms"], found["p99_ms"]) == (50.0, 99.0)
    assert found["broker_cpu_s"] == 1.0
    assert found["client_cpu_s"] >= 0.0
    if command == "latency":
        assert (found["send_p50_ms"], found["send_p99_ms"]) == (1.5, 1.5)
    if command == "delay":
        assert (found["produce_messages_per_s"], found["vs_produce"]) == (2000, 2.0)


@pytest.mark.usefixtures("loads")
@pytest.mark.parametrize("command", ["produce", "consume", "latency", "delay"])
def test_the_text_fits_the_terminal(command: str) -> None:
    text = run(bench, command, admin=Broker()).stdout
    assert_fits(text)
    assert "4,000 messages/s, 0.5 MB/s" in text
    assert "p50 50.00 ms, p99 99.00 ms" in text


def test_options_make_the_load(loads: list[tuple[Any, ...]]) -> None:
    flags = ("--topic", "x", "--size", "10", "--ack", "none", "--server", "h:1")
    run(bench, "produce", *flags, "--batch", "7", "--producers", "3", admin=Broker())
    run(bench, "produce", *flags, "--seconds", "2", admin=Broker())
    run(bench, "latency", *flags, "--messages", "5", "--rate", "0", admin=Broker())
    first, second, third = loads
    assert first == ("produce", Load("h:1", "x", 10, 100_000, None, batch=7, ack="none"), 3)
    assert second == ("produce", Load("h:1", "x", 10, None, 2.0, ack="none"), 1)
    assert third[1] == Load("h:1", "x", 10, 5, None, ack="none")
    assert third[3] == 0


def test_a_missing_topic_is_created_with_the_queues() -> None:
    admin = Broker(queues=4)
    admin._answers["describe_topic"] = TopicNotFound("no")
    module._ensure_topic(admin, "bench", 4)  # type: ignore[arg-type]
    assert admin.called("create_topic") == [(("bench",), {"queues": 4})]


def test_a_topic_with_other_queues_is_refused(loads: list[tuple[Any, ...]]) -> None:
    result = run(bench, "produce", "--queues", "3", admin=Broker(queues=8))
    assert result.exit_code == 1
    assert "topic bench has 8 queues, not 3" in result.stderr
    assert loads == []


@pytest.mark.parametrize(("there", "missing"), [(0, 101), (60, 41), (101, None)])
def test_consume_sends_what_is_missing_before(
    there: int, missing: int | None, loads: list[tuple[Any, ...]]
) -> None:
    admin = Broker(messages=there)
    run(bench, "consume", "--messages", "100", admin=admin)
    sent = [load[1].messages for load in loads if load[0] == "produce"]
    assert sent == ([] if missing is None else [missing])
    # The group was made up for this run.
    assert len(admin.called("delete_group")) == 1


def test_the_group_is_forgotten_also_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise TopicNotFound("gone")

    monkeypatch.setattr(module, "measure_latency", fail)
    admin = Broker()
    assert run(bench, "latency", admin=admin).exit_code == 1
    assert len(admin.called("delete_group")) == 1


def test_how_many_are_due_at_one_moment_has_to_be_known(loads: list[tuple[Any, ...]]) -> None:
    assert "give --messages" in run(bench, "delay", "--seconds", "1", admin=Broker()).output
    assert loads == []
