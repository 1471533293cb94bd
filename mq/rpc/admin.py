"""AdminService: decodes, calls `mq.admin` or the broker, encodes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping

from mq import names
from mq.admin import tracing
from mq.admin.broker_sets import BrokerSets
from mq.admin.control import Control
from mq.admin.groups import GroupControl
from mq.admin.inspector import Inspector
from mq.admin.log_export import read_chunk
from mq.admin.members import SetMembers
from mq.admin.schedule import ScheduleReader
from mq.broker.attribution import Actor
from mq.broker.broker import Broker
from mq.broker.consumer.filters import compile_filter
from mq.broker.long_work import in_turns
from mq.broker.queue import Queue
from mq.broker.retry.dead_letters import LetterResult
from mq.broker.security.audit import Record
from mq.errors import IllegalRequest
from mq.rpc.access import Rules
from mq.rpc.clients import Clients
from mq.rpc.context import Context
from mq.rpc.producer import recall
from mq.rpc.queues import decode_offset_kind, encode_positions, start_offsets, topic_queues
from mq.rpc.transaction import parse_transaction_id
from mq.wire.v1 import admin_pb2 as pb

_QUEUES_RECORDED_MAX = 100


class AdminService:
    def __init__(
        self, broker: Broker, broker_set: str, control: Control, rules: Rules, clients: Clients
    ) -> None:
        self._broker = broker
        self._rules = rules
        self._broker_set = broker_set
        self._control = control
        self._clients = clients
        self._inspector = Inspector(broker, broker_set)
        self._schedule = ScheduleReader(broker, broker_set)
        self._groups = GroupControl(broker)
        self._members = SetMembers(broker.leadership, control.raft, control.status)
        self._sets = BrokerSets(broker)

    # -- topics -----------------------------------------------------------------------------------

    async def create_topic(self, request: pb.CreateTopicRequest, context: Context) -> pb.TopicInfo:
        topic = await self._broker.catalog.create(
            request.topic, request.queues, request.type, request.priorities
        )
        return self._inspector.topic_info(topic)

    async def alter_topic(self, request: pb.AlterTopicRequest, context: Context) -> pb.TopicInfo:
        topic = await self._broker.catalog.alter(
            request.topic,
            write_queues=request.write_queues if request.HasField("write_queues") else None,
            read_queues=request.read_queues if request.HasField("read_queues") else None,
            is_readable=request.is_readable if request.HasField("is_readable") else None,
            is_writable=request.is_writable if request.HasField("is_writable") else None,
        )
        return self._inspector.topic_info(topic)

    async def delete_topic(
        self, request: pb.DeleteTopicRequest, context: Context
    ) -> pb.DeleteTopicResponse:
        await self._broker.catalog.delete(request.topic)
        return pb.DeleteTopicResponse()

    async def list_topics(
        self, request: pb.ListTopicsRequest, context: Context
    ) -> pb.ListTopicsResponse:
        topics = await self._inspector.topics(include_internal=request.include_internal)
        may_see = self._rules.may_describe_topic
        seen = await in_turns(one for one in topics if may_see(context.caller, one.info.topic))
        return pb.ListTopicsResponse(topics=seen)

    async def describe_topic(self, request: pb.DescribeTopicRequest, context: Context) -> bytes:
        may_see = functools.partial(self._rules.may_describe_group, context.caller)
        return await self._inspector.topic(request.topic, may_see)

    # -- groups -----------------------------------------------------------------------------------

    async def list_groups(
        self, request: pb.ListGroupsRequest, context: Context
    ) -> pb.ListGroupsResponse:
        may_see = functools.partial(self._rules.may_describe_group, context.caller)
        return pb.ListGroupsResponse(groups=await self._inspector.groups(may_see))

    async def describe_group(self, request: pb.DescribeGroupRequest, context: Context) -> bytes:
        return await self._inspector.group(request.group)

    async def reset_offsets(self, request: pb.ResetOffsetsRequest, context: Context) -> bytes:
        names.check_group(request.group)
        if not request.is_dry_run:
            self._broker.quotas.change_catalog(context.caller.user, request.group)
        start = decode_offset_kind(request.kind, request.at_ms)
        queues = await topic_queues(self._broker, request.topic, request.queue_ids)
        after = await start_offsets(self._broker, queues, start)
        before = await self._groups.reset(
            request.group,
            after,
            Actor(context.caller.user, context.peer()),
            may_be_new=request.may_be_new,
            is_dry_run=request.is_dry_run,
        )
        if not request.is_dry_run:
            self._record(
                "reset_offsets",
                f"group:{request.group}",
                _moved(request.topic, before),
                _moved(request.topic, after),
            )
        # Two messages that follow each other are one with the fields of both.
        return b"".join(
            [
                await encode_positions(pb.ResetOffsetsResponse(), field, offsets, self._broker_set)
                for field, offsets in (("before", before), ("after", after))
            ]
        )

    async def delete_group(
        self, request: pb.DeleteGroupRequest, context: Context
    ) -> pb.DeleteGroupResponse:
        await self._groups.delete(request.group)
        return pb.DeleteGroupResponse()

    async def alter_group(
        self, request: pb.AlterGroupRequest, context: Context
    ) -> pb.GroupSettings:
        retries_max = request.retries_max if request.HasField("retries_max") else None
        is_ordered = request.is_ordered if request.HasField("is_ordered") else None
        if retries_max is not None or is_ordered is not None:
            self._broker.quotas.change_catalog(context.caller.user, request.group)
        return await self._groups.alter(request.group, retries_max, is_ordered=is_ordered)

    async def list_leases(
        self, request: pb.ListLeasesRequest, context: Context
    ) -> pb.ListLeasesResponse:
        namespace = context.caller.namespace
        return await self._inspector.leases(
            request, lambda topic: not namespace or names.local_name(namespace, topic) is not None
        )

    # -- messages that wait -----------------------------------------------------------------------

    async def list_scheduled(
        self, request: pb.ListScheduledRequest, context: Context
    ) -> pb.ListScheduledResponse:
        return await self._schedule.listed(
            request,
            functools.partial(self._rules.may_describe_topic, context.caller),
            functools.partial(self._rules.may_consume_topic, context.caller),
        )

    async def count_scheduled(
        self, request: pb.CountScheduledRequest, context: Context
    ) -> pb.CountScheduledResponse:
        may_see = functools.partial(self._rules.may_describe_topic, context.caller)
        return await self._schedule.counted(request.buckets_max, may_see)

    async def recall_scheduled(
        self, request: pb.RecallScheduledRequest, context: Context
    ) -> pb.RecallScheduledResponse:
        await recall(self._broker, self._broker_set, request)
        self._record("recall_message", f"topic:{request.topic}", request.message_id)
        return pb.RecallScheduledResponse()

    # -- transactions and dead letters ------------------------------------------------------------

    async def list_transactions(
        self, request: pb.ListTransactionsRequest, context: Context
    ) -> pb.ListTransactionsResponse:
        may_see = functools.partial(self._rules.may_describe_topic, context.caller)
        return self._inspector.transactions(
            request.producer_group, request.transactions_max, may_see
        )

    async def check_transaction_now(
        self, request: pb.CheckTransactionNowRequest, context: Context
    ) -> pb.CheckTransactionNowResponse:
        transaction_id = parse_transaction_id(request.transaction_id, self._broker_set)
        producer_id = await self._broker.transacting.check_now(transaction_id)
        return pb.CheckTransactionNowResponse(producer_id=producer_id)

    async def list_dead_letters(
        self, request: pb.ListDeadLettersRequest, context: Context
    ) -> pb.ListDeadLettersResponse:
        if not request.group:
            counts = self._inspector.dead_letter_counts()
            may_see = self._rules.may_describe_group
            seen = [one for one in counts if may_see(context.caller, one.group)]
            return pb.ListDeadLettersResponse(groups=seen)
        messages, next_offset = await self._inspector.dead_letters(
            request.group, request.queue_offset, request.messages_max
        )
        resent = self._broker.dead_letters.resent(request.group)
        return pb.ListDeadLettersResponse(
            messages=messages,
            next_offset=next_offset,
            next_offsets={self._broker_set: next_offset},
            resent_ids=[one.message_id for one in messages if one.queue_offset in resent],
        )

    async def resend_dead_letters(
        self, request: pb.ResendDeadLettersRequest, context: Context
    ) -> pb.ResendDeadLettersResponse:
        letters = self._broker.dead_letters
        count = (
            await letters.resend(request.group, request.queue_offsets)
            if request.queue_offsets
            else await letters.resend_all(request.group)
        )
        self._record("resend_dead_letters", f"group:{request.group}", None, {"messages": count})
        return pb.ResendDeadLettersResponse(messages=count)

    async def purge_dead_letters(
        self, request: pb.PurgeDeadLettersRequest, context: Context
    ) -> pb.PurgeDeadLettersResponse:
        count = await self._broker.dead_letters.purge(request.group, request.before_offset)
        return pb.PurgeDeadLettersResponse(messages=count)

    async def settle_dead_letters(
        self, request: pb.SettleDeadLettersRequest, context: Context
    ) -> pb.SettleDeadLettersResponse:
        if request.action not in (pb.LETTER_ACTION_RESEND, pb.LETTER_ACTION_PURGE):
            raise IllegalRequest(f"action = {request.action}: use resend (1) or purge (2)")
        if not request.queue_offsets:
            raise IllegalRequest("queue_offsets is empty: say which dead letters")
        resends = request.action == pb.LETTER_ACTION_RESEND
        outcomes = await self._broker.dead_letters.settle(
            request.group, request.queue_offsets, resends=resends, again=request.again
        )
        sent = [one.queue_offset for one in outcomes if one.result == LetterResult.RESENT]
        if sent:
            subject = f"group:{request.group}"
            self._record("resend_dead_letters", subject, None, {"messages": len(sent)})
        return pb.SettleDeadLettersResponse(
            outcomes=[
                pb.LetterOutcome(
                    queue_offset=one.queue_offset,
                    result=one.result.value,  # type: ignore[arg-type]  # a number on the wire
                    message_id=(
                        names.message_id(self._broker_set, one.log_offset)
                        if one.log_offset >= 0
                        else ""
                    ),
                    text=one.text,
                )
                for one in outcomes
            ]
        )

    # -- messages ---------------------------------------------------------------------------------

    async def get_message(
        self, request: pb.GetMessageRequest, context: Context
    ) -> pb.StoredMessage:
        message = await self._inspector.message(request.message_id)
        self._rules.check_consume_topic(context.caller, message.topic)
        return message

    async def query_messages(
        self, request: pb.QueryMessagesRequest, context: Context
    ) -> pb.MessageList:
        return await self._inspector.by_key(request)

    async def browse_messages(
        self, request: pb.BrowseMessagesRequest, context: Context
    ) -> pb.MessageList:
        return await self._inspector.browse(request, compile_filter(request.filter))

    async def trace_message(
        self, request: pb.TraceMessageRequest, context: Context
    ) -> pb.MessageTrace:
        check_topic = functools.partial(self._rules.check_consume_topic, context.caller)
        may_see_group = functools.partial(self._rules.may_describe_group, context.caller)
        return await tracing.trace(
            self._broker, self._broker_set, request, check_topic, may_see_group
        )

    # -- the broker set and the cluster -----------------------------------------------------------

    async def add_member(self, request: pb.AddMemberRequest, context: Context) -> pb.MemberList:
        members = await self._members.add(request.node_id, request.address)
        self._record("add_member", f"node:{request.node_id}", None, {"address": request.address})
        return members

    async def remove_member(
        self, request: pb.RemoveMemberRequest, context: Context
    ) -> pb.MemberList:
        members = await self._members.remove(request.node_id)
        self._record("remove_member", f"node:{request.node_id}")
        return members

    async def transfer_leadership(
        self, request: pb.TransferLeadershipRequest, context: Context
    ) -> pb.TransferLeadershipResponse:
        # Before it: another node leads then.
        self._record("transfer_leadership", f"node:{request.node_id}")
        return await self._members.transfer_leadership(request.node_id)

    async def add_broker_set(
        self, request: pb.AddBrokerSetRequest, context: Context
    ) -> pb.BrokerSetList:
        one = request.broker_set
        return pb.BrokerSetList(broker_sets=await self._sets.add(one.name, one.addresses))

    async def remove_broker_set(
        self, request: pb.RemoveBrokerSetRequest, context: Context
    ) -> pb.BrokerSetList:
        return pb.BrokerSetList(broker_sets=await self._sets.remove(request.name))

    # -- this node --------------------------------------------------------------------------------

    async def read_log(self, request: pb.ReadLogRequest, context: Context) -> pb.LogChunk:
        return await read_chunk(self._broker, request.log_offset, request.bytes_max)

    async def broker_status(
        self, request: pb.BrokerStatusRequest, context: Context
    ) -> pb.BrokerStatusResponse:
        return self._control.status()

    async def list_clients(
        self, request: pb.ListClientsRequest, context: Context
    ) -> pb.ListClientsResponse:
        return await self._clients.listed(request)

    async def get_config(self, request: pb.GetConfigRequest, context: Context) -> pb.ConfigList:
        return self._control.options()

    async def set_config(self, request: pb.SetConfigRequest, context: Context) -> pb.ConfigList:
        before = self._option(request.name)
        self._control.set_option(request.name, request.value)
        after = self._option(request.name)
        values = [next((one.value for one in found), None) for found in (before, after)]
        self._record("set_config", f"config:{request.name}", *values)
        return pb.ConfigList(options=after)

    def _option(self, name: str) -> list[pb.ConfigOption]:
        return [one for one in self._control.options().options if one.name == name]

    def _record(self, what: str, subject: str, before: object = None, after: object = None) -> None:
        """Of a change that is not an entry with a record of its own."""
        self._broker.audit.changed(Record(what, subject, before, after))


def _moved(topic: str, offsets: Mapping[Queue, int]) -> dict[str, object]:
    shown = itertools.islice(offsets.items(), _QUEUES_RECORDED_MAX)
    return {
        "topic": topic,
        "queue_count": len(offsets),
        "queues": {str(queue.queue_id): queue_offset for queue, queue_offset in shown},
    }
