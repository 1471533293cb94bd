"""A Publish stream: requests in, their results out, in the order of the requests.

Most requests are one small plain batch, which is joined with others: its answer is written by the
callback that says where it is stored, as long as the client has room. All other answers are
written by a task.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias, cast

from google.protobuf.message import DecodeError

from mq.broker.attribution import actor_of
from mq.broker.broker import Broker
from mq.broker.joined_sends import Placed
from mq.broker.long_work import TimeSlice
from mq.broker.publishing import Slot
from mq.broker.security.gate import Principal
from mq.broker.state.dedup import StoredAt
from mq.errors import IllegalRequest, MqError, NotLeader
from mq.rpc import framing, limits, status
from mq.rpc.access import LIVE, Rules
from mq.rpc.context import Context
from mq.rpc.waiting import done_by
from mq.wire import varint
from mq.wire.v1.message_pb2 import Batch
from mq.wire.v1.producer_pb2 import (
    ACK_LEADER,
    ACK_NONE,
    ACK_QUORUM,
    Ack,
    BatchResult,
    PublishRequest,
    PublishResponse,
)

_ACKS: Final = frozenset(Ack.values())
# Requests without an answer; also when the client does not read the answers. No more are read then.
_REQUESTS_MAX: Final = 256
# Of a request that is joined with others: opening each message costs more than it gains.
_JOINED_BYTES_MAX: Final = 8 << 10

# Of a stream; known by how they are written.
_QUEUES_MAX: Final = 256
_REQUEST_ID_FIELD: Final = b"\x08"
# `results` of a PublishResponse, by their size: a result of numbers alone is never longer.
_RESULT_HEADS: Final = [bytes((0x12, size)) for size in range(0x80)]

# Of a batch: the slot, or the result if it was refused, because an exception would keep alive
# everything that its traceback references.
_Outcome: TypeAlias = Slot | BatchResult


class _Submitted(NamedTuple):
    """A request whose batches are in flight."""

    request_id: int
    ack: int
    outcomes: list[_Outcome]
    deadline_s: float


class _Joined:
    """A request whose batch was joined with others; it is called with what became of it."""

    __slots__ = ("_stream", "id_field", "placed", "sender", "throttle_ms")

    def __init__(self, stream: PublishStream, id_field: bytes) -> None:
        self._stream = stream
        self.sender = stream.sender
        # The number of the request, as the same field stands in its answer.
        self.id_field = id_field
        self.throttle_ms = 0
        self.placed: Placed | BaseException | None = None

    def __call__(self, placed: Placed | BaseException) -> None:
        self.placed = placed
        self._stream.answer()


class PublishStream:
    def __init__(self, broker: Broker, rules: Rules, context: Context) -> None:
        """On the task that serves the stream."""
        self._broker = broker
        self._rules = rules
        self._live = LIVE.get()
        self._owner = room_owner(self._live.principal, context)
        self.sender = actor_of(self._live.principal.user, context.peer())
        self._context = context
        self._loop = asyncio.get_running_loop()
        config = broker.settings.config
        self._message_bytes_max = config.store.message_bytes_max
        self._timeout_s = config.broker.send_timeout_ms / 1000
        # The requests without an answer, the oldest first.
        self._requests: deque[_Submitted | _Joined] = deque()
        self._room = asyncio.Event()
        # Set when the first request is for the writer, or when the stream ends.
        self._news = asyncio.Event()
        # The writer has the first request in hand: no callback may answer it.
        self._is_writing = False
        self._is_ending = False
        self._writer = asyncio.ensure_future(self._write())
        self._has_room = True
        # The last request that `_join` has seen.
        self._tried = b""
        # Topic and queue, by their fields in a batch.
        self._queues: dict[bytes, tuple[str, int]] = {}
        # Used again and again: it has numbers alone.
        self._result = BatchResult()

    async def run(self) -> None:
        """Returns when the client has sent all of its requests. `finish` comes next."""
        read, requests, writer = self._context.read, self._requests, self._writer
        while (data := await read(self._join)) is not None:
            while len(requests) >= _REQUESTS_MAX and not writer.done():
                self._has_room = False
                self._room.clear()
                await self._room.wait()
            if writer.done():
                writer.result()
            if data is self._tried or not self._join(data):
                await self._take(data)

    async def finish(self) -> None:
        """Returns when every request has its answer."""
        self._is_ending = True
        self._news.set()
        await self._writer

    def close(self) -> None:
        self._writer.cancel()

    # -- requests ---------------------------------------------------------------------------------

    def _join(self, data: bytes) -> bool:
        """Joins a request that is one small plain batch; False: it is not, or has to wait. `read`
        asks this first, and returns what was declined.
        """
        self._tried = data
        if len(data) > _JOINED_BYTES_MAX or len(self._requests) >= _REQUESTS_MAX:
            return False
        single = framing.read_single(data)
        try:
            return self._join_parsed(data) if single is None else self._join_single(data, *single)
        except (DecodeError, MqError):
            return False  # and `_take` says why

    def _join_single(self, data: bytes, id_field: bytes, queue_fields: bytes, frame: bytes) -> bool:
        """Raises what is wrong with it."""
        topic, queue_id = self._queues.get(queue_fields) or self._read_queue(queue_fields)
        self._rules.publish_to(self._live.principal, topic)
        joined = _Joined(self, id_field)
        admit = self._admission(joined) if self._broker.quotas.is_limiting else None
        take = self._broker.joined_sends.take_frame
        is_taken = take(topic, queue_id, frame, len(data), joined, admit)
        if is_taken:
            self._requests.append(joined)
        return is_taken

    def _read_queue(self, queue_fields: bytes) -> tuple[str, int]:
        batch = Batch.FromString(queue_fields)
        if len(self._queues) >= _QUEUES_MAX:
            self._queues.clear()
        queue = self._queues[queue_fields] = batch.topic, batch.queue_id
        return queue

    def _join_parsed(self, data: bytes) -> bool:
        """As `_join_single`, of a batch of several messages, or one that is written otherwise."""
        request = PublishRequest.FromString(data)
        batches = request.batches
        if len(batches) != 1 or request.ack != ACK_QUORUM:
            return False
        batch = batches[0]
        if (
            batch.frame_sizes  # other columns mean nothing without it
            or batch.producer_id
            or batch.sequence
            or batch.delay_ms
            or batch.deliver_at_ms
            or batch.origin_log_offset
            or batch.HasField("half")
        ):
            return False
        self._rules.publish_to(self._live.principal, batch.topic)
        joined = _Joined(self, _REQUEST_ID_FIELD + varint.encode(request.request_id))
        is_taken = self._broker.joined_sends.take(
            batch.topic,
            batch.queue_id,
            batch.messages,
            len(data),
            joined,
            self._admission(joined) if self._broker.quotas.is_limiting else None,
        )
        if is_taken:
            self._requests.append(joined)
        return is_taken

    def _admission(self, joined: _Joined) -> Callable[[str, int, int], None]:
        def admit(topic: str, size: int, messages: int) -> None:
            user = self._live.principal.user
            joined.throttle_ms = self._broker.quotas.publish(user, topic, size, messages)

        return admit

    async def _take(self, data: bytes) -> None:
        request_id, ack, blobs = framing.read_publish(data)
        check_ack(ack)
        # What was joined before is not overtaken.
        self._broker.joined_sends.submit()
        outcomes: list[_Outcome] = []
        turn = TimeSlice()
        for blob in blobs:
            outcomes.append(await self._submit(blob, ack))
            await turn.over()
        if ack == ACK_NONE:
            return
        # The time-out starts here: waiting for room does not count.
        deadline_s = self._loop.time() + self._timeout_s
        self._requests.append(_Submitted(request_id, ack, outcomes, deadline_s))
        self._news.set()

    async def _submit(self, blob: memoryview, ack: int) -> _Outcome:
        try:
            batch = limits.accept_batch(blob, self._message_bytes_max)
            self._rules.publish_to(self._live.principal, batch.topic)
            await self._broker.publisher.room(len(blob), self._timeout_s, self._owner)
            return await self._broker.submit(
                batch,
                user=self._live.principal.user,
                owner=self._owner,
                tells_appended=ack == ACK_LEADER,
                sender=self.sender,
            )
        except MqError as error:
            # One-way: only the end of the stream can say that another node leads.
            if ack == ACK_NONE and isinstance(error, NotLeader):
                raise
            return _failed(error)

    # -- answers ----------------------------------------------------------------------------------

    def answer(self) -> None:
        """Answers requests that were joined, from the oldest on, as far as they are stored and the
        client has room. The rest is for the writer.
        """
        requests = self._requests
        while requests and not self._is_writing:
            first = requests[0]
            if isinstance(first, _Joined):
                placed = first.placed
                if placed is None:
                    return
                if isinstance(placed, Placed) and self._context.try_write(
                    self._stored(first, placed)
                ):
                    requests.popleft()
                    if not self._has_room or self._is_ending:
                        self._tell_room()
                    continue
            self._news.set()
            return

    def _tell_room(self) -> None:
        """A request was answered."""
        if not self._has_room:
            self._has_room = True
            self._room.set()
        if self._is_ending:
            self._news.set()

    async def _write(self) -> None:
        requests = self._requests
        try:
            while requests or not self._is_ending:
                first = requests[0] if requests else None
                if first is None or (isinstance(first, _Joined) and first.placed is None):
                    self._news.clear()
                    await self._news.wait()
                    continue
                self._is_writing = True
                await self._context.write(await self._response(first))
                self._is_writing = False
                requests.popleft()
                self._tell_room()
                self.answer()
        finally:
            # The reader waits for room that only the writer makes.
            self._room.set()

    async def _response(self, request: _Submitted | _Joined) -> bytes:
        if isinstance(request, _Joined):
            placed = request.placed
            if isinstance(placed, Placed):
                return self._stored(request, placed)
            results = [_failed(status.known_error(cast("BaseException", placed)))]
            response = PublishResponse(results=results, throttle_ms=request.throttle_ms)
            return request.id_field + response.SerializeToString()
        request_id, ack, outcomes, deadline_s = request
        throttle_ms = max((one.throttle_ms for one in outcomes if isinstance(one, Slot)), default=0)
        results = [await self._settled(one, ack, deadline_s) for one in outcomes]
        response = PublishResponse(request_id=request_id, results=results, throttle_ms=throttle_ms)
        return response.SerializeToString()

    def _stored(self, joined: _Joined, placed: Placed) -> bytes:
        result = self._result
        result.queue_id, result.queue_offset, result.stored_at_ms, log_offsets = placed
        result.log_offset = log_offsets[0]
        encoded = result.SerializeToString()
        answer = joined.id_field + _RESULT_HEADS[len(encoded)] + encoded
        if joined.throttle_ms:
            answer += PublishResponse(throttle_ms=joined.throttle_ms).SerializeToString()
        return answer

    async def _settled(self, slot: _Outcome, ack: int, deadline_s: float) -> BatchResult:
        if isinstance(slot, BatchResult):
            return slot
        try:
            return stored_result(await outcome(self._broker, slot, ack, deadline_s))
        except MqError as error:
            return _failed(error)


def room_owner(caller: Principal, context: Context) -> str:
    """The owner of a share of the room: a user, or a connection whose user is not known."""
    return caller.user or context.peer()


def check_ack(ack: int) -> None:
    """IllegalRequest."""
    if ack not in _ACKS:
        raise IllegalRequest(f"unknown ack {ack}: use 0 (quorum), 1 (leader) or 2 (none)")


async def outcome(broker: Broker, slot: Slot, ack: int, deadline_s: float) -> StoredAt:
    """Raises FlushTimeout, ReplicationTimeout, or the error of the batch."""
    waited: asyncio.Future[object] = slot.outcome  # type: ignore[assignment]
    if ack == ACK_LEADER and not slot.outcome.done():
        waited = asyncio.ensure_future(broker.on_leader(slot))
        waited.add_done_callback(_retrieve)
    if not waited.done() and not await done_by(waited, deadline_s):
        raise broker.publisher.timed_out(slot)
    if waited is slot.outcome or slot.outcome.done():
        return slot.outcome.result()
    waited.result()
    return StoredAt(slot.batch.queue_id, -1, -1, 0, deliver_at_ms=slot.batch.deliver_at_ms)


def stored_result(stored: StoredAt) -> BatchResult:
    return BatchResult(
        queue_id=stored.queue_id,
        queue_offset=stored.queue_offset,
        log_offset=stored.log_offset,
        stored_at_ms=stored.stored_at_ms,
        is_duplicate=stored.is_duplicate,
        deliver_at_ms=stored.deliver_at_ms,
    )


def _failed(error: MqError) -> BatchResult:
    details = status.wire_status(error)
    return BatchResult(
        code=details.code,
        text=details.text,
        queue_offset=-1,
        log_offset=-1,
        leader_address=details.leader_address,
        retry_after_ms=details.retry_after_ms,
    )


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Retrieves the exception so that asyncio does not warn: the client may have gone."""
    if not future.cancelled():
        future.exception()
