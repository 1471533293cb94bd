"""Receive and acknowledge while things happen around it: order by keys, priorities, dead letters,
crashes, retention, deleted topics, moved groups.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from mq.broker.assignment import Queue
from mq.broker.groups import Start
from mq.broker.leases import Leases
from mq.broker.origins import opened
from mq.errors import IllegalHandle, IllegalSequence, MessageTooLarge
from mq.names import dead_letter_topic
from mq.wire.v1.cluster_pb2 import TopicType
from mq.wire.v1.consumer_pb2 import Filter
from mq.wire.v1.message_pb2 import Message
from mq.wire.v1.state_pb2 import Command, PutGroup, PutTopic
from tests.support.consensus import Node, batch, on_loop, soon, turns
from tests.unit.broker.receiving_scene import (
    GROUP,
    INVISIBLE_MS,
    TOPIC,
    ack,
    bodies,
    handles,
    nack,
    receive,
    restarted,
    send_keyed,
    waiting,
)

QUEUE = Queue(TOPIC, 0)


# -- in order -------------------------------------------------------------------------------------


@on_loop
async def test_of_a_key_one_message_at_a_time_and_others_meanwhile() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await send_keyed(node, ("k", b"k1"), ("k", b"k2"), ("l", b"l1"), ("", b"free"), ("l", b"l2"))
    first = await receive(node, is_ordered=True, member_id="a")
    assert bodies(first) == [b"k1", b"l1", b"free"]
    assert await receive(node, is_ordered=True, member_id="b") == []
    shown = handles(first)
    await ack(node, shown[:1])
    assert bodies(await receive(node, is_ordered=True, member_id="b")) == [b"k2"]
    await ack(node, shown[1:2])
    assert bodies(await receive(node, is_ordered=True, member_id="a")) == [b"l2"]


@on_loop
async def test_a_message_that_failed_holds_its_key() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await send_keyed(node, ("k", b"k1"), ("k", b"k2"), ("l", b"l1"))
    first = await receive(node, is_ordered=True)
    await nack(node, handles(first)[:1], 5_000)
    await ack(node, handles(first)[1:])
    assert await receive(node, is_ordered=True) == []
    call = waiting(node, is_ordered=True)
    await turns()
    node.pass_time(5_000)
    again = await soon(call)
    assert (bodies(again), again[0].attempt) == ([b"k1"], 2)
    await ack(node, handles(again))
    assert bodies(await receive(node, is_ordered=True)) == [b"k2"]


@on_loop
async def test_who_waits_in_order_is_woken_by_an_acknowledgement() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await send_keyed(node, ("k", b"k1"), ("k", b"k2"))
    first = await receive(node, is_ordered=True, member_id="a")
    call = waiting(node, is_ordered=True, member_id="b")
    await turns()
    assert not call.done()
    await ack(node, handles(first))
    assert bodies(await soon(call)) == [b"k2"]


@on_loop
async def test_a_new_leader_knows_the_keys_in_hand() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await send_keyed(node, ("k", b"k1"), ("k", b"k2"), ("l", b"l1"), ("k", b"k3"))
    first = await receive(node, is_ordered=True)
    assert bodies(first) == [b"k1", b"l1"]
    node = restarted(node)
    assert await receive(node, is_ordered=True) == []
    await ack(node, handles(first)[:1])
    assert bodies(await receive(node, is_ordered=True)) == [b"k2"]


@on_loop
async def test_a_key_that_is_held_up_holds_up_others_only_beyond_the_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mq.broker.granting.WINDOW_MESSAGES", 100)
    node = Node()
    await node.topic(TOPIC, 1)
    await send_keyed(node, *[("k", b"k")] * 120, ("l", b"far"))
    first = await receive(node, is_ordered=True)
    assert bodies(first) == [b"k"]
    # Within the window all are of the same key: nothing to give, and no more is looked at.
    assert await receive(node, is_ordered=True) == []
    leases = node.machine.state.leases.get(GROUP, QUEUE)
    assert leases is not None
    assert leases.next == 100
    assert len(leases.ranges) == 2
    for _ in range(20):
        assert bodies(first) == [b"k"]
        await ack(node, handles(first))
        first = await receive(node, is_ordered=True)
    await ack(node, handles(first))
    assert bodies(await receive(node, is_ordered=True)) == [b"k", b"far"]


@on_loop
async def test_messages_in_order_are_filtered_too() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    messages = [
        Message(body=b"%d" % i, tag="xy"[i % 2], ordering_key="k" if i < 4 else "")
        for i in range(8)
    ]
    await node.send(TOPIC, messages=messages)
    given = await receive(node, is_ordered=True, filter=Filter(tags="x"))
    assert bodies(given) == [b"0", b"4", b"6"]
    await ack(node, handles(given))
    given = await receive(node, is_ordered=True, filter=Filter(tags="x"))
    assert bodies(given) == [b"2"]
    await ack(node, handles(given))
    assert node.committed(GROUP)[QUEUE] >= 7


@on_loop
async def test_a_filter_that_changed_counts_for_what_was_given_out_before() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    messages = [Message(body=b"%d" % i, tag="xy"[i % 2], ordering_key="k") for i in range(4)]
    await node.send(TOPIC, messages=messages)
    for is_ordered in (True, False):
        await node.broker.groups.reset(GROUP, {QUEUE: 0})
        assert b"0" in bodies(await receive(node, is_ordered=is_ordered))
        node.pass_time(INVISIBLE_MS)
        given = await receive(node, is_ordered=is_ordered, filter=Filter(tags="y"))
        assert bodies(given) == ([b"1"] if is_ordered else [b"1", b"3"])


@on_loop
async def test_a_sql_filter_gives_no_more_than_was_asked_for() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    messages = [Message(body=b"%d" % i, properties={"n": str(i % 3)}) for i in range(30)]
    for at in range(0, 30, 7):
        await node.send(TOPIC, messages=messages[at : at + 7])
    seen = []
    while given := await receive(node, filter=Filter(sql="n = 1"), messages_max=2):
        assert len(bodies(given)) <= 2
        seen += bodies(given)
    assert seen == [b"%d" % i for i in range(30) if i % 3 == 1]


# -- priorities and limits ------------------------------------------------------------------------


@on_loop
async def test_high_priority_comes_first_and_low_never_starves() -> None:
    node = Node()
    topic = PutTopic(
        topic=TOPIC,
        type=TopicType.TOPIC_NORMAL,
        write_queues=4,
        read_queues=4,
        is_readable=True,
        is_writable=True,
        priorities=2,
    )
    await node.broker.receiving._core.write(Command(put_topic=topic))
    for queue_id in range(4):
        await node.send(TOPIC, *[b"%d" % queue_id] * 30, queue_id=queue_id)
    seen = [int(bodies(await receive(node, messages_max=1))[0]) % 2 for _ in range(60)]
    assert seen.count(0) == 6
    assert seen[:9] == [1] * 9
    assert seen[9] == 0


@on_loop
async def test_so_many_in_hand_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq.broker.granting.IN_HAND_MAX", 20)
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, *[b"%d" % i for i in range(50)])
    first = await receive(node, messages_max=15)
    assert len(bodies(first)) == 15
    assert len(bodies(await receive(node, messages_max=15))) == 5
    call = waiting(node, messages_max=15)
    await turns()
    assert not call.done()
    await ack(node, handles(first)[3:5])
    assert bodies(await soon(call)) == [b"20", b"21"]


@on_loop
async def test_an_answer_stays_within_its_bytes_but_has_one_message() -> None:
    node = Node()
    await node.topic(TOPIC, 2)
    await node.send(TOPIC, b"x" * 400, b"y" * 400)
    await node.send(TOPIC, b"z" * 400, queue_id=1)
    sizes = []
    while given := await receive(node, bytes_max=500):
        sizes.append([len(one) for one in bodies(given)])
    assert sizes == [[400], [400], [400]]
    node.pass_time(INVISIBLE_MS)
    assert [len(one) for one in bodies(await receive(node, bytes_max=100))] == [400]


@on_loop
async def test_a_group_begins_in_very_many_queues_by_several_entries() -> None:
    node = Node()
    node.settings.config = msgspec.structs.replace(
        node.settings.config,
        store=msgspec.structs.replace(node.settings.config.store, entry_bytes_max=16 << 10),
    )
    await node.topic(TOPIC, 100)
    for queue_id in (0, 99):
        await node.send(TOPIC, b"old", queue_id=queue_id)
    assert await receive(node, start=Start()) == []
    begun = [queue for queue in range(100) if (GROUP, Queue(TOPIC, queue)) in leases(node)]
    assert begun == list(range(100))
    assert sum(node.committed(GROUP).values()) == 2
    await node.broker.catalog.alter(TOPIC, read_queues=102, write_queues=102)
    for queue_id in (0, 99, 101):
        await node.send(TOPIC, b"new", queue_id=queue_id)
    seen: list[bytes] = []
    while given := await receive(node, start=Start()):
        seen += bodies(given)
    assert seen == [b"new"] * 3


@on_loop
async def test_more_handles_than_fit_one_entry_are_refused_alone() -> None:
    node = Node()
    node.settings.config = msgspec.structs.replace(
        node.settings.config,
        store=msgspec.structs.replace(node.settings.config.store, entry_bytes_max=8 << 10),
    )
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, *[b"x"] * 500)
    shown = handles(await receive(node, messages_max=500))
    many, few = await asyncio.gather(
        ack(node, shown[::2]), ack(node, shown[1:2]), return_exceptions=True
    )
    assert isinstance(many, MessageTooLarge)
    assert few == [True]
    assert await ack(node, shown) == [True, False, *[True] * 498]


def leases(node: Node) -> Leases:
    return node.machine.state.leases


# -- dead letters ---------------------------------------------------------------------------------


async def dead(node: Node) -> list[Message]:
    result = node.store.read(dead_letter_topic(GROUP), 0, 0)
    return [message for run in result.runs for message in opened(run)]


@on_loop
async def test_what_failed_too_often_is_a_dead_letter_with_its_reason() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, b"a", b"b")
    await node.broker.receiving._core.write(Command(put_group=PutGroup(group=GROUP, retries_max=2)))
    attempts = []
    for _ in range(3):
        given = await receive(node)
        attempts += [one.attempt for one in given if b"a" in bodies([one])]
        await ack(node, handles(given)[1:])
        await nack(node, handles(given)[:1], 0, "no luck")
    assert attempts == [1, 2, 3]
    assert await receive(node) == []
    (letter,) = await dead(node)
    assert (letter.body, letter.origin.topic, letter.origin.queue_offset) == (b"a", TOPIC, 0)
    assert (letter.origin.attempts, letter.origin.reason) == (3, "no luck")
    assert node.committed(GROUP)[QUEUE] == 2
    leases = node.machine.state.leases.get(GROUP, QUEUE)
    assert leases is not None
    assert leases.ranges == []


@on_loop
async def test_what_was_never_acknowledged_in_time_is_a_dead_letter_once() -> None:
    node = Node(retries_max=1)
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, *[b"%d" % i for i in range(5)])
    for _ in range(2):
        assert len(bodies(await receive(node))) == 5
        node.pass_time(INVISIBLE_MS)
    assert await receive(node) == []
    for _ in range(3):
        node.broker.tick()
        await turns(100)
    assert [message.body for message in await dead(node)] == [b"%d" % i for i in range(5)]
    assert "2 times" in (await dead(node))[0].origin.reason
    assert node.committed(GROUP)[QUEUE] == 5
    again = restarted(node)
    assert await receive(again) == []
    again.broker.tick()
    await turns(100)
    assert len(await dead(again)) == 5


@on_loop
async def test_more_dead_letters_than_fit_one_entry_are_several() -> None:
    node = Node(retries_max=0)
    await node.topic(TOPIC, 1)
    for _ in range(4):
        await node.send(TOPIC, *[bytes(3_000)] * 100)
    assert len(bodies(await receive(node, messages_max=1_000))) == 400
    node.pass_time(INVISIBLE_MS)
    assert await receive(node) == []
    for _ in range(30):
        node.broker.tick()
        await turns(50)
    end = node.broker.groups.extent(Queue(dead_letter_topic(GROUP), 0))[1]
    assert end == 400
    assert node.committed(GROUP)[QUEUE] == 400


@on_loop
async def test_a_dead_letter_frees_its_key() -> None:
    node = Node(retries_max=0)
    await node.topic(TOPIC, 1)
    await send_keyed(node, ("k", b"k1"), ("k", b"k2"))
    assert bodies(await receive(node, is_ordered=True)) == [b"k1"]
    node.pass_time(INVISIBLE_MS)
    assert await receive(node, is_ordered=True) == []
    node.broker.tick()
    await turns(100)
    assert bodies(await receive(node, is_ordered=True)) == [b"k2"]
    assert [message.body for message in await dead(node)] == [b"k1"]


# -- crashes, retention, moves --------------------------------------------------------------------


@on_loop
async def test_a_crash_redelivers_only_what_was_not_acknowledged() -> None:
    node = Node()
    await node.topic(TOPIC, 2)
    for queue_id in range(2):
        await node.send(TOPIC, *[b"%d-%d" % (queue_id, i) for i in range(5)], queue_id=queue_id)
    shown = handles(await receive(node))
    await ack(node, shown[::2])
    node = restarted(node)
    # In hand it stays, and its handles are good.
    assert await receive(node) == []
    await ack(node, shown[1:2])
    node = restarted(node)
    node.pass_time(INVISIBLE_MS)
    again = await receive(node)
    assert len(bodies(again)) == 4
    assert {one.attempt for one in again} == {2}


@on_loop
async def test_an_acknowledgement_that_got_into_the_log_counts_whoever_hears_of_it() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, b"a", b"b")
    shown = handles(await receive(node))
    node.consensus.is_held = True
    unheard = node.broker.receiving.ack(GROUP, shown[:1])
    task = asyncio.ensure_future(unheard)
    await turns()
    node.store.log.sync()
    task.cancel()
    node = restarted(node)
    assert await ack(node, shown) == [False, True]
    node.pass_time(INVISIBLE_MS)
    assert await receive(node) == []


@on_loop
async def test_what_retention_dropped_is_done() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, *[b"%d" % i for i in range(10)])
    shown = handles(await receive(node, messages_max=6))
    node.store.trim(TOPIC, 0, 4)
    await ack(node, shown[1:2])
    node.pass_time(INVISIBLE_MS)
    assert bodies(await receive(node)) == [b"4", b"5", b"6", b"7", b"8", b"9"]
    leases = node.machine.state.leases.get(GROUP, QUEUE)
    assert leases is not None
    assert leases.done_to == 4
    node.store.trim(TOPIC, 0, 10)
    node.pass_time(INVISIBLE_MS)
    assert await receive(node) == []
    assert node.committed(GROUP)[QUEUE] == 10


@on_loop
async def test_what_retention_dropped_holds_no_key() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await send_keyed(node, ("k", b"k1"), ("k", b"k2"), ("k", b"k3"))
    assert bodies(await receive(node, is_ordered=True)) == [b"k1"]
    node = restarted(node)
    node.store.trim(TOPIC, 0, 2)
    assert bodies(await receive(node, is_ordered=True)) == [b"k3"]


@on_loop
async def test_a_topic_that_is_deleted_and_made_again_is_a_new_one() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, b"old", b"old")
    shown = handles(await receive(node))
    await node.broker.catalog.delete(TOPIC)
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, b"new")
    assert await ack(node, shown) == [False, False]
    assert bodies(await receive(node)) == [b"new"]


@on_loop
async def test_a_group_that_is_moved_starts_there_and_old_handles_are_void() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, *[b"%d" % i for i in range(6)])
    shown = handles(await receive(node))
    await ack(node, shown[:3])
    call = waiting(node)
    await turns()
    await node.broker.groups.reset(GROUP, {QUEUE: 1})
    assert bodies(await soon(call)) == [b"%d" % i for i in range(1, 6)]
    assert await ack(node, shown[3:]) == [False] * 3


@on_loop
async def test_a_move_wins_over_what_was_decided_before_it() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, *[b"%d" % i for i in range(6)])
    await receive(node, messages_max=3)
    node.consensus.is_held = True
    call = waiting(node)
    await turns()  # 3, 4 and 5 are decided, and not applied
    reset = asyncio.ensure_future(node.broker.groups.reset(GROUP, {QUEUE: 1}))
    await turns()
    # The reset comes first in another leader's log: here the order of the log is what counts.
    node.consensus.is_held = False
    node.consensus.commit()
    await soon(reset)
    given = await soon(call)
    assert bodies(given) in ([b"3", b"4", b"5"], [b"%d" % i for i in range(1, 6)])
    node.pass_time(INVISIBLE_MS)
    assert b"1" in bodies(given) + bodies(await receive(node))


@on_loop
async def test_changes_that_were_decided_on_another_place_change_nothing() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, *[b"%d" % i for i in range(6)])
    given = await receive(node)
    receiving = node.broker.receiving
    command = next(
        context.command  # type: ignore[attr-defined]
        for _, context in reversed(node.consensus.proposed)
    )
    await node.broker.groups.reset(GROUP, {QUEUE: 1})
    late = Command.FromString(command.SerializeToString())
    late.change_leases.queues[0].next = 3
    await receiving._core.write(late)
    assert node.committed(GROUP)[QUEUE] == 1
    await node.broker.catalog.delete_group(GROUP, 0)
    await receiving._core.write(late)
    assert GROUP not in node.machine.state.offsets
    assert await ack(node, handles(given)) == [False] * 6


# -- one atom with batches ------------------------------------------------------------------------


@on_loop
async def test_handles_and_batches_are_one_atom_or_nothing() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.topic("out", 1)
    await node.send(TOPIC, b"a", b"b")
    receiving = node.broker.receiving
    shown = handles(await receive(node))
    made = [batch("out", b"A"), batch("out", b"B")]
    stored = await soon(receiving.acknowledge(GROUP, shown, made))
    assert [one.queue_offset for one in stored] == [0, 1]
    with pytest.raises(IllegalHandle, match="handle 0 of 2"):
        await soon(receiving.acknowledge(GROUP, shown, made))
    with pytest.raises(MessageTooLarge):
        await soon(receiving.acknowledge(GROUP, shown, [batch("out", bytes(5 << 20 >> 1))] * 2))
    assert node.ends("out", 1) == [2]
    assert node.committed(GROUP)[QUEUE] == 2


@on_loop
async def test_a_judge_may_refuse_or_say_that_it_was_done() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, b"a")
    receiving = node.broker.receiving
    shown = handles(await receive(node))

    def refuse() -> None:
        raise IllegalSequence("no")

    with pytest.raises(IllegalSequence):
        await soon(receiving.acknowledge(GROUP, shown, [], refuse))
    assert await soon(receiving.acknowledge(GROUP, shown, [], list)) == []
    assert await ack(node, shown) == [True]


@on_loop
async def test_several_atoms_of_one_turn_know_their_own_batches() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.topic("out", 3)
    await node.send(TOPIC, *[b"%d" % i for i in range(3)])
    receiving = node.broker.receiving
    shown = handles(await receive(node))
    stored = await soon(
        asyncio.gather(
            *(
                receiving.acknowledge(GROUP, [handle], [batch("out", b"x", queue_id=at)])
                for at, handle in enumerate(shown)
            )
        )
    )
    assert [[one.queue_id for one in each] for each in stored] == [[0], [1], [2]]


@on_loop
async def test_start_at_a_time_and_latest() -> None:
    node = Node()
    await node.topic(TOPIC, 1)
    await node.send(TOPIC, b"old")
    node.pass_time(1_000)
    await node.send(TOPIC, b"new")
    given = await receive(node, start=Start(at_ms=node.now_ms))
    assert bodies(given) == [b"new"]
