"""TransactionService: the Transact stream, and ends from anywhere.

A stream reads, carries out and answers at the same time; the requests in flight on it are bounded.
However it ends, every request that it took gets its answer before. It decides nothing: halves are
batches for the publisher, ends and questions belong to `mq.broker.transaction.transacting`. Both
answer by callback, and one timer serves all time-outs: a request costs no task.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import TypeAlias

from google.protobuf.message import DecodeError

from mq import names
from mq.access.policies import Action
from mq.broker import held
from mq.broker.attribution import Actor, actor_of
from mq.broker.broker import Broker
from mq.broker.long_work import TimeSlice, in_turns
from mq.broker.publishing import Slot
from mq.broker.state.dedup import StoredAt
from mq.broker.state.transactions import half_terms
from mq.broker.transaction.questions import Question, Respondent
from mq.errors import (
    IllegalRequest,
    MqError,
    NodeStopped,
    ReplicationTimeout,
    TopicNotFound,
    TransactionNotFound,
)
from mq.rpc import framing, limits, status
from mq.rpc.access import LIVE, Rules
from mq.rpc.context import Context
from mq.rpc.publish_stream import room_owner
from mq.rpc.waiting import Pending, Timeouts
from mq.store.batch import Batch
from mq.wire.v1 import transaction_pb2 as pb

# Requests of one stream that are in flight, or whose answers wait for its client to read them.
_REQUESTS_MAX = 256
# Answers are written together, up to about so many bytes: fewer messages of gRPC.
_WRITE_BYTES = 256 << 10

_NOWHERE = StoredAt(0, -1, -1, 0)
# Setting all fields of an answer again is faster than making another one.
_HALF_STORED = pb.TransactResponse(half=pb.HalfStored())
_ENDED = pb.TransactResponse(ended=pb.EndTransactionResponse())

# Of a half or an end: where its messages are stored; None: it was rolled back.
_Place: TypeAlias = StoredAt | None
# Called with the time that the sender of a half should pause, in ms, and what became of the half.
HalfTeller: TypeAlias = Callable[[int, StoredAt | Exception], None]


class TransactionService:
    def __init__(self, broker: Broker, broker_set: str, rules: Rules) -> None:
        self._transacting = broker.transacting
        self._quotas = broker.quotas
        self._calls = _Calls(broker, broker_set, rules)

    async def end_transaction(
        self, request: pb.EndTransactionRequest, context: Context
    ) -> pb.EndTransactionResponse:
        ended: asyncio.Future[_Place | Exception] = asyncio.get_running_loop().create_future()
        self._calls.begin_end(request, "", functools.partial(_fulfil, ended))
        place = await ended
        if isinstance(place, Exception):
            raise place
        response = pb.EndTransactionResponse()
        _set_place(response, place)
        return response

    async def transact(self, context: Context) -> None:
        caller = LIVE.get().principal
        with self._quotas.streaming(caller.user, caller.namespace):
            await self._transact(context)

    async def _transact(self, context: Context) -> None:
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

    def __init__(self, broker: Broker, broker_set: str, rules: Rules) -> None:
        self._broker = broker
        self._broker_set = broker_set
        self.rules = rules
        config = broker.settings.config
        self._timeout_s = config.broker.send_timeout_ms / 1000
        self._timeouts = Timeouts(self._timeout_s)
        self._message_bytes_max = config.store.message_bytes_max

    def begin_end(
        self,
        request: pb.EndTransactionRequest,
        producer_group: str,
        tell: Callable[[_Place | Exception], None],
    ) -> None:
        """Raises if the request makes no sense, or this node does not lead."""
        if request.resolution not in (pb.RESOLUTION_COMMIT, pb.RESOLUTION_ROLLBACK):
            raise IllegalRequest(
                f"resolution = {request.resolution} ends no transaction: use commit (1) or "
                "rollback (2)"
            )
        transaction_id = parse_transaction_id(request.transaction_id, self._broker_set)
        pending = Pending(tell)
        submitted = self._broker.transacting.begin_end(
            transaction_id,
            commits=request.resolution == pb.RESOLUTION_COMMIT,
            producer_group=producer_group,
            answer=pending.settle,
        )

        def too_late() -> MqError:
            submitted.cancel()
            return ReplicationTimeout(
                f"no majority of the broker set had the end of transaction "
                f"{request.transaction_id} in time: it may become part of the log or not"
            )

        self._timeouts.add(pending, too_late)

    def accept_half(self, data: memoryview, producer_group: str) -> Batch:
        """Raises if the batch is illegal, or not one of this group."""
        batch = limits.accept_batch(data, self._message_bytes_max, self._normal_half)
        _check_half(batch, producer_group)
        return batch

    def _normal_half(self, half: bytes) -> bytes:
        return held.normal_half(half, self._broker.settings.config.transactions)

    def begin_half(self, batch: Batch, sender: Actor, tell: HalfTeller) -> bool:
        """Submits the batch. Returns False if it has to wait for room or for its topic. Raises as
        `Publisher.submit`.
        """
        publisher = self._broker.publisher
        if not publisher.has_room(len(batch.data)):
            return False
        try:
            admit = self._broker.admission(sender.user)
            slot = publisher.submit(batch, admit=admit, sender=sender)
        except TopicNotFound:
            return False
        self._await_half(slot, tell)
        return True

    async def begin_half_later(
        self, batch: Batch, sender: Actor, owner: str, tell: HalfTeller
    ) -> None:
        """Returns when the batch is submitted. Raises as `Broker.submit`; FlowControl."""
        await self._broker.publisher.room(len(batch.data), self._timeout_s, owner)
        submit = self._broker.submit(batch, user=sender.user, owner=owner, sender=sender)
        self._await_half(await submit, tell)

    def _await_half(self, slot: Slot, tell: HalfTeller) -> None:
        pending: Pending[StoredAt] = Pending(functools.partial(tell, slot.throttle_ms))
        if slot.outcome.done() or slot.on_outcome is not None:
            # The same half again: it is stored, or another request waits for it, too.
            slot.outcome.add_done_callback(lambda done: _half_done(slot, pending, _outcome(done)))
        else:
            # In the turn of the outcome: a callback of the future would take another one.
            slot.on_outcome = functools.partial(_half_done, slot, pending)
        self._timeouts.add(pending, functools.partial(self._broker.publisher.timed_out, slot))

    def half_stored(self, request_id: int, stored: StoredAt, throttle_ms: int) -> bytes:
        answer, half = _HALF_STORED, _HALF_STORED.half
        answer.request_id = request_id
        half.transaction_id = names.message_id(self._broker_set, stored.log_offset)
        half.stored_at_ms = stored.stored_at_ms
        half.is_duplicate = stored.is_duplicate
        half.throttle_ms = throttle_ms
        return answer.SerializeToString()

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
        self, calls: _Calls, respondent: Respondent, context: Context, *, reads_more: bool
    ) -> None:
        self._calls = calls
        self._live = LIVE.get()
        self._owner = room_owner(self._live.principal, context)
        self._sender = actor_of(self._live.principal.user, context.peer())
        self._respondent = respondent
        self._context = context
        self._reads_more = reads_more
        # Requests that were taken, and whose answers are not written yet.
        self._taken = 0
        self._room = asyncio.Event()
        # Answers that wait to be written; a failure is encoded on the task of the stream, which
        # knows the addresses for this client.
        self._answers: list[bytes | tuple[int, MqError]] = []
        self._news = asyncio.Event()
        # One message at a time: answers and questions come from two tasks.
        self._writing = asyncio.Lock()
        # No more requests are taken; no more answers are written.
        self._is_ending = self._is_over = False

    async def run(self, request_id: int) -> None:
        started = pb.TransactResponse(request_id=request_id, started=pb.TransactStarted())
        await self._context.write(started.SerializeToString())
        listener = asyncio.ensure_future(self._listen())
        asker = asyncio.ensure_future(self._ask())
        # The one that ends first ends the other.
        listener.add_done_callback(lambda _: self._end(asker))
        asker.add_done_callback(lambda _: self._end(listener))
        try:
            while not (listener.done() and asker.done()) or self._taken:
                await self._write()
        finally:
            self._is_over = True
            listener.cancel()
            asker.cancel()
            await asyncio.gather(listener, asker, return_exceptions=True)
        for task in (listener, asker):
            if not task.cancelled():
                task.result()

    def _end(self, other: asyncio.Future[None]) -> None:
        self._is_ending = True
        other.cancel()
        self._respondent.end(NodeStopped("the stream is over"))
        self._news.set()

    # -- writing ----------------------------------------------------------------------------------

    async def _write(self) -> None:
        """Writes the answers that wait, or waits until something happens."""
        waiting, self._answers = self._answers, []
        if not waiting:
            self._news.clear()
            await self._news.wait()
            return
        bundle, size = [], 0
        for one in waiting:
            answer = one if isinstance(one, bytes) else _failed(*one)
            bundle.append(answer)
            size += len(answer)
            if size >= _WRITE_BYTES or not self._reads_more:
                await self._write_bundle(bundle)
                bundle, size = [], 0
        if bundle:
            await self._write_bundle(bundle)

    async def _write_bundle(self, answers: list[bytes]) -> None:
        async with self._writing:
            await self._context.write(framing.transact_more(answers))
        self._release(len(answers))

    async def _ask(self) -> None:
        """A question is written alone: it carries a message that was never parsed, and a client
        that cannot read that must lose this question only.
        """
        while True:
            asked = await self._respondent.next()
            # A half message is shown to those alone who could have sent it, whatever group they
            # say they are of.
            self._calls.rules.publish_to(self._live.principal, asked.transaction.topic)
            question = self._calls.question(asked)
            async with self._writing:
                await self._context.write(question)

    def _answer(self, response: bytes) -> None:
        if self._is_over:
            return
        # Answers that may travel together wait for the others of this turn.
        is_alone = not self._reads_more and not self._answers and not self._writing.locked()
        if is_alone and self._context.try_write(response):
            self._release(1)
        else:
            self._answers.append(response)
            self._news.set()

    def _fail(self, request_id: int, error: Exception) -> None:
        self._answers.append((request_id, status.known_error(error)))
        self._news.set()

    def _release(self, count: int) -> None:
        self._taken -= count
        self._room.set()
        if self._is_ending:
            self._news.set()

    # -- requests ---------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while (data := await self._context.read(self._take_at_once)) is not None:
            own, more = framing.read_transact(data)
            # All of it is legal before any of it is done.
            others = await in_turns(map(framing.read_more, more)) if more else ()
            if own is not None:
                await self._take(own)
            turn = TimeSlice()
            for request in others:
                await self._take(request)
                await turn.over()

    async def _take(self, request: framing.Transact) -> None:
        while self._taken >= _REQUESTS_MAX:
            self._room.clear()
            await self._room.wait()
        waiting = self._begin(request)
        if waiting is None:
            return
        # Halves are submitted in the order of the stream; answers come in any order.
        try:
            tell = self._half_teller(request.request_id)
            await self._calls.begin_half_later(waiting, self._sender, self._owner, tell)
        except Exception as error:  # noqa: BLE001 - `known_error` logs what it does not know
            self._fail(request.request_id, error)
        except BaseException:
            # The stream ends before the half was submitted: it has no answer.
            self._release(1)
            raise

    def _take_at_once(self, data: bytes) -> bool:
        """Takes one request as it comes. Returns False if it is for `_listen`: when it has to wait,
        or makes no sense, which ends the stream.
        """
        if self._taken >= _REQUESTS_MAX or self._is_ending:
            return False
        try:
            own, more = framing.read_transact(data)
            if own is None or more:
                return False
            if self._begin(own) is None:
                return True
        except (MqError, DecodeError):
            return False
        self._taken -= 1
        return False

    def _begin(self, request: framing.Transact) -> Batch | None:
        """Returns the batch of a half that has to wait. What is wrong with the request alone is
        answered; raises what ends the stream.
        """
        request_id, kind, content = request
        if kind == "start":
            raise IllegalRequest("only the first message of the stream is `start`")
        end = None if kind == "half" else pb.EndTransactionRequest.FromString(bytes(content))
        self._taken += 1
        group, rules, caller = self._respondent.group, self._calls.rules, self._live.principal
        try:
            if end is None:
                batch = self._calls.accept_half(content, group)
                rules.publish_to(caller, batch.topic)
                if not self._calls.begin_half(batch, self._sender, self._half_teller(request_id)):
                    return batch
                return None
            rules.check_transaction(caller, Action.PUBLISH, end.transaction_id)
            if kind == "end":
                tell = functools.partial(self._end_told, request_id)
                self._calls.begin_end(end, group, tell)
            elif end.resolution == pb.RESOLUTION_UNKNOWN:
                self._release(1)
            else:
                self._calls.begin_end(end, group, self._checked)
        except Exception as error:  # noqa: BLE001 - `known_error` logs what it does not know
            if kind == "checked":
                self._checked(error)
            else:
                self._fail(request_id, error)
        return None

    def _half_teller(self, request_id: int) -> HalfTeller:
        return functools.partial(self._half_told, request_id)

    def _half_told(self, request_id: int, throttle_ms: int, stored: StoredAt | Exception) -> None:
        if isinstance(stored, Exception):
            self._fail(request_id, stored)
            return
        self._answer(self._calls.half_stored(request_id, stored, throttle_ms))

    def _end_told(self, request_id: int, place: _Place | Exception) -> None:
        if isinstance(place, Exception):
            self._fail(request_id, place)
            return
        _ENDED.request_id = request_id
        _set_place(_ENDED.ended, place)
        self._answer(_ENDED.SerializeToString())

    def _checked(self, _: object) -> None:
        """Has no answer. The question is asked again when it is due, if this failed."""
        self._release(1)


def parse_transaction_id(text: str, broker_set: str) -> int:
    """Raises IllegalRequest, TransactionNotFound."""
    found, transaction_id = names.parse_message_id(text)
    if found != broker_set:
        raise TransactionNotFound(
            f"transaction {text} is one of broker set {found}: this is {broker_set}"
        )
    return transaction_id


def _set_place(ended: pb.EndTransactionResponse, place: _Place) -> None:
    stored = place or _NOWHERE
    ended.queue_id = stored.queue_id
    ended.queue_offset = stored.queue_offset
    ended.log_offset = stored.log_offset
    ended.stored_at_ms = stored.stored_at_ms


def _fulfil(ended: asyncio.Future[_Place | Exception], place: _Place | Exception) -> None:
    if not ended.done():
        ended.set_result(place)


def _outcome(done: asyncio.Future[StoredAt]) -> StoredAt | Exception:
    error = done.exception()
    return error if isinstance(error, Exception) else done.result()


def _half_done(slot: Slot, pending: Pending[StoredAt], stored: StoredAt | Exception) -> None:
    if isinstance(stored, Exception):
        pending.settle(stored)
    elif stored.log_offset < 0:
        pending.settle(
            TransactionNotFound(
                "the half batch was stored before, so long ago that its sequence no longer "
                "identifies its transaction"
            )
        )
    elif stored.queue_offset >= 0 or stored.deliver_at_ms:
        pending.settle(
            IllegalRequest(
                f"sequence = {slot.batch.sequence} of producer {slot.batch.producer_id} is a batch "
                "that is no half one"
            )
        )
    else:
        pending.settle(stored)


def _failed(request_id: int, error: MqError) -> bytes:
    failed = status.wire_status(error)
    return pb.TransactResponse(request_id=request_id, failed=failed).SerializeToString()


async def _begin(context: Context) -> tuple[int, pb.TransactStart]:
    data = await context.read()
    request, more = framing.read_transact(data) if data is not None else (None, [])
    if request is None or request.kind != "start" or more:
        raise IllegalRequest("the first message of the stream must be `start`, and nothing else")
    start = pb.TransactStart.FromString(bytes(request.content))
    names.check_group(start.producer_group)
    producer_id = start.producer_id
    if not 1 <= len(producer_id) <= names.NAME_CHARACTERS_MAX or not producer_id.isprintable():
        raise IllegalRequest(
            f"a producer has an id of 1 to {names.NAME_CHARACTERS_MAX} printable characters"
        )
    return request.request_id, start


def _check_half(batch: Batch, producer_group: str) -> None:
    if not batch.half:
        raise IllegalRequest("the batch has no `half`: it is for Publish, or say whose it is")
    try:
        group = half_terms(batch.half).producer_group
    except DecodeError:
        return  # the publisher refuses it
    if group != producer_group:
        raise IllegalRequest(
            f"a half batch of producer group {group[:200]!r} on a stream of {producer_group}"
        )
