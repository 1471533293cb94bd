"""`mq dlq`: what it asks the broker, what it shows, and when it asks the user."""

from __future__ import annotations

import pytest

from mq.cli.dead_letters import dlq
from mq.wire.v1 import admin_pb2 as pb
from mq.wire.v1.message_pb2 import Message, Origin
from tests.support.commands import FakeAdmin, assert_fits, run, run_json


def letter(queue_offset: int = 3, **fields: object) -> pb.StoredMessage:
    origin = Origin(
        topic="orders",
        queue_id=5,
        queue_offset=77,
        message_id="set-0:4711",
        stored_at_ms=1_783_850_000_123,
        attempts=17,
        reason="ValueError: no such customer \x1b[2J",
    )
    return pb.StoredMessage(
        message_id="set-0:9000",
        topic="%DLQ%billing",
        queue_offset=queue_offset,
        stored_at_ms=1_783_850_000_123,
        message=Message(body=b"order 7 \x1b", origin=origin, **fields),  # type: ignore[arg-type]
    )


def page(*letters: pb.StoredMessage, next_offset: int = 4) -> pb.ListDeadLettersResponse:
    return pb.ListDeadLettersResponse(messages=letters, next_offset=next_offset)


COUNTS = [
    pb.DeadLetterCount(group="billing", messages=3, last_stored_at_ms=1_783_850_000_123),
    pb.DeadLetterCount(group="g" * 127, messages=1 << 40),
]


@pytest.mark.parametrize("columns", [70, 80, 140])
def test_groups_with_letters_are_listed(columns: int) -> None:
    result = run(dlq, "list", admin=FakeAdmin(count_dead_letters=COUNTS), columns=columns)
    assert_fits(result.stdout, columns)
    assert f"{1 << 40:,}" in result.stdout
    assert "of 2 groups" in result.stdout


def test_no_letters_at_all() -> None:
    assert run(dlq, "list", admin=FakeAdmin(count_dead_letters=[])).stdout == "No dead letters.\n"
    assert run_json(dlq, "list", admin=FakeAdmin(count_dead_letters=[])) == []


@pytest.mark.parametrize("columns", [80, 140])
def test_letters_of_a_group_say_where_they_come_from_and_why(columns: int) -> None:
    admin = FakeAdmin(list_dead_letters=page(letter(), letter(4)))
    text = run(dlq, "list", "billing", "--count", "2", admin=admin, columns=columns).stdout
    assert_fits(text, columns)
    for part in ("orders", "17", "customer", "2 dead letters"):
        assert part in text
    assert "\x1b" not in text
    assert admin.called("list_dead_letters") == [(("billing", 0, 2), {"broker_set": ""})]


def test_letters_come_page_by_page() -> None:
    pages = [page(letter(0), next_offset=1), page(letter(1), next_offset=2), page(next_offset=2)]
    admin = FakeAdmin(list_dead_letters=lambda *_, **__: pages.pop(0))
    found = run_json(dlq, "list", "billing", "--from", "0", "--count", "5", admin=admin)
    assert [one["queue_offset"] for one in found] == [0, 1]
    assert found[0]["origin"]["reason"].startswith("ValueError")
    assert [args for args, _ in admin.called("list_dead_letters")] == [
        ("billing", 0, 5),
        ("billing", 1, 4),
        ("billing", 2, 3),
    ]


@pytest.mark.parametrize("columns", [80, 140])
def test_dead_letters_of_several_sets_are_paged_by_set(columns: int) -> None:
    other = letter()
    other.message_id = "other-set:77"
    first = page(letter(), other)
    first.next_offsets.update({"set-0": 4, "other-set": 4})
    pages = [first, page()] * 2
    admin = FakeAdmin(list_dead_letters=lambda *_, **__: pages.pop(0))
    text = run(dlq, "list", "billing", admin=admin, columns=columns).stdout
    assert_fits(text, columns)
    assert [line.split()[0] for line in text.splitlines() if "17" in line] == ["set-0", "other-set"]
    places = [args[1] for args, _ in admin.called("list_dead_letters")]
    assert places == [0, {"set-0": 4, "other-set": 4}]
    ambiguous = run(dlq, "show", "billing", "3", admin=admin)
    assert ambiguous.exit_code == 1
    assert "--set" in ambiguous.stderr


