"""A client that was closed says so, whichever it is: at once, typed, and not as something that may
succeed later. Closing one that was never used asks no broker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from mq.client import (
    Admin,
    Consumer,
    Processor,
    Producer,
    PullConsumer,
    PushConsumer,
    Replier,
    Requester,
    SimpleConsumer,
    TransactionProducer,
    aio,
)
from mq.errors import ClientClosed, Code

# Nothing listens there, and nothing is sent there.
SERVER = "127.0.0.1:1"
# Looking for a broker takes at least 2.7 s before it is given up.
AT_ONCE_S = 1.5


def ignore(*_: Any) -> Any:
    """A handler."""


async def ignored(*_: Any) -> Any:
    """A handler with asyncio."""


Make = Callable[[], Any]
Use = Callable[[Any], Any]

CLIENTS: dict[str, tuple[Make, Use]] = {
    "send": (lambda: Producer(SERVER), lambda one: one.send("t", b"x")),
    "send-async": (lambda: Producer(SERVER), lambda one: one.send_async("t", b"x")),
    "send-one-way": (lambda: Producer(SERVER), lambda one: one.send_one_way("t", b"x")),
    "send-batch": (lambda: Producer(SERVER), lambda one: one.send_batch("t", [b"x"])),
    "recall": (
        lambda: Producer(SERVER),
        lambda one: one.recall(topic="t", message_id="set-0:1", deliver_at_ms=1),
    ),
    "transaction": (
        lambda: TransactionProducer(SERVER, "g", ignore, ignore),
        lambda one: one.send_in_transaction("t", b"x"),
    ),
    "poll": (lambda: Consumer(SERVER, "g", "t"), lambda one: one.poll()),
    "push": (lambda: PushConsumer(SERVER, "g", "t", ignore), lambda one: one.start()),
    "pull": (lambda: PullConsumer(SERVER), lambda one: one.pull("t", 0, 0)),
    "receive": (lambda: SimpleConsumer(SERVER, "g", "t"), lambda one: one.receive()),
    "request": (lambda: Requester(SERVER), lambda one: one.request("t", b"x")),
    "reply": (lambda: Replier(SERVER, "g", "t", ignore), lambda one: one.start()),
    "process": (lambda: Processor(SERVER, "g", "t", ignore), lambda one: one.start()),
    "admin": (lambda: Admin(SERVER), lambda one: one.list_topics()),
}

AIO_CLIENTS: dict[str, tuple[Make, Use]] = {
    "send": (lambda: aio.Producer(SERVER), lambda one: one.send("t", b"x")),
    "send-async": (lambda: aio.Producer(SERVER), lambda one: one.send_async("t", b"x")),
    "transaction": (
        lambda: aio.TransactionProducer(SERVER, "g", ignored, ignored),
        lambda one: one.send_in_transaction("t", b"x"),
    ),
    "poll": (lambda: aio.Consumer(SERVER, "g", "t"), lambda one: one.poll()),
    "pull": (lambda: aio.PullConsumer(SERVER), lambda one: one.pull("t", 0, 0)),
    "receive": (lambda: aio.SimpleConsumer(SERVER, "g", "t"), lambda one: one.receive()),
    "request": (lambda: aio.Requester(SERVER), lambda one: one.request("t", b"x")),
    "process": (lambda: aio.Processor(SERVER, "g", "t", ignored), lambda one: one.start()),
    "admin": (lambda: aio.Admin(SERVER), lambda one: one.list_topics()),
}


@pytest.mark.parametrize("name", CLIENTS)
def test_a_closed_client_says_so_at_once(name: str) -> None:
    make, use = CLIENTS[name]
    began_s = time.monotonic()
    client = make()
    client.close()
    with pytest.raises(ClientClosed, match="closed") as caught:
        use(client)
    assert (caught.value.code, caught.value.retryable) == (Code.CLIENT_CLOSED, False)
    client.close()
    assert time.monotonic() - began_s < AT_ONCE_S


@pytest.mark.parametrize("name", AIO_CLIENTS)
def test_a_closed_client_of_asyncio_says_so_at_once(name: str) -> None:
    make, use = AIO_CLIENTS[name]

    async def scenario() -> None:
        client = make()
        await client.close()
        with pytest.raises(ClientClosed, match="closed"):
            await use(client)
        await client.close()

    began_s = time.monotonic()
    asyncio.run(scenario())
    assert time.monotonic() - began_s < AT_ONCE_S


def test_the_error_of_a_closed_client_is_a_runtime_error() -> None:
    """As it was before the error had a class of its own."""
    assert issubclass(ClientClosed, RuntimeError)
