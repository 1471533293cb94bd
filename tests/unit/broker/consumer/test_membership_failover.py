"""A new leader knows no members: what they claim, what the locks say, and whom to wait for."""

from __future__ import annotations

import pytest

from mq.broker.consumer.membership import Spec
from mq.broker.queue import Queue
from mq.wire.v1.consumer_pb2 import MODE_CLUSTERING, MODE_ORDERED
from tests.unit.broker.consumer.test_membership import (
    EXPIRES_MS,
    NOTHING,
    REVOKE_MS,
    Driven,
    T,
    spec,
)

SETTLE_MS = 3_000


def ordered(name: str) -> Spec:
    return spec(name, MODE_ORDERED)


# -- without locks: claims and a time to settle ----------------------------------------------------


def test_members_that_come_back_keep_what_they_have_and_nothing_moves() -> None:
    driven = Driven(settle_until_ms=SETTLE_MS)
    driven.join(spec("C"), 0)
    driven.join(spec("A"), 0, T[1:3])
    assert driven.assigned("A", "C") == [frozenset(T[1:3]), NOTHING]
    assert driven.group.is_rebalancing
    driven.join(spec("B"), SETTLE_MS - 1, [T[0], T[3]])
    assert driven.assigned("A", "B", "C") == [frozenset(T[1:3]), frozenset([T[0], T[3]]), NOTHING]


def test_unclaimed_queues_are_assigned_when_the_time_is_over() -> None:
    driven = Driven(settle_until_ms=SETTLE_MS)
    driven.join(spec("A"), 0, T[1:3])
    driven.join(spec("B"), 0)
    generation = driven.group.generation
    driven.pass_time(SETTLE_MS - 1)
    assert (driven.group.generation, driven.group.assigned("B")) == (generation, NOTHING)
    driven.pass_time(SETTLE_MS)
    assert driven.assigned("A", "B") == [frozenset(T[1:3]), frozenset([T[0], T[3]])]
    assert not driven.group.is_rebalancing


def test_surplus_queues_move_only_when_the_time_is_over() -> None:
    driven = Driven(settle_until_ms=SETTLE_MS)
    driven.join(spec("A"), 0, T[:4])
    driven.join(spec("B"), 0)
    assert driven.assigned("A") == [frozenset(T[:4])]
    driven.pass_time(SETTLE_MS)
    assert driven.assigned("A") == [frozenset(T[:2])]
    assert driven.group.owner(T[3]) == "A"


def test_of_two_that_claim_a_queue_the_first_has_it() -> None:
    driven = Driven(settle_until_ms=SETTLE_MS)
    driven.join(spec("A"), 0, T[:2])
    driven.join(spec("B"), 0, T[1:4])
    assert driven.assigned("A", "B") == [frozenset(T[:2]), frozenset(T[2:4])]
    driven.heartbeat("B", 1, T[1:4])
    assert driven.group.owner(T[1]) == "A"


@pytest.mark.parametrize("mode", [MODE_CLUSTERING, MODE_ORDERED])
def test_a_claim_of_a_queue_that_there_is_not_is_not_assigned(mode: int) -> None:
    driven = Driven(settle_until_ms=SETTLE_MS)
    unknown = [T[7], Queue("not subscribed", 0)]
    driven.join(spec("A", mode), 0, [*T[:4], *unknown])
    assert driven.assigned("A") == [frozenset(T[:4])]
    assert driven.group.owner(unknown[1]) is None
    driven.heartbeat("A", 1, T[:4])
    assert driven.group.owner(unknown[0]) is None
    assert set(driven.locks.values()) <= {"A", ""}
    assert unknown[0] not in driven.locks


def test_a_claim_is_heard_also_when_it_comes_with_a_second_join() -> None:
    driven = Driven(settle_until_ms=SETTLE_MS)
    driven.join(spec("A"), 0)
    driven.join(spec("A"), 0, T[:2])
    assert driven.assigned("A") == [frozenset(T[:2])]


