"""A ReceiveResponse that is put together by hand is what any client's generated code reads."""

from __future__ import annotations

import numpy as np

from mq.broker.queue import Queue
from mq.broker.receive.granting import Given
from mq.broker.receive.handles import lease_bytes
from mq.rpc.framing import receive_response
from mq.store.reading import Run
from mq.wire.v1.consumer_pb2 import ReceivedRun, ReceiveResponse
from mq.wire.v1.consumer_pb2 import Run as WireRun
from mq.wire.v1.message_pb2 import Batch, Message


def run(queue_offset: int, messages: list[Message]) -> Run:
    frames = Batch(messages=messages).SerializeToString()
    sizes = [len(Batch(messages=[one]).SerializeToString()) for one in messages]
    return Run(
        queue_offset,
        len(messages),
        1000 + queue_offset,
        77,
        memoryview(frames),
        np.array(sizes, np.uint32),
    )


def test_it_reads_as_any_other() -> None:
    small, large = [Message(body=b"a"), Message()], [Message(body=bytes(300), tag="t")]
    given = [
        Given(Queue("t", 0), 7, 1, 5_000, run(0, small)),
        Given(Queue("other", 300), (1 << 64) - 1, 200, 1 << 41, run(1 << 40, large)),
    ]
    expected = ReceiveResponse(
        runs=[
            ReceivedRun(
                topic=one.queue.topic,
                queue_id=one.queue.queue_id,
                lease=lease_bytes(one.queue, one.lease),
                attempt=one.attempt,
                invisible_until_ms=one.visible_at_ms,
                run=WireRun(
                    queue_offset=one.run.queue_offset,
                    log_offset=one.run.log_offset,
                    stored_at_ms=77,
                    frame_sizes=one.run.sizes.tolist(),
                    messages=messages,
                ),
            )
            for one, messages in zip(given, (small, large), strict=True)
        ]
    )
    assert ReceiveResponse.FromString(receive_response(given)) == expected
    assert receive_response([]) == b""
