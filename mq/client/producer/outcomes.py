"""The outcomes of sends: the action of a producer for each result code, the broker sets that it
avoids, the outcome of a batch, and the futures that read it.

A retry counts against `retries` if only luck makes the next attempt better. It does not count after
a redirect to the leader or a retry-after of the broker: a fail-over leaves a set without a leader
for a second, and a busy broker asks to wait; only the time-out ends these retries. A set that
answers much later than the others, or refuses messages that it should take, gets no message that
may go elsewhere during a penalty, which doubles each time; then one batch probes it. Pure: the
caller passes the time.

A batch has one outcome for all of its messages. The result of a message is made when it is read; a
future for threads is an index into the outcome of its batch, and costs a lock, lists and callbacks
only when it is waited for.
"""

from __future__ import annotations

import enum
import itertools
import struct
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mq.client.cluster.errors import fresh
from mq.client.cluster.servers import Health
from mq.client.messages import SendResult
from mq.errors import MqError
from mq.wire.v1 import status_pb2 as wire
from mq.wire.v1.producer_pb2 import BatchResult


class ResultAction(enum.Enum):
    STORED = enum.auto()
    FOLLOW = enum.auto()  # retry at the leader
    WAIT = enum.auto()  # retry after the pause that the broker asked for
    RETRY = enum.auto()  # retry, in another queue if it may; counts against `retries`
    REROUTE = enum.auto()  # refresh the route of the topic, once per set
    RENUMBER = enum.auto()  # retry under another producer id
    FAIL = enum.auto()


_ACTIONS = {
    wire.SEND_OK: ResultAction.STORED,
    wire.OUTCOME_UNKNOWN: ResultAction.RETRY,
    wire.FLUSH_TIMEOUT: ResultAction.RETRY,
    wire.REPLICATION_TIMEOUT: ResultAction.RETRY,
    wire.DISK_FULL: ResultAction.RETRY,
    wire.NOT_LEADER: ResultAction.FOLLOW,
    wire.NODE_STOPPED: ResultAction.FOLLOW,
    wire.FLOW_CONTROL: ResultAction.WAIT,
    wire.TOPIC_NOT_FOUND: ResultAction.REROUTE,
    wire.QUEUE_NOT_FOUND: ResultAction.REROUTE,
    wire.PERMISSION_DENIED: ResultAction.REROUTE,
    wire.ILLEGAL_SEQUENCE: ResultAction.RENUMBER,
}
_IN_DOUBT = frozenset({wire.OUTCOME_UNKNOWN, wire.FLUSH_TIMEOUT, wire.REPLICATION_TIMEOUT})


def action_for(code: int) -> ResultAction:
    return _ACTIONS.get(code, ResultAction.FAIL)  # type: ignore[call-overload,no-any-return]


def is_in_doubt(code: int) -> bool:
    """Whether the batch may be stored in spite of the error."""
    return code in _IN_DOUBT


# An answer is slow above both: this time, and this multiple of the latency of another set.
SLOW_S = 0.5
_TIMES_SLOWER = 4
_PENALTY_S, _PENALTY_S_MAX = 1.0, 30.0
_BUSY_S_MIN = 0.05


@dataclass(slots=True)
class _Record(Health):
    busy_until_s: float = 0.0


class Avoidance:
    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def answered(self, broker_set: str, latency_s: float, now_s: float) -> None:
        """The set has stored a request with this latency."""
        record = self._record(broker_set)
        others = [
            one.latency_s
            for one in self._records.values()
            if one is not record and one.is_measured and one.avoided_until_s <= now_s
        ]
        is_slow = bool(others) and latency_s > max(SLOW_S, _TIMES_SLOWER * min(others))
        record.measured(latency_s)
        if is_slow:
            self.refused(broker_set, now_s)
        else:
            record.recovered()

    def refused(self, broker_set: str, now_s: float) -> None:
        """The set cannot store messages. Refusals of requests in flight together count once."""
        record = self._record(broker_set)
        if now_s >= record.avoided_until_s:
            record.failed(now_s, _PENALTY_S, _PENALTY_S_MAX)

    def is_busy(self, broker_set: str, now_s: float, pause_s: float) -> None:
        """The set asked to wait for this time."""
        record = self._record(broker_set)
        until_s = now_s + max(pause_s, _BUSY_S_MIN)
        record.busy_until_s = max(record.busy_until_s, until_s)

    def is_avoided(self, broker_set: str, now_s: float) -> bool:
        record = self._records.get(broker_set)
        return record is not None and now_s < max(record.avoided_until_s, record.busy_until_s)

    def _record(self, broker_set: str) -> _Record:
        return self._records.setdefault(broker_set, _Record())


