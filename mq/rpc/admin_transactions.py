"""AdminService, transactions."""

from __future__ import annotations

from typing import Any

from mq.broker.broker import Broker
from mq.errors import Internal
from mq.rpc.methods import Context


class TransactionAdmin:
    def __init__(self, broker: Broker, broker_set: str) -> None:
        self._broker = broker
        self._broker_set = broker_set

    async def list_transactions(self, request: Any, context: Context) -> Any:
        raise Internal("not served yet")

    async def check_transaction_now(self, request: Any, context: Context) -> Any:
        raise Internal("not served yet")
