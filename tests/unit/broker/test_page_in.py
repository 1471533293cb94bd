"""The loop reads nothing of the log that is not in memory: a thread has read it before."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from mq import names
from mq.admin.inspector import Inspector
from mq.broker.page_in import PageIn
from mq.errors import MessageNotFound
from mq.names import GIVE_UP_TOPIC
from mq.wire.v1.admin_pb2 import BrowseMessagesRequest, QueryMessagesRequest
from mq.wire.v1.consumer_pb2 import Filter
from mq.wire.v1.message_pb2 import Message
from tests.support.consensus import Node, eventually, on_loop, soon
from tests.support.faulty_vfs import FaultyFile
from tests.support.stores import read_all
from tests.unit.broker.receive import receive_scene
from tests.unit.broker.retry.test_dead_letters import with_letters
from tests.unit.broker.retry.test_retrying import DEAD, at, messages, retry, scene_with
from tests.unit.broker.transaction import transaction_scene as transactions

if TYPE_CHECKING:
    from collections.abc import Iterator


SET = "set-0"


class ColdDisk:
    """What is read of the log: by the loop, of bytes that no thread has read before; and how often
    by threads.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._loop_thread = threading.get_ident()
        self._warm: dict[str, set[int]] = {}
        self.cold_reads: list[tuple[str, int, int]] = []
        self.thread_reads = 0
        pread = FaultyFile.pread

        def noted(file: FaultyFile, length: int, position: int) -> bytes:
            if file._vfs.is_cold and file._path.endswith(".log"):
                self._note(file._path, position, length)
            return pread(file, length, position)

        monkeypatch.setattr(FaultyFile, "pread", noted)

    def _note(self, path: str, position: int, length: int) -> None:
        warm, pages = self._warm.setdefault(path, set()), range(position, position + length)
        if threading.get_ident() != self._loop_thread:
            self.thread_reads += 1
            warm.update(pages)
        elif not warm.issuperset(pages):
            self.cold_reads.append((path, position, length))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[ColdDisk]:
    found = ColdDisk(monkeypatch)
    yield found
    assert found.cold_reads == []
    assert found.thread_reads > 0


def cool(node: Node) -> None:
    """Nothing of the log is in memory, and nothing is known of what was read of it."""
    node.vfs.is_cold = True
    node.store.log.verified.start_at(node.store.log.end_offset)


@pytest.mark.usefixtures("disk")
@on_loop
async def test_messages_that_are_due_after_long_are_read_by_a_thread() -> None:
    node = Node()
    await node.topic("t")
    await node.send("t", b"a", b"b", delay_ms=3_600_000)
    await node.send("t", b"c", delay_ms=3_600_000, queue_id=1)
    cool(node)
    node.pass_time(3_600_000)
    await eventually(lambda: node.ends("t")[:2] == [2, 1])
    node.vfs.is_cold = False
    assert [one.body for one in read_all(node.store, "t", 0)] == [b"a", b"b"]


@pytest.mark.usefixtures("disk")
@on_loop
async def test_delayed_messages_are_carried_by_way_of_a_thread() -> None:
    node = Node()
    await node.topic("t")
    await node.send("t", b"a", delay_ms=3_600_000)
    end = node.store.log.end_offset
    cool(node)
    await soon(node.broker.delays.carry(end))
    assert not node.broker.delays.needs_log_before(end)


@pytest.mark.usefixtures("disk")
@on_loop
async def test_half_messages_are_read_by_a_thread_before_they_are_asked_about_or_given_up() -> None:
    # So large that they are not remembered.
    large = bytes(65 << 10)
    node = await transactions.new_node()
    for _ in range(3):
        await transactions.begin(node, large, half=transactions.half(checks_max=1))
    asked = transactions.producer(node)
    cool(node)
    node.pass_time(6_000)
    await eventually(lambda: len(asked._waiting) == 3)
    node.pass_time(30_000)
    await eventually(lambda: not transactions.open_ones(node))
    node.vfs.is_cold = False
    assert len(transactions.bodies(node, GIVE_UP_TOPIC)) == 3


