"""The outcomes of sends: the action of a producer for each result code, the broker sets that it
avoids, and the future of a message that a thread has sent.

A retry counts against `retries` if only luck makes the next attempt better. It does not count after
a redirect to the leader or a retry-after of the broker: a fail-over leaves a set without a leader
for a second, and a busy broker asks to wait; only the time-out ends these retries. A set that
answers much later than the others, or refuses messages that it should take, gets no message that
may go elsewhere during a penalty, which doubles each time; then one batch probes it. Pure: the
caller passes the time.
"""

from __future__ import annotations

import enum
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from mq.client.cluster.servers import Health
from mq.client.messages import SendResult
from mq.wire.v1 import status_pb2 as wire


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


_PENDING, _FINISHED = "PENDING", "FINISHED"
# Held for a few instructions: between the check for waiters and the end of the future.
_making = threading.Lock()


class SendFuture(Future[SendResult]):
    """Cannot be cancelled: a message that was sent cannot be taken back."""

    _made: threading.Condition | None = None

    def __init__(self) -> None:
        self._state = _PENDING
        self._result: Any = None
        self._exception: BaseException | None = None

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        if self._made is None:
            with _making:
                if self._made is None:
                    self._waiters: list[Any] = []
                    self._done_callbacks: list[Any] = []
                    self._made = threading.Condition()
        return self._made

    def cancel(self) -> bool:
        return False

    def done(self) -> bool:
        return self._state == _FINISHED

    def result(self, timeout: float | None = None) -> SendResult:
        if self._state == _FINISHED and self._exception is None:
            found: SendResult = self._result
            return found
        return super().result(timeout)

    def set_result(self, result: SendResult) -> None:
        with _making:
            if self._made is None:
                self._result = result
                self._state = _FINISHED
                return
        super().set_result(result)
