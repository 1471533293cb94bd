"""Lists and counts of messages that wait: bounded pages, the order of lanes, what was taken back or
written again.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from mq.admin import schedule
from mq.admin.schedule import ScheduleReader
from mq.store.holding import LANE_MS, LANES
from mq.wire.v1.admin_pb2 import ListScheduledRequest, ScheduledMessage
from tests.support.consensus import Node, on_loop, soon
from tests.unit.broker.delay.test_delays import new_node


async def listed(
    node: Node, topics: set[str] | None = None, **fields: Any
) -> tuple[list[ScheduledMessage], int]:
    """All pages, and how many there were. `topics`: those that may be seen."""
    reader = ScheduleReader(node.broker, "set-0")
    found: list[ScheduledMessage] = []
    page, pages = "", 0
    while True:
        answer = await soon(
            reader.listed(
                ListScheduledRequest(page=page, **fields),
                lambda topic: topics is None or topic in topics,
                lambda _: True,
            )
        )
        found += answer.messages
        page, pages = answer.next_page, pages + 1
        if not page:
            return found, pages


def times(found: list[ScheduledMessage]) -> list[int]:
    return [one.deliver_at_ms for one in found]


@on_loop
async def test_pages_have_every_message_once_in_the_order_of_time() -> None:
    node = await new_node()
    rng = random.Random(7)
    now_ms = node.broker.now_ms()
    sent = [now_ms + rng.randrange(1, (LANES - 200) * LANE_MS) for _ in range(40)]
    # Some are due together, and some stand in one batch.
    sent += sent[:5]
    for at_ms in sent:
        await node.send("t", b"a", b"b", deliver_at_ms=at_ms)
    for size in (1, 3, 7, 1_000):
        found, _ = await listed(node, messages_max=size)
        assert times(found) == sorted([*sent, *sent])
        assert len({one.message_id for one in found}) == len(found)
    begin_ms = sorted(sent)[20]
    found, _ = await listed(node, begin_ms=begin_ms, messages_max=2)
    assert times(found) == [one for one in sorted([*sent, *sent]) if one >= begin_ms]
    assert (await listed(node, begin_ms=now_ms + LANES * LANE_MS))[0] == []


@on_loop
async def test_a_page_looks_at_so_many_batches_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "_READ_BATCHES", 3)
    node = await new_node()
    await node.topic("u")
    at_ms = node.broker.now_ms() + 1_000_000
    for number in range(20):
        await node.send("u" if number % 10 == 9 else "t", b"x", deliver_at_ms=at_ms + number)
    found, pages = await listed(node, topic="u")
    assert times(found) == [at_ms + 9, at_ms + 19]
    assert pages >= 20 // 3
    # What may not be seen takes its part of the budget, and is not shown.
    found, pages = await listed(node, {"u"})
    assert {one.topic for one in found} == {"u"}
    assert pages >= 20 // 3


@on_loop
async def test_messages_that_were_taken_back_are_not_listed_nor_counted() -> None:
    node = await new_node()
    stored = await node.send("t", b"a", b"b", delay_ms=10_000_000)
    before, _ = await listed(node)
    await soon(node.broker.delays.recalls.recall("t", stored.log_offset, stored.deliver_at_ms))
    found, _ = await listed(node)
    assert found == before[1:]
    counts = await soon(ScheduleReader(node.broker, "set-0").counted(0, lambda _: True))
    assert (counts.messages, counts.topics[0].messages) == (1, 1)


@pytest.mark.parametrize("span", [5, 60, 3 * LANE_MS // 1_000, 400 * LANE_MS // 1_000])
@on_loop
async def test_counts_have_few_buckets_whatever_the_span(span: int) -> None:
    node = await new_node()
    at_ms = node.broker.now_ms() + 1_000_000
    for number in range(30):
        await node.send("t", b"x", deliver_at_ms=at_ms + span * 1_000 * number // 29)
    reader = ScheduleReader(node.broker, "set-0")
    for most in (2, 20, 500):
        counts = await soon(reader.counted(most, lambda _: True))
        assert 0 < len(counts.buckets) <= most
        assert sum(one.count for one in counts.buckets) == 30
        begins = [one.begin_ms for one in counts.buckets]
        assert begins[0] <= at_ms
        assert at_ms + span * 1_000 < begins[-1] + counts.bucket_ms + LANE_MS
    hidden = await soon(reader.counted(0, lambda _: False))
    assert not hidden.topics
