"""Figures as a stream: complete windows, each once, to files and to a topic.

No batch is limited in rows. Queues of unequal backlog would be read at unequal speed: the quick one
would move the watermark on, and the messages of the others would be late and dropped. So a first
run, or one after a pause, takes all there is as one batch; what Spark keeps of it is one small row
a window and topic.

Windows of one checkpoint have one length and one set of keys: other ones need another checkpoint.
"""

from __future__ import annotations

import dataclasses
import io
import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.readwriter import DataStreamWriter

from mq.cli.output import json_line
from mq.client.lowlevel import ConnectionOptions
from mq_spark.errors import MqSparkError
from mq_spark.options import connection_options
from mq_spark.pipelines.measuring.metrics_figures import (
    OBSERVED,
    SCHEMA,
    Measure,
    collected,
    figures,
    late,
)
from mq_spark.pipelines.measuring.metrics_files import FigureFiles
from mq_spark.pipelines.measuring.metrics_lag import lags_of, lags_of_batch, with_lags
from mq_spark.pipelines.reports import Reports

_SETTINGS = "mq-metrics.json"
# Clocks of producers that are ahead by more are not looked for in open windows.
_SKEW_MAX_MS = 3_600_000


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """`source` are options of `format("mq")` that say what is read, without where it begins."""

    connection: ConnectionOptions
    source: Mapping[str, str]
    measure: Measure
    groups: Sequence[str] = ()

    @property
    def options(self) -> dict[str, str]:
        return {**connection_options(self.connection), **self.source}


class Measuring:
    """The batches of one run. `take` is for foreachBatch; it may run in another process than the
    rest, see `reports`.
    """

    def __init__(
        self,
        wanted: Wanted,
        checkpoint: Path,
        *,
        files: FigureFiles | None = None,
        topic: str = "",
    ) -> None:
        self._wanted, self._files = wanted, files
        self._send = _sink(wanted.connection, topic, checkpoint) if topic else None
        self._checkpoint = checkpoint
        self._query = _settled(checkpoint, wanted.measure, files)
        self._reports = Reports(checkpoint / "mq-reports")
        self._reports.clear()
        self.windows = 0
        self.rows = 0
        self.late = 0
        self._counted_batch = -1
        if files:
            files.replace_open(SCHEMA.empty_table())

    def writer(self, session: SparkSession, starting: Mapping[str, str]) -> DataStreamWriter:
        """`starting` holds for the first run only."""
        messages = (
            session.readStream.format("mq").options(**self._wanted.options, **starting).load()
        )
        made = figures(messages, self._wanted.measure)
        return made.writeStream.outputMode("append").foreachBatch(self.take)

    def take(self, frame: DataFrame, batch_id: int) -> None:
        """Windows that this batch completes. Again with the same batch: they are there once."""
        made = collected(frame, self._wanted.measure, is_final=True)
        if not len(made):
            return
        if self._wanted.groups:
            made = with_lags(made, self._lags(batch_id))
        if self._files:
            self._files.add(made, self._query, batch_id)
        if self._send:
            # One task, and rows in a fixed order: a repeated batch sends the same under the same
            # numbers. The windows of a topic stay in order.
            self._send(frame.sparkSession.createDataFrame(messages_of(made)).coalesce(1), batch_id)
        self._reports.write(batch_id, _to_bytes(made))

    def completed(self) -> list[pa.Table]:
        """Windows that batches have completed since this was asked last. They are counted here."""
        found = [pa.ipc.open_stream(report).read_all() for report in self._reports.take()]
        for made in found:
            self.rows += len(made)
            self.windows += len(made["window_start"].unique())
        return found

    def _lags(self, batch_id: int) -> Any:
        directory = self._checkpoint / "mq-lags"
        return lags_of_batch(directory, batch_id, self._wanted.connection, self._wanted.groups)

    def count_late(self, records: Iterable[StreamingQueryProgress]) -> int:
        """The number of messages that came too late in this run, by Spark's progress records."""
        for record in records:
            if record.batchId > self._counted_batch and record.observedMetrics:
                self._counted_batch = record.batchId
                # Its own form of what was observed has rows within rows.
                observed = json.loads(record.json)["observedMetrics"][OBSERVED]
                self.late += late(observed, watermark_ms(self._checkpoint, record.batchId - 1))
        return self.late

    def finish(self, session: SparkSession) -> int:
        """At the end of a run: windows that are open go to a file of their own. How many rows."""
        if self._files is None:
            return 0
        found = self._open_windows(session)
        self._files.replace_open(found)
        return len(found)

    def _open_windows(self, session: SparkSession) -> pa.Table:
        closed_ms = watermark_ms(self._checkpoint, last_batch(self._checkpoint))
        start_ms = closed_ms - round(self._wanted.measure.window_s * 1000)
        if self._wanted.measure.time == "born":
            start_ms -= _SKEW_MAX_MS
        starting = {"startingTimestamp": str(max(0, start_ms))}
        made = measured(session, self._wanted, starting)
        ends_ms = pc.divide(made["window_end"].cast(pa.int64()), 1000)
        made = made.filter(pc.greater(ends_ms, closed_ms))
        field = SCHEMA.get_field_index("is_complete")
        return made.set_column(field, SCHEMA.field(field), pa.repeat(False, len(made)))  # noqa: FBT003


