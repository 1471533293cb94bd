"""What becomes of messages in hand: a table of ranges before, a handle, ranges after."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mq.broker.queue import Queue
from mq.broker.receive import settling
from mq.broker.receive.handles import Handle
from mq.broker.receive.lease_draft import Draft
from mq.broker.state.leases import Leases, Range
from mq.wire.v1.state_pb2 import LeaseChange

if TYPE_CHECKING:
    from collections.abc import Callable

GROUP, QUEUE = "g", Queue("t", 0)
NOW_MS = 1_000_000
RETRIES_MAX = 2

# Two leases side by side, one that was held longer in the middle, one that is in nobody's hands.
BEFORE = [
    Range(0, 4, 7, 100, 1),
    Range(4, 6, 8, 100, 1),
    Range(6, 8, 8, 900, 1),
    Range(10, 12, 0, 0, 0),
    Range(12, 14, 9, 100, 3),
]


def drafted() -> Draft:
    leases = Leases()
    changes = [
        LeaseChange(start=one.start, end=one.end, lease=one.lease, visible_at_ms=one.visible_at_ms)
        for one in BEFORE
    ]
    for change, one in zip(changes, BEFORE, strict=True):
        change.attempts = one.attempts
    leases.change(GROUP, QUEUE, changes)
    return Draft(leases)


@pytest.mark.parametrize(
    ("lease", "start", "end", "found"),
    [
        (7, 0, 4, [Range(0, 4, 7, 100, 1)]),
        (7, 1, 3, [Range(1, 3, 7, 100, 1)]),
        (8, 5, 8, [Range(5, 6, 8, 100, 1), Range(6, 8, 8, 900, 1)]),
        (7, 3, 5, None),  # some are of another lease
        (8, 3, 5, None),
        (8, 7, 9, None),  # some are done
        (8, 8, 9, None),
        (8, 9, 10, None),
        (9, 13, 15, None),  # some were never given out
        (9, 20, 21, None),
    ],
)
def test_a_handle_is_good_when_all_of_it_is_in_the_hands_of_its_lease(
    lease: int, start: int, end: int, found: list[Range] | None
) -> None:
    assert settling.in_hand(drafted(), GROUP, Handle(QUEUE, lease, start, end)) == found
    assert settling.in_hand(drafted(), "other", Handle(QUEUE, lease, start, end)) is None


def ranges(draft: Draft) -> list[Range]:
    leases = draft.get(GROUP, QUEUE)
    assert leases is not None
    return leases.ranges


def nothing(_: Queue, one: Range) -> int:
    return one.start


def half(_: Queue, one: Range) -> int:
    return one.start + 1


@pytest.mark.parametrize(
    ("make", "handle", "after"),
    [
        (lambda draft: settling.acknowledge(draft, GROUP), (7, 0, 4), BEFORE[1:]),
        (
            lambda draft: settling.hold_longer(draft, GROUP, 5_000),
            (7, 2, 4),
            [Range(0, 2, 7, 100, 1), Range(2, 4, 7, 5_000, 1), *BEFORE[1:]],
        ),
        (
            lambda draft: settling.give_back(draft, GROUP, NOW_MS, 50, RETRIES_MAX, nothing),
            (7, 0, 4),
            [Range(0, 4, 0, NOW_MS + 50, 1), *BEFORE[1:]],
        ),
        (
            lambda draft: settling.give_back(draft, GROUP, NOW_MS, None, RETRIES_MAX, nothing),
            (7, 0, 4),
            [Range(0, 4, 0, NOW_MS + 10_000, 1), *BEFORE[1:]],
        ),
        # Given out too often: what cannot be buried now is visible for who buries it.
        (
            lambda draft: settling.give_back(draft, GROUP, NOW_MS, 50, RETRIES_MAX, half),
            (9, 12, 14),
            [*BEFORE[:4], Range(12, 13, 9, 100, 3), Range(13, 14, 0, NOW_MS, 3)],
        ),
        (
            lambda draft: settling.take_back(draft, GROUP, NOW_MS),
            (7, 0, 4),
            [Range(0, 4, 0, NOW_MS, 0), *BEFORE[1:]],
        ),
    ],
)
def test_what_becomes_of_them(
    make: Callable[[Draft], settling.Settle], handle: tuple[int, int, int], after: list[Range]
) -> None:
    draft = drafted()
    assert settling.settle(draft, GROUP, [Handle(QUEUE, *handle)], make(draft)) == [True]
    assert ranges(draft) == after


def test_neighbours_are_judged_together_or_one_by_one() -> None:
    draft = drafted()
    shown: list[Handle | None] = [
        Handle(QUEUE, 7, 0, 1),
        Handle(QUEUE, 7, 1, 2),
        None,
        Handle(QUEUE, 8, 7, 8),
        Handle(QUEUE, 8, 8, 9),
        Handle(QUEUE, 7, 0, 1),
    ]
    found = settling.settle(draft, GROUP, shown, settling.acknowledge(draft, GROUP))
    assert found == [True, True, False, True, False, False]
    assert ranges(draft) == [
        Range(2, 4, 7, 100, 1),
        Range(4, 6, 8, 100, 1),
        Range(6, 7, 8, 900, 1),
        *BEFORE[3:],
    ]
