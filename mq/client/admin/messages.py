"""Administration of single messages and open transactions: in the broker set that their id names,
or in all sets.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from typing import Any

from google.protobuf.message import Message as WireMessage

from mq import names
from mq.client.admin.calls import AdminCalls, Answers, check_counts
from mq.client.cluster.topology import in_several_sets
from mq.client.messages import FilterLike, wire_filter
from mq.client.public import renamed
from mq.errors import (
    IllegalRequest,
    MessageNotFound,
    MqError,
    TopicNotFound,
    TransactionNotFound,
)
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
_SCHEDULED = 32


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

    async def trace_message(
        self, message_id: str, *, budget_s: float = 0.0, continue_token: int = 0, server: str = ""
    ) -> pb.MessageTrace:
        """Returns what became of the message, or of the one that it is a copy of, by the log. When
        `is_complete` is False because the time was over, the same call with the `continue_token` of
        the answer goes on. `budget_s` 0: 2 s, at most 10. `server` asks that broker, which may
        follow, instead of the leader. MessageNotFound.
        """
        request = pb.TraceMessageRequest(
            message_id=message_id,
            budget_ms=round(budget_s * 1000),
            continue_token=continue_token,
        )
        answer: pb.MessageTrace
        if server:
            answer = await self._ask_broker(server, request)
        else:
            answer = await self._ask_owner(message_id, request, MessageNotFound)
        return answer

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
        check_counts(queue_id=queue_id, queue_offset=queue_offset)
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

    # Messages that wait for their delivery time

    async def list_scheduled(
        self, topic: str = "", begin_ms: int = 0, max_messages: int = 0, *, page: str = ""
    ) -> pb.ListScheduledResponse:
        """Lists messages that wait for their delivery time, of one topic or of all, the next one
        first, from `begin_ms` on. Go on with `next_page` of the answer, which is empty at the end;
        a page may have no messages and still have a next one.
        """
        check_counts(max_messages=max_messages, begin_ms=begin_ms)
        pages = _pages(page, await self._set_names())
        requests = {
            name: pb.ListScheduledRequest(
                topic=topic, begin_ms=begin_ms, messages_max=max_messages, page=at
            )
            for name, at in pages.items()
        }
        if not requests:
            return pb.ListScheduledResponse()
        replies = await self._ask_all(requests, absent=TopicNotFound)
        found = replies.some()
        in_order = heapq.merge(
            *([(one, name) for one in answer.messages] for name, answer in found.items()),
            key=lambda pair: (pair[0].deliver_at_ms, pair[1]),
        )
        shown = list(in_order)[: max_messages or _SCHEDULED]
        next_pages = {name: answer.next_page for name, answer in found.items()}
        for name, answer in found.items():
            used = [one for one, owner in shown if owner == name]
            if len(used) < len(answer.messages):
                next_pages[name] = used[-1].next_page if used else pages[name] or f"{begin_ms}-0-0"
        return pb.ListScheduledResponse(
            messages=[one for one, _ in shown],
            next_page=",".join(f"{name}={at}" for name, at in next_pages.items() if at),
            missing_sets=replies.missing,
        )

    async def count_scheduled(self, max_buckets: int = 0) -> pb.CountScheduledResponse:
        """Counts the messages that wait for their delivery time, by that time and by topic."""
        check_counts(max_buckets=max_buckets)
        replies = await self._ask_all(pb.CountScheduledRequest(buckets_max=max_buckets))
        found = list(replies.some().values())
        # The counts of sets join in the longest of their buckets.
        bucket_ms = max(one.bucket_ms for one in found)
        buckets: Counter[int] = Counter()
        topics: Counter[str] = Counter()
        for one in found:
            for bucket in one.buckets:
                buckets[bucket.begin_ms // bucket_ms * bucket_ms] += bucket.count
            for each in one.topics:
                topics[each.topic] += each.messages
        return pb.CountScheduledResponse(
            messages=sum(one.messages for one in found),
            buckets=[pb.ScheduledBucket(begin_ms=at, count=buckets[at]) for at in sorted(buckets)],
            bucket_ms=bucket_ms,
            counts_batches=any(one.counts_batches for one in found),
            topics=[pb.ScheduledTopic(topic=name, messages=n) for name, n in topics.most_common()],
            missing_sets=replies.missing,
        )

    async def recall_scheduled(self, topic: str, message_id: str, deliver_at_ms: int) -> None:
        """Takes back a message that waits, as `Producer.recall`, for those who may alter the topic.
        MessageNotFound when it is delivered, or was taken back.
        """
        request = pb.RecallScheduledRequest(
            topic=topic, message_id=message_id, deliver_at_ms=deliver_at_ms
        )
        await self._ask_owner(message_id, request, MessageNotFound)

    # Transactions

    @renamed(transactions_max="max_transactions")
    async def list_transactions(
        self, producer_group: str = "", max_transactions: int = 0
    ) -> pb.ListTransactionsResponse:
        """Lists the open transactions of all broker sets, of one producer group or of all, the
        oldest first; `open` is their number.
        """
        check_counts(max_transactions=max_transactions)
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


def _pages(page: str, sets: Sequence[str]) -> dict[str, str]:
    """The page of each set that has more. IllegalRequest."""
    if not page:
        return dict.fromkeys(sets, "")
    pages = dict(one.partition("=")[::2] for one in page.split(","))
    unknown = [one for one in pages if one not in sets]
    if unknown or not all(pages.values()):
        raise IllegalRequest(
            f"page = {page[:60]!r} is none: give `next_page` of the answer before, or leave it out"
        )
    return pages
