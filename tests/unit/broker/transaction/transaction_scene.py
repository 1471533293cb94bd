"""Transactions on a node without sockets: half messages, ends, and a producer that is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mq.broker.transaction.questions import Respondent
from mq.wire.v1.message_pb2 import Batch as Frames
from mq.wire.v1.message_pb2 import Half, Message
from tests.support.consensus import Node, soon, turns

if TYPE_CHECKING:
    from mq.broker.state.transactions import Transaction
    from mq.broker.transaction.questions import Question

GROUP = "orders"


def half(group: str = GROUP, **fields: Any) -> Half:
    return Half(producer_group=group, **fields)


async def new_node(**options: Any) -> Node:
    """With a topic t."""
    node = Node(**options)
    await node.topic("t")
    return node


async def begin(node: Node, *bodies: bytes, topic: str = "t", **fields: Any) -> int:
    """The id of the transaction."""
    fields.setdefault("half", half())
    stored = await node.send(topic, *(bodies or (b"order",)), **fields)
    return stored.log_offset


async def commit(node: Node, transaction_id: int, group: str = "") -> Any:
    return await soon(
        node.broker.transacting.end(transaction_id, commits=True, producer_group=group)
    )


async def roll_back(node: Node, transaction_id: int, group: str = "") -> Any:
    return await soon(
        node.broker.transacting.end(transaction_id, commits=False, producer_group=group)
    )


def open_ones(node: Node) -> list[Transaction]:
    return sorted(node.machine.state.transactions.open.values())


def messages(node: Node, topic: str, queue_id: int = 0) -> list[Message]:
    """All that consumers see."""
    found: list[Message] = []
    for run in node.store.read(topic, queue_id, 0).runs:
        start = 0
        for size in run.sizes.tolist():
            frame = bytes(run.frames[start : start + size])
            found += Frames.FromString(frame).messages
            start += size
    return found


def bodies(node: Node, topic: str = "t", queue_id: int = 0) -> list[bytes]:
    return [one.body for one in messages(node, topic, queue_id)]


def producer(node: Node, producer_id: str = "p", group: str = GROUP) -> Respondent:
    """A living one, which can be asked."""
    found = Respondent(group, producer_id, answers_checks=True)
    node.broker.transacting.join(found)
    return found


def questions(respondent: Respondent) -> list[Question]:
    """The questions since the last call."""
    found = list(respondent._waiting)
    respondent._waiting.clear()
    respondent._waiting_bytes = 0
    return found


async def pass_time(node: Node, ms: int) -> None:
    """And everything happens that follows."""
    node.pass_time(ms)
    await turns()
