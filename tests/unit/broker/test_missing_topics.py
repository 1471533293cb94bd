"""Topics that do not exist: consumers wait for them, and names like theirs are found."""

from __future__ import annotations

import asyncio

import pytest

from mq.broker import missing_topics as module
from mq.errors import IllegalTopic, NotLeader, TopicNotFound
from tests.support.consensus import Node, on_loop, soon


@on_loop
async def test_a_waiter_for_a_topic_goes_on_when_it_is_created() -> None:
    node = Node()
    missing = node.broker.missing_topics
    waiting = asyncio.ensure_future(missing.until_created("t", 600.0))
    await node.topic("other")
    assert not waiting.done()
    await node.topic("t")
    assert await soon(waiting) is True
    assert await soon(missing.until_created("t", 0.0)) is True


@on_loop
async def test_a_topic_that_does_not_come_in_time_is_not_there() -> None:
    missing = Node().broker.missing_topics
    assert await soon(missing.until_created("t", 0.0)) is False
    assert await soon(missing.until_created("t", 0.01)) is False


@on_loop
async def test_waiters_fail_when_the_leader_steps_down() -> None:
    node = Node()
    waiting = asyncio.ensure_future(node.broker.missing_topics.until_created("t", 600.0))
    await asyncio.sleep(0)
    node.consensus.depose()
    node.broker.on_leadership()
    with pytest.raises(NotLeader):
        await soon(waiting)


@on_loop
async def test_only_what_a_message_may_create_is_awaited() -> None:
    node = Node()
    missing = node.broker.missing_topics
    assert missing.is_awaited("t")
    assert not missing.is_awaited("%RETRY%g")
    with pytest.raises(IllegalTopic):
        missing.is_awaited("no spaces")
    await node.topic("t")
    assert not missing.is_awaited("t")
    assert not Node(auto_create_topics="no").broker.missing_topics.is_awaited("t")


@on_loop
async def test_names_are_compared_a_few_times_a_second_and_anew_when_topics_change() -> None:
    node = Node()
    missing = node.broker.missing_topics
    now_ms = [5_000]
    missing._steady_ms = lambda: now_ms[0]
    await node.topic("orders")
    for number in range(module._GUESSES_A_SECOND):
        assert missing.similar(f"ordrs{number:02}") == ["orders"]
    assert missing.similar("orderz") == []
    # What was found out before is still known.
    assert missing.similar("ordrs01") == ["orders"]
    now_ms[0] += 1_000
    assert missing.similar("orderz") == ["orders"]
    await node.topic("orderz1")
    assert missing.similar("orderz") == ["orderz1", "orders"]


@on_loop
async def test_the_broker_does_not_remember_every_name_that_was_asked_for() -> None:
    missing = Node().broker.missing_topics
    missing._steady_ms = iter(range(0, 10_000_000, 1_000)).__next__
    for number in range(3 * module._KNOWN_MAX):
        missing.similar(f"name-{number}")
    assert len(missing._guesses) <= module._KNOWN_MAX


@on_loop
async def test_only_an_error_about_a_missing_topic_gets_a_guess() -> None:
    node = Node()
    await node.topic("orders")
    explained = node.broker.missing_topics.explained
    with pytest.raises(TopicNotFound) as caught:
        node.machine.state.topics.find("ordrs")
    assert str(explained(caught.value, {"orders"}.__contains__)) == (
        "there is no topic ordrs: create it with `mq topic create ordrs`, or did you mean orders?"
    )
    # Names that a caller may not see are not told.
    assert explained(caught.value, {"other"}.__contains__) is caught.value
    for other in (TopicNotFound("topic ordrs is being deleted"), IllegalTopic("ordrs")):
        assert explained(other, {"orders"}.__contains__) is other
