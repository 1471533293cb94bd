"""A backup of a set that serves, and what is made of it: one node, or three, with every message,
offset, delay and open transaction that the log has.
"""

from __future__ import annotations

import itertools
import json
import shutil
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import pytest

from mq.client import Admin, Consumer, Message, Producer, SendResult, TransactionProducer
from mq.store.commitlog import CommitLog
from mq.store.vfs import RealVfs
from tests.support.broker_process import BrokerProcess
from tests.support.broker_set import BrokerSet
from tests.support.raft_cluster import free_port, poll
from tests.support.warm_process import run_mq

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE_S = 120.0
WAITING = 3
TOPIC, QUEUES, GROUP = "orders", 3, "billing"
# Several segments in a second.
FLAGS = ("--store-segment-bytes", "256KiB")


def mq(*arguments: str) -> Any:
    """The command's output, as JSON."""
    ended = run_mq(*arguments, "--json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout)


def refused(*arguments: str) -> str:
    ended = run_mq(*arguments)
    assert ended.returncode == 1, ended.stdout
    return ended.stderr.decode()


class Load:
    """Sends until the end."""

    def __init__(self, servers: str) -> None:
        self.sent = 0
        self._servers = servers
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def wait_for_more(self, count: int) -> None:
        target = self.sent + count
        poll(lambda: self.sent >= target, "more was sent", PATIENCE_S)

    def _work(self) -> None:
        with Producer(self._servers, timeout_s=PATIENCE_S) as producer:
            for number in itertools.count():
                if self._is_over.is_set():
                    return
                messages = [Message(b"%d.%d." % (number, at) + b"x" * 800) for at in range(20)]
                producer.send_batch(TOPIC, messages, queue_id=number % QUEUES)
                self.sent += len(messages)


class Content(NamedTuple):
    """The content of a set, as clients see it."""

    waiting: int
    half: int
    messages: dict[int, list[tuple[int, bytes, int]]]  # by queue: offset, body, stored_at_ms
    committed: dict[int, int]
    open_transactions: list[str]
    topics: dict[str, int]


def content(servers: str) -> Content:
    with Admin(servers, timeout_s=PATIENCE_S) as admin:
        group = admin.describe_group(GROUP)
        status = admin.broker_status()
        return Content(
            status.timing_messages,
            status.half_messages,
            {queue_id: list(browse(admin, queue_id)) for queue_id in range(QUEUES)},
            {one.queue_id: one.committed for one in group.queues if one.topic == TOPIC},
            [one.transaction_id for one in admin.list_transactions().transactions],
            {one.info.topic: one.messages for one in admin.list_topics(include_internal=True)},
        )


def browse(admin: Admin, queue_id: int) -> Iterator[tuple[int, bytes, int]]:
    queue_offset = 0
    while found := admin.browse_messages(TOPIC, queue_id, queue_offset, 1000).messages:
        for one in found:
            yield one.queue_offset, one.message.body, one.stored_at_ms
        queue_offset = found[-1].queue_offset + 1


class Backups(NamedTuple):
    """Backups of one set that is gone: under load, and as it was in the end; and its content
    then.
    """

    under_load: Path
    whole: Path
    content: Content
    waiting: SendResult  # one of those that wait for their time


@pytest.fixture(scope="module")
def backups(tmp_path_factory: pytest.TempPathFactory) -> Backups:
    directory = tmp_path_factory.mktemp("backup")
    under_load, whole = directory / "under-load", directory / "whole"
    with BrokerSet(directory, *FLAGS) as brokers:
        servers = brokers.servers
        with Admin(servers, timeout_s=PATIENCE_S) as admin:
            admin.create_topic(TOPIC, QUEUES)
        with Load(servers) as load:
            load.wait_for_more(1000)
            consume(servers, 200)
            waiting = leave_open(servers)
            mq("backup", str(under_load), "--server", servers)
            mq("backup", str(whole), "--server", servers)
            load.wait_for_more(1000)
        (new,) = mq("backup", str(whole), "--server", servers)
        assert 0 < new["copied_bytes"] < new["end_offset"]
        brokers.wait_same()
        (nothing,) = mq("backup", str(whole), "--server", servers)
        assert nothing["last_index"] - new["last_index"] < 50
        found = content(servers)
        assert (found.waiting, found.half, len(found.open_transactions)) == (WAITING, 1, 1)
        assert sum(map(len, found.messages.values())) == load.sent
    return Backups(under_load / "set-0", whole / "set-0", found, waiting)


def consume(servers: str, count: int) -> None:
    """And commit; not all of what was taken."""
    with Consumer(servers, GROUP, [TOPIC], start="earliest") as consumer:
        taken = 0
        while taken < count:
            taken += len(consumer.poll(50, timeout_s=1.0))
            consumer.commit()


def leave_open(servers: str) -> SendResult:
    """Messages that wait, and a transaction that has not ended."""
    with Producer(servers, timeout_s=PATIENCE_S) as producer:
        late = [producer.send(TOPIC, Message(b"late", delay_s=3600)) for _ in range(WAITING)]
    with TransactionProducer(
        servers, "shop", lambda *_: "UNKNOWN", lambda _: "UNKNOWN"
    ) as of_halves:
        of_halves.send_in_transaction(TOPIC, Message(b"half"), first_check_s=3600)
    return late[0]


def goes_on(servers: str, backups: Backups) -> None:
    """The restored set takes messages, and its consumers are where they were."""
    before = content(servers)
    expected = Counter(
        body
        for queue_id, messages in before.messages.items()
        for queue_offset, body, _ in messages
        if queue_offset >= before.committed.get(queue_id, 0)
    )
    with Admin(servers, timeout_s=PATIENCE_S) as admin:
        (transaction_id,) = before.open_transactions
        admin.end_transaction(transaction_id, commit=True)
    with Producer(servers, timeout_s=PATIENCE_S) as producer:
        producer.send(TOPIC, Message(b"new"))
        producer.recall(backups.waiting)
    with Admin(servers, timeout_s=PATIENCE_S) as admin:
        assert admin.broker_status().timing_messages == WAITING - 1
    expected.update([b"half", b"new"])
    found: Counter[bytes] = Counter()
    with Consumer(servers, GROUP, [TOPIC], start="latest") as consumer:
        deadline_s = time.monotonic() + PATIENCE_S
        while found.total() < expected.total() and time.monotonic() < deadline_s:
            found.update(one.body for one in consumer.poll(timeout_s=1.0))
    assert found == expected


def test_one_node_of_a_backup_has_everything_and_goes_on(backups: Backups, tmp_path: Path) -> None:
    data = tmp_path / "x1"
    mq("restore", str(backups.whole), "--data", str(data), "--node", "x1")
    flags = ("--node-id", "x1")
    with BrokerProcess(data, *flags, port=free_port()) as broker:
        assert content(broker.address) == backups.content
        goes_on(broker.address, backups)


def test_three_nodes_of_a_backup_under_load_are_a_set_with_a_moment_of_the_past(
    backups: Backups, tmp_path: Path
) -> None:
    brokers = BrokerSet(tmp_path, *FLAGS)
    flags = brokers.nodes["n0"]._flags
    members = flags[flags.index("--raft-members") + 1]

    def restore(name: str, backup: Path = backups.under_load) -> int:
        place = ("--data", str(tmp_path / name), "--node", name, "--members", members)
        return int(mq("restore", str(backup), *place)["term"])

    with ThreadPoolExecutor() as pool:
        assert len(set(pool.map(restore, brokers.nodes))) == 1
    with brokers:
        found = content(brokers.servers)
        assert found.open_transactions == backups.content.open_transactions
        assert found.committed == backups.content.committed
        for queue_id, messages in found.messages.items():
            assert len(messages) > 100
            assert messages == backups.content.messages[queue_id][: len(messages)]
        assert any(
            len(messages) < len(backups.content.messages[queue_id])
            for queue_id, messages in found.messages.items()
        )
        killed = brokers.kill_leader()
        assert brokers.leader(other_than=killed)
        with Producer(brokers.servers, timeout_s=PATIENCE_S) as producer:
            producer.send(TOPIC, Message(b"new"))
        refuses_a_stranger(brokers, killed, lambda name: restore(name, backups.whole))
        # Once more from the same backup: it has forgotten what it said, and catches up first.
        shutil.rmtree(tmp_path / killed)
        restore(killed)
        brokers.start(killed)
        brokers.wait_same()


def refuses_a_stranger(brokers: BrokerSet, name: str, restore: Callable[[str], int]) -> None:
    """A node that was restored for itself, in place of one of a set that runs: as soon as it led,
    the others would throw away what they have.
    """
    leader = brokers.leader()
    before = brokers.status(leader)
    stranger = brokers.nodes[name]
    shutil.rmtree(stranger._data)
    restore(name)
    stranger.launch()
    poll(lambda: "they are of different sets" in stranger.output(), "it is refused", PATIENCE_S)
    with Producer(brokers.address(leader), timeout_s=PATIENCE_S) as producer:
        producer.send(TOPIC, Message(b"as before"))
    after = brokers.status(leader)
    assert before is not None
    assert after is not None
    assert (after.term, after.leader_id) == (before.term, leader)
    stranger.kill()


def test_a_backup_is_a_log_that_any_reader_opens(backups: Backups) -> None:
    log = CommitLog(
        RealVfs(), str(backups.whole / "commitlog"), segment_bytes=1 << 20, verify_bytes=0
    )
    assert len(log.segments()) > 3
    assert sum(1 for _ in log.entries(log.first_index, log.last_index + 1)) == log.last_index
    log.close()
    (found,) = mq("backup", "verify", str(backups.whole.parent))
    assert found["last_index"] >= log.last_index - 1


def test_a_damaged_backup_is_refused_with_file_and_position(
    backups: Backups, tmp_path: Path
) -> None:
    second = sorted((backups.under_load / "commitlog").glob("*.log"))[1]
    good = second.read_bytes()
    place = ("--data", str(tmp_path / "x"), "--node", "x")
    try:
        second.write_bytes(good[:5000] + bytes([good[5000] ^ 1]) + good[5001:])
        for command in (("backup", "verify"), ("restore", *place)):
            said = refused(*command, str(backups.under_load))
            assert f"LOG_DAMAGED: {second} is damaged at byte" in said
            assert "checksum" in said
        second.unlink()
        assert f"{second} is damaged at byte 0: the file is missing" in refused(
            "restore", *place, str(backups.under_load)
        )
    finally:
        second.write_bytes(good)
    assert not (tmp_path / "x").exists()
