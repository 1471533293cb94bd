"""Requests and replies against a real broker: many at once, failures, and processes that die in
between.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from mq.client import Message, Producer, PullConsumer, ReceivedMessage, Replier, Requester, aio
from mq.errors import IllegalConfig, IllegalTopic, RequestFailed, RequestTimeout
from tests.support.broker_process import BrokerProcess
from tests.support.topics import create_topic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process.address


def echo(request: ReceivedMessage) -> bytes:
    return request.body


def test_each_of_many_requests_at_once_gets_its_own_reply(server: str, name: str) -> None:
    with (
        Replier(server, name, name, echo),
        Requester(server) as left,
        Requester(server) as right,
        ThreadPoolExecutor(20) as pool,
    ):
        asked = [
            (body, pool.submit(requester.request, name, body, DEADLINE_S))
            for n in range(100)
            for requester, body in ((left, b"left %d" % n), (right, b"right %d" % n))
        ]
        for body, reply in asked:
            assert reply.result(DEADLINE_S).body == body


def test_a_message_with_all_that_belongs_to_it_comes_and_goes(server: str, name: str) -> None:
    seen: list[ReceivedMessage] = []

    def answer(request: ReceivedMessage) -> Message:
        seen.append(request)
        return Message(b"fine", keys=["k"], properties={"unit": "EUR"})

    with Replier(server, name, name, answer), Requester(server) as requester:
        given = Message(b"price?", tag="shop", properties={"item": "7"})
        reply = requester.request(name, given, DEADLINE_S)
    assert (seen[0].body, seen[0].tag, seen[0].properties["item"]) == (b"price?", "shop", "7")
    assert (reply.body, reply.keys, reply.properties["unit"]) == (b"fine", ("k",), "EUR")
    assert reply.topic == "REPLIES"


def test_an_exception_of_the_handler_is_raised_by_the_request(server: str, name: str) -> None:
    def answer(request: ReceivedMessage) -> object:
        if request.body == b"odd":
            raise ValueError("only even ones")
        return 7

    with Replier(server, name, name, answer) as _, Requester(server) as requester:  # type: ignore[arg-type]
        with pytest.raises(RequestFailed, match="ValueError: only even ones"):
            requester.request(name, b"odd", DEADLINE_S)
        with pytest.raises(RequestFailed, match="TypeError: a message, bytes or text, not int"):
            requester.request(name, b"even", DEADLINE_S)


def test_a_request_without_a_reply_times_out_and_a_late_reply_is_dropped(
    server: str, name: str
) -> None:
    may_reply = threading.Event()

    def late(request: ReceivedMessage) -> bytes:
        if request.body == b"first":
            may_reply.wait(DEADLINE_S)
        return request.body

    create_topic(server, name, 1)
    with Requester(server, timeout_s=0.3) as requester:
        with pytest.raises(RequestTimeout, match=r"within 0\.3 s"):
            requester.request(name, b"first")
        with Replier(server, name, name, late, start="earliest"):
            may_reply.set()
            assert requester.request(name, b"second", DEADLINE_S).body == b"second"
        assert requester._client._waiting == {}


def test_a_message_that_is_no_request_stops_no_replier(server: str, name: str) -> None:
    with Replier(server, name, name, echo), Requester(server) as requester:
        with Producer(server) as producer:
            producer.send(name, b"no request")
            lost = {"reply-to": "not/a/topic", "reply-tag": "x", "correlation-id": "1"}
            producer.send(name, Message(b"nowhere", properties=lost))
        assert requester.request(name, b"x", DEADLINE_S).body == b"x"


def test_a_requester_has_its_own_reply_topic_when_it_wants(server: str, name: str) -> None:
    with (
        Replier(server, name, name, echo),
        Requester(server, reply_topic=f"{name}-replies") as requester,
    ):
        assert requester.request(name, b"x", DEADLINE_S).topic == f"{name}-replies"


def test_wrong_use_is_refused(server: str) -> None:
    with pytest.raises(IllegalConfig):
        Requester(server, timeout_s=0)
    with pytest.raises(IllegalTopic):
        Requester(server, reply_topic="not/a/topic")
    with Requester(server) as requester, pytest.raises(IllegalTopic):
        requester.request("not/a/topic", b"x", DEADLINE_S)


def test_requests_leave_no_group_behind(server: str, name: str) -> None:
    with Replier(server, name, name, echo), Requester(server) as requester:
        requester.request(name, b"x", DEADLINE_S)
        tag = requester._client._tag
    with PullConsumer(server, f"requester-{tag}") as consumer:
        assert consumer.committed() == {}


def test_with_asyncio(server: str, name: str) -> None:
    async def answer(request: ReceivedMessage) -> str:
        await asyncio.sleep(0)
        return request.body.decode().upper()

    async def main() -> list[bytes]:
        async with (
            aio.Replier(server, name, name, answer),
            aio.Requester(server, timeout_s=DEADLINE_S) as requester,
        ):
            asked = [requester.request(name, f"n{n}") for n in range(50)]
            return [reply.body for reply in await asyncio.gather(*asked)]

    assert asyncio.run(main()) == [b"N%d" % n for n in range(50)]


def start_replier(server: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.replier_process", server, "g", "work"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    # What waits for it may come before it has said that it is there.
    while (line := process.stdout.readline()) != "serves\n":
        assert line == "works\n"
    return process


def test_a_request_survives_its_replier_and_the_broker(tmp_path: Path) -> None:
    """Both are killed while a requester waits; their successors reply."""
    with BrokerProcess(tmp_path / "data") as broker, ThreadPoolExecutor(4) as pool:
        create_topic(broker.address, "work", 1)
        first = start_replier(broker.address)
        with Requester(broker.address, timeout_s=DEADLINE_S) as requester:
            assert requester.request("work", b"warm").body == b"warm"
            asked = pool.submit(requester.request, "work", b"slow one")
            assert first.stdout is not None
            assert first.stdout.readline() == "works\n"
            first.kill()
            first.communicate()
            broker.kill()
            broker.start()
            second = start_replier(broker.address)
            try:
                assert asked.result(DEADLINE_S).body == b"slow one"
                assert requester.request("work", b"after").body == b"after"
            finally:
                second.kill()
                second.communicate()
