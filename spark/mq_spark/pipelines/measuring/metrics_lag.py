"""The lag of consumer groups when windows are written.

Asked once a batch and kept beside the checkpoint, so that a batch that Spark repeats after a crash
has the same lags, and the same bytes, as the first time. A group that cannot be asked has no lag in
these rows: figures never wait for it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from mq.client import Admin
from mq.client.lowlevel import ConnectionOptions
from mq.errors import MqError
from mq_spark.pipelines.measuring.metrics_figures import SCHEMA

_log = logging.getLogger(__name__)

# Messages behind, by group, topic, and queue as "set/queue".
Lags = Mapping[str, Mapping[str, Mapping[str, int]]]

_PLACE = ("topic", "broker_set", "queue_id")


def lags_of(connection: ConnectionOptions, groups: Sequence[str]) -> Lags:
    """As they are now."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    with Admin(**connection.shared) as admin:
        for group in groups:
            try:
                queues = admin.describe_group(group).queues
            except MqError as error:
                _log.warning("no lag of group %s in this batch: %s", group, error)
                continue
            topics = found.setdefault(group, {})
            for each in queues:
                queue = f"{each.broker_set}/{each.queue_id}"
                topics.setdefault(each.topic, {})[queue] = each.lag
    return found


def lags_of_batch(
    directory: Path, batch_id: int, connection: ConnectionOptions, groups: Sequence[str]
) -> Lags:
    """The same each time for the same batch."""
    path = directory / f"{batch_id}.json"
    if path.exists():
        known: Lags = json.loads(path.read_text())
        return known
    found = lags_of(connection, groups)
    directory.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".fresh")
    fresh.write_text(json.dumps(found))
    fresh.replace(path)
    # Spark repeats none but the last batch.
    for old in directory.glob("*.json"):
        if int(old.stem) < batch_id:
            old.unlink()
    return found


def with_lags(figures: pa.Table, lags: Lags) -> pa.Table:
    """The lag in the row's queue if it has one, otherwise in its topic. Null: not asked."""
    if not lags:
        return figures
    places = zip(*(figures[name].to_pylist() for name in _PLACE), strict=True)
    rows = [
        [
            (group, _lag(topics[topic], broker_set, queue_id))
            for group, topics in lags.items()
            if topic in topics
        ]
        for topic, broker_set, queue_id in places
    ]
    index = SCHEMA.get_field_index("lag")
    return figures.set_column(index, SCHEMA.field("lag"), pa.array(rows, SCHEMA.field("lag").type))


def _lag(queues: Mapping[str, int], broker_set: str | None, queue_id: int | None) -> int:
    if queue_id is None:
        return sum(queues.values())
    return queues.get(f"{broker_set}/{queue_id}", 0)
