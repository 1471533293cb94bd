"""The way of the broker's entries into the log: one encoding, one place that proposes.

It also knows which delayed batches are proposed and not applied. They get their position in the
schedule when they are applied; until then nothing that is due later may be delivered, because the
entry of that delivery would stand behind theirs in the log and say that everything up to its time
has left the schedule.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from mq.broker.attribution import Attribution
from mq.broker.contracts import Consensus
from mq.broker.state.machine import ProposedEntry
from mq.errors import MqError
from mq.store.batch import Batch, encode_payload
from mq.store.format import Kind
from mq.wire.v1.state_pb2 import Actor as WireActor
from mq.wire.v1.state_pb2 import Command

# Tags and lengths in the entry, and of the command around all of it.
_BATCH_HEAD_BYTES, _ACTOR_HEAD_BYTES, _MARGIN_BYTES = 6, 4, 64


class EntryWriter:
    def __init__(
        self,
        consensus: Consensus,
        attribution: Attribution | None = None,
        entry_bytes_max: int = 4 << 20,
    ) -> None:
        """`attribution` knows whose entries are; without one, nothing is said of it."""
        self._consensus = consensus
        self.pending_delays = PendingDelays()
        self.attribution = attribution or Attribution(lambda: 0, lambda: 0)
        self._entry_bytes_max = entry_bytes_max

    def propose(self, entry: ProposedEntry, done: Callable[[MqError | None], None]) -> None:
        """The batches and the command as one entry, all or nothing. As `Consensus.propose`."""
        if actors := self.attribution.take():
            done = self._say(entry, actors, done)
        command = entry.command.SerializeToString() if entry.command is not None else b""
        if not entry.batches:
            self._consensus.propose(Kind.COMMAND, [command], entry, done)
            return
        payload = encode_payload(entry.batches, command)
        if any(batch.deliver_at_ms for batch in entry.batches):
            done = self.pending_delays.begin(entry, done)
        self._consensus.propose(Kind.MESSAGES, payload, entry, done)

    def _say(
        self,
        entry: ProposedEntry,
        actors: list[WireActor],
        done: Callable[[MqError | None], None],
    ) -> Callable[[MqError | None], None]:
        """The entry says who they are, if there is room. Returns what is to be called instead of
        `done`: what a lost entry said has to be said again.
        """
        size = sum(len(one.data) + _BATCH_HEAD_BYTES for one in entry.batches)
        size += entry.command.ByteSize() if entry.command is not None else 0
        size += sum(one.ByteSize() + _ACTOR_HEAD_BYTES for one in actors)
        if size > self._entry_bytes_max - _MARGIN_BYTES:
            self.attribution.give_back(actors)
            return done
        if entry.command is None:
            entry.command = Command()
        entry.command.provenance.actors.extend(actors)

        def end(error: MqError | None) -> None:
            if error is not None:
                self.attribution.forget()
            done(error)

        return end

    async def write(
        self, command: Command | None = None, batches: Sequence[Batch] = ()
    ) -> ProposedEntry:
        """Proposes one entry. It is applied here when this returns. Raises the error of
        `Consensus.propose`; a caller that is cancelled leaves its entry in flight.
        """
        entry = ProposedEntry(batches, command)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.propose(entry, partial(_set_outcome, future))
        await future
        return entry

    async def write_uncancelled(
        self, command: Command | None = None, batches: Sequence[Batch] = ()
    ) -> ProposedEntry:
        """As `write`, and a caller that is cancelled still waits until the entry is applied or
        lost: for callers with a lock, whose next owner must not decide on a state that is about to
        change.
        """
        writing = asyncio.ensure_future(self.write(command, batches))
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])
            raise


class PendingDelays:
    """Due times of delayed batches that are proposed and not applied yet."""

    def __init__(self) -> None:
        self._due_ms: dict[ProposedEntry, int] = {}
        self._watchers: list[Callable[[], None]] = []

    def first_due_ms(self) -> int | None:
        return min(self._due_ms.values(), default=None)

    def watch(self, watcher: Callable[[], None]) -> None:
        """Called whenever an entry with delayed batches is applied or has failed."""
        self._watchers.append(watcher)

    def begin(
        self, entry: ProposedEntry, done: Callable[[MqError | None], None]
    ) -> Callable[[MqError | None], None]:
        """The entry has delayed batches. Returns what is to be called instead of `done`."""
        self._due_ms[entry] = min(one.deliver_at_ms for one in entry.batches if one.deliver_at_ms)

        def end(error: MqError | None) -> None:
            del self._due_ms[entry]
            for watcher in self._watchers:
                watcher()
            done(error)

        return end


def _set_outcome(future: asyncio.Future[None], error: MqError | None) -> None:
    if future.done():
        return  # the caller was cancelled
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
        # Retrieve it so that asyncio does not warn: a caller may be cancelled in the same turn.
        future.exception()