class ResultFuture(Protocol):
    """A future of asyncio or of threads."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, error: BaseException, /) -> None: ...


# Held for a few instructions: between the check for an outcome and the registration of a waiter.
_registering = threading.Lock()


class BatchOutcome:
    """The outcome of the messages of one batch, which are known by their index. Set by the event
    loop; any thread may read it. It does not hold the messages, only the sizes of their frames.
    """

    __slots__ = ("_first", "_offsets", "_sizes", "error", "is_done", "moved", "one_way", "waiting")

    def __init__(self) -> None:
        self.is_done = False
        self.error: Exception | None = None
        # The messages whose failure is only logged.
        self.one_way: list[int] = []
        # After the batch was dissolved: for each message, the outcome that has it, and its index.
        self.moved: Sequence[tuple[BatchOutcome, int]] = ()
        # Futures that are set when the batch is done.
        self.waiting: list[tuple[int, ResultFuture]] = []

    def attach(self, index: int, future: ResultFuture | None) -> None:
        """Before the batch leaves: this future gets the result of the message."""
        if future is None:
            self.one_way.append(index)
        elif isinstance(future, SendFuture):
            future.place = self, index
        else:
            self.waiting.append((index, future))

    def succeed(
        self, topic: str, broker_set: str, result: BatchResult, status: str, sizes: bytes
    ) -> None:
        """`sizes`: of the frames, packed."""
        self._sizes = sizes
        # The log offsets of all messages, once one was asked for. None are known: the id is empty.
        self._offsets = [result.log_offset]
        is_placed = result.log_offset >= 0
        self._first = SendResult(
            "",
            topic,
            result.queue_id,
            result.queue_offset if is_placed else -1,
            result.stored_at_ms,
            result.is_duplicate,
            status,
            result.deliver_at_ms,
            broker_set,
        )
        self._end()

    def fail(self, error: Exception) -> None:
        self.error = error
        self._end()

    def move(self, places: Sequence[tuple[BatchOutcome, int]]) -> None:
        """The messages are in other batches, which are not done."""
        with _registering:
            self.moved = places
            for index, future in self.waiting:
                outcome, there = places[index]
                outcome.waiting.append((there, future))
            for index in self.one_way:
                outcome, there = places[index]
                outcome.one_way.append(there)

    def result_of(self, index: int) -> SendResult:
        """Raises the error of the batch. The batch must be done."""
        if self.error is not None:
            raise _raisable(self.error)
        if self._offsets[0] < 0:
            return self._first
        if len(self._offsets) == 1:
            sizes = struct.unpack(f"<{len(self._sizes) // 4}I", self._sizes)
            self._offsets = list(itertools.accumulate(sizes, initial=self._offsets[0]))
        _, topic, queue_id, queue_offset, stored_at_ms, again, status, at_ms, name = self._first
        queue_offset += index if queue_offset >= 0 else 0  # -1: delayed
        return SendResult(
            f"{name}:{self._offsets[index]}",
            *(topic, queue_id, queue_offset, stored_at_ms, again, status, at_ms, name),
        )

    def _end(self) -> None:
        with _registering:
            self.is_done = True
            waiting, self.waiting = self.waiting, []
        for index, future in waiting:
            if future.done():
                continue  # its caller has cancelled it
            if self.error is not None:
                future.set_exception(_raisable(self.error))
            else:
                future.set_result(self.result_of(index))


def _raisable(error: Exception) -> Exception:
    """A copy of its own for each raise, with a traceback of its own."""
    return fresh(error) if isinstance(error, MqError) else error


class SendFuture(Future[SendResult]):
    """Cannot be cancelled: a message that was sent cannot be taken back."""

    # The outcome of its batch, and its index there. Set when the message is added to a batch.
    place: tuple[BatchOutcome, int]
    _made: threading.Condition | None = None
    if not TYPE_CHECKING:
        # One is made for each message; what the base class needs, for those that are waited for.
        __init__ = object.__init__

    def outcome(self) -> tuple[BatchOutcome, int]:
        """The outcome of the batch that has the message now, and the index in it."""
        place = self.place
        while place[0].moved:
            place = place[0].moved[place[1]]
        return place

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        if self._made is None:
            with _registering:
                if self._made is None:
                    self._register()
        assert self._made is not None  # noqa: S101 # just made
        return self._made

    def _register(self) -> None:
        self._state, self._result, self._exception = "PENDING", None, None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []
        outcome, index = self.outcome()
        if outcome.is_done:
            self._state = "FINISHED"
            if outcome.error is not None:
                self._exception = _raisable(outcome.error)
            else:
                self._result = outcome.result_of(index)
        else:
            outcome.waiting.append((index, self))
        self._made = threading.Condition()

    def cancel(self) -> bool:
        return False

    def done(self) -> bool:
        return self.outcome()[0].is_done if self._made is None else super().done()

    def result(self, timeout: float | None = None) -> SendResult:
        outcome, index = self.outcome()
        return outcome.result_of(index) if outcome.is_done else super().result(timeout)
