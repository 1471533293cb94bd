"""Messages that a push consumer works on stay its own while its client is alive."""

from __future__ import annotations

from typing import Any, cast

from mq.broker.consumer.filters import compile_filter
from mq.broker.consumer.groups import Start
from mq.broker.receive.grants import GrantedRun, Receive
from mq.broker.receive.leases import Handle, attempted, mark_of
from mq.broker.receive.members import ReceiveSpec
from mq.rpc.rocketmq.renewing import Path, Renewals, attempt_mark, client_mark
from mq.rpc.rocketmq.sessions import Sessions
from mq.wire.v1.consumer_pb2 import Filter
from tests.support.consensus import Node, on_loop

CLIENT = "client-1"
PATH = Path(CLIENT, "a", "its connection")


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
        self.renewals.add("g", PATH, runs, 60_000)
        (run,) = runs
        return Handle(run.queue, run.lease, 0, 1)

    async def received(self, attempt: int = 0) -> list[GrantedRun]:
        everything = compile_filter(Filter())
        spec = ReceiveSpec("*", is_ordered=bool(attempt))
        mark = client_mark(CLIENT)
        wanted = Receive("g", "t", "m", spec, everything, 10, 1 << 20, 60_000, 0.0, Start(True))
        return await self.node.broker.receiving.receive(
            wanted._replace(lease_mark=mark, attempt=attempt)
        )

    def change_leader(self) -> None:
        """What a leader has in memory is gone; what is replicated is not."""
        self.renewals.stop()
        self.sessions = Sessions(self.node.broker, cast("Any", None))
        self.renewals = Renewals(self.node.broker, self.sessions)

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


@on_loop
async def test_the_next_leader_renews_what_a_client_has_that_it_hears_of() -> None:
    scene = Scene()
    await scene.begin()
    await scene.pass_time(40)
    scene.change_leader()
    scene.renewals.adopt("g", "another client")
    for _ in range(5):
        scene.sessions.touch(CLIENT)
        scene.renewals.adopt("g", CLIENT)
        await scene.pass_time(10)
        assert await scene.received() == []
    # It may still be acknowledged as what it was given as.
    assert len(scene.renewals._open) == 1
    scene.renewals.stop()


@on_loop
async def test_what_may_have_died_with_a_leader_on_its_way_comes_again_within_minutes() -> None:
    scene = Scene()
    await scene.begin()
    scene.change_leader()
    found: list[GrantedRun] = []
    for _ in range(20):
        scene.sessions.touch(CLIENT)
        scene.renewals.adopt("g", CLIENT)
        await scene.pass_time(10)
        found += await scene.received()
    assert found[0].attempt == 2
    scene.renewals.stop()


@on_loop
async def test_what_may_have_been_on_a_connection_that_broke_comes_again_within_minutes() -> None:
    scene = Scene()
    await scene.begin()
    scene.renewals.asked(PATH._replace(broker="b", connections="of another set"))
    await scene.pass_time(40)
    assert await scene.received() == []
    found: list[GrantedRun] = []
    for _ in range(20):
        scene.sessions.touch(CLIENT)
        scene.renewals.asked(PATH._replace(connections="another"))
        await scene.pass_time(10)
        found += await scene.received()
    assert found[0].attempt == 2
    scene.renewals.stop()


@on_loop
async def test_the_next_leader_gives_others_what_is_of_a_client_that_is_gone() -> None:
    scene = Scene()
    await scene.begin()
    await scene.pass_time(40)
    scene.change_leader()
    for _ in range(3):
        for client in ("another client", "a third"):
            scene.sessions.touch(client)
            scene.renewals.adopt("g", client)
            scene.renewals.adopt("another group", CLIENT)
        await scene.pass_time(10)
    (run,) = await scene.received()
    assert run.attempt == 2
    scene.renewals.stop()


@on_loop
async def test_what_is_acknowledged_under_the_next_leader_is_not_renewed() -> None:
    scene = Scene()
    handle = await scene.begin()
    await scene.pass_time(10)
    scene.change_leader()
    scene.sessions.touch(CLIENT)
    scene.renewals.adopt("g", CLIENT)
    assert [*scene.renewals._open] == [handle]
    scene.renewals.forget(handle)
    await scene.pass_time(40)
    assert not scene.renewals._open
    scene.renewals.stop()


def test_leases_of_an_attempt_are_known_by_their_client() -> None:
    one, other = attempt_mark(CLIENT, "one"), attempt_mark(CLIENT, "other")
    assert one != other
    assert one != attempt_mark("client-2", "one")
    assert mark_of(attempted(one, 0)) == mark_of(attempted(other, 255)) == client_mark(CLIENT)


@on_loop
async def test_a_receive_that_is_repeated_at_the_next_leader_is_what_is_renewed() -> None:
    scene = Scene()
    await scene.node.topic("t", 1)
    await scene.node.send("t", b"x")
    attempt = attempt_mark(CLIENT, "one")
    (lost,) = await scene.received(attempt)
    scene.change_leader()
    scene.sessions.touch(CLIENT)
    scene.renewals.adopt("g", CLIENT)
    (again,) = await scene.received(attempt)
    scene.renewals.add("g", PATH, [again], 60_000)
    assert {one.lease for one in scene.renewals._open} == {lost.lease, again.lease}
    for _ in range(5):
        scene.sessions.touch(CLIENT)
        await scene.pass_time(40)
        assert await scene.received(attempt_mark(CLIENT, "other")) == []
    assert [one.lease for one in scene.renewals._open] == [again.lease]
    scene.renewals.stop()
