"""kill -9, fifty times, on one directory that grows: what was acknowledged is there, once, in order
and where it was said to be.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path

from mq.wire.v1.message_pb2 import Batch as WireBatch
from tests.support.appender import QUEUES, TOPIC, Acknowledged, body, open_store
from tests.support.warm_process import WarmProcess

ROUNDS = 50
SEED = 20_240


def run_and_kill(directory: Path, run: int, lines: int, extra_s: float) -> list[Acknowledged]:
    """Kills the appender after so many lines, or so long after its start; all that it printed."""
    errors = directory.with_name("errors")
    with errors.open("wb") as stderr:
        child = WarmProcess("tests.support.appender", [str(directory), str(run)], stderr=stderr)
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        printed = [child.stdout.readline() for _ in range(lines)]
        time.sleep(extra_s)  # the moment of the kill
        child.kill()
        printed += child.stdout.readlines()
    assert child.wait() == -signal.SIGKILL, errors.read_text()
    return [parse(line.decode()) for line in printed]


def parse(line: str) -> Acknowledged:
    queue_id, queue_offset, count, name = line.split()
    return Acknowledged(int(queue_id), int(queue_offset), int(count), name)


def queue_content(directory: Path) -> list[list[bytes]]:
    """The bodies of all queues. The store is left as it is, so that the next start recovers."""
    store = open_store(str(directory))
    try:
        queues = []
        for queue_id in range(QUEUES):
            found: list[bytes] = []
            while True:
                result = store.read(TOPIC, queue_id, len(found))
                if not result.runs:
                    break
                frames = b"".join(run.frames for run in result.runs)
                found += [message.body for message in WireBatch.FromString(frames).messages]
                assert result.next_offset == len(found)
            queues.append(found)
        return queues
    finally:
        store.abandon()


def check(directory: Path, acknowledged: list[Acknowledged]) -> None:
    queues = queue_content(directory)
    for one in acknowledged:
        wanted = [body(one.name, number) for number in range(one.messages)]
        there = queues[one.queue_id][one.queue_offset : one.queue_offset + one.messages]
        assert there == wanted, f"{one} is not where it was"
    counts = Counter(content for queue in queues for content in queue)
    assert [content for content, count in counts.items() if count > 1] == []
    for queue in queues:
        # Run, entry, batch and message ascend: what was not acknowledged is in order as well.
        order = [tuple(map(int, content.replace(b"/", b".").split(b"."))) for content in queue]
        assert order == sorted(order)


def test_a_killed_node_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    directory, rng = tmp_path / "data", random.Random(SEED)
    acknowledged: list[Acknowledged] = []
    for run in range(ROUNDS):
        # Some die while they start, some as they stand on the edge of a segment, some later.
        lines, extra_s = rng.choice([0, 1, 10, 40, 80]), rng.choice([0.0, 0.005, 0.05])
        if lines == 0:
            extra_s = rng.uniform(0, 0.4)
        acknowledged += run_and_kill(directory, run, lines, extra_s)
        if run % 3 == 0 or run == ROUNDS - 1:
            check(directory, acknowledged)
    assert len(acknowledged) > 10 * ROUNDS
    assert len(list((directory / "commitlog").glob("*.log"))) > 10
