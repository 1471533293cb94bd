"""AdminService: topics, groups, single messages, the node itself."""

from __future__ import annotations

from typing import Any, Protocol

from mq import names
from mq.broker.broker import Broker
from mq.broker.consumer.filters import compile_filter
from mq.broker.inspect import Inspector, positions_of, topic_info
from mq.errors import GroupNotFound
from mq.rpc.admin_members import MemberControl
from mq.rpc.consumer import start_of, start_offsets, topic_queues
from mq.rpc.methods import Context
from mq.wire.v1 import admin_pb2 as pb


class NodeControl(Protocol):
    """What the server knows of its node, and lets change while it runs."""

    @property
    def members(self) -> MemberControl: ...

    def status(self) -> pb.BrokerStatusResponse: ...

    def options(self) -> pb.ConfigList: ...

    def set_option(self, name: str, value: str) -> None:
        """IllegalConfig."""
        ...


class AdminService:
    def __init__(self, broker: Broker, broker_set: str, node: NodeControl) -> None:
        self._broker = broker
        self._broker_set = broker_set
        self._inspector = Inspector(broker, broker_set)
        self._node = node

    # -- topics -----------------------------------------------------------------------------------

    async def create_topic(self, request: pb.CreateTopicRequest, context: Context) -> pb.TopicInfo:
        await self._broker.leadership.settled()
        topic = await self._broker.catalog.create(
            request.topic, request.queues, request.type, request.priorities
        )
        return topic_info(topic, self._broker_set)

    async def alter_topic(self, request: pb.AlterTopicRequest, context: Context) -> pb.TopicInfo:
        await self._broker.leadership.settled()

        def given(field: Any) -> Any:
            return getattr(request, field) if request.HasField(field) else None

        topic = await self._broker.catalog.alter(
            request.topic,
            write_queues=given("write_queues"),
            read_queues=given("read_queues"),
            is_readable=given("is_readable"),
            is_writable=given("is_writable"),
        )
        return topic_info(topic, self._broker_set)

    async def delete_topic(
        self, request: pb.DeleteTopicRequest, context: Context
    ) -> pb.DeleteTopicResponse:
        await self._broker.leadership.settled()
        await self._broker.catalog.delete(request.topic)
        return pb.DeleteTopicResponse()

    async def list_topics(
        self, request: pb.ListTopicsRequest, context: Context
    ) -> pb.ListTopicsResponse:
        await self._broker.leadership.settled()
        topics = await self._inspector.topics(include_internal=request.include_internal)
        return pb.ListTopicsResponse(topics=topics)

    async def describe_topic(
        self, request: pb.DescribeTopicRequest, context: Context
    ) -> pb.DescribeTopicResponse:
        await self._broker.leadership.settled()
        return await self._inspector.topic(request.topic)

    # -- groups -----------------------------------------------------------------------------------

    async def list_groups(
        self, request: pb.ListGroupsRequest, context: Context
    ) -> pb.ListGroupsResponse:
        await self._broker.leadership.settled()
        return pb.ListGroupsResponse(groups=await self._inspector.groups())

    async def describe_group(
        self, request: pb.DescribeGroupRequest, context: Context
    ) -> pb.DescribeGroupResponse:
        await self._broker.leadership.settled()
        return await self._inspector.group(request.group)

    async def reset_offsets(
        self, request: pb.ResetOffsetsRequest, context: Context
    ) -> pb.ResetOffsetsResponse:
        await self._broker.leadership.settled()
        names.check_group(request.group)
        start = start_of(request.kind, request.at_ms)
        queues = await topic_queues(self._broker, request.topic, request.queue_ids)
        if not request.may_be_new and request.group not in self._broker.groups.names():
            raise GroupNotFound(f"there is no group {request.group}")
        after = await start_offsets(self._broker, queues, start)
        committed = self._broker.state.offsets.positions(request.group)
        before = {queue: committed[queue] for queue in queues if queue in committed}
        if not request.is_dry_run:
            await self._broker.groups.reset(request.group, after)
        return pb.ResetOffsetsResponse(
            before=await positions_of(before, self._broker_set),
            after=await positions_of(after, self._broker_set),
        )

    async def delete_group(
        self, request: pb.DeleteGroupRequest, context: Context
    ) -> pb.DeleteGroupResponse:
        await self._broker.leadership.settled()
        live = self._broker.groups.live(request.group)
        member_count = len(live.members) if live else 0
        member_count += len(self._broker.receiving.members(request.group))
        if not member_count:
            # Behind the end of the group in the log they would begin it anew.
            self._broker.commits.drop_group(request.group)
        await self._broker.catalog.delete_group(request.group, member_count)
        return pb.DeleteGroupResponse()

    # -- messages ---------------------------------------------------------------------------------

    async def get_message(
        self, request: pb.GetMessageRequest, context: Context
    ) -> pb.StoredMessage:
        await self._broker.leadership.settled()
        return self._inspector.message(request.message_id)

    async def query_messages(
        self, request: pb.QueryMessagesRequest, context: Context
    ) -> pb.MessageList:
        await self._broker.leadership.settled()
        return self._inspector.by_key(request)

    async def browse_messages(
        self, request: pb.BrowseMessagesRequest, context: Context
    ) -> pb.MessageList:
        await self._broker.leadership.settled()
        return self._inspector.browse(request, compile_filter(request.filter))

    # -- the node ---------------------------------------------------------------------------------

    async def broker_status(
        self, request: pb.BrokerStatusRequest, context: Context
    ) -> pb.BrokerStatusResponse:
        return self._node.status()

    async def get_config(self, request: pb.GetConfigRequest, context: Context) -> pb.ConfigList:
        return self._node.options()

    async def set_config(self, request: pb.SetConfigRequest, context: Context) -> pb.ConfigList:
        self._node.set_option(request.name, request.value)
        options = self._node.options().options
        return pb.ConfigList(options=[one for one in options if one.name == request.name])
