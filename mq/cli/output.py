"""Output that the commands share: JSON, lines around tables, messages as text.

Whatever a producer could put into a message is made harmless before it reaches a terminal: control
characters are shown as escapes. JSON has exact numbers, and times in milliseconds.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from google.protobuf.message import Message as WireMessage

    from mq.client.messages import ReceivedMessage

_METER_AFTER_S = 0.5
_METER_EVERY_S = 0.1

# -- JSON ------------------------------------------------------------------------------------------


def write_json(document: object) -> None:
    """One document, for people too."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def json_line(document: object) -> str:
    """One document a line, for streams."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"


def plain(message: WireMessage) -> dict[str, Any]:
    """A protobuf message with all its fields, numbers as numbers, enums by their short names.

    A choice that was not made is left out.
    """
    document: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map:
            document[field.name] = dict(value)
        elif field.is_repeated:
            document[field.name] = [_plain_value(field, each) for each in value]
        else:
            document[field.name] = _plain_value(field, value)
    return document


def _plain_value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return plain(value)
    if field.enum_type is not None:
        return enum_name(field.enum_type, value)
    return value


def enum_name(enum_type: Any, number: int) -> str:
    """TOPIC_NORMAL is "normal"."""
    found = enum_type.values_by_number.get(number)
    return found.name.partition("_")[2].lower() if found else str(number)


def message_document(message: ReceivedMessage) -> dict[str, Any]:
    """As `mq produce --jsonl` reads it back; a body that is no text is in base64."""
    try:
        body = {"body": message.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(message.body).decode()}
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "stored_at_ms": message.stored_at_ms,
        "born_at_ms": message.born_at_ms,
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": dict(message.properties),
        "ordering_key": message.ordering_key,
        **body,
        **_returned(message),
    }


def _returned(message: ReceivedMessage) -> dict[str, Any]:
    """Attempt and origin of a message that failed and came back."""
    if message.origin is None:
        return {"attempt": message.attempt} if message.attempt > 1 else {}
    return {"attempt": message.attempt, "origin": message.origin._asdict()}


# -- text ------------------------------------------------------------------------------------------


def console() -> Console:
    """Writes to stdout, in colours if that is a terminal and NO_COLOR is not set."""
    return Console(highlight=False, force_terminal=_terminal.get())


# True while a frame for a terminal is being captured; None: as stdout is.
_terminal: ContextVar[bool | None] = ContextVar("terminal", default=None)


def captured(print_all: Callable[[], object]) -> str:
    """The text that `print_all` prints, errors too, with the colours that a terminal would get."""
    file = io.StringIO()
    token = _terminal.set(sys.stdout.isatty() or None)
    try:
        with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            print_all()
    finally:
        _terminal.reset(token)
    return file.getvalue()


def print_fields(out: Console, fields: Iterable[tuple[str, str]]) -> None:
    """Names and values, one a line."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in fields:
        grid.add_row(name, Text(value))
    out.print(grid)
    out.print()


def note(text: str) -> None:
    """For people, beside what a program reads."""
    Console(stderr=True, highlight=False).print(Text(text, "dim"), soft_wrap=True)


def printable(text: str) -> str:
    """Without characters that would steer a terminal."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def printable_lines(text: str) -> str:
    """The same for text of several lines, which stay lines; a tab becomes spaces."""
    return "\n".join(printable(line.replace("\t", "    ")) for line in text.split("\n"))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()


def body_text(body: bytes) -> str:
    """On one line; what is no text as \\xNN."""
    return printable(body.decode(errors="backslashreplace"))


def preview(body: bytes, width: int) -> str:
    """The start of it, in so many characters."""
    # A character has up to four bytes: that is at least one too many when there is more.
    text = body_text(body[: width * 4 + 4])
    return text if len(text) <= width else f"{text[: width - 3]}..."


def pairs(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(properties.items()))


@contextmanager
def meter(what: str, noun: str, total: int | None = None) -> Iterator[Callable[[int, int], None]]:
    """A line on stderr for what takes longer than a moment, if a person looks there.

    The result takes how many there were, and how much of `total` is done; call it as often as it
    suits. With a total there is a bar.
    """
    if not sys.stderr.isatty():
        yield lambda _count, _done: None
        return
    # Here, because few commands take so long.
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn  # noqa: PLC0415

    sign = SpinnerColumn() if total is None else BarColumn()
    columns = (TextColumn(what), sign, TextColumn("{task.description}"))
    bar = Progress(*columns, console=Console(stderr=True, highlight=False), transient=True)
    task = bar.add_task("", total=total)
    began_s = time.monotonic()
    next_s = began_s + _METER_AFTER_S

    def show(count: int, done: int) -> None:
        nonlocal next_s
        now_s = time.monotonic()
        if now_s < next_s:
            return
        next_s = now_s + _METER_EVERY_S
        rate = count / (now_s - began_s)
        bar.update(task, completed=done, description=f"{count:,} {noun}s, {rate:,.0f}/s")
        bar.start()

    try:
        yield show
    finally:
        bar.stop()
