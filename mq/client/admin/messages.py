"""Administration of single messages and open transactions: in the broker set that their id names,
or in all sets.
"""

from __future__ import annotations

import heapq
from typing import Any

from google.protobuf.message import Message as WireMessage

from mq import names
from mq.client.admin.calls import AdminCalls, Answers, check_count
from mq.client.cluster.topology import in_several_sets
from mq.client.messages import FilterLike, wire_filter
from mq.client.public import renamed
from mq.errors import MessageNotFound, MqError, TopicNotFound, TransactionNotFound
from mq.wire.v1 import admin_pb2 as pb
from mq.wire.v1.transaction_pb2 import (
    RESOLUTION_COMMIT,
    RESOLUTION_ROLLBACK,
    EndTransactionRequest,
    EndTransactionResponse,
)

# The number that one broker finds at most.
_FOUND_MAX = 64
_TRANSACTIONS = 100


class MessageAdmin(AdminCalls):
    async def get_message(self, message_id: str) -> pb.StoredMessage:
        """Returns the message with the id that a send returned. MessageNotFound."""
        request = pb.GetMessageRequest(message_id=message_id)
        answer: pb.StoredMessage = await self._ask_owner(message_id, request, MessageNotFound)
        return answer

    async def query_messages(
        self, topic: str, key: str, begin_ms: int = 0, end_ms: int = 0
    ) -> Answers[pb.StoredMessage]:
        """Finds messages with this key, newest first, 64 at most; `end_ms` 0 is now."""
        request = pb.QueryMessagesRequest(topic=topic, key=key, begin_ms=begin_ms, end_ms=end_ms)
        replies = await self._ask_all(request, absent=TopicNotFound)
        found = heapq.merge(
            *(answer.messages for answer in replies.some().values()),
            key=lambda one: -one.stored_at_ms,
        )
        return Answers(list(found)[:_FOUND_MAX], replies.missing)

    @renamed(messages_max="max_messages")
    async def browse_messages(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_messages: int = 0,
        filter: FilterLike = None,  # noqa: A002
        *,
        broker_set: str = "",
    ) -> pb.MessageList:
        """Reads a queue from an offset on, without a group; go on at `next_offset` of the answer.
        `broker_set` may be left out when only one has the topic.
        """
        for name, number in (("queue_id", queue_id), ("queue_offset", queue_offset)):
            check_count(name, number)
        request = pb.BrowseMessagesRequest(
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
            messages_max=max_messages,
            filter=wire_filter(filter),
        )
        broker_set = await self._set_of_queue(topic, queue_id, broker_set)
        answer: pb.MessageList = await self._ask(broker_set, request)
        return answer

    async def _set_of_queue(self, topic: str, queue_id: int, broker_set: str) -> str:
        known = await self._set_names()
        if broker_set:
            return await self._known_set(broker_set, known)
        if len(known) == 1:
            return known[0]
        request = pb.DescribeTopicRequest(topic=topic)
        replies = await self._ask_all(request, absent=TopicNotFound)
        sets = list(replies.some())
        if len(sets) > 1:
            raise in_several_sets(topic, queue_id, sets)
        return sets[0]

    # Transactions

    @renamed(transactions_max="max_transactions")
    async def list_transactions(
        self, producer_group: str = "", max_transactions: int = 0
    ) -> pb.ListTransactionsResponse:
        """Lists the open transactions of all broker sets, of one producer group or of all, the
        oldest first; `open` is their number.
        """
        check_count("max_transactions", max_transactions)
        request = pb.ListTransactionsRequest(
            producer_group=producer_group, transactions_max=max_transactions
        )
        replies = await self._ask_all(request)
        found = list(replies.some().values())
        in_order = heapq.merge(
            *(one.transactions for one in found), key=lambda one: one.stored_at_ms
        )
        return pb.ListTransactionsResponse(
            transactions=list(in_order)[: max_transactions or _TRANSACTIONS],
            open=sum(one.open for one in found),
            missing_sets=replies.missing,
        )

    async def end_transaction(self, transaction_id: str, *, commit: bool) -> EndTransactionResponse:
        """Commits a transaction, or rolls it back. TransactionNotFound when it has ended."""
        resolution = RESOLUTION_COMMIT if commit else RESOLUTION_ROLLBACK
        request = EndTransactionRequest(transaction_id=transaction_id, resolution=resolution)
        answer: EndTransactionResponse = await self._ask_owner(
            transaction_id, request, TransactionNotFound
        )
        return answer

    async def check_transaction(self, transaction_id: str) -> str:
        """Lets the broker ask a living producer now. Returns the id of that producer. GroupNotFound
        when there is none.
        """
        request = pb.CheckTransactionNowRequest(transaction_id=transaction_id)
        answer: pb.CheckTransactionNowResponse = await self._ask_owner(
            transaction_id, request, TransactionNotFound
        )
        return answer.producer_id

    async def _ask_owner(
        self, message_id: str, request: WireMessage, missing: type[MqError]
    ) -> Any:
        """The answer of the set that the id names."""
        broker_set, _ = names.parse_message_id(message_id)
        known = await self._set_names()
        if broker_set not in known:
            raise missing(
                f"{message_id} is of broker set {broker_set}: the cluster has {', '.join(known)}"
            )
        return await self._ask(broker_set, request)
