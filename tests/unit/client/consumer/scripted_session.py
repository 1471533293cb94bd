"""A session with scripted brokers of one set, or of two."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from mq.client.cluster import retry as retry_module
from mq.client.consumer import set_stream as set_stream_module
from mq.client.consumer.group_session import GroupSession
from mq.client.consumer.options import ConsumerOptions
from tests.unit.client.consumer.deliveries import SET, TOPIC, assignment
from tests.unit.client.consumer.scripted_broker import DEADLINE_S, ScriptedCall, ScriptedConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    import pytest

    from mq.errors import MqError
    from tests.unit.client.consumer.scripted_broker import ScriptedSet


def shorten_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_module, "BACK_OFF_S", 0.001)
    monkeypatch.setattr(retry_module, "BACK_OFF_S_MAX", 0.002)
    monkeypatch.setattr(set_stream_module, "REPORT_S", 0.001)


class ScriptedSession:
    def __init__(self, *others: str, **options: Any) -> None:
        """`others`: broker sets beside the first one."""
        self.connection = ScriptedConnection(*others)
        asked = ConsumerOptions("s:1", "g", TOPIC, member_id="me", **options)
        self.session = GroupSession(self.connection.as_connection, asked)
        self.buffer = self.session.buffer

    async def join(self, *queues: tuple[int, int] | tuple[int, int, int]) -> ScriptedCall:
        await self.session.start()
        call = await self.connection.next_call()
        await call.started()
        call.send(assignment(*queues))
        await self.session.joined(DEADLINE_S)
        return call

    async def take(self, count: int) -> list[Any]:
        """Each message by itself."""
        taken: list[Any] = []
        while len(taken) < count:
            found = await self.session.take(count - len(taken), DEADLINE_S)
            assert found
            taken += [single for one in found for single in one.singles]
        return taken


class TwoSetSession(ScriptedSession):
    """Two sets that have the topic."""

    def __init__(self, *, topics: tuple[str, ...] = (SET, "b"), **options: Any) -> None:
        super().__init__("b", **options)
        for name in topics:
            self.connection.of(name).topics[TOPIC] = 2

    @property
    def b(self) -> ScriptedSet:
        return self.connection.of("b")

    async def join_both(self) -> tuple[ScriptedCall, ScriptedCall]:
        await self.session.start()
        calls = [await self.answer(name) for name in (SET, "b")]
        await self.session.joined(DEADLINE_S)
        return calls[0], calls[1]

    async def answer(self, name: str) -> ScriptedCall:
        call = await self.connection.of(name).next_call()
        await call.started()
        call.send(assignment((0, 0), (1, 0)))
        return call

    def assigned_sets(self) -> set[str]:
        return {one.broker_set for one in self.buffer.assignment}


def refuse_with(error: MqError) -> Any:
    def refuse(_: object) -> None:
        raise error

    return refuse


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 # nobody sets an event
            await asyncio.sleep(0.001)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, DEADLINE_S * 2))
