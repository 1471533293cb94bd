"""The checker of histories: it finds each kind of broken promise, and nothing in a good one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import pytest

from tests.support.history import History, Order, Outcome, Place, Queue

if TYPE_CHECKING:
    from collections.abc import Callable

Q = Queue("orders", 0)
OTHER = Queue("orders", 1)
GROUP = "readers"


@dataclass
class Stored:
    queue_offset: int
    body: bytes
    queue_id: int = 0
    topic: str = "orders"
    message_id: str = ""


def new(order: Order | None = None) -> History:
    ticks = count()
    history = History("seed 7", clock=lambda: next(ticks))
    if order is not None:
        history.group(GROUP, ["orders"], order)
    return history


def send(history: History, *bodies: bytes, lane: str = "p0", first: int = 0) -> None:
    for at, body in enumerate(bodies, first):
        history.acknowledged(history.sending(lane, body), Q, at)


def hold(history: History, *bodies: bytes) -> None:
    history.stored(Q, [Stored(at, body) for at, body in enumerate(bodies)])


def kinds(history: History) -> list[str]:
    return [one.kind for one in history.problems()]


def see(history: History, *queue_offsets: int, member: str = "m", is_done: bool = True) -> None:
    for at in queue_offsets:
        work = history.took(GROUP, member, Stored(at, b"%d" % at))
        (history.finished if is_done else history.dropped)(work)


# -- producers -------------------------------------------------------------------------------------


def test_a_message_at_its_acknowledged_place_is_no_problem() -> None:
    history = new()
    send(history, b"a", b"b", b"c")
    hold(history, b"a", b"b", b"c")
    assert history.problems() == []
    assert history.count(Outcome.ACKNOWLEDGED) == 3
    history.check()


def test_an_acknowledged_message_that_is_nowhere_is_lost() -> None:
    history = new()
    send(history, b"a", b"b")
    hold(history, b"a")
    assert kinds(history) == ["lost"]


def test_an_acknowledged_message_without_a_place_is_lost_as_well() -> None:
    history = new()
    history.acknowledged(history.sending("", b"a"), Q, -1)
    hold(history)
    assert kinds(history) == ["lost"]


def test_a_message_without_quorum_may_vanish_but_not_be_stored_twice() -> None:
    history = new()
    for body in (b"a", b"b"):
        history.acknowledged(history.sending("", body, may_vanish=True), Q, -1)
    hold(history, b"b", b"b")
    assert kinds(history) == ["stored twice"]


def test_another_one_at_its_place_is_a_problem_though_it_is_there() -> None:
    history = new()
    send(history, b"a", b"b", lane="")
    hold(history, b"b", b"a")
    assert kinds(history) == ["wrong place", "wrong place"]


def test_nothing_at_its_place_is_a_problem_though_it_is_elsewhere() -> None:
    history = new()
    send(history, b"a", first=5)
    hold(history, b"a")
    assert kinds(history) == ["wrong place"]


def test_an_id_that_is_not_the_one_that_was_said() -> None:
    history = new()
    history.acknowledged(history.sending("", b"a"), Q, 0, "id-1")
    history.stored(Q, [Stored(0, b"a", message_id="id-2")])
    assert kinds(history) == ["wrong id"]


def test_a_message_in_doubt_may_be_stored_or_not() -> None:
    history = new()
    history.failed(history.sending("p0", b"there"), "time out", is_sure=False)
    history.failed(history.sending("p0", b"not there"), "time out", is_sure=False)
    history.sending("p0", b"no answer")
    hold(history, b"there")
    assert history.problems() == []
    assert history.count(Outcome.IN_DOUBT) == 3


def test_a_refused_message_must_not_be_stored() -> None:
    history = new()
    history.failed(history.sending("p0", b"a"), "too large", is_sure=True)
    hold(history, b"a")
    assert kinds(history) == ["phantom"]


def test_a_message_that_was_never_sent_is_a_phantom() -> None:
    history = new()
    hold(history, b"?")
    assert kinds(history) == ["phantom"]


def test_twice_is_a_problem_in_one_queue_and_in_two_also_when_it_was_in_doubt() -> None:
    history = new()
    history.sending("", b"a")
    history.sending("", b"b")
    hold(history, b"a", b"a", b"b")
    history.stored(OTHER, [Stored(0, b"b", queue_id=1)])
    assert kinds(history) == ["stored twice", "stored twice"]


def test_a_producer_without_sequences_may_store_a_message_twice() -> None:
    history = new()
    history.sending("p0", b"a", may_repeat=True)
    hold(history, b"a", b"a")
    assert history.problems() == []


def test_a_lane_stands_in_the_order_in_which_it_was_sent_answered_or_not() -> None:
    history = new()
    for body in (b"a", b"b", b"c"):
        history.sending("p0", body)
    hold(history, b"a", b"c", b"b")
    assert kinds(history) == ["reordered"]


def test_lanes_may_mix_and_what_has_none_stands_anywhere() -> None:
    history = new()
    for lane, body in (("p0", b"a"), ("p1", b"b"), ("", b"c"), ("", b"d"), ("p0", b"e")):
        history.sending(lane, body)
    hold(history, b"d", b"b", b"a", b"c", b"e")
    assert history.problems() == []


def test_an_offset_that_is_left_out_is_a_gap() -> None:
    history = new()
    history.sending("", b"a")
    history.sending("", b"b")
    history.stored(Q, [Stored(0, b"a"), Stored(2, b"b")])
    assert kinds(history) == ["gap"]


def test_a_body_is_sent_once() -> None:
    history = new()
    history.sending("p0", b"a")
    with pytest.raises(ValueError, match="already"):
        history.sending("p1", b"a")


# -- consumers -------------------------------------------------------------------------------------

ORDERS: tuple[Order, ...] = ("none", "member", "group")


def read(history: History, size: int) -> list[str]:
    """The kinds of problems, when the queue has so many messages."""
    send(history, *[b"%d" % at for at in range(size)])
    hold(history, *[b"%d" % at for at in range(size)])
    return kinds(history)


@pytest.mark.parametrize("order", ORDERS)
def test_a_group_that_sees_all_in_order_is_no_problem(order: Order) -> None:
    history = new(order)
    see(history, 0, 1, 2)
    history.committed(GROUP, {Q: 3})
    assert read(history, 3) == []
    assert history.repeats(GROUP) == []


@pytest.mark.parametrize("order", ORDERS)
def test_an_unseen_message_is_missed(order: Order) -> None:
    history = new(order)
    see(history, 0, 1)
    assert read(history, 3) == ["missed"]
    assert history.unseen(GROUP, Q, 3) == 1


def test_another_topic_is_not_missed() -> None:
    history = new()
    history.group(GROUP, ["payments"], "member")
    assert read(history, 3) == []


@pytest.mark.parametrize(("order", "expected"), [("none", []), ("member", ["skipped"])])
def test_only_parallel_handlers_see_a_queue_in_any_order(order: Order, expected: list[str]) -> None:
    history = new(order)
    see(history, 0, 2, 1)
    assert read(history, 3) == expected


@pytest.mark.parametrize("order", ORDERS)
def test_an_uncommitted_message_may_come_again_and_is_counted(order: Order) -> None:
    history = new(order)
    see(history, 0, 1, 2)
    history.committed(GROUP, {Q: 1})
    see(history, 1, 2)
    assert read(history, 3) == []
    assert history.repeats(GROUP) == ["orders/0@1: 2 times", "orders/0@2: 2 times"]
    assert history.deliveries(GROUP) == 5


@pytest.mark.parametrize("order", ORDERS)
def test_a_committed_message_must_not_come_again(order: Order) -> None:
    history = new(order)
    see(history, 0, 1, 2)
    history.committed(GROUP, {Q: 2})
    see(history, 1, 2)
    assert read(history, 3) == ["again"]


def test_a_member_may_go_on_behind_what_another_one_saw() -> None:
    history = new("member")
    see(history, 0, member="a")
    see(history, 1, 2, member="b")
    see(history, 3, member="a")
    assert read(history, 4) == []


def test_an_ordered_group_goes_on_behind_what_it_saw_last() -> None:
    history = new("group")
    see(history, 0, 1, 2, member="a")
    see(history, 1, 3, member="b")
    assert read(history, 4) == ["skipped"]


@pytest.mark.parametrize(("order", "expected"), [("member", []), ("group", ["two at once"])])
def test_two_members_at_once(order: Order, expected: list[str]) -> None:
    history = new(order)
    first = history.took(GROUP, "a", Stored(0, b"0"))
    second = history.took(GROUP, "b", Stored(1, b"1"))
    history.finished(first)
    history.finished(second)
    assert read(history, 2) == expected


@pytest.mark.parametrize("end", [History.finished, History.dropped])
def test_members_one_after_the_other(end: Callable[..., None]) -> None:
    history = new("group")
    end(history, history.took(GROUP, "a", Stored(0, b"0")))
    end(history, history.took(GROUP, "b", Stored(1, b"1")))
    assert read(history, 2) == []


def test_a_place_that_changes_between_two_readers_and_one_that_is_gone() -> None:
    history = new("member")
    history.took(GROUP, "a", Stored(0, b"0"))
    history.took(GROUP, "b", Stored(0, b"x"))
    history.took(GROUP, "b", Stored(1, b"1"))
    send(history, b"0")
    hold(history, b"0")
    assert kinds(history) == ["wrong content", "phantom"]


def test_a_place_that_is_another_one_in_the_end() -> None:
    history = new("member")
    history.took(GROUP, "a", Stored(0, b"x"))
    send(history, b"0")
    hold(history, b"0")
    assert kinds(history) == ["wrong content"]


# -- offsets ---------------------------------------------------------------------------------------


def test_an_offset_never_goes_back() -> None:
    history = new("member")
    see(history, 0, 1, 2)
    history.committed(GROUP, {Q: 3})
    floors = history.floors(GROUP)
    history.queried(GROUP, floors, {Q: 3})
    assert kinds(history) == []
    history.queried(GROUP, floors, {Q: 2})
    assert kinds(history) == ["went back"]


def test_an_offset_is_not_forgotten_and_an_answer_is_as_good_as_a_commit() -> None:
    history = new("member")
    see(history, 0, 1)
    history.queried(GROUP, history.floors(GROUP), {Q: 2})
    history.queried(GROUP, history.floors(GROUP), {})
    assert kinds(history) == ["went back"]


def test_a_question_may_be_older_than_a_commit() -> None:
    history = new("member")
    see(history, 0, 1)
    floors = history.floors(GROUP)
    history.committed(GROUP, {Q: 2})
    history.queried(GROUP, floors, {Q: 1})
    assert kinds(history) == []


def test_an_offset_does_not_pass_what_is_not_done() -> None:
    history = new("none")
    see(history, 0, 2)
    see(history, 1, is_done=False)
    history.committed(GROUP, {Q: 1})
    assert kinds(history) == []
    history.committed(GROUP, {Q: 3})
    assert kinds(history) == ["ran ahead"]


# -- reports ---------------------------------------------------------------------------------------


def test_a_failure_has_the_title_the_problems_and_the_events_about_them() -> None:
    history = new("member")
    history.note("kill -9")
    send(history, b"a", b"b")
    history.acknowledged(history.sending("p1", b"elsewhere"), OTHER, 0)
    history.stored(OTHER, [Stored(0, b"elsewhere", queue_id=1)])
    hold(history, b"a")
    see(history, 0)
    with pytest.raises(AssertionError) as failure:
        history.check()
    text = str(failure.value)
    assert text.startswith("seed 7: ")
    assert "lost: b'b', acknowledged at orders/0@1" in text
    assert "kill -9" in text
    assert "acknowledged b'b' at orders/0@1" in text
    assert "send b'elsewhere'" not in text


def test_a_long_report_shows_the_newest_events_and_every_note() -> None:
    history = new()
    history.note("kill -9")
    send(history, *[b"%d" % at for at in range(1000)])
    hold(history)
    text = history.report(history.problems())
    assert "1000 problems" in text
    assert len(text.splitlines()) < 200
    assert "kill -9" in text


def test_without_a_problem_a_report_has_what_happened_last() -> None:
    history = new("none")
    send(history, b"a")
    assert "acknowledged b'a' at orders/0@0" in history.report()


def test_places_read_as_an_operator_writes_them() -> None:
    assert str(Place(Q, 17)) == "orders/0@17"
