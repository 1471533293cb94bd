"""Whether this node serves: it leads, and has applied everything that was in the log before its
term. Until then its state may be old.
"""

from __future__ import annotations

import asyncio
import contextlib

from mq.broker.contracts import Consensus
from mq.broker.state.machine import Machine
from mq.errors import NotLeader

# A new leader serves after one round trip: clients wait for it instead of being sent away.
_SETTLE_S = 1.0


class Leadership:
    def __init__(self, consensus: Consensus, machine: Machine) -> None:
        self._consensus = consensus
        self._machine = machine
        self._changed = asyncio.Event()

    @property
    def is_serving(self) -> bool:
        term = self._consensus.leading_term
        return term != 0 and term == self._machine.applied_term

    @property
    def is_current(self) -> bool:
        """This node leads or follows a leader, and has applied all that was in the log before."""
        term, leader_id, *_ = self._consensus.leading
        return leader_id is not None and term == self._machine.applied_term

    @property
    def term(self) -> int:
        """The term in which this node leads, or 0."""
        return self._consensus.leading_term

    def check(self) -> None:
        """Raises NotLeader, with the address for clients of the leader."""
        if not self.is_serving:
            raise self.refusal()

    async def settled(self) -> None:
        """As `check`, but a node that has just been elected gets a moment."""
        if self.is_serving:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                while self._consensus.leading_term and not self.is_serving:
                    self._changed.clear()
                    await self._changed.wait()
        self.check()

    def on_change(self) -> None:
        """The role, the term or the applied term is another one: `settled` looks again."""
        self._changed.set()

    def refusal(self) -> NotLeader:
        _, leader_id, address, external = self._consensus.leading
        return NotLeader(leader_id, address, external) if address else NotLeader(None, None)
