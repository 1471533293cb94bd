r"""Open transactions: part of the replicated state, changed only by applying entries.

    begun --- commit ----> committed: its messages are on their topic, by the same entry
      |  \--- rollback --> rolled back: no consumer ever sees them
      |---- asked ------> begun, one check more
      \---- asked for the last time, no word -> given up: kept in %SYS%GIVE_UP, by the same entry

Each transaction ends once: its end is one entry, which a leader writes only while the transaction
is open and no other end of it is under way. A transaction is called by the log offset that its
first half message was stored at, also when it is written again.

How the last ones ended is remembered: a producer that missed the answer asks again, and gets it.
"""

from __future__ import annotations

import functools
import heapq
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from google.protobuf.message import DecodeError

from mq.broker.state.dedup import StoredAt
from mq.names import HALF_TOPIC
from mq.store.batch import Batch
from mq.store.holding import HeldQueue
from mq.wire.v1.message_pb2 import Half
from mq.wire.v1.state_pb2 import ChangeTransactions, TransactionState, TransactionTotals

# Remembered ends: those of some seconds, at the highest rate.
ENDED_MAX = 10_000
_ENDED_FIELDS = 6


class TransactionOutcome(IntEnum):
    COMMITTED = 1
    ROLLED_BACK = 2
    GIVEN_UP = 3


class Ended(NamedTuple):
    outcome: TransactionOutcome
    # For a committed one: the place of its messages.
    stored: StoredAt | None = None


class Transaction(NamedTuple):
    id: int
    # The present place of its batch.
    log_offset: int
    size: int
    messages: int
    stored_at_ms: int
    topic: str
    producer_group: str
    # The number of questions so far, and the time of the next one.
    checks: int
    next_check_ms: int
    check_interval_ms: int
    checks_max: int

    @property
    def is_exhausted(self) -> bool:
        """No more questions: at `next_check_ms` it is given up."""
        return self.checks >= self.checks_max


class HalfTerms(NamedTuple):
    """The decoded `half` of a batch."""

    producer_group: str
    first_check_ms: int
    check_interval_ms: int
    checks_max: int


# A producer says the same with each of its half messages; what is longer is not kept.
HALF_CACHED_BYTES_MAX = 256


def half_terms(half: bytes) -> HalfTerms:
    """Raises DecodeError."""
    return _cached_terms(half) if len(half) <= HALF_CACHED_BYTES_MAX else _decode_terms(half)


def _decode_terms(half: bytes) -> HalfTerms:
    wire = Half.FromString(half)
    return HalfTerms(
        wire.producer_group, wire.first_check_ms, wire.check_interval_ms, wire.checks_max
    )


_cached_terms = functools.lru_cache(maxsize=4096)(_decode_terms)

_HALF_QUEUE = HeldQueue(HALF_TOPIC, 0, 0)


