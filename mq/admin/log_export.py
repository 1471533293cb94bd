"""The log of this node as it stands, in chunks: for backups, and for nodes that mend their own.

Only entries that are committed, applied and synced here are shown; a chunk never reaches over the
border of two segments. Bytes are checked, and read by a thread with files of its own: retention may
drop the segment meanwhile, and a cold disk must not hold up the loop.
"""

from __future__ import annotations

import asyncio

from mq.broker.broker import Broker
from mq.store.commitlog import CommitLog
from mq.store.logreader import LogApart
from mq.wire.v1 import admin_pb2 as pb

_CHUNK_BYTES_MAX = 3 << 20


async def read_chunk(broker: Broker, log_offset: int, bytes_max: int) -> pb.LogChunk:
    """Empty, with `next_offset` as asked, when there is nothing from there on; `bytes_max` 0: the
    most that a chunk may have. MessagesDamaged.
    """
    log = broker.store.log
    end_index = min(broker.store.applied_index, log.durable_index)
    term = broker.consensus.leading.term
    if end_index < log.first_index:
        return pb.LogChunk(log_offset=log_offset, next_offset=log_offset, term=term)
    log_offset = max(log_offset, log.start_offset)
    end_offset = log.place_of(end_index)[1]
    chunk = pb.LogChunk(
        log_offset=log_offset,
        next_offset=log_offset,
        end_offset=end_offset,
        end_index=end_index,
        term=term,
    )
    if log_offset < end_offset:
        chunk.segment_offset, data = await _read(
            log, log_offset, end_offset, bytes_max or _CHUNK_BYTES_MAX
        )
        chunk.data = bytes(data)
        chunk.next_offset += len(chunk.data)
    return chunk


async def _read(
    log: CommitLog, log_offset: int, end_offset: int, bytes_max: int
) -> tuple[int, bytes | memoryview]:
    """The start of the segment, and bytes of it."""
    base, segment_end = log.segment_around(log_offset)
    end = min(segment_end, end_offset, log_offset + min(bytes_max, _CHUNK_BYTES_MAX))
    part = log.apart(log_offset, end)
    loop = asyncio.get_running_loop()
    # A cancelled call does not stop the thread, which closes the file in the end.
    reading = loop.run_in_executor(None, _read_apart, part, log_offset, end)
    return base, await asyncio.shield(reading)


def _read_apart(part: LogApart, log_offset: int, end: int) -> bytes | memoryview:
    try:
        (data,) = part.read_ranges([(log_offset, end)])
        return data
    finally:
        part.close()
