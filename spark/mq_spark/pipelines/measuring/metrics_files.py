"""Figures as Parquet files, one a day, each row once for every reader of the directory.

    DIR/date=2026-11-16/figures-00000.parquet    windows that are complete
    DIR/date=2026-11-16/open.parquet             those that are not yet, as of the last `--once`
    DIR/.lock DIR/.adding DIR/_checkpoint        readers of Parquet skip these

A batch is added by writing the day's file anew beside the old one and renaming it. The file says
which batch it took last and where that begins: when Spark repeats a batch after a crash, its rows
are replaced. One command at a time writes into a directory, and one batch at a time.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mq_spark.errors import MqSparkError
from mq_spark.pipelines.durable import alone, sync
from mq_spark.pipelines.measuring.metrics_figures import KEYS, SCHEMA

# A day of more than that has several files, so that adding a batch stays cheap.
_FILE_BYTES_MAX = 16 << 20
_LAST_WRITE = b"mq.last_write"
_OPEN = "open.parquet"


class _LastWrite(NamedTuple):
    """The query and batch that a file took last, and how many rows there were before."""

    query: str = ""
    batch_id: int = -1
    rows_before: int = 0


class FigureFiles:
    def __init__(self, directory: Path, *, file_bytes_max: int = _FILE_BYTES_MAX) -> None:
        self._directory = directory
        self._file_bytes_max = file_bytes_max

    @property
    def is_empty(self) -> bool:
        return not any(self._directory.glob("date=*/figures-*.parquet"))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """For one writer; the directory is made. MqSparkError when another one is at it."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._directory / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise MqSparkError(f"--to {self._directory}: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MqSparkError(
                f"--to {self._directory}: another `mq spark metrics` writes there now; "
                "stop it, or give another directory"
            ) from None
        else:
            yield
        finally:
            os.close(lock)

    def add(self, figures: pa.Table, query: str, batch_id: int) -> None:
        """Durable when it returns. Again with the same batch: its rows are replaced. One that is
        older than what is there has come before: it changes nothing.
        """
        with alone(self._directory / ".adding"):
            for date, rows in _by_date(figures):
                self._add_to_day(date, rows, query, batch_id)

    def _add_to_day(self, date: dt.date, rows: pa.Table, query: str, batch_id: int) -> None:
        path = self._newest(date)
        known, last = _read_marked(path)
        if last.query == query and last.batch_id > batch_id:
            return
        if last[:2] == (query, batch_id):
            known = known.slice(0, last.rows_before)
        elif len(known) and path.stat().st_size >= self._file_bytes_max:
            path, known = _next(path), SCHEMA.empty_table()
        _write(path, pa.concat_tables([known, rows]), _LastWrite(query, batch_id, len(known)))

    def replace_open(self, figures: pa.Table) -> None:
        """The windows that are open now, in place of those that were."""
        for old in self._directory.glob(f"date=*/{_OPEN}"):
            old.unlink()
        for date, rows in _by_date(figures):
            _write(self._day(date) / _OPEN, rows, None)

    def read(self, windows_max: int | None = None) -> pa.Table:
        """The figures of all days, or of the newest windows only; in the order of KEYS."""
        parts: list[pa.Table] = []
        starts: set[object] = set()
        for day in sorted(self._directory.glob("date=*"), reverse=True):
            found = [_read_marked(path)[0] for path in sorted(day.glob("*.parquet"))]
            parts += found
            starts.update(*(part["window_start"].unique().to_pylist() for part in found))
            if windows_max is not None and len(starts) >= windows_max:
                break
        table = pa.concat_tables([SCHEMA.empty_table(), *parts])
        return newest_windows(table.sort_by([(name, "ascending") for name in KEYS]), windows_max)

    def _day(self, date: dt.date) -> Path:
        return self._directory / f"date={date.isoformat()}"

    def _newest(self, date: dt.date) -> Path:
        files = sorted(self._day(date).glob("figures-*.parquet"))
        return files[-1] if files else self._day(date) / "figures-00000.parquet"


def newest_windows(figures: pa.Table, windows_max: int | None) -> pa.Table:
    if windows_max is None:
        return figures
    starts = sorted(figures["window_start"].unique().to_pylist())[-windows_max:]
    if not starts:
        return figures
    oldest = pa.scalar(starts[0], SCHEMA.field("window_start").type)
    return figures.filter(pc.greater_equal(figures["window_start"], oldest))


def _by_date(figures: pa.Table) -> Iterator[tuple[dt.date, pa.Table]]:
    dates = pc.cast(figures["window_start"], pa.date32())
    for date in sorted(dates.unique().to_pylist()):
        yield date, figures.filter(pc.equal(dates, pa.scalar(date, pa.date32())))


def _next(path: Path) -> Path:
    number = int(path.stem.rpartition("-")[2])
    return path.with_name(f"figures-{number + 1:05d}.parquet")


def _read_marked(path: Path) -> tuple[pa.Table, _LastWrite]:
    try:
        found = pq.read_table(path, partitioning=None)
    except FileNotFoundError:
        # Not there yet; or the open windows, which a run that began just now has taken away.
        return SCHEMA.empty_table(), _LastWrite()
    except (OSError, pa.ArrowException) as error:
        raise MqSparkError(f"{path} cannot be read: {error}") from error
    last = json.loads((found.schema.metadata or {}).get(_LAST_WRITE, b"[]"))
    return found.replace_schema_metadata(None).cast(SCHEMA), _LastWrite(*last)


def _write(path: Path, rows: pa.Table, last_write: _LastWrite | None) -> None:
    if last_write is not None:
        rows = rows.replace_schema_metadata({_LAST_WRITE: json.dumps(last_write)})
    # Readers skip names that begin with a dot; one that was left behind is written over.
    fresh = path.with_name(f".{path.name}.fresh")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with fresh.open("wb") as file:
            pq.write_table(rows, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        sync(path.parent)
    except OSError as error:
        raise MqSparkError(f"{path} cannot be written: {error.strerror or error}") from error
