"""Operations on a set that serves: nodes are restarted one by one, added and removed, the
leadership is moved. Producers with retries see no error, and nothing is lost or comes twice.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Self

import pytest

from mq.client import Admin, Consumer, Message, Producer
from mq.errors import IllegalMembership, OutcomeUnknown
from tests.support.broker_process import BrokerProcess
from tests.support.broker_set import BrokerSet
from tests.support.raft_cluster import free_port, poll
from tests.support.warm_process import run_mq

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE_S = 300.0
# Between two messages: some hundred a second are enough.
PACE_S = 0.002
TOPIC, QUEUES = "operations", 4


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerSet]:
    # However long the machine stalls, a member that is away for it comes back.
    flags = ("--broker-member-expires-ms", "300s")
    with BrokerSet(tmp_path_factory.mktemp("operations"), *flags) as started:
        with Admin(started.servers, timeout_s=PATIENCE_S) as admin:
            admin.create_topic(TOPIC, QUEUES)
        yield started


def mq(brokers: BrokerSet, *arguments: str) -> Any:
    """The command's output, as JSON."""
    ended = run_mq(*arguments, "--json", "--server", brokers.servers, "--timeout", "60")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout)


class Traffic:
    """A producer and a consumer that go on until the end; then everything that was sent has come,
    once.
    """

    def __init__(self, brokers: BrokerSet, name: str) -> None:
        self.sent: list[bytes] = []
        self.consumed: list[bytes] = []
        self.errors: list[BaseException] = []
        self._name = name
        self._is_over = threading.Event()
        self._producer = Producer(brokers.servers, timeout_s=PATIENCE_S)
        self._consumer = Consumer(brokers.servers, name, [TOPIC], start="latest")
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True)
            for work in (self._produce, self._consume)
        ]

    def __enter__(self) -> Self:
        # From now on: the group's place in each queue is fixed by its first look.
        poll(lambda: self._consumer.poll(timeout_s=0.1) or self._consumer.assignment, "assigned")
        for thread in self._threads:
            thread.start()
        self.wait_for_more()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        self._producer.close()
        self._consumer.close()
        if kind is None:
            assert self.errors == []
            assert sorted(self.consumed) == sorted(self.sent)

    def wait_for_more(self, count: int = 100) -> None:
        target = len(self.consumed) + count
        poll(lambda: len(self.consumed) >= target or self.errors, "it goes on", PATIENCE_S)
        assert self.errors == []

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - shown by the thread that waits
            self.errors.append(error)

    def _produce(self) -> None:
        for number in itertools.count():
            if self._is_over.is_set():
                return
            body = f"{self._name}.{number}".encode()
            self._producer.send(TOPIC, Message(body))
            self.sent.append(body)
            self._is_over.wait(PACE_S)

    def _consume(self) -> None:
        deadline_s = None
        while deadline_s is None or time.monotonic() < deadline_s:
            self.consumed += [one.body for one in self._consumer.poll(timeout_s=0.1)]
            self._consumer.commit()
            if self._is_over.is_set():
                deadline_s = deadline_s or time.monotonic() + PATIENCE_S
                if len(self.consumed) >= len(self.sent) and not self._threads[0].is_alive():
                    return


class Restarter:
    """Does what `--run` asks for: a file that asks, and one that says that it is done."""

    def __init__(self, brokers: BrokerSet, directory: Path) -> None:
        self.command = (
            f"touch {directory}/{{node}}.asked; "
            f"while ! test -e {directory}/{{node}}.done; do sleep 0.02; done"
        )
        # The node, and its status right before.
        self.stopped: list[tuple[str, str]] = []
        self._brokers = brokers
        self._directory = directory
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._is_over.wait(0.01):
            for asked in self._directory.glob("*.asked"):
                asked.unlink()
                status = self._brokers.status(asked.stem)
                self.stopped.append((asked.stem, status.role if status else "gone"))
                assert self._brokers.nodes[asked.stem].stop() == 0
                self._brokers.nodes[asked.stem].launch()
                asked.with_suffix(".done").touch()


