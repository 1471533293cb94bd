"""Requests about received messages: ranges before, a request, ranges after."""

from __future__ import annotations

import pytest

from mq.broker.queue import Queue
from mq.broker.receive.acks import (
    Ack,
    ChangeInvisible,
    HandleRequest,
    Nack,
    Return,
    held_ranges,
)
from mq.broker.receive.leases import Handle, LeaseTurn
from mq.broker.state.leases import Range
from mq.broker.state.state import State
from mq.wire.v1.state_pb2 import LeaseChange
from tests.support.stores import new_store

GROUP, QUEUE = "g", Queue("t", 0)
NOW_MS = 1_000_000
RETRIES_MAX = 2

# Two leases side by side, one that was held longer in the middle, one without a lease.
BEFORE = [
    Range(0, 4, 7, 100, 1),
    Range(4, 6, 8, 100, 1),
    Range(6, 8, 8, 900, 1),
    Range(10, 12, 0, 0, 0),
    Range(12, 14, 9, 100, 3),
]


class Turn(LeaseTurn):
    """Over the leases above; there is room for one dead letter."""

    def __init__(self) -> None:
        state = State()
        state.leases.change(GROUP, QUEUE, [LeaseChange(**one._asdict()) for one in BEFORE])
        super().__init__(state, new_store()[1], NOW_MS, "set-0", 1 << 20)

    def to_dead_letters(self, group: str, queue: Queue, one: Range, reason: str) -> int:
        assert (group, queue, reason) == (GROUP, QUEUE, "broken")
        self.draft.put(group, queue, one.start, one.start + 1, None)
        return one.start + 1

    @property
    def ranges(self) -> list[Range]:
        leases = self.draft.get(GROUP, QUEUE)
        assert leases is not None
        return leases.ranges


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
def test_a_handle_is_valid_when_its_lease_holds_all_of_it(
    lease: int, start: int, end: int, found: list[Range] | None
) -> None:
    assert held_ranges(Turn().draft, GROUP, Handle(QUEUE, lease, start, end)) == found
    assert held_ranges(Turn().draft, "other", Handle(QUEUE, lease, start, end)) is None


SHOWN = [Handle(QUEUE, 7, 0, 4)]


@pytest.mark.parametrize(
    ("request_", "after"),
    [
        (Ack(GROUP, SHOWN), BEFORE[1:]),
        (
            ChangeInvisible(GROUP, [Handle(QUEUE, 7, 2, 4)], 5_000),
            [Range(0, 2, 7, 100, 1), Range(2, 4, 7, NOW_MS + 5_000, 1), *BEFORE[1:]],
        ),
        (
            Nack(GROUP, SHOWN, 50, RETRIES_MAX, "broken"),
            [Range(0, 4, 0, NOW_MS + 50, 1), *BEFORE[1:]],
        ),
        (
            Nack(GROUP, SHOWN, None, RETRIES_MAX, "broken"),
            [Range(0, 4, 0, NOW_MS + 10_000, 1), *BEFORE[1:]],
        ),
        # Given out too often: the rest is visible at once, for the next turn of dead letters.
        (
            Nack(GROUP, [Handle(QUEUE, 9, 12, 14)], 50, RETRIES_MAX, "broken"),
            [*BEFORE[:4], Range(13, 14, 0, NOW_MS, 3)],
        ),
        (Return(GROUP, SHOWN), [Range(0, 4, 0, NOW_MS, 0), *BEFORE[1:]]),
    ],
)
def test_each_request_changes_the_ranges_of_its_handles(
    request_: HandleRequest, after: list[Range]
) -> None:
    turn = Turn()
    is_kept = isinstance(request_, ChangeInvisible)
    assert request_.decide(turn) == ([True], NOW_MS + 5_000 if is_kept else 0)
    assert turn.ranges == after


def test_neighbours_are_judged_together_or_one_by_one() -> None:
    turn = Turn()
    shown: list[Handle | None] = [
        Handle(QUEUE, 7, 0, 1),
        Handle(QUEUE, 7, 1, 2),
        None,
        Handle(QUEUE, 8, 7, 8),
        Handle(QUEUE, 8, 8, 9),
        Handle(QUEUE, 7, 0, 1),
    ]
    assert Ack(GROUP, shown).decide(turn).valid == [True, True, False, True, False, False]
    assert turn.ranges == [
        Range(2, 4, 7, 100, 1),
        Range(4, 6, 8, 100, 1),
        Range(6, 7, 8, 900, 1),
        *BEFORE[3:],
    ]
