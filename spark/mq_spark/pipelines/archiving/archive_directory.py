"""A directory of Parquet files that is right for every reader, also after a crash.

    topic=orders/date=2026-11-16/part-0000000012-0000.parquet    batch 12, its first file
    _mq_archive/plan.json            the files of the last batch that was decided
    _mq_archive/staging/             files of a batch that is being written
    _mq_archive/checkpoint/          Spark's: how far the topics are read
    _mq_archive/reports/             what batches tell the command: see `reports`
    _mq_archive/lock                 held by a command as long as it runs
    _mq_archive/changing             locked during every change
    _delta_log/                      if it is a Delta table, too: see `delta_log`

Readers list `topic=*/date=*/` and nothing else: names that begin with _ are not for them. A batch
is written to staging, then its plan is written in one step, then its files are renamed to their
places. Before the plan nothing of the batch is seen; behind it the files are moved, never written
again, whatever Spark would make of the same batch the second time. So each message is there once.
Each try of a batch has a directory of its own in staging: Spark may still write to the last one's.

This module knows files only: neither Spark nor brokers.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from mq_spark.errors import MqSparkError
from mq_spark.pipelines.durable import alone, sync, write_whole

STATE = "_mq_archive"
VERSION = 1
_PART = re.compile(r"part-(\d{10,})-(\d{4,})(?:-to-(\d{10,}))?\.parquet")


class Day(NamedTuple):
    """The messages of a topic that were stored on one day (UTC)."""

    topic: str
    date: str
    path: Path

    def files(self) -> list[Path]:
        """In the order in which they were written."""
        return sorted((path for path in self.path.glob("*.parquet")), key=part_order)


class Stored(NamedTuple):
    """The files that a batch put into the directory."""

    rows: int = 0
    files: int = 0
    size_bytes: int = 0


class ArchiveDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = path / STATE
        self.checkpoint = self.state / "checkpoint"
        self._staging = self.state / "staging"
        self._plan_path = self.state / "plan.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """While the block runs, no other command changes the directory; the work that a crash left
        behind is completed first. Raises MqSparkError if another process holds the lock.
        """
        self.state.mkdir(parents=True, exist_ok=True)
        with (self.state / "lock").open("a+", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise MqSparkError(
                    f"{self.path} is being changed by process {lock.read().strip() or 'unknown'}: "
                    "one archive or compaction at a time; wait for it, or take another directory"
                ) from None
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            with self.changing():
                self.finish()
            yield

    def changing(self) -> AbstractContextManager[None]:
        """While the block runs, no other process changes the directory."""
        return alone(self.state / "changing")

    def store(self, query_id: str, batch_id: int, write: Callable[[Path], None]) -> Stored:
        """Makes the files that `write` puts into a directory of its own part of the archive.

        They are on disk and seen when this returns. A batch that was decided before is not written
        again. For a block of `changing`.
        """
        plan = self._plan()
        if plan and plan["query"] != query_id:
            raise MqSparkError(
                f"{self.path} was archived with another checkpoint than this one (query "
                f"{plan['query']}, now {query_id}): going on would store messages twice. Give the "
                "--checkpoint of before, or archive to another directory"
            )
        if plan and batch_id <= plan["batch"]:
            self.finish()
            return Stored()
        staged = self._staging / f"{batch_id}-{secrets.token_hex(4)}"
        self._clear_staging()
        write(staged)
        stored = self._decide(query_id, batch_id, staged)
        self.finish()
        return stored

    def finish(self) -> None:
        """Moves the files of the last decided batch that are not in place yet. What else is in
        staging was never decided and goes.
        """
        plan = self._plan()
        touched: set[Path] = set()
        for place, staged in plan["files"].items() if plan else ():
            source, target = self._staging / staged, self.path / place
            if source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                source.rename(target)
                touched |= {target.parent, target.parent.parent, self.path}
        for directory in touched:
            sync(directory)
        self._clear_staging()

    def days(self) -> list[Day]:
        """All that have a file, sorted."""
        found = [
            Day(unquote(path.parent.name.removeprefix("topic=")), path.name[len("date=") :], path)
            for path in self.path.glob("topic=*/date=*")
        ]
        return sorted(day for day in found if any(day.path.glob("*.parquet")))

    def newest_days(self) -> list[Day]:
        """Those that the last decided batch has files in."""
        plan = self._plan()
        paths = {(self.path / place).parent for place in (plan["files"] if plan else ())}
        return [day for day in self.days() if day.path in paths]

    @property
    def has_delta_log(self) -> bool:
        return (self.path / "_delta_log").is_dir()

    def staged_bytes(self) -> int:
        """The size of the batch that is being written, so far."""
        try:
            return sum(path.stat().st_size for path in self._staging.rglob("*.parquet"))
        except FileNotFoundError:  # moved meanwhile
            return 0

    @property
    def bytes_per_row(self) -> float | None:
        """Bytes a row of the last batch; None: there is none yet."""
        plan = self._plan()
        return plan["bytes"] / plan["rows"] if plan and plan["rows"] else None

    def _decide(self, query_id: str, batch_id: int, staged: Path) -> Stored:
        import pyarrow.parquet as pq

        files: dict[str, str] = {}
        rows = size_bytes = 0
        numbers: dict[Path, int] = {}
        for path in sorted(staged.rglob("*.parquet")):
            sync(path)
            rows += pq.read_metadata(path).num_rows
            size_bytes += path.stat().st_size
            day = path.parent.relative_to(staged)
            number = numbers[day] = numbers.get(day, -1) + 1
            place = day / f"part-{batch_id:010d}-{number:04d}.parquet"
            files[str(place)] = str(path.relative_to(self._staging))
        plan = {
            "version": VERSION,
            "query": query_id,
            "batch": batch_id,
            "rows": rows,
            "bytes": size_bytes,
            "files": files,
        }
        write_whole(self._plan_path, json.dumps(plan, indent=1))
        return Stored(rows, len(files), size_bytes)

    def _plan(self) -> dict[str, Any] | None:
        try:
            plan = json.loads(self._plan_path.read_text(encoding="utf-8"))
            version = plan["version"]
        except FileNotFoundError:
            return None
        except (ValueError, LookupError, TypeError) as error:
            raise MqSparkError(f"{self._plan_path} cannot be read: {error}") from error
        if version != VERSION:
            raise MqSparkError(
                f"{self._plan_path} has version {version!r}, this program knows {VERSION}: "
                "use the newer one"
            )
        assert isinstance(plan, dict)  # noqa: S101
        return plan

    def _clear_staging(self) -> None:
        # What Spark still writes for an earlier try, it may write between two steps of this.
        shutil.rmtree(self._staging, ignore_errors=True)


def part_order(path: Path) -> tuple[int, int, str]:
    """By batch and number; files of others come behind ours."""
    found = _PART.fullmatch(path.name)
    return (int(found[1]), int(found[2]), "") if found else (1 << 62, 0, path.name)


def part_batches(path: Path) -> tuple[int, int]:
    """The first and the last batch that a file has; files of others have one, behind all."""
    found = _PART.fullmatch(path.name)
    return (int(found[1]), int(found[3] or found[1])) if found else (1 << 62, 1 << 62)


def merged_name(first: Path, last: Path) -> str:
    """The name of a file that takes the place of these and all between them."""
    starts, ends = _PART.fullmatch(first.name), _PART.fullmatch(last.name)
    if not starts or not ends:
        raise MqSparkError(f"{first.parent} has files that no archive wrote: leave it alone")
    return f"part-{starts[1]}-{starts[2]}-to-{ends[3] or ends[1]}.parquet"


def is_part(path: Path) -> bool:
    """Written by an archive, or merged from such files."""
    return _PART.fullmatch(path.name) is not None
