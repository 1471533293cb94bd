"""One turn of transactions: what it decides, by tables. No node, no log, no clock."""

from __future__ import annotations

from typing import Any

import pytest

from mq.broker.state.dedup import StoredAt
from mq.broker.state.topics import Topic
from mq.broker.state.transactions import (
    ENDED_MAX,
    Ended,
    Transaction,
    TransactionOutcome,
    Transactions,
)
from mq.broker.transaction.resolving import (
    Carry,
    CheckNow,
    End,
    Settled,
    Sweep,
    TransactionRequest,
    TransactionTurn,
)
from mq.errors import MessagesDamaged, MqError, TopicNotFound, TransactionNotFound
from mq.names import GIVE_UP_TOPIC
from mq.wire.v1.message_pb2 import Half
from mq.wire.v1.state_pb2 import ChangeTransactions
from tests.support.consensus import batch

COMMIT, ROLL_BACK = TransactionOutcome.COMMITTED, TransactionOutcome.ROLLED_BACK
HALF = Half(producer_group="g", first_check_ms=6_000, check_interval_ms=30_000, checks_max=2)


class Scene:
    """Transactions by name, as if they had been applied."""

    def __init__(self) -> None:
        self.transactions = Transactions()
        self.batches: dict[int, Any] = {}
        self.topics = {"t": 4, GIVE_UP_TOPIC: 1}
        self.priorities = 0
        self.damaged: set[int] = set()
        self.lost: set[int] = set()

    def begin(self, at: int, queue_id: int = 0, body: bytes = b"x") -> int:
        one = batch("t", body, queue_id=queue_id, half=HALF)
        self.transactions.begin(one, at, 1_000)
        transaction_id = at + one.region_start
        self.batches[transaction_id] = one
        return transaction_id

    def turn(self, now_ms: int = 1_000, bytes_max: int = 1 << 20) -> TransactionTurn:
        return TransactionTurn(self.transactions, self.read, self.find_topic, now_ms, bytes_max)

    def read(self, one: Transaction) -> Any:
        if one.id in self.damaged | self.lost:
            place, is_lost = (one.log_offset, one.log_offset + 1), one.id in self.lost
            raise MessagesDamaged("file", 0, "test", *place, is_lost=is_lost)
        return self.batches[one.id]

    def find_topic(self, name: str) -> Topic:
        if name not in self.topics:
            raise TopicNotFound(name)
        count = self.topics[name]
        topic = Topic(name, 0, count, count, is_readable=True, is_writable=True, created_at_ms=0)
        return topic._replace(priorities=self.priorities)

    def apply(self, turn: TransactionTurn) -> ChangeTransactions:
        entry = turn.entry()
        assert entry is not None
        command = entry.command
        assert command is not None
        placed = [StoredAt(one.queue_id, 7, 99, 5) for one in entry.batches]
        self.transactions.change(command.change_transactions, placed)
        return command.change_transactions


def settled(answer: Settled | MqError | None) -> Settled:
    assert isinstance(answer, Settled)
    return answer


def refused(answer: Settled | MqError | None) -> str:
    assert isinstance(answer, TransactionNotFound)
    return str(answer)


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (COMMIT, COMMIT, ""),
        (ROLL_BACK, ROLL_BACK, ""),
        (COMMIT, ROLL_BACK, "was committed"),
        (ROLL_BACK, COMMIT, "was rolled back"),
    ],
)
@pytest.mark.parametrize("is_same_turn", [True, False])
def test_a_transaction_ends_once_and_the_same_end_again_is_the_same(
    first: TransactionOutcome, second: TransactionOutcome, says: str, is_same_turn: bool
) -> None:
    scene = Scene()
    one = scene.begin(100)
    turn = scene.turn()
    answer = settled(turn.decide(End(one, first)))
    if not is_same_turn:
        scene.apply(turn)
        turn = scene.turn()
    again = turn.decide(End(one, second))
    if says:
        assert says in refused(again)
    elif is_same_turn:
        assert again == answer
    else:
        stored = StoredAt(0, 7, 99, 5) if first == COMMIT else None
        assert settled(again).before == Ended(first, stored)
    if is_same_turn:
        change = scene.apply(turn)
        assert [*change.committed, *change.rolled_back] == [one]
    else:
        assert turn.entry() is None
    assert (scene.transactions.committed, scene.transactions.rolled_back) == (
        (1, 0) if first == COMMIT else (0, 1)
    )


