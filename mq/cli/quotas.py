"""`mq quota`: how much users and namespaces may do and keep. Limits hold in each broker set by
itself.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from mq.cli import output
from mq.cli.access import in_sets, read_access
from mq.cli.options import Brokers, with_brokers, with_count, with_set
from mq.cli.tables import Column, counted, cut_note, print_pages, size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mq.wire.v1.security_pb2 import Quota

_UNITS = {
    "": 1,
    "b": 1,
    "k": 1_000,
    "m": 1_000_000,
    "kb": 1_000,
    "mb": 1_000_000,
    "gb": 1_000_000_000,
    "tb": 1_000_000_000_000,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_AMOUNT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([A-Za-z]*)(/s)?")
_UNLIMITED = "unlimited"
_AMOUNT_MAX = (1 << 63) - 1


class Amount(click.ParamType[int]):
    """A number such as 10MiB/s, 5GiB, 1000/s or 50; `unlimited` is 0."""

    name = "amount"

    def __init__(self, *, is_size: bool, is_rate: bool) -> None:
        self._is_size = is_size
        self._is_rate = is_rate

    @property
    def example(self) -> str:
        return ("10MiB" if self._is_size else "1000") + "/s" * self._is_rate

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if value == _UNLIMITED:
            return 0
        found = _AMOUNT.fullmatch(value)
        unit = _UNITS.get(found[2].lower()) if found else None
        if found is None or unit is None or (found[3] and not self._is_rate):
            self.fail(f"{value!r} is not like {self.example} or {_UNLIMITED}", param, ctx)
        if not self._is_size and found[2].lower() not in ("", "k", "m"):
            self.fail(f"{value!r} is a size: a number like {self.example} is wanted", param, ctx)
        amount = Fraction(found[1]) * unit
        if amount.denominator != 1 or not 0 < amount <= _AMOUNT_MAX:
            self.fail(f"{value!r} is no whole number above 0; {_UNLIMITED} lifts it", param, ctx)
        return int(amount)


class Limit(NamedTuple):
    """A field of a quota: its option, and how it is called."""

    field: str
    flag: str
    # After the amount.
    noun: str
    help: str
    is_size: bool = False
    is_rate: bool = False

    def text(self, amount: int) -> str:
        number = size(amount) if self.is_size else f"{amount:,}"
        if self.is_rate:
            return f"{number}/s {self.noun}" if self.is_size else f"{number} {self.noun}/s"
        return f"{number} {self.noun}"


LIMITS = (
    Limit(
        "publish_bytes_per_s",
        "--publish-bytes",
        "published",
        "Bytes sent, such as 10MiB/s.",
        is_size=True,
        is_rate=True,
    ),
    Limit(
        "publish_messages_per_s",
        "--publish-messages",
        "messages published",
        "Messages sent, such as 1000/s.",
        is_rate=True,
    ),
    Limit(
        "delivered_bytes_per_s",
        "--delivered-bytes",
        "delivered",
        "Bytes received, such as 10MiB/s.",
        is_size=True,
        is_rate=True,
    ),
    Limit(
        "stored_bytes",
        "--stored-bytes",
        "stored",
        "Bytes of messages that are kept, such as 5GiB.",
        is_size=True,
    ),
    Limit("streams", "--streams", "streams", "Streams at once: producers and consumers."),
    Limit("topics", "--topics", "topics", "Topics."),
    Limit("queues", "--queues", "queues", "Queues of all topics."),
    Limit("groups", "--groups", "groups", "Groups of consumers."),
    Limit(
        "delayed_messages",
        "--delayed-messages",
        "delayed messages",
        "Messages that wait for their time.",
    ),
    Limit(
        "open_transactions",
        "--open-transactions",
        "open transactions",
        "Transactions that are not ended.",
    ),
    Limit(
        "catalog_changes_per_s",
        "--catalog-changes",
        "changes of topics",
        "Topics created, altered or deleted, such as 5/s.",
        is_rate=True,
    ),
)


@click.group(short_help="List, set, remove quotas of users and namespaces.")
def quota() -> None:
    """Quotas: how much a user or namespace may send, receive and keep.

    SUBJECT is user:NAME, namespace:NAME, or default: for each user that has none
    of its own. Nothing is limited unless it is set. Limits hold in each broker
    set by itself.
    """


def _with_limits(command: Callable[..., Any]) -> Callable[..., Any]:
    for limit in reversed(LIMITS):
        kind = Amount(is_size=limit.is_size, is_rate=limit.is_rate)
        metavar = ("SIZE" if limit.is_size else "N") + "/s" * limit.is_rate
        command = click.option(
            limit.flag, limit.field, metavar=metavar, type=kind, help=limit.help
        )(command)
    return command


@quota.command("set")
@click.argument("subject", metavar="SUBJECT")
@_with_limits
@with_brokers()
def set_quota(brokers: Brokers, subject: str, **amounts: int | None) -> None:
    """Set limits; those that are not given stay as they are.

    unlimited as a value lifts a limit.
    """
    check_subject(subject)
    given = {field: amount for field, amount in amounts.items() if amount is not None}
    if not given:
        raise click.UsageError("say what to limit, such as --publish-bytes 10MiB/s")
    with brokers.admin() as admin:
        where = "" if brokers.as_json else in_sets(admin)
        changed = admin.alter_quota(subject, given)
    if brokers.as_json:
        output.write_json(quota_document(changed))
    else:
        click.echo(f"{subject}{where}: {limits_text(changed)}.")


@quota.command("list")
@with_count
@with_set("As this broker set has them.")
@with_brokers()
def list_quotas(brokers: Brokers, broker_set: str, count: int | None) -> None:
    """List all quotas."""
    with brokers.admin() as admin:
        view = read_access(brokers, admin, broker_set)
    found = view.state.quotas
    if brokers.as_json:
        output.write_json([quota_document(one) for one in found[:count]])
    elif not found:
        click.echo("No quotas: nothing is limited. mq quota set --help")
    else:
        print_pages(output.console(), found[:count], _columns)
        click.echo(counted(len(found), "quota") + cut_note(len(found), count))


@quota.command()
@click.argument("subject", metavar="SUBJECT")
@with_brokers()
def remove(brokers: Brokers, subject: str) -> None:
    """Remove all limits of a user or namespace, or those by default."""
    check_subject(subject)
    with brokers.admin() as admin:
        where = "" if brokers.as_json else in_sets(admin)
        admin.remove_quota(subject)
    if brokers.as_json:
        output.write_json({"subject": subject, "is_removed": True})
    else:
        click.echo(f"Removed the quota of {subject}{where}.")


def check_subject(subject: str) -> None:
    kind, _, name = subject.partition(":")
    if subject != "default" and (kind not in ("user", "namespace") or not name):
        raise click.BadParameter(
            f"{subject!r} is not like user:alice, namespace:shop or default", param_hint="SUBJECT"
        )


# -- what is printed -------------------------------------------------------------------------------


def limits_text(found: Quota) -> str:
    """Those that are set."""
    amounts = [(limit, getattr(found, limit.field)) for limit in LIMITS]
    return ", ".join(limit.text(amount) for limit, amount in amounts if amount) or "not limited"


def quota_document(found: Quota) -> dict[str, Any]:
    return output.plain(found)


def _columns(quotas: Sequence[Quota]) -> list[Column]:
    return [
        Column("of", [each.subject for each in quotas], "left", is_flexible=True),
        Column("at most", [limits_text(each) for each in quotas], "left", is_flexible=True),
    ]
