"""How fast a follower is fed."""

from __future__ import annotations

from mq.raft.progress import _SUSPICIOUS_REFUSALS, Progress

PERIOD_S = 0.1


def may_send(progress: Progress, now_s: float, *, has_room: bool = True) -> bool:
    return progress.may_send(now_s, PERIOD_S, has_room=has_room)


def connected() -> Progress:
    progress = Progress()
    progress.is_connected = True
    return progress


def test_nothing_is_sent_without_a_connection_or_without_room() -> None:
    progress = Progress()
    assert not may_send(progress, 0.0)
    progress.is_connected = True
    assert may_send(progress, 0.0)
    assert not may_send(progress, 0.0, has_room=False)


def test_a_follower_is_probed_with_one_append_a_heartbeat() -> None:
    progress = connected()
    assert progress.is_probing
    progress.sent(7, 1.0)
    assert not may_send(progress, 1.05)
    assert may_send(progress, 1.125)


def test_a_follower_that_matches_is_fed_without_waiting() -> None:
    progress = connected()
    progress.sent(7, 1.0)
    progress.matched(8)
    assert not progress.is_probing
    assert (progress.match_index, progress.next_index) == (7, 8)
    progress.sent(8, 1.0)
    assert may_send(progress, 1.0)


def test_an_answer_for_less_than_was_sent_or_matched_takes_nothing_back() -> None:
    progress = connected()
    progress.matched(8)
    progress.next_index = 20
    progress.matched(5)
    assert (progress.match_index, progress.next_index) == (7, 20)


def test_a_follower_that_wants_to_start_elsewhere_is_asked_there_at_once() -> None:
    progress = connected()
    progress.sent(7, 1.0)
    progress.refused(3)
    assert progress.is_probing
    assert progress.next_index == 3
    assert may_send(progress, 1.0)


def test_a_follower_that_refuses_the_same_place_again_is_asked_later() -> None:
    progress = connected()
    progress.sent(7, 1.0)
    progress.refused(7)
    assert not may_send(progress, 1.05)
    assert may_send(progress, 1.125)


def test_a_refusal_ends_the_feeding_without_waiting() -> None:
    progress = connected()
    progress.matched(8)
    progress.refused(3)
    assert progress.is_probing
    progress.sent(3, 1.0)
    assert not may_send(progress, 1.0)


def test_a_new_connection_starts_with_nothing_known() -> None:
    progress = connected()
    progress.sent(7, 1.0)
    progress.matched(8)
    progress.start_probing()
    assert progress.is_probing
    assert progress.match_index == 0
    assert may_send(progress, 1.0)
    progress.sent(7, 1.0)
    assert not may_send(progress, 1.0)
    progress.start_probing()
    assert may_send(progress, 1.0)


def test_a_follower_that_refuses_the_same_place_is_a_reason_to_look_at_our_own_log() -> None:
    progress = connected()
    progress.sent(7, 1.0)
    suspicions = [progress.refused(7) for _ in range(2 * _SUSPICIOUS_REFUSALS)]
    assert suspicions.count(True) == 2
    assert suspicions[0]
    assert suspicions[_SUSPICIOUS_REFUSALS]
    assert not progress.refused(3)
    progress.sent(3, 2.0)
    assert progress.refused(3)
    assert not any(progress.refused(3) for _ in range(_SUSPICIOUS_REFUSALS - 1))
