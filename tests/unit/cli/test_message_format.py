"""`mq consume -f`: the letters, the escapes, and what is no format."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.cli import message_format
from mq.cli.consume import consume
from mq.client.messages import ReceivedMessage
from mq.errors import IllegalRequest
from tests.support.commands import run


def message(**fields: Any) -> ReceivedMessage:
    given_fields: dict[str, Any] = {
        "message_id": "set-0:317",
        "born_at_ms": 5,
        "stored_at_ms": 1_783_850_000_123,
        "body": b"one\ntwo\xff",
        "tag": "paid",
        "keys": ("a", "b"),
        "properties": {"x": "1", "y": "2"},
        "ordering_key": "o",
    }
    return ReceivedMessage("orders", 3, 17, **given_fields | fields)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%t/%p@%o", b"orders/3@17"),
        ("%k|%g|%y", b"a,b|paid|o"),
        ("%v", b"one\ntwo\xff"),
        ("%s bytes", b"8 bytes"),
        ("%h", b"x=1, y=2"),
        ("%i %T %b", b"set-0:317 1783850000123 5"),
        ("%d", b"2026-07-12 09:53:20.123"),
        ("%a", b"1"),
        (r"100 %%\t\\n\x1f\0\r\n", b"100 %\t\\n\x1f\0\r\n"),
        ("", b""),
        ("äö", "äö".encode()),
    ],
)
def test_letters_and_escapes(text: str, expected: bytes) -> None:
    assert message_format.parse(text, is_safe=False)(message()) == expected


def test_a_terminal_gets_no_control_characters_from_any_field() -> None:
    hostile = message(body=b"\x1b[31m\nb", tag="\x1b]0;", keys=("\x07",), properties={"p": "\x1b"})
    shown = message_format.parse(r"%v %g %k %h\n", is_safe=True)(hostile)
    assert shown == b"\\x1b[31m\nb \\x1b]0; \\x07 p=\\x1b\n"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [("%q", "%q is no part"), ("at the end %", "% is no part"), ("\\q", r"\q is")],
)
def test_an_unknown_letter_is_refused_before_a_broker_is_asked(text: str, wrong: str) -> None:
    with pytest.raises(IllegalRequest, match=wrong.replace("\\", "\\\\")):
        message_format.parse(text, is_safe=False)
    result = run(consume, "orders", "-f", text)
    assert result.exit_code == 2
    assert "Invalid value for '-f'" in result.stderr


@pytest.mark.parametrize("other", [("--json",), ("--meta",), ("--format", "parquet")])
def test_it_is_a_form_of_its_own(other: tuple[str, ...]) -> None:
    result = run(consume, "orders", "-f", "%v", *other)
    assert result.exit_code == 2
    assert "-f is a form of its own" in result.stderr


@given(st.text(max_size=20))
def test_any_text_is_a_format_or_is_refused(text: str) -> None:
    try:
        form = message_format.parse(text, is_safe=True)
    except IllegalRequest:
        return
    assert isinstance(form(message()), bytes)
