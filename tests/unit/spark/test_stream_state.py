"""The state of a stream between triggers, against a scripted cluster."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from pyspark.sql.types import IntegerType, StructField, StructType

from mq.client import QueueRef
from mq_spark.errors import MqSparkError
from mq_spark.options import Position, read_options
from mq_spark.reading import stream_reader
from mq_spark.reading.offsets import StreamOffset
from mq_spark.reading.stream_reader import StreamReader, _Stream

A, B = QueueRef("t", 0, "s"), QueueRef("t", 1, "s")
Queues = dict[QueueRef, int]


class FakeCluster:
    """Queues begin at 0 and end where the next of `ends` says; the last one stays."""

    def __init__(self) -> None:
        self.ends: list[Queues] = []
        self.removed: set[QueueRef] = set()
        self.asked_for_gone: list[set[QueueRef]] = []

    def find(self, *starts: str) -> list[Queues]:
        latest = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        both = {"earliest": dict.fromkeys(latest, 0), "latest": dict(latest)}
        return [both[start] for start in starts]

    find_all = find

    def places(self, position: Position, *, fail: bool) -> Queues:
        assert (position, fail) == ("latest", True)
        return self.find("latest")[0]

    def gone(self, refs: Iterable[QueueRef]) -> set[QueueRef]:
        self.asked_for_gone.append(set(refs))
        return set(refs) & self.removed

    def is_selected(self, ref: QueueRef) -> bool:
        return ref.topic == "t"


class FakeProgress:
    def __init__(self) -> None:
        self.told: list[Queues] = []

    def done(self, queues: Queues, *, wait: bool) -> None:  # noqa: ARG002
        self.told.append(queues)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    made = FakeCluster()
    monkeypatch.setattr(stream_reader, "Cluster", lambda _: made)
    monkeypatch.setattr(stream_reader, "_LOOK_EVERY_S", 0.0)
    return made


@pytest.fixture
def progress(monkeypatch: pytest.MonkeyPatch) -> FakeProgress:
    made = FakeProgress()
    monkeypatch.setattr(stream_reader, "Progress", lambda *_: made)
    return made


def stream(**options: str) -> _Stream:
    return _Stream(read_options({"servers": "a:1", "subscribe": "t", **options}))


def test_a_leader_that_knows_less_for_a_moment_loses_nothing(cluster: FakeCluster) -> None:
    # Ten were read; the old leader, which was cut off at eight, does not know yet that it is none.
    cluster.ends = [{A: 8}] * 5 + [{A: 12}]
    found = stream().next(StreamOffset({A: 10}), None)
    assert found is not None
    assert found.queues == {A: 12}
    assert found.begins == {}
    # The same where the end was asked for before the first batch.
    cluster.ends = [{A: 8}] * 3 + [{A: 12}]
    ending = stream()
    ending.end_here()
    found = ending.next(StreamOffset({A: 10}), None)
    assert found is not None
    assert found.queues == {A: 12}


def test_an_end_that_stays_before_what_was_read_is_a_loss(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_reader, "_BEHIND_END_S", 0.02)
    cluster.ends = [{A: 8}]
    with pytest.raises(MqSparkError, match=r"messages are lost: t s/0 at 10 \(it has 0 to 8\)"):
        stream().next(StreamOffset({A: 10}), None)
    found = stream(failOnDataLoss="false").next(StreamOffset({A: 10}), None)
    assert found is not None
    assert (found.queues, found.begins) == ({A: 8}, {A: 0})


def test_messages_between_the_end_and_the_start_of_a_stream_are_not_lost(
    cluster: FakeCluster,
) -> None:
    # Spark asks a query that is to end (availableNow) for its end first, then where it begins.
    cluster.ends = [{A: 5}, {A: 7, B: 1}, {A: 9, B: 1}]
    ending = stream()
    ending.end_here()
    begin = ending.initial()
    assert begin.queues == {A: 7, B: 1}
    assert ending.next(begin, None) is None


def test_queues_that_no_broker_reports_stay_where_they_are(cluster: FakeCluster) -> None:
    cluster.ends = [{A: 12}]
    found = stream().next(StreamOffset({A: 10, B: 3}), None)
    assert found is not None
    assert (found.queues, found.begins) == ({A: 12, B: 3}, {})


def test_a_missing_queue_is_asked_for_once_until_it_is_back(cluster: FakeCluster) -> None:
    cluster.removed = {B}
    cluster.ends = [{A: 10}]
    start = StreamOffset({A: 10, B: 3})
    reading = stream(failOnDataLoss="false")
    assert [reading.next(start, None) for _ in range(3)] == [None, None, None]
    assert cluster.asked_for_gone == [{B}]
    cluster.ends = [{A: 10, B: 4}]
    found = reading.next(start, None)
    assert found is not None
    assert found.queues == {A: 10, B: 4}
    cluster.ends = [{A: 10}]
    assert reading.next(start, None) is None
    assert cluster.asked_for_gone == [{B}, {B}]


def test_progress_is_committed_without_what_the_broker_does_not_have(
    cluster: FakeCluster, progress: FakeProgress
) -> None:
    other = QueueRef("not-selected-any-more", 0, "s")
    cluster.removed = {B}
    cluster.ends = [{A: 10}]
    reading = stream(failOnDataLoss="false", group="g")
    assert reading.next(StreamOffset({A: 10, B: 3, other: 1}), None) is None
    assert progress.told == [{A: 10}]


def test_columns_that_are_not_those_of_messages_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    schema = StructType([StructField("x", IntegerType())])
    wrong = StreamReader({"servers": "a:1", "subscribe": "t"}, schema)
    with pytest.raises(MqSparkError, match="the columns of format mq are struct<keys:"):
        wrong.getDefaultReadLimit()
