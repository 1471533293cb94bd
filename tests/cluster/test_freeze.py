"""SIGSTOP: a node that is there and does nothing, until it goes on as if no time had passed."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Self

from mq.client import Consumer, Message, Producer
from tests.cluster.judgement import SMALL, judge
from tests.cluster.load import Load
from tests.support.broker_set import BrokerSet
from tests.support.raft_cluster import DEADLINE_S, Cluster, poll

if TYPE_CHECKING:
    from pathlib import Path


def test_a_frozen_leader_is_replaced_and_follows_when_it_goes_on(tmp_path: Path) -> None:
    with Cluster(tmp_path, flags=SMALL) as cluster:
        with Load(cluster) as load:
            for _ in range(2):
                load.wait_for_more()
                frozen = cluster.leader()
                before = frozen.status()["term"]
                frozen.signal(signal.SIGSTOP)
                # It finds them when it goes on: it leads by its own word, and has to find out.
                late = [frozen.begin("propose", token=f"late {i}", size=2000) for i in range(5)]
                successor = cluster.leader(among=cluster.others(frozen))
                assert successor.status()["term"] > before
                load.wait_for_more()
                frozen.signal(signal.SIGCONT)
                answers = [each.get(timeout=DEADLINE_S) for each in late]
                assert all(answer is not None for answer in answers)
                errors = {answer["error"] for answer in answers if answer}
                assert errors <= {"NOT_LEADER", "OUTCOME_UNKNOWN"}
                frozen.wait_for("role", "follower")
        judge(cluster, load.acknowledged)


def test_a_frozen_follower_stops_no_client_and_catches_up(tmp_path: Path) -> None:
    with Cluster(tmp_path, flags=SMALL) as cluster:
        with Load(cluster) as load:
            load.wait_for_more()
            leader = cluster.leader()
            frozen = cluster.others(leader)[0]
            term = leader.status()["term"]
            frozen.signal(signal.SIGSTOP)
            load.wait_for_more(500)
            frozen.signal(signal.SIGCONT)
            load.wait_for_more()
            # It was behind, and did not ask for an election.
            assert leader.status()["term"] == term
        judge(cluster, load.acknowledged)


def test_a_leader_that_hears_from_no_follower_steps_down_and_says_so(tmp_path: Path) -> None:
    with Cluster(tmp_path, flags=SMALL) as cluster:
        with Load(cluster) as load:
            load.wait_for_more()
            leader = cluster.leader()
            for node in cluster.others(leader):
                node.signal(signal.SIGSTOP)
            late = leader.begin("propose", token="late", size=10)  # noqa: S106
            leader.wait_for("role", "follower")
            answer = late.get(timeout=DEADLINE_S)
            assert answer is not None
            assert answer["error"] in {"NOT_LEADER", "OUTCOME_UNKNOWN"}
            for node in cluster.others(leader):
                node.signal(signal.SIGCONT)
            load.wait_for_more()
        judge(cluster, load.acknowledged)


class Flow:
    """A message every few milliseconds, and when each arrived at a consumer."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._is_over = threading.Event()
        self._arrived_s: list[float] = []
        self._threads = [threading.Thread(target=one) for one in (self._produce, self._consume)]

    def _produce(self) -> None:
        with Producer(self._servers, timeout_s=DEADLINE_S) as producer:
            while not self._is_over.wait(0.005):
                producer.send_async("t", Message(b"x"))

    def _consume(self) -> None:
        with Consumer(self._servers, "g", {"t": "*"}, start="earliest") as consumer:
            while not self._is_over.is_set():
                if consumer.poll(timeout_s=0.1):
                    self._arrived_s.append(time.monotonic())

    def pause_s(self, since_s: float) -> float:
        """Waits until messages come again after one; the longest time without any since then."""

        def longest_s() -> float:
            times = [since_s, *(one for one in self._arrived_s if one > since_s)]
            pauses_s = [after - before for before, after in itertools.pairwise(times)]
            return max(pauses_s, default=0.0)

        def has_resumed() -> bool:
            return longest_s() > 0.4 and self._arrived_s[-1] > since_s + longest_s() + 0.2

        poll(has_resumed, "messages come again")
        return longest_s()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        poll(lambda: self._arrived_s, "messages come")
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()


def test_consumers_go_on_about_a_second_after_their_leader_froze(tmp_path: Path) -> None:
    pauses_s = []
    with BrokerSet(tmp_path) as brokers, Flow(brokers.servers) as flow:
        for _ in range(3):
            frozen = brokers.nodes[brokers.leader()].pid
            began_s = time.monotonic()
            os.kill(frozen, signal.SIGSTOP)
            pauses_s.append(flow.pause_s(began_s))
            os.kill(frozen, signal.SIGCONT)
    print("pauses of a consumer:", ", ".join(f"{one:.2f} s" for one in pauses_s))  # noqa: T201
    # The best of them, because the machine may be busy. It was never less than two seconds when
    # clients looked for another leader after so long.
    assert min(pauses_s) < 1.9
