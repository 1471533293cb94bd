"""Where the messages go that a processor makes: to the broker set of what they were made of."""

from __future__ import annotations

import asyncio

import pytest

from mq.client.cluster.connection import Connection
from mq.client.cluster.retry import now_s
from mq.client.cluster.topology import ROUTE_AGE_S_MAX
from mq.client.messages import Message
from mq.client.processor import CannotGoOn, Outputs
from mq.errors import IllegalTopic, PermissionDenied, TopicNotFound
from tests.unit.client.fake_channels import FakeChannels
from tests.unit.client.virtual_time import run


def outputs(*sets: str) -> tuple[Outputs, FakeChannels, Connection]:
    brokers = FakeChannels(lambda *_: None, *sets)
    connection = Connection(f"{sets[0]}:1")
    brokers.replace_those_of(connection)
    return Outputs(connection, 4096), brokers, connection


def test_messages_stay_in_the_set_and_their_queues_are_its_own() -> None:
    async def scenario() -> None:
        made, brokers, connection = outputs("a", "b")
        await connection.brokers()
        brokers.have("t", "a", "b")
        brokers.topics["t"][1].write_queues = 7
        keyed = [("t", Message(b"%d" % at, ordering_key=f"k{at}")) for at in range(50)]
        for name, queues in (("a", 2), ("b", 7)):
            batches = await made.batches(keyed, name, "p", 5, 0)
            assert {batch.queue_id for batch in batches} == set(range(queues))
            assert sorted(batch.sequence for batch in batches) == list(range(5, 5 + queues))
        # Each set was asked for its own part, once.
        asked = [name for name, request in brokers.routes if request.topics]
        assert sorted(asked) == ["a", "b"]

    run(scenario())


def test_a_missing_topic_is_created_if_allowed() -> None:
    async def scenario() -> None:
        made, brokers, connection = outputs("a", "b")
        await connection.brokers()
        with pytest.raises(TopicNotFound, match="create it first"):
            await made.batches([("t", b"x")], "b", "p", 1, 0)
        brokers.creates_topics = True
        assert len(await made.batches([("t", b"x")], "b", "p", 1, 0)) == 1
        assert [part.broker_set for part in brokers.topics["t"]] == ["b"]
        with pytest.raises(IllegalTopic):
            await made.batches([("no topic", b"x")], "b", "p", 1, 0)

    run(scenario())


def test_a_topic_that_only_others_have_is_not_extended_by_itself() -> None:
    async def scenario() -> None:
        made, brokers, connection = outputs("a", "b")
        await connection.brokers()
        brokers.creates_topics = True
        brokers.have("t", "a")
        began_s = now_s()
        with pytest.raises(CannotGoOn) as caught:
            await made.batches([("t", b"x")], "b", "p", 1, 0)
        assert isinstance(caught.value.reason, TopicNotFound)
        assert "no queues in broker set b" in str(caught.value)
        assert "mq topic extend t --set b" in str(caught.value)
        # What an operator has just done is not known everywhere at once.
        assert now_s() - began_s == pytest.approx(1.0)
        assert [part.broker_set for part in brokers.topics["t"]] == ["a"]
        brokers.have("t", "a", "b")
        assert len(await made.batches([("t", b"x")], "b", "p", 1, 0)) == 1

    run(scenario())


def test_a_topic_drained_meanwhile_is_an_error_after_a_refusal() -> None:
    async def scenario() -> None:
        made, brokers, connection = outputs("a")
        await connection.brokers()
        brokers.have("t", "a")
        await made.batches([("t", b"x")], "a", "p", 1, 0)
        brokers.have("t", "a", is_writable=False)
        # It is not asked before each batch ...
        assert await made.batches([("t", b"x")], "a", "p", 1, 0)
        connection.topology.forget("t")
        with pytest.raises(CannotGoOn) as caught:
            await made.batches([("t", b"x")], "a", "p", 1, 0)
        assert isinstance(caught.value.reason, PermissionDenied)

    run(scenario())


def test_a_route_is_asked_for_again_after_a_while() -> None:
    async def scenario() -> None:
        made, brokers, connection = outputs("a")
        await connection.brokers()
        brokers.have("t", "a")
        await made.batches([("t", b"x")], "a", "p", 1, 0)
        brokers.topics["t"][0].write_queues = 1
        await asyncio.sleep(ROUTE_AGE_S_MAX + 1)
        (batch,) = await made.batches([("t", b"x")], "a", "p", 1, 5)
        assert batch.queue_id == 0

    run(scenario())
