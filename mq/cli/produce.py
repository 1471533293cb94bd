"""`mq produce`: sends what stands on the command line, in a file, or comes in on stdin.

Sending does not wait for answers; they are collected on a thread of their own, in the order of the
messages, so that a slow input still shows each result at once. The first message that is refused
ends the reading, and so does Ctrl-C; what was sent before is still answered and reported.
"""

from __future__ import annotations

import base64
import binascii
import json
import queue
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

import click

from mq.cli import output
from mq.cli.completion import complete_topic
from mq.cli.options import Brokers, Duration, Moment, with_brokers, with_set
from mq.cli.tables import Column, counted, print_table, size, state, stored_at
from mq.errors import IllegalRequest, MqError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from mq.client import Message, Producer, SendResult

# More than that are summed up.
_ROWS_MAX = 20
_UNANSWERED_MAX = 20_000
_JSON_FIELDS = frozenset({"body", "body_base64", "tag", "keys", "properties", "ordering_key"})
# What `mq consume --jsonl` prints besides: where the message stood, which is not its own.
_IGNORED_FIELDS = frozenset(
    {
        "topic",
        "queue_id",
        "queue_offset",
        "message_id",
        "stored_at_ms",
        "born_at_ms",
        "attempt",
        "origin",
    }
)


class Stamp(NamedTuple):
    """The fields that options set on every message that does not have them itself."""

    tag: str
    keys: tuple[str, ...]
    properties: dict[str, str]
    ordering_key: str
    # At most one of deliver_at_ms, delay_s and delay_level.
    delay: dict[str, Any] = {}  # noqa: RUF012 - never changed
    priority: int = 0


class Line(NamedTuple):
    """One message, and where it came from, for errors."""

    place: str
    message: Message
    # How far the input is read by then.
    read_bytes: int


# -- input -----------------------------------------------------------------------------------------


def from_arguments(bodies: Sequence[str], stamp: Stamp) -> Iterator[Line]:
    for number, body in enumerate(bodies, start=1):
        yield Line(f"message {number}", _message(body.encode(errors="surrogateescape"), stamp), 0)


def from_lines(file: BinaryIO, stamp: Stamp, *, is_json: bool) -> Iterator[Line]:
    """One message a line, without the line's end. An empty line is a message, except in JSON."""
    read_bytes = 0
    for number, line in enumerate(file, start=1):
        read_bytes += len(line)
        place = f"line {number}"
        if not is_json:
            body = line.removesuffix(b"\n").removesuffix(b"\r")
            yield Line(place, _message(body, stamp), read_bytes)
        elif line.strip():
            yield Line(place, _from_json(line, place, stamp), read_bytes)


def from_whole(file: BinaryIO, stamp: Stamp) -> Iterator[Line]:
    body = file.read()
    yield Line("the input", _message(body, stamp), len(body))


def _message(body: bytes, stamp: Stamp) -> Message:
    from mq.client import Message  # noqa: PLC0415

    return Message(
        body,
        tag=stamp.tag,
        keys=stamp.keys,
        properties=stamp.properties,
        ordering_key=stamp.ordering_key,
        priority=stamp.priority,
        **stamp.delay,
    )


