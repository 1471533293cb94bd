"""The leader's memory of a receiving group: the times of redeliveries, and the calls to wake."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mq.broker.queue import Queue
from mq.broker.receive.members import ReceiveGroup, ReceiveSpec, Redeliveries
from mq.broker.state.leases import QueueLeases, Range
from mq.broker.state.topics import Topic
from mq.errors import MqError, NotLeader

END = 30
SPANS = st.tuples(st.integers(0, END), st.integers(1, 8))
STEPS = st.lists(
    st.tuples(SPANS, st.one_of(st.none(), st.tuples(st.integers(0, 2), st.integers(0, 9)))),
    max_size=20,
)


@given(STEPS, st.integers(0, 9))
def test_everything_that_is_due_comes_once(
    steps: list[tuple[tuple[int, int], tuple[int, int] | None]], now_ms: int
) -> None:
    leases, redeliveries = QueueLeases(), Redeliveries()
    for (start, count), value in steps:
        if value is None:
            leases.put(start, start + count, None)
        else:
            lease, visible_at_ms = value
            leases.put(start, start + count, (lease, visible_at_ms, 1))
            redeliveries.push(Range(start, start + count, lease, visible_at_ms, 1))
    due = {at for one in leases.ranges if one.visible_at_ms <= now_ms for at in span(one)}
    assert redeliveries.is_due(now_ms, leases) == bool(due)
    found: set[int] = set()
    last_ms = 0
    while (one := redeliveries.pop(now_ms, leases)) is not None:
        assert last_ms <= one.visible_at_ms <= now_ms
        last_ms = one.visible_at_ms
        found |= set(span(one))
        # It is granted: a copy in the heap does not count.
        leases.put(one.start, one.end, (99, 100, 2))
    assert found == due


def span(one: Range) -> range:
    return range(one.start, one.end)


def test_redeliveries_of_ended_leases_do_not_pile_up() -> None:
    leases, redeliveries = QueueLeases(), Redeliveries()
    for at in range(5_000):
        leases.put(at, at + 1, (at + 1, 10**12, 1))
        redeliveries.push(Range(at, at + 1, at + 1, 10**12, 1))
        leases.put(at, at + 1, None)
        redeliveries.tidy(leases)
    assert len(redeliveries._heap) < 1_000


def receive_group(queues: int = 2, priorities: int = 0) -> ReceiveGroup:
    topic = Topic("t", 0, queues, queues, True, True, 0, priorities)
    return ReceiveGroup("g", topic, lambda _: 10)


def test_queues_with_priorities_are_ordered_and_each_of_the_lower_comes_first_at_times() -> None:
    one = receive_group(queues=6, priorities=3)
    orders = [[queue.queue_id % 3 for queue in one.first_ready(1_000)] for _ in range(20)]
    assert orders.count([2, 2, 1, 1, 0, 0]) == 18
    assert orders.count([1, 1, 0, 0, 2, 2]) == 1
    assert orders.count([0, 0, 2, 2, 1, 1]) == 1


class Call:
    """A receive of two messages that waits."""

    messages_max = 2

    def __init__(self) -> None:
        self.woken: list[MqError | None] = []

    def wake(self, error: MqError | None = None) -> None:
        self.woken.append(error)


def test_as_many_are_woken_as_there_is_something_for() -> None:
    one = receive_group(queues=1)
    queue = Queue("t", 0)
    one.ready.clear()
    one.memory(queue, QueueLeases(4))
    calls = [Call() for _ in range(10)]
    for call in calls:
        one.wait(call)
    one.forget(calls.pop(0))
    one.arrived(queue)  # six messages, from 4 to 10
    assert [len(call.woken) for call in calls] == [1] * 3 + [0] * 6
    one.arrived(queue)
    assert sum(len(call.woken) for call in calls) == 3
    # One of them wants nothing now: another one may have it.
    one.release(2)
    assert [len(call.woken) for call in calls] == [1] * 4 + [0] * 5
    error = NotLeader(None, None)
    one.dismiss(error)
    assert [call.woken for call in calls] == [[None]] * 4 + [[error]] * 5


def test_a_member_that_was_silent_for_long_is_gone() -> None:
    one = receive_group()
    one.enter("a", ReceiveSpec("*", False), 1_000, 30_000)
    assert one.active_members(99_000, 30_000) == {"a": 0}  # its call is under way
    one.exit("a", 2_000)
    assert one.active_members(31_999, 30_000) == {"a": 29_999}
    assert one.active_members(32_000, 30_000) == {}
    assert not one.expire(31_999, 30_000)
    assert one.expire(32_000, 30_000)
