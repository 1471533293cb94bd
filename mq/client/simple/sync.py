"""Receiving in batches without asyncio, the hand-written part of the synchronous SimpleConsumer."""

from __future__ import annotations

from mq.client.lifecycle import Background
from mq.client.simple.batch import ReceivedBatch as AsyncReceivedBatch
from mq.client.simple.batch import ReceivedMessages
from mq.client.simple.consumer import SimpleConsumer


class ReceivedBatch(ReceivedMessages):
    """The messages of one `SimpleConsumer.receive_batch`; it is empty if none came.

    A sequence of ReceivedMessage, of any queues: those of one queue stand in its order. `bodies`
    are all bodies, as they were sent. Keeping a batch keeps the bytes that were received.
    """

    def __init__(self, twin: AsyncReceivedBatch, background: Background) -> None:
        super().__init__(twin.parts)
        self._twin = twin
        self._background = background

    def ack(self) -> None:
        """All messages are done, as by `SimpleConsumer.ack`, which also takes a batch."""
        self._background.run(self._twin.ack())


class ThreadedSimpleConsumer(SimpleConsumer):
    """A consumer whose batches threads acknowledge."""

    def receive_batch_here(
        self, background: Background, max_messages: int, wait_s: float, invisible_s: float
    ) -> ReceivedBatch:
        found = background.run(self.receive_batch(max_messages, wait_s, invisible_s))
        return ReceivedBatch(found, background)