def test_a_new_group_does_not_wait() -> None:
    driven = Driven(settle_until_ms=SETTLE_MS)
    driven.join(spec("A"), SETTLE_MS)
    assert driven.assigned("A") == [frozenset(T[:4])]


# -- with locks ------------------------------------------------------------------------------------


def test_an_ordered_queue_is_assigned_when_its_lock_is_written_and_not_before() -> None:
    driven = Driven(writes_locks=False)
    driven.join(ordered("A"))
    assert driven.assigned("A") == [NOTHING]
    assert driven.group.owner(T[0]) is None
    assert driven.group.is_rebalancing
    assert driven.group.lock_changes() == dict.fromkeys(T[:4], "A")
    driven.group.set_locks(dict.fromkeys(T[:2], "A"), 0)
    assert driven.group.rebalance(0)
    assert driven.assigned("A") == [frozenset(T[:2])]
    assert driven.group.lock_changes() == dict.fromkeys(T[2:4], "A")


def test_a_lock_goes_from_hand_to_hand_when_the_queue_was_let_go_of() -> None:
    driven = Driven()
    driven.join(ordered("A"))
    driven.writes_locks = False
    driven.join(ordered("B"))
    assert driven.group.lock_changes() == {}
    driven.release("A", T[2:3])
    assert driven.group.lock_changes() == {T[2]: "B"}
    assert driven.assigned("A", "B") == [frozenset(T[:2]), NOTHING]


def test_an_ordered_group_does_not_wait_for_what_is_not_locked() -> None:
    driven = Driven(settle_until_ms=SETTLE_MS)
    driven.join(ordered("A"))
    assert driven.assigned("A") == [frozenset(T[:4])]


@pytest.mark.parametrize("claims", [T[:3], T[:1]])
def test_no_ordered_queue_is_revoked_while_others_may_come_back(claims: list[Queue]) -> None:
    """Shares do not depend on the members that happen to be back."""
    locks = {**dict.fromkeys(T[:3], "A"), T[3]: "B"}
    driven = Driven(settle_until_ms=SETTLE_MS, locks=locks)
    driven.join(ordered("B"), 0, T[3:4])
    driven.join(ordered("C"), 0)
    driven.join(ordered("A"), 1, claims)
    driven.pass_time(SETTLE_MS - 1)
    assert driven.assigned("A", "B", "C") == [frozenset(T[:3]), frozenset(T[3:4]), NOTHING]
    assert driven.group.is_rebalancing
    driven.pass_time(SETTLE_MS)
    assert list(map(len, driven.assigned("A", "B", "C"))) == [2, 1, 0]


@pytest.mark.parametrize("mode", [MODE_CLUSTERING, MODE_ORDERED])
def test_nothing_is_shared_out_or_taken_while_shares_are_not_known(mode: int) -> None:
    driven = Driven()
    driven.group.wait(is_waiting=True)
    driven.join(spec("A", mode), 0, T[:3])
    driven.join(spec("B", mode), 0)
    assert driven.group.owner(T[0]) == "A"
    driven.pass_time(10_000)
    assert driven.assigned("A", "B") == [frozenset(T[:3]), NOTHING]
    driven.group.wait(is_waiting=False)
    driven.settle(10_000)
    driven.release("A", T[:3])
    assert list(map(len, driven.assigned("A", "B"))) == [2, 2]


@pytest.mark.parametrize("claims", [T[:2], []])
def test_a_lock_waits_for_its_member_which_gets_its_queues_back(claims: list[Queue]) -> None:
    driven = Driven(locks=dict.fromkeys(T[:2], "A"))
    driven.join(ordered("B"))
    assert driven.assigned("B") == [frozenset(T[2:4])]
    driven.pass_time(EXPIRES_MS - 1, "B")
    assert driven.assigned("B") == [frozenset(T[2:4])]
    driven.join(ordered("A"), EXPIRES_MS - 1, claims)
    assert driven.assigned("A", "B") == [frozenset(T[:2]), frozenset(T[2:4])]
    driven.pass_time(EXPIRES_MS, "A", "B")
    assert driven.assigned("A", "B") == [frozenset(T[:2]), frozenset(T[2:4])]


