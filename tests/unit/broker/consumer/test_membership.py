"""Each rule of a consumer group alone: joining, assignment, the move of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mq.broker.consumer.membership import Group, Spec, Subscriptions
from mq.broker.queue import Queue
from mq.errors import SubscriptionMismatch, UnknownMember
from mq.wire.v1.consumer_pb2 import MODE_BROADCAST, MODE_CLUSTERING, MODE_ORDERED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

EXPIRES_MS = 30_000
REVOKE_MS = 15_000
T = [Queue("t", number) for number in range(8)]
NOTHING: frozenset[Queue] = frozenset()
SAME_OWNER_MODES = [
    pytest.param(MODE_CLUSTERING, id="clustering"),
    pytest.param(MODE_ORDERED, id="ordered"),
]


def spec(
    name: str,
    mode: int = MODE_CLUSTERING,
    topics: Mapping[str, str] | None = None,
    zone: str = "",
    address: str = "",
) -> Spec:
    wanted = {"t": "*"} if topics is None else topics
    return Spec(name, zone, mode, wanted, address or f"host-{name}:1", is_streaming=True)


class Driven:
    """A group with a driver that writes locks at once and rebalances after each step."""

    def __init__(
        self,
        queues: Iterable[Queue] = T[:4],
        *,
        settle_until_ms: int = 0,
        locks: Mapping[Queue, str] | None = None,
        writes_locks: bool = True,
    ) -> None:
        self.group = Group("g", settle_until_ms=settle_until_ms)
        self.locks = dict(locks or {})
        self.queues = dict.fromkeys(queues, "")
        self.writes_locks = writes_locks
        self.group.set_locks(self.locks, 0)

    def join(self, one: Spec, now_ms: int = 0, owned: Iterable[Queue] = ()) -> None:
        self.group.join(one, list(owned), now_ms)
        self.group.set_queues(
            {queue: zone for queue, zone in self.queues.items() if queue.topic in one.subscriptions}
        )
        self.settle(now_ms)

    def heartbeat(self, name: str, now_ms: int, owned: Iterable[Queue] | None = None) -> None:
        self.group.heartbeat(name, now_ms, None if owned is None else list(owned))
        self.settle(now_ms)

    def release(self, name: str, queues: Iterable[Queue], now_ms: int = 0) -> None:
        self.group.release(name, list(queues))
        self.settle(now_ms)

    def leave(self, name: str, now_ms: int = 0) -> None:
        self.group.leave(name)
        self.settle(now_ms)

    def pass_time(self, now_ms: int, *alive: str) -> list[str]:
        for name in alive:
            self.group.heartbeat(name, now_ms)
        gone = self.group.expire(now_ms)
        self.settle(now_ms)
        return gone

    def settle(self, now_ms: int = 0) -> None:
        self.group.rebalance(now_ms)
        while self.writes_locks and (changes := self.group.lock_changes()):
            self.locks |= changes
            self.group.set_locks(self.locks, now_ms)
            self.group.rebalance(now_ms)

    def assigned(self, *names: str) -> list[frozenset[Queue]]:
        return [self.group.assigned(name) for name in names]


def two_members(mode: int, *, is_moved: bool) -> Driven:
    """A, which had all four queues, and B."""
    driven = Driven()
    driven.join(spec("A", mode))
    driven.join(spec("B", mode))
    if is_moved:
        driven.release("A", T[2:4])
    return driven


# -- subscriptions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (spec("A", topics={"t": "*", "u": "x"}), spec("B", topics={"u": "x", "t": "*"}, zone="z")),
        (spec("A", MODE_ORDERED), spec("B", MODE_ORDERED)),
    ],
)
def test_subscriptions_are_equal_in_any_order(one: Spec, other: Spec) -> None:
    assert Subscriptions.of(one) == Subscriptions.of(other)


DIFFERENT = [
    pytest.param(spec("B", topics={"t": "x"}), "clustering, t (x)", id="filter"),
    pytest.param(spec("B", topics={"u": "*"}), "clustering, u (*)", id="topic"),
    pytest.param(spec("B", topics={"t": "*", "u": ""}), "clustering, t (*), u (*)", id="more"),
    pytest.param(spec("B", topics={}), "clustering", id="none"),
    pytest.param(spec("B", MODE_ORDERED), "ordered, t (*)", id="ordered"),
    pytest.param(spec("B", MODE_BROADCAST), "broadcast, t (*)", id="broadcast"),
    pytest.param(spec("B", 7), "mode 7, t (*)", id="a-mode-of-the-future"),
]


@pytest.mark.parametrize(("other", "text"), DIFFERENT)
def test_another_subscription_is_refused_and_both_are_named(other: Spec, text: str) -> None:
    driven = Driven()
    driven.join(spec("A"))
    with pytest.raises(SubscriptionMismatch) as refused:
        driven.join(other)
    for part in (
        "'g'",
        "'A' at host-A:1",
        "'B' at host-B:1",
        "has clustering, t (*).",
        f" {text};",
    ):
        assert part in str(refused.value)
    assert list(driven.group.members) == ["A"]
    assert driven.assigned("A", "B") == [frozenset(T[:4]), NOTHING]


@pytest.mark.parametrize(("other", "text"), DIFFERENT)
def test_a_single_member_may_change_its_subscription(other: Spec, text: str) -> None:
    driven = Driven()
    driven.join(spec("B"))
    driven.join(other)
    assert Subscriptions.of(driven.group.members["B"].spec).describe() == text
    is_owned = other.mode != MODE_BROADCAST and "t" in other.subscriptions
    assert driven.group.owner(T[0]) == ("B" if is_owned else None)
    driven.leave("B")
    driven.join(spec("A"))
    assert driven.assigned("A") == [frozenset(T[:4])]


def test_one_of_several_members_may_not_change_its_subscription() -> None:
    driven = two_members(MODE_CLUSTERING, is_moved=True)
    with pytest.raises(SubscriptionMismatch, match="'B' at host-B:1 has"):
        driven.join(spec("A", topics={"t": "x"}))
    assert driven.assigned("A", "B") == [frozenset(T[:2]), frozenset(T[2:4])]


def test_the_dead_have_no_say_and_are_reported_once() -> None:
    driven = Driven()
    driven.join(spec("A"))
    driven.join(spec("B", topics={"t": "x"}), EXPIRES_MS)
    assert list(driven.group.members) == ["B"]
    assert driven.group.expire(EXPIRES_MS) == ["A"]
    assert driven.group.expire(EXPIRES_MS) == []


def test_a_late_member_that_rejoins_before_expiry_is_noticed_is_not_reported_as_gone() -> None:
    driven = Driven()
    driven.join(spec("A"))
    driven.join(spec("A", address="new:2"), EXPIRES_MS + 5)
    assert driven.group.expire(EXPIRES_MS + 5) == []
    assert driven.assigned("A") == [frozenset(T[:4])]
    driven.join(spec("B"), 2 * EXPIRES_MS + 5)
    driven.join(spec("A"), 2 * EXPIRES_MS + 5)
    assert driven.group.expire(2 * EXPIRES_MS + 5) == []


def test_a_late_heartbeat_does_not_count() -> None:
    driven = two_members(MODE_CLUSTERING, is_moved=True)
    driven.heartbeat("B", EXPIRES_MS - 1)
    with pytest.raises(UnknownMember):
        driven.heartbeat("A", EXPIRES_MS)
    driven.settle(EXPIRES_MS)
    assert driven.assigned("B") == [frozenset(T[:4])]
    assert driven.group.expire(EXPIRES_MS) == ["A"]


def test_queues_of_a_dropped_topic_are_let_go_of() -> None:
    u = [Queue("u", 0), Queue("u", 1)]
    driven = Driven([*T[:2], *u])
    driven.join(spec("A", topics={"t": "*", "u": "*"}))
    driven.group.join(spec("A"), [*T[:2], *u], 1)
    assert [driven.group.owner(queue) for queue in (T[0], u[0])] == ["A", None]
    driven.group.rebalance(1)
    assert driven.assigned("A") == [frozenset(T[:2])]
    assert not driven.group.is_rebalancing


# -- coming and going ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", SAME_OWNER_MODES)
def test_the_first_member_gets_everything_at_once(mode: int) -> None:
    driven = Driven()
    driven.join(spec("A", mode))
    assert driven.assigned("A") == [frozenset(T[:4])]
    assert not driven.group.is_rebalancing


def test_joining_again_replaces_the_address_and_keeps_the_queues() -> None:
    driven = two_members(MODE_CLUSTERING, is_moved=True)
    generation = driven.group.generation
    driven.join(spec("A", address="elsewhere:2"), 7)
    assert driven.group.members["A"].spec.address == "elsewhere:2"
    assert driven.group.members["A"].last_seen_ms == 7
    assert driven.assigned("A", "B") == [frozenset(T[:2]), frozenset(T[2:4])]
    assert driven.group.generation == generation


def test_joining_again_without_a_queue_that_was_to_go_lets_go_of_it() -> None:
    driven = two_members(MODE_CLUSTERING, is_moved=False)
    driven.join(spec("A"), owned=T[:3])
    assert driven.assigned("A", "B") == [frozenset(T[:2]), frozenset(T[3:4])]


def test_the_latest_zones_count() -> None:
    driven = Driven()
    driven.queues = {queue: "xy"[queue.queue_id % 2] for queue in T[:4]}
    driven.join(spec("A", zone="y"))
    driven.join(spec("A", zone="x"))
    driven.join(spec("B", zone="y"))
    assert driven.assigned("A") == [frozenset([T[0], T[2]])]


@pytest.mark.parametrize("is_known", [True, False])
def test_a_heartbeat_of_an_unknown_member_is_refused(is_known: bool) -> None:
    driven = Driven()
    if is_known:
        driven.join(spec("A"))
        driven.leave("A")
    with pytest.raises(UnknownMember, match="'A' is no member of group 'g'"):
        driven.group.heartbeat("A", 0)


@pytest.mark.parametrize("mode", SAME_OWNER_MODES)
def test_queues_of_a_leaving_member_are_free_at_once(mode: int) -> None:
    driven = two_members(mode, is_moved=True)
    generation = driven.group.generation
    driven.leave("A")
    assert driven.assigned("A", "B") == [NOTHING, frozenset(T[:4])]
    assert driven.group.generation > generation
    driven.leave("A")
    driven.release("A", T[:4])
    assert driven.assigned("B") == [frozenset(T[:4])]
    generation = driven.group.generation
    driven.leave("B")
    assert driven.group.generation > generation


@pytest.mark.parametrize("mode", SAME_OWNER_MODES)
def test_a_member_that_is_silent_for_too_long_is_gone(mode: int) -> None:
    driven = two_members(mode, is_moved=True)
    assert driven.pass_time(EXPIRES_MS - 1, "B") == []
    assert driven.assigned("A") == [frozenset(T[:2])]
    assert driven.pass_time(EXPIRES_MS, "B") == ["A"]
    assert driven.assigned("A", "B") == [NOTHING, frozenset(T[:4])]
    assert driven.pass_time(2 * EXPIRES_MS) == ["B"]
    assert driven.group.is_empty
    assert driven.group.is_idle


def test_queues_that_come_and_go_are_shared_and_taken() -> None:
    driven = two_members(MODE_CLUSTERING, is_moved=True)
    driven.group.set_queues(dict.fromkeys(T[1:6], ""))
    driven.settle()
    assert driven.group.owner(T[0]) == "A"  # it may report its progress
    assert sorted(map(len, driven.assigned("A", "B"))) == [2, 3]
    assert driven.group.is_rebalancing
    driven.release("A", T[:1])
    assert driven.group.owner(T[0]) is None
    assert not driven.group.is_rebalancing


# -- movement --------------------------------------------------------------------------------------


def let_go_by_release(driven: Driven) -> None:
    driven.release("A", T[2:4])


def let_go_by_heartbeat(driven: Driven) -> None:
    driven.heartbeat("A", 1, T[:2])


def let_go_by_leaving(driven: Driven) -> None:
    driven.leave("A")


def let_go_by_dying(driven: Driven) -> None:
    driven.pass_time(1, "B")
    driven.pass_time(EXPIRES_MS, "B")


@pytest.mark.parametrize("mode", SAME_OWNER_MODES)
@pytest.mark.parametrize(
    "let_go", [let_go_by_release, let_go_by_heartbeat, let_go_by_leaving, let_go_by_dying]
)
def test_a_queue_that_moves_is_dropped_by_the_one_before_it_is_given_to_the_other(
    mode: int, let_go: Callable[[Driven], None]
) -> None:
    driven = two_members(mode, is_moved=False)
    generation = driven.group.generation
    assert driven.assigned("A", "B") == [frozenset(T[:2]), NOTHING]
    assert [driven.group.owner(queue) for queue in T[:4]] == ["A"] * 4
    assert driven.group.is_rebalancing
    let_go(driven)
    assert driven.group.assigned("B") >= frozenset(T[2:4])
    assert driven.group.owner(T[2]) == "B"
    assert driven.group.generation > generation
    assert not driven.group.is_rebalancing


def test_each_step_of_a_move_is_a_generation_and_nothing_else_is() -> None:
    driven = Driven()
    driven.join(spec("A"))
    assert driven.group.generation == 1
    driven.join(spec("B"))
    assert driven.group.generation == 2
    driven.release("A", T[2:3])
    assert driven.group.generation == 3
    driven.release("A", T[3:4])
    assert driven.group.generation == 4
    driven.heartbeat("A", 1, T[:2])
    driven.heartbeat("B", 1)
    assert not driven.group.rebalance(1)
    assert driven.group.generation == 4
    assert Group("g", generation=1 << 32).generation == 1 << 32


def test_a_member_that_still_reports_a_queue_keeps_it_for_its_time_and_no_longer() -> None:
    driven = two_members(MODE_CLUSTERING, is_moved=False)
    driven.heartbeat("A", REVOKE_MS - 1, T[:4])
    assert driven.assigned("B") == [NOTHING]
    driven.heartbeat("A", REVOKE_MS, T[:4])
    assert driven.assigned("A", "B") == [frozenset(T[:2]), frozenset(T[2:4])]
    driven.heartbeat("A", REVOKE_MS + 1, T[:4])
    assert driven.group.owner(T[2]) == "B"


def test_other_changes_do_not_give_more_time() -> None:
    driven = two_members(MODE_CLUSTERING, is_moved=False)
    driven.join(spec("C"), REVOKE_MS - 1)
    driven.pass_time(REVOKE_MS)
    assert len(driven.group.assigned("B") | driven.group.assigned("C")) == 2


def test_a_living_member_of_an_ordered_group_is_never_made_to_let_go() -> None:
    driven = two_members(MODE_ORDERED, is_moved=False)
    for now_ms in range(0, 10 * EXPIRES_MS, REVOKE_MS):
        driven.pass_time(now_ms, "A", "B")
        assert driven.assigned("A", "B") == [frozenset(T[:2]), NOTHING]


def test_a_queue_that_is_to_move_stays_when_the_other_one_leaves() -> None:
    driven = two_members(MODE_CLUSTERING, is_moved=False)
    driven.leave("B")
    assert driven.assigned("A") == [frozenset(T[:4])]
    driven.pass_time(REVOKE_MS)
    assert driven.assigned("A") == [frozenset(T[:4])]
    driven.join(spec("C"), REVOKE_MS)
    driven.pass_time(2 * REVOKE_MS - 1, "A", "C")
    assert driven.assigned("C") == [NOTHING]
    driven.pass_time(2 * REVOKE_MS, "A", "C")
    assert len(driven.group.assigned("C")) == 2


def test_a_release_that_crossed_with_a_new_assignment_changes_nothing() -> None:
    driven = two_members(MODE_CLUSTERING, is_moved=False)
    driven.leave("B")
    driven.release("A", T[2:4])
    driven.heartbeat("A", 1, T[:2])
    assert driven.assigned("A") == [frozenset(T[:4])]
    assert [driven.group.owner(queue) for queue in T[:4]] == ["A"] * 4


def test_queues_to_release_do_not_change_meanwhile() -> None:
    """Topics are released one by one, so the rest looks different each time."""
    queues = [Queue(topic, number) for topic in "tu" for number in range(4)]
    driven = Driven(queues)
    topics = {"t": "*", "u": "*"}
    driven.join(spec("A", topics=topics))
    driven.join(spec("B", topics=topics))
    kept = driven.group.assigned("A")
    driven.release("A", [queue for queue in queues if queue.topic == "t" and queue not in kept])
    driven.group.set_queues(dict.fromkeys(queues, "zone"))
    driven.settle()
    assert driven.group.assigned("A") == kept


def test_a_late_heartbeat_does_not_take_a_queue_back() -> None:
    driven = two_members(MODE_CLUSTERING, is_moved=True)
    driven.heartbeat("A", 1, T[:4])
    assert driven.assigned("A", "B") == [frozenset(T[:2]), frozenset(T[2:4])]


def test_members_of_a_broadcast_group_hear_only_of_changes_of_their_own() -> None:
    driven = Driven()
    driven.join(spec("A", MODE_BROADCAST))
    assert driven.group.take_changes() == {"A": (T[:4], [])}
    driven.join(spec("B", MODE_BROADCAST))
    assert driven.group.take_changes() == {"B": (T[:4], [])}
    driven.group.set_queues(dict.fromkeys(T[1:5], ""))
    driven.settle()
    assert driven.group.take_changes() == {"A": ([T[4]], [T[0]]), "B": ([T[4]], [T[0]])}
    assert driven.group.take_changes() == {}


def test_numbers_of_members_that_left_are_used_again() -> None:
    """One that never ends has very many members in the course of time."""
    driven = Driven(locks={T[3]: "absent"})
    driven.join(spec("A"))
    for number in range(1_000):
        driven.join(spec(f"B{number}"))
        driven.release("A", T[:4])
        driven.leave(f"B{number}")
    assert len(driven.group._names) < 500
    assert driven.assigned("A") == [frozenset(T[:3])]
    assert driven.pass_time(EXPIRES_MS + 1) == ["A"]
    driven.join(spec("A"), EXPIRES_MS + 1)
    assert driven.assigned("A") == [frozenset(T[:4])]


def test_broadcast_gives_all_queues_to_every_member_at_once() -> None:
    driven = Driven(settle_until_ms=1_000)
    driven.join(spec("A", MODE_BROADCAST), owned=T[:2])
    driven.join(spec("B", MODE_BROADCAST))
    assert driven.assigned("A", "B") == [frozenset(T[:4])] * 2
    assert driven.group.owner(T[0]) is None
    assert not driven.group.is_rebalancing
    driven.heartbeat("A", 1, [])
    driven.group.set_queues(dict.fromkeys(T[:6], ""))
    assert driven.group.rebalance(1)
    assert driven.assigned("A", "B") == [frozenset(T[:6])] * 2
    assert driven.group.generation == 3
