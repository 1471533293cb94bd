"""`mq audit`: records as lines and tables, whatever is in them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from mq.cli import output
from mq.cli.audit import Wanted, audit, change, columns, line_of, parsed
from mq.cli.tables import print_table
from tests.support.commands import assert_fits

RECORD: dict[str, Any] = {
    "at_ms": 1_783_850_000_123,
    "user": "root",
    "credential": "abcdefghijkl",
    "address": "10.20.30.40",
    "what": "put_user",
    "subject": "user:alice",
    "before": {"name": "alice", "roles": ["app"], "created_at_ms": 1},
    "after": {"name": "alice", "roles": ["app", "web"], "is_disabled": True, "created_at_ms": 1},
    "outcome": "done",
}


def test_a_change_is_what_differs() -> None:
    assert change(RECORD) == "roles app -> app web, is_disabled none -> yes"
    assert line_of(RECORD) == (
        "2026-07-12 09:53:20  root  put user  user:alice  "
        "roles app -> app web, is_disabled none -> yes"
    )


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_record_that_comes_or_goes_is_shown_without_what_its_subject_says(side: str) -> None:
    shown = {
        "before": None,
        "after": None,
        side: {
            "subject": "user:alice",
            "line": "allow publish topic x",
            "expires_at_ms": 86_400_000,
        },
    }
    assert change({**RECORD, **shown}) == (
        "line allow publish topic x, expires_at 1970-01-02 00:00:00"
    )


def test_a_refusal_says_what_and_why() -> None:
    record = {
        **RECORD,
        "what": "denied",
        "outcome": "denied",
        "before": None,
        "after": None,
        "subject": "topic:orders",
        "action": "publish",
        "reason": "no policy",
    }
    assert change(record) == "action publish, reason no policy"
    assert change({**record, "outcome": "observed"}).startswith("observed, ")


def test_values_that_are_no_records_are_shown_as_they_are() -> None:
    assert change({**RECORD, "before": 1, "after": "2"}) == "1 -> 2"
    assert change({"what": "x"}) == ""
    gone = {"credentials": [{"id": "abc"}], "quota": {"streams": 5}}
    assert change({**RECORD, "before": gone, "after": None}) == "credentials abc, quota streams 5"


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"1"])
def test_what_is_no_record_is_passed_over(body: bytes) -> None:
    assert parsed(body) is None
    assert parsed(json.dumps(RECORD).encode()) == RECORD


@pytest.mark.parametrize(
    ("wanted", "has_it"),
    [
        (Wanted(), True),
        (Wanted("root", "user:alice", "put_user"), True),
        (Wanted(user="alice"), False),
        (Wanted(about="user:bob"), False),
        (Wanted(what="denied"), False),
    ],
)
def test_a_record_is_wanted_if_all_of_it_fits(wanted: Wanted, *, has_it: bool) -> None:
    assert wanted.has(RECORD) == has_it


def test_a_kind_that_is_no_refusal_and_refusals_alone_contradict_each_other() -> None:
    result = CliRunner().invoke(audit, ["--denied", "--what", "put_user"])
    assert result.exit_code == 2
    assert "--denied is --what denied" in result.stderr


@pytest.mark.parametrize("width", [70, 80, 140])
def test_the_table_fits_the_terminal_and_steers_nothing(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    evil = {**RECORD, "user": "\x1b[2J", "subject": "x" * 200, "at_ms": "no number"}
    rows = [("set-0", RECORD), ("set-1", evil), ("set-1", {})]
    print_table(output.console(), columns(rows, width))
    text = capsys.readouterr().out
    assert_fits(text, width)
    assert "\x1b" not in text
    assert "roles" in text
