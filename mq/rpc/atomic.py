"""ProducerService.SendAtomically: exactly-once processing."""

from __future__ import annotations

from typing import Any

from mq.broker.broker import Broker
from mq.errors import Internal
from mq.rpc.methods import Context


class AtomicService:
    def __init__(self, broker: Broker, broker_set: str) -> None:
        self._broker = broker
        self._broker_set = broker_set

    async def send_atomically(self, request: Any, context: Context) -> Any:
        raise Internal("not served yet")
