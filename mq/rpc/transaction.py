"""TransactionService: the Transact stream, and ends from anywhere.

A stream reads, carries out and answers at the same time; the requests in flight on it are bounded.
However it ends, every request that it took gets its answer before. It decides nothing: halves are
batches for the publisher, ends and questions belong to `mq.broker.transaction.transacting`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from mq import names
from mq.broker.broker import Broker
from mq.broker.long_work import TimeSlice, in_turns
from mq.broker.publishing import Slot
from mq.broker.state.dedup import StoredAt
from mq.broker.transaction.questions import Question, Respondent
from mq.errors import (
    IllegalRequest,
    MqError,
    NodeStopped,
    ReplicationTimeout,
    TransactionNotFound,
)
from mq.rpc import framing, limits, status
from mq.rpc.context import Context
from mq.rpc.waiting import done_by
from mq.store.batch import Batch
from mq.wire.v1 import transaction_pb2 as pb
from mq.wire.v1.message_pb2 import Half

# Requests of one stream that are in flight, and answers that wait for its client to read them.
_REQUESTS_MAX = 256
# Answers are written together, up to about so many bytes: fewer messages of gRPC.
_WRITE_BYTES = 256 << 10


class TransactionService:
    def __init__(self, broker: Broker, broker_set: str) -> None:
        self._transacting = broker.transacting
        self._calls = _Calls(broker, broker_set)

    async def end_transaction(
        self, request: pb.EndTransactionRequest, context: Context
    ) -> pb.EndTransactionResponse:
        return await self._calls.end(request, "")

    async def transact(self, context: Context) -> None:
        request_id, start = await _begin(context)
        respondent = Respondent(
            start.producer_group, start.producer_id, answers_checks=start.answers_checks
        )
        self._transacting.join(respondent)
        try:
            stream = _Stream(self._calls, respondent, context, reads_more=start.reads_more)
            await stream.run(request_id)
        finally:
            self._transacting.leave(respondent)


class _Calls:
    """Calls of the broker, from and to the wire: for both methods, and for every stream."""

    def __init__(self, broker: Broker, broker_set: str) -> None:
        self._broker = broker
        self._broker_set = broker_set
        config = broker.settings.config
        self._timeout_s = config.broker.send_timeout_ms / 1000
        self._message_bytes_max = config.store.message_bytes_max

    async def end(
        self, request: pb.EndTransactionRequest, producer_group: str
    ) -> pb.EndTransactionResponse:
        if request.resolution not in (pb.RESOLUTION_COMMIT, pb.RESOLUTION_ROLLBACK):
            raise IllegalRequest(
                f"resolution = {request.resolution} ends no transaction: use commit (1) or "
                "rollback (2)"
            )
        transaction_id = parse_transaction_id(request.transaction_id, self._broker_set)
        try:
            async with asyncio.timeout(self._timeout_s):
                stored = await self._broker.transacting.end(
                    transaction_id,
                    commits=request.resolution == pb.RESOLUTION_COMMIT,
                    producer_group=producer_group,
                )
        except TimeoutError:
            raise ReplicationTimeout(
                f"no majority of the broker set had the end of transaction "
                f"{request.transaction_id} in time: it may become part of the log or not"
            ) from None
        stored = stored or StoredAt(0, -1, -1, 0)
        return pb.EndTransactionResponse(
            queue_id=stored.queue_id,
            queue_offset=stored.queue_offset,
            log_offset=stored.log_offset,
            stored_at_ms=stored.stored_at_ms,
        )

    async def submit(self, data: memoryview, producer_group: str) -> Slot:
        batch = limits.accept_batch(data, self._message_bytes_max)
        _check_half(batch, producer_group)
        await self._broker.publisher.room(len(data), self._timeout_s)
        return await self._broker.submit(batch)

    async def half_stored(self, slot: Slot) -> pb.HalfStored:
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        if not slot.outcome.done() and not await done_by(slot.outcome, deadline_s):
            raise self._broker.publisher.timed_out(slot)
        stored = slot.outcome.result()
        if stored.log_offset < 0:
            raise TransactionNotFound(
                "the half batch was stored before, so long ago that its sequence no longer "
                "identifies its transaction"
            )
        if stored.queue_offset >= 0 or stored.deliver_at_ms:
            raise IllegalRequest(
                f"sequence = {slot.batch.sequence} of producer {slot.batch.producer_id} is a batch "
                "that is no half one"
            )
        return pb.HalfStored(
            transaction_id=names.message_id(self._broker_set, stored.log_offset),
            stored_at_ms=stored.stored_at_ms,
            is_duplicate=stored.is_duplicate,
        )

    def question(self, question: Question) -> bytes:
        one, batch = question
        head = pb.CheckTransaction(
            transaction_id=names.message_id(self._broker_set, one.id),
            topic=one.topic,
            queue_id=batch.queue_id,
            stored_at_ms=one.stored_at_ms,
            check=one.checks,
        )
        frames = memoryview(batch.data)[batch.region_start :]
        return framing.transact_check(head.SerializeToString(), frames)


class _Stream:
    def __init__(
        self,
        calls: _Calls,
        respondent: Respondent,
        context: Context,
        *,
        reads_more: bool,
    ) -> None:
        self._calls = calls
        self._respondent = respondent
        self._context = context
        self._reads_more = reads_more
        self._free = asyncio.Semaphore(_REQUESTS_MAX)
        self._out: asyncio.Queue[bytes | None] = asyncio.Queue(_REQUESTS_MAX)
        self._under_way: set[asyncio.Task[None]] = set()

    async def run(self, request_id: int) -> None:
        started = pb.TransactResponse(request_id=request_id, started=pb.TransactStarted())
        self._out.put_nowait(started.SerializeToString())
        writer = asyncio.ensure_future(self._write())
        others = [asyncio.ensure_future(self._listen()), asyncio.ensure_future(self._ask())]
        try:
            await asyncio.wait([writer, *others], return_when=asyncio.FIRST_COMPLETED)
            await self._finish(writer, others)
        finally:
            tasks = [writer, *others, *self._under_way]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _finish(
        self, writer: asyncio.Future[None], others: Sequence[asyncio.Future[None]]
    ) -> None:
        """Every request that was taken gets its answer; then the error of the stream is raised."""
        for task in others:
            task.cancel()
        # Answers to questions are not read any longer.
        self._respondent.end(NodeStopped("the stream is over"))
        await asyncio.gather(*others, return_exceptions=True)
        answered = asyncio.ensure_future(self._answer_all())
        try:
            await asyncio.wait([writer, answered], return_when=asyncio.FIRST_COMPLETED)
        finally:
            answered.cancel()
        if writer.done():
            writer.result()
        await writer
        for task in others:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _answer_all(self) -> None:
        while self._under_way:
            await asyncio.wait(self._under_way)
        await self._out.put(None)

    async def _write(self) -> None:
        while (data := await self._out.get()) is not None:
            responses, size = [data], len(data)
            while self._reads_more and size < _WRITE_BYTES and not self._out.empty():
                more = self._out.get_nowait()
                if more is None:
                    self._out.put_nowait(None)  # last, and there is room for it
                    break
                responses.append(more)
                size += len(more)
            # A question carries a message that was never parsed: if it is malformed, the client
            # must lose that question alone.
            questions = [one for one in responses if framing.is_check(one)]
            answers = [one for one in responses if not framing.is_check(one)]
            for message in ([framing.transact_more(answers)] if answers else []) + questions:
                await self._context.write(message)

    async def _ask(self) -> None:
        while True:
            question = await self._respondent.next()
            await self._out.put(self._calls.question(question))

    # -- requests ---------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while (data := await self._context.read()) is not None:
            # All of it is legal before any of it is done.
            turn = TimeSlice()
            for request in await in_turns(framing.read_transact(data)):
                await self._take(request)
                await turn.over()

    async def _take(self, request: framing.Transact) -> None:
        request_id, kind, content = request
        if kind == "start":
            raise IllegalRequest("only the first message of the stream is `start`")
        end = pb.EndTransactionRequest() if kind == "half" else _parse_end(content)
        await self._free.acquire()
        if kind == "half":
            await self._take_half(request_id, content)
        elif kind == "end":
            self._start(self._end(request_id, end))
        else:
            self._start(self._checked(end))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._under_way.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._free.release()

    async def _take_half(self, request_id: int, content: memoryview) -> None:
        """Submits in the order of the stream; answers come in any order."""
        try:
            slot = await self._calls.submit(content, self._respondent.group)
        except MqError as error:
            self._start(self._out.put(_failed(request_id, error).SerializeToString()))
        else:
            self._start(self._half(request_id, slot))

    async def _half(self, request_id: int, slot: Slot) -> None:
        try:
            stored = await self._calls.half_stored(slot)
            response = pb.TransactResponse(request_id=request_id, half=stored)
        except MqError as error:
            response = _failed(request_id, error)
        await self._out.put(response.SerializeToString())

    async def _end(self, request_id: int, request: pb.EndTransactionRequest) -> None:
        try:
            ended = await self._calls.end(request, self._respondent.group)
            response = pb.TransactResponse(request_id=request_id, ended=ended)
        except MqError as error:
            response = _failed(request_id, error)
        await self._out.put(response.SerializeToString())

    async def _checked(self, request: pb.EndTransactionRequest) -> None:
        """Has no answer. The question is asked again when it is due, if this failed."""
        if request.resolution != pb.RESOLUTION_UNKNOWN:
            with contextlib.suppress(MqError):
                await self._calls.end(request, self._respondent.group)


def parse_transaction_id(text: str, broker_set: str) -> int:
    """Raises IllegalRequest, TransactionNotFound."""
    found, transaction_id = names.parse_message_id(text)
    if found != broker_set:
        raise TransactionNotFound(
            f"transaction {text} is one of broker set {found}: this is {broker_set}"
        )
    return transaction_id


def _failed(request_id: int, error: MqError) -> pb.TransactResponse:
    return pb.TransactResponse(request_id=request_id, failed=status.wire_status(error))


async def _begin(context: Context) -> tuple[int, pb.TransactStart]:
    data = await context.read()
    requests = [] if data is None else await in_turns(framing.read_transact(data))
    if [one.kind for one in requests] != ["start"]:
        raise IllegalRequest("the first message of the stream must be `start`, and nothing else")
    start = pb.TransactStart.FromString(bytes(requests[0].content))
    names.check_group(start.producer_group)
    producer_id = start.producer_id
    if not 1 <= len(producer_id) <= names.NAME_CHARACTERS_MAX or not producer_id.isprintable():
        raise IllegalRequest(
            f"a producer has an id of 1 to {names.NAME_CHARACTERS_MAX} printable characters"
        )
    return requests[0].request_id, start


def _parse_end(content: memoryview) -> pb.EndTransactionRequest:
    return pb.EndTransactionRequest.FromString(bytes(content))


def _check_half(batch: Batch, producer_group: str) -> None:
    if not batch.half:
        raise IllegalRequest("the batch has no `half`: it is for Publish, or say whose it is")
    try:
        group = Half.FromString(batch.half).producer_group
    except DecodeError:
        return  # the publisher refuses it
    if group != producer_group:
        raise IllegalRequest(
            f"a half batch of producer group {group[:200]!r} on a stream of {producer_group}"
        )
