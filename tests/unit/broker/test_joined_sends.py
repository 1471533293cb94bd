"""Small sends of one turn are one batch, and each is answered as if it were alone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from mq.errors import FlushTimeout, IllegalRequest, MessageTooLarge, NotLeader
from mq.hashing import text_hash
from mq.store.batch import accept, frame, frame_hashes, join, prepare
from mq.store.format import Kind
from mq.store.reading import Found
from mq.wire.v1.message_pb2 import Batch as WireBatch
from mq.wire.v1.message_pb2 import Message
from tests.support.consensus import Node, batch, eventually, on_loop, soon, turns

if TYPE_CHECKING:
    from mq.broker.joined_sends import Placed


class Sends:
    """Requests to one node, and the answers in the order they came."""

    def __init__(self, node: Node) -> None:
        self._joined = node.broker.joined_sends
        self._node = node
        self.answers: dict[int, Placed | BaseException] = {}

    def take(self, *bodies: bytes, **fields: Any) -> bool:
        messages = [Message(body=body) for body in bodies]
        return self.take_messages(messages, **fields)

    def take_messages(
        self, messages: list[Message], topic: str = "t", queue_id: int | None = None
    ) -> bool:
        size = WireBatch(messages=messages).ByteSize()
        number = len(self.answers)
        self.answers[number] = RuntimeError("not answered")
        is_taken = self._joined.take(
            topic, queue_id, messages, size, lambda one: self.answers.update({number: one})
        )
        if not is_taken:
            del self.answers[number]
        return is_taken

    def places(self) -> list[tuple[int, int]]:
        return [(one.queue_id, one.queue_offset) for one in self.answers.values()]  # type: ignore[union-attr]

    @property
    def batches(self) -> int:
        return self._node.broker.publisher.batches_total

    @property
    def entries(self) -> int:
        return sum(kind == Kind.MESSAGES for kind, _ in self._node.consensus.proposed)


async def scene(**settings: Any) -> tuple[Node, Sends]:
    node = Node(**settings)
    await node.topic("t", 4)
    return node, Sends(node)


def bodies(node: Node, queue_id: int, topic: str = "t") -> list[bytes]:
    found = node.broker.store.find(topic, queue_id, 0, bytes_max=1 << 20)
    assert isinstance(found, Found)
    runs = found.read(node.broker.store.log.read_ranges).runs
    return [
        message.body for run in runs for message in WireBatch.FromString(bytes(run.frames)).messages
    ]


@on_loop
async def test_sends_of_one_turn_are_one_batch_in_their_order() -> None:
    node, sends = await scene()
    for n in range(100):
        assert sends.take(b"%d" % n, queue_id=1)
    await turns()
    assert sends.places() == [(1, n) for n in range(100)]
    assert (sends.batches, sends.entries) == (1, 1)
    assert bodies(node, 1) == [b"%d" % n for n in range(100)]


@on_loop
async def test_each_answer_has_the_ids_of_its_own_messages() -> None:
    node, sends = await scene()
    sends.take(b"a", b"bb", queue_id=0)
    sends.take(b"ccc", queue_id=0)
    await turns()
    found = [
        node.broker.store.log.read(at, 1)
        for one in sends.answers.values()
        for at in one.log_offsets  # type: ignore[union-attr]
    ]
    assert found == [b"\x7a"] * 3
    first, second = sends.answers.values()
    assert len(first.log_offsets) == 2  # type: ignore[union-attr]
    assert second.queue_offset == 2  # type: ignore[union-attr]


@on_loop
async def test_sends_that_leave_the_queue_open_go_to_one_a_turn_and_to_all_in_time() -> None:
    _, sends = await scene()
    for _ in range(8):
        sends.take(b"x")
        sends.take(b"y")
        await turns()
    queues = [queue_id for queue_id, _ in sends.places()]
    assert queues[::2] == queues[1::2]
    assert sorted(queues[::2]) == sorted([0, 1, 2, 3] * 2)


@on_loop
async def test_an_ordering_key_decides_the_queue() -> None:
    _, sends = await scene()
    for n in range(20):
        sends.take_messages([Message(body=b"x", ordering_key=f"k{n % 5}")])
    await turns()
    queues = [queue_id for queue_id, _ in sends.places()]
    assert queues == [text_hash(f"k{n % 5}") % 4 for n in range(20)]


@on_loop
async def test_a_priority_decides_among_which_queues() -> None:
    node = Node()
    await node.broker.catalog.create("t", 4, 0, priorities=2)
    sends = Sends(node)
    for n in range(8):
        sends.take_messages([Message(body=b"x", priority=n % 2)])
        await turns()
    assert [queue_id % 2 for queue_id, _ in sends.places()] == [0, 1] * 4
    with pytest.raises(IllegalRequest, match="priority 2"):
        sends.take_messages([Message(body=b"x", priority=2)])


@on_loop
async def test_an_illegal_send_is_refused_alone() -> None:
    node, sends = await scene()
    sends.take(b"good", queue_id=0)
    with pytest.raises(IllegalRequest, match="two words"):
        sends.take_messages([Message(body=b"x", tag="two words")], queue_id=0)
    sends.answers.popitem()
    sends.take(b"good too", queue_id=0)
    await turns()
    assert sends.places() == [(0, 0), (0, 1)]
    assert bodies(node, 0) == [b"good", b"good too"]


@pytest.mark.parametrize(
    "fields",
    [
        {"topic": "missing"},
        {"queue_id": 4},
        {"queue_id": 65_536},
    ],
    ids=str,
)
@on_loop
async def test_other_sends_are_left_alone(fields: dict[str, Any]) -> None:
    _, sends = await scene()
    assert not sends.take(b"x", **fields)


@on_loop
async def test_large_sends_are_left_alone() -> None:
    _, sends = await scene()
    assert not sends.take(bytes(70_000))
    assert not sends.take(*[b"x"] * 17)
    assert not sends.take()
    assert not sends.take_messages([Message(body=b"x", keys=map(str, range(65)))])


@on_loop
async def test_a_batch_of_its_own_does_not_overtake_what_is_gathered() -> None:
    node, sends = await scene()
    sends.take(b"first", queue_id=0)
    node.broker.joined_sends.submit()
    node.broker.publisher.submit(batch("t", b"second"))
    sends.take(b"third", queue_id=0)
    await turns()
    assert bodies(node, 0) == [b"first", b"second", b"third"]


@on_loop
async def test_a_batch_is_closed_when_it_is_large() -> None:
    node, sends = await scene()
    for n in range(100):
        assert sends.take(bytes(10_000), queue_id=n % 2)
    await turns()
    assert sorted(sends.places()) == [(q, n) for q in (0, 1) for n in range(50)]
    assert 4 <= sends.batches <= 10
    assert node.broker.publisher.in_flight_bytes == 0


@on_loop
async def test_no_send_overtakes_one_that_waits_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    node, sends = await scene()
    monkeypatch.setattr(node.broker.publisher._window, "bytes_max", 1_000)
    node.consensus.is_held = True
    assert sends.take(bytes(600), queue_id=0)
    await turns()
    assert not sends.take(bytes(600), queue_id=0)
    waiting = asyncio.ensure_future(node.broker.publisher.room(600, 60))
    await turns()
    assert not sends.take(b"small", queue_id=0)
    node.consensus.commit()
    await soon(waiting)
    assert sends.take(b"small", queue_id=0)


@on_loop
async def test_a_node_that_does_not_lead_refuses_all_of_them() -> None:
    node, sends = await scene()
    node.consensus.depose()
    sends.take(b"x")
    sends.take(b"y")
    await turns()
    assert [type(one) for one in sends.answers.values()] == [NotLeader, NotLeader]


@on_loop
async def test_a_failed_entry_fails_each_of_them() -> None:
    node, sends = await scene()
    node.consensus.is_held = True
    sends.take(b"x", queue_id=0)
    sends.take(b"y", queue_id=0)
    await turns()
    node.consensus.lose(NotLeader(None, None))
    await turns()
    assert [type(one) for one in sends.answers.values()] == [NotLeader, NotLeader]


@on_loop
async def test_one_timer_ends_the_wait_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    node, sends = await scene()
    monkeypatch.setattr(node.broker.joined_sends, "_timeout_s", 0.05)
    sends.take(b"in time", queue_id=0)
    await turns()
    node.consensus.is_held = True
    for n in range(3):
        sends.take(b"x", queue_id=n)
        await turns()
    await eventually(lambda: not isinstance(sends.answers[3], RuntimeError))
    assert [type(one) for one in list(sends.answers.values())[1:]] == [FlushTimeout] * 3
    # Late, but stored: no answer is given twice.
    node.consensus.commit()
    await turns()
    assert [type(one) for one in list(sends.answers.values())[1:]] == [FlushTimeout] * 3


MESSAGES = [
    Message(body=b"a"),
    Message(body=b"b" * 300, tag="red", keys=["k", "l"], properties={"p": "q"}),
    Message(tag="blue", ordering_key="o", born_at_ms=5, priority=3),
    Message(),
    Message(body=bytes(20_000), keys=["m"]),
]


@pytest.mark.parametrize("count", range(1, len(MESSAGES) + 1))
def test_a_joined_batch_is_the_one_that_would_be_accepted(count: int) -> None:
    messages = MESSAGES[-count:]
    joined = join("t", 3, [frame(one, "t", 1 << 20) for one in messages])
    wire = WireBatch(topic="t", queue_id=3, messages=messages).SerializeToString()
    prepared = accept(prepare(wire), 1 << 20)
    assert joined.data == prepared.data
    for mine, theirs in zip(joined, prepared, strict=True):
        assert np.array_equal(mine, theirs) if isinstance(mine, np.ndarray) else mine == theirs
    assert accept(joined.data, 1 << 20).data == joined.data


@pytest.mark.parametrize("message", [*MESSAGES[:4], *(Message(body=bytes(n)) for n in range(300))])
def test_a_frame_as_it_came_has_the_hashes_of_the_one_that_would_be_made(message: Message) -> None:
    made = frame(message, "t", 1_000)
    assert frame_hashes(made.data, "t", 1_000) == made[1:]


def test_a_frame_as_it_came_is_opened_unless_it_has_a_body_alone() -> None:
    for message in (b"\x0a\x81\x00x\x12\x03red", b"\x12\x03red\x0a\x01x", b"\x0a\x01x\x12\x03red"):
        data = b"\x7a" + bytes([len(message)]) + message
        assert frame_hashes(data, "t", 1_000) == (text_hash("red"), ())
    # The length of this body is written longer than it has to be.
    longer = b"\x7a\x83\x01\x0a\xff\x00" + bytes(127) + b"\x12"
    for data in (b"\x7a\x04\x0a\x05ab", b"\x7a\x03\x12\x01\xff", longer):
        with pytest.raises(DecodeError):
            frame_hashes(data, "t", 1_000)
    with pytest.raises(MessageTooLarge, match="a body of 1001 bytes for topic t"):
        frame_hashes(frame(Message(body=bytes(1_001)), "t", 2_000).data, "t", 1_000)


def test_a_message_that_is_too_large_is_refused() -> None:
    with pytest.raises(MessageTooLarge, match="a body of 1001 bytes for topic t"):
        frame(Message(body=bytes(1_001)), "t", 1_000)
    with pytest.raises(MessageTooLarge, match="beside it"):
        frame(Message(body=bytes(100_000)), "t", 1_000)
    frame(Message(body=bytes(1_000), tag="x" * 50), "t", 1_000)
