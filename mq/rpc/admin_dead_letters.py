"""AdminService, dead letters and how often a group retries."""

from __future__ import annotations

from typing import Any

from mq.broker.broker import Broker
from mq.errors import Internal
from mq.rpc.methods import Context


class DeadLetterAdmin:
    def __init__(self, broker: Broker, broker_set: str) -> None:
        self._broker = broker
        self._broker_set = broker_set

    async def list_dead_letters(self, request: Any, context: Context) -> Any:
        raise Internal("not served yet")

    async def resend_dead_letters(self, request: Any, context: Context) -> Any:
        raise Internal("not served yet")

    async def purge_dead_letters(self, request: Any, context: Context) -> Any:
        raise Internal("not served yet")

    async def alter_group(self, request: Any, context: Context) -> Any:
        raise Internal("not served yet")
