"""Groups, dead letters, delayed messages, transactions, brokers, security: what pages show, what
they ask for, and to whom they offer it.
"""

from __future__ import annotations

import html
import re
import shlex
from typing import Any
from urllib.parse import quote

import click
import pytest

from mq.access.keys import new as new_key
from mq.cli.commands import COMMANDS
from mq.cli.main import Later
from mq.errors import GroupNotFound, PermissionDenied
from mq.wire.v1 import admin_pb2 as pb
from mq.wire.v1.consumer_pb2 import QueuePosition
from tests.unit.console.scene import ESCAPED, HOSTILE, console

NAME = "orders-1"
SCREENS = [
    "/groups",
    f"/groups/{NAME}",
    f"/groups/{NAME}/reset",
    f"/groups/{NAME}/reset?topic={NAME}&to=latest",
    "/dead-letters",
    f"/dead-letters/{NAME}",
    "/scheduled",
    "/transactions",
    "/messages/set-0%3A7",
    "/trace",
    "/trace?id=set-0%3A7",
    f"/trace?topic={NAME}&key={NAME}",
    "/brokers",
    f"/brokers/{NAME}/{NAME}",
    "/security",
    "/security/roles",
    "/security/keys",
    "/security/policies",
    "/security/quotas",
    "/security/namespaces",
    f"/security/check?user={NAME}&action=publish&kind=topic&name={NAME}",
    "/security/audit",
]
# Each form that changes something, with fields that are whole.
CHANGES: list[tuple[str, dict[str, Any]]] = [
    (f"/groups/{NAME}/delete", {}),
    (f"/groups/{NAME}/retries", {"retries": "3"}),
    (f"/groups/{NAME}/reset", {"topic": NAME, "to": "latest", "with_members": "yes"}),
    (f"/dead-letters/{NAME}/settle", {"action": "resend", "letter": "set-0/7"}),
    (f"/dead-letters/{NAME}/settle", {"action": "purge", "letter": "set-0/7"}),
    (f"/dead-letters/{NAME}/all", {"action": "purge"}),
    (
        "/scheduled/recall",
        {"topic": NAME, "message_id": "set-0:7", "deliver_at_ms": "1783850000000"},
    ),
    *(
        ("/transactions/end", {"transaction_id": "set-0:7", "topic": NAME, "action": action})
        for action in ("check", "commit", "rollback")
    ),
    (f"/brokers/{NAME}/transfer", {"node": NAME}),
    (f"/brokers/{NAME}/{NAME}/config", {"name": "log.level", "value": "debug"}),
    ("/security/create-user", {"user": NAME}),
    ("/security/set-roles", {"user": NAME, "roles": "superuser"}),
    ("/security/disable-user", {"user": NAME, "disabled": "yes"}),
    ("/security/delete-user", {"user": NAME}),
    ("/security/revoke-key", {"key": "abc", "user": NAME}),
    ("/security/new-key", {"user": NAME}),
    ("/security/add-policy", {"subject_kind": "user", "subject": NAME, "line": "allow"}),
    ("/security/remove-policy", {"of": f"user:{NAME}", "line": "allow publish topic *"}),
    ("/security/set-quota", {"subject": "default", "limit": "topics", "value": "7"}),
    ("/security/remove-quota", {"subject": "default"}),
    ("/security/create-namespace", {"namespace": NAME}),
    ("/security/delete-namespace", {"namespace": NAME}),
]
READS = (
    *("describe_", "list_", "count_", "check_access", "get_", "browse_"),
    *("query_", "trace_", "who_am_i", "broker_status", "route"),
)


def changes_of(calls: list[tuple[str, Any, Any]]) -> list[str]:
    """What was asked of the brokers that is no question."""
    return [
        name
        for name, args, fields in calls
        if not name.startswith(READS)
        and not fields.get("dry_run")
        and not (name == "alter_group" and len(args) == 1 and not fields)
    ]


def test_no_screen_lets_a_name_become_markup() -> None:
    with console() as shown:
        for path in SCREENS:
            answer = shown.get(path.replace(NAME, quote(HOSTILE, safe="")))
            assert answer.status_code == 200, (path, answer.text)
            assert "<script>alert" not in answer.text, path
            assert ESCAPED in answer.text, path
            assert not changes_of(shown.admin.calls), path


