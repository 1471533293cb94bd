"""The way of the broker's entries into the log: one encoding, one place that proposes.

It also knows which delayed batches are proposed and not applied. They get their position in the
schedule when they are applied; until then nothing that is due later may be delivered, because the
entry of that delivery would stand behind theirs in the log and say that everything up to its time
has left the schedule.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from mq.broker.contracts import Consensus
from mq.broker.state.machine import ProposedEntry
from mq.store.batch import Batch, encode_payload
from mq.store.format import Kind
from mq.wire.v1.state_pb2 import Command


class EntryWriter:
    def __init__(self, consensus: Consensus) -> None:
        self._consensus = consensus
        self.pending_delays = PendingDelays()

    def propose(self, entry: ProposedEntry) -> Awaitable[object]:
        """The batches and the command as one entry, all or nothing. As `Consensus.propose`."""
        command = entry.command.SerializeToString() if entry.command is not None else b""
        if not entry.batches:
            return self._consensus.propose(Kind.COMMAND, [command], entry)
        payload = encode_payload(entry.batches, command)
        proposed = self._consensus.propose(Kind.MESSAGES, payload, entry)
        return self.pending_delays.track(entry, proposed)

    async def write(
        self, command: Command | None = None, batches: Sequence[Batch] = ()
    ) -> ProposedEntry:
        """Proposes one entry. It is applied here when this returns; raises as `propose`."""
        entry = ProposedEntry(batches, command)
        await self.propose(entry)
        return entry

    async def write_uncancelled(
        self, command: Command | None = None, batches: Sequence[Batch] = ()
    ) -> None:
        """As `write`, and a caller that is cancelled still waits until the entry is applied or
        lost: for callers with a lock, whose next owner must not decide on a state that is about to
        change.
        """
        writing = asyncio.ensure_future(self.write(command, batches))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])
            raise


class PendingDelays:
    """Due times of delayed batches that are proposed and not applied yet."""

    def __init__(self) -> None:
        self._due_ms: dict[asyncio.Future[object], int] = {}
        self._watchers: list[Callable[[], None]] = []

    def first_due_ms(self) -> int | None:
        return min(self._due_ms.values(), default=None)

    def watch(self, watcher: Callable[[], None]) -> None:
        """Called whenever an entry with delayed batches is applied or has failed."""
        self._watchers.append(watcher)

    def track(self, entry: ProposedEntry, proposed: Awaitable[object]) -> Awaitable[object]:
        due_ms = [batch.deliver_at_ms for batch in entry.batches if batch.deliver_at_ms]
        if not due_ms:
            return proposed
        future = asyncio.ensure_future(proposed)
        self._due_ms[future] = min(due_ms)
        future.add_done_callback(self._done)
        # A caller that is cancelled does not end the proposal.
        return asyncio.shield(future)

    def _done(self, future: asyncio.Future[object]) -> None:
        del self._due_ms[future]
        if not future.cancelled():
            # Retrieve the exception so that asyncio does not warn: the caller may have gone.
            future.exception()
        for watcher in self._watchers:
            watcher()
