"""The table of services: every method of the protocol, what serves it, and on which nodes.

Most methods are served by the leader alone: `mq.rpc.methods` refuses the others before the service
sees the call. Those with `leader_only=False` say below why they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from google.protobuf.descriptor import ServiceDescriptor

from mq.admin.control import Control
from mq.broker.broker import Broker
from mq.rpc.admin import AdminService
from mq.rpc.cluster import ClusterService
from mq.rpc.consumer import ConsumerService
from mq.rpc.methods import Method, stream, unary
from mq.rpc.producer import ProducerService
from mq.rpc.transaction import TransactionService
from mq.store.identity import Identity
from mq.wire.v1 import admin_pb2, cluster_pb2, consumer_pb2, producer_pb2, transaction_pb2


class Service(NamedTuple):
    descriptor: ServiceDescriptor
    methods: Sequence[Method]


def table(
    broker: Broker, identity: Identity, control: Control, producer: ProducerService
) -> list[Service]:
    name = identity.broker_set
    return [
        _producer(producer),
        _transaction(TransactionService(broker, name)),
        _consumer(ConsumerService(broker)),
        _cluster(ClusterService(broker, identity)),
        _admin(AdminService(broker, name, control)),
    ]


def _producer(serving: ProducerService) -> Service:
    pb = producer_pb2
    return Service(
        pb.DESCRIPTOR.services_by_name["ProducerService"],
        [
            unary("Send", pb.SendRequest, serving.send, begin=serving.begin_send),
            stream("Publish", serving.publish),
            unary("Recall", pb.RecallRequest, serving.recall),
            # Batches are read as the bytes they are.
            unary("SendAtomically", pb.RawAtomicRequest, serving.send_atomically),
        ],
    )


def _transaction(serving: TransactionService) -> Service:
    pb = transaction_pb2
    return Service(
        pb.DESCRIPTOR.services_by_name["TransactionService"],
        [
            stream("Transact", serving.transact),
            unary("EndTransaction", pb.EndTransactionRequest, serving.end_transaction),
        ],
    )


def _consumer(serving: ConsumerService) -> Service:
    pb = consumer_pb2
    return Service(
        pb.DESCRIPTOR.services_by_name["ConsumerService"],
        [
            # A follower serves a pull that allows any replica.
            unary("Pull", pb.PullRequest, serving.pull, leader_only=False),
            stream("Subscribe", serving.subscribe),
            unary("Join", pb.JoinRequest, serving.join),
            unary("Heartbeat", pb.HeartbeatRequest, serving.heartbeat),
            unary("Leave", pb.LeaveRequest, serving.leave),
            unary(
                "CommitOffsets",
                pb.CommitOffsetsRequest,
                serving.commit_offsets,
                begin=serving.begin_commit_offsets,
            ),
            unary("QueryOffsets", pb.QueryOffsetsRequest, serving.query_offsets),
            unary("FindOffsets", pb.FindOffsetsRequest, serving.find_offsets),
            unary("Retry", pb.RetryRequest, serving.retry),
            unary("Receive", pb.ReceiveRequest, serving.receive, begin=serving.begin_receive),
            unary("Ack", pb.AckRequest, serving.ack, begin=serving.begin_ack),
            unary("Nack", pb.NackRequest, serving.nack, begin=serving.begin_nack),
            unary(
                "ChangeInvisible",
                pb.ChangeInvisibleRequest,
                serving.change_invisible,
                begin=serving.begin_change_invisible,
            ),
        ],
    )


def _cluster(serving: ClusterService) -> Service:
    pb = cluster_pb2
    return Service(
        pb.DESCRIPTOR.services_by_name["ClusterService"],
        [
            # How clients and other sets find the leader.
            unary("Route", pb.RouteRequest, serving.route, leader_only=False),
            unary("Greet", pb.GreetRequest, serving.greet, leader_only=False),
        ],
    )


def _admin(serving: AdminService) -> Service:
    pb = admin_pb2
    return Service(
        pb.DESCRIPTOR.services_by_name["AdminService"],
        [
            unary("CreateTopic", pb.CreateTopicRequest, serving.create_topic),
            unary("AlterTopic", pb.AlterTopicRequest, serving.alter_topic),
            unary("DeleteTopic", pb.DeleteTopicRequest, serving.delete_topic),
            unary("ListTopics", pb.ListTopicsRequest, serving.list_topics),
            unary("DescribeTopic", pb.DescribeTopicRequest, serving.describe_topic),
            unary("ListGroups", pb.ListGroupsRequest, serving.list_groups),
            unary("DescribeGroup", pb.DescribeGroupRequest, serving.describe_group),
            unary("ResetOffsets", pb.ResetOffsetsRequest, serving.reset_offsets),
            unary("DeleteGroup", pb.DeleteGroupRequest, serving.delete_group),
            unary("AlterGroup", pb.AlterGroupRequest, serving.alter_group),
            unary("ListTransactions", pb.ListTransactionsRequest, serving.list_transactions),
            unary(
                "CheckTransactionNow",
                pb.CheckTransactionNowRequest,
                serving.check_transaction_now,
            ),
            unary("ListDeadLetters", pb.ListDeadLettersRequest, serving.list_dead_letters),
            unary("ResendDeadLetters", pb.ResendDeadLettersRequest, serving.resend_dead_letters),
            unary("PurgeDeadLetters", pb.PurgeDeadLettersRequest, serving.purge_dead_letters),
            unary("GetMessage", pb.GetMessageRequest, serving.get_message),
            unary("QueryMessages", pb.QueryMessagesRequest, serving.query_messages),
            unary("BrowseMessages", pb.BrowseMessagesRequest, serving.browse_messages),
            unary("AddMember", pb.AddMemberRequest, serving.add_member),
            unary("RemoveMember", pb.RemoveMemberRequest, serving.remove_member),
            unary("TransferLeadership", pb.TransferLeadershipRequest, serving.transfer_leadership),
            unary("AddBrokerSet", pb.AddBrokerSetRequest, serving.add_broker_set),
            unary("RemoveBrokerSet", pb.RemoveBrokerSetRequest, serving.remove_broker_set),
            # About the node that is asked: its log, its state, its options.
            unary("ReadLog", pb.ReadLogRequest, serving.read_log, leader_only=False),
            unary("BrokerStatus", pb.BrokerStatusRequest, serving.broker_status, leader_only=False),
            unary("GetConfig", pb.GetConfigRequest, serving.get_config, leader_only=False),
            unary("SetConfig", pb.SetConfigRequest, serving.set_config, leader_only=False),
        ],
    )