def test_no_form_lets_a_field_become_markup() -> None:
    kept = {"user", "purge", "commit", "rollback", "topics", "1783850000000"}
    group = quote(HOSTILE, safe="")
    with console() as shown:
        for path, fields in CHANGES:
            hostile = {name: one if one in kept else HOSTILE for name, one in fields.items()}
            answer = shown.post(path.replace(NAME, group), **hostile)
            assert "<script>alert" not in answer.text, path


def test_those_who_may_not_see_no_form_and_are_refused() -> None:
    with console(may=False, roles="viewer", text=NAME) as shown:
        for path in SCREENS:
            answer = shown.get(path)
            if "/reset" in path:
                assert answer.status_code == 403, path
                continue
            assert answer.status_code == 200, path
            forms = re.findall(r'<form method="post" action="([^"]+)"', answer.text)
            # A key of one's own is one's own affair.
            own = {"/logout", "/security/new-key"}
            assert set(forms) <= own | {f"/dead-letters/{NAME}/settle", "/transactions/end"}, path
            buttons = re.findall(r'<button[^>]*name="action"', answer.text)
            assert not buttons, path
        for path, fields in CHANGES:
            answer = shown.post(path, **fields, confirmed="yes")
            assert answer.status_code == 403, path
        assert not changes_of(shown.admin.calls)


def test_what_cannot_be_undone_is_told_before_it_is_done() -> None:
    done = dict.fromkeys(("end_transaction", "recall_scheduled", "delete_user"))
    more = {
        "revoke_key": None,
        "remove_policy": None,
        "remove_quota": None,
        "delete_namespace": None,
        "transfer_leadership": None,
        "set_config": None,
        "alter_user": None,
        "delete_group": None,
        "purge_dead_letters": 1,
        "settle_dead_letters": [pb.LetterOutcome(queue_offset=7, result=pb.LETTER_RESULT_PURGED)],
    }
    asked = 0
    with console({**done, **more}, text=NAME) as shown:
        for path, fields in CHANGES:
            is_direct = path.rpartition("/")[2] in (
                *("reset", "retries", "create-user", "new-key", "add-policy", "set-quota"),
                "create-namespace",
            )
            if is_direct or fields.get("action") in ("resend", "check"):
                continue
            answer = shown.post(path, **fields)
            assert answer.status_code == 200, (path, answer.text)
            assert not changes_of(shown.admin.calls), path
            assert 'name="confirmed"' in answer.text, path
            for name, value in fields.items():
                assert f'name="{name}" value="{html.escape(value)}"' in answer.text, path
            word = NAME if path.endswith((f"{NAME}/delete", f"{NAME}/all")) else "yes"
            assert shown.post(path, **fields, confirmed="x").status_code == 400
            assert not changes_of(shown.admin.calls), path
            answer = shown.post(path, **fields, confirmed=word)
            assert answer.status_code in (200, 303), (path, answer.text)
            assert len(changes_of(shown.admin.calls)) == 1, path
            shown.admin.calls.clear()
            asked += 1
    assert asked == 15


def test_every_command_that_is_shown_is_one() -> None:
    seen: set[str] = set()
    for text in (NAME, "a b'c"):
        with console(text=text) as shown:
            for path in SCREENS:
                page = shown.get(path).text
                seen.update(map(html.unescape, re.findall(r'data-copy="(mq [^"]*)"', page)))
            for path, fields in CHANGES:
                page = shown.post(path, **fields).text
                seen.update(map(html.unescape, re.findall(r'data-copy="(mq [^"]*)"', page)))
    assert len(seen) > 40
    known = {one.name: one for one in COMMANDS}
    for line in sorted(one for text in seen for one in text.split(" | ")):
        words = shlex.split(line)[1:]
        command: Any = known[words.pop(0)]
        command = command.load() if isinstance(command, Later) else command
        while isinstance(command, click.Group):
            command = command.commands[words.pop(0)]
        try:
            command.make_context("mq", words)
        except click.UsageError as error:
            raise AssertionError(f"{line}: {error.message}") from None


