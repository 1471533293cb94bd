"""One day in the shop of the tutorial, and the results that Spark has to find.

A day is a pure function of its number, the number of users and a seed: nothing here knows a broker,
a clock or Spark. All times are the shop's own; sending a day takes seconds.
"""

from __future__ import annotations

import datetime as dt
import random
from typing import NamedTuple

FIRST_DAY = dt.datetime(2026, 1, 5, tzinfo=dt.UTC)
_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS

OPENS_MS = 9 * _HOUR_MS
# The last click is before this; payments go on for a while.
_LAST_CLICK_MS = 18 * _HOUR_MS
# Nothing happens from this hour on. The queries leave out what is later: the closing marks.
CLOSES_HOUR = 20
# Each topic ends with a mark of this time, so that watermarks pass everything of the day.
CLOSING_MARK_MS = 23 * _HOUR_MS

# Clicks of one user that are further apart belong to two sessions.
SESSION_GAP_MINUTES = 15
# An order that is not paid by then has lapsed.
PAY_WITHIN_MINUTES = 30

_PRODUCTS = 40
_PRICES_CENTS = (490, 990, 1490, 1990, 2490, 4990, 9990)


class Click(NamedTuple):
    at_ms: int
    user: str
    page: str


class Order(NamedTuple):
    at_ms: int
    order_id: str
    user: str
    amount_cents: int
    # False: the card is refused, so the transaction is rolled back and no consumer sees the order.
    is_booked: bool


class Payment(NamedTuple):
    at_ms: int
    order_id: str
    method: str


class Answer(NamedTuple):
    """The results of a correct pipeline."""

    clicks: int
    sessions: int
    sessions_with_cart: int
    sessions_with_checkout: int
    orders: int
    rolled_back: int
    paid: int
    unpaid: int
    revenue_cents: int


class Day(NamedTuple):
    """Everything in the order of time."""

    number: int
    clicks: list[Click]
    orders: list[Order]
    payments: list[Payment]
    answer: Answer

    @property
    def begins_ms(self) -> int:
        return day_begins_ms(self.number)

    @property
    def date(self) -> str:
        """Such as 2026-01-05."""
        return (FIRST_DAY + dt.timedelta(days=self.number - 1)).date().isoformat()


class _Visit(NamedTuple):
    """One session of one user."""

    clicks: list[Click]
    order: Order | None
    payment: Payment | None


def day_begins_ms(number: int) -> int:
    """Midnight of day 1, 2, ..."""
    return int(FIRST_DAY.timestamp() * 1000) + (number - 1) * _DAY_MS


def day_of(at_ms: int) -> int:
    """The number of the day that this moment belongs to."""
    return (at_ms - day_begins_ms(1)) // _DAY_MS + 1


def make_day(number: int, users: int, seed: int) -> Day:
    dice = random.Random(f"{seed}/{number}")  # noqa: S311 - a game, not a secret
    visits = [visit for user in range(users) for visit in _visits(dice, number, f"user-{user}")]
    orders = [visit.order for visit in visits if visit.order]
    payments = [visit.payment for visit in visits if visit.payment]
    return Day(
        number,
        sorted(click for visit in visits for click in visit.clicks),
        sorted(orders),
        sorted(payments),
        _answer(visits),
    )


def _visits(dice: random.Random, day: int, user: str) -> list[_Visit]:
    """One to three sessions, with more than the gap between them."""
    visits: list[_Visit] = []
    # Most come around noon.
    at_ms = OPENS_MS + round(dice.triangular(0, 7, 3) * _HOUR_MS)
    for _ in range(dice.choice((1, 1, 1, 2, 2, 3))):
        if at_ms > _LAST_CLICK_MS - _HOUR_MS:
            break
        order_id = f"day{day}-{user}-{len(visits) + 1}"
        visits.append(_visit(dice, day_begins_ms(day), at_ms, user, order_id))
        last_ms = visits[-1].clicks[-1].at_ms - day_begins_ms(day)
        at_ms = last_ms + round(dice.uniform(2, 8) * SESSION_GAP_MINUTES * _MINUTE_MS)
    return visits


def _visit(dice: random.Random, midnight_ms: int, at_ms: int, user: str, order_id: str) -> _Visit:
    pages = ["/", *(f"/product/{dice.randrange(_PRODUCTS)}" for _ in range(dice.randrange(1, 12)))]
    if dice.random() < 0.4:
        pages.append("/cart")
        if dice.random() < 0.7:
            pages.append("/checkout")
    clicks = []
    for page in pages:
        clicks.append(Click(midnight_ms + at_ms, user, page))
        # Less than the gap, whatever the dice say.
        pause_s = min(1 + dice.expovariate(1 / 45), SESSION_GAP_MINUTES * 60 / 2)
        at_ms = min(at_ms + round(pause_s * 1000), _LAST_CLICK_MS)
    if pages[-1] != "/checkout":
        return _Visit(clicks, None, None)
    order = Order(
        clicks[-1].at_ms + 3_000,
        order_id,
        user,
        sum(dice.choices(_PRICES_CENTS, k=dice.randrange(1, 4))),
        dice.random() < 0.85,
    )
    return _Visit(clicks, order, _payment(dice, order) if order.is_booked else None)


def _payment(dice: random.Random, order: Order) -> Payment | None:
    """Most pay in a few minutes, some never, some when it is too late."""
    luck = dice.random()
    if luck < 0.1:
        return None
    if luck < 0.15:
        minutes = PAY_WITHIN_MINUTES + dice.uniform(1, 20)
    else:
        minutes = min(dice.lognormvariate(0.7, 0.8), PAY_WITHIN_MINUTES - 1)
    method = dice.choice(("card", "card", "transfer", "wallet"))
    return Payment(order.at_ms + round(minutes * _MINUTE_MS), order.order_id, method)


def _answer(visits: list[_Visit]) -> Answer:
    booked = [visit for visit in visits if visit.order and visit.order.is_booked]
    in_time = [
        visit.order.amount_cents
        for visit in booked
        if visit.order
        and visit.payment
        and visit.payment.at_ms - visit.order.at_ms <= PAY_WITHIN_MINUTES * _MINUTE_MS
    ]
    return Answer(
        clicks=sum(len(visit.clicks) for visit in visits),
        sessions=len(visits),
        sessions_with_cart=sum(
            any(click.page == "/cart" for click in visit.clicks) for visit in visits
        ),
        sessions_with_checkout=sum(visit.order is not None for visit in visits),
        orders=len(booked),
        rolled_back=sum(visit.order is not None for visit in visits) - len(booked),
        paid=len(in_time),
        unpaid=len(booked) - len(in_time),
        revenue_cents=sum(in_time),
    )
