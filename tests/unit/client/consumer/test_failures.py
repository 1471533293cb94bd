"""When a failed message is wanted back, and why it is said to have failed."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from mq.client.consumer.prefetch_queue import CachedDelivery, InFlight, PrefetchQueue
from mq.client.consumer.retries import Failure, FailurePolicy, Nack
from mq.client.decode import parse_subscribe_response
from mq.client.messages import QueueRef, ReceivedMessage
from mq.errors import IllegalConfig, IllegalDelay
from tests.unit.client.consumer.deliveries import delivery, response


class _Options:
    def __init__(self, *, is_clustering: bool) -> None:
        self.is_clustering = is_clustering


class _Session:
    """What came of it: what goes back, and what is tried again in place."""

    def __init__(self, *, is_clustering: bool = True) -> None:
        self.options = _Options(is_clustering=is_clustering)
        self.retries = self.buffer = self
        self.back: list[tuple[int | None, str]] = []
        self.in_place: list[float] = []

    def add(self, *failures: Failure) -> None:
        self.back += [(one.delay_ms, one.reason) for one in failures]

    def retry(self, _: InFlight, delay_s: float) -> None:
        self.in_place.append(delay_s)


class _Silent(Exception):
    def __str__(self) -> str:
        raise KeyError("code")


def taken(attempt: int = 1) -> InFlight:
    message = ReceivedMessage("t", 0, 0, "set-0:1", 0, 0, b"", "", (), {}, "", attempt)
    queue = PrefetchQueue(QueueRef("t", 0), 0, 0)
    _, runs = parse_subscribe_response(response(delivery(0, [0])))
    return InFlight(queue, 0, CachedDelivery(runs, 1), 0, 1, [message])


def fail(delay: Any, error: BaseException, *attempts: int, **session: bool) -> _Session:
    scripted = _Session(**session)
    failing = FailurePolicy(scripted, delay)  # type: ignore[arg-type]
    for attempt in attempts:
        failing.failed([taken(attempt)], error)
    return scripted


@pytest.mark.parametrize(
    ("delay", "wanted_ms"),
    [
        (None, [None, None, None]),
        (0, [0, 0, 0]),
        (1.5, [1_500, 3_000, 6_000]),
        ([1, 5], [1_000, 5_000, 5_000]),
        (lambda attempt: attempt * 10, [10_000, 20_000, 30_000]),
        (lambda attempt: 1 / (attempt - 2), [None, None, 1_000]),  # fails, or is negative
        (lambda _: None, [None, None, None]),
    ],
)
def test_delays(delay: Any, wanted_ms: list[int | None]) -> None:
    assert [one for one, _ in fail(delay, ValueError("x"), 1, 2, 3).back] == wanted_ms


def test_a_nack_knows_better() -> None:
    assert fail([7], Nack("why", delay_s=2), 1).back == [(2_000, "why")]
    assert fail([7], Nack("why"), 1).back == [(7_000, "why")]
    assert fail(None, Nack(), 1).back == [(None, "")]


def test_reasons(caplog: pytest.LogCaptureFixture) -> None:
    # What cannot be encoded could not be reported by a test that runs in another process.
    caplog.set_level(logging.CRITICAL, logger="mq.client")
    for error, reason in [
        (ValueError("no"), "ValueError: no"),
        (ValueError(), "ValueError"),
        (SystemExit(3), "SystemExit: 3"),
        (ValueError("\ud800"), "ValueError: ?"),
        (Nack("\ud800"), "?"),
        (_Silent(), "_Silent: it cannot be said"),
        (Nack(ValueError("no")), "no"),  # type: ignore[arg-type]
        (Nack(None), ""),  # type: ignore[arg-type]
        (Nack(_Silent()), "it cannot be said"),  # type: ignore[arg-type]
    ]:
        assert fail(None, error, 1).back == [(None, reason)]
    assert len(fail(None, ValueError("x" * 5_000), 1).back[0][1]) == 1_000


def test_in_place_the_pause_grows() -> None:
    scripted = fail(None, ValueError(), *range(1, 8), is_clustering=False)
    assert scripted.in_place == [1, 2, 4, 8, 16, 30, 30]
    assert fail(0.5, Nack(delay_s=3), 5, is_clustering=False).in_place == [3]
    assert fail([1, 2], ValueError(), 5, is_clustering=False).in_place == [2]
    assert scripted.back == []


@pytest.mark.parametrize("delay", [-1, [], [1, -1], 41 * 86_400, [float("nan")]])
def test_delays_that_make_no_sense(delay: Any) -> None:
    with pytest.raises(IllegalConfig):
        fail(delay, ValueError())


@pytest.mark.parametrize("delay_s", [-1, 40 * 86_400 + 1, float("nan")])
def test_an_illegal_nack_is_refused(delay_s: float) -> None:
    with pytest.raises(IllegalDelay):
        Nack(delay_s=delay_s)
