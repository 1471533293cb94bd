"""`mq audit`: who changed what, and who was refused, from the audit trail of all broker sets.

A record is a message of %SYS%AUDIT whose body is JSON. Each broker set keeps a trail of its own: a
change of users or policies is in all of them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mq.cli import output
from mq.cli.consume import ConsumeOptions, OutageNotes, browse
from mq.cli.options import Brokers, Duration, with_brokers
from mq.cli.tables import Column, counted, print_table, stored_at
from mq.errors import TopicNotFound

if TYPE_CHECKING:
    from mq.client import ReceivedMessage

AUDIT_TOPIC = "%SYS%AUDIT"
_PAGE_ROWS = 500
_TEXT_MAX = 300
_WIDE = 120
# Of a record: what has a column of its own, or says nothing to people.
_SHOWN = {"at_ms", "user", "credential", "address", "what", "subject", "before", "after", "outcome"}


@click.command(short_help="Show who changed what, and who was refused.")
@click.option(
    "--since",
    "since_s",
    metavar="DURATION",
    type=Duration(),
    default="1h",
    show_default=True,
    help="From so long ago on, such as 10m, 1h or 7d.",
)
@click.option("--user", metavar="USER", help="Only what this user did, or tried.")
@click.option("--about", metavar="SUBJECT", help="Only about this, such as user:alice.")
@click.option("--what", metavar="KIND", help="Only of this kind, such as put_policy or denied.")
@click.option("--denied", is_flag=True, help="Only what was refused.")
@click.option("--follow", "-f", is_flag=True, help="Do not end: wait for more.")
@with_brokers("", "--jsonl")
def audit(
    brokers: Brokers,
    *,
    since_s: float,
    user: str | None,
    about: str | None,
    what: str | None,
    denied: bool,
    follow: bool,
) -> None:
    """Show who changed what, and who was refused, the oldest first.

    Refusals are sampled: each one once a minute. With --json a record a line,
    with all that it has.
    """
    place = max(0, round((time.time() - since_s) * 1000))
    idle_s = float("inf") if follow else None
    options = ConsumeOptions((AUDIT_TOPIC,), place, None, None, idle_s)
    wanted = Wanted(user, about, _kind(what, is_denied=denied))
    trail = Trail(wanted, as_json=brokers.as_json, is_live=follow)
    brokers.check()
    try:
        with OutageNotes():
            browse(brokers, options, trail)
    except TopicNotFound:
        if not brokers.as_json:
            click.echo("Nothing was recorded yet: no changes of users or policies, no refusals.")
        return
    trail.finish()


class Wanted(NamedTuple):
    """Which records are shown; None: of all."""

    user: str | None = None
    about: str | None = None
    what: str | None = None

    def has(self, record: Mapping[str, Any]) -> bool:
        return (
            (self.user is None or record.get("user") == self.user)
            and (self.about is None or record.get("subject") == self.about)
            and (self.what is None or record.get("what") == self.what)
        )


def _kind(what: str | None, *, is_denied: bool) -> str | None:
    """As records have it: tables show `put policy` for put_policy."""
    kind = what and what.strip().replace(" ", "_")
    if is_denied and kind not in (None, "denied"):
        raise click.UsageError("--denied is --what denied: give one of them")
    return "denied" if is_denied else kind


class Trail:
    """Prints records as they come, in tables of many or, when it follows, line by line."""

    def __init__(self, wanted: Wanted, *, as_json: bool, is_live: bool) -> None:
        self._wanted = wanted
        self._as_json = as_json
        self._is_live = is_live
        self._page: list[tuple[str, dict[str, Any]]] = []
        # Messages, of which those that are not wanted are left out.
        self.written = 0
        self._shown = 0

    def write(self, messages: Sequence[ReceivedMessage]) -> None:
        self.written += len(messages)
        for message in messages:
            record = parsed(message.body)
            if record is None or not self._wanted.has(record):
                continue
            self._shown += 1
            broker_set = message.queue.broker_set
            if self._as_json:
                sys.stdout.write(output.json_line({"broker_set": broker_set, **record}))
            elif self._is_live:
                click.echo(line_of(record))
            else:
                self._page.append((broker_set, record))
        sys.stdout.flush()
        if len(self._page) >= _PAGE_ROWS:
            self._print_page()

    def finish(self) -> None:
        if self._as_json or self._is_live:
            return
        if self._page:
            self._print_page()
        click.echo(counted(self._shown, "record"))

    def _print_page(self) -> None:
        page, self._page = self._page, []
        out = output.console()
        print_table(out, columns(page, out.width))


def parsed(body: bytes) -> dict[str, Any] | None:
    """None: it is no record."""
    try:
        record = json.loads(body)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def line_of(record: Mapping[str, Any]) -> str:
    head = f"{_when(record)}  {_who(record)}  {_what(record)}"
    return output.printable(
        "  ".join(one for one in (head, _subject(record), change(record)) if one)
    )


def change(record: Mapping[str, Any]) -> str:
    """The differences between before and after, or the reason of a refusal."""
    before, after = record.get("before"), record.get("after")
    parts = []
    if record.get("outcome") not in ("done", None) and record.get("what") != record["outcome"]:
        parts.append(str(record["outcome"]))
    if isinstance(before, dict) or isinstance(after, dict):
        parts += _changes(before or {}, after or {}, record)
    elif before is not None or after is not None:
        parts.append(f"{_value(before)} -> {_value(after)}")
    parts += [
        f"{key} {_value(value)}" for key, value in record.items() if key not in _SHOWN and value
    ]
    return output.printable(", ".join(parts))[:_TEXT_MAX]


def _changes(
    before: Mapping[str, Any], after: Mapping[str, Any], record: Mapping[str, Any]
) -> list[str]:
    subject = str(record.get("subject", ""))
    # What the subject says already, and times of creation, which are the record's.
    said = (subject, subject.partition(":")[2])
    names = [key for key in {**before, **after} if key != "created_at_ms"]
    if not before or not after:
        found = after or before
        return [
            f"{key.removesuffix('_ms')} {_value(found[key], key)}"
            for key in names
            if found[key] not in said
        ]
    return [
        f"{key} {_value(before.get(key), key)} -> {_value(after.get(key), key)}"
        for key in names
        if before.get(key) != after.get(key)
    ]


def _value(value: Any, key: str = "") -> str:
    if value is None or value == []:
        return "none"
    if key.endswith("_at_ms") and isinstance(value, int):
        return stored_at(value).partition(".")[0]
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        # Of the keys of a user that is gone, the ids.
        names = [one.get("id", one) if isinstance(one, dict) else one for one in value]
        return " ".join(map(str, names))
    if isinstance(value, dict):
        return " ".join(f"{name} {_value(one, name)}" for name, one in value.items())
    return str(value)


def _when(record: Mapping[str, Any]) -> str:
    at_ms = record.get("at_ms")
    return stored_at(at_ms if isinstance(at_ms, int) else 0).partition(".")[0]


def _who(record: Mapping[str, Any]) -> str:
    return str(record.get("user") or "nobody")


def _what(record: Mapping[str, Any]) -> str:
    return str(record.get("what", "")).replace("_", " ")


def _subject(record: Mapping[str, Any]) -> str:
    return str(record.get("subject", ""))


def columns(page: Sequence[tuple[str, Mapping[str, Any]]], width: int) -> list[Column]:
    """On a narrow terminal two things share a column, so that what changed has room."""
    records = [record for _, record in page]
    sets = [broker_set for broker_set, _ in page]
    has_sets = len(set(sets)) > 1
    moments = [_when(each) for each in records]
    users = [output.printable(_who(each)) for each in records]
    addresses = [output.printable(str(each.get("address") or "-")) for each in records]
    kinds = [output.printable(_what(each)) for each in records]
    subjects = [output.printable(_subject(each)) or "-" for each in records]
    changes = Column("change", [change(each) or "-" for each in records], "left", is_flexible=True)
    in_set = [Column("set", sets, "left", rank=1)] if has_sets else []
    if width < _WIDE:
        return [
            Column("when (UTC)", [one.replace(" ", "\n") for one in moments], "left"),
            *in_set,
            Column("user, from", _stacked(users, addresses), "left", is_flexible=True),
            Column("what", _stacked(kinds, subjects), "left", is_flexible=True),
            changes,
        ]
    return [
        Column("when (UTC)", moments, "left"),
        *in_set,
        Column("user", users, "left", is_flexible=True),
        Column("from", addresses, "left"),
        Column("what", kinds, "left"),
        Column("about", subjects, "left", is_flexible=True),
        changes,
    ]


def _stacked(above: Sequence[str], below: Sequence[str]) -> list[str]:
    return [f"{one}\n{other}" for one, other in zip(above, below, strict=True)]
