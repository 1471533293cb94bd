"""The durable index: what a node may vote and acknowledge on."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pytest

from mq.store.commitlog import CommitLog
from mq.store.vfs import RealVfs
from tests.support.logs import append, checkpoint, disk, new_log, open_log, segments_of, send

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DEADLINE_S = 20


def by_the_offset(log: CommitLog) -> int:
    """The slow way to say it."""
    return max(
        (
            index
            for index in range(log.first_index, log.last_index + 1)
            if log.ref(index).end_log_offset <= log.durable_offset
        ),
        default=log.first_index - 1,
    )


def test_nothing_is_durable_in_an_empty_log() -> None:
    log = open_log(disk())
    assert log.durable_index == 0
    log.roll(checkpoint())
    assert log.durable_index == 0
    log.sync()
    assert log.durable_index == 1


def test_the_durable_index_follows_every_step_of_a_log() -> None:
    for seed in range(60):
        rng, vfs = random.Random(seed), disk(seed)
        log = new_log(vfs, segment_bytes=1 << 20)
        for _ in range(40):
            match rng.choice(["append", "append", "roll", "sync", "truncate", "drop", "restart"]):
                case "append":
                    append(log, *[b"x" * rng.randint(0, 30)] * rng.randint(1, 5))
                case "roll":
                    log.roll(checkpoint())
                case "sync":
                    log.sync()
                    assert log.durable_index == log.last_index
                case "truncate" if log.last_index > log.first_index:
                    from_index = rng.randint(log.first_index + 1, log.last_index)
                    wanted = min(log.durable_index, from_index - 1)
                    log.truncate(from_index)
                    assert log.durable_index == wanted
                case "drop":
                    log.drop_front(rng.randint(0, 1))
                case "restart" if log.durable_index >= log.first_index:
                    durable = log.durable_index
                    vfs.crash(rng, keep=0.5)
                    log = open_log(vfs, segment_bytes=1 << 20)
                    assert log.durable_index == log.last_index >= durable
            assert log.durable_index == by_the_offset(log), f"seed {seed}"


@pytest.mark.parametrize("from_index", range(2, 10))
def test_replacements_of_durable_entries_are_not_durable(from_index: int) -> None:
    vfs = disk()
    log = open_log(vfs)
    segments_of(log, [b"a", b"bb"], [b"ccc", b"dddd"], [b"eeeee", b"ffffff"])
    source = new_log(disk(), segment_bytes=1 << 20)
    assert log.durable_index == 9
    log.truncate(from_index)
    assert log.durable_index == from_index - 1
    append(log, *[b"others" * 10] * 20, term=2)
    assert log.durable_index == from_index - 1
    log.roll(checkpoint(term=2))
    append(log, b"more", term=2)
    assert log.durable_index == from_index - 1
    log.sync()
    assert log.durable_index == log.last_index
    # The same for entries that are copied.
    append(source, *[b"x"] * 9)
    copy = open_log(disk())
    send(source, copy, 100)
    copy.sync()
    copy.truncate(from_index)
    send(source, copy, 100)
    assert copy.durable_index == from_index - 1


@pytest.mark.parametrize("is_rolled", [False, True])
def test_entries_appended_during_a_sync_are_not_durable(
    monkeypatch: pytest.MonkeyPatch, is_rolled: bool
) -> None:
    """At each place of a sync where the owner may be in the middle of an append."""
    log = new_log(disk(), segment_bytes=1 << 20)
    append(log, b"a", b"b")
    segment = log._segments[-1]
    seen: list[int] = []

    def meanwhile(real: Callable[[], None]) -> Callable[[], None]:
        def call() -> None:
            append(log, b"meanwhile")
            seen.append(log.durable_index)
            real()
            append(log, b"meanwhile")
            seen.append(log.durable_index)

        return call

    monkeypatch.setattr(segment.log, "sync", meanwhile(segment.log.sync))
    monkeypatch.setattr(segment, "write_idx_header", meanwhile(segment.write_idx_header))
    log.sync()
    monkeypatch.undo()
    assert seen == [0, 0, 3, 3]
    assert log.durable_index == 3
    if is_rolled:
        log.roll(checkpoint())
        assert log.durable_index == 3
    log.sync()
    assert log.durable_index == log.last_index == (8 if is_rolled else 7)


def test_the_durable_index_is_never_ahead_of_a_sync_on_another_thread(tmp_path: Path) -> None:
    log = CommitLog(RealVfs(), f"{tmp_path}/log", segment_bytes=1 << 20, verify_bytes=0)
    log.roll(checkpoint())
    stop = threading.Event()
    synced = [0]

    def keep_syncing() -> None:
        while not stop.is_set():
            before = log.last_index
            log.sync()
            synced[0] = before

    thread = threading.Thread(target=keep_syncing)
    thread.start()
    try:
        last = 0
        for number in range(3000):
            if number % 500 == 499:
                log.roll(checkpoint())
            append(log, b"x" * 50)
            at_least, appended = synced[0], log.last_index
            durable = log.durable_index
            assert max(at_least, last) <= durable <= appended
            last = durable
    finally:
        stop.set()
        thread.join(DEADLINE_S)
    log.sync()
    assert log.durable_index == log.last_index
    log.close()
