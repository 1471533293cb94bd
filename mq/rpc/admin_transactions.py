"""AdminService, transactions: what is open, and asking about one now."""

from __future__ import annotations

import heapq

from mq import names
from mq.broker.broker import Broker
from mq.errors import IllegalRequest
from mq.rpc.methods import Context
from mq.rpc.transaction import parse_transaction_id
from mq.wire.v1 import admin_pb2 as pb

_LISTED, _LISTED_MAX = 100, 1_000


class TransactionAdmin:
    def __init__(self, broker: Broker, broker_set: str) -> None:
        self._broker = broker
        self._broker_set = broker_set

    async def list_transactions(
        self, request: pb.ListTransactionsRequest, context: Context
    ) -> pb.ListTransactionsResponse:
        broker = self._broker
        await broker.leadership.settled()
        group, count = request.producer_group, request.transactions_max or _LISTED
        if count > _LISTED_MAX:
            raise IllegalRequest(f"transactions_max = {count}: at most {_LISTED_MAX}")
        if group:
            names.check_group(group)
        transactions = broker.state.transactions.open.values()
        found = [one for one in transactions if group in ("", one.producer_group)]
        oldest = heapq.nsmallest(count, found, key=lambda one: one.id)
        return pb.ListTransactionsResponse(
            open=len(found),
            transactions=[
                pb.TransactionInfo(
                    transaction_id=names.message_id(self._broker_set, one.id),
                    topic=one.topic,
                    producer_group=one.producer_group,
                    stored_at_ms=one.stored_at_ms,
                    messages=one.messages,
                    checks=one.checks,
                    checks_max=one.checks_max,
                    next_check_ms=one.next_check_ms,
                    producers=broker.transacting.producers(one.producer_group),
                )
                for one in oldest
            ],
        )

    async def check_transaction_now(
        self, request: pb.CheckTransactionNowRequest, context: Context
    ) -> pb.CheckTransactionNowResponse:
        await self._broker.leadership.settled()
        transaction_id = parse_transaction_id(request.transaction_id, self._broker_set)
        producer_id = await self._broker.transacting.check_now(transaction_id)
        return pb.CheckTransactionNowResponse(producer_id=producer_id)
