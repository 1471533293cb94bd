"""Sessions end in time, are bounded, and never tell their key; failed logins are counted."""

from __future__ import annotations

from mq.console import sessions
from mq.console.sessions import FailureLimit, FormTokens, Session, Sessions


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def begun() -> tuple[Sessions, Clock, list[Session]]:
    clock, ended = Clock(), list[Session]()
    return Sessions(clock, ended.append), clock, ended


def test_a_session_is_found_by_its_id_alone() -> None:
    known, _, _ = begun()
    session = known.begin("anna", "mqk_a_secret")
    assert known.find(session.id) is session
    assert known.find(session.id + "x") is None
    assert known.find("") is None
    assert "secret" not in repr(session)


def test_a_session_ends_when_nobody_uses_it_or_its_key_ends() -> None:
    known, clock, ended = begun()
    idle = known.begin("anna", "k")
    used = known.begin("bo", "k")
    short = known.begin("chen", "k", lasts_s=60)
    clock.now_s += 61
    assert known.find(short.id) is None
    clock.now_s += sessions.IDLE_S - 100
    assert known.find(used.id) is used
    clock.now_s += 101
    assert known.find(idle.id) is None
    assert known.find(used.id) is used
    assert ended == [short, idle]
    # However often it is used.
    for _ in range(20):
        clock.now_s += sessions.IDLE_S / 2
        known.find(used.id)
    assert known.find(used.id) is None


def test_of_too_many_sessions_the_one_that_was_idle_the_longest_goes() -> None:
    known, clock, ended = begun()
    first, second = known.begin("anna", "k"), known.begin("bo", "k")
    for number in range(sessions.SESSIONS_MAX - 2):
        clock.now_s += 0.001
        known.begin(f"user-{number}", "k")
    assert known.find(first.id) is first
    known.begin("last", "k")
    assert ended == [second]
    assert len(known) == sessions.SESSIONS_MAX


def test_a_token_belongs_to_one_browser_and_one_process() -> None:
    tokens = FormTokens()
    token = tokens.of("browser")
    assert tokens.is_right("browser", token)
    assert not tokens.is_right("other", token)
    assert not tokens.is_right("", tokens.of(""))
    assert not tokens.is_right("browser", "\N{SNOWMAN}")
    assert not FormTokens().is_right("browser", token)


def test_failures_are_forgotten_after_a_minute() -> None:
    clock = Clock()
    limit = FailureLimit(clock)
    for _ in range(sessions.FAILURES_MAX):
        assert not limit.is_reached("user anna")
        limit.note("user anna")
    assert limit.is_reached("user anna")
    assert not limit.is_reached("user bo")
    clock.now_s += sessions.FAILURES_S
    assert not limit.is_reached("user anna")
