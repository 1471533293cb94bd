"""Messages that a push consumer works on stay its own while its client is alive."""

from __future__ import annotations

from typing import Any, cast

from mq.broker.consumer.filters import compile_filter
from mq.broker.consumer.groups import Start
from mq.broker.receive.grants import GrantedRun, Receive
from mq.broker.receive.leases import Handle
from mq.broker.receive.members import ReceiveSpec
from mq.rpc.rocketmq.renewing import Renewals
from mq.rpc.rocketmq.sessions import Sessions
from mq.wire.v1.consumer_pb2 import Filter
from tests.support.consensus import Node, on_loop

CLIENT = "client-1"


class Scene:
    """A message that CLIENT has received for 60 s, and time that passes when the test says so."""

    def __init__(self) -> None:
        self.node = Node()
        self.node.broker.steady_ms = lambda: self.node.now_ms
        self.sessions = Sessions(self.node.broker, cast("Any", None))
        self.renewals = Renewals(self.node.broker, self.sessions)

    async def begin(self) -> Handle:
        await self.node.topic("t", 1)
        await self.node.send("t", b"x")
        self.sessions.touch(CLIENT)
        runs = await self.received()
        self.renewals.add("g", CLIENT, runs, 60_000)
        (run,) = runs
        return Handle(run.queue, run.lease, 0, 1)

    async def received(self) -> list[GrantedRun]:
        everything = compile_filter(Filter())
        spec = ReceiveSpec("*", is_ordered=False)
        wanted = Receive("g", "t", "m", spec, everything, 10, 1 << 20, 60_000, 0.0, Start(True))
        return await self.node.broker.receiving.receive(wanted)

    async def pass_time(self, seconds: int) -> None:
        self.node.now_ms += seconds * 1000
        self.node.broker.tick()
        await self.renewals._renew(self.node.now_ms)


@on_loop
async def test_a_message_is_renewed_while_its_client_is_heard_of() -> None:
    scene = Scene()
    await scene.begin()
    for _ in range(5):
        scene.sessions.touch(CLIENT)
        await scene.pass_time(40)
        scene.sessions.touch(CLIENT)
        await scene.pass_time(10)
        assert await scene.received() == []
    scene.renewals.stop()


@on_loop
async def test_a_message_of_a_client_that_is_gone_is_given_to_others() -> None:
    scene = Scene()
    await scene.begin()
    await scene.pass_time(50)
    await scene.pass_time(15)
    (run,) = await scene.received()
    assert run.attempt == 2
    scene.renewals.stop()


@on_loop
async def test_what_was_decided_is_not_renewed() -> None:
    scene = Scene()
    scene.renewals.forget(await scene.begin())
    for _ in range(2):
        scene.sessions.touch(CLIENT)
        await scene.pass_time(40)
    assert len(await scene.received()) == 1
    scene.renewals.stop()


@on_loop
async def test_nothing_is_renewed_for_longer_than_three_hours() -> None:
    scene = Scene()
    await scene.begin()
    for _ in range(3 * 3600 // 40):
        scene.sessions.touch(CLIENT)
        await scene.pass_time(40)
    assert await scene.received() == []
    for _ in range(3):
        scene.sessions.touch(CLIENT)
        await scene.pass_time(40)
    assert len(await scene.received()) == 1
    scene.renewals.stop()