def test_a_transaction_that_never_began_is_not_found_and_nothing_is_written() -> None:
    turn = Scene().turn()
    for request in (End(5, COMMIT), End(5, ROLL_BACK), CheckNow(5)):
        assert "never began" in refused(turn.decide(request))
    assert turn.entry() is None


def test_another_group_cannot_end_it() -> None:
    scene = Scene()
    one = scene.begin(100)
    turn = scene.turn()
    assert "is of g" in refused(turn.decide(End(one, ROLL_BACK, "others")))
    assert turn.entry() is None
    assert settled(turn.decide(End(one, ROLL_BACK, "g")))


def test_a_turn_is_bounded_and_the_first_fits_however_large() -> None:
    scene = Scene()
    ids = [scene.begin(1_000 * at, body=b"x" * 600) for at in range(1, 4)]
    turn = scene.turn(bytes_max=500)
    assert settled(turn.decide(End(ids[0], COMMIT))).batch_at == 0
    # It is alone: whatever else is in the entry could be too much.
    for request in (End(ids[1], COMMIT), End(ids[2], ROLL_BACK), CheckNow(ids[2])):
        assert turn.decide(request) is None
    assert settled(turn.decide(Sweep())) == Settled()
    assert settled(turn.decide(Carry(9_000))) == Settled()
    entry = turn.entry()
    assert entry is not None
    assert len(entry.batches) == 1
    # A small one first: the large one waits for a turn of its own.
    turn = scene.turn(bytes_max=500)
    assert settled(turn.decide(End(ids[2], ROLL_BACK)))
    assert turn.decide(End(ids[1], COMMIT)) is None


def test_commits_stand_first_in_the_entry() -> None:
    scene = Scene()
    exhausted, carried, committed = (scene.begin(1_000 * at) for at in range(1, 4))
    for _ in range(2):
        turn = scene.turn(now_ms=10_000)
        turn.decide(CheckNow(exhausted))
        scene.apply(turn)
    turn = scene.turn(now_ms=50_000)
    assert settled(turn.decide(Sweep())).asked == (carried, committed)
    assert settled(turn.decide(Carry(2_500))).carried == 1
    assert settled(turn.decide(End(committed, COMMIT))).batch_at == 0
    entry = turn.entry()
    assert entry is not None
    assert [one.topic for one in entry.batches] == ["t", GIVE_UP_TOPIC, "t"]
    assert [bool(one.half) for one in entry.batches] == [False, False, True]


def test_questions_are_counted_then_it_is_given_up() -> None:
    scene = Scene()
    one = scene.begin(100)
    assert settled(scene.turn(now_ms=6_999).decide(Sweep())) == Settled()
    now_ms = 7_000
    for check in (1, 2):
        turn = scene.turn(now_ms)
        assert settled(turn.decide(Sweep())).asked == (one,)
        scene.apply(turn)
        assert scene.transactions.open[one].checks == check
        assert scene.turn(now_ms + 29_999).decide(Sweep()) == Settled()
        now_ms += 30_000
    turn = scene.turn(now_ms)
    assert settled(turn.decide(Sweep())) == Settled()
    assert "it was given up" in refused(turn.decide(End(one, COMMIT)))
    assert list(scene.apply(turn).given_up) == [one]
    turn = scene.turn()
    assert "it was given up" in refused(turn.decide(End(one, COMMIT)))
    assert settled(turn.decide(End(one, ROLL_BACK))).before == Ended(TransactionOutcome.GIVEN_UP)


@pytest.mark.parametrize("bytes_max", [1_000, 2_000, 100_000])
def test_abandoned_transactions_fit_one_entry_with_their_origins(bytes_max: int) -> None:
    scene = Scene()
    ids = [scene.begin(1_000 * at, body=b"x" * size) for at, size in enumerate((1, 900, 100, 1), 1)]
    now_ms = 100_000
    for _ in range(2):
        for one in ids:
            turn = scene.turn(now_ms)
            turn.decide(CheckNow(one))
            scene.apply(turn)
    now_ms += 30_000
    while scene.transactions.open:
        turn = scene.turn(now_ms, bytes_max)
        turn.decide(Sweep())
        entry = turn.entry()
        assert entry is not None
        sizes = [len(one.data) for one in entry.batches]
        # One that is too large with its origin is kept without.
        assert sum(sizes) <= bytes_max or len(sizes) == 1
        assert max(sizes) <= max(bytes_max, 1_000)
        scene.apply(turn)
    assert scene.transactions.given_up == 4


