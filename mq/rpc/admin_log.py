"""AdminService, for backups: the log as it stands, of any node.

Only what is committed, applied and synced here is shown; a chunk never reaches over the border of
two segments. Bytes are checked, and read by a thread with files of its own: retention may drop the
segment meanwhile, and a cold disk must not hold up the loop.
"""

from __future__ import annotations

import asyncio

from mq.broker.broker import Broker
from mq.rpc.methods import Context
from mq.store.commitlog import CommitLog
from mq.store.logreader import LogApart
from mq.wire.v1 import admin_pb2 as pb

_CHUNK_BYTES_MAX = 3 << 20


class LogAdmin:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def read_log(self, request: pb.ReadLogRequest, context: Context) -> pb.LogChunk:
        """Empty, and `next_offset` as asked, when there is nothing from there on.

        MessagesDamaged.
        """
        log = self._broker.store.log
        end_index = min(self._broker.store.applied_index, log.durable_index)
        term = self._broker.consensus.leading.term
        if end_index < log.first_index:
            return pb.LogChunk(
                log_offset=request.log_offset, next_offset=request.log_offset, term=term
            )
        log_offset = max(request.log_offset, log.start_offset)
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
                log, log_offset, end_offset, request.bytes_max or _CHUNK_BYTES_MAX
            )
            chunk.data = bytes(data)
            chunk.next_offset += len(chunk.data)
        return chunk


async def _read(
    log: CommitLog, log_offset: int, end_offset: int, bytes_max: int
) -> tuple[int, bytes | memoryview]:
    """Where the segment begins, and bytes of it."""
    base, segment_end = log.segment_around(log_offset)
    end = min(segment_end, end_offset, log_offset + min(bytes_max, _CHUNK_BYTES_MAX))
    part = log.apart(log_offset, end)
    loop = asyncio.get_running_loop()
    # A caller that is gone does not stop the thread, which closes the file in the end.
    reading = loop.run_in_executor(None, _read_apart, part, log_offset, end)
    return base, await asyncio.shield(reading)


def _read_apart(part: LogApart, log_offset: int, end: int) -> bytes | memoryview:
    try:
        (data,) = part.read_ranges([(log_offset, end)])
        return data
    finally:
        part.close()
