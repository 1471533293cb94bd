"""Sends a day of the shop to the broker: clicks, orders and payments, each to its own topic.

Clicks of a user stay in order (`ordering_key`). An order is a transactional message: it is seen
when the shop has booked it, and never when the card was refused. The day is sent in steps of some
minutes of the shop's time, and a step is stored before the next one begins: so no queue is ahead of
another by more than a step, and no row is late for a watermark that waits longer than that.
"""

from __future__ import annotations

import bisect
import contextlib
import datetime as dt
import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from mq.client import Admin, HalfMessage, Message, Producer, PullConsumer, TransactionProducer
from mq.client.lowlevel import ConnectionOptions
from mq.errors import IllegalRequest, TopicExists, Unreachable
from mq_spark.pipelines.etl.shop import (
    CLOSES_HOUR,
    CLOSING_MARK_MS,
    OPENS_MS,
    Click,
    Day,
    Order,
    Payment,
    day_of,
)

_STEP_MS = 5 * 60_000
_QUEUES = 4
_TRANSACTIONS_AT_ONCE = 32
# Patient: an order whose fate is not known would make the right answer unknown as well.
_TIMEOUT_S = 30.0
# What a query that runs meanwhile may need to read the last step, before the clock jumps to night.
_BEFORE_CLOSING_S = 2.0

Event = TypeVar("Event", Click, Order, Payment)
Show = Callable[[int, int], None]


class Topics(NamedTuple):
    """Those of one shop."""

    clicks: str
    orders: str
    payments: str
    # What Spark finds out.
    sessions: str
    sales: str

    @classmethod
    def of(cls, shop: str) -> Topics:
        return cls(*(f"{shop}-{name}" for name in cls._fields))


def create_topics(connection: ConnectionOptions, topics: Topics) -> None:
    """Those that are not there."""
    with Admin(**connection.shared) as admin:
        for topic in topics:
            with contextlib.suppress(TopicExists):
                is_orders = topic == topics.orders
                admin.create_topic(topic, _QUEUES, "transactional" if is_orders else "normal")


def last_day(connection: ConnectionOptions, topics: Topics) -> int:
    """The number of the last day that was sent; 0 when there is none. IllegalRequest."""
    with PullConsumer(**connection.shared) as consumer:
        ends = consumer.find_offsets(topics.clicks, "latest")
        last = [
            consumer.pull(topic, queue_id, end - 1, broker_set=broker_set)
            for (topic, queue_id, broker_set), end in ends.items()
            if end > 0
        ]
        messages = [message for result in last for message in result.messages]
        return max((_day_of_click(topics.clicks, each.body) for each in messages), default=0)


def _day_of_click(topic: str, body: bytes) -> int:
    try:
        at = dt.datetime.fromisoformat(json.loads(body)["at"])
        return day_of(round(at.timestamp() * 1000))
    except (ValueError, KeyError, TypeError) as error:
        raise IllegalRequest(
            f"topic {topic} has messages that are no clicks of the shop: name another --shop"
        ) from error


def send_day(
    connection: ConnectionOptions, topics: Topics, day: Day, over_s: float, show: Show
) -> None:
    """Everything is stored when this returns. `over_s`: spread over so many seconds; 0: as fast as
    it goes. Unreachable.
    """
    booked: set[str] = set()

    def book(half: HalfMessage, order: Order) -> str:
        """The local transaction of an order. Here a real shop would write to its database."""
        if not order.is_booked:
            return "ROLLBACK"
        booked.add(half.transaction_id)
        return "COMMIT"

    def was_booked(half: HalfMessage) -> str:
        """The broker asks when it has heard nothing: look it up."""
        return "COMMIT" if half.transaction_id in booked else "UNKNOWN"

    with (
        Producer(timeout_s=_TIMEOUT_S, **connection.shared) as producer,
        TransactionProducer(
            producer_group=f"{topics.orders}-service",
            execute=book,
            check=was_booked,
            timeout_s=_TIMEOUT_S,
            **connection.shared,
        ) as transactions,
        ThreadPoolExecutor(_TRANSACTIONS_AT_ONCE) as threads,
    ):

        def send_order(order: Order) -> None:
            result = transactions.send_in_transaction(topics.orders, _order(order), order)
            if result.state == "UNKNOWN":
                raise Unreachable(
                    f"no word about order {order.order_id} in {_TIMEOUT_S:g} s ({result.reason}): "
                    "the expected result is unknown now; begin again with another --shop"
                )

        sent = 0
        for step in _steps(day, over_s):
            futures = [producer.send_async(topics.clicks, _click(one)) for one in step.clicks]
            futures += [
                producer.send_async(topics.payments, _payment(one)) for one in step.payments
            ]
            list(threads.map(send_order, step.orders))
            for future in futures:
                future.result()
            sent += len(step.clicks) + len(step.orders) + len(step.payments)
            show(sent, sent)
        if over_s:
            time.sleep(_BEFORE_CLOSING_S)
        _close(producer, topics, day)


class _Step(NamedTuple):
    clicks: Sequence[Click]
    orders: Sequence[Order]
    payments: Sequence[Payment]


def _steps(day: Day, over_s: float) -> Iterator[_Step]:
    """All of the day; each step when it is due."""
    moments_ms = range(
        day.begins_ms + OPENS_MS, day.begins_ms + CLOSES_HOUR * 3_600_000 + 1, _STEP_MS
    )
    began_s = time.monotonic()
    for number, from_ms in enumerate(moments_ms):
        due_s = began_s + over_s * number / len(moments_ms)
        time.sleep(max(0.0, due_s - time.monotonic()))
        yield _Step(
            _between(day.clicks, from_ms),
            _between(day.orders, from_ms),
            _between(day.payments, from_ms),
        )


def _between(events: list[Event], from_ms: int) -> Sequence[Event]:
    """Those of one step."""
    start = bisect.bisect_left(events, from_ms, key=lambda event: event.at_ms)
    end = bisect.bisect_left(events, from_ms + _STEP_MS, key=lambda event: event.at_ms)
    return events[start:end]


def _close(producer: Producer, topics: Topics, day: Day) -> None:
    """A last message in each topic, hours later: watermarks follow it, and so every session and
    every order of the day is seen to be over.
    """
    at_ms = day.begins_ms + CLOSING_MARK_MS
    producer.send(topics.clicks, _json({"user": "nobody", "page": "closed"}, at_ms))
    producer.send(topics.orders, _json({"order_id": "closed"}, at_ms))
    producer.send(topics.payments, _json({"order_id": "closed"}, at_ms))


def _click(click: Click) -> Message:
    body = _json({"user": click.user, "page": click.page}, click.at_ms)
    return Message(body, ordering_key=click.user)


def _order(order: Order) -> Message:
    fields = {"order_id": order.order_id, "user": order.user, "amount_cents": order.amount_cents}
    return Message(_json(fields, order.at_ms), keys=[order.order_id])


def _payment(payment: Payment) -> Message:
    fields = {"order_id": payment.order_id, "method": payment.method}
    return Message(_json(fields, payment.at_ms), keys=[payment.order_id], tag=payment.method)


def _json(fields: dict[str, Any], at_ms: int) -> bytes:
    at = dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC)
    return json.dumps({**fields, "at": at.isoformat(timespec="milliseconds")}).encode()
