"""The batches in a query's checkpoint: Spark writes the end of a batch before it begins, and that
it is done behind it.

    <checkpoint>/offsets/12    v1, a line of Spark's own, the offset of the source
    <checkpoint>/commits/12

Read only, and only where the checkpoint is a directory of this machine; elsewhere nothing is known.
A stream with one source, which is ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from mq_spark.options import read_options
from mq_spark.reading.cluster import Cluster
from mq_spark.reading.offsets import StreamOffset, from_json, ranges

_LOCAL = "file:"


def rows_of_batch(checkpoint: str, batch_id: int) -> dict[str, int] | None:
    """The largest number of rows of a batch, by topic; None: it is not known. The first batch of
    all is taken to begin with its queues.
    """
    end = _logged(checkpoint, batch_id)
    if end is None:
        return None
    start = _logged(checkpoint, batch_id - 1) or StreamOffset({})
    rows: dict[str, int] = {}
    for one in ranges(start, end):
        rows[one.ref.topic] = rows.get(one.ref.topic, 0) + one.rows
    return rows


def backlog(options: Mapping[str, str], checkpoint: str) -> int:
    """The number of messages that a query with these options can read now, filters aside."""
    asked = read_options(options)
    with Cluster(asked) as cluster:
        earliest, latest = cluster.find("earliest", "latest")
        done = _last_committed(checkpoint)
        begins = done.queues if done else cluster.places(asked.starting or "latest")
    return sum(max(0, end - max(begins.get(ref, 0), earliest[ref])) for ref, end in latest.items())


def _last_committed(checkpoint: str) -> StreamOffset | None:
    commits = _directory(checkpoint) / "commits"
    batch_ids = [int(path.name) for path in commits.glob("*") if path.name.isdecimal()]
    return _logged(checkpoint, max(batch_ids)) if batch_ids else None


def _logged(checkpoint: str, batch_id: int) -> StreamOffset | None:
    try:
        lines = (_directory(checkpoint) / "offsets" / str(batch_id)).read_text().splitlines()
    except OSError:
        return None
    return from_json(json.loads(lines[2])) if len(lines) > 2 else None


def _directory(checkpoint: str) -> Path:
    return Path(checkpoint.removeprefix(_LOCAL))
