"""The transactions of one turn: pure decisions, gathered into one entry.

A turn looks at applied state alone, and nothing of its kind is under way while it decides
(`mq.broker.batched_decider`); so a transaction ends once. Ends, questions, what is given up and
what is written again share the turn and the entry. An entry is bounded in bytes: what does not fit
waits for the next turn. What is wrong with one transaction is an answer about that one: damaged
half messages are waited for while another node may have them, and end their transaction when none
has.

It reads no clock and writes nothing: how to read a batch and find a topic comes in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mq import names
from mq.broker.retry import origins
from mq.broker.state.machine import ProposedEntry
from mq.broker.state.topics import Topic
from mq.broker.state.transactions import Ended, Transaction, TransactionOutcome, Transactions
from mq.errors import MessagesDamaged, MqError, TopicNotFound, TransactionNotFound
from mq.logging import get_logger
from mq.names import GIVE_UP_TOPIC
from mq.store import rebatch
from mq.store.batch import Batch
from mq.wire.v1.message_pb2 import Origin
from mq.wire.v1.state_pb2 import ChangeTransactions, Command, TransactionChecked

log = get_logger(__name__)

# Questions in one turn.
SWEEP_MAX = 500
# Upper bound of one transaction in the command.
_CHANGE_BYTES = 32
# Upper bound of the origin of a message that is given up: four names, and the rest.
_ORIGIN_BYTES = 800


class End(NamedTuple):
    transaction_id: int
    outcome: TransactionOutcome
    # The group that must own it; empty: any.
    producer_group: str = ""


class CheckNow(NamedTuple):
    """An operator wants the producer to be asked now."""

    transaction_id: int


class Sweep(NamedTuple):
    """Everything that is due."""


class Carry(NamedTuple):
    """Half messages below this log offset have to be written again."""

    below_log_offset: int


TransactionRequest = End | CheckNow | Sweep | Carry


class Settled(NamedTuple):
    """The result of a request, once the turn's entry is applied."""

    # Of a commit in this turn: number of its batch in the entry.
    batch_at: int = -1
    # Of an end that had happened before.
    before: Ended | None = None
    # Transactions to ask about.
    asked: tuple[int, ...] = ()
    # Written again, or over because they are lost.
    carried: int = 0


