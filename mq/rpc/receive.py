"""ConsumerService, receive and acknowledge."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mq import names
from mq.broker.broker import Broker
from mq.broker.consumer.filters import canonical, compile_filter
from mq.broker.consumer.places import Start
from mq.broker.consumer.pulling import READ_BYTES_MAX
from mq.broker.receive.granting import Given
from mq.broker.receive.receiving import Receive
from mq.broker.receive.taking import Spec
from mq.errors import IllegalRequest
from mq.rpc import framing
from mq.rpc.consumer import MEMBER_ID_CHARACTERS_MAX, held
from mq.rpc.limits import HANDLES_MAX
from mq.rpc.methods import Context
from mq.rpc.subscribe import start_position
from mq.wire.v1 import consumer_pb2 as pb
from mq.wire.v1.status_pb2 import Code

MESSAGES_DEFAULT, MESSAGES_MAX = 32, 1_000
INVISIBLE_MS_MIN, INVISIBLE_MS_DEFAULT, INVISIBLE_MS_MAX = 10_000, 60_000, 12 * 3_600_000
_REASON_CHARACTERS_MAX = 1_000
# What an answer may take to its client.
_ANSWER_S = 1.0


class ReceiveService:
    def __init__(self, broker: Broker, broker_set: str) -> None:
        self._broker = broker
        self._broker_set = broker_set

    async def receive(self, request: pb.ReceiveRequest, context: Context) -> bytes:
        await self._broker.leadership.settled()
        names.check_group(request.group)
        spec = Spec(canonical(request.filter), request.is_ordered)
        # Calls without a name that want different things are not of one member.
        unnamed = f"{context.peer()} {hash(spec) & 0xFFFF:04x}"
        wanted = Receive(
            request.group,
            request.topic,
            _member_id(request.member_id) or unnamed,
            spec,
            compile_filter(request.filter),
            min(request.messages_max or MESSAGES_DEFAULT, MESSAGES_MAX),
            min(request.bytes_max or READ_BYTES_MAX, READ_BYTES_MAX),
            _invisible_ms(request.invisible_ms or INVISIBLE_MS_DEFAULT),
            _wait_s(request.wait_ms, context.time_remaining()),
            start_position(request),
        )
        await self._broker.expect([request.topic])
        answer = framing.receive_response(await self._received(wanted))
        return held(answer, context, self._broker.unsent)

    async def _received(self, wanted: Receive) -> list[Given]:
        missing = self._broker.missing_topics
        if missing.is_awaited(wanted.topic):
            began_s = asyncio.get_running_loop().time()
            if not await missing.until_created(wanted.topic, wanted.wait_s):
                return []
            passed_s = asyncio.get_running_loop().time() - began_s
            # It was asked for before its first message, which is therefore not too old.
            wanted = wanted._replace(
                wait_s=max(0.0, wanted.wait_s - passed_s), start=Start(is_earliest=True)
            )
        return await self._broker.receiving.receive(wanted)

    async def ack(self, request: pb.AckRequest, context: Context) -> pb.HandleResponse:
        await self._check(request.group, request.handles)
        good = await self._broker.receiving.ack(request.group, request.handles)
        return pb.HandleResponse(codes=_codes(good))

    async def nack(self, request: pb.NackRequest, context: Context) -> pb.HandleResponse:
        await self._check(request.group, request.handles)
        delay_ms = request.delay_ms if request.HasField("delay_ms") else None
        if delay_ms is not None and delay_ms > INVISIBLE_MS_MAX:
            raise IllegalRequest(
                f"delay_ms = {delay_ms}: at most 12 h, which are {INVISIBLE_MS_MAX}"
            )
        reason = request.reason[:_REASON_CHARACTERS_MAX]
        good = await self._broker.receiving.nack(request.group, request.handles, delay_ms, reason)
        return pb.HandleResponse(codes=_codes(good))

    async def change_invisible(
        self, request: pb.ChangeInvisibleRequest, context: Context
    ) -> pb.HandleResponse:
        await self._check(request.group, request.handles)
        invisible_ms = _invisible_ms(request.invisible_ms)
        good, until_ms = await self._broker.receiving.change_invisible(
            request.group, request.handles, invisible_ms
        )
        return pb.HandleResponse(codes=_codes(good), invisible_until_ms=until_ms)

    async def _check(self, group: str, handles: Sequence[pb.Handle]) -> None:
        await self._broker.leadership.settled()
        names.check_group(group)
        if not handles:
            raise IllegalRequest(f"no handles in the request: 1 to {HANDLES_MAX}")


def _codes(good: Sequence[bool]) -> list[Code]:
    return [Code.SEND_OK if one else Code.ILLEGAL_HANDLE for one in good]


def _invisible_ms(invisible_ms: int) -> int:
    if not INVISIBLE_MS_MIN <= invisible_ms <= INVISIBLE_MS_MAX:
        raise IllegalRequest(
            f"invisible_ms = {invisible_ms}: 10 s to 12 h, which are {INVISIBLE_MS_MIN} to "
            f"{INVISIBLE_MS_MAX}"
        )
    return invisible_ms


def _wait_s(wait_ms: int, left_s: float | None) -> float:
    """Not until the client has given up: nobody would get what comes then."""
    wait_s = wait_ms / 1000
    return wait_s if left_s is None else max(0.0, min(wait_s, left_s - _ANSWER_S))


def _member_id(member_id: str) -> str:
    if len(member_id) > MEMBER_ID_CHARACTERS_MAX or not member_id.isprintable():
        raise IllegalRequest(
            f"member_id has at most {MEMBER_ID_CHARACTERS_MAX} printable characters"
        )
    return member_id
