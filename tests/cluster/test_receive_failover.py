"""A broker set loses its leader while messages are received and acknowledged: nothing is lost, and
what was acknowledged does not come again.
"""

from __future__ import annotations

import functools
import threading
import time
from typing import TYPE_CHECKING

from mq.client import Admin, SimpleConsumer
from mq.errors import MqError
from tests.support.broker_set import BrokerSet
from tests.support.raft_cluster import poll
from tests.support.topics import committed, create_topic, send

if TYPE_CHECKING:
    from pathlib import Path

TOPIC, GROUP = "jobs", "workers"
QUEUES, EACH, WORKERS = 2, 400, 4
DEADLINE_S = 180.0
INVISIBLE_S = 10.0


class Crew:
    """Members that receive and acknowledge until they are told to stop, and what they saw."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self.acknowledged: set[bytes] = set()
        # Within the time that they were this member's.
        self.sure: set[bytes] = set()
        self.came_again: list[bytes] = []
        self.received = 0
        self.troubles: list[Exception] = []
        self._threads = [threading.Thread(target=self._work) for _ in range(WORKERS)]
        for one in self._threads:
            one.start()

    def _work(self) -> None:
        with SimpleConsumer(self._servers, GROUP, TOPIC, start="earliest") as consumer:
            while not self._is_over.is_set():
                try:
                    asked_s = time.monotonic()
                    messages = consumer.receive(8, wait_s=1.0, invisible_s=INVISIBLE_S)
                    with self._lock:
                        self.received += len(messages)
                        self.came_again += [one.body for one in messages if one.body in self.sure]
                    time.sleep(0.02)  # its work: the load lasts for the time of the test
                    if messages:
                        consumer.ack(messages)
                except MqError as error:
                    self.troubles.append(error)
                    continue
                with self._lock:
                    bodies = {one.body for one in messages}
                    self.acknowledged |= bodies
                    # After its time another consumer may have it, whatever became of the attempts.
                    if time.monotonic() - asked_s < INVISIBLE_S:
                        self.sure |= bodies

    def has_done(self, count: int) -> bool:
        return len(self.acknowledged) >= count

    def stop(self) -> None:
        self._is_over.set()
        for one in self._threads:
            one.join(DEADLINE_S)


def test_a_leader_that_is_killed_loses_no_message_and_no_acknowledgement(tmp_path: Path) -> None:
    with BrokerSet(tmp_path) as brokers:
        leader = brokers.address(brokers.leader())
        create_topic(leader, TOPIC, QUEUES)
        expected = set()
        for queue_id in range(QUEUES):
            bodies = [b"%d-%d" % (queue_id, at) for at in range(EACH)]
            send(leader, TOPIC, queue_id, bodies)
            expected |= set(bodies)
        crew = Crew(brokers.servers)
        try:
            for count in (len(expected) // 5, len(expected) // 2):
                poll(functools.partial(crew.has_done, count), "some work is done", DEADLINE_S)
                killed = brokers.kill_leader()
                brokers.leader(other_than=killed)
                brokers.start(killed)
            poll(lambda: crew.acknowledged >= expected, "all work is done", DEADLINE_S)
        finally:
            crew.stop()
        assert crew.came_again == []
        leader = brokers.address(brokers.leader())
        ends = dict.fromkeys(range(QUEUES), EACH)
        poll(lambda: committed(leader, GROUP, TOPIC) == ends, "the group is at the end", 30.0)
        # Only what was on its way to a member when a leader died came twice.
        assert len(crew.sure) > len(expected) // 2
        assert crew.received <= len(expected) + 4 * WORKERS * 8
        with Admin(brokers.servers) as admin:
            assert admin.describe_group(GROUP).summary.lag == 0
