"""When a silent broker is suspected, and how often a stream that breaks is opened again."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from mq.errors import Internal
from mq.wire.v1.cluster_pb2 import RouteResponse
from tests.unit.client.consumer.deliveries import assignment
from tests.unit.client.consumer.scripted_session import ScriptedSession
from tests.unit.client.virtual_time import run


def checks_s(
    silence_s: float, *, heartbeat_s: float = 10.0, servers: tuple[str, ...] = ("one:1", "two:1")
) -> list[float]:
    """After how much silence others are asked which broker leads."""
    found: list[float] = []

    async def story() -> None:
        scripted = ScriptedSession()
        scripted.connection.servers = servers
        call = await scripted.join((0, 0))
        call.send(assignment((0, 0), heartbeat_ms=round(heartbeat_s * 1000)))
        for _ in range(10):
            await asyncio.sleep(0)
        began_s = asyncio.get_running_loop().time()
        brokers = scripted.connection.brokers

        async def asked(*args: Any, **options: Any) -> RouteResponse:
            if "last" in options:
                found.append(round(asyncio.get_running_loop().time() - began_s, 3))
            return await brokers(*args, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scripted.connection, "brokers", asked)
            await asyncio.sleep(silence_s)
        await scripted.session.close()

    run(story())
    return found


def test_a_silence_that_begins_is_asked_about_at_once_and_often() -> None:
    assert checks_s(1.6) == [0.5, 1.0, 1.5]


def test_a_consumer_that_has_nothing_to_do_asks_seldom() -> None:
    assert 28 <= len(checks_s(60.0)) <= 36


def test_no_pause_is_longer_than_the_time_between_two_heartbeats() -> None:
    found = checks_s(5.0, heartbeat_s=0.3)
    assert {round(after - before, 3) for before, after in itertools.pairwise(found)} == {0.3}


def test_a_set_of_one_node_is_checked_at_every_heartbeat() -> None:
    found = checks_s(100.0, servers=("one:1",))
    assert found[-1] - found[-2] == 10.0


@pytest.mark.parametrize(("lasts_s", "is_backing_off"), [(0.0, True), (6.0, False)])
def test_a_stream_that_ends_right_away_is_opened_again_less_and_less_often(
    lasts_s: float, *, is_backing_off: bool
) -> None:
    pauses_s: list[float] = []

    async def story() -> None:
        scripted = ScriptedSession()
        call = await scripted.join((0, 0))
        for _ in range(6):
            await asyncio.sleep(lasts_s)
            call.end(Internal("as ever"))
            began_s = asyncio.get_running_loop().time()
            call = await scripted.connection.next_call()
            pauses_s.append(asyncio.get_running_loop().time() - began_s)
            await call.started()
            call.send(assignment((0, 0)))
            for _ in range(10):
                await asyncio.sleep(0)
        await scripted.session.close()

    run(story())
    if is_backing_off:
        assert 0.25 <= pauses_s[-1] <= 0.5
    assert (max(pauses_s) > 0.1) == is_backing_off
