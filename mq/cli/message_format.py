r"""A line of one's own for each message: the formats of `mq consume -f '%k %v\n'`.

The letters are those of kcat and rpk where they have one. A body is written byte for byte, so that
a pipe gets what was sent; on a terminal it is made harmless, as everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from mq.cli import output
from mq.cli.tables import stored_at
from mq.errors import IllegalRequest

if TYPE_CHECKING:
    from mq.client import ReceivedMessage

Form = Callable[["ReceivedMessage"], bytes]
Command = Callable[..., Any]


def _text(part: Callable[[ReceivedMessage], object]) -> Form:
    return lambda message: str(part(message)).encode(errors="surrogatepass")


# Each letter: its meaning in a word or two, and its bytes.
_FIELDS: dict[str, tuple[str, Form]] = {
    "t": ("topic", _text(lambda one: one.topic)),
    "p": ("queue", _text(lambda one: one.queue_id)),
    "o": ("queue offset", _text(lambda one: one.queue_offset)),
    "k": ("keys", _text(lambda one: ",".join(one.keys))),
    "v": ("body", lambda one: one.body),
    "s": ("bytes of the body", _text(lambda one: len(one.body))),
    "g": ("tag", _text(lambda one: one.tag)),
    "h": ("properties", _text(lambda one: output.pairs(one.properties))),
    "y": ("ordering key", _text(lambda one: one.ordering_key)),
    "i": ("message id", _text(lambda one: one.message_id)),
    "T": ("stored at (ms)", _text(lambda one: one.stored_at_ms)),
    "d": ("stored at (UTC)", _text(lambda one: stored_at(one.stored_at_ms))),
    "b": ("born at (ms)", _text(lambda one: one.born_at_ms)),
    "a": ("attempt", _text(lambda one: one.attempt)),
}
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TOKEN = re.compile(r"%(?P<field>.?)|\\(?:x(?P<hex>[0-9a-fA-F]{2})|(?P<escape>.?))", re.DOTALL)

_LETTERS = ", ".join(f"%{letter} {meaning}" for letter, (meaning, _) in _FIELDS.items())


def with_template(command: Command) -> Command:
    """Adds -f, which the command gets as `template`: None when it was not given."""
    return click.option(
        "-f",
        "template",
        metavar="FORMAT",
        callback=_checked,
        help=f"Write each message like this: '%t %o %v\\n'. {_LETTERS}.",
    )(command)


def _checked(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        try:
            parse(value, is_safe=True)
        except IllegalRequest as error:
            raise click.BadParameter(str(error)) from error
    return value


def parse(text: str, *, is_safe: bool) -> Form:
    """The form of messages that `text` describes; with `is_safe`, without bytes that would steer a
    terminal. Raises IllegalRequest.
    """
    parts: list[bytes | Form] = []
    at = 0
    for token in _TOKEN.finditer(text):
        parts.append(text[at : token.start()].encode(errors="surrogateescape"))
        parts.append(_part(token, is_safe=is_safe))
        at = token.end()
    parts.append(text[at:].encode(errors="surrogateescape"))
    made = [part for part in parts if part != b""]

    def form(message: ReceivedMessage) -> bytes:
        return b"".join([one if isinstance(one, bytes) else one(message) for one in made])

    return form


def _part(token: re.Match[str], *, is_safe: bool) -> bytes | Form:
    if (letter := token["field"]) is not None:
        if letter == "%":
            return b"%"
        if letter not in _FIELDS:
            raise IllegalRequest(
                f"%{letter} is no part of a message: use {_LETTERS}, or %% for a %"
            )
        field = _FIELDS[letter][1]
        return _safe(field) if is_safe else field
    if token["hex"] is not None:
        return bytes.fromhex(token["hex"])
    if token["escape"] not in _ESCAPES:
        raise IllegalRequest(
            f"\\{token['escape']} is no escape: use \\n, \\t, \\r, \\0, \\xNN or \\\\"
        )
    return _ESCAPES[token["escape"]]


def _safe(field: Form) -> Form:
    def form(message: ReceivedMessage) -> bytes:
        return output.printable_lines(field(message).decode(errors="backslashreplace")).encode()

    return form
