"""Greets the other broker sets, about once a second, so that the directory stays current.

One broker of each set is asked, the leader if it is known; one that does not answer is tried again
after all others of its set. A set that does not answer at all stays known.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import grpc

from mq.broker.directory import Directory
from mq.errors import MqError
from mq.logging import get_logger
from mq.rpc.status import STATUS_KEY
from mq.wire.v1.cluster_pb2 import GreetRequest, GreetResponse
from mq.wire.v1.status_pb2 import Status

log = get_logger(__name__)

_GREET = "/mq.v1.ClusterService/Greet"
PERIOD_S = 1.0
_ANSWER_S_MAX = 2.0
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


class Greeter:
    """`run` it on the loop of the broker."""

    def __init__(self, directory: Directory, now_ms: Callable[[], int]) -> None:
        self._directory = directory
        self._now_ms = now_ms
        self._channels: dict[str, grpc.aio.Channel] = {}
        # Of each set: the addresses that failed last, which are tried after the others.
        self._failed: dict[str, set[str]] = {}
        self._troubles: dict[str, str] = {}

    async def run(self) -> None:
        try:
            while True:
                await self.round()
                await asyncio.sleep(PERIOD_S)
        finally:
            for channel in self._channels.values():
                await channel.close()

    async def round(self) -> None:
        """Greets every set once."""
        targets = list(self._directory.targets())
        await asyncio.gather(*(self._greet(name, places) for name, places in targets))
        await self._close_unused({address for _, places in targets for address in places})

    async def _greet(self, name: str, places: list[str]) -> None:
        failed = self._failed.setdefault(name or places[0], set()) if places else set()
        if failed.issuperset(places):
            failed.clear()
        for address in places:
            if address in failed:
                continue
            try:
                request = self._directory.greeting(name, address)
                response = await self._ask(address, request)
                self._directory.heard(address, response, self._now_ms())
            except grpc.aio.AioRpcError as error:
                failed.add(address)
                self._tell(address, _reason(error))
            except MqError as error:
                failed.add(address)
                self._tell(address, str(error))
            else:
                if self._troubles.pop(address, ""):
                    log.info("another broker set answers again", address=address)
            # One a round: those that do not answer must not hold up the next one.
            return

    async def _ask(self, address: str, request: GreetRequest) -> GreetResponse:
        channel = self._channels.get(address)
        if channel is None:
            channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
            self._channels[address] = channel
        ask = channel.unary_unary(
            _GREET,
            request_serializer=GreetRequest.SerializeToString,
            response_deserializer=GreetResponse.FromString,
        )
        response: GreetResponse = await ask(request, timeout=_ANSWER_S_MAX)
        return response

    def _tell(self, address: str, reason: str) -> None:
        """Once, and again when the reason is another one."""
        if self._troubles.get(address) != reason:
            self._troubles[address] = reason
            log.warning("a broker of another set does not answer", address=address, error=reason)

    async def _close_unused(self, used: set[str]) -> None:
        for address in self._channels.keys() - used:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await self._channels.pop(address).close()


def _reason(error: grpc.aio.AioRpcError) -> str:
    for key, value in error.trailing_metadata() or ():
        if key == STATUS_KEY:
            return Status.FromString(value).text
    return str(error.code().name)