@pytest.mark.parametrize("columns", [80, 140])
def test_a_letter_is_shown(columns: int) -> None:
    admin = FakeAdmin(list_dead_letters=page(letter()))
    text = run(dlq, "show", "billing", "3", admin=admin, columns=columns).stdout
    assert_fits(text, columns)
    for part in ("17 times", "orders, queue 5, offset 77", "set-0:4711", "order 7 \\x1b"):
        assert part in text
    assert run(dlq, "show", "billing", "3", "--raw", admin=admin).stdout == "order 7 \x1b"
    assert run_json(dlq, "show", "billing", "3", admin=admin)["origin"]["attempts"] == 17


@pytest.mark.parametrize("found", [page(), page(letter(5))])
def test_a_letter_that_is_not_there(found: pb.ListDeadLettersResponse) -> None:
    result = run(dlq, "show", "billing", "3", admin=FakeAdmin(list_dead_letters=found))
    assert result.exit_code == 1


def test_all_letters_are_sent_again() -> None:
    admin = FakeAdmin(resend_dead_letters=2)
    text = run(dlq, "resend", "billing", "--all", admin=admin).stdout
    assert text == "Sent 2 dead letters to group billing again.\n"
    assert run_json(dlq, "resend", "billing", "--all", "--set", "b", admin=admin) == {
        "group": "billing",
        "resent": 2,
    }
    assert admin.called("resend_dead_letters") == [
        (("billing", ()), {"broker_set": ""}),
        (("billing", ()), {"broker_set": "b"}),
    ]


RESENT = pb.LetterOutcome(
    queue_offset=3, result=pb.LETTER_RESULT_RESENT, message_id="set-0:9000000"
)
REFUSED = pb.LetterOutcome(
    queue_offset=4, result=pb.LETTER_RESULT_REFUSED, text="the disk is full \x1b[2J"
)
GONE = pb.LetterOutcome(queue_offset=5, result=pb.LETTER_RESULT_GONE)


@pytest.mark.parametrize("columns", [60, 80])
def test_each_letter_has_its_outcome(columns: int) -> None:
    admin = FakeAdmin(settle_dead_letters=[RESENT, REFUSED, GONE])
    result = run(dlq, "resend", "billing", "5", "3", "4", "3", admin=admin, columns=columns)
    assert_fits(result.stdout, columns)
    assert result.exit_code == 1
    for part in ("set-0:9000000", "the disk is full", "gone", "1 dead letter of 3 sent again"):
        assert part in result.stdout
    assert "\x1b" not in result.stdout
    admin = FakeAdmin(settle_dead_letters=[RESENT])
    (only,) = run_json(dlq, "resend", "billing", "3", "--again", "--set", "b", admin=admin)
    assert (only["result"], only["message_id"]) == ("resent", "set-0:9000000")
    assert admin.called("settle_dead_letters") == [
        (("billing", [3], "resend"), {"again": True, "broker_set": "b"})
    ]


def test_chosen_letters_are_purged_when_the_user_is_sure() -> None:
    gone = pb.LetterOutcome(queue_offset=3, result=pb.LETTER_RESULT_PURGED)
    admin = FakeAdmin(settle_dead_letters=[gone])
    assert run(dlq, "purge", "billing", "3", admin=admin, stdin="n\n").exit_code == 1
    assert run(dlq, "purge", "billing", "3", "--before", "4", admin=admin).exit_code == 2
    assert admin.calls == []
    assert (
        "1 dead letter of 1 dropped" in run(dlq, "purge", "billing", "3", "-y", admin=admin).stdout
    )


@pytest.mark.parametrize("which", [(), ("3", "--all"), ("-1",), ("x",), ("--all", "--again")])
def test_resend_needs_a_choice_of_dead_letters(which: tuple[str, ...]) -> None:
    admin = FakeAdmin(resend_dead_letters=0)
    assert run(dlq, "resend", "billing", *which, admin=admin).exit_code == 2
    assert admin.calls == []


def test_purge_asks_unless_yes_is_given() -> None:
    admin = FakeAdmin(purge_dead_letters=5)
    assert run(dlq, "purge", "billing", admin=admin, stdin="n\n").exit_code == 1
    assert admin.calls == []
    result = run(dlq, "purge", "billing", "--yes", "--before", "9", admin=admin)
    assert result.stdout == "Dropped 5 dead letters of group billing.\n"
    assert run_json(dlq, "purge", "billing", "-y", admin=admin)["purged"] == 5
    run(dlq, "purge", "billing", "-y", "--before", "9", "--set", "b", admin=admin)
    assert admin.called("purge_dead_letters") == [
        (("billing", 9), {"broker_set": ""}),
        (("billing", 0), {"broker_set": ""}),
        (("billing", 9), {"broker_set": "b"}),
    ]