def test_a_rolling_restart_fails_no_send_and_loses_nothing(
    brokers: BrokerSet, tmp_path: Path
) -> None:
    with Traffic(brokers, "rolling") as traffic, Restarter(brokers, tmp_path) as restarter:
        done = mq(brokers, "cluster", "restart-plan", "--run", restarter.command)
        traffic.wait_for_more()
    restarted = [one["node_id"] for one in done["restarted"]]
    assert sorted(restarted) == sorted(brokers.nodes)
    # Leadership had left each of them before it was stopped.
    assert restarter.stopped == [(one, "follower") for one in restarted]


def move(admin: Admin, node: str) -> None:
    """A machine that stands still makes the other node miss its time: then once more."""

    def is_moved() -> bool:
        try:
            return admin.transfer_leadership(node).leader_id == node
        except (IllegalMembership, OutcomeUnknown):
            return False

    poll(is_moved, f"{node} leads", PATIENCE_S)


def test_the_leadership_goes_where_it_is_sent_while_clients_notice_nothing(
    brokers: BrokerSet,
) -> None:
    with Traffic(brokers, "transfer") as traffic, Admin(brokers.servers, timeout_s=60) as admin:
        for node in [*brokers.nodes, *brokers.nodes]:
            move(admin, node)
            traffic.wait_for_more(20)


@contextlib.contextmanager
def newcomer(brokers: BrokerSet, directory: Path, name: str) -> Iterator[tuple[BrokerProcess, str]]:
    """A node that waits to be added, and its Raft address."""
    with Admin(brokers.servers, timeout_s=60) as admin:
        known = admin.broker_status().set_members
    address = f"127.0.0.1:{free_port()}"
    members = ",".join([*(f"{one.node_id}={one.address}" for one in known), f"{name}={address}"])
    node = BrokerProcess(
        directory / name,
        *("--node-id", name, "--raft-members", members, "--raft-join", "yes"),
        *("--metrics-enabled", "no"),
        port=free_port(),
    )
    try:
        yield node, address
    finally:
        if node.is_running:
            node.kill()


def names(found: Any) -> list[str]:
    return [one["node_id"] for one in found["members"]]


def test_nodes_are_added_and_removed_from_the_command_line(
    brokers: BrokerSet, tmp_path: Path
) -> None:
    with Traffic(brokers, "members") as traffic, newcomer(brokers, tmp_path, "n3") as (node, at):
        node.launch()
        assert names(mq(brokers, "cluster", "add-member", "n3", at)) == ["n0", "n1", "n2", "n3"]
        with Admin(brokers.servers, timeout_s=60) as admin:
            # Once more is the same.
            assert len(admin.add_member("n3", at).members) == 4
            poll(lambda: admin.broker_status(node.address).is_voter, "n3 votes", PATIENCE_S)
            move(admin, "n3")
            traffic.wait_for_more(20)
            move(admin, "n0")
        assert names(mq(brokers, "cluster", "remove-member", "n3", "--yes")) == ["n0", "n1", "n2"]
        assert node.stop() == 0
        traffic.wait_for_more(20)


def test_with_a_node_down_no_other_one_is_restarted(brokers: BrokerSet) -> None:
    down = brokers.others(brokers.leader())[0]
    brokers.nodes[down].kill()
    command = [sys.executable, "-m", "mq", "cluster", "restart-plan", "--run", "false"]
    ended = subprocess.run(
        [*command, "--server", brokers.servers],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 1
    assert f"no node may be restarted now: set-0: {down}: connection refused" in ended.stderr
    with (
        Admin(brokers.servers, timeout_s=60) as admin,
        pytest.raises(IllegalMembership, match=f"{down} is not there"),
    ):
        admin.transfer_leadership(down)
