"""The requests of a producer to one broker set, and their answers, over a stream to its leader.

One request is written at a time, so that batches that cannot be sent yet may still go to another
set. A request that has no answer when its stream breaks is in doubt. What an answer means for a
batch, and which batches are sent, is decided by the producer.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from mq.client import encode
from mq.client.cluster.connection import SetConnection
from mq.client.cluster.leader_stream import BrokerStream, LeaderStream, Patience
from mq.client.producer.lines import Batch
from mq.errors import MqError, Unreachable
from mq.wire.v1.producer_pb2 import ACK_NONE, PublishResponse

log = logging.getLogger(__name__)

# A leader that owes an answer for so long may be frozen, and the others have another one by now.
_PATIENCE = Patience(owed_s=1.0, search_s=1.0)


class Request(NamedTuple):
    batches: Sequence[Batch]
    sent_s: float


class Owner(Protocol):
    """The producer."""

    def wake(self) -> None: ...
    def needs(self, sender: SetSender) -> bool: ...
    def handed_over(self, sender: SetSender, batches: Sequence[Batch]) -> None: ...
    def unwritten(self, batches: Sequence[Batch]) -> None: ...
    def mistaken(self) -> None: ...
    def answered(
        self, sender: SetSender, stream: BrokerStream, request: Request, response: PublishResponse
    ) -> None: ...
    def lost(self, requests: Iterable[Request], error: MqError) -> None: ...


class SetSender:
    """`progress_s` is when a batch was stored last."""

    def __init__(
        self, broker_set: SetConnection, ack: int, in_flight_max: int, owner: Owner
    ) -> None:
        self.broker_set = broker_set
        self.name = broker_set.name
        self.streams = LeaderStream(broker_set, "ProducerService", "Publish", self, _PATIENCE)
        self._loop = asyncio.get_running_loop()
        self.progress_s = self._loop.time()
        self._ack = ack
        self._in_flight_max = in_flight_max
        self._owner = owner
        self._ids = itertools.count(1)
        # Requests without an answer, oldest first, by the stream on which they were sent.
        self._in_flight: dict[BrokerStream, dict[int, Request]] = {}
        self._writing: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        return self.streams.current in self._in_flight

    @property
    def is_free(self) -> bool:
        """Whether one more request can be sent now."""
        stream = self.streams.current
        if self._writing is not None or stream is None or stream not in self._in_flight:
            return False
        return len(self._in_flight[stream]) < self._in_flight_max

    @property
    def in_flight(self) -> Iterable[Request]:
        return itertools.chain.from_iterable(one.values() for one in self._in_flight.values())

    def is_silent(self, now_s: float, patience_s: float) -> bool:
        """Whether an answer has been due for so long and nothing at all was heard."""
        stream = self.streams.current
        if stream is None:
            return False
        return now_s - max(self.owed_since_s(stream), stream.heard_s) > patience_s

    def send(self, batches: Sequence[Batch]) -> None:
        """One request. Only when the sender is free."""
        self._writing = self._loop.create_task(self._write(self.streams.current, batches))

    async def _write(self, stream: BrokerStream | None, batches: Sequence[Batch]) -> None:
        try:
            requests = self._in_flight.get(stream) if stream is not None else None
            if stream is None or requests is None or self.streams.current is not stream:
                # It has ended meanwhile: a request that comes after the end would be forgotten.
                self._owner.unwritten(batches)
                return
            request_id = next(self._ids)
            data = encode.request(request_id, self._ack, [batch.encoded() for batch in batches])
            requests[request_id] = Request(batches, self._loop.time())
            if not await stream.write(data):
                await stream.wait_ended()
            if self._ack == ACK_NONE and requests.pop(request_id, None) is not None:
                self._owner.handed_over(self, batches)
        except Exception:
            log.exception("the producer stops: a mistake of its own")
            self._owner.mistaken()
        finally:
            self._writing = None
            self._owner.wake()

    async def close(self, timeout_s: float) -> None:
        """Ends the streams and waits until the brokers have seen it: what was written before was
        received. Takes no longer than that.
        """
        await self.streams.close(timeout_s)
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    # Called by the stream

    def wants_stream(self) -> bool:
        return self._owner.needs(self)

    async def serve(self, stream: BrokerStream) -> None:
        requests = self._in_flight[stream] = {}
        self._owner.wake()
        error: MqError = Unreachable(f"{stream.address} ended the stream")
        try:
            while (data := await stream.read()) is not None:
                response = PublishResponse.FromString(data)
                request = requests.pop(response.request_id, None)
                if request is not None:
                    self._owner.answered(self, stream, request, response)
        except MqError as failure:
            error = failure
            raise
        finally:
            del self._in_flight[stream]
            lost = list(requests.values())
            requests.clear()
            self._owner.lost(lost, error)

    def owed_since_s(self, stream: BrokerStream) -> float:
        for request in self._in_flight.get(stream, {}).values():
            return request.sent_s
        return math.inf

    def stream_failed(self, error: MqError, address: str) -> None:
        """What could not be sent waits, or goes to another set, at the next turn."""