class TransactionTurn:
    def __init__(
        self,
        transactions: Transactions,
        read: Callable[[Transaction], Batch],
        find_topic: Callable[[str], Topic],
        now_ms: int,
        bytes_max: int,
        broker_set: str = "",
    ) -> None:
        """`read` and `find_topic` raise MqError."""
        self._transactions = transactions
        self._read = read
        self._find_topic = find_topic
        self._now_ms = now_ms
        self._bytes_max = bytes_max
        self._broker_set = broker_set
        self._bytes = 0
        self._change = ChangeTransactions()
        self._committed: list[Batch] = []
        self._others: list[Batch] = []
        # Ends of this turn: what else is asked about them gets the same answer, or none.
        self._ended: dict[int, tuple[TransactionOutcome, Settled]] = {}
        self._checked: set[int] = set()

    def decide(self, request: TransactionRequest) -> Settled | MqError | None:
        """Decides one request. None: no room, again in the next turn."""
        match request:
            case End():
                return self._end(request)
            case CheckNow():
                return self._check_now(request.transaction_id)
            case Sweep():
                return self._sweep()
            case Carry():
                return self._carry(request.below_log_offset)

    def entry(self) -> ProposedEntry | None:
        """The entry; None: nothing is to be written."""
        batches = self._committed + self._others
        has_change = bool(self._change.ByteSize())
        if not batches and not has_change:
            return None
        command = Command(change_transactions=self._change) if has_change else None
        return ProposedEntry(batches, command)

    # -- ends -------------------------------------------------------------------------------------

    def _end(self, request: End) -> Settled | MqError | None:
        transaction_id, outcome, group = request
        if transaction_id in self._ended:
            ended, settled = self._ended[transaction_id]
            return settled if _is_same(ended, outcome) else _over(transaction_id, ended)
        one = self._transactions.open.get(transaction_id)
        if one is None:
            before = self._transactions.ended.get(transaction_id)
            if before is not None and _is_same(before.outcome, outcome):
                return Settled(before=before)
            return _over(transaction_id, before.outcome if before else None)
        if group and group != one.producer_group:
            return TransactionNotFound(
                f"transaction {transaction_id} is not of producer group {group}: "
                f"it is of {one.producer_group}"
            )
        settled = Settled()
        if not self._has_room(one.size if outcome == TransactionOutcome.COMMITTED else 0):
            return None
        if outcome == TransactionOutcome.COMMITTED:
            try:
                settled = Settled(batch_at=self._commit(one))
            except MqError as error:
                if not _is_lost(error):
                    return error
                self._lose(one, error)
                return _over(transaction_id, TransactionOutcome.GIVEN_UP)
        else:
            self._change.rolled_back.append(transaction_id)
            self._bytes += _CHANGE_BYTES
        self._ended[transaction_id] = outcome, settled
        return settled

    def _commit(self, one: Transaction) -> int:
        topic = self._find_topic(one.topic)
        if topic.created_at_log_offset > one.id:
            raise TopicNotFound(
                f"the topic {one.topic} of transaction {one.id} was deleted: there is a new one of "
                "its name, which is another. Roll it back"
            )
        batch = self._read(one)
        placed = rebatch.placed(batch, one.topic, _queue_for(batch.queue_id, topic))
        self._bytes += len(placed.data) + _CHANGE_BYTES
        self._committed.append(placed)
        self._change.committed.append(one.id)
        return len(self._committed) - 1

    # -- questions --------------------------------------------------------------------------------

    def _check_now(self, transaction_id: int) -> Settled | MqError | None:
        one = self._transactions.open.get(transaction_id)
        if one is None or transaction_id in self._ended:
            before = self._transactions.ended.get(transaction_id)
            return _over(transaction_id, before.outcome if before else None)
        if not self._has_room():
            return None
        self._postpone(one)
        return Settled(asked=(transaction_id,))

    def _sweep(self) -> Settled:
        asked = []
        for one in self._transactions.due(self._now_ms, SWEEP_MAX):
            if one.id in self._ended or one.id in self._checked:
                continue
            # What does not fit stays due, and comes with the next sweep.
            if not self._has_room(_kept_bytes(one) if one.is_exhausted else 0):
                break
            if one.is_exhausted:
                self._give_up(one)
            else:
                self._postpone(one)
                asked.append(one.id)
        return Settled(asked=tuple(asked))

    def _postpone(self, one: Transaction) -> None:
        """Counts as asked, also without a producer."""
        if one.id not in self._checked:
            self._checked.add(one.id)
            self._bytes += _CHANGE_BYTES
            next_check_ms = self._now_ms + one.check_interval_ms
            self._change.checked.append(TransactionChecked(id=one.id, next_check_ms=next_check_ms))

    def _give_up(self, one: Transaction) -> None:
        """An unreadable half message is not given up but tried again later: it must not block
        others, and another node may have it intact. If none has, nothing can be kept.
        """
        try:
            self._find_topic(GIVE_UP_TOPIC)
            kept = self._kept(one, self._read(one))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is about this one
            if _is_lost(error):
                self._lose(one, error)
                return
            log.warning("cannot give up a transaction", transaction=one.id, error=str(error))
            self._postpone(one)
            return
        self._bytes += len(kept.data) + _CHANGE_BYTES
        self._others.append(kept)
        self._change.given_up.append(one.id)
        self._ended[one.id] = TransactionOutcome.GIVEN_UP, Settled()

    def _lose(self, one: Transaction, error: Exception) -> None:
        """It is over without a copy: it holds neither its producer nor retention."""
        log.error(
            "a transaction is given up: its messages are damaged on every node",
            transaction=one.id,
            topic=one.topic,
            messages=one.messages,
            error=str(error),
        )
        self._bytes += _CHANGE_BYTES
        self._change.given_up.append(one.id)
        self._ended[one.id] = TransactionOutcome.GIVEN_UP, Settled()

    def _kept(self, one: Transaction, batch: Batch) -> Batch:
        """With its origin, unless that is too much for one entry."""
        if _kept_bytes(one) > self._bytes_max:
            return rebatch.placed(batch, GIVE_UP_TOPIC, 0)
        reason = f"no word of producer group {one.producer_group} after {one.checks} questions"
        origin = Origin(
            topic=one.topic,
            queue_id=batch.queue_id,
            message_id=names.message_id(self._broker_set, one.id),
            stored_at_ms=one.stored_at_ms,
            reason=reason,
        )
        return origins.given_up(batch, GIVE_UP_TOPIC, origin)

    # -- retention --------------------------------------------------------------------------------

    def _carry(self, below_log_offset: int) -> Settled:
        count = 0
        for one in self._transactions.open.values():
            if one.log_offset >= below_log_offset or one.id in self._ended:
                continue
            if not self._has_room(one.size):
                break
            try:
                carried = rebatch.carried(self._read(one), one.id)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is about this one
                if _is_lost(error):
                    self._lose(one, error)
                    count += 1
                    continue
                log.warning("cannot carry a half message", transaction=one.id, error=str(error))
                continue
            self._bytes += len(carried.data)
            self._others.append(carried)
            count += 1
        return Settled(carried=count)

    def _has_room(self, batch_bytes: int = 0) -> bool:
        """The first always has, however large it is: it is alone then."""
        return self._bytes == 0 or self._bytes + batch_bytes + _CHANGE_BYTES <= self._bytes_max


def _is_lost(error: Exception) -> bool:
    return isinstance(error, MessagesDamaged) and error.is_lost


def _kept_bytes(one: Transaction) -> int:
    """Its size in the give-up topic."""
    return one.size + one.messages * _ORIGIN_BYTES


def _queue_for(queue_id: int, topic: Topic) -> int:
    """The wanted queue, or another one of the same priority if it takes no more messages."""
    if queue_id < topic.write_queues:
        return queue_id
    priorities = max(1, topic.priorities)
    choice = range(queue_id % priorities, topic.write_queues, priorities)
    if not choice:
        return queue_id % topic.write_queues
    return choice[queue_id // priorities % len(choice)]


def _is_same(ended: TransactionOutcome, asked: TransactionOutcome) -> bool:
    """Whether it ended as wanted now. A transaction that was given up counts as rolled back."""
    return (ended == TransactionOutcome.COMMITTED) == (asked == TransactionOutcome.COMMITTED)


_OVER = {
    None: "it never began, or ended long ago",
    TransactionOutcome.COMMITTED: "it was committed",
    TransactionOutcome.ROLLED_BACK: "it was rolled back",
    TransactionOutcome.GIVEN_UP: (
        f"it was given up. {GIVE_UP_TOPIC} has its messages, unless they are damaged on every node"
    ),
}


def _over(transaction_id: int, outcome: TransactionOutcome | None) -> TransactionNotFound:
    return TransactionNotFound(f"transaction {transaction_id} is not open: {_OVER[outcome]}")
