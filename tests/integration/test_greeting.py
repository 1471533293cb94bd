"""Greetings to brokers that are slow, gone, or talk nonsense: the others are heard all the same."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import TYPE_CHECKING

from mq.broker.directory import Directory
from mq.errors import IllegalRequest
from mq.rpc import greeting, methods
from mq.rpc.access import any_caller
from mq.rpc.greeting import Greeter
from mq.rpc.http2 import Http2Listener
from mq.rpc.tls import BrokerChannel
from mq.wire.v1.cluster_pb2 import GreetRequest, GreetResponse, PeerSet
from tests.support.consensus import Node, eventually, on_loop
from tests.support.raft_cluster import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import pytest

    Answer = Callable[[GreetRequest], Awaitable[GreetResponse | bytes]]


@contextlib.asynccontextmanager
async def serving(answer: Answer, port: int = 0) -> AsyncIterator[str]:
    """A broker that answers greetings so, and nothing else; its address."""

    async def greet(request: GreetRequest, _: object) -> GreetResponse | bytes:
        return await answer(request)

    broker = Node().broker
    dispatcher = methods.Dispatcher(
        broker.leadership, broker.gate, lambda *_: None, lambda error, _: error
    )
    method = methods.unary("Greet", GreetRequest, greet, any_caller, leader_only=False)
    handlers = {"/mq.v1.ClusterService/Greet": dispatcher.handler("ClusterService", method)}
    server = Http2Listener(handlers, 1 << 20, 100)
    bound = server.bind("127.0.0.1", port)
    await server.start()
    try:
        yield f"127.0.0.1:{bound}"
    finally:
        await server.stop(0)


@contextlib.asynccontextmanager
async def greeting_to(monkeypatch: pytest.MonkeyPatch, *seeds: str) -> AsyncIterator[Directory]:
    """The greeting of a broker that greets quickly."""
    monkeypatch.setattr(greeting, "PERIOD_S", 0.02)
    node = Node(seeds=",".join(seeds))
    directory = node.broker.directory
    # Its own set has another node, which is not there.
    task = asyncio.create_task(Greeter(directory, node.broker.steady_ms, BrokerChannel).run())
    try:
        yield directory
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def known(directory: Directory) -> list[str]:
    return [one.name for one in directory.sets(0)]


def was_heard(directory: Directory, before_ms: int) -> bool:
    return "b" in directory._others and directory._others["b"].heard_ms > before_ms


def good(name: str, address: str = "") -> Answer:
    async def answer(_: GreetRequest) -> GreetResponse:
        response = GreetResponse()
        response.broker_set.name, response.broker_set.leader_id = name, "n0"
        if address:
            response.broker_set.nodes.add(node_id="n0", address=address)
        return response

    return answer


async def hangs(_: GreetRequest) -> bytes:
    await asyncio.sleep(3_600)
    raise AssertionError


async def babbles(_: GreetRequest) -> bytes:
    return b"\xff\xff\xff"


async def refuses(_: GreetRequest) -> bytes:
    raise IllegalRequest("go away")


async def fails(_: GreetRequest) -> bytes:
    raise ZeroDivisionError


@on_loop
async def test_nonsense_ends_nothing_and_a_set_that_hangs_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        seeds = [
            await stack.enter_async_context(serving(answer))
            for answer in (hangs, babbles, refuses, fails, good("no name"), good("b"))
        ]
        seeds += [f"127.0.0.1:{free_port()}", "no.such.host.invalid:1"]
        directory = await stack.enter_async_context(greeting_to(monkeypatch, *seeds))
        # All but the one that hangs have been asked.
        await eventually(lambda: directory._tried.issuperset(seeds[1:-1]))
        assert known(directory) == ["b", "set-0"]
        heard_ms = directory._others["b"].heard_ms
        await eventually(lambda: directory._others["b"].heard_ms > heard_ms)
        assert {name for name, _ in directory.targets()} == {"", "b", "set-0"}
    assert "go away" in caplog.text
    assert "a greeting failed by a mistake" not in caplog.text


@on_loop
async def test_where_the_leader_is_silent_another_one_of_its_set_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = f"127.0.0.1:{free_port()}"
    async with serving(good("b", gone)) as alive, greeting_to(monkeypatch, alive) as directory:
        await eventually(lambda: known(directory) == ["b", "set-0"])
        assert dict(directory.targets())["b"] == [gone, alive]
        heard_ms = directory._others["b"].heard_ms
        await eventually(lambda: directory._others["b"].heard_ms > heard_ms + 50)


@on_loop
async def test_a_live_broker_behind_a_dead_one_is_greeted_in_the_first_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(greeting, "PERIOD_S", 3_600)
    node = Node()
    async with serving(good("b")) as alive:
        places = [f"127.0.0.1:{free_port()}", alive]
        node.machine.state.sets.put(PeerSet(name="b", addresses=places))
        task = asyncio.create_task(
            Greeter(node.broker.directory, node.broker.steady_ms, BrokerChannel).run()
        )
        await eventually(lambda: known(node.broker.directory) == ["b", "set-0"])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@on_loop
async def test_a_set_that_comes_back_is_heard_again(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    async with greeting_to(monkeypatch, f"127.0.0.1:{port}") as directory:
        for _ in range(2):
            async with serving(good("b"), port):
                before_ms = directory._others["b"].heard_ms if directory._others else -1
                await eventually(functools.partial(was_heard, directory, before_ms))
            await eventually(lambda: directory._others["b"].failures > 0)
        assert known(directory) == ["b", "set-0"]
