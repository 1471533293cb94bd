"""The output of `mq consume` and `mq receive`: its destination and its form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, BinaryIO, Protocol

from mq.cli import message_format, output
from mq.cli.tables import stored_at

if TYPE_CHECKING:
    from mq.client import ReceivedMessage


class Destination(Protocol):
    """Where messages go that are read without a group."""

    # The number of messages so far.
    written: int

    def write(self, messages: Sequence[ReceivedMessage]) -> None: ...


class Sink:
    def __init__(
        self, file: BinaryIO, *, as_json: bool, with_meta: bool, template: str | None = None
    ) -> None:
        """At most one of the three is given; without any the bodies are written, a line each."""
        self._file = file
        self._form: message_format.Form = (
            _json_form if as_json else _meta_form if with_meta else _body_form
        )
        if template is not None:
            self._form = message_format.parse(template, is_safe=file.isatty())
        if self._form is _body_form and file.isatty():
            self._form = _safe_form
        self.written = 0

    def write(self, messages: Sequence[ReceivedMessage]) -> None:
        """The messages are flushed to the file when it returns."""
        self._file.write(b"".join(map(self._form, messages)))
        self._file.flush()
        self.written += len(messages)


def _body_form(message: ReceivedMessage) -> bytes:
    return message.body + b"\n"


def _safe_form(message: ReceivedMessage) -> bytes:
    """For a terminal, line by line."""
    text = message.body.decode(errors="backslashreplace")
    return output.printable_lines(text).encode() + b"\n"


def _json_form(message: ReceivedMessage) -> bytes:
    return output.json_line(output.message_document(message)).encode(errors="surrogatepass")


def _meta_form(message: ReceivedMessage) -> bytes:
    parts = [
        stored_at(message.stored_at_ms),
        f"{message.queue.topic}/{message.queue_id}@{message.queue_offset}",
        message.message_id,
    ]
    if message.tag:
        parts.append(f"tag={message.tag}")
    if message.keys:
        parts.append(f"keys={','.join(message.keys)}")
    if message.ordering_key:
        parts.append(f"ordering_key={message.ordering_key}")
    if message.properties:
        parts.append(output.pairs(message.properties))
    head = output.printable("  ".join(parts))
    return f"{head}  {output.body_text(message.body)}\n".encode()