@pytest.mark.usefixtures("disk")
@on_loop
async def test_half_messages_are_carried_by_way_of_a_thread() -> None:
    node = await transactions.new_node()
    await transactions.begin(node, bytes(65 << 10))
    end = node.store.log.end_offset
    cool(node)
    await soon(node.broker.transacting.carry(end))
    assert not node.broker.transacting.needs_log_before(end)


@pytest.mark.usefixtures("disk")
@on_loop
async def test_failed_messages_are_read_by_a_thread() -> None:
    scene = await scene_with(b"a", b"b", b"c", retries_max=0)
    cool(scene.node)
    await retry(scene, at(0), at(2))
    scene.node.vfs.is_cold = False
    assert [one.body for one in messages(scene.node, DEAD)] == [b"a", b"c"]


@pytest.mark.usefixtures("disk")
@on_loop
async def test_dead_letters_are_listed_and_sent_again_by_way_of_a_thread() -> None:
    scene, letters = await with_letters(5)
    inspector = Inspector(scene.node.broker, SET)
    cool(scene.node)
    found, _ = await inspector.dead_letters("g", 1, 3)
    assert [one.message.body for one in found] == [b"1", b"2", b"3"]
    assert await soon(letters.resend("g", [0, 4])) == 2
    assert await soon(letters.resend_all("g")) == 5


@pytest.mark.usefixtures("disk")
@on_loop
async def test_messages_are_found_by_id_key_and_place_by_way_of_a_thread() -> None:
    node = Node(backlog_bytes=100)
    await node.topic("t")
    stored = await node.send("t", messages=[Message(body=b"a", keys=["k"])])
    await node.send("t", messages=[Message(body=b"b", keys=["k"])])
    await node.send("t", bytes(1_000))
    inspector = Inspector(node.broker, SET)
    cool(node)
    message_id = names.message_id(SET, stored.log_offset)
    assert (await inspector.message(message_id)).message.body == b"a"
    found = await inspector.by_key(QueryMessagesRequest(topic="t", key="k"))
    assert [one.message.body for one in found.messages] == [b"b", b"a"]
    browse = BrowseMessagesRequest(topic="t", messages_max=2)
    listed = await inspector.browse(browse, receive_scene.wanted().filter)
    assert [one.message.body for one in listed.messages] == [b"a", b"b"]
    with pytest.raises(MessageNotFound):
        await inspector.message(names.message_id(SET, 1 << 40))


@pytest.mark.usefixtures("disk")
@pytest.mark.parametrize("tags", ["", "red"])
@pytest.mark.parametrize("messages_max", [1, 3, 100])
@on_loop
async def test_a_backlog_is_received_by_way_of_a_thread(tags: str, messages_max: int) -> None:
    node = Node(backlog_bytes=100)
    await node.topic("jobs", 1)
    wanted = [b"%d" % number for number in range(20)]
    for start in range(0, 20, 5):
        some = wanted[start : start + 5]
        await node.send("jobs", messages=[Message(body=one, tag="red") for one in some])
    await node.send("jobs", messages=[Message(body=bytes(1_000), tag="blue" if tags else "red")])
    cool(node)
    found: list[bytes] = []
    while len(found) < len(wanted):
        given = await receive_scene.receive(
            node, filter=Filter(tags=tags), messages_max=messages_max, wait_s=30.0
        )
        assert sum(one.run.message_count for one in given) <= messages_max
        found += receive_scene.bodies(given)
    assert found[:20] == wanted


@on_loop
async def test_what_is_in_memory_or_gone_is_not_read_by_a_thread() -> None:
    node = Node()
    await node.topic("t")
    await node.send("t", b"a")
    page_in, end = PageIn(node.store.log), node.store.log.end_offset
    await page_in.load([(0, end)])
    node.vfs.is_cold = True
    await page_in.load([(end + (1 << 20), end + (2 << 20)), (5, 5)])
    assert page_in.reads_total == 0
    await page_in.load([(50, 60), (0, 20)])
    assert page_in.reads_total == 1
