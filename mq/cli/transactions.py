"""`mq transaction`: what is open on a running broker, and ending it by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mq.cli import output
from mq.cli.options import Brokers, with_brokers
from mq.cli.tables import Column, counted, print_pages, stored_at
from mq.cli.watch import with_watch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mq.wire.v1.admin_pb2 import TransactionInfo


@click.group(short_help="List, commit, roll back, check transactions.")
def transaction() -> None:
    """Transactions: half messages that wait for their producer's word.

    The broker asks about a transaction that was not ended, first after 6 s, and
    rolls it back when no answer comes. Its message is in %SYS%GIVE_UP then.
    """


@transaction.command("list")
@click.option("--group", "producer_group", metavar="GROUP", help="Only of this producer group.")
@click.option(
    "--count",
    "--max",
    "count",
    metavar="N",
    type=click.IntRange(1, 1_000),
    default=100,
    show_default=True,
    help="At most so many, the oldest first.",
)
@with_watch
@with_brokers()
def list_transactions(brokers: Brokers, producer_group: str | None, count: int) -> None:
    """List transactions that are open, the oldest first."""
    with brokers.admin() as admin:
        found = admin.list_transactions(producer_group or "", count)
    brokers.note_missing(found)
    if brokers.as_json:
        output.write_json(output.plain(found))
        return
    if not found.transactions:
        click.echo("No transaction is open.")
        return
    print_pages(output.console(), found.transactions, _columns)
    shown, text = len(found.transactions), f"{counted(found.open, 'transaction')} open"
    click.echo(text if shown == found.open else f"{text}, the oldest {shown:,} are shown")


@transaction.command()
@click.argument("transaction_id", metavar="ID")
@with_brokers()
def commit(brokers: Brokers, transaction_id: str) -> None:
    """Commit one: its message is on its topic, once."""
    with brokers.admin() as admin:
        ended = admin.end_transaction(transaction_id, commit=True)
    if brokers.as_json:
        document = {"transaction_id": transaction_id, "state": "committed"}
        output.write_json({**document, **output.plain(ended)})
    else:
        where = f"queue {ended.queue_id}, offset {ended.queue_offset}"
        click.echo(f"Committed {transaction_id}: its message is in {where}.")


@transaction.command()
@click.argument("transaction_id", metavar="ID")
@with_brokers()
def rollback(brokers: Brokers, transaction_id: str) -> None:
    """Roll one back: no consumer ever sees its message."""
    with brokers.admin() as admin:
        admin.end_transaction(transaction_id, commit=False)
    if brokers.as_json:
        output.write_json({"transaction_id": transaction_id, "state": "rolled_back"})
    else:
        click.echo(f"Rolled back {transaction_id}.")


@transaction.command()
@click.argument("transaction_id", metavar="ID")
@with_brokers()
def check(brokers: Brokers, transaction_id: str) -> None:
    """Ask a living producer of its group now.

    It counts as one of the broker's own questions. The producer answers when
    it knows: `mq transaction list` shows what is still open.
    """
    with brokers.admin() as admin:
        producer_id = admin.check_transaction(transaction_id)
    if brokers.as_json:
        output.write_json({"transaction_id": transaction_id, "producer_id": producer_id})
    else:
        click.echo(f"Asked producer {output.printable(producer_id)} about {transaction_id}.")


# -- what is printed -------------------------------------------------------------------------------


def _columns(found: Sequence[TransactionInfo]) -> list[Column]:
    moments = [stored_at(each.stored_at_ms) for each in found]
    times = [moment.partition(" ")[2] for moment in moments]
    next_checks = [stored_at(each.next_check_ms).partition(" ")[2] for each in found]
    return [
        Column("transaction", [each.transaction_id for each in found], "left"),
        Column("topic", [each.topic for each in found], "left", is_flexible=True),
        Column("group", [each.producer_group for each in found], "left", is_flexible=True),
        Column(
            "begun (UTC)", moments, "left", compact=Column("begun (UTC)", times, "left", rank=1)
        ),
        Column("messages", [f"{each.messages:,}" for each in found], rank=4),
        Column("asked", [f"{each.checks} of {each.checks_max}" for each in found]),
        Column("next (UTC)", next_checks, "left", rank=3),
        Column("producers", [str(each.producers) for each in found], rank=2),
    ]
