"""The store against bare file access, in one run on one machine: ratios, because machines are
shared and noisy.

    append    batches of 1,000 messages of 128 bytes to the log and their queue, four batches a
              group commit, against one `write()` for each batch to a growing file; both end in the
              page cache
    checked   the same with the check of what a producer sent (`batch.accept`) counted in
    10,240    the same batches, each to another one of 10,240 queues, against all to one queue
    read      one queue of eight from start to end, against `pread` of the same ranges of the log
    filter    one tag among 1,000,000 units of a queue
    start     a new process opens 1 GiB of log with 10,240 queues after a crash, against reading
              1 GiB of file

Baseline and store take turns; a ratio is the median over the rounds. `--json` prints one object;
`--full` takes longer.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from mq.config import StoreConfig
from mq.hashing import text_hash
from mq.store.batch import Batch, accept, prepare
from mq.store.consumequeue import SCAN_UNITS, ConsumeQueue, matching
from mq.store.identity import Identity
from mq.store.reading import Run, Status
from mq.store.store import Store
from mq.store.vfs import RealVfs
from mq.wire.v1.message_pb2 import Batch as WireBatch
from mq.wire.v1.message_pb2 import Message, RawBatch
from tests.support.stores import append_entry, apply_through

BODY_BYTES = 128
BATCH_MESSAGES = 1000
GROUP = 4
# So many batches fill what queues may keep in memory: from then on each one pushes out another.
FILL = 420
QUEUES = 10_240
MESSAGE_BYTES_MAX = 4 << 20
GOALS = {
    "append_vs_write": (0.5, "at least"),
    "append_10240_vs_1": (0.8, "at least"),
    "read_vs_pread": (0.5, "at least"),
    "filter_units_per_s": (50e6, "at least"),
    "start_vs_read": (3.0, "at most"),
    "start_rss_mb": (150.0, "below"),
}
progress = Console(stderr=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--full", action="store_true", help="more rounds and larger ones")
    parser.add_argument(
        "--directory", help="where to write (default: the system's temporary directory)"
    )
    parser.add_argument("--open", metavar="DATA", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.open:
        print(json.dumps(measure_start(arguments.open)))
        return
    with tempfile.TemporaryDirectory(prefix="mq-bench-", dir=arguments.directory) as directory:
        figures = run(
            directory, rounds=15 if arguments.full else 5, scale=4 if arguments.full else 1
        )
    if arguments.json:
        print(json.dumps(figures))
    else:
        show(figures)


def run(directory: str, *, rounds: int, scale: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    steps: list[tuple[str, Callable[[str, int, int], dict[str, float]]]] = [
        ("append to one queue", bench_append),
        ("append to 10,240 queues", bench_many_queues),
        ("read a backlog", bench_read),
        ("filter by tag", bench_filter),
        ("start with 1 GiB", bench_start),
    ]
    for title, step in steps:
        started = time.perf_counter()
        figures |= step(f"{directory}/{step.__name__}", rounds, scale)
        shutil.rmtree(f"{directory}/{step.__name__}", ignore_errors=True)
        progress.print(f"{title}: {time.perf_counter() - started:.1f} s", highlight=False)
    return figures


# -- what is written ------------------------------------------------------------------------------


def batches(queues: Sequence[tuple[str, int]], tag: str = "bench") -> list[bytes]:
    """Prepared batches as a producer sends them, one for each queue."""
    bodies = random.Random(1)
    message = [Message(body=bodies.randbytes(BODY_BYTES), tag=tag) for _ in range(BATCH_MESSAGES)]
    template = prepare(WireBatch(topic="t", messages=message).SerializeToString())
    start = accept(template, MESSAGE_BYTES_MAX).region_start
    header, region = RawBatch.FromString(template[:start]), template[start:]
    result = []
    for topic, queue_id in queues:
        header.topic, header.queue_id = topic, queue_id
        result.append(header.SerializeToString() + region)
    return result


def check(encoded: Sequence[bytes]) -> list[Batch]:
    return [accept(data, MESSAGE_BYTES_MAX) for data in encoded]


def many_queues() -> list[tuple[str, int]]:
    return [(f"topic-{number // 8:05d}", number % 8) for number in range(QUEUES)]


@contextmanager
def open_store(directory: str, segment_bytes: int = 1 << 30) -> Iterator[Store]:
    config = StoreConfig(flush="async", segment_bytes=segment_bytes)
    store = Store(RealVfs(), directory, config, Identity("bench", "set-0", "node-0"))
    try:
        yield store
    finally:
        store.abandon()


def append(store: Store, accepted: Sequence[Batch]) -> None:
    """In the log, in the queues, and what belongs in the queues' files is there."""
    for at in range(0, len(accepted), GROUP):
        ref = append_entry(store, accepted[at : at + GROUP], now_ms=at)
        apply_through(store, ref.raft_index)
    store.settle()


