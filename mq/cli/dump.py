"""`mq dump`: prints what `mq.store.inspect` finds in a data directory, as tables or as JSON.

Safe beside a running broker: nothing is written, locked or repaired. Ends with 1 when the log is
damaged, after everything that is readable was printed. Here are the options and the JSON; what is
drawn is in `dump_tables`, which is loaded with the store only when the command runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from mq.errors import LogDamaged, QueueDamaged

if TYPE_CHECKING:
    from mq.store.checkpoint import DerivedState
    from mq.store.examine import Problem
    from mq.store.identity import Identity
    from mq.store.inspect import CheckpointSummary, EntrySummary, LogInspector, QueueSummary

_VIEWS = ("entries", "queues", "verify")
_ONLY_WITH = {"from_index": "entries", "limit": "entries", "kind": "entries", "topic": "queues"}
# The names of mq.store.format.Kind, which would load the store for `mq --help`.
KINDS = ("noop", "messages", "command", "checkpoint", "membership")
_LIMIT = 50
_COUNT = click.IntRange(0)

_ADVICE = (
    "The node does not start on it. Remove the data directory and let the node copy the log from "
    "its peers, or restore a backup"
)
_IDX_ADVICE = "Stop the node and remove this file: it is rebuilt from the log at the next start"
_DERIVED_ADVICE = "Nothing to do: a running node rebuilds it from the log as soon as it is read"
_LOST_ADVICE = (
    "The disk does not keep what it confirmed: check it, and let the node copy the log from its "
    "peers"
)


class DumpInput(NamedTuple):
    """The input of every view."""

    directory: str
    identity: Identity | None
    has_checkpoint: bool
    saved: DerivedState | None
    inspector: LogInspector

    def checkpoint(self) -> CheckpointSummary | None:
        return self.inspector.checkpoint(self.saved) if self.has_checkpoint else None


@click.command(short_help="Print what is in a data directory.")
@click.argument("directory", metavar="DIRECTORY", type=click.Path())
@click.option("--entries", is_flag=True, help="One row an entry of the log.")
@click.option("--queues", is_flag=True, help="One row a queue, counted from the log.")
@click.option(
    "--verify", is_flag=True, help="Read and check every byte of log, queues and key index."
)
@click.option(
    "--from-index", metavar="N", type=_COUNT, help="With --entries: the first raft index."
)
@click.option(
    "--count",
    "--limit",
    "limit",
    metavar="N",
    type=_COUNT,
    help=f"With --entries: how many; 0 is all.  [default: {_LIMIT}]",
)
@click.option(
    "--kind",
    metavar="KIND",
    type=click.Choice(KINDS),
    help=f"With --entries: only {', '.join(KINDS[:-1])} or {KINDS[-1]}.",
)
@click.option("--topic", metavar="NAME", help="With --queues: only of this topic.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: exact numbers, for jq.")
def dump(directory: str, *, as_json: bool, **options: Any) -> None:
    """Print what is in a data directory: whose it is, the checkpoint, the
    segments of the log and how it ends.

    Reads only, and takes no lock: the broker may be running. Entries and
    queues include what is appended but not yet committed.

    Ends with 1 when the log is damaged or this is no data directory; with
    --verify also when a file of a queue or of the key index is.
    """
    view = _view(options)
    found = _find(directory, check_all=view == "verify")
    if as_json:
        _print_json(_document(found, view, options))
    else:
        # Here, as in the rest of this module, so that `mq --help` does not load them.
        from mq.cli import dump_tables  # noqa: PLC0415

        if view == "entries":
            dump_tables.print_entries(found, _entries(found, options), _limit(options))
        elif view == "queues":
            dump_tables.print_queues(found, _queues(found, options))
        else:
            dump_tables.print_overview(found, is_verified=view == "verify")
    _raise_damage(found.inspector.problems, is_verify=view == "verify")
    if view == "verify":
        _raise_derived(found)


def _raise_derived(found: DumpInput) -> None:
    """The first block of a queue or of the key index that is not what was written."""
    from mq.store.inspect_derived import derived_problems  # noqa: PLC0415
    from mq.store.vfs import RealVfs  # noqa: PLC0415

    if found.saved is not None and found.inspector.fits(found.saved):
        for one in derived_problems(RealVfs(), found.directory, found.saved):
            raise QueueDamaged(
                f"{one.path} at byte {one.position}: {one.reason}. {_DERIVED_ADVICE}"
            )


def _view(options: dict[str, Any]) -> str:
    views = [name for name in _VIEWS if options[name]]
    if len(views) > 1:
        raise click.UsageError(f"--{views[0]} and --{views[1]} are different views: give one")
    view = views[0] if views else ""
    for name, owner in _ONLY_WITH.items():
        if options[name] is not None and view != owner:
            raise click.UsageError(f"--{name.replace('_', '-')} goes with --{owner}")
    return view


def _find(directory: str, *, check_all: bool) -> DumpInput:
    from mq.store import inspect  # noqa: PLC0415
    from mq.store.vfs import RealVfs  # noqa: PLC0415

    vfs = RealVfs()
    owner = inspect.read_identity(vfs, directory)
    has_checkpoint, saved = inspect.read_checkpoint(vfs, directory)
    inspector = inspect.LogInspector(vfs, directory)
    if check_all and sys.stderr.isatty():
        from mq.cli import dump_tables  # noqa: PLC0415

        with dump_tables.progress(inspector.file_bytes()) as on_read:
            inspector.on_read = on_read
            inspector.look(check_all=True)
    else:
        inspector.look(check_all=check_all)
    return DumpInput(directory, owner, has_checkpoint, saved, inspector)


def _entries(found: DumpInput, options: dict[str, Any]) -> Iterator[EntrySummary]:
    from mq.store.format import Kind  # noqa: PLC0415

    kind = Kind[options["kind"].upper()] if options["kind"] else None
    limit = _limit(options)
    for count, entry in enumerate(found.inspector.entries(options["from_index"] or 0, kind), 1):
        yield entry
        if count == limit:
            return


def _limit(options: dict[str, Any]) -> int:
    return _LIMIT if options["limit"] is None else int(options["limit"])


def _queues(found: DumpInput, options: dict[str, Any]) -> list[QueueSummary]:
    topic = options["topic"]
    queues = found.inspector.queues(found.saved)
    return [queue for queue in queues if topic is None or queue.topic == topic]


def _document(found: DumpInput, view: str, options: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """Keys and values in order; what is found while entries are printed comes after them."""
    inspector = found.inspector
    yield "directory", found.directory
    yield "identity", found.identity._asdict() if found.identity else None
    if view == "entries":
        yield "entries", _entries(found, options)
    elif view == "queues":
        yield "queues", iter(_queues(found, options))
    else:
        yield "checkpoint", found.checkpoint()
        yield "segments", iter(inspector.segments)
    yield "ending", inspector.ending
    yield "problems", iter(inspector.problems)
    yield "removed", inspector.removed


def _print_json(document: Iterable[tuple[str, object]]) -> None:
    """One object; an iterator becomes a list with an item a line, never held in memory."""
    write = sys.stdout.write
    before = "{\n"
    for key, value in document:
        write(f'{before}  "{key}": ')
        before = ",\n"
        if isinstance(value, Iterator):
            separator = "[\n    "
            for item in value:
                write(separator + msgspec.json.encode(item).decode())
                separator = ",\n    "
            write("[]" if separator.startswith("[") else "\n  ]")
        else:
            write(msgspec.json.encode(value).decode())
    write("\n}\n")


def _raise_damage(problems: list[Problem], *, is_verify: bool) -> None:
    """The first thing that a crash cannot have left, as the error that ends the command."""
    for problem in problems:
        if problem.is_damage:
            advice = _IDX_ADVICE if problem.path.endswith(".idx") else _ADVICE
            raise LogDamaged(problem.path, problem.position, problem.reason, advice)
        if is_verify and problem.synced_bytes_lost:
            reason = f"{problem.synced_bytes_lost} bytes that had been synced are gone"
            raise LogDamaged(problem.path, problem.position, reason, _LOST_ADVICE)
