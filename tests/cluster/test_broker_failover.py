"""A broker set loses its leader, as its clients see it: a pause, and nothing else."""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from mq.client import (
    Admin,
    Producer,
    PullConsumer,
    PushConsumer,
    QueueRef,
    ReceivedMessage,
    SendResults,
)
from mq.errors import NotAssigned
from mq.wire.v1 import consumer_pb2
from mq.wire.v1.status_pb2 import Status
from tests.cluster.judgement import verify
from tests.conformance.calls import Calls, prepared
from tests.conformance.streams import PublishStream, Stream
from tests.support.broker_set import BrokerSet
from tests.support.following import Following
from tests.support.history import History, Queue
from tests.support.log_compare import compare
from tests.support.raft_cluster import poll
from tests.support.recorded_clients import (
    PATIENCE_S,
    Load,
    RecordedConsumer,
    RecordedProducer,
    ask_offsets,
    drain,
    patiently,
    polling,
    pushing,
    read_to_end,
    sending_many,
    sending_one_by_one,
    told_with,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from mq.client.consumer.options import Mode

QUEUES = 4
SEED = 20_260
POLLED, SHARED, PUSHED, ORDERED = "polled", "shared", "pushed", "ordered"


@pytest.fixture(scope="module")
def broker_set(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerSet]:
    # However long the machine stalls, a member that is away for it comes back.
    flags = ("--broker-member-expires-ms", "300s")
    with BrokerSet(tmp_path_factory.mktemp("brokers"), *flags) as started:
        yield started


@pytest.fixture
def brokers(broker_set: BrokerSet) -> BrokerSet:
    """All of them run, and agree on the leader."""
    broker_set.start(*(name for name, node in broker_set.nodes.items() if not node.is_running))
    broker_set.leader()
    return broker_set


@pytest.fixture
def topic(brokers: BrokerSet, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own."""
    name = re.sub(r"\W", "-", request.node.name)[:100]
    with Admin(brokers.servers, timeout_s=PATIENCE_S) as admin:
        admin.create_topic(name, QUEUES)
    return name


class Scene:
    """Clients of a broker set, and what happens to it."""

    def __init__(self, brokers: BrokerSet, topic: str, file: Path) -> None:
        self.brokers = brokers
        self.topic = topic
        self._file = file
        self.history = History(f"{topic}, seed {SEED}")

    def told(self) -> AbstractContextManager[None]:
        return told_with(self.history, self.brokers.logs, self._file)

    def group(self, name: str) -> str:
        """As the broker knows it: each test has its own."""
        return f"{name}-{self.topic}"

    def producer(self, name: str, **settings: Any) -> RecordedProducer:
        return RecordedProducer(self.history, self.brokers.servers, name, self.topic, **settings)

    def consumer(self, group: str, member: str, **settings: Any) -> RecordedConsumer:
        name, servers = self.group(group), self.brokers.servers
        return RecordedConsumer(self.history, servers, name, self.topic, member, **settings)

    def pushing(
        self, group: str, member: str, *, mode: Mode = "clustering", work_s: float = 0.0
    ) -> AbstractContextManager[PushConsumer]:
        def work_on(_: ReceivedMessage) -> None:
            time.sleep(work_s)

        name, servers = self.group(group), self.brokers.servers
        return pushing(self.history, servers, name, self.topic, member, work_on, mode=mode)

    def end_leader(self, *, is_killed: bool) -> str:
        """Returns the former leader once another one leads."""
        former = self.brokers.leader()
        self.history.note(f"{former} leads and is {'killed' if is_killed else 'stopped'}")
        if is_killed:
            self.brokers.nodes[former].kill()
        else:
            assert self.brokers.nodes[former].stop() == 0
        self.history.note(f"{self.brokers.leader(other_than=former)} leads")
        return former

    def start(self, name: str) -> None:
        self.brokers.start(name)
        self.history.note(f"{name} is back")

    def owners(self, group: str) -> dict[QueueRef, str]:
        """By the broker's word."""
        with Admin(self.brokers.servers, timeout_s=PATIENCE_S) as admin:
            queues = admin.describe_group(group).queues
        return {QueueRef(one.topic, one.queue_id, "set-0"): one.member_id for one in queues}

    def ask_offsets(self) -> None:
        for group in self.history.groups:
            ask_offsets(self.history, self.brokers.servers, group)

    def finish(self, mode: Mode = "clustering") -> None:
        """Lets every group read to the end, and judges."""
        servers, history = self.brokers.servers, self.history
        ends = drain(history, servers, self.topic)
        assert sum(ends.values()) > 0
        for group in history.groups:
            read_to_end(history, servers, group, self.topic, ends, mode=mode)
        history.check()


@pytest.fixture
def scene(brokers: BrokerSet, topic: str, tmp_path: Path) -> Scene:
    return Scene(brokers, topic, tmp_path / "history")


# -- produce and consume ---------------------------------------------------------------------------


def test_of_many_messages_none_is_lost_or_stored_twice_when_the_leader_is_killed(
    brokers: BrokerSet, topic: str
) -> None:
    count, sent = 20_000, list[SendResults]()
    killed = threading.Event()

    def send(producer: Producer) -> None:
        """Calls one after the other, some before the leader is killed and some after it."""
        while not (killed.is_set() and len(sent) > 4):
            first = len(sent) * count
            bodies = [b"%d" % number for number in range(first, first + count)]
            sent.append(producer.send_many(topic, bodies))

    settings: dict[str, Any] = {"timeout_s": PATIENCE_S, "batch_bytes": 4_000}
    with Producer(brokers.servers, **settings) as producer, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send, producer)
        try:
            poll(lambda: bool(sent), "the first messages")
            former = brokers.kill_leader()
            brokers.leader(other_than=former)
        finally:
            killed.set()
        sending.result(PATIENCE_S)
    places = Counter((one.queue_id, one.queue_offset) for results in sent for one in results)
    assert set(places.values()) == {1}
    stored: Counter[int] = Counter()
    with PullConsumer(brokers.servers) as consumer:
        for queue in consumer.queues(topic):
            at = 0
            while page := consumer.pull(topic, queue.queue_id, at, max_messages=9_000).messages:
                stored.update(int(one.body) for one in page)
                at = page[-1].queue_offset + 1
    assert stored == Counter(range(len(sent) * count))


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
def test_a_lost_leader_costs_a_pause_and_nothing_else(scene: Scene, is_killed: bool) -> None:
    history = scene.history
    history.group(scene.group(POLLED), [scene.topic], "member")
    history.group(scene.group(SHARED), [scene.topic], "member")
    history.group(scene.group(PUSHED), [scene.topic], "none")
    single, many = scene.producer("single"), scene.producer("many")
    lone = scene.consumer(POLLED, "lone")
    pair = [scene.consumer(SHARED, member, is_alone=False) for member in ("a", "b")]
    works = [
        sending_one_by_one(single, QUEUES, SEED),
        sending_many(many, QUEUES, SEED),
        *(polling(one, SEED + at) for at, one in enumerate([lone, *pair])),
    ]
    with scene.told():
        with scene.pushing(PUSHED, "pushed"), lone, pair[0], pair[1], single, many:
            with Load(history, *works) as load:
                for _ in range(2):
                    load.wait_for_more(100)
                    scene.ask_offsets()
                    former = scene.end_leader(is_killed=is_killed)
                    scene.ask_offsets()
                    load.wait_for_more(100)
                    scene.start(former)
            # Live members come back with the messages they hold.
            assert history.repeats(scene.group(POLLED)) == []
            assert history.repeats(scene.group(PUSHED)) == []
        assert single.errors + many.errors + lone.errors == []
        # A queue that has just gone to the other one is the other one's to commit.
        assert all(isinstance(error, NotAssigned) for one in pair for error in one.errors)
        scene.finish()


def test_an_ordered_group_keeps_its_queues_over_a_fail_over(scene: Scene) -> None:
    history, group = scene.history, scene.group(ORDERED)
    history.group(group, [scene.topic], "group")
    producer = scene.producer("p")

    def member(name: str) -> AbstractContextManager[PushConsumer]:
        return scene.pushing(ORDERED, name, mode="ordered", work_s=0.002)

    work = sending_one_by_one(producer, QUEUES, SEED)
    with scene.told():
        with member("a") as first, member("b") as second, producer, Load(history, work) as load:
            both = {"a": first, "b": second}
            poll(lambda: all(len(one.assignment) == 2 for one in both.values()), "two queues each")
            load.wait_for_more(50)
            before = {name: one.assignment for name, one in both.items()}
            former = scene.end_leader(is_killed=True)
            load.wait_for_more(50)
            assert {name: one.assignment for name, one in both.items()} == before
            expected = {ref: name for name, refs in before.items() for ref in refs}
            poll(lambda: scene.owners(group) == expected, "both are back with their queues")
            scene.start(former)
            load.wait_for_more(50)
            # A member that comes in the middle of it waits until the others have let go.
            former = scene.end_leader(is_killed=True)
            with member("c") as third:
                poll(lambda: third.assignment, "the third one has a queue")
                load.wait_for_more(50)
            scene.start(former)
            load.wait_for_more(50)
        assert producer.errors == []
        assert history.repeats(group) == []
        scene.finish("ordered")


def test_messages_that_only_the_leader_had_may_be_lost_but_are_never_stored_twice(
    scene: Scene,
) -> None:
    fast, many = scene.producer("fast", ack="leader"), scene.producer("many", ack="leader")
    works = [
        sending_one_by_one(fast, QUEUES, SEED),
        sending_many(many, QUEUES, SEED),
        sending_by_hand(scene),
    ]
    with scene.told():
        with fast, many, Load(scene.history, *works) as load:
            for _ in range(2):
                load.wait_for_more(100)
                scene.start(scene.end_leader(is_killed=True))
            load.wait_for_more(100)
        assert fast.errors + many.errors == []
        scene.finish()


def sending_by_hand(scene: Scene) -> Callable[[], None]:
    """A work for `Load`: unary sends of a client that knows nothing but the protocol, and repeats
    each until it is answered.
    """
    nodes = itertools.cycle(node.address for node in scene.brokers.nodes.values())
    channels: dict[str, grpc.Channel] = {}
    sequences = itertools.count(1)
    asked = next(nodes)

    def attempt(sequence: int, body: bytes) -> Any:
        nonlocal asked
        if asked not in channels:
            channels[asked] = grpc.insecure_channel(asked)
        calls = Calls(channels[asked])
        try:
            return calls.send(scene.topic, body, producer_id="by-hand", sequence=sequence)
        except grpc.RpcError as error:
            said = dict(error.trailing_metadata() or ()).get("mq-status-bin", b"")
            asked = Status.FromString(said).leader_address or next(nodes)
            return None

    def work() -> None:
        sequence = next(sequences)
        body = b"by-hand.%d" % sequence
        send = scene.history.sending("by-hand", body)
        answer = poll(lambda: attempt(sequence, body), f"an answer to {body!r}", PATIENCE_S)
        queue = Queue(scene.topic, answer.queue_id)
        scene.history.acknowledged(send, queue, answer.queue_offset, answer.message_ids[0])

    return work


# -- what the next leader knows --------------------------------------------------------------------


def test_results_of_a_leader_are_known_to_the_next(brokers: BrokerSet, topic: str) -> None:
    batches = [
        prepared(topic, b"%d" % at, queue_id=at % QUEUES, producer_id=topic, sequence=at)
        for at in range(1, 21)
    ]
    numbered: dict[str, Any] = {"producer_id": f"{topic}-2", "sequence": 1}
    committed: dict[tuple[str, int], int] = {(topic, at): 2 + at for at in range(QUEUES)}
    with grpc.insecure_channel(brokers.address(brokers.leader())) as channel:
        with PublishStream(channel) as stream:
            firsts = [stream.result(batch) for batch in batches]
        single = Calls(channel).send(topic, b"x", **numbered)
    with PullConsumer(brokers.servers, topic) as consumer:
        patiently(lambda: consumer.commit(committed))
        former = brokers.kill_leader()
        leader = brokers.leader(other_than=former)
        found = patiently(consumer.committed)
        assert {(one.topic, one.queue_id): at for one, at in found.items()} == committed
    with grpc.insecure_channel(brokers.address(leader)) as channel:
        with PublishStream(channel) as stream:
            again = [stream.result(batch) for batch in batches]
        repeated = Calls(channel).send(topic, b"x", **numbered)
        assert sum(Calls(channel).ends(topic)) == 21
    assert not any(one.is_duplicate for one in [*firsts, single])
    for first, second in zip([*firsts, single], [*again, repeated], strict=True):
        assert second.is_duplicate
        second.is_duplicate = False
        assert first == second


def test_consume_follow_without_a_group_goes_on_at_the_next_leader(
    brokers: BrokerSet, topic: str
) -> None:
    bodies = [f"after {number}" for number in range(20)]
    with (
        Producer(brokers.servers, timeout_s=PATIENCE_S) as producer,
        Following(brokers.servers, topic) as following,
    ):
        producer.send(topic, "before")
        assert following.next_shown() == "before"
        brokers.kill_leader()
        for body in bodies:
            producer.send(topic, body)
        assert sorted(following.next_shown() for _ in bodies) == sorted(bodies)
        assert following.interrupt() == 130
        # Nothing came twice.
        assert not following.next_shown()


def test_a_follower_names_the_leader(brokers: BrokerSet, topic: str) -> None:
    leader = brokers.leader()
    addresses = {name: node.address for name, node in brokers.nodes.items()}
    position = consumer_pb2.QueuePosition(topic=topic, queue_id=0, queue_offset=0)
    calls_of_leader: dict[str, dict[str, Any]] = {
        "Send": {"topic": topic, "messages": [{"body": b"x"}]},
        "Pull": {"topic": topic},
        "CommitOffsets": {"group": topic, "positions": [position]},
        "QueryOffsets": {"group": topic},
        "CreateTopic": {"topic": f"{topic}-2"},
        "DeleteTopic": {"topic": topic},
    }
    for follower in brokers.others(leader):
        with grpc.insecure_channel(brokers.address(follower)) as channel:
            calls = Calls(channel)
            for name, fields in calls_of_leader.items():
                refusal = calls.refused(name, **fields)
                assert refusal.code == "NOT_LEADER", name
                assert refusal.status.leader_address == brokers.address(leader), name
            with PublishStream(channel) as stream:
                _, refusal = stream.refusal()
                assert refusal.code == "NOT_LEADER"
                assert refusal.status.leader_address == brokers.address(leader)
            start = consumer_pb2.SubscribeStart(group=topic, member_id="m")
            start.subscriptions.add(topic=topic)
            with Stream(channel, "ConsumerService/Subscribe", bytes) as subscribe:
                subscribe.send(consumer_pb2.SubscribeRequest(start=start))
                _, refusal = subscribe.refusal()
                assert refusal.code == "NOT_LEADER"
                assert refusal.status.leader_address == brokers.address(leader)
            # One that has just come back may not have met all others yet.
            poll(lambda: route(calls) == (leader, addresses), f"{follower} knows all")  # noqa: B023


def route(calls: Calls) -> tuple[str, dict[str, str]]:
    """The leader, and the address for clients."""
    (found,) = calls("Route").broker_sets
    return found.leader_id, {one.node_id: one.address for one in found.nodes}


def test_in_the_end_all_replicas_have_the_same_log(brokers: BrokerSet) -> None:
    """After all that the other tests did to them."""
    commit_index = brokers.wait_same()
    assert [node.stop() for node in brokers.nodes.values()] == [0, 0, 0]
    assert compare(brokers.directories, commit_index) == []
    for directory in brokers.directories:
        verify(directory)