def seconds(work: Callable[[], object]) -> float:
    """Without the garbage collector's share, which depends on what else is in memory."""
    gc.collect()
    gc.disable()
    try:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started
    finally:
        gc.enable()


def write_bare(path: str, encoded: Sequence[bytes]) -> float:
    """One `write()` a batch to a new file, as the store's segment is new in each round."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        return seconds(lambda: [os.write(fd, data) for data in encoded])
    finally:
        os.close(fd)
        Path(path).unlink()


# -- the measurements -----------------------------------------------------------------------------


def bench_append(directory: str, rounds: int, scale: int) -> dict[str, float]:
    encoded = batches([("topic", 0)]) * (1000 * scale)
    total_mb = sum(map(len, encoded)) / 1e6
    plain, checked, bare = [], [], []
    # The first round only makes the kernel's memory warm, for both alike.
    for number in range(rounds + 1):
        os.makedirs(directory)
        bare_s = write_bare(f"{directory}/bare", encoded)
        accepted = check(encoded)
        with open_store(f"{directory}/plain") as store:
            append(store, accepted[:FILL])
            plain_s = seconds(partial(append, store, accepted))
        with open_store(f"{directory}/checked") as store:
            append(store, accepted[:FILL])
            checked_s = seconds(partial(_append_checked, store, encoded))
        shutil.rmtree(directory)
        if number:
            bare.append(bare_s)
            plain.append(plain_s)
            checked.append(checked_s)
    return {
        "append_vs_write": median_ratio(bare, plain),
        "append_checked_vs_write": median_ratio(bare, checked),
        "append_mb_per_s": total_mb / statistics.median(plain),
        "append_messages_per_s": len(encoded) * BATCH_MESSAGES / statistics.median(plain),
        "write_mb_per_s": total_mb / statistics.median(bare),
    }


def _append_checked(store: Store, encoded: Sequence[bytes]) -> None:
    for at in range(0, len(encoded), GROUP):
        ref = append_entry(store, check(encoded[at : at + GROUP]), now_ms=at)
        apply_through(store, ref.raft_index)
    store.settle()


def bench_many_queues(directory: str, rounds: int, scale: int) -> dict[str, float]:
    queues = many_queues()
    order = random.Random(2)
    with open_store(directory, segment_bytes=64 << 20) as store:
        _create_queues(store, queues)
        one, many = [], []
        to_one = check(batches([("topic-00000", 0)]) * (512 * scale + FILL))
        for number in range(rounds + 1):
            to_many = check(batches(order.sample(queues, len(to_one))))
            taken = {}
            # What the first leaves to the kernel slows the second: they take turns.
            for accepted in (to_many, to_one) if number % 2 else (to_one, to_many):
                append(store, accepted[:FILL])
                taken[id(accepted)] = seconds(partial(append, store, accepted[FILL:]))
            one_s, many_s = taken[id(to_one)], taken[id(to_many)]
            # What was written must not be on its way to the disk while the next round is measured.
            store.drop_front(1000)
            if number:
                one.append(one_s)
                many.append(many_s)
    messages = (len(to_one) - FILL) * BATCH_MESSAGES
    return {
        "append_10240_vs_1": median_ratio(one, many),
        "append_10240_messages_per_s": messages / statistics.median(many),
    }


def _create_queues(store: Store, queues: Sequence[tuple[str, int]]) -> None:
    """A message in each queue, and all files on disk."""
    message = [Message(body=b"first")]
    for at in range(0, len(queues), 256):
        group = [
            prepare(WireBatch(topic=topic, queue_id=queue_id, messages=message).SerializeToString())
            for topic, queue_id in queues[at : at + 256]
        ]
        apply_through(store, append_entry(store, check(group), now_ms=0).raft_index)
    store.checkpoint()


def bench_read(directory: str, rounds: int, scale: int) -> dict[str, float]:
    ours, bare = [], []
    with open_store(directory, segment_bytes=(4 << 30) - 1) as store:
        append(
            store, check(batches([("topic", queue_id) for queue_id in range(8)]) * (200 * scale))
        )
        store.checkpoint()
        pulls = [[(run.log_offset, len(run.frames)) for run in runs] for runs in _read_all(store)]
        fd = os.open(store.log.segments()[0].path, os.O_RDONLY)
        for number in range(rounds * 6 + 1):
            bare_s = seconds(lambda: _pread_all(fd, pulls))
            ours_s = seconds(lambda: [None for _ in _read_all(store)])
            if number:
                bare.append(bare_s)
                ours.append(ours_s)
        os.close(fd)
    total_mb = sum(size for pull in pulls for _, size in pull) / 1e6
    return {
        "read_vs_pread": median_ratio(bare, ours),
        "read_mb_per_s": total_mb / statistics.median(ours),
    }


def _pread_all(fd: int, pulls: Sequence[Sequence[tuple[int, int]]]) -> None:
    """The same ranges, and like a pull's each one is held until its pull is complete."""
    for pull in pulls:
        parts = [os.pread(fd, size, at) for at, size in pull]
        del parts


