"""Transactions on a leader: ended once, asked about, given up, whatever happens in between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from mq.broker.state.dedup import StoredAt
from mq.broker.transaction import transacting
from mq.errors import (
    FlowControl,
    GroupNotFound,
    MessageTooLarge,
    MqError,
    TopicNotFound,
    TransactionNotFound,
)
from mq.names import GIVE_UP_TOPIC
from mq.store.format import Kind
from mq.wire.v1.message_pb2 import Message
from tests.support.consensus import batch, eventually, on_loop, soon, turns
from tests.unit.broker.transaction.transaction_scene import (
    begin,
    bodies,
    commit,
    half,
    messages,
    new_node,
    open_ones,
    pass_time,
    producer,
    questions,
    roll_back,
)

if TYPE_CHECKING:
    pass


# -- ends -----------------------------------------------------------------------------------------


@on_loop
async def test_a_commit_puts_the_message_on_its_topic_once_as_it_was_sent() -> None:
    node = await new_node()
    sent = Message(body=b"order", tag="new", keys=["k1", "k2"], properties={"a": "1"})
    one = await begin(node, messages=[sent], queue_id=2, producer_id="p", sequence=1)
    assert messages(node, "t", 2) == []
    assert node.ends("t") == [0, 0, 0, 0]
    stored = await commit(node, one)
    assert messages(node, "t", 2) == [sent]
    assert (stored.queue_id, stored.queue_offset) == (2, 0)
    queue = node.store.queues.get("t", 2)
    assert queue is not None
    assert int(queue.read(0, 1)["tag_hash"][0]) == int(batch("t", messages=[sent]).tag_hashes[0])
    for key in ("k1", "k2"):
        assert len(node.store.lookup.by_key("t", key, 0, 1 << 60)) == 1
    assert await commit(node, one) == stored  # asked again, done once
    assert messages(node, "t", 2) == [sent]
    assert open_ones(node) == []


@on_loop
async def test_the_end_and_the_messages_are_one_entry() -> None:
    node = await new_node()
    one = await begin(node)
    before = len(node.consensus.proposed)
    await commit(node, one)
    ((kind, written),) = node.consensus.proposed[before:]
    assert kind == Kind.MESSAGES
    assert list(written.command.change_transactions.committed) == [one]  # type: ignore[attr-defined]


@on_loop
async def test_a_rollback_leaves_nothing() -> None:
    node = await new_node()
    one = await begin(node, b"a", b"b")
    assert node.machine.state.transactions.messages == 2
    assert await roll_back(node, one) is None
    assert await roll_back(node, one) is None
    assert node.ends("t") == [0, 0, 0, 0]
    with pytest.raises(TransactionNotFound, match="was rolled back"):
        await commit(node, one)
    assert node.ends("t") == [0, 0, 0, 0]
    assert node.machine.state.transactions.messages == 0


@on_loop
async def test_many_ends_at_once_are_few_entries_and_each_ends_once() -> None:
    node = await new_node()
    ids = [await begin(node, b"%d" % at) for at in range(50)]
    before = len(node.consensus.proposed)
    # Every producer asks twice.
    stored = await asyncio.gather(*(commit(node, one) for one in ids * 2))
    assert len(node.consensus.proposed) - before <= 3
    assert stored[:50] == stored[50:]
    assert [one.queue_offset for one in stored[:50]] == list(range(50))
    assert bodies(node) == [b"%d" % at for at in range(50)]


@on_loop
async def test_large_commits_do_not_share_an_entry_beyond_its_bound() -> None:
    node = await new_node()
    ids = [await begin(node, b"%d" % at * 400_000) for at in range(5)]
    before = len(node.consensus.proposed)
    stored = await asyncio.gather(*(commit(node, one) for one in ids))
    written: list[Any] = [each for _, each in node.consensus.proposed[before:]]
    sizes = [sum(len(one.data) for one in each.batches) for each in written]
    assert len(sizes) == 3
    assert max(sizes) <= 1 << 20
    assert [one.queue_offset for one in stored] == list(range(5))


@on_loop
async def test_a_race_of_commit_and_rollback_has_one_winner() -> None:
    node = await new_node()
    one = await begin(node)
    ends: Any = await asyncio.gather(
        commit(node, one), roll_back(node, one), return_exceptions=True
    )
    assert isinstance(ends[0], StoredAt)
    assert isinstance(ends[1], TransactionNotFound)
    assert bodies(node) == [b"order"]


@on_loop
async def test_a_deleted_topic_refuses_the_commit_and_not_the_rollback() -> None:
    node = await new_node()
    one, other = await begin(node), await begin(node)
    await node.broker.catalog.delete("t")
    for transaction_id in (one, other):
        with pytest.raises(TopicNotFound):
            await commit(node, transaction_id)
    assert len(open_ones(node)) == 2
    await roll_back(node, one)
    assert [each.id for each in open_ones(node)] == [other]


@on_loop
async def test_a_new_topic_of_the_same_name_gets_nothing_of_the_old_one() -> None:
    node = await new_node()
    transaction_id = await begin(node)
    await node.broker.catalog.delete("t")
    node.now_ms += 1
    await node.topic("t")
    with pytest.raises(TopicNotFound, match="deleted"):
        await commit(node, transaction_id)
    assert (bodies(node), len(open_ones(node))) == ([], 1)
    # What is begun on the new one is its own, also when the topic is altered meanwhile.
    other = await begin(node)
    node.now_ms += 1
    await node.broker.catalog.alter("t", write_queues=8, read_queues=8)
    await commit(node, other)
    assert bodies(node) == [b"order"]
    await roll_back(node, transaction_id)
    assert open_ones(node) == []


@on_loop
async def test_a_commit_while_the_topic_is_deleted_does_not_bring_it_back() -> None:
    node = await new_node()
    one = await begin(node)
    node.consensus.is_held = True
    deleting = asyncio.ensure_future(node.broker.catalog.delete("t"))
    await turns()
    with pytest.raises(TopicNotFound):
        await commit(node, one)
    node.consensus.commit()
    await soon(deleting)
    assert len(open_ones(node)) == 1


@on_loop
async def test_too_many_open_transactions_and_too_large_ones_are_refused() -> None:
    node = await new_node()
    one = await begin(node, producer_id="p", sequence=1)
    transactions = node.machine.state.transactions
    (sample,) = transactions.open.values()
    for at in range(transacting.OPEN_MAX):
        transactions.open[-at] = sample
    with pytest.raises(FlowControl, match="transactions are open"):
        await begin(node)
    # One that came before is not refused, it is known.
    assert await begin(node, producer_id="p", sequence=1) == one
    await node.send("t", b"plain")
    for at in range(transacting.OPEN_MAX):
        del transactions.open[-at]
    entry_bytes_max = node.settings.config.store.entry_bytes_max
    large = b"x" * (entry_bytes_max // 2)
    with pytest.raises(MessageTooLarge):
        await begin(node, large, large[:-200])


# -- questions ------------------------------------------------------------------------------------


@on_loop
async def test_a_producer_of_the_group_is_asked_first_after_6_s_then_every_30() -> None:
    node = await new_node()
    living, other = producer(node), producer(node, group="other")
    one = await begin(node, b"order")
    await pass_time(node, 5_999)
    assert questions(living) == []
    await pass_time(node, 1)
    ((asked, what),) = questions(living)
    assert (asked.id, asked.checks, bytes(what.data)[-5:]) == (one, 1, b"order")
    await pass_time(node, 29_999)
    assert questions(living) == []
    await pass_time(node, 1)
    assert [asked.checks for asked, _ in questions(living)] == [2]
    assert questions(other) == []
    await commit(node, one)
    await pass_time(node, 30_000)
    assert questions(living) == []
    assert node.broker.transacting.checks_total == 2


@on_loop
async def test_a_message_may_say_when_and_how_often_it_is_asked_about() -> None:
    node = await new_node()
    living = producer(node)
    await begin(node, half=half(first_check_ms=100, check_interval_ms=200, checks_max=1))
    await pass_time(node, 100)
    assert len(questions(living)) == 1
    await pass_time(node, 200)
    assert open_ones(node) == []
    assert bodies(node, GIVE_UP_TOPIC) == [b"order"]


@on_loop
async def test_without_an_answer_it_is_given_up_and_kept_with_its_properties() -> None:
    node = await new_node()
    sent = Message(body=b"order", tag="new", keys=["k"], properties={"a": "1"})
    one = await begin(node, messages=[sent], queue_id=2)
    await pass_time(node, 6_000)
    for check in range(1, 15):
        assert [each.checks for each in open_ones(node)] == [check]
        await pass_time(node, 30_000)
    assert [each.checks for each in open_ones(node)] == [15]
    await pass_time(node, 29_999)
    assert len(open_ones(node)) == 1
    await pass_time(node, 1)
    assert open_ones(node) == []
    (kept,) = messages(node, GIVE_UP_TOPIC)
    assert (kept.origin.topic, kept.origin.queue_id) == ("t", 2)
    assert kept.origin.message_id == f"{node.settings.config.node.broker_set}:{one}"
    assert "group orders after 15 questions" in kept.origin.reason
    kept.ClearField("origin")
    assert kept == sent
    assert node.ends("t") == [0, 0, 0, 0]
    assert node.machine.state.transactions.given_up == 1
    with pytest.raises(TransactionNotFound, match=GIVE_UP_TOPIC):
        await commit(node, one)
    await pass_time(node, 60_000)
    assert len(messages(node, GIVE_UP_TOPIC)) == 1


@on_loop
async def test_many_questions_are_one_entry() -> None:
    node = await new_node()
    living = producer(node)
    for _ in range(100):
        await begin(node)
    before = len(node.consensus.proposed)
    await pass_time(node, 6_000)
    await eventually(lambda: len(living._waiting) == 100)
    assert len(node.consensus.proposed) == before + 1


@on_loop
async def test_one_transaction_that_cannot_be_read_delays_no_other() -> None:
    node = await new_node()
    living = producer(node)
    bad, good = await begin(node, b"bad"), await begin(node, b"good")
    broken = node.machine.state.transactions
    broken.open[bad] = broken.open[bad]._replace(log_offset=1 << 40)
    await pass_time(node, 6_000)
    assert [asked.id for asked, _ in questions(living)] == [good]
    with pytest.raises(MqError):
        await commit(node, bad)
    await commit(node, good)
    assert bodies(node) == [b"good"]
    for _ in range(20):
        await pass_time(node, 30_000)
    assert bodies(node, GIVE_UP_TOPIC) == []
    assert [each.id for each in open_ones(node)] == [bad]
    another = await begin(node, b"another")
    await pass_time(node, 6_000)
    assert [asked.id for asked, _ in questions(living)] == [another]


@on_loop
async def test_an_operator_asks_at_once() -> None:
    node = await new_node()
    one = await begin(node)
    with pytest.raises(GroupNotFound, match="no producer of group"):
        await node.broker.transacting.check_now(one)
    assert open_ones(node)[0].checks == 0
    living = producer(node, "p-7")
    assert await node.broker.transacting.check_now(one) == "p-7"
    assert [asked.checks for asked, _ in questions(living)] == [1]
    await roll_back(node, one)
    with pytest.raises(TransactionNotFound):
        await node.broker.transacting.check_now(one)
    with pytest.raises(TransactionNotFound):
        await node.broker.transacting.check_now(12)


@on_loop
async def test_a_clock_that_is_set_does_not_stop_the_questions() -> None:
    node = await new_node()
    steady = [0]
    node.broker.transacting._steady_ms = lambda: steady[0]
    node.broker.transacting.lead()
    living = producer(node)

    async def passes(ms: int, set_by_ms: int = 0) -> int:
        """The number of questions; the clock is set forth or back in between."""
        steady[0] += ms
        await pass_time(node, ms + set_by_ms)
        return len(questions(living))

    await begin(node)
    assert await passes(6_000) == 1
    assert await passes(29_999, set_by_ms=-3_600_000) == 0
    assert await passes(1) == 1
    # Set forth: one question is early, the next ones are not.
    assert await passes(0, set_by_ms=7_200_000) == 1
    assert await passes(29_999) == 0
    assert await passes(1) == 1
    # Stamps stay where they are when the clock is set back now; so does what is due.
    assert await passes(0, set_by_ms=-86_400_000) == 0
    assert await passes(29_999) == 0
    assert await passes(1) == 1


@on_loop
async def test_a_leader_with_a_late_clock_goes_on_from_the_time_of_the_log() -> None:
    node = await new_node()
    await begin(node)
    await pass_time(node, 6_000)
    node.consensus.depose()
    node.broker.tick()
    node.now_ms -= 86_400_000
    node.consensus.elect()
    node.broker.tick()
    living = producer(node)
    steady = [0]
    node.broker.transacting._steady_ms = lambda: steady[0]
    node.broker.transacting.lead()
    for ms, count in ((29_999, 0), (1, 1)):
        steady[0] += ms
        await pass_time(node, 0)
        assert len(questions(living)) == count


@on_loop
async def test_halves_are_committed_whether_they_are_in_memory_or_in_the_log_alone() -> None:
    node = await new_node()
    # The last ones push the first ones out, and the largest is never kept.
    sent = [bytes([at]) * (60 << 10) for at in range(100)] + [b"large" * (20 << 10)]
    ids = [await begin(node, body) for body in sent]
    recent = node.broker.transacting._recent
    assert recent is not None
    assert 60 < len(recent._batches) < 80
    for one in ids[:2] + ids[-2:]:
        await commit(node, one)
    assert bodies(node) == sent[:2] + sent[-2:]
    node.consensus.depose()
    node.broker.tick()
    assert node.broker.transacting._recent is None
    node.consensus.elect()
    node.broker.tick()
    await commit(node, ids[50])
    assert bodies(node)[-1] == sent[50]
