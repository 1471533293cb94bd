"""Two hundred clients at once, each with a connection of its own: half of them produce, half
consume in two groups that form while the messages come. Everything acknowledged is consumed exactly
once in each group, in the order of its queue.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import grpc

from mq.wire.v1 import consumer_pb2 as pb
from mq.wire.v1 import producer_pb2
from tests.conformance.calls import Calls, code_of, path_of, prepared, publish_request
from tests.support.broker_process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

PRODUCERS = MEMBERS = 100
GROUPS = ("one", "other")
QUEUES = 64
SECONDS = 3.0
IN_FLIGHT = 4
DEADLINE_S = 60.0
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


class Ledger:
    """The acknowledged messages, and the deliveries to each client in their order."""

    def __init__(self) -> None:
        self.stored: dict[tuple[int, int], bytes] = {}
        self.consumed: dict[str, list[tuple[int, int, bytes]]] = defaultdict(list)

    def missing(self, group: str) -> int:
        return len(self.stored) - len(self.consumed[group])


async def produce(channel: grpc.aio.Channel, number: int, ledger: Ledger) -> None:
    rng = random.Random(number)
    loop = asyncio.get_running_loop()
    call = channel.stream_stream(path_of("ProducerService/Publish"))()
    under_way: dict[int, tuple[int, list[bytes]]] = {}
    deadline, sequence, sent = loop.time() + SECONDS, 0, 0

    async def hear() -> None:
        answer = producer_pb2.PublishResponse.FromString(await call.read())
        queue_id, bodies = under_way.pop(answer.request_id)
        (result,) = answer.results
        assert code_of(result) == "SEND_OK", result.text
        for at, body in enumerate(bodies):
            ledger.stored[queue_id, result.queue_offset + at] = body

    while loop.time() < deadline:
        sequence += 1
        queue_id = rng.randrange(QUEUES)
        bodies = [b"%d/%d" % (number, sent + at) for at in range(rng.randint(1, 10))]
        sent += len(bodies)
        under_way[sequence] = queue_id, bodies
        batch = prepared(
            "t", *bodies, queue_id=queue_id, producer_id=f"p{number}", sequence=sequence
        )
        await call.write(publish_request(sequence, batch).SerializeToString())
        if len(under_way) >= IN_FLIGHT:
            await hear()
    await call.done_writing()
    while under_way:
        await hear()
    assert await call.read() is grpc.aio.EOF


async def consume(channel: grpc.aio.Channel, group: str, member_id: str, ledger: Ledger) -> None:
    call = channel.stream_stream(path_of("ConsumerService/Subscribe"))()
    start = pb.SubscribeStart(
        group=group,
        member_id=member_id,
        subscriptions=[pb.Subscription(topic="t")],
        start_position=pb.START_EARLIEST,
    )
    await call.write(pb.SubscribeRequest(start=start).SerializeToString())
    held: set[int] = set()
    while (data := await call.read()) is not grpc.aio.EOF:
        answer = pb.SubscribeResponse.FromString(data)
        if answer.WhichOneof("kind") == "assignment":
            assigned = {one.queue_id for one in answer.assignment.queues}
            lost, held = held - assigned, assigned
            if lost:
                queues = [pb.QueueId(topic="t", queue_id=one) for one in lost]
                released = pb.SubscribeRequest(released=pb.Released(queues=queues))
                await call.write(released.SerializeToString())
            continue
        delivery = answer.delivery
        assert delivery.queue_id in held
        for run in delivery.runs:
            ledger.consumed[group].extend(
                (delivery.queue_id, run.queue_offset + at, message.body)
                for at, message in enumerate(run.messages)
            )
        position = pb.QueuePosition(
            topic="t",
            queue_id=delivery.queue_id,
            queue_offset=delivery.next_offset,
            epoch=delivery.epoch,
        )
        progress = pb.SubscribeRequest(progress=pb.Progress(positions=[position]))
        await call.write(progress.SerializeToString())


async def channels(address: str, count: int, stack: AsyncExitStack) -> list[grpc.aio.Channel]:
    return [
        await stack.enter_async_context(grpc.aio.insecure_channel(address, options=OWN_CONNECTION))
        for _ in range(count)
    ]


async def run(address: str, ledger: Ledger) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(DEADLINE_S):
        opened = await channels(address, PRODUCERS + MEMBERS, stack)
        members = [
            asyncio.create_task(consume(channel, GROUPS[number % 2], f"member-{number}", ledger))
            for number, channel in enumerate(opened[PRODUCERS:])
        ]
        producers = [
            produce(channel, number, ledger) for number, channel in enumerate(opened[:PRODUCERS])
        ]
        await asyncio.gather(*producers)
        async for _ in passing():
            ended = [member for member in members if member.done()]
            assert not ended, ended[0].exception()
            if not any(ledger.missing(group) > 0 for group in GROUPS):
                break
        for member in members:
            member.cancel()
        await asyncio.gather(*members, return_exceptions=True)


async def passing() -> AsyncIterator[None]:
    while True:
        yield
        await asyncio.sleep(0.05)


def check(ledger: Ledger, group: str) -> None:
    by_queue: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    for queue_id, queue_offset, body in ledger.consumed[group]:
        by_queue[queue_id].append((queue_offset, body))
    ends = dict.fromkeys(range(QUEUES), 0)
    for queue_id, queue_offset in ledger.stored:
        ends[queue_id] = max(ends[queue_id], queue_offset + 1)
    for queue_id, end in ends.items():
        found = by_queue[queue_id]
        assert [queue_offset for queue_offset, _ in found] == list(range(end)), queue_id
        assert all(ledger.stored[queue_id, at] == body for at, body in found)
        # What one producer has sent to a queue stands there in its order.
        last: dict[bytes, int] = {}
        for _, body in found:
            producer, _, number = body.partition(b"/")
            assert int(number) > last.get(producer, -1)
            last[producer] = int(number)


def test_two_hundred_clients_lose_nothing_and_see_nothing_twice(tmp_path: Path) -> None:
    ledger = Ledger()
    with BrokerProcess(tmp_path / "data") as broker:
        with grpc.insecure_channel(broker.address) as channel:
            Calls(channel).create("t", QUEUES)
        asyncio.run(run(broker.address, ledger))
        assert len(ledger.stored) > 1_000
        for group in GROUPS:
            check(ledger, group)
        with grpc.insecure_channel(broker.address) as channel:
            status: Any = Calls(channel)("BrokerStatus")
            assert status.messages_in == len(ledger.stored)
            assert status.rss_bytes < 400 << 20
        assert "Traceback" not in broker.output()
