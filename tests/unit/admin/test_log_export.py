"""ReadLog: what of the log a backup is shown."""

from __future__ import annotations

import asyncio

from mq.admin.log_export import read_chunk
from mq.store.scan import check_opening
from mq.wire.v1 import admin_pb2 as pb
from tests.support.consensus import Node, on_loop, turns
from tests.support.stores import small_config


async def read(node: Node, log_offset: int = 0, bytes_max: int = 0) -> pb.LogChunk:
    return await read_chunk(node.broker, log_offset, bytes_max)


@on_loop
async def test_uncommitted_entries_are_not_exported() -> None:
    node = Node()
    await node.topic("t")
    before = await read(node)
    assert before.next_offset == before.end_offset == node.store.log.end_offset
    node.consensus.is_held = True
    sending = asyncio.ensure_future(node.send("t", b"held"))
    await turns()
    assert node.store.log.end_offset > before.end_offset
    held = await read(node, before.end_offset)
    assert (held.data, held.end_offset, held.end_index) == (
        *(b"", before.end_offset, before.end_index),
    )
    node.consensus.commit()
    await sending
    shown = await read(node, before.end_offset)
    assert shown.end_offset == node.store.log.end_offset
    assert b"held" in shown.data


@on_loop
async def test_a_chunk_ends_with_its_segment_and_what_was_dropped_is_passed_over() -> None:
    node = Node(store=small_config(segment_bytes=4096, checkpoint_log_bytes=1 << 30))
    await node.topic("t")
    for _ in range(10):
        await node.send("t", b"x" * 1000)
    log = node.store.log
    assert len(log.segments()) > 2
    log_offset = 0
    for info in log.segments():
        chunk = await read(node, log_offset)
        assert (chunk.log_offset, chunk.segment_offset) == (log_offset, info.base_log_offset)
        assert len(chunk.data) == info.size_bytes
        check_opening(memoryview(chunk.data), info.first_index)
        log_offset = chunk.next_offset
    assert log_offset == chunk.end_offset == log.end_offset
    node.store.drop_front(1)
    for asked in (0, 100):
        assert (await read(node, asked)).log_offset == log.start_offset > 100
