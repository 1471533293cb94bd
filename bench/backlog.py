"""The effect on producers of a consumer that reads an old backlog: three nodes, asynchronous flush,
each message on a majority of them.

    produce_with_backlog_reader                with a reader that goes where it is sent: a follower
    produce_with_backlog_reader_from_leader    with one that reads from the leader only

Each is the producers' throughput with the reader divided by that without it, right before and
after: medians over rounds; first at full speed, then (`paced_...`) by producers that send at a part
of it. The reader pulls and opens nothing: it is the brokers that are measured. All share the
processors of one machine, which a real cluster does not: the reader is nice (`reader_nice`), and
what it read is printed beside. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from rich.console import Console

from bench.broker import Figures, create_topic, generate
from bench.broker_set import BrokerSet
from bench.generator import fields_end, warm_memory
from mq.wire.v1 import consumer_pb2

_NAME = "produce_with_backlog_reader"
# Each with a reader stands between two without.
_CASES = ("alone", "follower", "alone", "leader", "alone")
_QUEUES = 8
_NICE = 10
_PACE = 0.6
_HEAD_BYTES = 256
_WARM_BYTES = 1_000_000_000
_LOAD: dict[str, Any] = {"size": 1024, "batch": 512, "queues": _QUEUES, "warm_bytes": 0}
progress = Console(stderr=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement")
    parser.add_argument("--backlog-bytes", type=int, default=1_000_000_000, help="old messages")
    parser.add_argument("--directory", help="where to write (default: the system's temporary one)")
    parser.add_argument("--read", help="be the reader, from the broker at this address")
    parser.add_argument("--only-leader", action="store_true", help="the reader stays there")
    arguments = parser.parse_args()
    if arguments.read:
        read(arguments.read, is_free=not arguments.only_leader)
        return
    figures: Figures = {"reader_nice": _NICE}
    _keep(figures, "", run(arguments, 0.0))
    _keep(figures, "paced_", run(arguments, _PACE * figures["alone_mb_per_s"] * 1e6))
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


class _Rates(NamedTuple):
    """MB/s."""

    produced: float
    read: float


def run(arguments: Any, bytes_per_s: float) -> list[list[_Rates]]:
    """Rounds on brokers of their own: what they wrote goes with them."""
    with (
        tempfile.TemporaryDirectory(prefix="mq-bench-", dir=arguments.directory) as directory,
        BrokerSet(Path(directory) / "set", 3, "async") as brokers,
    ):
        create_topic(brokers.address, "bench", _QUEUES)
        fill = {**_LOAD, "bytes_max": arguments.backlog_bytes, "seconds": 600}
        generate("produce", brokers.address, **fill)
        return [_round(brokers.address, arguments, bytes_per_s) for _ in range(arguments.rounds)]


def _round(address: str, arguments: Any, bytes_per_s: float) -> list[_Rates]:
    """One round of each case."""
    found = []
    flags = {**_LOAD, "seconds": arguments.seconds, "bytes_per_s": bytes_per_s}
    for case in _CASES:
        warm_memory(_WARM_BYTES)
        with _reader(address, case) as reading:
            produced = generate("produce", address, **flags)["mb_per_s"]
        found.append(_Rates(produced, reading[0]))
        progress.print(f"{case}: {produced:,.0f} MB/s, reader {reading[0]:,.0f} MB/s")
    return found


def _keep(figures: Figures, prefix: str, rounds: list[list[_Rates]]) -> None:
    ratios: dict[str, list[float]] = {}
    for before, follower, between, leader, after in rounds:
        alone = (before.produced + between.produced) / 2
        ratios.setdefault("", []).append(follower.produced / alone)
        alone = (between.produced + after.produced) / 2
        ratios.setdefault("_from_leader", []).append(leader.produced / alone)
    for name, values in ratios.items():
        figures[f"{prefix}{_NAME}{name}"] = statistics.median(values)
    for case in dict.fromkeys(_CASES):
        rates = [
            one for each in rounds for name, one in zip(_CASES, each, strict=True) if name == case
        ]
        figures[f"{prefix}{case}_mb_per_s"] = statistics.median(one.produced for one in rates)
        if case != "alone":
            figures[f"{prefix}{case}_reader_mb_per_s"] = statistics.median(
                one.read for one in rates
            )


# -- the reader, a process of its own --------------------------------------------------------------


@contextmanager
def _reader(address: str, case: str) -> Iterator[list[float]]:
    """Reads meanwhile, if the case has a reader; then the list has its MB/s."""
    rates: list[float] = []
    if case == "alone":
        yield rates
        rates.append(0.0)
        return
    command = [sys.executable, "-m", "bench.backlog", "--read", address]
    command += ["--only-leader"] if case == "leader" else []
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield rates
        told, _ = process.communicate("stop\n")
        rates.append(json.loads(told)["mb_per_s"])


class _Place(NamedTuple):
    address: str
    queue_id: int
    queue_offset: int


def read(address: str, *, is_free: bool) -> None:
    """From the beginning of one queue after the other, until something is said on stdin."""
    os.nice(_NICE)
    place = _Place(address, 0, 0)
    channels: dict[str, grpc.Channel] = {}
    began_s, size_bytes, is_begun = time.perf_counter(), 0, False
    while not select.select([sys.stdin], [], [], 0)[0]:
        if place.address not in channels:
            channels[place.address] = grpc.insecure_channel(
                place.address, options=[("grpc.max_receive_message_length", -1)]
            )
        request = consumer_pb2.PullRequest(
            topic="bench",
            queue_id=place.queue_id,
            queue_offset=place.queue_offset,
            any_replica=is_free,
        )
        pull = channels[place.address].unary_unary("/mq.v1.ConsumerService/Pull")
        data = pull(request.SerializeToString(), timeout=30)
        size_bytes += len(data)
        place = _next_place(address, place, data)
        if not is_begun:
            is_begun = True
            print("begun", flush=True)
    seconds = time.perf_counter() - began_s
    for channel in channels.values():
        channel.close()
    print(json.dumps({"mb_per_s": size_bytes / seconds / 1e6}))


def _next_place(leader: str, place: _Place, data: bytes) -> _Place:
    """The messages stand behind the few fields that say where to go on."""
    head = data[:_HEAD_BYTES]
    answer = consumer_pb2.PullResponse.FromString(head[: fields_end(head)])
    if answer.status != consumer_pb2.PULL_FOUND or answer.read_from == leader:
        # Caught up: another queue, from its beginning.
        return _Place(leader, (place.queue_id + 1) % _QUEUES, 0)
    return _Place(answer.read_from or place.address, place.queue_id, answer.next_offset)


if __name__ == "__main__":
    main()
