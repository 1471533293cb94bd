"""Three real processes: followers serve readers that are far behind or in their zone, show only
what is committed, and lose no reader when they die.
"""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from mq.wire.v1 import consumer_pb2
from tests.conformance.calls import CHANNEL_OPTIONS, Calls, bodies_in, numbers, refusal_of, until
from tests.conformance.streams import SubscribeStream, placed
from tests.support.broker_set import BrokerSet
from tests.support.raft_cluster import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC = "t"
BODY_BYTES = 8 << 10
# Four of the backlogs below, so that a reader has some way to go before it is sent back.
COUNT = 512
FLAGS = ("--broker-backlog-bytes", "1MiB", "--store-flush", "async")


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerSet]:
    """Each in a zone of its own, with a second listener, and an old backlog in queue 0."""
    found = BrokerSet(tmp_path_factory.mktemp("followers"), *FLAGS)
    for name, node in found.nodes.items():
        external = ("--broker-external-listen", f"127.0.0.1:{free_port()}")
        node._flags += ("--broker-zone", f"zone-{name}", *external)
    with found:
        with called(found, found.leader()) as leader:
            leader.create(TOPIC)
            for at in range(0, COUNT, 64):
                leader.send(TOPIC, *(body + bytes(BODY_BYTES) for body in numbers(64, at)))
        found.wait_same()
        yield found


