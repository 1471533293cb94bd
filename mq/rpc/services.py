"""The table of services: every method of the protocol, what serves it, and on which nodes.

Each row has the rule that says what a caller of the method has to be allowed (`mq.rpc.access`).
Streams check each of their requests. Most methods are served by the leader alone: `mq.rpc.methods`
refuses the others before the service sees the call. Those with `leader_only=False` say below why
they are. Methods of RocketMQ's protocol have a table of their own: `mq.rpc.rocketmq.service`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from google.protobuf.descriptor import ServiceDescriptor

from mq.access.policies import Action
from mq.admin.control import Control
from mq.broker.broker import Broker
from mq.broker.security.gate import LOG_AREA
from mq.rpc.access import Rules, any_caller, open_to_all
from mq.rpc.admin import AdminService
from mq.rpc.clients import Clients
from mq.rpc.cluster import ClusterService
from mq.rpc.consumer import ConsumerService
from mq.rpc.methods import Method, stream, unary
from mq.rpc.producer import ProducerService
from mq.rpc.security import SecurityService
from mq.rpc.transaction import TransactionService
from mq.store.identity import Identity
from mq.wire.v1 import (
    admin_pb2,
    cluster_pb2,
    consumer_pb2,
    producer_pb2,
    security_pb2,
    transaction_pb2,
)


class Service(NamedTuple):
    descriptor: ServiceDescriptor
    methods: Sequence[Method]


def table(
    broker: Broker,
    identity: Identity,
    control: Control,
    rules: Rules,
    producer: ProducerService,
    clients: Clients,
) -> list[Service]:
    name = identity.broker_set
    return [
        _producer(producer, rules),
        _transaction(TransactionService(broker, name, rules), rules),
        _consumer(ConsumerService(broker, rules), rules),
        _cluster(ClusterService(broker, identity, rules), rules),
        _admin(AdminService(broker, name, control, rules, clients), rules),
        _security(SecurityService(broker)),
    ]


def _producer(serving: ProducerService, rules: Rules) -> Service:
    pb = producer_pb2
    return Service(
        pb.DESCRIPTOR.services_by_name["ProducerService"],
        [
            unary("Send", pb.SendRequest, serving.send, rules.publish, begin=serving.begin_send),
            stream("Publish", serving.publish),
            unary("Recall", pb.RecallRequest, serving.recall, rules.topic(Action.PUBLISH)),
            # Batches are read as the bytes they are.
            unary(
                "SendAtomically",
                pb.RawAtomicRequest,
                serving.send_atomically,
                rules.send_atomically,
            ),
        ],
    )


def _transaction(serving: TransactionService, rules: Rules) -> Service:
    pb = transaction_pb2
    return Service(
        pb.DESCRIPTOR.services_by_name["TransactionService"],
        [
            stream("Transact", serving.transact),
            unary(
                "EndTransaction",
                pb.EndTransactionRequest,
                serving.end_transaction,
                rules.transaction(Action.PUBLISH),
            ),
        ],
    )


def _consumer(serving: ConsumerService, rules: Rules) -> Service:
    pb = consumer_pb2
    return Service(
        pb.DESCRIPTOR.services_by_name["ConsumerService"],
        [
            # A follower serves a pull that allows any replica.
            unary(
                "Pull",
                pb.PullRequest,
                serving.pull,
                rules.topic(Action.CONSUME),
                leader_only=False,
                waits=True,
            ),
            stream("Subscribe", serving.subscribe),
            unary("Join", pb.JoinRequest, serving.join, rules.consume_all),
            unary("Heartbeat", pb.HeartbeatRequest, serving.heartbeat, rules.group(Action.CONSUME)),
            unary("Leave", pb.LeaveRequest, serving.leave, rules.leave),
            unary(
                "CommitOffsets",
                pb.CommitOffsetsRequest,
                serving.commit_offsets,
                rules.group(Action.CONSUME),
                begin=serving.begin_commit_offsets,
            ),
            unary(
                "QueryOffsets",
                pb.QueryOffsetsRequest,
                serving.query_offsets,
                rules.group(Action.DESCRIBE),
            ),
            unary(
                "FindOffsets",
                pb.FindOffsetsRequest,
                serving.find_offsets,
                rules.topic(Action.DESCRIBE),
            ),
            unary("Retry", pb.RetryRequest, serving.retry, rules.retry),
            unary(
                "Receive",
                pb.ReceiveRequest,
                serving.receive,
                rules.receive,
                begin=serving.begin_receive,
                waits=True,
            ),
            unary(
                "Ack",
                pb.AckRequest,
                serving.ack,
                rules.group(Action.CONSUME),
                begin=serving.begin_ack,
            ),
            unary(
                "Nack",
                pb.NackRequest,
                serving.nack,
                rules.group(Action.CONSUME),
                begin=serving.begin_nack,
            ),
            unary(
                "ChangeInvisible",
                pb.ChangeInvisibleRequest,
                serving.change_invisible,
                rules.group(Action.CONSUME),
                begin=serving.begin_change_invisible,
            ),
        ],
    )


def _cluster(serving: ClusterService, rules: Rules) -> Service:
    pb = cluster_pb2
    return Service(
        pb.DESCRIPTOR.services_by_name["ClusterService"],
        [
            # How clients and other sets find the leader.
            unary("Route", pb.RouteRequest, serving.route, rules.route, leader_only=False),
            unary(
                "Greet",
                pb.GreetRequest,
                serving.greet,
                rules.cluster(Action.ALTER, "sets"),
                leader_only=False,
            ),
        ],
    )


def _admin(serving: AdminService, rules: Rules) -> Service:
    return Service(
        admin_pb2.DESCRIPTOR.services_by_name["AdminService"],
        [
            *_topics_and_groups(serving, rules),
            *_transactions_and_schedule(serving, rules),
            *_messages(serving, rules),
            *_cluster_and_node(serving, rules),
        ],
    )


def _topics_and_groups(serving: AdminService, rules: Rules) -> list[Method]:
    pb = admin_pb2
    return [
        unary(
            "CreateTopic",
            pb.CreateTopicRequest,
            serving.create_topic,
            rules.topic(Action.CREATE),
        ),
        unary("AlterTopic", pb.AlterTopicRequest, serving.alter_topic, rules.topic(Action.ALTER)),
        unary(
            "DeleteTopic",
            pb.DeleteTopicRequest,
            serving.delete_topic,
            rules.topic(Action.DELETE),
        ),
        unary("ListTopics", pb.ListTopicsRequest, serving.list_topics, any_caller),
        unary(
            "DescribeTopic",
            pb.DescribeTopicRequest,
            serving.describe_topic,
            rules.topic(Action.DESCRIBE),
        ),
        unary("ListGroups", pb.ListGroupsRequest, serving.list_groups, any_caller),
        unary(
            "DescribeGroup",
            pb.DescribeGroupRequest,
            serving.describe_group,
            rules.group(Action.DESCRIBE),
        ),
        unary("ResetOffsets", pb.ResetOffsetsRequest, serving.reset_offsets, rules.reset_offsets),
        unary(
            "DeleteGroup",
            pb.DeleteGroupRequest,
            serving.delete_group,
            rules.group(Action.DELETE),
        ),
        unary("AlterGroup", pb.AlterGroupRequest, serving.alter_group, rules.group(Action.ALTER)),
    ]


def _transactions_and_schedule(serving: AdminService, rules: Rules) -> list[Method]:
    pb = admin_pb2
    return [
        unary(
            "ListTransactions",
            pb.ListTransactionsRequest,
            serving.list_transactions,
            any_caller,
        ),
        unary(
            "CheckTransactionNow",
            pb.CheckTransactionNowRequest,
            serving.check_transaction_now,
            rules.transaction(Action.ALTER),
        ),
        unary("ListScheduled", pb.ListScheduledRequest, serving.list_scheduled, rules.scheduled),
        unary(
            "CountScheduled",
            pb.CountScheduledRequest,
            serving.count_scheduled,
            rules.cluster(Action.DESCRIBE, "status"),
        ),
        unary(
            "RecallScheduled",
            pb.RecallScheduledRequest,
            serving.recall_scheduled,
            rules.topic(Action.ALTER),
        ),
    ]


def _messages(serving: AdminService, rules: Rules) -> list[Method]:
    """Dead letters and leases of groups, stored messages."""
    pb = admin_pb2
    return [
        unary(
            "ListLeases", pb.ListLeasesRequest, serving.list_leases, rules.group(Action.DESCRIBE)
        ),
        unary(
            "ListDeadLetters",
            pb.ListDeadLettersRequest,
            serving.list_dead_letters,
            rules.dead_letters,
        ),
        unary(
            "ResendDeadLetters",
            pb.ResendDeadLettersRequest,
            serving.resend_dead_letters,
            rules.group(Action.CONSUME, Action.ALTER),
        ),
        unary(
            "PurgeDeadLetters",
            pb.PurgeDeadLettersRequest,
            serving.purge_dead_letters,
            rules.group(Action.CONSUME, Action.ALTER),
        ),
        unary(
            "SettleDeadLetters",
            pb.SettleDeadLettersRequest,
            serving.settle_dead_letters,
            rules.group(Action.CONSUME, Action.ALTER),
        ),
        unary("GetMessage", pb.GetMessageRequest, serving.get_message, any_caller),
        unary(
            "QueryMessages",
            pb.QueryMessagesRequest,
            serving.query_messages,
            rules.topic(Action.CONSUME),
        ),
        unary(
            "BrowseMessages",
            pb.BrowseMessagesRequest,
            serving.browse_messages,
            rules.topic(Action.CONSUME),
        ),
        # From the log of the node that is asked, which all nodes of a set have. The service checks
        # the topic of the message.
        unary(
            "TraceMessage",
            pb.TraceMessageRequest,
            serving.trace_message,
            any_caller,
            leader_only=False,
        ),
    ]


def _cluster_and_node(serving: AdminService, rules: Rules) -> list[Method]:
    pb = admin_pb2
    return [
        unary(
            "AddMember",
            pb.AddMemberRequest,
            serving.add_member,
            rules.cluster(Action.ALTER, "members"),
        ),
        unary(
            "RemoveMember",
            pb.RemoveMemberRequest,
            serving.remove_member,
            rules.cluster(Action.ALTER, "members"),
        ),
        unary(
            "TransferLeadership",
            pb.TransferLeadershipRequest,
            serving.transfer_leadership,
            rules.transfer_leadership,
        ),
        unary(
            "AddBrokerSet",
            pb.AddBrokerSetRequest,
            serving.add_broker_set,
            rules.cluster(Action.ALTER, "sets"),
        ),
        unary(
            "RemoveBrokerSet",
            pb.RemoveBrokerSetRequest,
            serving.remove_broker_set,
            rules.cluster(Action.ALTER, "sets"),
        ),
        # About the node that is asked: its log, its state, its options.
        unary(
            "ReadLog",
            pb.ReadLogRequest,
            serving.read_log,
            rules.superuser(LOG_AREA),
            leader_only=False,
        ),
        unary(
            "BrokerStatus",
            pb.BrokerStatusRequest,
            serving.broker_status,
            rules.cluster(Action.DESCRIBE, "status"),
            leader_only=False,
        ),
        unary(
            "ListClients",
            pb.ListClientsRequest,
            serving.list_clients,
            rules.cluster(Action.DESCRIBE, "status"),
            leader_only=False,
        ),
        unary(
            "GetConfig",
            pb.GetConfigRequest,
            serving.get_config,
            rules.cluster(Action.DESCRIBE, "config"),
            leader_only=False,
        ),
        unary(
            "SetConfig",
            pb.SetConfigRequest,
            serving.set_config,
            rules.cluster(Action.ALTER, "config"),
            leader_only=False,
        ),
    ]


def _security(serving: SecurityService) -> Service:
    """The service itself checks what is for superusers: everybody has something of its own."""
    pb = security_pb2
    return Service(
        pb.DESCRIPTOR.services_by_name["SecurityService"],
        [
            unary("Login", pb.LoginRequest, serving.login, open_to_all),
            # About the caller, as the node that is asked knows it.
            unary("WhoAmI", pb.WhoAmIRequest, serving.who_am_i, any_caller, leader_only=False),
            unary("ChangeAccess", pb.ChangeAccessRequest, serving.change_access, any_caller),
            unary("DescribeAccess", pb.DescribeAccessRequest, serving.describe_access, any_caller),
            unary("CheckAccess", pb.CheckAccessRequest, serving.check_access, any_caller),
        ],
    )
