"""A flooder beside quiet producers: it fills the room of the broker, and waits for more of it
behind them, not before them.

The disk of this broker takes a tenth of a second for a sync, whatever it writes: that decides the
times, and not what else the machine does. A send takes up to two syncs, the one that is under way
and its own. (tests/unit/broker/test_fairness.py has faster disks, on virtual time.)
"""

from __future__ import annotations

import asyncio
import statistics
from typing import TYPE_CHECKING

import grpc

from mq.store.batch import prepare
from mq.wire.v1 import producer_pb2 as pb
from mq.wire.v1.message_pb2 import Batch, Message
from tests.support.broker_process import BrokerProcess

if TYPE_CHECKING:
    from pathlib import Path

SYNC_S = 0.1
SLOW_DISK = f"""
import time
from mq.store.vfs import RealFile

def slow_sync(file, sync=RealFile.sync):
    time.sleep({SYNC_S})
    sync(file)

RealFile.sync = slow_sync
from mq.__main__ import main
main()
"""
QUIET, SENDS, ROUNDS = 20, 8, 3
# Each waits with one batch: many times the room, which is eight of them.
STREAMS, FLOOD_BYTES = 80, 1 << 20
ROOM = ("--broker-in-flight-bytes", "8MiB")
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]


class SlowDiskBroker(BrokerProcess):
    @property
    def program(self) -> list[str]:
        return ["-c", SLOW_DISK]


def connect(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, options=OWN_CONNECTION)


async def quiet_sends(address: str) -> list[float]:
    """How long each send of the quiet producers took."""
    loop, took_s = asyncio.get_running_loop(), []

    async def produce(number: int) -> None:
        async with connect(address) as channel:
            send = channel.unary_unary(
                "/mq.v1.ProducerService/Send",
                request_serializer=pb.SendRequest.SerializeToString,
                response_deserializer=pb.SendResponse.FromString,
            )
            for at in range(SENDS):
                # Not all in step with each other, and with the syncs.
                await asyncio.sleep(0.013 * ((number + 3 * at) % 7))
                began_s = loop.time()
                await send(pb.SendRequest(topic="quiet", messages=[Message(body=b"x" * 100)]))
                took_s.append(loop.time() - began_s)

    await asyncio.gather(*map(produce, range(QUIET)))
    return took_s


class Flooder:
    """One connection with many streams, each of which sends as fast as the broker takes it."""

    def __init__(self, address: str) -> None:
        self._address = address
        wire = Batch(topic="flood", messages=[Message(body=bytes(FLOOD_BYTES))])
        batch = Batch.FromString(prepare(wire.SerializeToString()))
        self._request = pb.PublishRequest(batches=[batch]).SerializeToString()
        self.sent = 0

    async def run(self) -> None:
        async with connect(self._address) as channel:
            publish = channel.stream_stream("/mq.v1.ProducerService/Publish")
            await asyncio.gather(*(self._flood(publish) for _ in range(STREAMS)))

    async def _flood(self, publish: grpc.aio.StreamStreamMultiCallable) -> None:
        call = publish()
        while True:
            await call.write(self._request)
            await call.read()
            self.sent += 1


def p99(took_s: list[float]) -> float:
    return sorted(took_s)[int(len(took_s) * 0.99)]


async def measure(address: str) -> list[tuple[float, float]]:
    """Of each round: alone, and beside the flooder."""
    found = []
    for _ in range(ROUNDS):
        alone = p99(await quiet_sends(address))
        flooder = Flooder(address)
        flooding = asyncio.create_task(flooder.run())
        async with asyncio.timeout(60):
            while flooder.sent < STREAMS:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.05)
        beside = p99(await quiet_sends(address))
        flooding.cancel()
        await asyncio.wait([flooding])
        found.append((alone, beside))
    return found


def test_a_flooder_delays_quiet_producers_by_little(tmp_path: Path) -> None:
    with SlowDiskBroker(tmp_path / "data", *ROOM) as broker:
        rounds = asyncio.run(measure(broker.address))
    ratio = statistics.median(beside / alone for alone, beside in rounds)
    # With one queue for all it is nine times.
    assert ratio <= 2, rounds
