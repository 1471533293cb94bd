"""Ends of transactions, and the questions about those that have none: the driver on the leader.

Everything that changes transactions goes through one line of turns (`resolving` decides,
`batched_decider` writes): so each ends once, and no end races with a question, with giving up, or
with being written again. A question is counted in the log before it is asked. It knows nothing of
streams: an open one registers a `Respondent`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable

from mq.broker.batched_decider import BatchedDecider, Submitted, TurnDecision
from mq.broker.core import Core, Service
from mq.broker.state.dedup import StoredAt
from mq.broker.state.machine import NewlyHeld, ProposedEntry
from mq.broker.state.transactions import Transaction, TransactionOutcome
from mq.broker.transaction.questions import Question, Respondent, Respondents
from mq.broker.transaction.resolving import (
    SWEEP_MAX,
    Carry,
    CheckNow,
    End,
    Settled,
    Sweep,
    TransactionRequest,
    TransactionTurn,
)
from mq.errors import (
    FlowControl,
    GroupNotFound,
    Internal,
    MessageTooLarge,
    MqError,
    TransactionNotFound,
)
from mq.logging import get_logger
from mq.names import GIVE_UP_TOPIC
from mq.store.batch import Batch
from mq.store.holding import read_held

log = get_logger(__name__)

OPEN_MAX = 100_000
_ENTRY_BYTES = 1 << 20
# Bytes that an entry needs beside the batch of one transaction.
_OVERHEAD_BYTES = 256
# Half batches that are kept in memory beside the log, and the largest of them.
_RECENT_BYTES_MAX = 4 << 20
_RECENT_BATCH_BYTES_MAX = 64 << 10
# Half batches that are brought into memory before some of them are written again.
_LOADED_MAX = 64
# Back-off after an error of the log.
_PAUSE_TICKS = 20

_SettledEntry = tuple[Settled, ProposedEntry | None]


class Transacting(Service):
    def __init__(self, core: Core, steady_ms: Callable[[], int]) -> None:
        """`steady_ms` is a monotonic clock."""
        self._core = core
        self._steady_ms = steady_ms
        # The time of due questions, and the steady clock at that moment.
        self._time_ms = self._time_read_ms = 0
        entry_bytes_max = core.settings.config.store.entry_bytes_max
        self._entry_bytes = min(_ENTRY_BYTES, entry_bytes_max - _OVERHEAD_BYTES)
        self._half_bytes_max = entry_bytes_max - _OVERHEAD_BYTES
        self._decider: BatchedDecider[TransactionRequest, _SettledEntry] = BatchedDecider(
            core.writer, core.leadership, self._decide
        )
        self._respondents = Respondents()
        # On a leader.
        self._recent: _RecentHalves | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._pause_ticks = 0
        # Questions about transactions that this node counted as leader, also without a producer.
        self.checks_total = 0

    # -- what producers and operators ask for -----------------------------------------------------

    def check_half(self, batch: Batch) -> None:
        """Raises FlowControl or MessageTooLarge unless one more half batch may come."""
        count = len(self._core.state.transactions.open)
        if count >= OPEN_MAX:
            raise FlowControl(
                f"{count} transactions are open: end some, `mq transaction list` shows them"
            )
        if len(batch.data) > self._half_bytes_max:
            raise MessageTooLarge(
                f"a half batch of {len(batch.data)} bytes: at most {self._half_bytes_max} are "
                "allowed"
            )

    def begin_end(
        self,
        transaction_id: int,
        *,
        commits: bool,
        producer_group: str,
        answer: Callable[[StoredAt | Exception | None], None],
    ) -> Submitted[TransactionRequest, _SettledEntry]:
        """As `end`; `answer` is called once, later."""
        outcome = TransactionOutcome.COMMITTED if commits else TransactionOutcome.ROLLED_BACK

        def settled(outcome: _SettledEntry | Exception) -> None:
            answer(outcome if isinstance(outcome, Exception) else _place(*outcome))

        return self._decider.begin(End(transaction_id, outcome, producer_group), settled)

    async def end(
        self, transaction_id: int, *, commits: bool, producer_group: str = ""
    ) -> StoredAt | None:
        """Committed or rolled back when this returns; a commit returns the place of its messages.
        The same end again gets the same answer. Raises TransactionNotFound if it is not open, or
        not of this group; TopicNotFound if the topic of a commit is gone; as `Consensus.propose`.
        """
        outcome = TransactionOutcome.COMMITTED if commits else TransactionOutcome.ROLLED_BACK
        return _place(*await self._decider.submit(End(transaction_id, outcome, producer_group)))

    async def check_now(self, transaction_id: int) -> str:
        """Asks a producer, and counts it as any other question. Returns the producer's id. Raises
        GroupNotFound if no producer is connected; TransactionNotFound.
        """
        one = self._core.state.transactions.open.get(transaction_id)
        if one is not None and not self.producers(one.producer_group):
            raise GroupNotFound(
                f"no producer of group {one.producer_group} is connected that could be asked"
            )
        settled, _ = await self._decider.submit(CheckNow(transaction_id))
        asked = [self._ask(each) for each in settled.asked]
        if not asked or asked[0] is None:
            raise TransactionNotFound(
                f"transaction {transaction_id} ended just now, or no producer could be asked"
            )
        return asked[0]

    # -- streams of producers ---------------------------------------------------------------------

    def join(self, respondent: Respondent) -> None:
        """Raises NotLeader: only a leader asks."""
        self._core.leadership.check()
        self._respondents.join(respondent)

    def leave(self, respondent: Respondent) -> None:
        self._respondents.leave(respondent)

    def producers(self, group: str) -> int:
        """Connected producers that can be asked."""
        return self._respondents.count(group)

    # -- the service ------------------------------------------------------------------------------

    def lead(self) -> None:
        # What is due follows from what is stamped in the log, by clocks that may be ahead of ours.
        log_ = self._core.store.log
        self._time_ms = log_.ref(log_.last_index).stored_at_ms
        self._time_read_ms = self._steady_ms()
        self._pause_ticks = 0
        self._recent = _RecentHalves()

    def step_down(self, error: MqError) -> None:
        self._recent = None
        self._respondents.end_all(error)

    def tick(self) -> None:
        self._pause_ticks = max(0, self._pause_ticks - 1)
        if self._sweeping is None and not self._pause_ticks and self._is_due():
            self._sweeping = asyncio.ensure_future(self._sweep())

    def on_held(self, held: NewlyHeld) -> None:
        """A half batch was stored by an entry that was applied."""
        if self._recent is not None:
            self._recent.add(held.log_offset, held.batch)

    def needs_log_before(self, log_offset: int) -> bool:
        transactions = self._core.state.transactions.open.values()
        return any(one.log_offset < log_offset for one in transactions)

    async def carry(self, log_offset: int) -> None:
        while self.needs_log_before(log_offset):
            old = (one for one in self._core.state.transactions.open.values())
            await self._load(
                itertools.islice((one for one in old if one.log_offset < log_offset), _LOADED_MAX)
            )
            settled, _ = await self._decider.submit(Carry(log_offset))
            if not settled.carried:
                return

    async def _load(self, some: Iterable[Transaction]) -> None:
        await self._core.page_in.load((one.log_offset, one.log_offset + one.size) for one in some)

    def _is_due(self) -> bool:
        return bool(self._core.state.transactions.due(self._now_ms(), 1))

    def _now_ms(self) -> int:
        """The wall clock, but never back: when that is set back, time goes on from where it was at
        the pace of the steady one. Stamps in the log do not go back either.
        """
        steady_ms = self._steady_ms()
        passed_ms = steady_ms - self._time_read_ms
        self._time_ms = max(self._core.now_ms(), self._time_ms + passed_ms)
        self._time_read_ms = steady_ms
        return self._time_ms

    async def _sweep(self) -> None:
        core = self._core
        try:
            while self._is_due():
                due = core.state.transactions.due(self._now_ms(), SWEEP_MAX)
                if any(one.is_exhausted for one in due):
                    await core.catalog.ensure_internal(GIVE_UP_TOPIC)
                await self._load(
                    one for one in due if one.is_exhausted or self.producers(one.producer_group)
                )
                settled, _ = await self._decider.submit(Sweep())
                for transaction_id in settled.asked:
                    self._ask(transaction_id)
                    # Each may be megabytes to read.
                    await asyncio.sleep(0)
        except MqError as error:
            # What is due stays due: this leader, or the next, goes on with it.
            self._pause_ticks = _PAUSE_TICKS
            log.info("no questions about transactions for now", error=str(error))
        finally:
            self._sweeping = None

    def _ask(self, transaction_id: int) -> str | None:
        """Hands the question over; whatever is wrong with it concerns no other."""
        one = self._core.state.transactions.open.get(transaction_id)
        if one is None:
            return None
        self.checks_total += 1
        if not self.producers(one.producer_group):
            return None
        try:
            return self._respondents.ask(Question(one, self._read(one)))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is about this one
            log.warning("cannot ask about a transaction", transaction=one.id, error=str(error))
            return None

    # -- turns ------------------------------------------------------------------------------------

    def _decide(self, requests: list[TransactionRequest]) -> TurnDecision[_SettledEntry]:
        core = self._core
        turn = TransactionTurn(
            core.state.transactions,
            self._read,
            core.catalog.present,
            self._now_ms(),
            self._entry_bytes,
            core.settings.config.node.broker_set,
        )
        decided: list[Settled | MqError] = []
        for request in requests:
            try:
                settled = turn.decide(request)
            except Exception:
                log.exception("a mistake of the broker's in a transaction", request=repr(request))
                settled = Internal("the broker made a mistake; its log says more")
            if settled is None:
                break
            decided.append(settled)
        entry = turn.entry()
        answers: list[_SettledEntry | MqError] = [
            one if isinstance(one, MqError) else (one, entry) for one in decided
        ]
        return TurnDecision(answers, entry)

    def _read(self, one: Transaction) -> Batch:
        recent = self._recent.take(one.log_offset) if self._recent is not None else None
        if recent is not None:
            return recent
        (held,) = read_held(self._core.store.log, [(one.log_offset, one.size)])
        if not held.batch.half or held.batch.message_count != one.messages:
            raise Internal(f"what stands at {one.log_offset} is not the batch of {one.id}")
        return held.batch


class _RecentHalves:
    """Half batches that were stored a moment ago, by their log offset: most transactions end soon,
    and their batch need not be read from the log then. The oldest ones are forgotten.
    """

    def __init__(self) -> None:
        self._batches: OrderedDict[int, Batch] = OrderedDict()
        self._bytes = 0

    def add(self, log_offset: int, batch: Batch) -> None:
        if len(batch.data) > _RECENT_BATCH_BYTES_MAX:
            return
        self._batches[log_offset] = batch
        self._bytes += len(batch.data)
        while self._bytes > _RECENT_BYTES_MAX:
            _, oldest = self._batches.popitem(last=False)
            self._bytes -= len(oldest.data)

    def take(self, log_offset: int) -> Batch | None:
        batch = self._batches.pop(log_offset, None)
        if batch is not None:
            self._bytes -= len(batch.data)
        return batch


def _place(settled: Settled, entry: ProposedEntry | None) -> StoredAt | None:
    """Of the messages of a commit."""
    if settled.before is not None:
        return settled.before.stored
    if entry is None or settled.batch_at < 0:
        return None
    return entry.stored[settled.batch_at]
