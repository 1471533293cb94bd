"""A stream is kept to the leader of a set, whatever the brokers do: the story of each fail-over,
told once for Publish, Transact and Subscribe.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Callable, Coroutine
from typing import Any

import grpc.aio
import pytest

from mq.client.cluster.channels import Channels
from mq.client.cluster.connection import Connection
from mq.client.cluster.errors import REFUSALS
from mq.client.cluster.leader_stream import BrokerStream, LeaderStream, Patience
from mq.errors import ClientClosed, Internal, MqError, NoLeader, NotLeader, Unreachable
from mq.wire.v1 import status_pb2
from mq.wire.v1.cluster_pb2 import BrokerSet, NodeRoute, RouteResponse
from mq.wire.v1.producer_pb2 import PublishRequest
from tests.unit.client.producer.scripted_brokers import rpc_error
from tests.unit.client.virtual_time import run

EAGER = Patience(owed_s=1.0, idle_s_min=0.5, idle_s_max=2.0, search_s=1.0)
PUBLISHES = Patience(owed_s=1.0, search_s=1.0)


class Call:
    """A stream that echoes, as grpc.aio shows it to a client."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        self.address = address
        self.is_over = self.is_half_closed = False
        self._cluster = cluster
        self._answers: asyncio.Queue[Any] = asyncio.Queue()

    async def wait_for_connection(self) -> None:
        if self.address in self._cluster.unconnectable:
            await asyncio.Event().wait()
        if self.address in self._cluster.down:
            raise rpc_error()

    async def write(self, data: bytes) -> None:
        if self.is_over:
            raise asyncio.InvalidStateError
        if self.address not in self._cluster.frozen:
            self._answers.put_nowait(data)

    async def read(self) -> Any:
        answer = await self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def done_writing(self) -> None:
        self.is_half_closed = True
        if self.address not in self._cluster.frozen:
            self.end(grpc.aio.EOF)

    def cancel(self) -> bool:
        self.end(asyncio.CancelledError())
        return True

    def end(self, last: object) -> None:
        if not self.is_over:
            self.is_over = True
            self._answers.put_nowait(last)


class Cluster(Channels):
    """One set of brokers at a:1, b:1 and c:1."""

    def __init__(self, *addresses: str) -> None:
        super().__init__()
        self.addresses = addresses or ("a:1", "b:1", "c:1")
        self.leader, self.term = "a:1", 1
        self.down: set[str] = set()
        self.frozen: set[str] = set()
        self.unconnectable: set[str] = set()
        # By address: who leads, and the term, by the word of a broker that lags behind.
        self.stale: dict[str, tuple[str, int]] = {}
        self.calls: list[Call] = []
        self.asked: list[tuple[str, float]] = []

    async def ask(self, address: str, *_: Any, **__: Any) -> RouteResponse:
        now_s = asyncio.get_running_loop().time()
        self.asked.append((address, now_s))
        await asyncio.sleep(0)
        if address in self.down or address in self.frozen:
            raise Unreachable(f"{address} is down")
        leader, term = self.stale.get(address, (self.leader, self.term))
        nodes = [NodeRoute(node_id=one, address=one) for one in self.addresses]
        told = BrokerSet(name="s", leader_id=leader, term=term, nodes=nodes)
        return RouteResponse(broker_sets=[told])

    def stream(self, address: str, *_: Any, **__: Any) -> Any:
        call = Call(self, address)
        self.calls.append(call)
        return call

    def elect(self, leader: str) -> None:
        self.leader, self.term = leader, self.term + 1

    def kill(self, address: str) -> None:
        self.down.add(address)
        for call in self.calls:
            if call.address == address:
                call.end(rpc_error())


