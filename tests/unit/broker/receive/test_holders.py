"""Which member has which messages, as far as the leader remembers."""

from __future__ import annotations

import numpy as np
import pytest

from mq.broker.queue import Queue
from mq.broker.receive import holders
from mq.broker.receive.grants import GrantedRun
from mq.broker.receive.holders import HeldRange, LeaseHolders
from mq.broker.state.leases import Range
from mq.store.reading import Run

QUEUE = Queue("t", 0)


def granted(lease: int, start: int, count: int = 1) -> GrantedRun:
    sizes = np.ones(count, np.uint32)
    return GrantedRun(QUEUE, lease, 1, 0, Run(start, count, 0, 0, memoryview(b""), sizes))


def test_a_range_is_told_by_its_members_also_when_parts_of_it_are_done() -> None:
    known = LeaseHolders()
    known.note("a", [granted(7, 0, 4)])
    known.note("b", [granted(7, 4), granted(8, 10, 2)])
    assert [*known.of(QUEUE, Range(2, 6, 7, 0, 1))] == [
        HeldRange(2, 4, "a"),
        HeldRange(4, 5, "b"),
        HeldRange(5, 6, ""),
    ]
    assert [*known.of(QUEUE, Range(11, 12, 8, 0, 1))] == [HeldRange(11, 12, "b")]
    assert [*known.of(QUEUE, Range(0, 4, 9, 0, 1))] == [HeldRange(0, 4, "")]
    known.forget()
    assert [*known.of(QUEUE, Range(0, 4, 7, 0, 1))] == [HeldRange(0, 4, "")]


def test_only_the_newest_grants_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders, "GRANTS_MAX", 10)
    known = LeaseHolders()
    for lease in range(1, 101):
        known.note("m", [granted(lease, lease)])
    told = [next(known.of(QUEUE, Range(at, at + 1, at, 0, 1))).member_id for at in range(1, 101)]
    assert told == [""] * 90 + ["m"] * 10
