"""Leases of received messages, against a plain record of each message."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from mq.broker.queue import Queue
from mq.broker.receive.leases import LeaseDraft
from mq.broker.state.leases import Leases, QueueLeases, Range
from mq.wire.v1.state_pb2 import LeaseChange

GROUP, QUEUE = "g", Queue("t", 3)
END = 40

VALUES = st.one_of(
    st.none(), st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 2)).map(tuple)
)
CHANGES = st.lists(st.tuples(st.integers(0, END), st.integers(0, END), VALUES), max_size=25)

Value = tuple[int, int, int] | None


class Plain:
    """One record a message."""

    def __init__(self) -> None:
        self.next = 0
        self.messages: dict[int, tuple[int, int, int]] = {}

    def put(self, start: int, end: int, value: Value) -> None:
        if start >= end:
            return
        for queue_offset in range(start, end):
            self.messages.pop(queue_offset, None)
            if value is not None:
                self.messages[queue_offset] = value
        self.next = max(self.next, end)


def check(leases: QueueLeases, plain: Plain) -> None:
    ranges = leases.ranges
    found = {at: one[2:] for one in ranges for at in range(one.start, one.end)}
    assert found == plain.messages
    assert leases.next == plain.next
    assert leases.message_count == len(plain.messages)
    assert leases.done_ahead == len(
        [at for at in range(leases.done_to, plain.next) if at not in plain.messages]
    )
    assert leases.done_to == min(plain.messages, default=plain.next)
    for one, other in pairwise(ranges):
        assert one.start < one.end <= other.start < other.end
        # Neighbours that are alike are one record.
        assert one.end < other.start or one[2:] != other[2:]
    for queue_offset in range(END + 1):
        at = leases.at(queue_offset)
        assert (at[2:] if at else None) == plain.messages.get(queue_offset)


@given(CHANGES)
def test_ranges_say_the_same_as_a_record_of_each_message(
    changes: list[tuple[int, int, Value]],
) -> None:
    leases, plain = QueueLeases(), Plain()
    for start, end, value in changes:
        leases.put(start, end, value)
        plain.put(start, end, value)
        check(leases, plain)


@given(CHANGES, st.integers(0, END), st.integers(0, END))
def test_within_finds_the_ranges_that_have_some_of_the_messages(
    changes: list[tuple[int, int, Value]], start: int, end: int
) -> None:
    leases = QueueLeases()
    for change in changes:
        leases.put(*change)
    expected = [one for one in leases.ranges if one.start < end and start < one.end]
    if start < end:
        assert leases.within(start, end) == expected


@given(CHANGES, CHANGES)
@settings(max_examples=50)
def test_a_command_does_what_its_draft_foresaw_and_a_checkpoint_keeps_it(
    before: list[tuple[int, int, Value]], after: list[tuple[int, int, Value]]
) -> None:
    leases = Leases()
    draft = LeaseDraft(leases)
    assert draft.command() is None
    draft.begin(GROUP, QUEUE, 5)
    for change in before:
        draft.put(GROUP, QUEUE, *change)
    apply(leases, draft)
    untouched = [*leases.encode()]
    draft = LeaseDraft(leases)
    for change in after:
        draft.put(GROUP, QUEUE, *change)
    assert [*leases.encode()] == untouched
    foreseen = draft.get(GROUP, QUEUE)
    assert foreseen is not None
    apply(leases, draft)
    found = leases.get(GROUP, QUEUE)
    assert found is not None
    assert (found.next, found.ranges) == (foreseen.next, foreseen.ranges)
    again = Leases()
    again.restore(leases.encode())
    restored = again.get(GROUP, QUEUE)
    assert restored is not None
    assert (restored.next, restored.ranges) == (found.next, found.ranges)


def apply(leases: Leases, draft: LeaseDraft) -> None:
    command = draft.command()
    if command is not None:
        (one,) = command.change_leases.queues
        expected = one.next if one.HasField("next") else None
        queue = Queue(one.topic, one.queue_id)
        assert leases.change(one.group, queue, one.changes, expected) is not None


def test_a_change_that_was_decided_elsewhere_changes_nothing() -> None:
    leases = Leases()
    done = [LeaseChange(start=0, end=3, is_done=True)]
    assert leases.change(GROUP, QUEUE, done, 0) is None
    assert leases.get(GROUP, QUEUE) is None
    assert leases.change(GROUP, QUEUE, done) == 3
    assert leases.change(GROUP, QUEUE, done, 2) is None
    leased = [LeaseChange(start=3, end=5, lease=7, visible_at_ms=9, attempts=1)]
    assert leases.change(GROUP, QUEUE, leased, 3) == 3
    found = leases.get(GROUP, QUEUE)
    assert found is not None
    assert found.ranges == [Range(3, 5, 7, 9, 1)]


def test_neighbours_in_a_draft_are_one_change() -> None:
    leases = Leases()
    leases.change(GROUP, QUEUE, [LeaseChange(start=0, end=100, lease=7, attempts=1)])
    draft = LeaseDraft(leases)
    for queue_offset in range(50):
        draft.put(GROUP, QUEUE, queue_offset, queue_offset + 1, None)
    command = draft.command()
    assert command is not None
    (one,) = command.change_leases.queues
    assert [(change.start, change.end, change.is_done) for change in one.changes] == [(0, 50, True)]