class Transactions:
    def __init__(self) -> None:
        self.open: dict[int, Transaction] = {}
        # How many of them there are for each topic.
        self.open_by_topic: Counter[str] = Counter()
        self.messages = 0
        self.committed = self.rolled_back = self.given_up = 0
        # The last ones, the oldest first.
        self.ended: OrderedDict[int, Ended] = OrderedDict()
        # (next_check_ms, id); stale ones are skipped.
        self._checks: list[tuple[int, int]] = []

    def due(self, now_ms: int, count_max: int) -> list[Transaction]:
        """Those whose next question, or end, is due: the ones that wait for longest come first."""
        found: list[Transaction] = []
        seen: list[tuple[int, int]] = []
        while self._checks and self._checks[0][0] <= now_ms and len(found) < count_max:
            item = heapq.heappop(self._checks)
            one = self.open.get(item[1])
            if one is not None and one.next_check_ms == item[0]:
                found.append(one)
                seen.append(item)
        for item in seen:  # they stay due until an entry says otherwise
            heapq.heappush(self._checks, item)
        return found

    @property
    def next_check_ms(self) -> int | None:
        """The next due time, also of a transaction that has ended since."""
        return self._checks[0][0] if self._checks else None

    # -- applying ---------------------------------------------------------------------------------

    def begin(self, batch: Batch, log_offset: int, stored_at_ms: int) -> HeldQueue:
        """A half batch was stored, or written again."""
        if batch.origin_log_offset:
            known = self.open.get(batch.origin_log_offset)
            if known is not None:
                self.open[known.id] = known._replace(log_offset=log_offset, size=len(batch.data))
            return _HALF_QUEUE
        try:
            group, first_check_ms, check_interval_ms, checks_max = half_terms(batch.half)
        except DecodeError:  # only a leader writes it; it changes nothing
            return _HALF_QUEUE
        one = Transaction(
            log_offset + batch.region_start,
            log_offset,
            len(batch.data),
            batch.message_count,
            stored_at_ms,
            batch.topic,
            group,
            0,
            stored_at_ms + first_check_ms,
            check_interval_ms,
            checks_max,
        )
        self._put(one)
        self.open_by_topic[one.topic] += 1
        self.messages += one.messages
        return _HALF_QUEUE

    def change(self, command: ChangeTransactions, placed: Sequence[StoredAt] = ()) -> None:
        """`placed`: the places of the committed messages, in their order."""
        for at, each in enumerate(command.committed):
            stored = placed[at] if at < len(placed) else None
            self.committed += self._end(each, Ended(TransactionOutcome.COMMITTED, stored))
        for each in command.rolled_back:
            self.rolled_back += self._end(each, Ended(TransactionOutcome.ROLLED_BACK))
        for each in command.given_up:
            self.given_up += self._end(each, Ended(TransactionOutcome.GIVEN_UP))
        for checked in command.checked:
            one = self.open.get(checked.id)
            if one is not None:
                self._put(one._replace(checks=one.checks + 1, next_check_ms=checked.next_check_ms))
        self._tidy()

    def _put(self, one: Transaction) -> None:
        self.open[one.id] = one
        heapq.heappush(self._checks, (one.next_check_ms, one.id))

    def _end(self, transaction_id: int, ended: Ended) -> bool:
        one = self.open.pop(transaction_id, None)
        if one is None:
            return False
        self.open_by_topic[one.topic] -= 1
        if not self.open_by_topic[one.topic]:
            del self.open_by_topic[one.topic]
        self.messages -= one.messages
        self.ended[transaction_id] = ended
        return True

    def _tidy(self) -> None:
        while len(self.ended) > ENDED_MAX:
            self.ended.popitem(last=False)
        if len(self._checks) > 2 * len(self.open) + 1_000:
            self._checks = [(one.next_check_ms, one.id) for one in self.open.values()]
            heapq.heapify(self._checks)

    # -- checkpoints ------------------------------------------------------------------------------

    def encode(self) -> Iterator[TransactionState]:
        for _, one in sorted(self.open.items()):
            yield TransactionState(**one._asdict())

    def totals(self) -> TransactionTotals:
        ended = array("q")
        for transaction_id, (outcome, stored) in self.ended.items():
            ended.extend((transaction_id, outcome, *(stored[:4] if stored else (0, -1, -1, 0))))
        return TransactionTotals(
            committed=self.committed,
            rolled_back=self.rolled_back,
            given_up=self.given_up,
            ended=ended.tobytes(),
        )

    def restore(self, states: Iterable[TransactionState], totals: TransactionTotals) -> None:
        self.open.clear()
        self._checks.clear()
        self.committed, self.rolled_back = totals.committed, totals.rolled_back
        self.given_up = totals.given_up
        for state in states:
            self._put(Transaction._make(getattr(state, name) for name in Transaction._fields))
        self.open_by_topic = Counter(one.topic for one in self.open.values())
        self.messages = sum(one.messages for one in self.open.values())
        ended = array("q")
        ended.frombytes(totals.ended)
        self.ended.clear()
        for at in range(0, len(ended), _ENDED_FIELDS):
            transaction_id, outcome, *place = ended[at : at + _ENDED_FIELDS]
            self.ended[transaction_id] = (
                Ended(
                    TransactionOutcome.COMMITTED, StoredAt(place[0], place[1], place[2], place[3])
                )
                if outcome == TransactionOutcome.COMMITTED
                else Ended(TransactionOutcome(outcome))
            )
