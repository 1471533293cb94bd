"""The plan of a replay, fixed at its first start, so that every continuation does the same.

    <archive>/_mq_archive/replays/<id>/plan.json    what is wanted, and the files, in steps
                                       done.json    how many steps are stored
                                       files/       the files as they were then, as hard links
                                       progress/    what the tasks of a step say, while they run

The links are the snapshot: an archive that goes on, or is compacted, does not change them. A step
is stored before the next one begins, files are in the order in which they were written, and a
queue's messages in that of the queue; so order is kept from step to step. Knows files; neither
Spark nor brokers.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from mq.cli.tables import stored_at
from mq_spark.errors import MqSparkError
from mq_spark.pipelines.archiving.archive_directory import (
    ArchiveDirectory,
    Day,
    part_batches,
    part_order,
)
from mq_spark.pipelines.durable import sync, write_whole

VERSION = 1
# A step has one file or more, and no more than this if it has more: what is done again after a
# crash, and how finely progress is told.
STEP_ROWS = 250_000
STEP_BYTES = 64 << 20
_SNAPSHOT_TRIES = 5
# By these messages are put in order and dealt to queues; what else is missing is null.
_COLUMNS = ("body", "broker_set", "queue_id", "queue_offset", "stored_at")
# As users know them.
_OPTIONS = {
    "keys": "--key",
    "is_plain": "--plain",
    "is_paced": "--rate or --speed",
    "to_topic": "--to-topic",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """The settings that are the same in all runs of a replay."""

    # Empty: all.
    topics: tuple[str, ...] = ()
    # As they were given, and what that meant when the replay began.
    since: str = ""
    since_ms: int | None = None
    until: str = ""
    until_ms: int | None = None
    tags: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    where: str = ""
    # Empty: each message to the topic that it was on.
    to_topic: str = ""
    # Nothing is added to the messages.
    is_plain: bool = False
    # One task sends all, in the order of time.
    is_paced: bool = False

    @property
    def is_all(self) -> bool:
        """Whether every message of the topics is replayed."""
        return not (self.since or self.until or self.tags or self.keys or self.where)

    def has_day(self, day: Day) -> bool:
        """Whether something of it may be wanted."""
        return (
            (not self.topics or day.topic in self.topics)
            and (self.since_ms is None or day.date >= stored_at(self.since_ms)[:10])
            and (self.until_ms is None or day.date <= stored_at(self.until_ms)[:10])
        )


class Step(NamedTuple):
    """Files that are replayed together; `rows` is what they have before any filter."""

    files: tuple[str, ...]
    rows: int


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    wanted: Wanted
    # Names the replay to brokers. Not by the id alone: one of the same name, of another archive or
    # begun anew, is another replay.
    writer: str
    # How rows are dealt to tasks and cut: part of the numbers under which they are stored, so that
    # they stay, though the pace may be another one. `window_ms`: what was stored within so long is
    # sent together; 0: that does not matter.
    tasks: int
    chunk_rows: int
    window_ms: int
    # What the files' names are relative to.
    root: Path
    steps: tuple[Step, ...]

    @property
    def rows(self) -> int:
        return sum(step.rows for step in self.steps)


@dataclasses.dataclass(frozen=True, slots=True)
class Done:
    steps: int = 0
    sent: int = 0


class ReplayState:
    """The directory of one replay."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.replay_id = path.name
        self._progress = path / "progress"
        self._files = path / "files"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time has a replay; MqSparkError for the second."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MqSparkError(
                f"{self.path} cannot be made ({error.strerror}): give --state DIR for a place "
                "where it can be written how far the replay got"
            ) from None
        with (self.path / "lock").open("a", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise MqSparkError(
                    f"replay {self.replay_id} is running: wait for it, or take another --id"
                ) from None
            yield

    def load(self) -> Plan | None:
        """None: it was never started."""
        try:
            found = json.loads((self.path / "plan.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        if found.get("version") != VERSION:
            raise MqSparkError(
                f"replay {self.replay_id} has a plan of version {found.get('version')!r}, this "
                f"program knows {VERSION}: use the one that began it"
            )
        steps = tuple(Step(tuple(files), rows) for files, rows in found["steps"])
        wanted: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in found["wanted"].items()
        }
        root = Path(found["root"]) if found["root"] else self._files
        cuts = {name: found[name] for name in ("writer", "tasks", "chunk_rows", "window_ms")}
        return Plan(Wanted(**wanted), **cuts, root=root, steps=steps)

    def begin(
        self,
        archive: ArchiveDirectory,
        wanted: Wanted,
        *,
        tasks: int,
        chunk_rows: int,
        window_ms: int,
    ) -> Plan:
        """Takes the snapshot. From here on the replay is what it is."""
        shutil.rmtree(self._files, ignore_errors=True)
        root, files = self._snapshot(archive, wanted)
        plan = Plan(
            wanted,
            f"replay {self.replay_id} {secrets.token_hex(8)}",
            tasks,
            chunk_rows,
            window_ms,
            root,
            # Only where times matter: such steps may be large.
            tuple(steps_of(root, files, are_batches_whole=window_ms > 0)),
        )
        document = dataclasses.asdict(plan)
        document |= {"version": VERSION, "root": "" if root == self._files else str(root)}
        write_whole(self.path / "plan.json", json.dumps(document))
        return plan

    def done(self) -> Done:
        try:
            return Done(**json.loads((self.path / "done.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            return Done()

    def record(self, done: Done, plan: Plan) -> None:
        """These steps are stored, and are not done again. Behind the last one the snapshot goes."""
        write_whole(self.path / "done.json", json.dumps(dataclasses.asdict(done)))
        shutil.rmtree(self._progress, ignore_errors=True)
        if done.steps == len(plan.steps):
            shutil.rmtree(self._files, ignore_errors=True)

    def progress_of(self, step: int) -> Path:
        """A place for its tasks to say how far they are; what an earlier run said is gone."""
        shutil.rmtree(self._progress, ignore_errors=True)
        place = self._progress / str(step)
        place.mkdir(parents=True)
        return place

    def sent_in_step(self, step: int) -> int:
        """As far as its tasks have said."""
        texts = [_text(path) for path in (self._progress / str(step)).glob("*")]
        return sum(int(text) for text in texts if text.isdecimal())

    def _snapshot(self, archive: ArchiveDirectory, wanted: Wanted) -> tuple[Path, list[Path]]:
        """The files, and where they are: hard links, or the files themselves where the file system
        cannot link them.
        """
        # The latest first: what an archive that runs adds meanwhile is then seen of a queue up to
        # some message, and not a later day of it without an earlier one.
        days = [day for day in reversed(archive.days()) if wanted.has_day(day)]
        try:
            files = [file for day in days for file in self._linked(archive, day)]
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
                raise
            shutil.rmtree(self._files, ignore_errors=True)
            return archive.path, [file for day in days for file in day.files()]
        for directory in {file.parent for file in files}:
            sync(directory)
            sync(directory.parent)
        if files:
            sync(self._files)
        return self._files, files

    def _linked(self, archive: ArchiveDirectory, day: Day) -> list[Path]:
        """All of the day, or of what took its place if it was compacted meanwhile."""
        target = self._files / day.path.relative_to(archive.path)
        for _ in range(_SNAPSHOT_TRIES):
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            try:
                for path in day.files():
                    os.link(path, target / path.name)
            except FileNotFoundError:
                continue
            return Day(day.topic, day.date, target).files()
        raise MqSparkError(f"{day.path} changes all the time: try again when it is at rest")


def steps_of(root: Path, files: Sequence[Path], *, are_batches_whole: bool) -> list[Step]:
    """In the order in which they were written: by day, then by batch, topics side by side. Batches
    of an archive follow each other in time, their files do not: with whole batches in a step, so do
    steps.
    """

    def order(path: Path) -> tuple[str, tuple[int, int, str], str]:
        return path.parent.name, part_order(path), path.parent.parent.name

    steps: list[Step] = []
    step_bytes, step_end = 0, ("", 0)
    for path in sorted(files, key=order):
        rows, size_bytes = rows_in(path), path.stat().st_size
        if not rows:
            continue
        name, day = str(path.relative_to(root)), path.parent.name
        first, last = part_batches(path)
        is_bound = are_batches_whole and (day, first) <= step_end
        is_room = bool(steps) and steps[-1].rows + rows <= STEP_ROWS
        if is_bound or (is_room and step_bytes + size_bytes <= STEP_BYTES):
            steps[-1] = Step((*steps[-1].files, name), steps[-1].rows + rows)
            step_bytes += size_bytes
            step_end = max(step_end, (day, last))
        else:
            steps.append(Step((name,), rows))
            step_bytes, step_end = size_bytes, (day, last)
    return steps


def rows_in(path: Path) -> int:
    """The number of rows. Raises MqSparkError if they cannot be replayed."""
    import pyarrow.parquet as pq

    found = pq.read_metadata(path)
    names = found.schema.to_arrow_schema().names
    missing = [name for name in _COLUMNS if name not in names]
    if missing:
        raise MqSparkError(
            f"{'/'.join(path.parts[-3:])} has no column {missing[0]}: `mq spark archive` did not "
            "write it. Take it out of the archive"
        )
    rows: int = found.num_rows
    return rows


def check_same(replay_id: str, before: Wanted, now: Wanted) -> None:
    """A replay that is continued has the same options, or messages would be missing or twice. Two
    days ago (-2d) is what it was at first.
    """
    for field in dataclasses.fields(Wanted):
        was, wanted = getattr(before, field.name), getattr(now, field.name)
        if was != wanted and not field.name.endswith("_ms"):
            option = _OPTIONS.get(field.name, f"--{field.name}")
            raise MqSparkError(
                f"replay {replay_id} was started {_given(option, was)}, now it is "
                f"{_given(option, wanted)}: give the same options to continue it, or another --id"
            )


def _given(option: str, value: Any) -> str:
    if not value:
        return f"without {option}"
    if value is True:
        return f"with {option}"
    return f"with {option} {(value if isinstance(value, str) else ','.join(value))!r}"


def checked_id(replay_id: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", replay_id):
        raise MqSparkError(f"--id {replay_id!r}: use up to 64 of letters, digits and ._-")
    return replay_id


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
