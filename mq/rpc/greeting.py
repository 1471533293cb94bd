"""Greets the other broker sets, about once a second, so that the directory stays current.

One broker of each set is asked, the leader if it is known; if it does not answer, the others of its
set are, and it comes last for a while. Sets are asked concurrently: one that hangs holds up no
other. A set that does not answer at all stays known. No content of an answer ends the greetings.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

import grpc
from google.protobuf.message import DecodeError

from mq.broker.directory import Directory
from mq.errors import MqError
from mq.logging import get_logger
from mq.rpc.status import details
from mq.rpc.tls import BrokerChannel, Connect
from mq.wire.v1.cluster_pb2 import GreetRequest, GreetResponse

log = get_logger(__name__)

Metadata: TypeAlias = Sequence[tuple[str, str]]
_GREET = "/mq.v1.ClusterService/Greet"
PERIOD_S = 1.0
_ANSWER_S_MAX = 2.0
# In periods: how long a broker that did not answer is asked after the others of its set.
_AVOIDED = 10
_OPTIONS = (
    # A hundred thousand topics are a tenth of it.
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.initial_reconnect_backoff_ms", 200),
    # Also how long a connection may take to come about.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A name may lead to another address when its broker comes back.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    ("grpc.enable_retries", 0),
)


class Greeter:
    """`run` it on the loop of the broker."""

    def __init__(
        self,
        directory: Directory,
        now_ms: Callable[[], int],
        connect: Connect,
        metadata: Callable[[], Metadata] = list,
    ) -> None:
        """`now_ms` is the monotonic clock of the directory. `metadata` says who asks."""
        self._directory = directory
        self._connect = connect
        self._now_ms = now_ms
        self._metadata = metadata
        self._channels: dict[str, BrokerChannel] = {}
        self._periods = 0
        # Addresses that did not answer, and in which period.
        self._failed: dict[str, int] = {}
        self._troubles: dict[str, str] = {}
        self._under_way: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        try:
            while True:
                await self._begin()
                await asyncio.sleep(PERIOD_S)
        finally:
            for task in self._under_way.values():
                task.cancel()
            for channel in self._channels.values():
                await channel.close()

    async def _begin(self) -> None:
        """Greets every set that is not being greeted."""
        self._periods += 1
        used: set[str] = set()
        for name, places in self._directory.targets():
            used.update(places)
            key = name or places[0]
            if key not in self._under_way:
                task = asyncio.create_task(self._greet(name, places))
                self._under_way[key] = task
                task.add_done_callback(functools.partial(self._ended, key))
        for address in self._channels.keys() - used:
            self._troubles.pop(address, None)
            self._failed.pop(address, None)
            with contextlib.suppress(grpc.aio.AioRpcError):
                await self._channels.pop(address).close()

    def _ended(self, key: str, _: asyncio.Task[None]) -> None:
        self._under_way.pop(key)

    async def _greet(self, name: str, places: list[str]) -> None:
        since = self._periods - _AVOIDED
        ranked = sorted(places, key=lambda address: self._failed.get(address, 0) > max(0, since))
        is_answered = False
        for address in ranked:
            is_answered = await self._is_answered(name, address)
            if is_answered:
                break
        self._directory.greeted(name, places, is_answered=is_answered)

    async def _is_answered(self, name: str, address: str) -> bool:
        try:
            request = self._directory.greeting(name, address)
            response = await self._ask(address, request)
            now_ms, asked_version = self._now_ms(), request.topics_version
            self._directory.heard(name, address, response, now_ms, asked_version)
        except grpc.aio.AioRpcError as error:
            self._tell(name, address, _reason(error))
        except (MqError, DecodeError) as error:
            self._tell(name, address, str(error))
        except Exception:
            log.exception("a greeting failed by a mistake of the broker", address=address)
        else:
            self._failed.pop(address, None)
            if self._troubles.pop(address, ""):
                log.info("another broker set answers again", broker_set=name, address=address)
            return True
        self._failed[address] = self._periods
        return False

    async def _ask(self, address: str, request: GreetRequest) -> GreetResponse:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._connect(address, _OPTIONS)
            self._channels[address] = channel
        ask = channel.unary_unary(_GREET, request_serializer=GreetRequest.SerializeToString)
        return GreetResponse.FromString(
            await ask(request, timeout=_ANSWER_S_MAX, metadata=self._metadata())
        )

    def _tell(self, name: str, address: str, reason: str) -> None:
        """Logs each reason once. Trouble in its own set is logged by replication."""
        if self._troubles.get(address) != reason and name != self._directory.own_name:
            self._troubles[address] = reason
            log.warning(
                "another broker set does not answer", broker_set=name, address=address, error=reason
            )


def _reason(error: grpc.aio.AioRpcError) -> str:
    found = details(error)
    return found.text if found is not None else str(error.code().name)
