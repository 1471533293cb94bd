"""How fast a follower is fed."""

from __future__ import annotations

from mq.raft.flow import _SUSPICIOUS_REFUSALS, Flow

PERIOD_S = 0.1


def may_send(flow: Flow, now_s: float, *, has_room: bool = True) -> bool:
    return flow.may_send(now_s, PERIOD_S, has_room=has_room)


def connected() -> Flow:
    flow = Flow()
    flow.is_connected = True
    return flow


def test_nothing_is_sent_without_a_connection_or_without_room() -> None:
    flow = Flow()
    assert not may_send(flow, 0.0)
    flow.is_connected = True
    assert may_send(flow, 0.0)
    assert not may_send(flow, 0.0, has_room=False)


def test_a_follower_is_probed_with_one_append_a_heartbeat() -> None:
    flow = connected()
    assert flow.is_probing
    flow.sent(7, 1.0)
    assert not may_send(flow, 1.05)
    assert may_send(flow, 1.125)


def test_a_follower_that_matches_is_fed_without_waiting() -> None:
    flow = connected()
    flow.sent(7, 1.0)
    flow.matched()
    assert not flow.is_probing
    flow.sent(8, 1.0)
    assert may_send(flow, 1.0)


def test_a_follower_that_wants_to_start_elsewhere_is_asked_there_at_once() -> None:
    flow = connected()
    flow.sent(7, 1.0)
    flow.refused(3)
    assert flow.is_probing
    assert may_send(flow, 1.0)


def test_a_follower_that_refuses_the_same_place_again_is_asked_later() -> None:
    flow = connected()
    flow.sent(7, 1.0)
    flow.refused(7)
    assert not may_send(flow, 1.05)
    assert may_send(flow, 1.125)


def test_a_refusal_ends_the_feeding_without_waiting() -> None:
    flow = connected()
    flow.matched()
    flow.refused(3)
    assert flow.is_probing
    flow.sent(3, 1.0)
    assert not may_send(flow, 1.0)


def test_a_new_connection_starts_with_nothing_known() -> None:
    flow = connected()
    flow.sent(7, 1.0)
    flow.matched()
    flow.start_probing()
    assert flow.is_probing
    assert may_send(flow, 1.0)
    flow.sent(7, 1.0)
    assert not may_send(flow, 1.0)
    flow.start_probing()
    assert may_send(flow, 1.0)


def test_a_follower_that_refuses_the_same_place_is_a_reason_to_look_at_our_own_log() -> None:
    flow = connected()
    flow.sent(7, 1.0)
    suspicions = [flow.refused(7) for _ in range(2 * _SUSPICIOUS_REFUSALS)]
    assert suspicions.count(True) == 2
    assert suspicions[0]
    assert suspicions[_SUSPICIOUS_REFUSALS]
    assert not flow.refused(3)
    flow.sent(3, 2.0)
    assert flow.refused(3)
    assert not any(flow.refused(3) for _ in range(_SUSPICIOUS_REFUSALS - 1))
