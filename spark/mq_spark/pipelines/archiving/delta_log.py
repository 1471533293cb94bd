"""The log of a Delta table beside the files of an archive, in `_delta_log`.

The files are what is archived, and the log follows them: `follow` compares the files of days with
those that the log has, and commits the difference, in one commit. So a run that died between the
files and the log leaves a log that is behind, and the next run closes the gap. A commit that comes
after a merge of files replaces them: until then a reader of the table misses them, and reads again.

Other programs read the table; none may write to it, or merge its files. An archive has a log once
it was asked for, and keeps it. The package `deltalake` does the work, without Java.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mq import extras
from mq_spark.errors import MqSparkError
from mq_spark.pipelines.archiving.archive_directory import Day

if TYPE_CHECKING:
    from deltalake import DeltaTable, Schema
    from deltalake.transaction import AddAction

_PARTITIONED_BY = ["topic", "date"]


class DeltaLog:
    """Of one archive, whose lock the caller holds."""

    def __init__(self, archive: Path) -> None:
        """Raises MqSparkError if the package is not installed."""
        try:
            import deltalake  # noqa: F401
        except ModuleNotFoundError:
            raise MqSparkError(
                f"the log of the Delta table {archive} needs the package deltalake: "
                f"{extras.install('delta')}"
            ) from None
        self._archive = archive

    def follow(self, days: Collection[Day]) -> None:
        """The table has the files of these days when this returns."""
        from deltalake import DeltaTable
        from deltalake.transaction import create_table_with_add_actions

        home = str(self._archive)
        if DeltaTable.is_deltatable(home):
            table = DeltaTable(home)
            actions = self._difference(days, table)
            if actions:
                table.create_write_transaction(actions, "append", table.schema(), _PARTITIONED_BY)
        elif days:
            actions = self._difference(days, None)
            schema = _schema(max(path for day in days for path in day.files()))
            create_table_with_add_actions(home, schema, actions, partition_by=_PARTITIONED_BY)

    def _difference(self, days: Collection[Day], table: DeltaTable | None) -> list[Any]:
        from deltalake.transaction import RemoveAction

        logged: dict[Path, set[Path]] = {}
        for path in map(Path, table.file_uris() if table else ()):
            logged.setdefault(path.parent, set()).add(path)
        added: list[tuple[Path, Day, bool]] = []
        removed: list[tuple[Path, bool]] = []
        for day in days:
            files, before = set(day.files()), logged.get(day.path, set())
            # Files that are gone were merged: their messages are in the others.
            is_new = before <= files
            added += ((path, day, is_new) for path in sorted(files - before))
            removed += ((path, False) for path in sorted(before - files))
        # Days that a user has deleted.
        removed += ((path, True) for day in logged if not day.exists() for path in logged[day])
        now_ms = time.time_ns() // 1_000_000
        return [
            *(self._add_action(*one) for one in added),
            *(RemoveAction(self._inside(path), is_loss, now_ms) for path, is_loss in removed),
        ]

    def _add_action(self, path: Path, day: Day, is_new: bool) -> AddAction:  # noqa: FBT001
        import pyarrow.parquet as pq
        from deltalake.transaction import AddAction

        about = path.stat()
        return AddAction(
            path=self._inside(path),
            size=about.st_size,
            partition_values={"topic": day.topic, "date": day.date},
            modification_time=about.st_mtime_ns // 1_000_000,
            data_change=is_new,
            stats=json.dumps({"numRecords": pq.read_metadata(path).num_rows}),
        )

    def _inside(self, path: Path) -> str:
        return str(path.relative_to(self._archive))


def _schema(path: Path) -> Schema:
    """The columns of a file, and those that its directories name."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake import Schema

    columns = [field.with_nullable(True) for field in pq.read_schema(path)]  # noqa: FBT003
    of_directories = [pa.field("topic", pa.string()), pa.field("date", pa.date32())]
    return Schema.from_arrow(pa.schema([*columns, *of_directories]))
