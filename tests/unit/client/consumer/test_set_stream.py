"""How long a consumer bears a silent broker before it asks others who leads."""

from __future__ import annotations

import math

import pytest

from mq.client.consumer.set_stream import CHECK_S_MAX, CHECK_S_MIN, SilenceWatch


async def check() -> None:
    pass


WATCH = SilenceWatch(check, CHECK_S_MIN, CHECK_S_MAX)


def checks_s(watch: SilenceWatch, until_s: float, heartbeat_s: float = 10.0) -> list[float]:
    """When a broker that stays silent is asked about."""
    found, silence_s = [], 0.0
    while (silence_s := silence_s + watch.pause_s(silence_s, heartbeat_s)) <= until_s:
        found.append(silence_s)
    return found


def test_a_silence_that_begins_is_asked_about_at_once_and_often() -> None:
    assert checks_s(WATCH, 1.6) == [0.5, 1.0, 1.5]


def test_a_consumer_that_has_nothing_to_do_asks_seldom() -> None:
    assert 28 <= len(checks_s(WATCH, 60.0)) <= 36
    assert WATCH.pause_s(1_000.0, 10.0) == CHECK_S_MAX


@pytest.mark.parametrize("silence_s", [0.0, 100.0])
def test_no_pause_is_longer_than_the_time_between_two_signs_of_life(silence_s: float) -> None:
    assert WATCH.pause_s(silence_s, 0.3) == 0.3
    # A set of one node: there is no other to ask.
    assert SilenceWatch(check, CHECK_S_MIN, math.inf).pause_s(100.0, 10.0) == 10.0
