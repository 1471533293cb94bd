"""A byte of a queue's or of the key index's file changes on the disk, of a broker that runs or of
one that is stopped: every message is delivered, filters are complete, keys are found, and the file
is rebuilt from the log without a restart.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, NamedTuple

import grpc
import pytest

from mq.client import Consumer
from mq.store import checkpoint
from mq.store.vfs import RealVfs
from mq.wire.v1 import admin_pb2
from mq.wire.v1.message_pb2 import Message
from tests.support.broker_process import BrokerProcess
from tests.support.topics import DEADLINE_S, call, create_topic, eventually, send

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

QUEUES, EACH = 3, 1_000
FLAGS = (
    "--store-checkpoint-log-bytes=64KiB",
    "--store-index-slots=64",
    "--store-index-items=1000",
)


class Rig(NamedTuple):
    broker: BrokerProcess
    data: Path

    def file(self, topic: str) -> Path:
        """The file of queue 0."""
        return self.data / "consumequeue" / topic / "0" / f"{0:020d}"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    data = tmp_path_factory.mktemp("broker") / "data"
    with BrokerProcess(data, *FLAGS) as broker:
        yield Rig(broker, data)


@pytest.fixture
def topic(name: str, rig: Rig) -> str:
    """Messages in three queues, half of them with the tag "a", all units in files."""
    fill_topic(rig, name)
    return name


def fill_topic(rig: Rig, name: str) -> None:
    create_topic(rig.broker.address, name, QUEUES)
    for queue_id in range(QUEUES):
        for start in range(0, EACH, 250):
            messages = [
                Message(body=b"%d-%d" % (queue_id, at), tag="ab"[at % 2], keys=[f"{queue_id}-{at}"])
                for at in range(start, start + 250)
            ]
            send(rig.broker.address, name, queue_id, messages)
    # The second checkpoint from here on begins when the first one is done with, and with it the
    # units in memory: from then on they are read from their files.
    for _ in range(2):
        before = checkpointed(rig)
        for _ in range(2):  # the last entry does not count for what is due
            send(rig.broker.address, name, 2, [Message(body=bytes(80_000), tag="filler")])
        eventually(functools.partial(is_checkpointed, rig, before), "there is no checkpoint")


def is_checkpointed(rig: Rig, after: int) -> bool:
    return checkpointed(rig) > after


def checkpointed(rig: Rig) -> int:
    """Raft index up to which the files are written."""
    state = checkpoint.load(RealVfs(), str(rig.data / "checkpoint"))
    return state.raft_index if state else 0


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))


def consumed(address: str, topic: str, tags: str, count: int) -> set[bytes]:
    """The messages that a new group gets, until it has so many or waited long enough."""
    found: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_S
    group = f"{topic}-{len(tags)}"
    with Consumer(address, group, {topic: tags}, start="earliest") as consumer:
        while len(found) < count and time.monotonic() < deadline:
            found += [one.body for one in consumer.poll(1000, timeout_s=0.5)]
    assert len(found) == len(set(found)), "delivered twice"
    return set(found)


def check_all_is_there(rig: Rig, topic: str) -> None:
    address = rig.broker.address
    tagged = {b"%d-%d" % (queue, at) for queue in range(QUEUES) for at in range(0, EACH, 2)}
    assert consumed(address, topic, "a", len(tagged)) == tagged
    everything = {b"%d-%d" % (queue, at) for queue in range(QUEUES) for at in range(EACH)}
    assert consumed(address, topic, "a||b", len(everything)) == everything


def status(address: str) -> admin_pb2.BrokerStatusResponse:
    request, answer = admin_pb2.BrokerStatusRequest(), admin_pb2.BrokerStatusResponse
    found = call(address, "AdminService/BrokerStatus", request, answer)
    assert isinstance(found, answer)
    return found


def check_mended(rig: Rig, path: Path, event: str) -> None:
    """The node knows that it was damaged, and that it is not any longer; it says each once."""
    eventually(lambda: not status(rig.broker.address).open_damages, "the damage is open")
    found = [one for one in status(rig.broker.address).damages if one.file == str(path)]
    assert [bool(one.mended_at_ms) for one in found] == [True]
    lines = [line for line in rig.broker.log() if line.get("file") == str(path)]
    told = [line["event"] for line in lines if line["event"].startswith("damage")]
    assert told == ["damage found: it is not served", "damage mended"]
    assert event in [line["event"] for line in rig.broker.log()]


# The 300th unit, with the tag "a"; the checksum of the first block; that of the last, which is
# incomplete and has none in the file: its last byte is one of a unit.
PLACES = {
    "log-offset": 300 * 20 + 4,
    "size": 300 * 20 + 4 + 8,
    "tag-hash": 300 * 20 + 4 + 12,
    "checksum": 256 * 20,
    "last-unit": EACH * 20 + 3 * 4 - 1,
}


@pytest.mark.parametrize("place", PLACES)
def test_a_unit_that_rots_is_rebuilt_and_no_queue_waits_for_it(
    rig: Rig, topic: str, place: str
) -> None:
    flip(rig.file(topic), PLACES[place])
    check_all_is_there(rig, topic)
    check_mended(rig, rig.file(topic), "queue rebuilt from the log")


def test_a_queue_whose_file_is_gone_is_rebuilt(rig: Rig, topic: str) -> None:
    rig.file(topic).unlink()
    check_all_is_there(rig, topic)
    check_mended(rig, rig.file(topic), "queue rebuilt from the log")


def query(address: str, topic: str, key: str) -> list[bytes]:
    """By key; asks again while the index is being rebuilt, as the error says."""
    request = admin_pb2.QueryMessagesRequest(topic=topic, key=key)
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            found = call(address, "AdminService/QueryMessages", request, admin_pb2.MessageList)
        except grpc.RpcError as error:
            if dict(error.trailing_metadata())["mq-code"] != "REBUILDING":
                raise
            assert time.monotonic() < deadline, "the index is not rebuilt"
            time.sleep(0.02)
        else:
            return [one.message.body for one in found.messages]


@pytest.mark.parametrize("place", ["slot", "item"])
def test_a_key_index_that_rots_is_rebuilt_and_every_key_is_found(
    rig: Rig, topic: str, place: str
) -> None:
    address = rig.broker.address
    # The oldest file with keys of this topic is full, and may be of the one before, too.
    stored = call(
        address,
        "AdminService/QueryMessages",
        admin_pb2.QueryMessagesRequest(topic=topic, key="1-500"),
        admin_pb2.MessageList,
    )
    at = stored.messages[0].log_offset
    path = max(one for one in (rig.data / "index").iterdir() if int(one.name) <= at)
    items_at = 44 + 64 * 4 + 4
    size = path.stat().st_size
    assert path.read_bytes()[:8] != bytes(8), "the file is not full"
    for position in range(44, items_at, 4) if place == "slot" else range(items_at, size, 200):
        flip(path, position)
    for number in range(0, EACH, 50):
        for queue_id in range(QUEUES):
            key = f"{queue_id}-{number}"
            assert query(address, topic, key) == [key.encode()]
    check_mended(rig, path, "key index rebuilt from the log")


def test_rot_in_the_files_of_a_stopped_broker_is_found_when_they_are_read(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path / "data", *FLAGS) as broker:
        rig = Rig(broker, tmp_path / "data")
        fill_topic(rig, "t")
        assert broker.stop() == 0
        flip(rig.file("t"), PLACES["tag-hash"])
        for path in (rig.data / "index").iterdir():
            if path.read_bytes()[:8] != bytes(8):
                flip(path, 44 + 5)
        broker.start()
        check_all_is_there(rig, "t")
        for number in range(0, EACH, 100):
            assert query(broker.address, "t", f"0-{number}") == [b"0-%d" % number]
        check_mended(rig, rig.file("t"), "queue rebuilt from the log")