def test_one_that_cannot_be_read_delays_no_other_and_is_not_lost() -> None:
    scene = Scene()
    bad, good = scene.begin(1_000), scene.begin(2_000)
    for now_ms in (10_000, 50_000):
        turn = scene.turn(now_ms)
        turn.decide(Sweep())
        scene.apply(turn)
    scene.damaged.add(bad)
    turn = scene.turn(100_000)
    turn.decide(Sweep())
    assert list(scene.apply(turn).given_up) == [good]
    assert scene.transactions.open[bad].next_check_ms == 130_000
    turn = scene.turn(100_000)
    assert isinstance(turn.decide(End(bad, COMMIT)), MessagesDamaged)
    assert turn.decide(Carry(9_000)) == Settled()
    assert turn.entry() is None
    assert settled(turn.decide(End(bad, ROLL_BACK)))


@pytest.mark.parametrize("request_", [End(0, COMMIT), Sweep(), Carry(9_000)])
def test_one_that_no_node_can_read_is_over_with_the_first_attempt_to_use_it(
    request_: TransactionRequest,
) -> None:
    scene = Scene()
    lost, good = scene.begin(1_000), scene.begin(2_000)
    for now_ms in (10_000, 50_000):
        turn = scene.turn(now_ms)
        turn.decide(Sweep())
        scene.apply(turn)
    scene.lost.add(lost)
    turn = scene.turn(100_000)
    if isinstance(request_, End):
        answer = turn.decide(request_._replace(transaction_id=lost))
        assert isinstance(answer, TransactionNotFound)
        assert not answer.retryable
        assert settled(turn.decide(End(good, COMMIT)))
    else:
        assert settled(turn.decide(request_))
    assert lost in scene.apply(turn).given_up
    assert lost not in scene.transactions.open
    assert scene.transactions.ended[lost].outcome == TransactionOutcome.GIVEN_UP
    # The same commit again is answered the same way.
    assert isinstance(scene.turn().decide(End(lost, COMMIT)), TransactionNotFound)


def test_a_commit_needs_its_topic_a_rollback_does_not() -> None:
    scene = Scene()
    one = scene.begin(100)
    del scene.topics["t"]
    turn = scene.turn()
    assert isinstance(turn.decide(End(one, COMMIT)), TopicNotFound)
    assert turn.entry() is None
    assert settled(turn.decide(End(one, ROLL_BACK)))


def test_a_commit_to_a_queue_that_takes_no_more_goes_to_another() -> None:
    for queue_id, queues, priorities, expected in (
        (3, 2, 0, 1),
        (3, 4, 0, 3),
        (7, 4, 2, 3),
        (5, 3, 2, 1),  # the only one of priority 1
        (2, 2, 3, 0),  # none is left of priority 2
    ):
        scene = Scene()
        one = scene.begin(100, queue_id=queue_id)
        scene.topics["t"], scene.priorities = queues, priorities
        turn = scene.turn()
        turn.decide(End(one, COMMIT))
        entry = turn.entry()
        assert entry is not None
        assert [each.queue_id for each in entry.batches] == [expected]


def test_a_half_that_is_written_again_is_the_same_transaction_and_an_ended_one_stays_ended() -> (
    None
):
    scene = Scene()
    one, other = scene.begin(1_000), scene.begin(5_000)
    turn = scene.turn()
    assert settled(turn.decide(Carry(4_000))).carried == 1
    entry = turn.entry()
    assert entry is not None
    assert entry.command is None
    (carried,) = entry.batches
    scene.transactions.begin(carried, 9_000, 2_000)
    assert scene.transactions.open[one].log_offset == 9_000
    assert scene.transactions.open[one].next_check_ms == 7_000
    scene.transactions.change(ChangeTransactions(rolled_back=[one]))
    scene.transactions.begin(carried, 11_000, 2_000)
    assert list(scene.transactions.open) == [other]


def test_the_memory_of_ends_is_bounded_and_part_of_the_state() -> None:
    transactions = Transactions()
    one = batch("t", b"x", half=HALF)
    for at in range(ENDED_MAX + 10):
        transactions.begin(one, 1_000 * at, 1)
        transaction_id = 1_000 * at + one.region_start
        change = (
            ChangeTransactions(committed=[transaction_id])
            if at % 2
            else ChangeTransactions(rolled_back=[transaction_id])
        )
        transactions.change(change, [StoredAt(1, at, 2, 3)])
    assert len(transactions.ended) == ENDED_MAX
    assert 9 * 1_000 + one.region_start not in transactions.ended
    again = Transactions()
    again.restore(transactions.encode(), transactions.totals())
    assert again.ended == transactions.ended
    assert again.totals() == transactions.totals()
