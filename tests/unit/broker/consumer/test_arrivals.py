"""Notification of new messages, and waiting for them."""

from __future__ import annotations

import asyncio

from mq.broker.consumer.arrivals import Arrivals
from mq.broker.queue import Queue
from tests.support.consensus import on_loop, soon, turns

HERE, THERE = Queue("t", 0), Queue("t", 1)


def test_watchers_are_told_of_their_queue_in_the_order_they_came() -> None:
    arrivals, told = Arrivals(), []
    watchers = {name: lambda queue, name=name: told.append((name, queue)) for name in "abc"}
    for name in "cab":
        arrivals.watch([HERE], watchers[name])
    arrivals.watch([HERE], watchers["c"])  # again: once is enough
    arrivals.arrived(HERE)
    arrivals.arrived(THERE)
    assert told == [("c", HERE), ("a", HERE), ("b", HERE)]
    assert len(arrivals) == 3
    arrivals.unwatch([HERE], watchers["a"])
    arrivals.unwatch([THERE], watchers["a"])
    arrivals.arrived(HERE)
    assert told[3:] == [("c", HERE), ("b", HERE)]
    for name in "cb":
        arrivals.unwatch([HERE], watchers[name])
    assert len(arrivals) == 0
    assert arrivals._watchers == {}, "queues that nobody watches any more take no room"


def test_a_watcher_may_stop_watching() -> None:
    arrivals, told = Arrivals(), []

    def once(queue: Queue) -> None:
        told.append(queue)
        arrivals.unwatch([queue], once)

    arrivals.watch([HERE], once)
    arrivals.arrived(HERE)
    arrivals.arrived(HERE)
    assert told == [HERE]


@on_loop
async def test_a_wait_ends_with_the_first_arrival_and_leaves_nothing_behind() -> None:
    arrivals = Arrivals()
    waiting = [asyncio.create_task(arrivals.wait(HERE, 60)) for _ in range(3)]
    other = asyncio.create_task(arrivals.wait(THERE, 60))
    await turns()
    assert len(arrivals) == 4
    arrivals.arrived(HERE)
    arrivals.arrived(HERE)
    assert await soon(asyncio.gather(*waiting)) == [True] * 3
    assert not other.done()
    other.cancel()
    await turns()
    assert len(arrivals) == 0


@on_loop
async def test_a_wait_in_vain_ends_in_time() -> None:
    arrivals = Arrivals()
    for timeout_s in (-1.0, 0.0, 0.01):
        assert not await soon(arrivals.wait(HERE, timeout_s))
    assert len(arrivals) == 0
