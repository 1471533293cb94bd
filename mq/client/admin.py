"""Administration for programs with asyncio: topics, groups, single messages, the brokers.

One call each, answered by the messages of proto/mq/v1/admin.proto as they come; nothing is decided
or kept here. Errors are those of `mq.errors`, as the broker gives them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, Self

from google.protobuf.message import Message as WireMessage

from mq.client.model import FilterLike, wire_filter
from mq.client.wiring import CALL_TIMEOUT_S, Connection
from mq.errors import IllegalRequest
from mq.wire.v1 import admin_pb2 as pb
from mq.wire.v1.cluster_pb2 import (
    TOPIC_DELAYED,
    TOPIC_NORMAL,
    TOPIC_ORDERED,
    TOPIC_TRANSACTIONAL,
    RouteResponse,
    TopicType,
)
from mq.wire.v1.consumer_pb2 import OFFSET_AT_TIME, OFFSET_EARLIEST, OFFSET_LATEST
from mq.wire.v1.transaction_pb2 import (
    RESOLUTION_COMMIT,
    RESOLUTION_ROLLBACK,
    EndTransactionRequest,
    EndTransactionResponse,
)

TypeName = Literal["normal", "ordered", "delayed", "transactional"]
OffsetTarget = Literal["earliest", "latest"] | int

_TYPES: dict[str, TopicType] = {
    "normal": TOPIC_NORMAL,
    "ordered": TOPIC_ORDERED,
    "delayed": TOPIC_DELAYED,
    "transactional": TOPIC_TRANSACTIONAL,
}
_OFFSETS = {"earliest": OFFSET_EARLIEST, "latest": OFFSET_LATEST}


class Admin:
    """As `mq.client.Admin`, with coroutines.

    >>> import asyncio
    >>> from mq.client.aio import Admin
    >>> async def main():
    ...     async with Admin("127.0.0.1:8081") as admin:
    ...         topic = await admin.create_topic("invoices", queues=4)
    ...         print(topic.topic, topic.write_queues)
    ...         await admin.delete_topic("invoices")
    >>> asyncio.run(main())
    invoices 4
    """

    def __init__(
        self,
        servers: str | Sequence[str] = "127.0.0.1:8081",
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        """`timeout_s`: how long a call may take, with all its attempts to find a broker."""
        self._connection = Connection(servers)
        self._timeout_s = timeout_s

    async def _call(self, method: str, request: WireMessage) -> Any:
        return await self._connection.call_first("AdminService", method, request, self._timeout_s)

    async def _call_node(self, method: str, request: WireMessage, server: str | None) -> Any:
        """Of one broker, whether it leads or not."""
        return await self._connection.call(
            "AdminService", method, request, self._timeout_s, server=server or ""
        )

    # Topics

    async def create_topic(
        self,
        topic: str,
        queues: int = 0,
        type: TypeName = "normal",  # noqa: A002
        *,
        priorities: int = 0,
    ) -> pb.TopicInfo:
        """With 0 queues it gets the broker's default. `priorities`: 2 to 10, and 0 for none.
        TopicExists, unless it is the same.
        """
        if type not in _TYPES:
            raise IllegalRequest(f"type {type!r} of topic {topic}: use one of {', '.join(_TYPES)}")
        _check_count("queues", queues)
        _check_count("priorities", priorities)
        request = pb.CreateTopicRequest(
            topic=topic, queues=queues, type=_TYPES[type], priorities=priorities
        )
        answer: pb.TopicInfo = await self._call("CreateTopic", request)
        return answer

    async def alter_topic(
        self,
        topic: str,
        *,
        write_queues: int | None = None,
        read_queues: int | None = None,
        is_readable: bool | None = None,
        is_writable: bool | None = None,
    ) -> pb.TopicInfo:
        """What is None stays as it is. To shrink without loss lower `write_queues`, let consumers
        finish, then lower `read_queues`.
        """
        for name, count in (("write_queues", write_queues), ("read_queues", read_queues)):
            _check_count(name, count or 0)
        request = pb.AlterTopicRequest(
            topic=topic,
            write_queues=write_queues,
            read_queues=read_queues,
            is_readable=is_readable,
            is_writable=is_writable,
        )
        answer: pb.TopicInfo = await self._call("AlterTopic", request)
        return answer

    async def delete_topic(self, topic: str) -> None:
        """Its messages are gone at once."""
        await self._call("DeleteTopic", pb.DeleteTopicRequest(topic=topic))

    async def list_topics(self, *, include_internal: bool = False) -> list[pb.TopicSummary]:
        request = pb.ListTopicsRequest(include_internal=include_internal)
        answer: pb.ListTopicsResponse = await self._call("ListTopics", request)
        return list(answer.topics)

    async def describe_topic(self, topic: str) -> pb.DescribeTopicResponse:
        """TopicNotFound."""
        request = pb.DescribeTopicRequest(topic=topic)
        answer: pb.DescribeTopicResponse = await self._call("DescribeTopic", request)
        return answer

    # Groups

    async def list_groups(self) -> list[pb.GroupSummary]:
        answer: pb.ListGroupsResponse = await self._call("ListGroups", pb.ListGroupsRequest())
        return list(answer.groups)

    async def describe_group(self, group: str) -> pb.DescribeGroupResponse:
        """GroupNotFound."""
        request = pb.DescribeGroupRequest(group=group)
        answer: pb.DescribeGroupResponse = await self._call("DescribeGroup", request)
        return answer

    async def reset_offsets(
        self,
        group: str,
        topic: str,
        to: OffsetTarget,
        queue_ids: Iterable[int] = (),
        *,
        dry_run: bool = False,
    ) -> pb.ResetOffsetsResponse:
        """To the earliest message, behind the latest, or to the first one stored at a time in ms or
        later. The answer has the offsets before and after; with `dry_run` nothing else happens.
        """
        request = pb.ResetOffsetsRequest(
            group=group, topic=topic, queue_ids=queue_ids, is_dry_run=dry_run
        )
        request.kind = _OFFSETS.get(str(to), OFFSET_AT_TIME)
        if request.kind == OFFSET_AT_TIME:
            if not isinstance(to, int):
                raise IllegalRequest(f"to = {to!r}: use 'earliest', 'latest' or a time in ms")
            request.at_ms = to
        answer: pb.ResetOffsetsResponse = await self._call("ResetOffsets", request)
        return answer

    async def delete_group(self, group: str) -> None:
        """GroupNotEmpty while it has members."""
        await self._call("DeleteGroup", pb.DeleteGroupRequest(group=group))

    async def alter_group(self, group: str, *, retries_max: int | None = None) -> pb.GroupSettings:
        """How often the group retries a message before it is a dead letter. What is None stays as
        it is; the answer has what is so now.
        """
        _check_count("retries_max", retries_max or 0)
        request = pb.AlterGroupRequest(group=group, retries_max=retries_max)
        answer: pb.GroupSettings = await self._call("AlterGroup", request)
        return answer

    # Dead letters

    async def count_dead_letters(self) -> list[pb.DeadLetterCount]:
        """Of every group that has some."""
        request = pb.ListDeadLettersRequest()
        answer: pb.ListDeadLettersResponse = await self._call("ListDeadLetters", request)
        return list(answer.groups)

    async def list_dead_letters(
        self, group: str, queue_offset: int = 0, messages_max: int = 0
    ) -> pb.ListDeadLettersResponse:
        """From a queue offset on; go on at `next_offset`. TopicNotFound: it never had one."""
        if not group:
            raise IllegalRequest("whose dead letters? name a group")
        _check_count("queue_offset", queue_offset)
        request = pb.ListDeadLettersRequest(
            group=group, queue_offset=queue_offset, messages_max=messages_max
        )
        answer: pb.ListDeadLettersResponse = await self._call("ListDeadLetters", request)
        return answer

    async def resend_dead_letters(self, group: str, queue_offsets: Iterable[int] = ()) -> int:
        """Back to the group, counted from 0: these, which stay, or all, which are dead letters no
        more. How many there were. MessageNotFound.
        """
        request = pb.ResendDeadLettersRequest(group=group, queue_offsets=queue_offsets)
        answer: pb.ResendDeadLettersResponse = await self._call("ResendDeadLetters", request)
        return answer.messages

    async def purge_dead_letters(self, group: str, before_offset: int = 0) -> int:
        """Those before this queue offset are gone, 0: all. How many there were."""
        _check_count("before_offset", before_offset)
        request = pb.PurgeDeadLettersRequest(group=group, before_offset=before_offset)
        answer: pb.PurgeDeadLettersResponse = await self._call("PurgeDeadLetters", request)
        return answer.messages

    # Transactions

    async def list_transactions(
        self, producer_group: str = "", transactions_max: int = 0
    ) -> pb.ListTransactionsResponse:
        """Those that are open, of one producer group or of all, the oldest first; `open` says how
        many there are.
        """
        _check_count("transactions_max", transactions_max)
        request = pb.ListTransactionsRequest(
            producer_group=producer_group, transactions_max=transactions_max
        )
        answer: pb.ListTransactionsResponse = await self._call("ListTransactions", request)
        return answer

    async def end_transaction(self, transaction_id: str, *, commit: bool) -> EndTransactionResponse:
        """Commits it, or rolls it back. TransactionNotFound: it has ended otherwise."""
        resolution = RESOLUTION_COMMIT if commit else RESOLUTION_ROLLBACK
        request = EndTransactionRequest(transaction_id=transaction_id, resolution=resolution)
        answer: EndTransactionResponse = await self._connection.call_first(
            "TransactionService", "EndTransaction", request, self._timeout_s
        )
        return answer

    async def check_transaction(self, transaction_id: str) -> str:
        """Asks a living producer now; the id of that one. GroupNotFound: there is none."""
        request = pb.CheckTransactionNowRequest(transaction_id=transaction_id)
        answer: pb.CheckTransactionNowResponse = await self._call("CheckTransactionNow", request)
        return answer.producer_id

    # Messages

    async def get_message(self, message_id: str) -> pb.StoredMessage:
        """By the id that a send returned. MessageNotFound."""
        request = pb.GetMessageRequest(message_id=message_id)
        answer: pb.StoredMessage = await self._call("GetMessage", request)
        return answer

    async def query_messages(
        self, topic: str, key: str, begin_ms: int = 0, end_ms: int = 0
    ) -> list[pb.StoredMessage]:
        """With this key, newest first, 64 at most; `end_ms` 0 is now."""
        request = pb.QueryMessagesRequest(topic=topic, key=key, begin_ms=begin_ms, end_ms=end_ms)
        answer: pb.MessageList = await self._call("QueryMessages", request)
        return list(answer.messages)

    async def browse_messages(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        messages_max: int = 0,
        filter: FilterLike = None,  # noqa: A002
    ) -> pb.MessageList:
        """From a queue offset on, without a group; go on at `next_offset` of the answer."""
        for name, number in (("queue_id", queue_id), ("queue_offset", queue_offset)):
            _check_count(name, number)
        request = pb.BrowseMessagesRequest(
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
            messages_max=messages_max,
            filter=wire_filter(filter),
        )
        answer: pb.MessageList = await self._call("BrowseMessages", request)
        return answer

    # Brokers

    async def broker_status(self, server: str | None = None) -> pb.BrokerStatusResponse:
        """Of `server`; of any broker when that is None."""
        answer: pb.BrokerStatusResponse = await self._call_node(
            "BrokerStatus", pb.BrokerStatusRequest(), server
        )
        return answer

    async def get_config(self, server: str | None = None) -> list[pb.ConfigOption]:
        answer: pb.ConfigList = await self._call_node("GetConfig", pb.GetConfigRequest(), server)
        return list(answer.options)

    async def set_config(
        self, name: str, value: str, server: str | None = None
    ) -> list[pb.ConfigOption]:
        """On one broker, until it stops; only options that are dynamic."""
        request = pb.SetConfigRequest(name=name, value=value)
        answer: pb.ConfigList = await self._call_node("SetConfig", request, server)
        return list(answer.options)

    async def route(self, topics: Sequence[str] = ()) -> RouteResponse:
        """The brokers, who leads, and where these topics are; those that do not exist are left
        out.
        """
        return await self._connection.brokers(topics, self._timeout_s)

    async def close(self) -> None:
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def _check_count(name: str, number: int) -> None:
    # Protobuf would refuse it too, in words that do not say what it was.
    if number < 0:
        raise IllegalRequest(f"{name} is {number}: it must not be negative")
