"""A node whose messages are received and acknowledged, for tests."""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
from typing import TYPE_CHECKING, Any

from mq.broker.consumer.filters import canonical, compile_filter
from mq.broker.consumer.groups import Start
from mq.broker.receive.acks import (
    Ack,
    ChangeInvisible,
    HandleRequest,
    HandlesSettled,
    Nack,
)
from mq.broker.receive.grants import GrantedRun, Receive
from mq.broker.receive.leases import lease_bytes, parse_handles
from mq.broker.receive.members import ReceiveSpec
from mq.broker.retry.origins import opened
from mq.wire.v1.consumer_pb2 import Filter, Handle
from mq.wire.v1.message_pb2 import Message
from tests.support.consensus import Node, soon

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SEEDS = itertools.count(1)
GROUP, TOPIC = "workers", "jobs"
INVISIBLE_MS = 60_000


def wanted(**changes: Any) -> Receive:
    filter_ = changes.pop("filter", Filter())
    is_ordered = changes.pop("is_ordered", False)
    start = changes.pop("start", Start(is_earliest=True))
    fields: dict[str, Any] = {
        "group": GROUP,
        "topic": TOPIC,
        "member_id": "m",
        "spec": ReceiveSpec(canonical(filter_), is_ordered),
        "filter": compile_filter(filter_),
        "messages_max": 32,
        "bytes_max": 3 << 20,
        "invisible_ms": INVISIBLE_MS,
        "start": start,
    }
    return Receive(**{**fields, **changes})


async def receive(node: Node, **changes: Any) -> list[GrantedRun]:
    found: list[GrantedRun] = await soon(node.broker.receiving.receive(wanted(**changes)))
    return found


def bodies(given: Iterable[GrantedRun]) -> list[bytes]:
    return [message.body for one in given for message in opened(one.run)]


def handles(given: Iterable[GrantedRun]) -> list[Handle]:
    """One a message."""
    return [
        Handle(lease=lease_bytes(one.queue, one.lease), queue_offset=at)
        for one in given
        for at in range(one.run.queue_offset, one.run.queue_offset + one.run.message_count)
    ]


async def settle(node: Node, request: HandleRequest) -> HandlesSettled:
    settled: HandlesSettled = await soon(node.broker.receiving.settle(request))
    return settled


async def ack(node: Node, shown: Sequence[Handle], group: str = GROUP) -> list[bool]:
    return (await settle(node, Ack(group, parse_handles(shown)))).valid


async def nack(
    node: Node, shown: Sequence[Handle], delay_ms: int | None = 0, reason: str = ""
) -> list[bool]:
    retries_max = node.broker.receiving.retries_max(GROUP)
    request = Nack(GROUP, parse_handles(shown), delay_ms, retries_max, reason)
    return (await settle(node, request)).valid


async def change_invisible(
    node: Node, shown: Sequence[Handle], invisible_ms: int
) -> tuple[list[bool], int]:
    """Which handles were good, and until when their messages are invisible."""
    return await settle(node, ChangeInvisible(GROUP, parse_handles(shown), invisible_ms))


def keyed(*pairs: tuple[str, bytes]) -> list[Message]:
    return [Message(body=body, ordering_key=key) for key, body in pairs]


async def send_keyed(node: Node, *pairs: tuple[str, bytes]) -> None:
    await node.send(TOPIC, messages=keyed(*pairs))


def restarted(node: Node, **options: Any) -> Node:
    """The node after a crash: what was applied is there, what a leader remembers is not."""
    again = Node(node.vfs_after_kill(), **options)
    again.now_ms = node.now_ms
    # The numbers of a node in tests begin anew with it; those of a real one do not.
    fresh = random.Random(next(_SEEDS))
    core = again.broker.receiving._core
    object.__setattr__(core, "random_number", functools.partial(fresh.getrandbits, 64))
    return again


def waiting(node: Node, **changes: Any) -> asyncio.Task[list[GrantedRun]]:
    """A receive that waits."""
    call = node.broker.receiving.receive(wanted(wait_s=60.0, **changes))
    return asyncio.get_running_loop().create_task(call)
