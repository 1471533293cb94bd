"""A broker alone, and a byte that rots in its log: it says which messages are gone, and serves all
others to every kind of reader. docs/OPERATIONS.md has the rows.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import pytest

from mq.client import Consumer
from mq.wire.v1.consumer_pb2 import START_EARLIEST
from tests.conformance.calls import (
    CHANNEL_OPTIONS,
    DEADLINE_S,
    Calls,
    bodies_in,
    numbers,
    refusal_of,
    until,
)
from tests.support.broker_process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOPIC = "t"
COUNT, EACH = 256, 16
BODY_BYTES = 1 << 10
# In the middle of what is sent, in a segment of its own.
GONE = range(96, 96 + EACH)
LEFT = [body for at, body in enumerate(numbers(COUNT)) if at not in GONE]
SEGMENTS = (
    *("--store-segment-bytes", "64KiB", "--store-flush", "async"),
    *("--store-entry-bytes-max", "64KiB", "--store-message-bytes-max", "32KiB"),
)


class Rig(NamedTuple):
    broker: BrokerProcess
    calls: Calls
    segment: Path
    refusal: str


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A broker that was stopped, lost a byte, and was started again: with what it checks at a start
    by default it refused, with less it runs.
    """
    data = tmp_path_factory.mktemp("broker") / "data"
    broker = BrokerProcess(data, *SEGMENTS)
    with broker, called(broker) as calls:
        calls.create(TOPIC, queues=1)
        for at in range(0, COUNT, EACH):
            calls.send(TOPIC, *(body + bytes(BODY_BYTES) for body in numbers(EACH, at)))
        assert broker.stop() == 0
    segment = rot(data)
    with pytest.raises(AssertionError) as refused:
        broker.start()
    with (
        BrokerProcess(data, *SEGMENTS, "--store-verify-bytes", "64KiB") as broker,
        called(broker) as calls,
    ):
        yield Rig(broker, calls, segment, str(refused.value))


@contextlib.contextmanager
def called(broker: BrokerProcess) -> Iterator[Calls]:
    with grpc.insecure_channel(broker.address, options=CHANNEL_OPTIONS) as channel:
        yield Calls(channel)


def rot(data: Path) -> Path:
    """Flips a bit of a message; the segment that has it."""
    body = numbers(1, GONE[3])[0] + bytes(BODY_BYTES)
    for path in sorted((data / "commitlog").glob("*.log")):
        whole = path.read_bytes()
        if body in whole:
            position = whole.index(body)
            path.write_bytes(
                whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :]
            )
            return path
    raise AssertionError("no segment has it")


def pulled(rig: Rig, offset: int) -> tuple[list[bytes], int]:
    """Waits while the broker looks whether another node has what is damaged."""

    def ask() -> Any:
        try:
            return rig.calls("Pull", topic=TOPIC, queue_offset=offset, messages_max=64)
        except grpc.RpcError as error:
            if refusal_of(error).code != "MESSAGES_DAMAGED":
                raise
            return None

    answer = until(ask, "readers are led past it")
    return [body[:8] for body in bodies_in(answer.runs)], answer.next_offset


def test_damage_that_a_start_finds_is_refused(rig: Rig) -> None:
    assert f"LOG_DAMAGED: {rig.segment} is damaged at byte" in rig.refusal


def test_pull_leads_past_what_is_gone(rig: Rig) -> None:
    found: list[bytes] = []
    offset = 0
    while offset < COUNT:
        bodies, offset = pulled(rig, offset)
        found += bodies
    assert found == LEFT


def test_a_consumer_gets_all_others(rig: Rig) -> None:
    found: list[bytes] = []

    def is_all() -> bool:
        found.extend(one.body[:8] for one in consumer.poll(COUNT, timeout_s=1))
        return len(found) >= len(LEFT)

    with Consumer(rig.broker.address, "readers", TOPIC, start="earliest") as consumer:
        until(is_all, "all others came")
        assert not consumer.poll(timeout_s=0.1)
    assert found == LEFT


def test_receive_gives_out_all_others(rig: Rig) -> None:
    found: list[bytes] = []

    def is_all() -> bool:
        answer = rig.calls(
            "Receive", group="hands", topic=TOPIC, start_position=START_EARLIEST, messages_max=64
        )
        found.extend(one.body[:8] for run in answer.runs for one in run.run.messages)
        return len(found) >= len(LEFT)

    until(is_all, "all others came")
    assert found == LEFT


def test_the_log_and_the_health_say_which_messages_are_gone(rig: Rig) -> None:
    bodies, _ = pulled(rig, GONE[0])
    assert not bodies
    gone = f"{TOPIC}/0: {GONE[0]} to {GONE[-1]}"
    (line,) = [one for one in rig.broker.log() if one["event"].startswith("messages are lost")]
    assert (line["file"], line["affected"]) == (str(rig.segment), gone)
    command = [sys.executable, "-m", "mq", "cluster", "health", "--json"]
    done = subprocess.run(
        [*command, "--server", rig.broker.address],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 1
    (node,) = json.loads(done.stdout)["nodes"]
    assert f"messages are lost: {gone}" in node["problem"]
