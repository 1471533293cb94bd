"""A broker alone scrubs its log: rot in what it wrote itself, and would serve, is found without a
reader, counted, and passed over from then on.
"""

from __future__ import annotations

import re
import urllib.request
from typing import TYPE_CHECKING

import grpc

from tests.conformance.calls import CHANNEL_OPTIONS, Calls, bodies_in, numbers, until
from tests.support.broker_process import BrokerProcess

if TYPE_CHECKING:
    from pathlib import Path

TOPIC = "t"
COUNT, EACH = 128, 16
GONE = range(32, 32 + EACH)
BODY_BYTES = 1 << 10
FLAGS = ("--store-flush", "async", "--store-scrub-bytes-per-s", "0")


def rot(data: Path) -> None:
    """Flips a bit of a message in the only segment, which is written to."""
    (path,) = (data / "commitlog").glob("*.log")
    position = path.read_bytes().index(numbers(1, GONE[3])[0] + bytes(BODY_BYTES))
    with path.open("r+b") as file:
        file.seek(position + 20)
        file.write(b"\1")


def figure(broker: BrokerProcess, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.metrics_port}/metrics") as response:
        text = response.read().decode()
    found = re.search(rf"^{re.escape(name)} (.+)$", text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def read_all(calls: Calls) -> list[bytes]:
    found: list[bytes] = []
    at = 0
    while at < COUNT:
        answer = calls("Pull", topic=TOPIC, queue_offset=at, messages_max=64)
        found += bodies_in(answer.runs)
        at = answer.next_offset
    return found


def test_rot_in_what_a_broker_wrote_itself_is_found_by_the_scrubber(tmp_path: Path) -> None:
    sent = [body + bytes(BODY_BYTES) for body in numbers(COUNT)]
    with (
        BrokerProcess(tmp_path / "data", *FLAGS) as broker,
        grpc.insecure_channel(broker.address, options=CHANNEL_OPTIONS) as channel,
    ):
        calls = Calls(channel)
        calls.create(TOPIC, queues=1)
        for at in range(0, COUNT, EACH):
            calls.send(TOPIC, *sent[at : at + EACH])
        rot(tmp_path / "data")
        assert len(read_all(calls)) == COUNT, "trusted, because this process wrote it"
        assert figure(broker, "mq_storage_scrubbed_bytes_total") == 0
        # Switched on while it runs.
        calls("SetConfig", name="store.scrub_bytes_per_s", value="16MiB")

        def is_lost() -> bool:
            events = [line["event"] for line in broker.log()]
            return "messages are lost: no node has them" in events

        until(is_lost, "the loss is declared")
        assert figure(broker, 'mq_storage_damage_open{kind="log"}') == 1
        assert read_all(calls) == sent[: GONE.start] + sent[GONE.stop :]
        assert figure(broker, "mq_messages_lost_to_damage_total") == EACH
        size = figure(broker, "mq_storage_size_bytes")
        until(lambda: figure(broker, "mq_storage_scrubbed_bytes_total") >= size, "a pass is over")
        assert figure(broker, "mq_storage_scrub_age_seconds") < 60
