"""Everything that entries made, besides the queues: the replicated state of the broker."""

from __future__ import annotations

from mq.broker.state.access import Access
from mq.broker.state.dedup import Producers
from mq.broker.state.leases import Leases
from mq.broker.state.letters import SettledLetters
from mq.broker.state.offsets import Offsets
from mq.broker.state.schedule import Schedule
from mq.broker.state.sets import KnownSets
from mq.broker.state.topics import Topics
from mq.broker.state.transactions import Transactions
from mq.store.batch import Batch
from mq.store.holding import HeldQueue
from mq.wire.v1.state_pb2 import BrokerState


class State:
    """Everything that commands and batches made, besides the queues; a checkpoint has all of it."""

    def __init__(self) -> None:
        self.topics = Topics()
        self.offsets = Offsets()
        self.producers = Producers()
        self.schedule = Schedule()
        self.transactions = Transactions()
        self.leases = Leases()
        self.letters = SettledLetters()
        self.sets = KnownSets()
        self.access = Access()

    def hold(self, batch: Batch, log_offset: int, stored_at_ms: int) -> HeldQueue:
        """A batch is held back from now on, in the queue that this returns. Part of applying."""
        if batch.half:
            return self.transactions.begin(batch, log_offset, stored_at_ms)
        if not batch.origin_log_offset:
            self.topics.count_delayed(batch.topic, batch.message_count)
        return self.schedule.add(batch)

    def encode(self) -> bytes:
        """Same state, same bytes."""
        state = BrokerState(
            topics=self.topics.encode(),
            groups=self.offsets.encode(),
            lanes=self.schedule.encode(),
            transactions=self.transactions.encode(),
            transaction_totals=self.transactions.totals(),
            leases=self.leases.encode(),
            broker_sets=self.sets.encode(),
            access=self.access.encode(),
            counts_stored_bytes=self.topics.counts_stored_bytes,
            begins_counting=True,
            letters=self.letters.encode(),
        )
        rest = state.SerializeToString(deterministic=True)
        return b"".join([rest, *self.producers.encode_fields()])

    def restore(self, data: bytes) -> None:
        state = BrokerState.FromString(data)
        self.topics.restore(state.topics, counts_stored_bytes=state.counts_stored_bytes)
        self.offsets.restore(state.groups)
        self.producers.restore(iter(state.producers))
        self.schedule.restore(state.lanes)
        self.transactions.restore(state.transactions, state.transaction_totals)
        self.leases.restore(state.leases)
        self.sets.restore(state.broker_sets)
        self.access.restore(state.access)
        self.letters.restore(state.letters)
