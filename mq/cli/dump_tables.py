"""Tables of `mq dump` on a terminal, and the lines around them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from mq.cli.tables import Column, counted, print_pages, print_table, size, stored_at
from mq.store.inspect import Ending, EntrySummary, Fit, QueueSummary, SegmentSummary

if TYPE_CHECKING:
    from mq.cli.dump import DumpInput
    from mq.store.examine import Problem

_TOPICS_SHOWN = 3


@contextlib.contextmanager
def progress(total_bytes: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr for as long as the context lasts; the result takes bytes as they are read."""
    columns = (
        TextColumn("checking"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total_bytes)
        yield lambda count: bar.advance(task, count)


def print_overview(found: DumpInput, *, is_verified: bool) -> None:
    console = Console(highlight=False)
    segments = found.inspector.segments
    if found.identity is None and not found.has_checkpoint and not segments:
        console.print(Text(f"{found.directory} is empty: no node has used it yet."))
        return
    _print_head(console, found)
    if segments:
        damaged = {each.path for each in found.inspector.problems if each.is_damage}
        print_table(console, _segment_columns(segments, damaged))
    _print_end(console, found, is_verified=is_verified)


def print_entries(found: DumpInput, entries: Iterable[EntrySummary], limit: int) -> None:
    console = Console(highlight=False)
    count = print_pages(console, entries, _entry_columns)
    if not count:
        console.print("No entries.")
    elif count == limit:
        console.print(Text(f"The first {limit}; --limit 0 shows all, --from-index goes on.", "dim"))
    _print_problems(console, found)


def print_queues(found: DumpInput, queues: Sequence[QueueSummary]) -> None:
    console = Console(highlight=False)
    if queues:
        print_pages(console, queues, _queue_columns)
        messages = sum(queue.messages for queue in queues)
        console.print(f"{counted(len(queues), 'queue')}, {counted(messages, 'message')}")
    else:
        console.print("No queues.")
    _print_problems(console, found)


# -- columns ---------------------------------------------------------------------------------------


def _segment_columns(segments: Sequence[SegmentSummary], damaged: set[str]) -> list[Column]:
    def span(first: object, last: object, separator: str, each: SegmentSummary) -> str:
        return f"{first}{separator}{last}" if each.entries else "-"

    def indexes(separator: str) -> list[str]:
        return [span(each.first_index, each.last_index, separator, each) for each in segments]

    def terms(separator: str) -> list[str]:
        return [
            str(each.first_term)
            if each.entries and each.first_term == each.last_term
            else span(each.first_term, each.last_term, separator, each)
            for each in segments
        ]

    def times(separator: str) -> list[str]:
        return [
            span(
                stored_at(each.first_stored_at_ms),
                stored_at(each.last_stored_at_ms),
                separator,
                each,
            )
            for each in segments
        ]

    used = [size(each.used_bytes) for each in segments]
    files = [size(each.file_bytes) for each in segments]
    both = [f"{one}\nof {other}" for one, other in zip(used, files, strict=True)]
    names = [each.path.rpartition("/")[2] for each in segments]
    states = ["damaged" if each.path in damaged else each.state.value for each in segments]
    bases = [str(each.base_log_offset) for each in segments]
    gone = Column("", ())
    return [
        Column("file", names, "left", compact=gone),
        Column("log offset", bases, compact=Column("file: log offset", bases)),
        Column("used", used, compact=Column("used of file", both)),
        Column("file size", files, compact=gone),
        Column("entries", [f"{each.entries:,}" for each in segments], rank=1),
        Column("raft index", indexes("-"), compact=Column("raft index", indexes("\n"))),
        Column("terms", terms("-"), compact=Column("terms", terms("\n"), rank=2)),
        Column("stored (UTC)", times(" to "), compact=Column("stored (UTC)", times("\n"))),
        Column("state", states, "left"),
    ]


def _entry_columns(entries: Sequence[EntrySummary]) -> list[Column]:
    moments = [stored_at(each.stored_at_ms) for each in entries]
    days = {moment.partition(" ")[0] for moment in moments}
    full = Column("stored at (UTC)", moments, "left")
    compact = full
    if len(days) == 1:
        times = [moment.partition(" ")[2] for moment in moments]
        compact = Column(f"stored UTC {days.pop()}", times, "left")
    topics = [_topics(each, _TOPICS_SHOWN) for each in entries]
    first_topics = [_topics(each, 1) for each in entries]
    return [
        Column("raft index", [str(each.raft_index) for each in entries]),
        Column("term", [str(each.term) for each in entries], rank=1),
        Column("kind", [each.kind for each in entries], "left"),
        Column(full.title, full.cells, "left", compact=compact),
        Column("log offset", [str(each.log_offset) for each in entries], rank=2),
        Column("size", [size(each.size_bytes) for each in entries]),
        Column("batches", [f"{each.batches:,}" for each in entries], rank=3),
        Column("messages", [f"{each.messages:,}" for each in entries]),
        Column(
            "topics",
            topics,
            "left",
            is_flexible=True,
            compact=Column("topics", first_topics, "left", is_flexible=True),
        ),
    ]


def _topics(entry: EntrySummary, shown: int) -> str:
    if entry.problem:
        return f"not readable: {entry.problem}"
    more = len(entry.topics) - shown
    return ", ".join(entry.topics[:shown]) + (f" +{more}" if more > 0 else "")


def _queue_columns(queues: Sequence[QueueSummary]) -> list[Column]:
    return [
        Column("topic", [each.topic for each in queues], "left", is_flexible=True),
        Column("queue", [str(each.queue_id) for each in queues]),
        Column("first offset", [str(each.first_offset) for each in queues]),
        Column("end offset", [str(each.end_offset) for each in queues]),
        Column("messages", [f"{each.messages:,}" for each in queues]),
    ]


# -- lines -----------------------------------------------------------------------------------------


def _print_head(console: Console, found: DumpInput) -> None:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    owner = found.identity
    identity = (
        f"cluster {owner.cluster}, broker set {owner.broker_set}, node {owner.node}"
        if owner
        else "none: node.toml is missing"
    )
    rows = (
        ("directory", found.directory),
        ("identity", identity),
        ("checkpoint", _checkpoint(found)),
    )
    for name, text in rows:
        grid.add_row(name, Text(text))
    console.print(grid)
    console.print()


def _checkpoint(found: DumpInput) -> str:
    saved = found.checkpoint()
    if saved is None:
        return "none yet"
    if saved.fit is Fit.INVALID:
        return "not valid: the next start rebuilds queues and index from the log"
    files = saved.index_full_files
    text = (
        f"applied raft index {saved.raft_index} of term {saved.term}, "
        f"{counted(saved.queues, 'queue')}, {counted(saved.index_newest_items, 'index item')}"
    )
    if files:
        text += f" and {counted(files, 'full index file')}"
    if saved.fit is Fit.MISFIT:
        text += "; the log has no such entry: the next start rebuilds queues and index"
    return text


def _print_end(console: Console, found: DumpInput, *, is_verified: bool) -> None:
    inspector = found.inspector
    segments = inspector.segments
    if not segments:
        console.print("The log is empty.")
    else:
        used = size(sum(segment.used_bytes for segment in segments))
        entries = sum(segment.entries for segment in segments)
        checked = ", every byte checked" if is_verified else ""
        total = (
            f"{counted(len(segments), 'segment')}, {used}, {counted(entries, 'entry', 'entries')}"
        )
        console.print(f"{total}{checked}")
        if inspector.ending is Ending.CLEAN:
            console.print("after the last entry: clean")
    _print_problems(console, found)


def _print_problems(console: Console, found: DumpInput) -> None:
    for path in found.inspector.removed:
        line = f"removed while this was read, by retention or a change of leader: {path}"
        console.print(Text(line, "yellow"))
    for problem in found.inspector.problems:
        console.print(_problem(problem))


def _problem(problem: Problem) -> Text:
    if problem.is_damage:
        line = f"{problem.path}: damaged at byte {problem.position}: {problem.reason}"
        if problem.resumes_at is not None:
            line += f"; intact entries again from byte {problem.resumes_at} on"
        return Text(line, "bold red")
    line = (
        f"after the last entry: {counted(problem.torn_bytes, 'byte')} torn "
        f"({problem.path}, byte {problem.position}: {problem.reason}); "
        "being written, or cut at the next start"
    )
    if problem.synced_bytes_lost:
        line += f"; {counted(problem.synced_bytes_lost, 'byte')} lost that had been synced"
    return Text(line, "yellow")