@pytest.mark.parametrize("mode", [MODE_CLUSTERING, MODE_ORDERED])
def test_a_lock_of_an_absent_member_is_void_in_the_end(mode: int) -> None:
    driven = Driven(locks=dict.fromkeys(T[:2], "A"))
    driven.join(spec("B", mode), 5)
    assert driven.pass_time(EXPIRES_MS - 1, "B") == []
    assert driven.assigned("B") == [frozenset(T[2:4])]
    assert driven.pass_time(EXPIRES_MS, "B") == []
    assert driven.assigned("B") == [frozenset(T[:4])]


def test_a_group_that_is_no_longer_ordered_waits_for_the_holder_and_not_for_the_log() -> None:
    driven = Driven(locks=dict.fromkeys(T[:2], "A"), writes_locks=False)
    driven.join(spec("B"))
    assert driven.assigned("B") == [frozenset(T[2:4])]
    driven.pass_time(EXPIRES_MS - 1, "B")
    driven.pass_time(EXPIRES_MS, "B")
    assert driven.assigned("B") == [frozenset(T[:4])]
    assert driven.group.lock_changes() == dict.fromkeys(T[:2], "")


def test_an_absent_member_is_not_waited_for_again_while_its_locks_are_written() -> None:
    driven = Driven(locks=dict.fromkeys(T[:4], "A"), writes_locks=False)
    driven.join(ordered("B"), EXPIRES_MS - 1)
    driven.pass_time(EXPIRES_MS, "B")
    assert driven.group.lock_changes() == dict.fromkeys(T[:4], "B")
    driven.group.set_locks(dict.fromkeys(T[:2], "B") | dict.fromkeys(T[2:4], "A"), EXPIRES_MS)
    driven.settle(EXPIRES_MS)
    assert driven.group.lock_changes() == dict.fromkeys(T[2:4], "B")


def test_a_returned_member_may_release_at_once() -> None:
    driven = Driven(locks=dict.fromkeys(T[:4], "A"))
    driven.join(ordered("A"), 0, T[:4])
    driven.join(ordered("B"))
    driven.release("A", T[2:4])
    assert driven.assigned("A", "B") == [frozenset(T[:2]), frozenset(T[2:4])]


def test_a_member_without_a_lock_is_not_waited_for() -> None:
    driven = Driven(locks=dict.fromkeys(T[:4], "A"))
    driven.group.set_locks({}, 0)


def test_a_lock_is_respected_before_its_member_has_the_queue_again() -> None:
    driven = Driven(locks=dict.fromkeys(T[:4], "A"))
    driven.group.join(ordered("A"), [], 0)
    driven.group.join(ordered("B"), T[:4], 0)
    assert driven.group.owner(T[0]) is None


@pytest.mark.parametrize("first", ["A", "B"])
def test_of_two_that_claim_a_queue_the_one_with_the_lock_has_it(first: str) -> None:
    driven = Driven(locks=dict.fromkeys(T[:4], "A"))
    for name in ("A", "B") if first == "A" else ("B", "A"):
        driven.join(ordered(name), 0, T[:2])
    assert driven.group.owner(T[0]) == "A"
    assert driven.assigned("B") == [NOTHING]


def test_a_member_that_lost_its_lock_has_no_claim() -> None:
    driven = Driven(locks=dict.fromkeys(T[:4], "A"))
    driven.join(ordered("B"), 0, T[:4])
    assert driven.group.owner(T[0]) is None


