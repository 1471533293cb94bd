"""`mq restore`: the data directory of a node of a new set, from a backup."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import click

from mq import hints
from mq.cli import output
from mq.cli.tables import counted, size, stored_at
from mq.errors import IllegalRequest

if TYPE_CHECKING:
    from mq.cli.backup_manifest import Manifest
    from mq.cli.restore_log import Restored
    from mq.store.identity import Identity

_NAME = re.compile(r"[A-Za-z0-9_-]{1,127}")
_ADDRESS = re.compile(r"[^\s,=]{1,253}:[0-9]{1,5}")
# Of a node alone: no other node connects to it.
_ALONE = "127.0.0.1:8082"


@click.command(short_help="Make a data directory from a backup.")
@click.argument("backup", metavar="BACKUP")
@click.option("--data", metavar="DIR", required=True, help="The new data directory.")
@click.option("--node", metavar="NODE", required=True, help="The node that will run on it.")
@click.option(
    "--members",
    metavar="NODE=HOST:PORT,...",
    default="",
    help="All nodes of the new set and their Raft addresses.  [default: NODE alone]",
)
@click.option("--cluster", metavar="NAME", help="Of the new set.  [default: as in the backup]")
@click.option("--set", "broker_set", metavar="SET", help="Its name.  [default: as in the backup]")
@click.option(
    "--partial", is_flag=True, help="Also from a backup whose first run did not come to its end."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for jq.")
def restore(  # noqa: PLR0913 - one for each option
    backup: str,
    data: str,
    node: str,
    members: str,
    cluster: str | None,
    broker_set: str | None,
    *,
    partial: bool,
    as_json: bool,
) -> None:
    """Make the data directory of a node of a NEW set from a backup.

    BACKUP is the directory of one set, checked before anything is made of it.
    Messages, offsets, transactions and what waits are as they were. For
    several nodes, run it on each with the same --members; or restore one, and
    let the others join it (`mq cluster add-member`). A set of three or more
    serves when all of its nodes have come up once. The old nodes of the set
    are refused: this is no way to replace one node of a set that runs.
    """
    # Here, so that help and errors of usage do not wait for the broker's modules.
    from mq import logging  # noqa: PLC0415
    from mq.store.identity import Identity  # noqa: PLC0415

    # A node would tell of each step; here the command does.
    logging.configure("error", "auto")
    place, manifest = _found(backup.rstrip("/"), is_partial=partial)
    identity = Identity(
        _checked(cluster or manifest.cluster),
        _checked(broker_set or manifest.broker_set),
        _checked(node),
    )
    restored = _restore(place, manifest, data, identity, _members(members, node))
    if as_json:
        output.write_json(
            {
                **identity._asdict(),
                "data": data,
                "members": restored.members,
                "last_index": restored.last_index,
                "term": restored.term,
                "bytes": manifest.size,
            }
        )
        return
    click.echo(
        f"Restored {counted(manifest.last_index - manifest.first_index + 1, 'entry', 'entries')} "
        f"({size(manifest.size)}) of set {manifest.broker_set}, up to "
        f"{stored_at(manifest.stored_at_ms)} UTC, as node {node} in {data}."
    )
    click.echo(f"Start it:\n  {_command(restored, data)}")
    if len(restored.members) > 2:
        click.echo("The set serves when all of its nodes have come up once.")


def _found(directory: str, *, is_partial: bool) -> tuple[str, Manifest]:
    """The backup of one set, and where it is. IllegalRequest."""
    from mq.cli import backup_manifest  # noqa: PLC0415
    from mq.store.vfs import RealVfs  # noqa: PLC0415

    found = backup_manifest.find(RealVfs(), directory)
    if len(found) > 1:
        raise IllegalRequest(
            f"{directory} has the sets {', '.join(found)}: name one, {directory}/SET"
        )
    ((_, place),) = found.items()
    manifest = backup_manifest.load(RealVfs(), place)
    if manifest is None or not manifest.segments:
        raise IllegalRequest(f"{place} is empty: its first run was interrupted at once")
    if manifest.completed_at is None and not is_partial:
        raise IllegalRequest(
            f"{place} is not complete: its first run was interrupted. Run `mq backup` again; if "
            f"the set is gone, --partial restores what is there, up to entry {manifest.last_index}"
        )
    return place, manifest


def _restore(
    place: str, manifest: Manifest, data: str, identity: Identity, members: dict[str, str]
) -> Restored:
    from mq.cli import restore_log  # noqa: PLC0415
    from mq.store.vfs import RealVfs  # noqa: PLC0415

    done = 0
    with output.meter(f"restoring {manifest.broker_set}", "byte", 3 * manifest.size) as show:

        def progress(more: int) -> None:
            nonlocal done
            done += more
            show(done, done)

        return restore_log.restore(RealVfs(), place, manifest, data, identity, members, progress)


def _command(restored: Restored, data: str) -> str:
    cluster, broker_set, node = restored.identity
    words = ["server", "--data", data, "--node-cluster", cluster, "--node-broker-set", broker_set]
    words += ["--node-id", node]
    if len(restored.members) > 1:
        members = ",".join(f"{one}={address}" for one, address in restored.members.items())
        words += ["--raft-members", members]
    elif (address := restored.members[node]) != _ALONE:
        # Others may join it there.
        words += ["--raft-listen", address]
    return shlex.join([hints.program(), *words])


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise click.BadParameter(f"{name!r}: use 1 to 127 of letters, digits, _ and -")
    return name


def _members(text: str, node: str) -> dict[str, str]:
    if not text:
        return {node: _ALONE}
    members: dict[str, str] = {}
    for part in text.split(","):
        node_id, _, address = part.strip().partition("=")
        if not _ADDRESS.fullmatch(address) or not _NAME.fullmatch(node_id) or node_id in members:
            raise click.BadParameter(f"--members {text!r} is not like n1=host:8082,n2=host:8082")
        members[node_id] = address
    if node not in members:
        raise click.BadParameter(f"--members has {', '.join(members)}, but not {node} (--node)")
    return members
