"""Batches that wait for a time and are on their way into the log.

They get their place in the schedule when they are applied. Until then nothing that is due later may
be delivered: its entry would stand behind theirs in the log, and say that all up to its time is
gone. So whoever delivers asks here first, and everything that is written comes by.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from mq.broker.contracts import Consensus, Leading, Peer
from mq.broker.state.machine import Written
from mq.store.format import Kind


class UnderWay:
    """A `Consensus` that remembers when what it is given is due."""

    def __init__(self, consensus: Consensus) -> None:
        self._consensus = consensus
        self._due: dict[asyncio.Future[object], int] = {}
        # Called when something of it is applied, or failed.
        self.on_landed: Callable[[], None] = lambda: None

    @property
    def leading_term(self) -> int:
        return self._consensus.leading_term

    @property
    def leading(self) -> Leading:
        return self._consensus.leading

    @property
    def peers(self) -> Sequence[Peer]:
        return self._consensus.peers

    def first_due_ms(self) -> int | None:
        """Of what is not applied yet; None: there is nothing."""
        return min(self._due.values(), default=None)

    def propose(
        self, kind: Kind, payload: Sequence[bytes | memoryview], context: object
    ) -> Awaitable[object]:
        proposed = self._consensus.propose(kind, payload, context)
        if isinstance(context, Written):
            due = [one.deliver_at_ms for one in context.batches if one.deliver_at_ms]
            if due:
                landing = asyncio.ensure_future(proposed)
                self._due[landing] = min(due)
                landing.add_done_callback(self._landed)
                # Whoever does not wait any more does not stop it.
                return asyncio.shield(landing)
        return proposed

    def _landed(self, proposed: asyncio.Future[object]) -> None:
        del self._due[proposed]
        if not proposed.cancelled():
            proposed.exception()  # whoever waits hears of it as well
        self.on_landed()
