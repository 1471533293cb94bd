"""A session in two broker sets, scripted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.unit.client.consumer.deliveries import SET, TOPIC, assignment
from tests.unit.client.consumer.scripted_broker import DEADLINE_S
from tests.unit.client.consumer.scripted_session import ScriptedSession

if TYPE_CHECKING:
    from mq.errors import MqError
    from tests.unit.client.consumer.scripted_broker import ScriptedCall, ScriptedSet


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
