"""Which broker sets a producer avoids, and for how long."""

from __future__ import annotations

from mq.client.cluster.connection import SLOW_S, Avoidance

FAST_S = 0.002


def test_a_set_that_is_much_slower_than_another_is_avoided_for_a_while() -> None:
    avoidance = Avoidance()
    avoidance.answered("a", FAST_S, 10.0)
    avoidance.answered("b", SLOW_S + 0.1, 10.0)
    assert avoidance.is_avoided("b", 10.9)
    assert not avoidance.is_avoided("b", 11.0)
    assert not avoidance.is_avoided("a", 10.0)


def test_each_penalty_in_a_row_is_longer_and_a_good_answer_ends_it() -> None:
    avoidance = Avoidance()
    avoidance.answered("a", FAST_S, 0.0)
    now_s, penalties_s = 0.0, []
    for _ in range(8):
        avoidance.answered("b", 2.0, now_s)
        began_s = now_s
        while avoidance.is_avoided("b", now_s):
            now_s += 0.5
        penalties_s.append(now_s - began_s)
    assert penalties_s == [1, 2, 4, 8, 16, 30, 30, 30]
    avoidance.answered("b", 2.0, now_s)
    avoidance.answered("b", FAST_S, now_s)
    assert not avoidance.is_avoided("b", now_s)
    avoidance.answered("b", 2.0, now_s)
    assert not avoidance.is_avoided("b", now_s + 1), "it starts from the shortest one"


def test_answers_that_were_under_way_together_count_once() -> None:
    avoidance = Avoidance()
    for _ in range(10):
        avoidance.refused("a", 5.0)
    assert not avoidance.is_avoided("a", 6.0)


def test_when_all_are_slow_none_is_avoided() -> None:
    avoidance = Avoidance()
    for now_s in range(10):
        for name in ("a", "b"):
            avoidance.answered(name, 2.0, now_s)
            assert not avoidance.is_avoided(name, now_s)
    alone = Avoidance()
    alone.answered("a", 60.0, 0.0)
    assert not alone.is_avoided("a", 0.0)


def test_a_set_that_asks_to_wait_is_avoided_for_that_time() -> None:
    avoidance = Avoidance()
    avoidance.is_busy("a", 1.0, 0.3)
    avoidance.is_busy("a", 1.0, 0.1)
    avoidance.answered("a", FAST_S, 1.1)
    assert avoidance.is_avoided("a", 1.29)
    assert not avoidance.is_avoided("a", 1.31)
    avoidance.is_busy("a", 2.0, 0.0)
    assert avoidance.is_avoided("a", 2.04), "without a pause two such sets would play ball"