class User:
    """Counts what it sent, on which stream, and what came back."""

    def __init__(self, cluster: Cluster, patience: Patience, *, overlaps: bool = False) -> None:
        connection = Connection(cluster.addresses)
        connection.channels = cluster
        self.is_wanted = True
        self.served: list[BrokerStream] = []
        self.ends: list[tuple[str, MqError | None]] = []
        self.failures: list[tuple[str, MqError]] = []
        self.received: list[bytes] = []
        self.sent_s: dict[BrokerStream, float] = {}
        self.on_data: Callable[[bytes], None] = self._got
        self.streams = LeaderStream(
            connection.of("s"), PublishRequest, self, patience, overlaps=overlaps
        )
        self.connection = connection

    async def send(self, data: bytes) -> None:
        stream = self.streams.current
        assert stream is not None
        self.sent_s.setdefault(stream, asyncio.get_running_loop().time())
        assert await stream.write(data)

    def _got(self, data: bytes) -> None:
        self.received.append(data)

    @property
    def address(self) -> str:
        return self.streams.current.address if self.streams.current is not None else ""

    async def at(self, address: str, within_s: float = 30.0) -> float:
        """Waits until the stream is there; how long it took."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with asyncio.timeout(within_s):
            while self.address != address:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.01)
        return loop.time() - began_s

    # Called by the stream

    def wants_stream(self) -> bool:
        return self.is_wanted

    async def serve(self, stream: BrokerStream) -> None:
        self.served.append(stream)
        try:
            while (data := await stream.read()) is not None:
                self.sent_s.pop(stream, None)
                self.on_data(data)
        except MqError as error:
            self.ends.append((stream.address, error))
            raise
        self.ends.append((stream.address, None))

    def owed_since_s(self, stream: BrokerStream) -> float:
        return self.sent_s.get(stream, math.inf)

    def stream_failed(self, error: MqError, address: str) -> None:
        self.failures.append((address, error))


Story = Callable[[Cluster, User], Coroutine[Any, Any, None]]


def tell(story: Story, patience: Patience = EAGER, *addresses: str, overlaps: bool = False) -> None:
    async def main() -> None:
        cluster = Cluster(*addresses)
        user = User(cluster, patience, overlaps=overlaps)
        user.streams.open()
        await user.at("a:1")
        await story(cluster, user)
        await user.streams.finish(0.0)
        await user.connection.close()
        assert len(asyncio.all_tasks()) == 1, "nothing is left behind"

    run(main())


def test_a_stream_that_breaks_is_opened_at_the_next_leader() -> None:
    async def story(cluster: Cluster, user: User) -> None:
        cluster.elect("b:1")
        cluster.kill("a:1")
        assert await user.at("b:1") < 0.2
        await user.send(b"x")
        await asyncio.sleep(0.01)
        assert user.received == [b"x"]
        assert [address for address, _ in user.failures] == ["a:1"]
        assert user.streams.trouble is None, "it is over"

    tell(story)


def test_a_stream_that_ends_with_the_name_of_the_leader_is_followed_there_without_asking() -> None:
    async def story(cluster: Cluster, user: User) -> None:
        asked = len(cluster.asked)
        cluster.calls[-1].end(rpc_error("c:1"))
        assert await user.at("c:1") < 0.1
        assert len(cluster.asked) == asked
        ((address, error),) = user.failures
        assert address == "a:1"
        assert isinstance(error, NotLeader)

    tell(story)


def test_a_broker_that_leads_no_more_is_left_at_once_and_still_answers() -> None:
    async def story(cluster: Cluster, user: User) -> None:
        await user.send(b"late")
        stream, call = user.streams.current, cluster.calls[-1]
        assert stream is not None
        user.streams.broker_set.not_leader("a:1", "b:1")
        user.streams.leave(stream)
        user.streams.leave(stream)
        assert user.streams.current is None
        assert await user.at("b:1") < 0.02, "without a pause"
        assert call.is_half_closed
        assert user.received == [b"late"]
        assert user.ends == [("a:1", None)]
        assert user.failures == []

    tell(story)


def test_a_former_leader_that_owes_an_answer_and_is_silent_is_broken_off() -> None:
    async def story(cluster: Cluster, user: User) -> None:
        cluster.frozen.add("a:1")
        await user.send(b"lost")
        assert user.streams.current is not None
        user.streams.broker_set.not_leader("a:1", "b:1")
        user.streams.leave(user.streams.current)
        await user.at("b:1")
        await asyncio.sleep(2)
        assert [address for address, _ in user.ends] == ["a:1"]
        assert user.address == "b:1"

    tell(story, PUBLISHES)


def test_a_silent_leader_that_owes_an_answer_is_left_when_others_have_a_new_one() -> None:
    async def story(cluster: Cluster, user: User) -> None:
        await asyncio.sleep(60)
        asked = len(cluster.asked)
        cluster.frozen.add("a:1")
        cluster.elect("b:1")
        await user.send(b"lost")
        assert 1.0 < await user.at("b:1") < 1.3
        ((_, error),) = user.failures
        assert "b:1 leads s now, not a:1" in str(error)
        assert len(cluster.asked) > asked

    tell(story, PUBLISHES)


def test_a_silent_leader_is_kept_while_the_others_believe_in_it() -> None:
    async def story(cluster: Cluster, user: User) -> None:
        cluster.frozen.add("a:1")
        await user.send(b"slow")
        await asyncio.sleep(20)
        assert user.address == "a:1"
        # Not asked more often than it is worth.
        assert 15 <= len([one for one, at_s in cluster.asked if at_s > 1001]) <= 45

    tell(story, PUBLISHES)


def test_a_leader_that_owes_nothing_is_not_suspected_if_that_is_not_wanted() -> None:
    async def story(cluster: Cluster, user: User) -> None:
        asked = len(cluster.asked)
        cluster.frozen.add("a:1")
        await asyncio.sleep(600)
        assert len(cluster.asked) == asked
        assert user.address == "a:1"

    tell(story, PUBLISHES)


@pytest.mark.parametrize("patience", [EAGER, Patience(idle_s_min=5.0, idle_s_max=5.0)])
def test_an_idle_stream_is_moved_when_another_broker_leads(patience: Patience) -> None:
    async def story(cluster: Cluster, user: User) -> None:
        await asyncio.sleep(100)
        cluster.frozen.add("a:1")
        cluster.elect("c:1")
        assert await user.at("c:1") <= patience.idle_s_max + 0.2

    tell(story, patience)


def test_the_longer_the_silence_the_less_often_others_are_asked() -> None:
    async def story(cluster: Cluster, user: User) -> None:
        await asyncio.sleep(1)
        cluster.asked.clear()
        await user.send(b"x")
        began_s = asyncio.get_running_loop().time()
        await asyncio.sleep(20)
        times = [at_s - began_s for _, at_s in cluster.asked]
        assert times[0] == pytest.approx(0.5, abs=0.1)
        gaps = [b - a for a, b in itertools.pairwise(times)]
        assert gaps == sorted(gaps)
        assert gaps[-1] == pytest.approx(2.0, abs=0.1)

    tell(story)


def test_an_idle_stream_does_not_follow_a_broker_that_knows_less() -> None:
    async def story(cluster: Cluster, user: User) -> None:
        cluster.elect("b:1")
        cluster.calls[-1].end(rpc_error("b:1"))
        await user.at("b:1")
        # The word of its own term, and of an older one.
        cluster.stale = {"a:1": ("a:1", 1), "c:1": ("a:1", 1)}
        await asyncio.sleep(60)
        assert user.address == "b:1"
        assert len(user.served) == 2

    tell(story)


def test_a_stream_opened_by_a_stale_hint_is_left_when_its_broker_does_not_answer() -> None:
    async def story(cluster: Cluster, user: User) -> None:
        cluster.frozen.add("c:1")
        cluster.calls[-1].end(rpc_error("c:1"))
        await user.at("c:1")
        await user.send(b"lost")
        assert await user.at("a:1") < 1.5

    tell(story, PUBLISHES)


@pytest.mark.parametrize("needs_answer", [False, True])
def test_whether_a_stream_is_kept_while_no_broker_answers(needs_answer: bool) -> None:
    patience = EAGER._replace(needs_answer=needs_answer)

    async def story(cluster: Cluster, user: User) -> None:
        cluster.frozen |= set(cluster.addresses)
        await asyncio.sleep(10)
        assert (user.address == "") is needs_answer

    tell(story, patience)


@pytest.mark.parametrize(("alone_s", "checks"), [(10.0, 15), (math.inf, 0)])
def test_the_only_broker_of_a_set_is_asked_as_seldom_as_its_user_says(
    alone_s: float, checks: int
) -> None:
    async def story(cluster: Cluster, _: User) -> None:
        cluster.asked.clear()
        await asyncio.sleep(100)
        assert len(cluster.asked) == pytest.approx(checks, abs=3 if checks else 0)

    tell(story, EAGER._replace(alone_s=alone_s), "a:1")


def test_while_no_broker_leads_attempts_have_pauses_that_grow_and_a_reason() -> None:
    async def story(cluster: Cluster, user: User) -> None:
        cluster.elect("")
        cluster.kill("a:1")
        await asyncio.sleep(20)
        assert isinstance(user.streams.trouble, NoLeader)
        searches = [error for address, error in user.failures if not address]
        assert 5 < len(searches) < 20
        cluster.elect("b:1")
        assert await user.at("b:1") < 1.0

    tell(story)


def test_a_leader_that_accepts_no_connection_is_given_up_after_some_seconds() -> None:
    async def story(cluster: Cluster, user: User) -> None:
        cluster.unconnectable.add("b:1")
        cluster.calls[-1].end(rpc_error("b:1"))
        await asyncio.sleep(3)
        assert "b:1: no connection within 2 s" in str(user.failures[-1][1])
        assert user.address == "a:1", "it was asked again who leads"

    tell(story, PUBLISHES)


def test_a_stream_that_ends_again_and_again_is_opened_ever_more_slowly() -> None:
    async def story(cluster: Cluster, user: User) -> None:
        for _ in range(8):
            cluster.calls[-1].end(rpc_error())
            await user.at("")
            last_s = await user.at("a:1")
        assert 0.2 < last_s <= 0.6
        await asyncio.sleep(10)
        cluster.calls[-1].end(rpc_error())
        await user.at("")
        assert await user.at("a:1") < 0.1, "one that lasted begins anew"

    tell(story, PUBLISHES)


def test_a_stream_is_opened_when_it_is_wanted_and_not_again_when_it_is_not() -> None:
    async def story(cluster: Cluster, user: User) -> None:
        user.is_wanted = False
        cluster.calls[-1].end(rpc_error())
        await asyncio.sleep(10)
        assert len(cluster.calls) == 1
        user.is_wanted = True
        user.streams.open()
        user.streams.open()
        await user.at("a:1")
        assert len(cluster.calls) == 2

    tell(story, PUBLISHES)


def test_a_mistake_of_its_user_is_logged_and_does_not_end_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)

    async def story(_: Cluster, user: User) -> None:
        def fails(_: bytes) -> None:
            user.on_data = user._got
            raise KeyError("oh")

        user.on_data = fails
        await user.send(b"x")
        await user.at("")
        await user.at("a:1")
        await user.send(b"y")
        await asyncio.sleep(0.01)
        assert user.received == [b"y"]
        ((_address, error),) = user.failures
        assert isinstance(error, Internal)

    tell(story)
    assert "KeyError" in caplog.text


def test_a_closed_connection_ends_the_search() -> None:
    async def main() -> None:
        user = User(Cluster(), EAGER)
        user.connection.channels = Channels()
        await user.connection.close()
        user.streams = LeaderStream(user.connection.of("t"), PublishRequest, user, EAGER)
        user.streams.open()
        await asyncio.sleep(10)
        ((_, error),) = user.failures
        assert isinstance(error, ClientClosed)

    run(main())


def test_a_close_waits_for_what_is_owed_and_no_longer_than_it_may() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for is_frozen in (False, True):
            cluster = Cluster()
            user = User(cluster, PUBLISHES)
            user.streams.open()
            await user.at("a:1")
            if is_frozen:
                cluster.frozen.add("a:1")
            await user.send(b"last")
            began_s = loop.time()
            await user.streams.close(0.5)
            assert user.received == ([] if is_frozen else [b"last"])
            assert loop.time() - began_s == pytest.approx(0.5 if is_frozen else 0.0)
            assert user.address == ""
            assert len(cluster.calls) == 1

    run(main())


def test_by_new_credentials_a_stream_is_opened_before_the_former_one_ends() -> None:
    async def story(cluster: Cluster, user: User) -> None:
        await user.send(b"early")
        first = user.streams.current
        cluster.credentials.generation += 1
        await asyncio.sleep(2)
        assert user.streams.current not in (None, first)
        assert [call.is_half_closed for call in cluster.calls] == [True, False]
        assert user.received == [b"early"]
        assert user.failures == []
        await asyncio.sleep(10)
        assert len(cluster.calls) == 2

    tell(story, PUBLISHES, overlaps=True)


def test_a_stream_that_must_be_the_only_one_is_broken_off_before_it_is_opened_anew() -> None:
    async def story(cluster: Cluster, user: User) -> None:
        cluster.credentials.generation += 1
        await asyncio.sleep(3)
        assert [call.is_over for call in cluster.calls] == [True, False]
        assert not cluster.calls[0].is_half_closed
        assert user.address == "a:1"
        assert user.failures == [], "nothing is wrong with the broker"

    tell(story)


def refusal(code: status_pb2.Code) -> grpc.aio.AioRpcError:
    status = status_pb2.Status(code=code, text="no")
    trailing = grpc.aio.Metadata(("mq-status-bin", status.SerializeToString()))
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAUTHENTICATED, grpc.aio.Metadata(), trailing)


@pytest.mark.parametrize("code", [status_pb2.UNAUTHENTICATED, status_pb2.PERMISSION_DENIED])
def test_a_client_that_is_refused_does_not_come_again_by_itself(code: status_pb2.Code) -> None:
    async def story(cluster: Cluster, user: User) -> None:
        cluster.calls[-1].end(refusal(code))
        await asyncio.sleep(60)
        assert len(cluster.calls) == 1
        ((_, error),) = user.failures
        assert isinstance(error, REFUSALS)
        user.streams.open()
        await user.at("a:1")

    tell(story)


def test_a_refused_key_that_was_replaced_meanwhile_is_no_refusal() -> None:
    async def story(cluster: Cluster, user: User) -> None:
        cluster.credentials.metadata = grpc.aio.Metadata(("authorization", "Bearer other"))
        cluster.calls[-1].end(refusal(status_pb2.UNAUTHENTICATED))
        await asyncio.sleep(1)
        assert len(cluster.calls) == 2
        assert user.failures == []
        assert user.address == "a:1"

    tell(story)
