"""A producer whose quota is exceeded: it pauses as long as the broker asks, and loses nothing."""

from __future__ import annotations

import asyncio
import itertools

from mq.client.cluster.retry import Throttle
from tests.unit.client.producer.scripted_brokers import cluster
from tests.unit.client.virtual_time import run


def test_nothing_is_sent_during_the_pause_that_an_answer_asks_for() -> None:
    async def scenario() -> None:
        [brokers] = cluster("a")
        brokers.throttle_ms = 400
        async with brokers.producer(timeout_s=3) as producer:
            for number in range(5):
                await producer.send("t", b"%d" % number)
            futures = [await producer.send_async("t", b"x") for _ in range(50)]
            await asyncio.gather(*futures)
        times = brokers.received_s
        pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert len(pauses) >= 5
        assert all(0.4 <= pause < 0.6 for pause in pauses)
        assert len(brokers.bodies()) == 55

    run(scenario())


def test_messages_that_may_go_anywhere_go_to_a_set_without_a_pause() -> None:
    async def scenario() -> None:
        a, b = cluster("a", "b")
        a.throttle_ms = 1_000
        async with a.producer() as producer:
            began_s = asyncio.get_running_loop().time()
            for _ in range(100):
                await producer.send("t", b"x")
            assert asyncio.get_running_loop().time() - began_s < 2
        assert len(b.bodies()) > 90

    run(scenario())


def test_a_pause_lasts_as_long_as_the_longest_answer_asks() -> None:
    async def scenario() -> None:
        throttle, loop = Throttle(), asyncio.get_running_loop()
        await throttle.wait()
        assert not throttle.is_on
        began_s = loop.time()
        assert throttle.asked(500) == 0.5
        assert throttle.asked(0) == 0.0
        throttle.asked(100)
        loop.call_later(0.4, throttle.asked, 300)
        await throttle.wait()
        assert 0.69 < loop.time() - began_s < 0.75

    run(scenario())
