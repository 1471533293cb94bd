"""Batches that may be held back, and the form in which they are stored."""

from __future__ import annotations

from typing import Any

import pytest

from mq.broker import held
from mq.config import Config
from mq.errors import IllegalDelay, IllegalGroup, IllegalRequest, MalformedBatch, MqError
from mq.levels import LEVELS_MS
from mq.wire.v1.message_pb2 import Half
from tests.support.consensus import Node, batch, on_loop

NOW_MS = 1_000_000_000_000
DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("fields", "deliver_at_ms"),
    [
        ({"delay_ms": 1}, NOW_MS + 1),
        ({"delay_ms": 40 * DAY_MS}, NOW_MS + 40 * DAY_MS),
        ({"deliver_at_ms": NOW_MS + 1}, NOW_MS + 1),
        ({"deliver_at_ms": NOW_MS + 40 * DAY_MS}, NOW_MS + 40 * DAY_MS),
        ({"deliver_at_ms": NOW_MS}, 0),
        ({"deliver_at_ms": 1}, 0),
    ],
)
def test_a_delay_becomes_a_time(fields: dict[str, int], deliver_at_ms: int) -> None:
    found = held.normalize_held(batch("t", b"x", **fields), lambda: NOW_MS, Config())
    assert (found.deliver_at_ms, found.delay_ms) == (deliver_at_ms, 0)
    assert found.is_held == bool(deliver_at_ms)


@pytest.mark.parametrize(
    "fields",
    [
        {"delay_ms": 40 * DAY_MS + 1},
        {"delay_ms": (1 << 64) - 1},
        {"deliver_at_ms": NOW_MS + 40 * DAY_MS + 1},
        {"deliver_at_ms": (1 << 63) - 1},
        {"deliver_at_ms": -1},
        {"deliver_at_ms": NOW_MS + 5, "delay_ms": 5},
    ],
)
def test_an_illegal_delay_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(IllegalDelay):
        held.normalize_held(batch("t", b"x", **fields), lambda: NOW_MS, Config())


def test_the_levels_are_those_that_users_know() -> None:
    minutes = [*range(1, 11), 20, 30, 60, 120]
    assert (1_000, 5_000, 10_000, 30_000, *(one * 60_000 for one in minutes)) == LEVELS_MS
    assert held.level_ms(1) == 1_000
    assert held.level_ms(18) == 7_200_000
    for level in (0, 19, -1):
        with pytest.raises(IllegalDelay):
            held.level_ms(level)


def test_a_half_message_takes_its_defaults_from_the_configuration() -> None:
    found = held.normalize_held(
        batch("t", b"x", half=Half(producer_group="g")), lambda: NOW_MS, Config()
    )
    half = Half.FromString(found.half)
    assert (half.first_check_ms, half.check_interval_ms, half.checks_max) == (6_000, 30_000, 15)
    wanted = Half(producer_group="g", first_check_ms=1, check_interval_ms=2, checks_max=3)
    found = held.normalize_held(batch("t", b"x", half=wanted), lambda: NOW_MS, Config())
    assert Half.FromString(found.half) == wanted


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"half": Half(producer_group="g"), "delay_ms": 1}, IllegalRequest),
        ({"half": Half(producer_group="%g")}, IllegalGroup),
        ({"half": Half(producer_group="g", checks_max=1_001)}, IllegalRequest),
        ({"half": Half(producer_group="g", first_check_ms=86_400_001)}, IllegalRequest),
        ({"half": Half(producer_group="g", check_interval_ms=86_400_001)}, IllegalRequest),
    ],
)
def test_an_illegal_half_is_refused(fields: dict[str, Any], error: type[MqError]) -> None:
    with pytest.raises(error):
        held.normalize_held(batch("t", b"x", **fields), lambda: NOW_MS, Config())


def test_a_half_that_cannot_be_read_is_malformed() -> None:
    broken = batch("t", b"x", half=Half(producer_group="g"))._replace(half=b"\xff\xff")
    with pytest.raises(MalformedBatch):
        held.normalize_held(broken, lambda: NOW_MS, Config())


@on_loop
async def test_a_refused_delay_changes_nothing() -> None:
    node = Node()
    await node.topic("t")
    applied = node.store.applied_index
    with pytest.raises(IllegalDelay):
        await node.send("t", b"x", delay_ms=41 * DAY_MS, producer_id="p", sequence=1)
    assert node.store.applied_index == applied
    # The number is free: it was not used.
    stored = await node.send("t", b"x", producer_id="p", sequence=1)
    assert (stored.queue_offset, stored.is_duplicate) == (0, False)


@on_loop
async def test_a_held_message_is_not_in_its_topic_and_its_duplicate_is_recognized() -> None:
    node = Node()
    await node.topic("t")
    first = await node.send("t", b"x", delay_ms=5_000, producer_id="p", sequence=1)
    node.now_ms += 1_000
    again = await node.send("t", b"x", delay_ms=5_000, producer_id="p", sequence=1)
    assert node.ends("t") == [0, 0, 0, 0]
    assert first.deliver_at_ms == node.now_ms + 4_000
    assert again == first._replace(is_duplicate=True)
    assert node.machine.state.schedule.messages == 1


@on_loop
async def test_a_half_that_says_nothing_is_refused_and_never_visible() -> None:
    node = Node()
    await node.topic("t")
    with pytest.raises(IllegalGroup):
        await node.send("t", b"x", half=Half())
    assert node.ends("t") == [0, 0, 0, 0]