# -- traces ----------------------------------------------------------------------------------------


def test_the_times_within_a_trace_follow_the_switch_like_all_others() -> None:
    event = pb.TraceEvent(
        kind=pb.TRACE_RETRY, attempt=1, at_ms=5, until_ms=1_783_850_000_123, reason="no\x1fway"
    )
    trace = pb.MessageTrace(message_id="set-0:7", events=[event])
    with console({"trace_message": trace}) as shown:
        page = shown.get("/trace?id=set-0%3A7").text
    assert re.search(r'attempt 1 failed, again at <time [^>]*data-ms="1783850000123"', page)
    assert "reason: noway" in page


# -- groups ----------------------------------------------------------------------------------------


def moved(after: int, **fields: Any) -> pb.ResetOffsetsResponse:
    places = [QueuePosition(topic=NAME, queue_id=at, broker_set="s", **fields) for at in (0, 1)]
    before = [QueuePosition(topic=NAME, queue_id=0, queue_offset=5, broker_set="s")]
    for one in places:
        one.queue_offset = after
    return pb.ResetOffsetsResponse(before=before, after=places)


def described(members: int = 0) -> pb.DescribeGroupResponse:
    queues = [pb.GroupQueue(topic=NAME, queue_id=at, broker_set="s", end=9) for at in (0, 1)]
    return pb.DescribeGroupResponse(
        summary=pb.GroupSummary(group=NAME, members=members), queues=queues
    )


def test_the_wizard_shows_before_and_after_and_moves_only_when_told() -> None:
    answers = {"describe_group": described(), "reset_offsets": moved(9)}
    with console(answers, text=NAME) as shown:
        page = shown.get(f"/groups/{NAME}/reset?topic={NAME}&to=latest").text
        assert "+4" in page
        assert "new" in page
        ((args, fields),) = shown.admin.called("reset_offsets")
        assert args == (NAME, NAME, "latest", [])
        assert fields == {"dry_run": True, "broker_set": ""}
        shown.admin.calls.clear()
        answer = shown.post(
            f"/groups/{NAME}/reset",
            topic=NAME,
            to="time",
            time="2026-07-12 09:53:20",
            queues="0, 1",
        )
        assert answer.status_code == 303
        ((args, fields),) = shown.admin.called("reset_offsets")
        assert args == (NAME, NAME, 1_783_850_000_000, [0, 1])
        assert not fields.get("dry_run")


def test_a_group_with_members_is_not_moved_by_mistake() -> None:
    answers = {"describe_group": described(2), "reset_offsets": moved(9)}
    with console(answers, text=NAME) as shown:
        answer = shown.post(f"/groups/{NAME}/reset", topic=NAME, to="latest")
        assert answer.status_code == 400
        assert "2 members" in answer.text
        assert not changes_of(shown.admin.calls)
        answer = shown.post(f"/groups/{NAME}/reset", topic=NAME, to="latest", with_members="yes")
        assert answer.status_code == 303


@pytest.mark.parametrize(
    "query",
    ["to=never", "to=time&time=yesterday", "to=latest&queues=x", "to=latest&queues=-1"],
)
def test_a_place_that_is_none_is_refused(query: str) -> None:
    with console(text=NAME) as shown:
        answer = shown.get(f"/groups/{NAME}/reset?topic={NAME}&{query}")
        assert answer.status_code == 400


def test_a_group_that_is_gone_is_told() -> None:
    with console({"describe_group": GroupNotFound("there is no group g")}) as shown:
        assert shown.get("/groups/g").status_code == 404


# -- dead letters ----------------------------------------------------------------------------------


