"""python broadcast.py TOPIC KEY...     two caches, each of which hears of every key that changed

In mode "broadcast" every member of a group gets all messages. Each keeps its own place, here in
memory, which is enough for a cache that starts empty and wants new keys only.
"""

import asyncio
import os
import sys

from mq.client.aio import MqError, Producer, PushConsumer, ReceivedMessage

SERVER = os.environ.get("MQ_SERVER", "127.0.0.1:8081")
CACHES = ("left", "right")


async def main(topic: str, *keys: str) -> None:
    dropped: asyncio.Queue[str] = asyncio.Queue()

    def cache(name: str) -> PushConsumer:
        async def drop(message: ReceivedMessage) -> None:
            await dropped.put(f"{name} drops {message.body.decode()}")

        return PushConsumer(SERVER, "example-caches", topic, drop, mode="broadcast")

    # A consumer is in its group when its `async with` has begun: nothing is missed from then on.
    async with cache(CACHES[0]), cache(CACHES[1]), Producer(SERVER) as producer:
        for key in keys:
            await producer.send(topic, key)
        for _ in range(len(CACHES) * len(keys)):
            print(await asyncio.wait_for(dropped.get(), timeout=30))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python broadcast.py TOPIC KEY...")
    try:
        asyncio.run(main(*sys.argv[1:]))
    except MqError as error:
        sys.exit(f"{error.code.name}: {error}")
