"""Many clients that are connected and do nothing: what they cost the broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SCRIPT = """
import asyncio, sys
import grpc
from mq.wire.v1 import consumer_pb2

address, producers, consumers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

async def main():
    kept = []
    for at in range(max(producers, consumers)):
        options = [("grpc.use_local_subchannel_pool", 1)]
        channel = grpc.aio.insecure_channel(address, options=options)
        kept.append(channel)
        if at < producers:
            publish = channel.stream_stream("/mq.v1.ProducerService/Publish")()
            await publish.wait_for_connection()
            kept.append(publish)
        if at < consumers:
            subscribe = channel.stream_stream("/mq.v1.ConsumerService/Subscribe")()
            start = consumer_pb2.SubscribeStart(
                group=f"idle-{at % 100}", member_id=f"idle-{at}",
                subscriptions=[consumer_pb2.Subscription(topic="bench")],
            )
            await subscribe.write(
                consumer_pb2.SubscribeRequest(start=start).SerializeToString()
            )
            await subscribe.read()
            kept.append(subscribe)
    print("connected", flush=True)
    await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@contextmanager
def connect_many(address: str, *, producers: int, consumers: int) -> Iterator[None]:
    """So many streams stand while the body runs; a pair shares a connection."""
    command = [sys.executable, "-c", _SCRIPT, address, str(producers), str(consumers)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "connected":
            sys.exit("the idle clients could not connect")
        yield
        process.kill()
