"""Messages that a member of a group was delivered, as record batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from mq.client.arrow.columns import message_schema, record_batch
from mq.client.arrow.runs import Rows

if TYPE_CHECKING:
    from mq.client.batches import MessageBatch


def batch_columns(batch: MessageBatch, *, with_properties: bool) -> pa.RecordBatch:
    starts = np.frombuffer(batch.starts, np.int64)
    rows = Rows(
        batch.data,
        starts,
        np.frombuffer(batch.ends, np.int64) - starts,
        np.frombuffer(batch.queue_offsets, np.int64),
        np.frombuffer(batch.log_offsets, np.int64),
        np.frombuffer(batch.stored_at_ms, np.int64),
    )
    return record_batch(rows, batch.queue, with_properties=with_properties)


def joined_columns(batches: Sequence[MessageBatch], *, with_properties: bool) -> pa.RecordBatch:
    """All messages in one record batch, in their order; it is empty without any."""
    made = [batch_columns(batch, with_properties=with_properties) for batch in batches]
    if len(made) == 1:
        return made[0]
    schema = message_schema(with_properties=with_properties)
    table = pa.Table.from_batches(made, schema).combine_chunks()
    found = table.to_batches()
    return found[0] if found else pa.RecordBatch.from_pylist([], schema)
