"""A Transact stream: what it takes, what it writes, and that every request gets an answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest
from google.protobuf.message import DecodeError

from mq.broker import long_work
from mq.broker.security.gate import EVERYBODY, LiveStream
from mq.broker.transaction.questions import Question
from mq.errors import IllegalRequest, NotLeader
from mq.http2.calls import CallEnded
from mq.rpc.access import LIVE, Rules
from mq.rpc.transaction import TransactionService
from mq.wire.v1.message_pb2 import Batch, Half, Message
from mq.wire.v1.status_pb2 import Code
from mq.wire.v1.transaction_pb2 import (
    RESOLUTION_COMMIT,
    EndTransactionRequest,
    TransactRequest,
    TransactResponse,
    TransactStart,
)
from tests.support.consensus import Node, batch, on_loop, soon, turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from mq.rpc.context import Context


@pytest.fixture(autouse=True)
def _long_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that are sent together are taken in one turn, however slow this machine is."""
    monkeypatch.setattr(long_work, "TURN_S", 60.0)


class Call:
    """A client that reads all that it gets, or nothing while it has no room."""

    def __init__(self) -> None:
        self.caller = EVERYBODY
        self.written: list[bytes] = []
        self.room = asyncio.Event()
        self.room.set()
        self.is_gone = False
        self._is_offered = False
        self._requests: asyncio.Queue[bytes | None] = asyncio.Queue()

    def peer(self) -> str:
        return "ipv4:127.0.0.1:50000"

    def send(self, *requests: TransactRequest) -> None:
        """All of them at once."""
        request = requests[0] if len(requests) == 1 else TransactRequest(more=requests)
        self._requests.put_nowait(request.SerializeToString())

    def half_close(self) -> None:
        self._requests.put_nowait(None)

    def responses(self) -> list[TransactResponse]:
        """Since the last call."""
        written, self.written = self.written, []
        return [TransactResponse.FromString(one) for one in written]

    async def read(self, take: Callable[[bytes], bool] | None = None) -> bytes | None:
        while (request := await self._requests.get()) is not None:
            # As a transport may do it or not: every other one is offered.
            self._is_offered = not self._is_offered
            if take is None or not self._is_offered or not take(request):
                return request
        return None

    async def write(self, message: bytes) -> None:
        if self.is_gone:
            raise CallEnded
        self.written.append(message)
        await self.room.wait()

    def try_write(self, message: bytes) -> bool:
        if self.is_gone or not self.room.is_set():
            return False
        self.written.append(message)
        return True