def _from_json(line: bytes, place: str, stamp: Stamp) -> Message:
    """Raises IllegalRequest, with the place."""
    try:
        found = json.loads(line)
    except ValueError as error:
        raise IllegalRequest(f"{place} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise IllegalRequest(f'{place} is no JSON object such as {{"body": "hello"}}')
    unknown = found.keys() - _JSON_FIELDS - _IGNORED_FIELDS
    if unknown:
        raise IllegalRequest(
            f"{place} has unknown fields: {', '.join(sorted(unknown))}; "
            f"known are {', '.join(sorted(_JSON_FIELDS))}"
        )
    body = _json_body(found, place)
    keys = found.get("keys", ())
    properties = found.get("properties", {})
    texts = [found.get("tag", ""), found.get("ordering_key", "")]
    if not isinstance(keys, Sequence) or not isinstance(properties, dict):
        raise IllegalRequest(f"{place}: keys is a list, properties an object")
    if isinstance(keys, str) or not all(
        isinstance(each, str) for each in (*texts, *keys, *properties.values())
    ):
        raise IllegalRequest(f"{place}: tag, keys, properties and ordering_key are made of strings")
    return _message(
        body,
        Stamp(
            texts[0] or stamp.tag,
            tuple(keys) or stamp.keys,
            {**stamp.properties, **properties},
            texts[1] or stamp.ordering_key,
            stamp.delay,
            stamp.priority,
        ),
    )


def _json_body(found: dict[str, Any], place: str) -> bytes:
    if ("body" in found) == ("body_base64" in found):
        raise IllegalRequest(f"{place}: give one of body and body_base64")
    text = found.get("body", found.get("body_base64"))
    if not isinstance(text, str):
        raise IllegalRequest(f"{place}: the body is no string")
    if "body" in found:
        return text.encode(errors="surrogatepass")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise IllegalRequest(f"{place}: body_base64 is no base64: {error}") from error


# -- sending ---------------------------------------------------------------------------------------


class Collector:
    """Takes the answers in the order of the messages, on a thread of its own."""

    def __init__(self, *, as_json: bool) -> None:
        self.stored = 0
        self.stored_bytes = 0
        self.first: list[SendResult] = []
        # What ends the command.
        self.failure: Exception | None = None
        # By Ctrl-C, before the end of the input.
        self.is_interrupted = False
        self._as_json = as_json
        self._waiting: queue.Queue[tuple[Line, Future[SendResult]] | None] = queue.Queue(
            _UNANSWERED_MAX
        )
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()

    def add(self, line: Line, future: Future[SendResult]) -> None:
        self._waiting.put((line, future))

    def fail(self, line: Line, error: MqError) -> None:
        """The first one ends the command."""
        if self.failure is None:
            error.args = (f"{line.place}: {error}",)
            self.failure = error

    def finish(self) -> None:
        """Returns when all that was added is answered."""
        self._waiting.put(None)
        self._thread.join()

    def _collect(self) -> None:
        while (found := self._waiting.get()) is not None:
            try:
                self._take(*found)
                if self._as_json and self._waiting.empty():
                    sys.stdout.flush()
            except OSError as error:
                # stdout is closed. Go on taking: `add` must not block for ever.
                self.failure = error

    def _take(self, line: Line, future: Future[SendResult]) -> None:
        try:
            result = future.result()
        except MqError as error:
            if self._as_json:
                failed = {"status": error.code.value, "text": str(error), "input": line.place}
                sys.stdout.write(output.json_line(failed))
            self.fail(line, error)
            return
        self.stored += 1
        self.stored_bytes += len(line.message.body)
        if self._as_json:
            sys.stdout.write(output.json_line(result._asdict()))
        elif len(self.first) <= _ROWS_MAX:
            self.first.append(result)


def send_all(
    producer: Producer,
    topic: str,
    place: dict[str, Any],
    lines: Iterator[Line],
    input_bytes: int | None,
    *,
    as_json: bool,
) -> Collector:
    """To the queue that `place` names, as the producer wants it. Returns when everything is
    answered; reads no further behind the first failure.
    """
    collector = Collector(as_json=as_json)
    try:
        with output.meter("sending", "message", input_bytes) as show:
            for count, line in enumerate(lines, start=1):
                try:
                    future = producer.send_async(topic, line.message, **place)
                except MqError as error:
                    collector.fail(line, error)
                else:
                    collector.add(line, future)
                if collector.failure is not None:
                    break
                show(count, line.read_bytes)
    except IllegalRequest as error:
        # A line that cannot be read.
        collector.failure = collector.failure or error
    except KeyboardInterrupt:
        collector.is_interrupted = True
    finally:
        # A second Ctrl-C does not wait for the answers.
        collector.finish()
    return collector


# -- the command -----------------------------------------------------------------------------------


@click.command(short_help="Send messages to a topic.")
@click.argument("topic", metavar="TOPIC", shell_complete=complete_topic)
@click.argument("bodies", metavar="[BODY]...", nargs=-1)
@click.option(
    "--file",
    "path",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="Read messages from there; - is stdin.",
)
@click.option("--jsonl", is_flag=True, help="Each line is a JSON object, see above.")
@click.option("--whole", is_flag=True, help="The whole input is one message.")
@click.option("--tag", metavar="TAG", default="", help="A word that consumers filter by.")
@click.option("--key", "keys", metavar="KEY", multiple=True, help="To look it up by; repeatable.")
@click.option(
    "--property", "properties", metavar="NAME=VALUE", multiple=True, help="For SQL; repeatable."
)
@click.option("--ordering-key", metavar="KEY", default="", help="One key, one queue, in order.")
@click.option(
    "--priority",
    metavar="N",
    type=click.IntRange(0, 9),
    default=0,
    help="Of a topic with priorities; 0 is the lowest.",
)
@click.option(
    "--delay", "delay_s", metavar="30s", type=Duration(), help="Deliver later: ms, s, m, h or d."
)
@click.option(
    "--delay-level", metavar="N", type=click.IntRange(1, 18), help="Deliver later: 1s to 2h."
)
@click.option(
    "--deliver-at",
    "deliver_at_ms",
    metavar="TIME",
    type=Moment(),
    help="Deliver then: 2026-07-12T09:53:20 (UTC), or milliseconds.",
)
@click.option(
    "--queue",
    "queue_id",
    metavar="N",
    type=click.IntRange(0, 65_535),
    help="To this queue.  [default: the producer chooses]",
)
@with_set("With --queue: of this broker set, when several have the topic.")
@click.option(
    "--ack",
    type=click.Choice(["quorum", "leader", "none"]),
    default="quorum",
    show_default=True,
    help="When a message counts as sent.",
)
@with_brokers("Seconds in which a message has to be stored.", taken=["--key"])
def produce(  # noqa: PLR0913 - one a flag
    brokers: Brokers,
    *,
    topic: str,
    bodies: Sequence[str],
    path: Path | None,
    jsonl: bool,
    whole: bool,
    tag: str,
    keys: tuple[str, ...],
    properties: Sequence[str],
    ordering_key: str,
    priority: int,
    queue_id: int | None,
    broker_set: str,
    ack: Any,
    **delay: Any,
) -> None:
    """Send messages: each BODY, or each line of a file or of stdin.

    \b
    With --jsonl a line has a body and may have more; the options below hold
    for what it leaves out. `mq consume --jsonl` prints such lines.
      {"body": "paid", "tag": "a", "keys": ["k"], "properties": {"p": "v"}}
      {"body_base64": "AAEC", "ordering_key": "customer-3"}

    The results are printed as a table, beyond 20 as a summary, with --json as a
    line each. Ends with 1 at the first message that is not stored.
    """
    _check_usage(bodies, path, jsonl=jsonl, whole=whole)
    named = dict(map(_property, properties))
    stamp = Stamp(tag, keys, named, ordering_key, _delay(delay), priority)
    place = _place(queue_id, broker_set)
    brokers.check()
    from mq.client import Producer  # noqa: PLC0415

    began_s = time.monotonic()
    with Producer(
        brokers.servers, ack=ack, timeout_s=brokers.timeout_s, **brokers.security
    ) as producer:
        if bodies:
            lines = from_arguments(bodies, stamp)
            done = send_all(producer, topic, place, lines, None, as_json=brokers.as_json)
        else:
            with click.open_file(str(path or "-"), "rb") as opened:
                file = cast("BinaryIO", opened)
                if file.isatty():
                    output.note("Type messages, one a line; Ctrl-D ends.")
                lines = from_whole(file, stamp) if whole else from_lines(file, stamp, is_json=jsonl)
                total = path.stat().st_size if path and path.is_file() else None
                done = send_all(producer, topic, place, lines, total, as_json=brokers.as_json)
    if not brokers.as_json:
        _print_results(topic, done, time.monotonic() - began_s)
    if done.failure is not None:
        raise done.failure
    if done.is_interrupted:
        raise KeyboardInterrupt


def _check_usage(bodies: Sequence[str], path: Path | None, *, jsonl: bool, whole: bool) -> None:
    if bodies and (path or jsonl or whole):
        raise click.UsageError("messages come from the arguments or from a file, not from both")
    if jsonl and whole:
        raise click.UsageError("--jsonl and --whole are two ways to read the input: give one")


def _place(queue_id: int | None, broker_set: str) -> dict[str, Any]:
    if broker_set and queue_id is None:
        raise click.UsageError("--set says where a queue is: give --queue too")
    place: dict[str, Any] = {"queue_id": queue_id}
    return place | ({"broker_set": broker_set} if broker_set else {})


def _delay(asked: dict[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in asked.items() if value is not None}
    if len(found) > 1:
        raise click.UsageError(
            "--delay, --delay-level and --deliver-at are ways to say the same: give one"
        )
    return found


def _property(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise click.UsageError(f"--property {text!r} is not like NAME=VALUE")
    return name, value


# -- what is printed -------------------------------------------------------------------------------


def _print_results(topic: str, done: Collector, took_s: float) -> None:
    out = output.console()
    if 0 < done.stored <= _ROWS_MAX:
        print_table(out, _result_columns(done.first))
    elif done.stored or done.failure is None:
        rate = done.stored / took_s
        click.echo(
            f"Sent {counted(done.stored, 'message')} to {topic}, {size(done.stored_bytes)}, "
            f"in {took_s:.2f} s: {rate:,.0f} messages/s, {size(int(done.stored_bytes / took_s))}/s",
        )


def _result_columns(results: Sequence[SendResult]) -> list[Column]:
    def known(number: int) -> str:
        return str(number) if number >= 0 else "-"

    states = [each.status + (" (again)" if each.is_duplicate else "") for each in results]
    moments = [stored_at(each.stored_at_ms) if each.stored_at_ms else "-" for each in results]
    return [
        Column("id", [each.message_id or "-" for each in results], "left"),
        Column("topic", [each.topic for each in results], "left", is_flexible=True),
        *_set_column(results),
        Column("queue", [str(each.queue_id) for each in results]),
        Column("queue offset", [known(each.queue_offset) for each in results]),
        Column("stored (UTC)", moments, "left", rank=1),
        *_delivery_column(results),
        Column("status", states, "left", style=lambda cell: state(cell.partition(" ")[0])),
    ]


def _set_column(results: Sequence[SendResult]) -> list[Column]:
    """An id names the set; where there is none, it has to be said."""
    sets = [each.broker_set for each in results]
    if len(set(sets)) == 1 or all(each.message_id for each in results):
        return []
    return [Column("set", sets, "left", is_flexible=True)]


def _delivery_column(results: Sequence[SendResult]) -> list[Column]:
    """The delivery time, where that is later: in milliseconds, as `mq message recall` wants it."""
    if not any(each.deliver_at_ms for each in results):
        return []
    cells = [str(each.deliver_at_ms) if each.deliver_at_ms else "-" for each in results]
    return [Column("deliver at (ms)", cells)]