def test_a_lock_that_is_written_after_its_member_left_is_not_waited_for() -> None:
    driven = Driven(writes_locks=False)
    driven.join(ordered("A"))
    on_their_way = driven.group.lock_changes()
    driven.join(ordered("B"))
    driven.leave("A")
    driven.group.set_locks(on_their_way, 0)
    driven.settle()
    assert driven.group.lock_changes() == dict.fromkeys(T[:4], "B")


def test_the_last_leaver_frees_the_locks() -> None:
    driven = Driven()
    driven.join(ordered("A"))
    driven.writes_locks = False
    driven.leave("A")
    assert (driven.group.is_empty, driven.group.is_idle) == (True, False)
    assert driven.group.lock_changes() == dict.fromkeys(T[:4], "")
    driven.group.set_locks({}, 0)
    assert (driven.group.is_empty, driven.group.is_idle) == (True, True)
    assert driven.group.lock_changes() == {}


def test_a_group_of_absent_lock_holders_only_frees_their_locks_in_time() -> None:
    driven = Driven(locks=dict.fromkeys(T[:4], "A"))
    driven.pass_time(EXPIRES_MS - 1)
    assert driven.locks == dict.fromkeys(T[:4], "A")
    driven.pass_time(EXPIRES_MS)
    assert driven.locks == dict.fromkeys(T[:4], "")
    assert driven.group.is_idle


def test_a_lost_lock_takes_the_queue_out_of_the_assignment_but_not_out_of_the_hand() -> None:
    """Two changes of a lock may be on their way at once."""
    driven = Driven(writes_locks=False)
    driven.join(ordered("A"))
    driven.group.set_locks(dict.fromkeys(T[:4], "A"), 0)
    driven.settle()
    driven.join(ordered("B"))
    driven.group.set_locks({T[0]: "A", T[1]: "B", T[2]: "B", T[3]: "A"}, 0)
    assert driven.assigned("A", "B") == [frozenset(T[:1]), NOTHING]
    assert driven.group.rebalance(0)
    assert driven.assigned("A", "B") == [frozenset(T[:1]), NOTHING]
    assert driven.group.lock_changes() == {T[1]: "A", T[2]: "A"}
    driven.release("A", T[2:3])
    assert driven.assigned("A", "B") == [frozenset(T[:1]), frozenset(T[2:3])]


def test_a_lock_of_a_queue_that_is_no_more_is_freed() -> None:
    driven = Driven()
    driven.join(ordered("A"))
    driven.group.set_queues(dict.fromkeys(T[:3], ""))
    driven.settle()
    assert driven.locks[T[3]] == ""
    assert driven.assigned("A") == [frozenset(T[:3])]
    driven.release("A", T[3:4])
    assert not driven.group.is_rebalancing


@pytest.mark.parametrize("others", [MODE_CLUSTERING, MODE_ORDERED])
def test_a_member_alone_may_change_between_ordered_and_not(others: int) -> None:
    driven = Driven()
    driven.join(spec("A", others))
    new = MODE_ORDERED if others == MODE_CLUSTERING else MODE_CLUSTERING
    driven.join(spec("A", new))
    assert driven.assigned("A") == [frozenset(T[:4])]
    assert set(driven.locks.values()) == {"A" if new == MODE_ORDERED else ""}
    driven.pass_time(REVOKE_MS)
    assert driven.assigned("A") == [frozenset(T[:4])]
    assert not driven.group.is_rebalancing


def test_only_so_many_departed_are_remembered() -> None:
    driven = Driven()
    for number in range(3_000):
        driven.group.join(ordered(f"m{number}"), [], 0)
        driven.group.leave(f"m{number}")
    assert len(driven.group._departed) <= 1_024
    driven.group.set_locks({T[0]: "m2999", T[1]: "m0"}, 0)
    assert driven.group.lock_changes() == {}  # not rebalanced yet
    driven.group.rebalance(0)
    assert driven.group.lock_changes() == {T[0]: ""}
