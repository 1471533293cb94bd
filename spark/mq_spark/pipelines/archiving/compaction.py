"""Small files of an archive, made into few.

A reader of plain Parquet takes whatever files are in a day's directory, so files cannot be replaced
one by one: for a moment messages would be there twice, or not at all. Instead the day is built anew
beside the old one (large files as hard links, small ones that follow each other merged), checked,
and the two directories change places in one step of the file system. A crash before or behind that
step leaves a whole day and something to clean up. A reader that had listed the old files may find
them gone: it reads again.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mq_spark.errors import MqSparkError
from mq_spark.pipelines.archiving.archive_directory import (
    ArchiveDirectory,
    Day,
    is_part,
    merged_name,
)
from mq_spark.pipelines.durable import sync

if TYPE_CHECKING:
    import pyarrow as pa

MIB = 1 << 20
# How large files get, about, unless one is told otherwise.
FILE_MIB = 128

# Rows that are in memory at a time, and in a group of a file.
_BATCH_ROWS = 16_384
_GROUP_BYTES = 64 << 20
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EXDEV)


class Compacted(NamedTuple):
    days: int
    files_before: int
    files_after: int


def compact(
    archive: ArchiveDirectory, before_date: str, file_bytes: int, *, is_dry: bool = False
) -> Compacted:
    """Days before that date whose small files can become fewer ones of up to `file_bytes`.

    For a block of `changing`. A day that is done stays done when a later one fails.
    """
    leftovers = archive.state / "compaction"
    if leftovers.exists() and not is_dry:
        shutil.rmtree(leftovers)
    days = before = after = 0
    for day in archive.days():
        groups = plan(day.files(), file_bytes)
        if day.date >= before_date or all(len(group) == 1 for group in groups):
            continue
        days += 1
        before += sum(map(len, groups))
        after += len(groups)
        if not is_dry:
            _replace(day, groups, leftovers)
    return Compacted(days, before, after)


def plan(files: Sequence[Path], file_bytes: int) -> list[list[Path]]:
    """Files that follow each other, together up to that size; a large one stays alone, as does what
    no archive wrote.
    """
    groups: list[list[Path]] = []
    room_bytes = -1
    for path in files:
        size_bytes = path.stat().st_size
        is_mergeable = is_part(path) and size_bytes < file_bytes
        if is_mergeable and size_bytes <= room_bytes:
            groups[-1].append(path)
            room_bytes -= size_bytes
        else:
            groups.append([path])
            room_bytes = file_bytes - size_bytes if is_mergeable else -1
    return groups


def _replace(day: Day, groups: Sequence[Sequence[Path]], workshop: Path) -> None:
    fresh = workshop / day.path.parent.name / day.path.name
    fresh.mkdir(parents=True)
    for group in groups:
        if len(group) == 1:
            os.link(group[0], fresh / group[0].name)
        else:
            _merge(group, fresh / merged_name(group[0], group[-1]))
    sync(fresh)
    exchange(fresh, day.path)
    sync(day.path.parent)
    shutil.rmtree(workshop)


def _merge(paths: Sequence[Path], target: Path) -> None:
    """All rows in the order of the files. MqSparkError unless as many are in the new one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schemas = [pq.read_schema(path) for path in paths]
    schema = pa.unify_schemas(schemas).with_metadata(schemas[0].metadata)
    with pq.ParquetWriter(target, schema, compression="snappy") as writer:
        for table in _groups(_batches(paths, schema), schema):
            writer.write_table(table, row_group_size=max(1, table.num_rows))
    expected = sum(pq.read_metadata(path).num_rows for path in paths)
    found = pq.read_metadata(target).num_rows
    if found != expected:
        raise MqSparkError(
            f"{paths[0].parent}: {expected} rows became {found} on the way to {target}; "
            "the day is left as it was"
        )
    sync(target)


def _batches(paths: Sequence[Path], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in paths:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                # Columns that an older archive did not have are null.
                table = pa.Table.from_batches([batch])
                for field in schema:
                    if field.name not in table.column_names:
                        empty = pa.nulls(table.num_rows, field.type)
                        table = table.append_column(field, empty)
                yield from table.select(schema.names).cast(schema).to_batches()


def _groups(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Batches together until they are large enough to be a row group."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        held.append(batch)
        held_bytes += batch.nbytes
        if held_bytes >= _GROUP_BYTES:
            yield pa.Table.from_batches(held, schema)
            held, held_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held, schema)


def exchange(one: Path, other: Path) -> None:
    """Two directories change places, in one step. MqSparkError where that cannot be done."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise _unsupported(other, "this system")
    failed = libc.renameat2(
        _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE
    )
    number = ctypes.get_errno()
    if failed and number in _UNSUPPORTED:
        raise _unsupported(other, "its file system")
    if failed:
        raise OSError(number, os.strerror(number), str(other))


def _unsupported(directory: Path, what: str) -> MqSparkError:
    return MqSparkError(
        f"{directory} cannot be compacted: {what} cannot exchange two directories in one step, "
        "as ext4, xfs, btrfs and tmpfs on Linux do. Nothing was changed"
    )
