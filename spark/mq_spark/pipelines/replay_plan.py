"""What a replay does, fixed when it is started first, so that whoever continues it does the same.

    <archive>/_mq_archive/replays/<id>/plan.json    what is wanted, and the files, in steps
                                       done.json    how many steps are stored
                                       files/       the files as they were then, as hard links

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
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from mq.admin.tables import stored_at
from mq_spark.errors import MqSparkError
from mq_spark.pipelines.archive_directory import ArchiveDirectory, Day, part_order, write_whole

VERSION = 1
# What is done again after a crash, at most, and how finely progress is told.
STEP_ROWS = 250_000
STEP_BYTES = 64 << 20
_SNAPSHOT_TRIES = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """What is the same in all runs of a replay."""

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
    # How rows are dealt to tasks and cut: part of the numbers under which they are stored.
    tasks: int
    chunk_rows: int
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
        self.progress = path / "progress"
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
        return Plan(Wanted(**wanted), found["tasks"], found["chunk_rows"], root, steps)

    def begin(
        self, archive: ArchiveDirectory, wanted: Wanted, *, tasks: int, chunk_rows: int
    ) -> Plan:
        """Takes the snapshot. From here on the replay is what it is."""
        shutil.rmtree(self._files, ignore_errors=True)
        root, files = self._snapshot(archive, wanted)
        steps = steps_of(root, files)
        document: dict[str, Any] = {
            "version": VERSION,
            "wanted": dataclasses.asdict(wanted),
            "tasks": tasks,
            "chunk_rows": chunk_rows,
            "root": "" if root == self._files else str(root),
            "steps": steps,
        }
        write_whole(self.path / "plan.json", json.dumps(document))
        return Plan(wanted, tasks, chunk_rows, root, tuple(steps))

    def done(self) -> Done:
        try:
            return Done(**json.loads((self.path / "done.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            return Done()

    def record(self, done: Done, plan: Plan) -> None:
        """These steps are stored, and are not done again. Behind the last one the snapshot goes."""
        write_whole(self.path / "done.json", json.dumps(dataclasses.asdict(done)))
        shutil.rmtree(self.progress, ignore_errors=True)
        if done.steps == len(plan.steps):
            shutil.rmtree(self._files, ignore_errors=True)

    def sent_in_step(self) -> int:
        """As far as its tasks have said."""
        return sum(
            int(text)
            for path in self.progress.glob("*")
            if (text := _text(path)) and text.isdecimal()
        )

    def _snapshot(self, archive: ArchiveDirectory, wanted: Wanted) -> tuple[Path, list[Path]]:
        """The files, and where they are: hard links, or the files themselves where the file system
        cannot link them.
        """
        try:
            files = [
                file
                for day in archive.days()
                if wanted.has_day(day)
                for file in self._linked(archive, day)
            ]
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
                raise
            shutil.rmtree(self._files, ignore_errors=True)
            return archive.path, [
                file for day in archive.days() if wanted.has_day(day) for file in day.files()
            ]
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


def steps_of(root: Path, files: Sequence[Path]) -> list[Step]:
    """In the order in which they were written: by day, then by batch, topics side by side."""

    def order(path: Path) -> tuple[str, tuple[int, int, str], str]:
        return path.parent.name, part_order(path), path.parent.parent.name

    steps: list[Step] = []
    step_bytes = 0
    for path in sorted(files, key=order):
        rows, size_bytes = pq.read_metadata(path).num_rows, path.stat().st_size
        name = str(path.relative_to(root))
        is_room = steps and steps[-1].rows + rows <= STEP_ROWS
        if is_room and step_bytes + size_bytes <= STEP_BYTES:
            steps[-1] = Step((*steps[-1].files, name), steps[-1].rows + rows)
            step_bytes += size_bytes
        elif rows:
            steps.append(Step((name,), rows))
            step_bytes = size_bytes
    return steps


def check_same(replay_id: str, before: Wanted, now: Wanted) -> None:
    """A replay that is continued has the same options, or messages would be missing or twice. Two
    days ago (-2d) is what it was at first.
    """
    for field in dataclasses.fields(Wanted):
        was, wanted = getattr(before, field.name), getattr(now, field.name)
        if was != wanted and not field.name.endswith("_ms"):
            raise MqSparkError(
                f"replay {replay_id} was started with {field.name} = {was!r}, now it is "
                f"{wanted!r}: give the same options to continue it, or another --id"
            )


def checked_id(replay_id: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", replay_id):
        raise MqSparkError(f"--id {replay_id!r}: use up to 64 of letters, digits and ._-")
    return replay_id


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
