"""What becomes of messages that were received: acknowledged, given back, held longer, by their
handles.

Each handle goes to the broker set of its message. A call whose answer is lost is made again. An
acknowledgement may then have been carried out by the first attempt, and its handle be spent by it:
a handle that is refused after an attempt without an answer therefore counts as done. It may also
have been refused because somebody else has the message by now; but then it was worked on twice
whatever this member is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from google.protobuf.message import Message as WireMessage

from mq.client.cluster.connection import Connection
from mq.client.cluster.retry import call_repeatedly
from mq.client.consumer.offsets import in_sets
from mq.client.messages import ReceivedMessage
from mq.wire.v1 import consumer_pb2 as wire
from mq.wire.v1.status_pb2 import SEND_OK

HANDLES_MAX = 2_000
# How long a call is made again while brokers fail over.
SETTLE_S = 15.0


class HandleCall(NamedTuple):
    """A method of the ConsumerService, and the request that says it of some handles. `is_final`:
    they are spent by it.
    """

    method: str
    request: Callable[[Sequence[wire.Handle]], WireMessage]
    is_final: bool = True


def acknowledged(group: str) -> HandleCall:
    return HandleCall("Ack", lambda handles: wire.AckRequest(group=group, handles=handles))


def given_back(group: str, delay_ms: int | None, reason: str) -> HandleCall:
    return HandleCall(
        "Nack",
        lambda handles: wire.NackRequest(
            group=group, handles=handles, delay_ms=delay_ms, reason=reason
        ),
    )


def held_longer(group: str, invisible_ms: int) -> HandleCall:
    return HandleCall(
        "ChangeInvisible",
        lambda handles: wire.ChangeInvisibleRequest(
            group=group, handles=handles, invisible_ms=invisible_ms
        ),
        is_final=False,
    )


class HandleCalls:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def settle(
        self, messages: Iterable[ReceivedMessage], verdict: HandleCall, timeout_s: float = SETTLE_S
    ) -> int:
        """How many were refused. A set that fails does not keep the others from being asked; then
        raises why it failed, and which one it was.
        """
        by_set: dict[str, list[ReceivedMessage]] = {}
        for one in messages:
            by_set.setdefault(one.broker_set, []).append(one)
        refused = await in_sets(
            {
                name: self._settle(name, handles_of(own), verdict, timeout_s)
                for name, own in by_set.items()
            }
        )
        return sum(map(len, refused.values()))

    async def still_held(
        self, messages: Sequence[ReceivedMessage], verdict: HandleCall, timeout_s: float
    ) -> list[ReceivedMessage]:
        """Those of one broker set, without the refused ones."""
        if not messages:
            return []
        handles = handles_of(messages)
        refused = await self._settle(messages[0].broker_set, handles, verdict, timeout_s)
        return [one for one in messages if (one.handle, one.queue_offset) not in refused]

    async def pass_over(self, broker_set: str, group: str, handles: list[wire.Handle]) -> None:
        """Nobody is to see these messages: they must not come again."""
        await self._settle(broker_set, handles, acknowledged(group), SETTLE_S)

    async def _settle(
        self, broker_set: str, handles: Sequence[wire.Handle], verdict: HandleCall, timeout_s: float
    ) -> set[tuple[bytes, int]]:
        """The leases and queue offsets of the messages that were refused."""
        refused: set[tuple[bytes, int]] = set()
        asked = await self._connection.named(broker_set)
        for at in range(0, len(handles), HANDLES_MAX):
            part = handles[at : at + HANDLES_MAX]
            answer = await call_repeatedly(
                asked,
                "ConsumerService",
                verdict.method,
                verdict.request(part),
                timeout_s,
            )
            if answer.is_repeated and verdict.is_final:
                continue
            codes = wire.HandleResponse.FromString(answer.data).codes
            bad = [handle for handle, code in zip(part, codes, strict=True) if code != SEND_OK]
            refused |= {(one.lease, one.queue_offset) for one in bad if one.count <= 1}
            # Of several messages in one handle perhaps only some are not ours.
            single = [one for handle in bad if handle.count > 1 for one in _singles(handle)]
            if single:
                refused |= await self._settle(broker_set, single, verdict, timeout_s)
        return refused


def handles_of(messages: Iterable[ReceivedMessage]) -> list[wire.Handle]:
    """Neighbours of one lease are one handle."""
    handles: list[wire.Handle] = []
    for lease, queue_offset in sorted({(one.handle, one.queue_offset) for one in messages}):
        last = handles[-1] if handles else None
        if last and last.lease == lease and last.queue_offset + last.count == queue_offset:
            last.count += 1
        else:
            handles.append(wire.Handle(lease=lease, queue_offset=queue_offset, count=1))
    return handles


def _singles(handle: wire.Handle) -> list[wire.Handle]:
    return [
        wire.Handle(lease=handle.lease, queue_offset=handle.queue_offset + at, count=1)
        for at in range(handle.count)
    ]
