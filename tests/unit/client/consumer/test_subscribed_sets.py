"""Topics that a consumer waits for: each is warned of once, when it stays away."""

from __future__ import annotations

import logging

import pytest

from mq.client.consumer.subscribed_sets import MissingTopics
from mq.wire.v1.cluster_pb2 import MissingTopic, RouteResponse

ORDERS = MissingTopic(topic="ordrs", similar=["orders", "order"])
ANSWER = RouteResponse(missing=[ORDERS])


@pytest.fixture
def awaited(caplog: pytest.LogCaptureFixture) -> MissingTopics:
    caplog.set_level(logging.WARNING)
    return MissingTopics("g")


def test_a_topic_that_comes_within_a_moment_is_not_warned_of(
    awaited: MissingTopics, caplog: pytest.LogCaptureFixture
) -> None:
    awaited.learn(["ordrs", "paid"], ANSWER, 10.0)
    assert awaited.missing == {"ordrs", "paid"}
    awaited.learn([], RouteResponse(), 10.9)
    assert (awaited.missing, caplog.messages) == (set(), [])


def test_a_topic_that_stays_away_is_warned_of_once_with_what_may_have_been_meant(
    awaited: MissingTopics, caplog: pytest.LogCaptureFixture
) -> None:
    for at_s in (10.0, 10.5, 11.0, 12.0, 500.0):
        awaited.learn(["ordrs"], ANSWER, at_s)
    [text] = caplog.messages
    assert text == (
        "topic ordrs does not exist: group g waits until it is created, "
        "or did you mean orders or order?"
    )


def test_a_topic_that_was_missing_is_known_to_have_been(awaited: MissingTopics) -> None:
    awaited.learn(["ordrs"], ANSWER, 10.0)
    awaited.learn([], RouteResponse(), 11.0)
    assert awaited.missing == set()
    assert [awaited.was_missing(topic) for topic in ("ordrs", "paid")] == [True, False]