def _read_all(store: Store) -> Iterator[Sequence[Run]]:
    at = 0
    while (result := store.read("topic", 3, at)).status == Status.FOUND:
        yield result.runs
        at = result.next_offset


def count_matching(queue: ConsumeQueue, tag_hashes: tuple[int, ...]) -> int:
    return sum(
        int(np.count_nonzero(matching(queue.read(at, min(at + SCAN_UNITS, queue.end)), tag_hashes)))
        for at in range(0, queue.end, SCAN_UNITS)
    )


def bench_filter(directory: str, rounds: int, scale: int) -> dict[str, float]:
    with open_store(directory) as store:
        append(
            store, check(batches([("topic", 0)], "a") * 500 + batches([("topic", 0)], "b") * 500)
        )
        store.checkpoint()
        queue = store.queues.get("topic", 0)
        if queue is None:
            raise AssertionError("what was written is not there")
        wanted = (text_hash("b"),)
        times = [seconds(lambda: count_matching(queue, wanted)) for _ in range(rounds * scale)]
        if count_matching(queue, wanted) != 500 * BATCH_MESSAGES:
            raise AssertionError("the filter found the wrong messages")
        return {"filter_units_per_s": queue.end / statistics.median(times)}


def bench_start(directory: str, rounds: int, scale: int) -> dict[str, float]:
    _fill(directory, (1 << 30) * scale)
    size = sum(path.stat().st_size for path in Path(directory, "commitlog").glob("*.log"))
    starts, reads, sizes = [], [], []
    for _ in range(min(rounds, 5)):
        reads.append(seconds(lambda: _read_files(directory)))
        command = [sys.executable, "-m", "bench.store", "--open", directory]
        opened = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        starts.append(opened["seconds"])
        sizes.append(opened["rss_mb"])
    return {
        "start_vs_read": statistics.median(s / r for s, r in zip(starts, reads, strict=True)),
        "start_rss_mb": max(sizes),
        "start_s": statistics.median(starts),
        "start_log_mb": size / 1e6,
        "start_replayed_mb": opened["replayed_mb"],
    }


def _fill(directory: str, size: int) -> None:
    """A log of this size over all queues, left as a crash would: the last checkpoint is some way
    back.
    """
    queues = many_queues()
    with open_store(directory) as store:
        _create_queues(store, queues)
        at = 0
        while store.log.end_offset < size - (1 << 20):
            append(store, check(batches(queues[at : at + 64])))
            at = (at + 64) % len(queues)
            if store.is_checkpoint_due:
                store.checkpoint()
        store.log.sync()


def _read_files(directory: str) -> None:
    buffer = bytearray(1 << 20)
    for path in sorted(Path(directory, "commitlog").glob("*.log")):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def measure_start(directory: str) -> dict[str, float]:
    """In a process of its own: open, apply what the log has, and look at the memory."""
    started = time.perf_counter()
    store = Store(RealVfs(), directory, StoreConfig(), Identity("bench", "set-0", "node-0"))
    replay_from = store.log.ref(store.applied_index).log_offset
    while store.applied_index < store.log.last_index:
        apply_through(store, store.applied_index + 1000)
    elapsed = time.perf_counter() - started
    resident = next(
        int(line.split()[1])
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmRSS")
    )
    if len(store.queues) != QUEUES:
        raise AssertionError(f"{len(store.queues)} queues instead of {QUEUES}")
    replayed = store.log.end_offset - replay_from
    store.abandon()
    return {"seconds": elapsed, "rss_mb": resident / 1024, "replayed_mb": replayed / 1e6}


# -- what is printed ------------------------------------------------------------------------------


def median_ratio(baseline_s: Sequence[float], ours_s: Sequence[float]) -> float:
    """Our speed as a ratio of the baseline's: rounds that ran next to each other are compared."""
    pairs = zip(baseline_s, ours_s, strict=True)
    return statistics.median(baseline / ours for baseline, ours in pairs)


def show(figures: dict[str, float]) -> None:
    table = Table(title="The store against bare file access")
    for column in ("figure", "measured", "goal", ""):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for name, value in figures.items():
        goal, relation = GOALS.get(name, (None, ""))
        text = f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
        if goal is None:
            table.add_row(f"  {name}", text, "", "")
            continue
        is_met = value >= goal if relation == "at least" else value <= goal
        mark = "[green]yes[/]" if is_met else "[red]no[/]"
        table.add_row(name, text, f"{relation} {goal:,g}", mark)
    Console().print(table)


if __name__ == "__main__":
    main()
