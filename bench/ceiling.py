"""A bare gRPC server: what Python and gRPC can do at the most, with no broker behind it.

    Publish     takes the same batches and answers each, storing nothing
    Subscribe   streams the same bytes, built once, as fast as they go
    Echo        answers a small unary call

`python -m bench.ceiling` prints its port and serves until its standard input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

import grpc

from bench.payloads import delivery
from mq.memory import keep_freed_memory
from mq.wire.v1 import producer_pb2

_OPTIONS = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 64 << 20)]
_ANSWER = producer_pb2.PublishResponse(
    request_id=1 << 20,
    results=[producer_pb2.BatchResult(queue_id=7, queue_offset=1 << 20, log_offset=1 << 30)],
).SerializeToString()


async def publish(_: object, context: grpc.aio.ServicerContext) -> None:
    while await context.read() is not grpc.aio.EOF:
        await context.write(_ANSWER)


async def subscribe(_: object, context: grpc.aio.ServicerContext) -> None:
    request = await context.read()
    size, count = (int(number) for number in bytes(request).split())
    payload = delivery(size, count)
    while True:
        await context.write(payload)


async def echo(data: bytes, _: grpc.aio.ServicerContext) -> bytes:
    return data


async def serve() -> None:
    server = grpc.aio.server(options=_OPTIONS)
    methods = {
        "Publish": grpc.stream_stream_rpc_method_handler(publish),
        "Subscribe": grpc.stream_stream_rpc_method_handler(subscribe),
        "Echo": grpc.unary_unary_rpc_method_handler(echo),
    }
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("bench.Ceiling", methods),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    keep_freed_memory()
    asyncio.run(serve())
