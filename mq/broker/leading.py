"""Whether this node serves: it leads, and has applied everything that was in the log before its
term. Until then its state may be old.
"""

from __future__ import annotations

import asyncio

from mq.broker.contracts import Consensus
from mq.broker.state.machine import Machine
from mq.errors import NotLeader

# Becoming leader takes one round trip; waiting for it is kinder than sending the client away.
_SETTLE_S = 1.0
_POLL_S = 0.005


class Leadership:
    def __init__(self, consensus: Consensus, machine: Machine) -> None:
        self._consensus = consensus
        self._machine = machine

    @property
    def is_serving(self) -> bool:
        return self._serves()

    def _serves(self) -> bool:
        term = self._consensus.leading_term
        return term != 0 and term == self._machine.applied_term

    @property
    def is_current(self) -> bool:
        """This node leads or follows somebody, and has applied all that was in the log before."""
        term, leader_id, *_ = self._consensus.leading
        return leader_id is not None and term == self._machine.applied_term

    @property
    def term(self) -> int:
        """In which this node leads, or 0."""
        return self._consensus.leading_term

    def check(self) -> None:
        """NotLeader, with the address for clients of the one to ask."""
        if not self.is_serving:
            raise self.refusal()

    async def settled(self) -> None:
        """As `check`, but a node that has just been elected gets a moment."""
        if self.is_serving:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _SETTLE_S
        while self._consensus.leading_term and loop.time() < deadline:
            await asyncio.sleep(_POLL_S)
            if self._serves():
                return
        raise self.refusal()

    def refusal(self) -> NotLeader:
        _, leader_id, address, external = self._consensus.leading
        return NotLeader(leader_id, address, external) if address else NotLeader(None, None)
