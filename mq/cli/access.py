"""Shared by the commands about users, keys, policies, quotas and namespaces: reading what the
broker sets have, with a word on those that differ; what a change is called; passwords.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mq.cli.options import Brokers
from mq.cli.tables import stored_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mq.access.views import AccessView
    from mq.client import Admin
    from mq.wire.v1.security_pb2 import AccessChange, AccessState

# Differences of one set that a warning tells one by one.
_TOLD_MAX = 3
_PASSWORD_BYTES_MAX = 4_096


def read_access(brokers: Brokers, admin: Admin, broker_set: str = "") -> AccessView:
    """As this set has it, or the one with the most changes. Sets that differ are told on stderr."""
    view = admin.describe_access(broker_set)
    brokers.note_missing(view)
    for name, changes in view.differences.items():
        told = summary(changes, view.states[name])
        click.echo(
            f"warning: {name} differs from {view.broker_set}, which is shown: {told}. "
            "mq user sync brings it in line.",
            err=True,
        )
    return view


def summary(changes: Sequence[AccessChange], there: AccessState) -> str:
    """A few of the differences in words."""
    if not changes:
        return "a password or key has another secret there"
    told = ", ".join(in_words(one, there) for one in changes[:_TOLD_MAX])
    more = len(changes) - _TOLD_MAX
    return told if more <= 0 else f"{told} and {more:,} more"


def in_words(change: AccessChange, there: AccessState) -> str:
    """The differences of a set, each as what is wrong there: "lacks user alice"."""
    verb, _, kind = str(change.WhichOneof("kind")).partition("_")
    value = getattr(change, f"{verb}_{kind}")
    if kind == "policy":
        return f"{'lacks' if verb == 'put' else 'also has'} {value.subject} {value.line!r}"
    field, key = _RECORDS[kind]
    name = value if isinstance(value, str) else getattr(value, key)
    had = [one for one in getattr(there, field) if getattr(one, key) == name]
    lack = "also has" if verb == "drop" else "has another" if had else "lacks"
    if kind != "credential":
        return f"{lack} {kind} {name}"
    if name.startswith("password-"):
        return f"{lack} password of {name.removeprefix('password-')}"
    owner = had[0].user if verb == "drop" and had else getattr(value, "user", "")
    return f"{lack} key {name} of {owner}"


# Of each kind of change: the field of a state, and that which names a record.
_RECORDS = {
    "user": ("users", "name"),
    "credential": ("credentials", "id"),
    "quota": ("quotas", "subject"),
    "namespace": ("namespaces", "name"),
}


def day(at_ms: int) -> str:
    """To the second, in UTC."""
    return stored_at(at_ms).partition(".")[0] if at_ms else "-"


def in_sets(admin: Admin) -> str:
    """Where a change will be made, if there are several sets: each has a log of its own. To be
    asked before: after a change, the caller itself may be known no more.
    """
    names = [one.name for one in admin.route().broker_sets]
    return f" in {', '.join(names)}" if len(names) > 1 else ""


with_password = click.option(
    "--password", "has_password", is_flag=True, help="Ask for a password, without echo."
)
with_password_file = click.option(
    "--password-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="Read the password from the first line of FILE; - is stdin.",
)


def new_password(file: Path | None, *, is_asked: bool) -> str | None:
    """None: none was given."""
    if file is not None:
        return password_in(file)
    if not is_asked:
        return None
    text: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    return text


def password_in(file: Path) -> str:
    """The first line, without what ends it."""
    if str(file) == "-":
        data = sys.stdin.buffer.readline(_PASSWORD_BYTES_MAX)
    else:
        with file.open("rb") as opened:
            data = opened.readline(_PASSWORD_BYTES_MAX)
    try:
        text = data.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise click.BadParameter("it is no text", param_hint="--password-file") from None
    if not text:
        raise click.BadParameter("its first line is empty", param_hint="--password-file")
    return text


def several(values: Sequence[str]) -> list[str]:
    """Of an option that may be repeated, or have several values between commas."""
    return [one for one in itertools.chain.from_iterable(each.split(",") for each in values) if one]