class Scene:
    """A node with a topic t, and one stream of the group g."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.call = Call()
        self.service = TransactionService(node.broker, "set-0", Rules(node.broker))
        LIVE.set(LiveStream(EVERYBODY, lambda _: None))
        self.serving = asyncio.ensure_future(self.service.transact(cast("Context", self.call)))

    @classmethod
    async def open(cls, *, reads_more: bool = False, **options: Any) -> Scene:
        node = Node(**options)
        await node.topic("t")
        scene = cls(node)
        start = TransactStart(
            producer_group="g", producer_id="p", answers_checks=True, reads_more=reads_more
        )
        scene.call.send(TransactRequest(request_id=1, start=start))
        await turns()
        (started,) = scene.call.responses()
        assert (started.request_id, started.WhichOneof("kind")) == (1, "started")
        return scene

    async def half(self, request_id: int = 2) -> str:
        self.call.send(half(request_id))
        await turns()
        (response,) = self.call.responses()
        assert response.request_id == request_id
        return str(response.half.transaction_id)

    def ask(self, *frames: bytes) -> None:
        """Questions about made-up transactions."""
        respondents = self.node.broker.transacting._respondents
        one = next(iter(self.node.machine.state.transactions.open.values()))
        for each in frames:
            asked = batch("t", b"")._replace(data=each, region_start=0)
            assert respondents.ask(Question(one, asked)) == "p"

    async def close(self) -> None:
        self.call.half_close()
        await soon(self.serving)


def half(request_id: int, body: bytes = b"order", **fields: Any) -> TransactRequest:
    messages = [Message(body=body)]
    wire = Batch(topic="t", half=Half(producer_group="g"), messages=messages, **fields)
    return TransactRequest(request_id=request_id, half=wire)


def commit(request_id: int, transaction_id: str) -> TransactRequest:
    end = EndTransactionRequest(transaction_id=transaction_id, resolution=RESOLUTION_COMMIT)
    return TransactRequest(request_id=request_id, end=end)


@on_loop
async def test_halves_and_ends_of_one_turn_share_their_entries() -> None:
    scene = await Scene.open(reads_more=True)
    entries = len(scene.node.consensus.proposed)
    scene.call.send(*(half(at) for at in range(10)))
    await turns()
    (answers,) = scene.call.responses()
    ids = [one.half.transaction_id for one in answers.more]
    scene.call.send(*(commit(at, one) for at, one in enumerate(ids)))
    await turns()
    (answers,) = scene.call.responses()
    assert [one.ended.queue_offset for one in answers.more] == list(range(10))
    assert len(scene.node.consensus.proposed) == entries + 2
    await scene.close()


@on_loop
async def test_a_client_that_does_not_read_more_gets_its_answers_one_by_one() -> None:
    scene = await Scene.open()
    scene.call.send(*(half(at) for at in range(3)))
    await turns()
    assert [one.request_id for one in scene.call.responses()] == [0, 1, 2]
    await scene.close()


@on_loop
async def test_a_malformed_message_spoils_its_own_question_alone() -> None:
    scene = await Scene.open(reads_more=True)
    await scene.half()
    scene.ask(b"\x7a\x02\xff\xff", b"\x7a\x00")
    scene.call.send(half(8), half(9))
    await turns()
    written = scene.call.written
    with pytest.raises(DecodeError):
        TransactResponse.FromString(written[0])
    good, answers = map(TransactResponse.FromString, written[1:])
    assert len(good.check.messages) == 1
    assert [one.request_id for one in answers.more] == [8, 9]
    await scene.close()


@on_loop
async def test_a_client_without_room_gets_all_its_answers_when_it_reads() -> None:
    scene = await Scene.open()
    scene.call.room.clear()
    scene.call.send(*(half(at) for at in range(300)))
    await turns(400)
    # The answers of the others wait, and what is beyond them is not taken.
    assert len(scene.node.machine.state.transactions.open) == 256
    assert len(scene.call.written) == 1
    scene.call.room.set()
    await turns(400)
    assert sorted(one.request_id for one in scene.call.responses()) == list(range(300))
    await scene.close()


@on_loop
async def test_requests_without_a_majority_fail_when_their_time_is_over() -> None:
    scene = await Scene.open(send_timeout_ms=30)
    transaction_id = await scene.half()
    scene.node.consensus.is_held = True
    scene.call.send(half(3), commit(4, transaction_id))
    async with asyncio.timeout(60):
        while len(scene.call.written) < 2:  # noqa: ASYNC110 - a real time-out
            await asyncio.sleep(0.005)
    failed = {one.request_id: Code.Name(one.failed.code) for one in scene.call.responses()}
    assert failed == {3: "FLUSH_TIMEOUT", 4: "REPLICATION_TIMEOUT"}
    # What comes of them later is not told twice.
    scene.node.consensus.is_held = False
    scene.node.consensus.commit()
    await turns()
    assert not scene.call.written
    await scene.close()


@on_loop
async def test_a_half_closed_stream_ends_when_all_is_answered() -> None:
    scene = await Scene.open()
    scene.node.consensus.is_held = True
    scene.call.send(half(3))
    scene.call.half_close()
    await turns()
    assert not scene.serving.done()
    scene.node.consensus.commit()
    await soon(scene.serving)
    assert [one.request_id for one in scene.call.responses()] == [3]


@on_loop
async def test_nonsense_ends_the_stream_after_the_answers() -> None:
    scene = await Scene.open()
    scene.node.consensus.is_held = True
    scene.call.send(half(3))
    scene.call.send(TransactRequest(request_id=4, start=TransactStart()))
    await turns()
    scene.node.consensus.commit()
    with pytest.raises(IllegalRequest):
        await soon(scene.serving)
    assert [one.request_id for one in scene.call.responses()] == [3]


@on_loop
async def test_a_leader_that_steps_down_ends_the_stream_after_the_answers() -> None:
    scene = await Scene.open()
    scene.node.consensus.is_held = True
    scene.call.send(half(3))
    await turns()
    scene.node.consensus.depose()
    scene.node.broker.tick()
    await turns()
    assert not scene.serving.done()
    scene.node.consensus.lose(NotLeader("other", "other:8081"))
    with pytest.raises(NotLeader):
        await soon(scene.serving)
    (response,) = scene.call.responses()
    assert response.failed.leader_address == "other:8081"


@on_loop
async def test_a_stream_that_ends_does_not_wait_for_a_half_that_waits_for_room() -> None:
    scene = await Scene.open(in_flight_bytes=100)
    scene.node.consensus.is_held = True
    scene.call.send(half(3))
    scene.call.send(half(4))
    scene.call.send(half(5))
    await turns()
    scene.node.consensus.depose()
    scene.node.broker.tick()
    scene.node.consensus.lose(NotLeader("other", "other:8081"))
    with pytest.raises(NotLeader):
        await soon(scene.serving)
    assert [one.request_id for one in scene.call.responses()][:1] == [3]


@on_loop
async def test_a_mistake_of_the_broker_is_told_to_its_request_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = await Scene.open()
    with monkeypatch.context() as patched:
        patched.setattr(scene.node.broker.publisher, "submit", lambda _: 1 / 0)
        scene.call.send(half(3))
        scene.call.send(half(4))
        await turns()
    failed = {one.request_id: Code.Name(one.failed.code) for one in scene.call.responses()}
    assert failed == {3: "INTERNAL", 4: "INTERNAL"}
    assert await scene.half(5)
    await scene.close()


@on_loop
async def test_a_client_that_is_gone_ends_its_stream_and_no_transaction() -> None:
    scene = await Scene.open()
    scene.node.consensus.is_held = True
    scene.call.send(half(3), half(4))
    await turns()
    scene.call.is_gone = True
    scene.node.consensus.commit()
    with pytest.raises(CallEnded):
        await soon(scene.serving)
    assert len(scene.node.machine.state.transactions.open) == 2
    assert not scene.node.broker.transacting.producers("g")
