"""The way of a task through a range, over whatever goes wrong; brokers are a script."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import pytest

from mq.client import QueueRef
from mq.client.lowlevel import Page, QueueScanner
from mq.errors import (
    MqError,
    NotLeader,
    PermissionDenied,
    QueueNotFound,
    TopicNotFound,
    Unreachable,
)
from mq.wire.v1 import consumer_pb2 as wire
from mq_spark.errors import MqSparkError
from mq_spark.options import read_options
from mq_spark.reading import ranges
from mq_spark.reading.offsets import QueueRange
from mq_spark.reading.ranges import _pages

WANTED = QueueRange(QueueRef("t", 3, "s"), 10, 40)


def page(next_offset: int, status: int = wire.PULL_FOUND, start: int = 0, end: int = 0) -> Page:
    return Page(b"", array("q"), status, next_offset, start, end, "")


class Script(QueueScanner):
    """The outcome of each scan: pages, and an error in the end or none."""

    def __init__(self, *scans: list[Page | MqError]) -> None:
        self._scans = list(scans)
        self.places: list[int] = []

    def scan(self, ref: QueueRef, start: int, end: int, filter: object = None) -> Iterator[Page]:  # noqa: A002
        assert (ref, end, filter) == (WANTED.ref, WANTED.end, "x")
        self.places.append(start)
        for one in self._scans.pop(0) if len(self._scans) > 1 else self._scans[0]:
            if isinstance(one, MqError):
                raise one
            yield one


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "_PAUSE_S", 0.0)


def read(script: Script, *, fail: bool = True) -> list[int]:
    """The end of each page."""
    given = {"servers": "a:1", "subscribe": "t", "tags": "x", "failOnDataLoss": str(fail)}
    return [one.next_offset for one in _pages(script, WANTED, read_options(given))]


def test_without_a_leader_or_an_answer_a_task_waits_and_goes_on_where_it_was() -> None:
    script = Script(
        [page(20), Unreachable("broken off")],
        [NotLeader(None, None)],
        [NotLeader(None, None)],
        # A filter may take it beyond the end.
        [page(30), page(45)],
    )
    assert read(script) == [20, 30, 45]
    assert script.places == [10, 20, 20, 20]


def test_a_task_is_patient_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "_PATIENCE_S", 0.02)
    with pytest.raises(MqSparkError, match="reading t from 20 on failed: nobody"):
        read(Script([page(20), Unreachable("nobody")], [Unreachable("nobody")]))


def test_a_permanent_error_is_raised_at_once() -> None:
    script = Script([PermissionDenied("t is not to be read")])
    with pytest.raises(MqSparkError, match="reading t from 10 on failed: t is not to be read"):
        read(script)
    assert script.places == [10]


def test_messages_dropped_while_reading_are_lost_and_the_rest_is_read() -> None:
    def dropped(start: int) -> Script:
        gone = page(start, wire.PULL_TOO_SMALL, start, 60)
        return Script([page(20), gone], [page(40)])

    with pytest.raises(MqSparkError, match=r"messages are lost: t s/3 at 20 \(it has 30 to 60\)"):
        read(dropped(30))
    script = dropped(30)
    assert read(script, fail=False) == [20, 40]
    assert script.places == [10, 30]
    # All of it.
    script = dropped(50)
    assert read(script, fail=False) == [20]
    assert script.places == [10]


def test_messages_behind_the_end_are_lost() -> None:
    def short() -> Script:
        return Script([page(20), page(20, wire.PULL_TOO_LARGE, 0, 15)])

    with pytest.raises(MqSparkError, match=r"messages are lost: t s/3 at 20 \(it has 0 to 15\)"):
        read(short())
    assert read(short(), fail=False) == [20]


@pytest.mark.parametrize("gone", [TopicNotFound("t"), QueueNotFound("3")])
def test_a_queue_that_is_gone_is_lost(gone: MqError) -> None:
    with pytest.raises(MqSparkError, match=r"messages are lost: t s/3 at 20 \(the queue is gone\)"):
        read(Script([page(20), gone]))
    assert read(Script([page(20), gone]), fail=False) == [20]