@contextmanager
def connected(address: str) -> Iterator[grpc.Channel]:
    options = [*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(address, options=options) as channel:
        yield channel


@contextmanager
def called(brokers: BrokerSet, name: str) -> Iterator[Calls]:
    with connected(brokers.address(name)) as channel:
        yield Calls(channel)


def pull(calls: Calls, queue_offset: int = 0, **fields: Any) -> Any:
    fields = {"any_replica": True, "messages_max": 50, **fields}
    return calls("Pull", topic=TOPIC, queue_id=0, queue_offset=queue_offset, **fields)


def addresses(brokers: BrokerSet, *names: str) -> set[str]:
    return {brokers.address(name) for name in names}


def read_on(brokers: BrokerSet, address: str, queue_offset: int) -> tuple[list[bytes], int]:
    """From a follower until it sends its reader back to the leader; where it goes on then."""
    found: list[bytes] = []
    with connected(address) as channel:
        calls = Calls(channel)
        while True:
            answer = pull(calls, queue_offset)
            found += bodies_in(answer.runs)
            queue_offset = answer.next_offset
            if answer.read_from:
                assert answer.read_from == brokers.address(brokers.leader())
                return found, queue_offset
            assert answer.status == consumer_pb2.PULL_FOUND


def test_a_reader_far_behind_goes_to_a_follower_and_comes_back(brokers: BrokerSet) -> None:
    leader = brokers.leader()
    others = addresses(brokers, *brokers.others(leader))
    with called(brokers, leader) as calls:
        # Not always the same; and not before they have nearly all of it.
        until(lambda: {pull(calls).read_from for _ in range(4)} == others)
        first = pull(calls)
        assert not pull(calls, COUNT - 1).read_from
        assert not pull(calls, any_replica=False).read_from
        found, at = read_on(brokers, first.read_from, first.next_offset)
        assert at < COUNT, "it is sent back before the end"
        rest = pull(calls, at, messages_max=0)
        assert not rest.read_from, "and stays"
        whole = [*bodies_in(first.runs), *found, *bodies_in(rest.runs)]
        assert [body[:8] for body in whole] == numbers(COUNT)[: len(whole)]
    for name in brokers.others(leader):
        with called(brokers, name) as calls:
            assert calls.refused("Pull", topic=TOPIC).code == "NOT_LEADER", "as it ever was"


def test_a_stream_is_redirected_and_resumed(brokers: BrokerSet) -> None:
    leader = brokers.leader()
    others = addresses(brokers, *brokers.others(leader))
    with (
        connected(brokers.address(leader)) as channel,
        SubscribeStream(channel, "g", TOPIC, takes_redirects=True) as member,
    ):
        assert set(member.assigned()) == {0, 1, 2, 3}
        redirect = member.next().redirect
        assert (redirect.queue_id, redirect.queue_offset, redirect.epoch) == (0, 0, 0)
        assert redirect.address in others
        found, at = read_on(brokers, redirect.address, 0)
        assert len(found) == at
        member.progress(0, at - 10)
        calls = Calls(channel)
        until(lambda: calls.committed("g", TOPIC).get(0) == at - 10)
        position = consumer_pb2.QueuePosition(topic=TOPIC, queue_id=0, queue_offset=at)
        resume = consumer_pb2.Resume(positions=[position])
        member.send(consumer_pb2.SubscribeRequest(resume=resume))
        end = COUNT
        while at < end:
            for _, queue_offset, body in placed(member.delivery()):
                assert (queue_offset, body[:8]) == (at, numbers(1, at)[0])
                at += 1
        # One that comes back starts as any other: it is far behind, and redirected again.
        position = consumer_pb2.QueuePosition(topic=TOPIC, queue_id=0)
        member.send(consumer_pb2.SubscribeRequest(seek=consumer_pb2.Seek(positions=[position])))
        assert member.assigned()[0].epoch == 1
        again = member.next().redirect
        assert (again.queue_offset, again.epoch) == (0, 1)
    with (
        connected(brokers.address(leader)) as channel,
        SubscribeStream(channel, "g", TOPIC, takes_redirects=True) as member,
    ):
        member.until_assigned(0, 1, 2, 3)
        assert member.next().redirect.queue_offset == 0


def test_a_reader_stays_in_its_zone_also_at_the_end(brokers: BrokerSet) -> None:
    leader = brokers.leader()
    name = brokers.others(leader)[0]
    zone = f"zone-{name}"
    with called(brokers, leader) as calls, called(brokers, name) as follower:
        assert pull(calls, COUNT - 1, zone=zone).read_from == brokers.address(name)
        assert not pull(calls, COUNT - 1, zone=f"zone-{leader}").read_from
        end = calls.ends(TOPIC)[1]
        here = {"topic": TOPIC, "queue_id": 1, "any_replica": True, "zone": zone}
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(follower, "Pull", queue_offset=end, wait_ms=30_000, **here)
            calls.send(TOPIC, b"news", queue_id=1)
            answer = waiting.result()
        assert (bodies_in(answer.runs), answer.read_from) == ([b"news"], "")
        # From anywhere else it is sent to the leader, at once.
        elsewhere = follower("Pull", queue_offset=end + 1, wait_ms=30_000, **{**here, "zone": ""})
        assert elsewhere.read_from == brokers.address(leader)


def test_clients_of_the_external_listener_are_redirected_to_external_addresses(
    brokers: BrokerSet,
) -> None:
    leader = brokers.leader()
    external = {name: _external(brokers, name) for name in brokers.nodes}
    with connected(external[leader]) as channel:
        answer = pull(Calls(channel))
        assert answer.read_from in {external[name] for name in brokers.others(leader)}
    with connected(external[brokers.others(leader)[0]]) as channel:
        answer = pull(Calls(channel), COUNT - 1)
        assert answer.read_from == external[leader]


def _external(brokers: BrokerSet, name: str) -> str:
    flags = brokers.nodes[name]._flags
    return flags[flags.index("--broker-external-listen") + 1]


def test_nothing_is_shown_that_no_majority_has(brokers: BrokerSet) -> None:
    """The leader alone has it in its log: it is in no queue, there or elsewhere."""
    leader = brokers.leader()
    frozen = [brokers.nodes[name].pid for name in brokers.others(leader)]
    with called(brokers, leader) as calls, ThreadPoolExecutor() as pool:
        end = calls.ends(TOPIC)[2]
        here = {"topic": TOPIC, "queue_id": 2, "queue_offset": end, "any_replica": True}
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        try:
            before = _last_index(brokers, leader)
            sending = pool.submit(calls.send, TOPIC, b"alone", queue_id=2)
            until(lambda: _last_index(brokers, leader) > before, "it is in the leader's log")
            for _ in range(5):
                answer = calls("Pull", zone=f"zone-{leader}", **here)
                assert (answer.status, answer.end) == (consumer_pb2.PULL_END, end)
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
        # Whatever becomes of it: all agree on it.
        outcome = sending.exception()
    brokers.leader()
    brokers.wait_same()
    shown = []
    for name in brokers.nodes:
        with called(brokers, name) as calls:
            answer = calls("Pull", zone=f"zone-{name}", **here)
            shown.append(bodies_in(answer.runs))
    assert shown in ([[b"alone"]] * 3, [[]] * 3)
    assert shown[0] or outcome is not None, "what was acknowledged is there"


def _last_index(brokers: BrokerSet, name: str) -> int:
    status = brokers.status(name)
    assert status is not None
    return status.last_index


def test_a_follower_that_dies_loses_no_reader(brokers: BrokerSet) -> None:
    """The last test of this set: two of three are dead in the end."""
    leader = brokers.leader()
    with called(brokers, leader) as calls:
        first = pull(calls)
        (dead,) = (name for name in brokers.nodes if brokers.address(name) == first.read_from)
        (left,) = brokers.others(leader, dead)
        with called(brokers, dead) as follower:
            assert pull(follower, first.next_offset).status == consumer_pb2.PULL_FOUND
            brokers.nodes[dead].kill()
            with pytest.raises(grpc.RpcError):
                pull(follower, first.next_offset)
        # The leader has it, and knows soon whom not to name.
        assert bodies_in(pull(calls, first.next_offset).runs)
        until(lambda: {pull(calls).read_from for _ in range(4)} == addresses(brokers, left))
    brokers.nodes[leader].kill()
    with called(brokers, left) as calls:

        def refused() -> bool:
            try:
                pull(calls)
            except grpc.RpcError as error:
                return refusal_of(error).code == "NOT_LEADER"
            return False

        until(refused, "a node that follows nobody sends its readers away")
