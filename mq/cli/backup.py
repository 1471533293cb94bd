"""`mq backup`: copies of the logs of broker sets, and whether they are still good."""

from __future__ import annotations

import re
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from mq.cli import output
from mq.cli.nodes import checked_set, look, with_set
from mq.cli.options import Brokers, with_brokers
from mq.cli.tables import Column, print_table, size, stored_at
from mq.errors import IllegalRequest, MqError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mq.cli.backup_manifest import Manifest
    from mq.cli.backup_sources import RunningNodes, Source
    from mq.client import Admin

_NAME = re.compile(r"[A-Za-z0-9_-]{1,127}")


class _Group(click.Group):
    """`mq backup DIRECTORY` is `mq backup create DIRECTORY`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["create", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_Group,
    short_help="Copy the logs of broker sets; check copies.",
    subcommand_metavar="[create] DIRECTORY | verify DIRECTORY",
)
def backup() -> None:
    """Copies of the logs of broker sets: all messages, offsets, transactions.

    `mq backup DIRECTORY` copies what is new; `mq restore` makes a new set of it.
    """


@backup.command(short_help="Copy the logs, or what is new of them.")
@click.argument("directory", metavar="DIRECTORY")
@with_set
@click.option(
    "--from-data",
    "data",
    metavar="DATADIR",
    help="From the data directory of a node that is stopped.",
)
@with_brokers()
def create(brokers: Brokers, directory: str, broker_set: str, data: str | None) -> None:
    """Copy the log of each broker set to DIRECTORY/SET, or what is new of it.

    From followers, while the set serves. Every entry is checked. A run that is
    interrupted is gone on with by the next one. A log that does not continue
    the backup is refused.
    """
    # Here, so that help and errors of usage do not wait for the store.
    from mq.cli.backup_sources import StoppedNode  # noqa: PLC0415
    from mq.store.vfs import RealVfs  # noqa: PLC0415

    with ExitStack() as stack:
        sources: Sequence[Source]
        if data is not None:
            sources = [stack.enter_context(StoppedNode(RealVfs(), data.rstrip("/") or "/"))]
        else:
            admin = stack.enter_context(brokers.admin())
            sources = list(_running(admin, broker_set))
        # In the end all that could be done is done; the first trouble is told.
        results, failure = _copy_all(directory.rstrip("/") or "/", sources)
    if brokers.as_json:
        output.write_json([_document(manifest, copied) for manifest, copied in results])
    elif results:
        _print(results)
    if failure is not None:
        raise failure


def _running(admin: Admin, broker_set: str) -> Iterator[RunningNodes]:
    from mq.cli.backup_sources import RunningNodes  # noqa: PLC0415

    route = admin.route()
    checked_set(route, broker_set)
    for each in route.broker_sets:
        if broker_set not in ("", each.name):
            continue
        nodes = [seen for seen in look(admin, route, each.name) if seen.status is not None]
        # Followers first: they have less to do. A node that is not fit is the last choice.
        nodes.sort(key=lambda seen: (bool(seen.health), seen.role == "leader", seen.node_id))
        if not nodes:
            raise IllegalRequest(f"no node of broker set {each.name} answers: nothing to copy from")
        places = [(seen.node_id, seen.address) for seen in nodes]
        yield RunningNodes(admin, route.cluster, each.name, places)


def _copy_all(
    directory: str, sources: Sequence[Source]
) -> tuple[list[tuple[Manifest, int]], MqError | None]:
    from mq.cli.backup_copy import Copy  # noqa: PLC0415
    from mq.store.vfs import RealVfs  # noqa: PLC0415

    results: list[tuple[Manifest, int]] = []
    failure: MqError | None = None
    for source in sources:
        if not _NAME.fullmatch(source.broker_set):
            raise IllegalRequest(f"{source.broker_set[:200]!r} is no name of a broker set")
        with output.meter(f"copying {source.broker_set}", "byte") as show:
            place = f"{directory}/{source.broker_set}"
            copy = Copy(RealVfs(), place, source, lambda done, _: show(done, done), output.note)
            try:
                results.append((copy.run(), copy.copied_bytes))
            except MqError as error:
                failure = failure or error
    return results, failure


@backup.command(short_help="Check every byte of a backup.")
@click.argument("directory", metavar="DIRECTORY")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for jq.")
def verify(directory: str, *, as_json: bool) -> None:
    """Read a backup and check every byte of it; ends with 1 if it is damaged."""
    from mq.cli import backup_manifest  # noqa: PLC0415
    from mq.store.vfs import RealVfs  # noqa: PLC0415

    vfs = RealVfs()
    results, failure = [], None
    for name, place in backup_manifest.find(vfs, directory.rstrip("/") or "/").items():
        manifest = backup_manifest.load(vfs, place)
        assert manifest is not None  # noqa: S101 - it was just found
        with output.meter(f"reading {name}", "byte", manifest.size) as show:
            done = 0

            def progress(more: int, show: Any = show) -> None:
                nonlocal done
                done += more
                show(done, done)

            try:
                backup_manifest.verify(vfs, place, manifest, progress)
            except MqError as error:
                failure = failure or error
            else:
                results.append((manifest, 0))
    if as_json:
        output.write_json([_document(manifest) for manifest, _ in results])
    elif results:
        _print(results)
        click.echo("Every entry is what was written.")
    if failure is not None:
        raise failure


def _document(manifest: Manifest, copied_bytes: int | None = None) -> dict[str, Any]:
    import msgspec  # noqa: PLC0415

    document: dict[str, Any] = msgspec.to_builtins(manifest)
    return document if copied_bytes is None else {**document, "copied_bytes": copied_bytes}


def _print(results: Sequence[tuple[Manifest, int]]) -> None:
    manifests = [manifest for manifest, _ in results]
    columns = [
        Column("set", [each.broker_set for each in manifests], "left"),
        Column("entries", [f"{each.first_index:,} to {each.last_index:,}" for each in manifests]),
        Column("size", [size(each.size) for each in manifests]),
        Column("up to, UTC", [stored_at(each.stored_at_ms) for each in manifests], "left"),
        Column("complete", ["yes" if each.completed_at else "no" for each in manifests], "left"),
    ]
    if any(copied for _, copied in results):
        columns.insert(3, Column("copied now", [size(copied) for _, copied in results]))
    print_table(output.console(), columns)
