"""The shop of the tutorial: a day is always the same, and its answer is right."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from mq_spark.pipelines.etl.shop import (
    CLOSES_HOUR,
    CLOSING_MARK_MS,
    OPENS_MS,
    PAY_WITHIN_MINUTES,
    SESSION_GAP_MINUTES,
    Click,
    Day,
    day_of,
    make_day,
)
from mq_spark.pipelines.etl.traffic import _steps

HOUR_MS = 3_600_000
MINUTE_MS = 60_000


@pytest.fixture(scope="module")
def day() -> Day:
    return make_day(3, 400, 7)


def session_count(clicks: Iterable[Click]) -> int:
    """By brute force: pauses that are longer than the gap, user by user."""
    by_user = sorted(clicks, key=lambda click: (click.user, click.at_ms))
    pairs = itertools.pairwise([None, *by_user])
    return sum(
        before is None
        or after is None
        or before.user != after.user
        or after.at_ms - before.at_ms > SESSION_GAP_MINUTES * MINUTE_MS
        for before, after in pairs
    )


def test_a_day_depends_on_its_number_its_users_and_the_seed_alone(day: Day) -> None:
    assert make_day(3, 400, 7) == day
    assert make_day(3, 400, 8).answer != day.answer
    assert make_day(4, 400, 7).answer != day.answer
    assert day.date == "2026-01-07"


def test_the_answer_is_what_the_events_say(day: Day) -> None:
    booked = {order.order_id: order for order in day.orders if order.is_booked}
    paid = [
        booked[payment.order_id]
        for payment in day.payments
        if payment.at_ms - booked[payment.order_id].at_ms <= PAY_WITHIN_MINUTES * MINUTE_MS
    ]
    answer = day.answer
    assert answer.clicks == len(day.clicks)
    assert answer.sessions == session_count(day.clicks)
    assert answer.sessions_with_cart == sum(click.page == "/cart" for click in day.clicks)
    assert answer.sessions_with_checkout == len(day.orders) == answer.orders + answer.rolled_back
    assert answer.orders == len(booked)
    assert (answer.paid, answer.unpaid) == (len(paid), len(booked) - len(paid))
    assert answer.revenue_cents == sum(order.amount_cents for order in paid)


def test_a_day_has_something_of_everything(day: Day) -> None:
    assert day.answer.rolled_back > 0
    # Orders without a payment, and payments that come too late.
    assert day.answer.orders > len(day.payments) > day.answer.paid > 0
    assert len({order.order_id for order in day.orders}) == len(day.orders)


def test_all_events_are_between_opening_and_closing(day: Day) -> None:
    times_ms = [
        at_ms - day.begins_ms
        for events in (day.clicks, day.orders, day.payments)
        for at_ms in (event.at_ms for event in events)
    ]
    assert min(times_ms) >= OPENS_MS
    assert max(times_ms) < CLOSES_HOUR * HOUR_MS
    # The closing mark is of the same day, and later than any window, join and watermark needs.
    assert day_of(day.begins_ms + CLOSING_MARK_MS) == day.number
    assert CLOSING_MARK_MS - max(times_ms) > (PAY_WITHIN_MINUTES + 60) * MINUTE_MS


def test_the_steps_are_all_of_the_day_in_its_order(day: Day) -> None:
    steps = list(_steps(day, 0))
    assert [click for step in steps for click in step.clicks] == day.clicks
    assert [order for step in steps for order in step.orders] == day.orders
    assert [payment for step in steps for payment in step.payments] == day.payments
