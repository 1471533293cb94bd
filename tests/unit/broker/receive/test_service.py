"""Receive and acknowledge on one node: what is given to whom, when it comes again, and what a
crash between any two steps leaves.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import mq
from mq.broker.consumer.groups import Start
from mq.broker.consumer.membership import Spec as MemberSpec
from mq.broker.consumer.unsent import SMALL_BYTES
from mq.broker.queue import Queue
from mq.broker.receive.leases import lease_bytes
from mq.errors import (
    FlowControl,
    NotLeader,
    PermissionDenied,
    SubscriptionMismatch,
    TopicNotFound,
)
from mq.rpc.framing import receive_response
from mq.wire.v1.consumer_pb2 import Filter, Handle, ReceiveResponse
from mq.wire.v1.message_pb2 import Message
from tests.support.consensus import Node, on_loop, soon, turns
from tests.unit.broker.receive.receive_scene import (
    GROUP,
    INVISIBLE_MS,
    TOPIC,
    ack,
    bodies,
    change_invisible,
    handles,
    nack,
    receive,
    restarted,
    send_keyed,
    waiting,
    wanted,
)

if TYPE_CHECKING:
    from types import FrameType

    from mq.broker.consumer.pulling import Query
    from mq.store.reading import ReadResult

PACKAGE = str(Path(mq.__file__).parent)


@on_loop
async def test_a_receive_gets_less_from_all_queues_while_clients_have_not_taken_others() -> None:
    node = Node()
    await node.topic(TOPIC, 4)
    for queue_id in range(4):
        await node.send(TOPIC, *[bytes(10_000)] * 10, queue_id=queue_id)
    unsent = node.broker.unsent
    unsent.hold(1 << 30)
    few = bodies(await receive(node, messages_max=40, member_id="a"))
    assert 0 < len(few) <= SMALL_BYTES // 10_000
    unsent.release(1 << 30)
    assert len(bodies(await receive(node, messages_max=40, member_id="a"))) == 40 - len(few)


@on_loop
async def test_a_message_leased_by_one_member_is_given_to_no_other() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, *[b"%d" % i for i in range(10)])
    first = await receive(node, messages_max=4, member_id="a")
    second = await receive(node, messages_max=100, member_id="b")
    assert bodies(first) == [b"0", b"1", b"2", b"3"]
    assert bodies(second) == [b"%d" % i for i in range(4, 10)]
    assert await receive(node, member_id="c") == []
    assert node.committed(GROUP) == {Queue(TOPIC, 0): 0}


@on_loop
async def test_an_acknowledged_message_never_comes_again() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, b"a", b"b", b"c")
    shown = handles(await receive(node))
    assert await ack(node, [shown[0], shown[2]]) == [True, True]
    node.pass_time(INVISIBLE_MS)
    again = await receive(node)
    assert bodies(again) == [b"b"]
    assert [one.attempt for one in again] == [2]
    assert await ack(node, handles(again)) == [True]
    node.pass_time(INVISIBLE_MS)
    assert await receive(node) == []
    assert node.committed(GROUP) == {Queue(TOPIC, 0): 3}
    leases = node.machine.state.leases.get(GROUP, Queue(TOPIC, 0))
    assert leases is not None
    assert leases.ranges == []


@on_loop
async def test_queues_take_turns() -> None:
    node = Node()
    await node.topic(TOPIC, 3)
    for queue_id in range(3):
        await node.send(TOPIC, *[b"%d" % queue_id] * 8, queue_id=queue_id)
    seen = [bodies(await receive(node, messages_max=4))[0] for _ in range(6)]
    assert sorted(seen[:3]) == [b"0", b"1", b"2"]
    assert sorted(seen[3:]) == [b"0", b"1", b"2"]


@on_loop
async def test_a_new_group_starts_where_it_wants_in_all_queues_at_once() -> None:
    node = Node()
    await node.topic(TOPIC, 2)
    await node.send(TOPIC, b"old", queue_id=1)
    assert await receive(node, start=Start()) == []
    await node.send(TOPIC, b"new", queue_id=1)
    await node.send(TOPIC, b"new", queue_id=0)
    # It has begun: where it would start now plays no part, also after a fail-over.
    again = restarted(node)
    assert bodies(await receive(again, start=Start(is_earliest=True))) == [b"new", b"new"]


@on_loop
async def test_a_group_goes_on_where_it_had_subscribed() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, b"a", b"b", b"c")
    await node.broker.groups.commit(GROUP, "", {Queue(TOPIC, 0): 2})
    assert bodies(await receive(node)) == [b"c"]


@on_loop
async def test_queues_that_come_later_are_received_from_their_beginning() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    assert await receive(node, start=Start()) == []
    await node.broker.catalog.alter(TOPIC, write_queues=2, read_queues=2)
    await node.send(TOPIC, b"a", queue_id=1)
    assert bodies(await receive(node, start=Start())) == [b"a"]


@on_loop
async def test_a_lease_is_good_until_another_consumer_has_the_message() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, b"a", b"b")
    shown = handles(await receive(node))
    node.pass_time(INVISIBLE_MS + 1)
    assert await ack(node, shown[:1]) == [True]
    again = await receive(node)
    assert bodies(again) == [b"b"]
    assert await ack(node, shown[1:]) == [False]
    assert await nack(node, shown[1:]) == [False]
    assert (await change_invisible(node, shown[1:], 10_000))[0] == [False]
    assert await ack(node, handles(again)) == [True]
    assert await ack(node, handles(again)) == [False]


@on_loop
async def test_handles_of_others_and_forged_ones_change_nothing() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, b"a", b"b")
    (own,) = await receive(node)
    await receive(node, group="others")
    before = node.machine.state.encode()
    lease = lease_bytes(own.queue, own.lease)
    forged = [
        Handle(),
        Handle(lease=b"\xff" * 8),
        Handle(lease=lease[:12]),
        Handle(lease=lease + b"\xff"),
        Handle(lease=lease_bytes(own.queue, own.lease ^ 1)),
        Handle(lease=lease_bytes(own.queue, 0)),
        Handle(lease=lease_bytes(Queue(TOPIC, 7), own.lease)),
        Handle(lease=lease_bytes(Queue("nothing", 0), own.lease)),
        Handle(lease=lease, queue_offset=2),
        Handle(lease=lease, queue_offset=0, count=3),
        Handle(lease=lease, queue_offset=(1 << 64) - 1, count=(1 << 32) - 1),
    ]
    assert await ack(node, forged) == [False] * len(forged)
    assert await nack(node, forged) == [False] * len(forged)
    assert await ack(node, handles([own]), group="others") == [False, False]
    assert await ack(node, handles([own]), group="nobody") == [False, False]
    assert node.machine.state.encode() == before
    assert await ack(node, [Handle(lease=lease, count=2)]) == [True]


@on_loop
async def test_a_lease_of_zero_does_not_acknowledge_a_message_that_waits_for_its_key() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await send_keyed(node, ("k", b"1"), ("k", b"2"))
    assert bodies(await receive(node, is_ordered=True)) == [b"1"]
    zero = Handle(lease=lease_bytes(Queue(TOPIC, 0), 0), queue_offset=1)
    assert await ack(node, [zero]) == [False]


@on_loop
async def test_a_nack_brings_the_message_back_at_once_or_after_its_delay() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, b"a", b"b", b"c")
    shown = handles(await receive(node))
    assert await nack(node, shown[:1], 0) == [True]
    assert await nack(node, shown[1:2], 5_000) == [True]
    assert await nack(node, shown[2:], None) == [True]
    assert bodies(await receive(node)) == [b"a"]
    node.pass_time(4_999)
    assert await receive(node) == []
    node.pass_time(1)
    assert bodies(await receive(node)) == [b"b"]
    node.pass_time(4_999)
    assert await receive(node) == []
    node.pass_time(1)
    assert bodies(await receive(node)) == [b"c"]  # by its attempts: 10 s
    assert await ack(node, shown[:1]) == [False]


@on_loop
async def test_a_lease_can_be_held_longer_and_keeps_its_handles() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, b"a", b"b")
    shown = handles(await receive(node, invisible_ms=10_000))
    good, until_ms = await change_invisible(node, shown[:1], 3_600_000)
    assert (good, until_ms) == ([True], node.now_ms + 3_600_000)
    node.pass_time(10_000)
    assert bodies(await receive(node)) == [b"b"]
    node.pass_time(3_000_000)
    assert b"a" not in bodies(await receive(node))
    assert await ack(node, shown[:1]) == [True]


@on_loop
async def test_filtered_messages_are_done_at_once() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    for tag in ("x", "y", "x", "y", "y"):
        await node.send(TOPIC, messages=[Message(body=tag.encode(), tag=tag)])
    given = await receive(node, filter=Filter(tags="x"))
    assert bodies(given) == [b"x", b"x"]
    await ack(node, handles(given))
    assert node.committed(GROUP) == {Queue(TOPIC, 0): 5}
    # Also while nothing comes that it lets through, a little later.
    await node.send(TOPIC, messages=[Message(tag="y")])
    assert await receive(node, filter=Filter(tags="x")) == []
    assert node.committed(GROUP) == {Queue(TOPIC, 0): 5}
    node.broker.receiving._skipped_at_ms = -1_000
    node.broker.tick()
    await turns()
    assert node.committed(GROUP) == {Queue(TOPIC, 0): 6}


@on_loop
async def test_a_sql_filter_opens_messages() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    messages = [Message(body=b"%d" % i, properties={"n": str(i)}) for i in range(6)]
    await node.send(TOPIC, messages=messages)
    given = await receive(node, filter=Filter(sql="n > 3"))
    assert bodies(given) == [b"4", b"5"]


@on_loop
async def test_members_must_want_the_same_while_others_are_there() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await receive(node, member_id="a", filter=Filter(tags="x"))
    with pytest.raises(SubscriptionMismatch, match=r"'b' wants filter \*, in order.*'a' has.*x"):
        await receive(node, member_id="b", is_ordered=True)
    # A single member may change its mind, but not while a call of it is in flight.
    await receive(node, member_id="a", is_ordered=True)
    call = waiting(node, member_id="a", is_ordered=True)
    await turns()
    with pytest.raises(SubscriptionMismatch):
        await receive(node, member_id="a")
    node.broker.receiving.leave(GROUP, "a")
    with pytest.raises(SubscriptionMismatch):
        await receive(node, member_id="b")
    call.cancel()
    await turns()
    node.broker.receiving.leave(GROUP, "a")
    await receive(node, member_id="b", is_ordered=True)
    # A member that was silent for long is gone.
    later_ms = node.broker.receiving._steady_ms() + 30_000
    node.broker.receiving._steady_ms = lambda: later_ms  # type: ignore[method-assign]
    await receive(node, member_id="c")


@on_loop
async def test_a_group_receives_or_subscribes() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    node.broker.groups.join("pulling", MemberSpec("p", "", 0, {TOPIC: "*"}, "", False), ())
    with pytest.raises(SubscriptionMismatch, match="'p'"):
        await receive(node, group="pulling")
    await receive(node)
    with pytest.raises(SubscriptionMismatch, match="'m'"):
        node.broker.receiving.check_inactive(GROUP)
    node.broker.receiving.check_inactive("pulling")


@on_loop
async def test_a_topic_that_is_not_there_or_not_for_reading() -> None:
    node = Node()
    with pytest.raises(TopicNotFound):
        await receive(node)
    await node.topic(TOPIC, 1)
    await node.broker.catalog.alter(TOPIC, is_readable=False)
    with pytest.raises(PermissionDenied):
        await receive(node)


# -- the long poll --------------------------------------------------------------------------------


@on_loop
async def test_a_waiting_receive_gets_messages_of_any_queue() -> None:
    node = Node()
    await node.topic(TOPIC, 4)
    call = waiting(node)
    await turns()
    assert not call.done()
    await node.send(TOPIC, b"a", queue_id=3)
    assert bodies(await soon(call)) == [b"a"]


@on_loop
async def test_a_waiting_receive_gets_redeliveries() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, b"a")
    shown = handles(await receive(node))
    call = waiting(node)
    await turns()
    await nack(node, shown, 0)
    again = await soon(call)
    assert bodies(again) == [b"a"]
    later = waiting(node)
    await turns()
    node.pass_time(INVISIBLE_MS)
    assert bodies(await soon(later)) == [b"a"]


@on_loop
async def test_receives_of_one_message_are_granted_together_and_each_gets_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node()
    await node.topic(TOPIC, 2)
    for queue_id in range(2):
        await node.send(TOPIC, *[b"%d%d" % (queue_id, i) for i in range(6)], queue_id=queue_id)
    await receive(node, messages_max=1)
    reads = []
    read = node.broker.puller.read

    def counted(query: Query) -> ReadResult:
        reads.append(query)
        return read(query)

    monkeypatch.setattr(node.broker.puller, "read", counted)
    before = len(node.consensus.proposed)
    begin, given = node.broker.receiving.begin_receive, list[Any]()
    gone = begin(wanted(messages_max=1), given.append)
    for _ in range(8):
        begin(wanted(messages_max=1), given.append)
    begin(wanted(messages_max=1, invisible_ms=2 * INVISIBLE_MS), given.append)
    assert gone.cancel()
    await turns()
    assert len(node.consensus.proposed) == before + 1
    assert len(reads) <= 3  # one a queue, and one for the other invisible time
    assert [len(bodies(one)) for one in given] == [1] * 9
    assert len({body for one in given for body in bodies(one)}) == 9
    until_ms = [runs[0].visible_at_ms - node.now_ms for runs in given]
    assert until_ms == [INVISIBLE_MS] * 8 + [2 * INVISIBLE_MS]
    # Their handles are as those of receives one after the other.
    assert await ack(node, [handle for one in given[::2] for handle in handles(one)]) == [True] * 5
    assert await nack(node, handles(given[1])) == [True]
    again = await receive(node)
    assert set(bodies(given[1])) < set(bodies(again))
    assert await ack(node, handles(given[1])) == [False]


@on_loop
async def test_a_receive_that_does_not_fit_into_its_turn_gets_its_message_in_the_next() -> None:
    node = Node()
    node.settings.config = msgspec.structs.replace(
        node.settings.config,
        store=msgspec.structs.replace(node.settings.config.store, entry_bytes_max=4 << 10),
    )
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, *[b"%d" % i for i in range(62)])
    shown = handles(await receive(node, messages_max=60))
    before = len(node.consensus.proposed)
    first, _, last = await asyncio.gather(
        receive(node, messages_max=1), ack(node, shown[::2]), receive(node, messages_max=1)
    )
    assert len(node.consensus.proposed) == before + 2
    assert (bodies(first), bodies(last)) == ([b"60"], [b"61"])
    assert (first[0].attempt, last[0].attempt) == (1, 1)


@on_loop
async def test_one_message_does_not_wake_all_waiting_receives() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    calls = [waiting(node, member_id=str(i), messages_max=1) for i in range(300)]
    await turns(2_000)
    decisions = 0
    decide = node.broker.receiving.grant

    def counting(*arguments: object) -> object:
        nonlocal decisions
        decisions += 1
        return decide(*arguments)  # type: ignore[arg-type]

    node.broker.receiving.grant = counting  # type: ignore[method-assign,assignment]
    await node.send(TOPIC, b"a")
    await turns(100)
    assert sum(call.done() for call in calls) == 1
    assert decisions <= 2
    await node.send(TOPIC, *[b"%d" % i for i in range(299)])
    given = [await soon(call) for call in calls]
    assert sorted(map(len, map(bodies, given))) == [1] * 300
    assert decisions <= 302


@on_loop
async def test_a_call_that_is_cancelled_while_it_waits_takes_nothing_away() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    first, second = waiting(node, member_id="a"), waiting(node, member_id="b")
    await turns()

    # Woken and cancelled in the same moment: the other one must be woken in its place.
    def cancel(_: Queue) -> None:
        first.cancel()

    node.broker.arrivals.watch([Queue(TOPIC, 0)], cancel)
    await node.send(TOPIC, b"a")
    assert bodies(await soon(second)) == [b"a"]


@on_loop
async def test_messages_granted_to_a_cancelled_call_are_free_at_once() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await receive(node)
    await node.send(TOPIC, b"a")
    node.consensus.is_held = True
    call = waiting(node)
    await turns()
    call.cancel()
    await turns()
    node.consensus.is_held = False
    node.consensus.commit()
    (again,) = await soon(waiting(node))
    assert (bodies([again]), again.attempt) == ([b"a"], 1)


@on_loop
async def test_a_call_that_is_given_up_before_its_turn_writes_nothing() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await receive(node)
    await node.send(TOPIC, b"a", b"b", b"c")
    node.consensus.is_held = True
    first, second = waiting(node, messages_max=1), waiting(node, messages_max=1)
    await turns()
    third = waiting(node, messages_max=1)  # decided when the entry of the others is applied
    await turns()
    third.cancel()
    await turns()
    count = len(node.consensus.proposed)
    node.consensus.is_held = False
    node.consensus.commit()
    assert [bodies(await soon(call)) for call in (first, second)] == [[b"a"], [b"b"]]
    await turns()
    assert len(node.consensus.proposed) == count


@on_loop
async def test_a_waiting_receive_fails_when_the_topic_is_gone_or_another_node_leads() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.topic("other", 1)
    gone, deposed = waiting(node), waiting(node, topic="other")
    await turns()
    await node.broker.catalog.delete(TOPIC)
    with pytest.raises(TopicNotFound):
        await soon(gone)
    node.consensus.depose()
    node.broker.tick()
    with pytest.raises(NotLeader):
        await soon(deposed)
    assert len(node.broker.arrivals) == 0


@on_loop
async def test_a_write_that_fails_gives_nothing_and_the_next_call_has_it() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, b"a", b"b")
    shown = handles(await receive(node, messages_max=1))
    node.consensus.failure = FlowControl("full")
    with pytest.raises(FlowControl):
        await ack(node, shown)
    node.consensus.failure = None
    await nack(node, shown)
    node.consensus.failure = FlowControl("full")
    with pytest.raises(FlowControl):
        await receive(node)
    node.consensus.failure = None
    assert bodies(await receive(node)) == [b"a", b"b"]


# -- work for each batch, not for each message ----------------------------------------------------


@pytest.mark.parametrize("filter_", [Filter(), Filter(tags="x")])
@on_loop
async def test_receiving_and_acknowledging_1_000_messages_is_the_work_of_a_few(
    filter_: Filter,
) -> None:
    lines = {}
    for count in (10, 1_000):
        node = Node()
        await node.topic(TOPIC, 1)
        await node.send(TOPIC, messages=[Message(body=b"b", tag="x")] * 3)
        await receive(node, filter=filter_)
        await node.send(TOPIC, messages=[Message(body=b"b", tag="x")] * count)
        lines[count] = await lines_of(node, count, filter_)
    assert 200 < lines[1_000] <= lines[10] + 30


async def lines_of(node: Node, count: int, filter_: Filter) -> int:
    """The number of our lines that run for all of the messages."""
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal lines
        if PACKAGE not in frame.f_code.co_filename:
            return None
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        (one,) = await receive(node, filter=filter_, messages_max=1_000)
        response = receive_response([one])
        handle = Handle(
            lease=lease_bytes(one.queue, one.lease), queue_offset=one.run.queue_offset, count=count
        )
        assert await ack(node, [handle]) == [True]
    finally:
        sys.settrace(before)
    assert len(ReceiveResponse.FromString(response).runs[0].run.messages) == count
    return lines