def measured(session: SparkSession, wanted: Wanted, starting: Mapping[str, str]) -> pa.Table:
    """All that is there now, as a batch, with the windows that are still open."""
    messages = session.read.format("mq").options(**wanted.options, **starting).load()
    made = collected(figures(messages, wanted.measure), wanted.measure, is_final=False)
    return with_lags(made, lags_of(wanted.connection, wanted.groups)) if wanted.groups else made


def _sink(
    connection: ConnectionOptions, topic: str, checkpoint: Path
) -> Callable[[DataFrame, int], None]:
    from mq_spark.writing.sink import sink

    place = str(checkpoint)
    return sink(
        **connection.shared, topic=topic, keys="keys", ordering_key="topic", checkpoint=place
    )


def _to_bytes(made: pa.Table) -> bytes:
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, made.schema) as writer:
        writer.write_table(made)
    return stream.getvalue()


# -- what a message of figures is ------------------------------------------------------------------


def documents(made: pa.Table) -> list[dict[str, Any]]:
    """A row as JSON has it: times as text, no keys that were not asked for."""
    found = []
    for row in made.to_pylist():
        for name in ("window_start", "window_end"):
            row[name] = row[name].isoformat(timespec="milliseconds").replace("+00:00", "Z")
        row["lag"] = dict(row["lag"]) if row["lag"] is not None else None
        optional = ("broker_set", "queue_id", "tag", "lag")
        found.append({k: v for k, v in row.items() if v is not None or k not in optional})
    return found


def messages_of(made: pa.Table) -> pa.Table:
    """The rows as messages: JSON, found by the name of their topic, ordered by it."""
    topics = made["topic"].to_pylist()
    return pa.table(
        {
            "body": pa.array([json_line(each).strip().encode() for each in documents(made)]),
            "keys": pa.array([[topic] for topic in topics], pa.list_(pa.string())),
            "topic": pa.array(topics, pa.string()),
        }
    )


# -- the checkpoint --------------------------------------------------------------------------------


def watermark_ms(checkpoint: Path, batch_id: int) -> int:
    """The watermark of a batch: windows that end at it or before are closed when it is done. 0:
    none yet.
    """
    path = checkpoint / "offsets" / str(batch_id)
    if not path.exists():
        return 0
    return int(json.loads(path.read_text().splitlines()[1])["batchWatermarkMs"])


def last_batch(checkpoint: Path) -> int:
    """The newest that is done; -1: none."""
    done = (path.name for path in (checkpoint / "commits").glob("*"))
    return max((int(name) for name in done if name.isdigit()), default=-1)


def _settled(checkpoint: Path, measure: Measure, files: FigureFiles | None) -> str:
    """The name of this checkpoint, whose settings are written down or compared."""
    path = checkpoint / _SETTINGS
    settings = {
        "window_ms": round(measure.window_s * 1000),
        "time": measure.time,
        "by": sorted(measure.by),
    }
    has_begun = any(path.name.isdigit() for path in (checkpoint / "offsets").glob("*"))
    if has_begun and path.exists():
        known = json.loads(path.read_text())
        name = str(known.pop("name"))
        if known != settings:
            raise MqSparkError(
                f"checkpoint {checkpoint} was begun with {_told(known)}, and now it is "
                f"{_told(settings)}: use the same, or another --to or --checkpoint"
            )
        return name
    if files and not files.is_empty:
        raise MqSparkError(
            f"--to has figures of an earlier run, but {checkpoint} is not its checkpoint, so "
            "windows would be there twice: give that checkpoint, or another directory"
        )
    name = uuid.uuid4().hex
    checkpoint.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".fresh")
    fresh.write_text(json.dumps({"name": name, **settings}))
    fresh.replace(path)
    return name


def _told(settings: Mapping[str, Any]) -> str:
    by = f", by {' and '.join(settings['by'])}" if settings["by"] else ""
    return f"windows of {settings['window_ms']} ms of the time {settings['time']}{by}"
