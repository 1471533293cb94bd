"""Where a new group of RocketMQ's consumers begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from mq.rpc.access import Rules
from mq.rpc.rocketmq import receiving
from mq.rpc.rocketmq.calls import Call, Calls
from mq.rpc.rocketmq.forwarding import Forwarder
from mq.rpc.rocketmq.receiving import Receiving
from mq.rpc.rocketmq.renewing import Renewals
from mq.rpc.rocketmq.sessions import Sessions
from mq.wire.rocketmq import definition_pb2 as pb
from mq.wire.rocketmq import service_pb2 as service
from tests.support.consensus import Node, on_loop

if TYPE_CHECKING:
    import pytest

    from mq.rpc.context import Context


class FakeCall:
    """A call of one client, whose answers are kept."""

    caller: Any = None

    def __init__(self) -> None:
        self.written: list[service.ReceiveMessageResponse] = []

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def header(self, name: str) -> str | None:
        return "client-1" if name == "x-mq-client-id" else None

    def time_remaining(self) -> float | None:
        return 10.0

    def add_done_callback(self, callback: Any) -> None:
        callback()

    async def write(self, data: bytes) -> None:
        self.written.append(service.ReceiveMessageResponse.FromString(data))


class Scene:
    def __init__(self) -> None:
        self.node = Node()
        broker = self.node.broker
        rules, forwarder = Rules(broker), Forwarder(broker, cast("Any", None))
        self.calls = Calls(broker, lambda *_: None, forwarder)
        sessions = Sessions(broker, cast("Any", None))
        renewals = Renewals(broker, sessions)
        self.receiving = Receiving(broker, "set-0", rules, self.calls, sessions, renewals)

    def call(self) -> tuple[FakeCall, Call]:
        made = FakeCall()
        return made, self.calls.call(cast("Context", made))

    async def begin(self) -> None:
        subscription = pb.Subscription(group=pb.Resource(name="g"))
        subscription.subscriptions.add(topic=pb.Resource(name="t"))
        await self.receiving.begin_group(subscription, self.call()[1])

    async def bodies(self) -> list[bytes]:
        request = service.ReceiveMessageRequest(batch_size=10, group=pb.Resource(name="g"))
        request.message_queue.topic.name = "t"
        made, call = self.call()
        await self.receiving.receive(request, call)
        return [one.message.body for one in made.written if one.HasField("message")]


@on_loop
async def test_a_group_of_a_short_topic_begins_with_its_first_message() -> None:
    scene = Scene()
    await scene.node.topic("t", 1)
    await scene.node.send("t", b"before")
    await scene.begin()
    await scene.node.send("t", b"after")
    assert await scene.bodies() == [b"before", b"after"]


def test_a_group_of_a_long_topic_begins_with_what_is_sent_after_its_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiving, "_SMALL_QUEUE", 0)
    _begins_with_what_comes()


@on_loop
async def _begins_with_what_comes() -> None:
    scene = Scene()
    await scene.node.topic("t", 1)
    await scene.node.send("t", b"before")
    await scene.begin()
    await scene.node.send("t", b"after")
    assert await scene.bodies() == [b"after"]