def test_each_letter_has_its_result() -> None:
    outcomes = [
        pb.LetterOutcome(queue_offset=1, result=pb.LETTER_RESULT_RESENT, message_id="set-0:99"),
        pb.LetterOutcome(queue_offset=2, result=pb.LETTER_RESULT_ALREADY_RESENT),
        pb.LetterOutcome(queue_offset=3, result=pb.LETTER_RESULT_GONE),
        pb.LetterOutcome(queue_offset=4, result=pb.LETTER_RESULT_REFUSED, text="disk full <b>"),
    ]
    with console({"settle_dead_letters": outcomes}, text=NAME) as shown:
        letters = [f"set-0/{at}" for at in (1, 2, 3, 4)]
        page = shown.post(f"/dead-letters/{NAME}/settle", action="resend", letter=letters).text
    for part in ("set-0:99", "already resent", "gone", "disk full &lt;b&gt;"):
        assert part in page
    ((args, fields),) = shown.admin.called("settle_dead_letters")
    assert args == (NAME, [1, 2, 3, 4], "resend")
    assert fields == {"again": False, "broker_set": "set-0"}
    assert 'value="set-0/2"' in page


def test_a_set_that_fails_refuses_its_own_letters_alone() -> None:
    def settle(_group: str, offsets: list[int], *_: Any, broker_set: str, **_more: Any) -> Any:
        if broker_set == "b":
            return PermissionDenied("not here")
        return [pb.LetterOutcome(queue_offset=offsets[0], result=pb.LETTER_RESULT_RESENT)]

    with console({"settle_dead_letters": settle}, text=NAME) as shown:
        page = shown.post(f"/dead-letters/{NAME}/settle", action="resend", letter=["a/1", "b/1"])
    assert page.status_code == 200
    assert "refused" in page.text
    assert "not here" in page.text


@pytest.mark.parametrize(
    "fields",
    [
        {"action": "resend"},
        {"action": "burn", "letter": "a/1"},
        {"action": "resend", "letter": "1"},
        {"action": "resend", "letter": "a/-1"},
        {"action": "resend", "letter": "a/" + "9" * 30},
    ],
)
def test_a_choice_of_letters_that_is_none_is_refused(fields: dict[str, str]) -> None:
    with console(text=NAME) as shown:
        assert shown.post(f"/dead-letters/{NAME}/settle", **fields).status_code == 400
        assert not changes_of(shown.admin.calls)


def test_letters_are_counted_and_filtered_by_reason() -> None:
    found = pb.ListDeadLettersResponse(next_offsets={"s": 3})
    for at, reason in enumerate(("slow", "slow", "broken")):
        letter = found.messages.add(message_id=f"s:{at}", queue_offset=at)
        letter.message.origin.reason = reason

    def listed(_group: str, at: Any, *_: Any) -> Any:
        return found if at == 0 else pb.ListDeadLettersResponse(next_offsets={"s": 3})

    with console({"list_dead_letters": listed}, text=NAME) as shown:
        page = shown.get(f"/dead-letters/{NAME}?reason=broken").text
        assert re.findall(r'name="letter" value="([^"]+)"', page) == ["s/2"]
        assert "slow" in page
        assert shown.get(f"/dead-letters/{NAME}?at=x").status_code == 400
        assert shown.get(f'/dead-letters/{NAME}?at={{"s":-1}}').status_code == 400


# -- security --------------------------------------------------------------------------------------


def test_a_new_key_is_shown_once_and_a_user_may_make_its_own() -> None:
    key = new_key()
    with console({"create_key": key}, roles="viewer", may=False) as shown:
        assert shown.post("/security/new-key", user="alice").status_code == 403
        answer = shown.post("/security/new-key", user="root", days="3")
        assert key.text in answer.text
        assert answer.headers["cache-control"] == "no-store"
        ((args, fields),) = shown.admin.called("create_key")
        assert args == ("root",)
        assert fields["expires_at_ms"] > 0
        assert shown.post("/security/new-key", user="root", days="x").status_code == 400


def test_without_a_login_nobody_changes_users() -> None:
    with console(roles="") as shown:
        assert "Nobody is signed in" in shown.get("/security").text
        assert shown.post("/security/create-user", user="a").status_code == 403


@pytest.mark.parametrize("path", ["nothing", "audit?at=x", "check?user=a"])
def test_addresses_that_make_no_sense_are_refused(path: str) -> None:
    with console() as shown:
        assert shown.get(f"/security/{path}").status_code == 400
