"""SendAtomically when no majority answers: the outcome is not known, and known when sent again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from mq.broker.security.gate import EVERYBODY
from mq.errors import ReplicationTimeout
from mq.rpc.access import Rules
from mq.rpc.producer import ProducerService
from mq.wire.v1.message_pb2 import Batch, Message
from mq.wire.v1.producer_pb2 import RawAtomicRequest
from tests.support.consensus import Node, on_loop, soon, turns

if TYPE_CHECKING:
    from mq.rpc.context import Context

CONTEXT = cast("Context", SimpleNamespace(caller=EVERYBODY))


@on_loop
async def test_an_atomic_send_that_timed_out_is_stored_once_when_it_is_sent_again() -> None:
    node = Node(send_timeout_ms=100)
    await node.topic("out")
    service = ProducerService(node.broker, "set-0", Rules(node.broker))
    batch = Batch(topic="out", producer_id="p", sequence=1, messages=[Message(body=b"x")])
    request = RawAtomicRequest(batches=[batch.SerializeToString()])
    node.consensus.is_held = True
    for _ in range(2):  # the second waits for its turn behind the first
        with pytest.raises(ReplicationTimeout, match="with the same sequences"):
            await soon(service.send_atomically(request, CONTEXT))
    node.consensus.is_held = False
    node.consensus.commit()
    await turns()
    answer = await soon(service.send_atomically(request, CONTEXT))
    assert [one.is_duplicate for one in answer.results] == [True]
    assert node.ends("out")[0] == 1
    assert node.broker.publisher.in_flight_bytes == 0
