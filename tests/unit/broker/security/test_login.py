"""Logins: what they cost, how many there may be, and what becomes of them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.access import keys, passwords
from mq.broker.security.login import (
    BY_ADDRESS,
    BY_USER,
    CHECKED_AT_ONCE,
    SESSION_MS,
    WAITING_MAX,
    Buckets,
    Logins,
    Rate,
)
from mq.errors import FlowControl, IllegalRequest, MqError, Unauthenticated
from mq.wire.v1.security_pb2 import SESSION_KEY
from tests.support.consensus import Node, on_loop, soon, turns
from tests.support.loop_turns import LoopTurns
from tests.unit.broker.security.access_scene import drop, hashed, password, trail, user

PASSWORD = "correct horse"  # noqa: S105 - of no one
KEY_ID = "abcdefghijkl"


async def scene(**options: Any) -> tuple[Node, Logins]:
    node = Node(auth="required", **options)
    await node.change_access(user("alice"), password("alice"), user("bob"))
    return node, node.broker.logins


async def login(logins: Logins, name: str = "alice", text: str = PASSWORD, **fields: Any) -> int:
    outcome: int = await soon(
        logins.login(
            name,
            text,
            fields.get("key_id", KEY_ID),
            fields.get("digest", keys.digest("s")),
            fields.get("address", "10.0.0.1"),
        )
    )
    return outcome


@on_loop
async def test_a_login_gives_a_session_of_eight_hours_that_is_listed_and_recorded() -> None:
    node, logins = await scene()
    assert await login(logins) == node.now_ms + SESSION_MS
    session = node.machine.state.access.credential(KEY_ID)
    assert session is not None
    assert (session.user, session.type, session.created_at_ms) == (
        "alice",
        SESSION_KEY,
        node.now_ms,
    )
    key = keys.ApiKey(KEY_ID, "s")
    assert keys.is_right(key.secret, session.proof)
    (record,) = trail(node)
    assert (record["what"], record["user"], record["address"]) == ("login", "alice", "10.0.0.1")
    assert record["after"]["expires_at_ms"] == session.expires_at_ms
    # It ends as any other key, and the rest of it with the eight hours.
    node.now_ms += SESSION_MS
    await login(logins, key_id="bbbbbbbbbbbb")
    assert node.machine.state.access.credential(KEY_ID) is None


@pytest.mark.parametrize(("name", "text"), [("alice", "wrong horse"), ("bob", PASSWORD)])
@on_loop
async def test_all_that_is_wrong_gets_the_same_answer(name: str, text: str) -> None:
    node, logins = await scene()
    with pytest.raises(Unauthenticated) as caught:
        await login(logins, name, text)
    with pytest.raises(Unauthenticated) as of_nobody:
        await login(logins, "nobody", text)
    assert str(caught.value) == str(of_nobody.value)
    assert text not in str(caught.value)
    await node.change_access(user("alice", is_disabled=True))
    with pytest.raises(Unauthenticated):
        await login(logins)
    node.pass_time(1_000)
    await turns()
    subjects = dict.fromkeys((f"user:{name}", "user:nobody", "user:alice"))
    assert [one["subject"] for one in trail(node)] == [*subjects]
    assert PASSWORD not in repr(trail(node))


@on_loop
async def test_a_password_that_is_changed_meanwhile_counts_no_more() -> None:
    node, logins = await scene()
    pending = asyncio.ensure_future(login(logins))
    await asyncio.sleep(0)
    await node.change_access(drop(drop_credential="password-alice"))
    with pytest.raises(Unauthenticated):
        await soon(pending)
    assert node.machine.state.access.credential(KEY_ID) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"key_id": "short"},
        {"digest": b"short"},
        {"name": ""},
        {"name": "x" * 256},
        {"text": "x" * 201},
    ],
)
@on_loop
async def test_an_illegal_login_is_refused(fields: dict[str, Any]) -> None:
    _, logins = await scene()
    with pytest.raises(IllegalRequest):
        await login(logins, **fields)


@on_loop
async def test_a_user_that_does_not_exist_costs_what_others_cost() -> None:
    """A password is hashed, whoever it is for."""
    _, logins = await scene()
    began_s = time.process_time()
    passwords.is_right("wrong horse", hashed(PASSWORD))
    one_s = time.process_time() - began_s
    for name in ("alice", "bob", "nobody"):
        began_s = time.process_time()
        with pytest.raises(Unauthenticated):
            await login(logins, name, "wrong horse")
        assert time.process_time() - began_s > one_s / 3, name


@on_loop
async def test_ten_thousand_bad_logins_hold_nothing_up() -> None:
    """The loop does no work of theirs, and all but a few are refused at once."""
    _, logins = await scene()
    began_s = time.process_time()
    passwords.is_right("wrong horse", hashed(PASSWORD))
    one_s = time.process_time() - began_s

    async def bad(at: int) -> MqError:
        address = f"10.{at >> 8 & 255}.{at & 255}.1"
        with pytest.raises(MqError) as caught:
            await login(logins, f"user-{at}", "wrong horse", address=address)
        return caught.value

    with LoopTurns() as loop_turns:
        outcomes = await asyncio.gather(*map(bad, range(10_000)))
    limited = [one for one in outcomes if isinstance(one, FlowControl)]
    assert all(one.retry_after_ms > 0 for one in limited)
    checked = [one for one in outcomes if isinstance(one, Unauthenticated)]
    assert len(checked) == CHECKED_AT_ONCE + WAITING_MAX
    assert len(limited) == logins.limited_total == 10_000 - len(checked)
    assert loop_turns.longest_s < one_s / 2


@on_loop
async def test_one_address_and_one_user_are_limited() -> None:
    _, logins = await scene()
    for at in range(BY_ADDRESS.burst):
        logins._limit(f"user-{at}", "2001:db8::")
    # An address of IPv6 stands for its network.
    with pytest.raises(FlowControl) as caught:
        await login(logins, "alice", address="2001:db8::7")
    assert 0 < caught.value.retry_after_ms <= BY_ADDRESS.refill_ms
    assert PASSWORD not in str(caught.value)
    for at in range(BY_USER.burst):
        logins._limit("alice", f"10.0.0.{at}")
    with pytest.raises(FlowControl) as caught:
        await login(logins, "alice", address="10.0.1.1")
    assert 0 < caught.value.retry_after_ms <= BY_USER.refill_ms


RATE = Rate(burst=3, refill_ms=100)


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    buckets = Buckets(RATE)
    given = []
    for now_ms in range(0, 1_000, 10):
        if not buckets.wait_ms("a", now_ms):
            buckets.take("a", now_ms)
            given.append(now_ms)
    assert given == [0, 10, 20, *range(100, 1_000, 100)]
    assert buckets.wait_ms("b", 5) == 0


def test_a_token_that_is_given_back_can_be_taken() -> None:
    buckets = Buckets(RATE)
    for _ in range(3):
        buckets.take("a", 0)
    assert buckets.wait_ms("a", 0) == 100
    buckets.give_back("a")
    buckets.give_back("never taken")
    assert buckets.wait_ms("a", 0) == 0


@given(st.lists(st.tuples(st.integers(0, 50), st.sampled_from("abc")), max_size=200))
def test_no_name_gets_more_than_its_rate(steps: list[tuple[int, str]]) -> None:
    buckets, now_ms = Buckets(RATE), 0
    taken: dict[str, list[int]] = {}
    for pause_ms, name in steps:
        now_ms += pause_ms
        wait_ms = buckets.wait_ms(name, now_ms)
        if wait_ms == 0:
            buckets.take(name, now_ms)
            taken.setdefault(name, []).append(now_ms)
        else:
            # The time that is told is the true one.
            assert buckets.wait_ms(name, now_ms + wait_ms) == 0
            assert buckets.wait_ms(name, now_ms + wait_ms - 1) > 0
    for times in taken.values():
        for first, start_ms in enumerate(times):
            for last in range(first, len(times)):
                allowed = RATE.burst + (times[last] - start_ms) / RATE.refill_ms
                assert last - first + 1 <= allowed


def test_buckets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq.broker.security.login._BUCKETS_MAX", 10)
    buckets = Buckets(RATE)
    for at in range(100):
        buckets.take(f"{at}", 0)
    assert len(buckets._full_ms) == 10
    buckets.take("later", 1_000)
    assert [*buckets._full_ms] == ["later"]
