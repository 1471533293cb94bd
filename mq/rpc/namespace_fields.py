"""Which fields of requests and answers name topics, groups and producers: what `mq.rpc.namespaces`
translates for a caller with a namespace.

Every field of text or bytes that a method of our services takes or returns has a row, here or among
`NO_NAMES`, and none has two: a test walks the descriptors. Messages have no rows. Their content is
the producer's, but for the origin that the broker writes into retries and dead letters.
"""

from __future__ import annotations

import enum
from typing import Final


class Kind(enum.Enum):
    # %RETRY% and %DLQ% topics of a group included.
    TOPIC = enum.auto()
    # Of consumers or of producers.
    GROUP = enum.auto()
    # By which a batch that comes again is known.
    PRODUCER = enum.auto()
    # Words of the broker, which may have names in them.
    TEXT = enum.auto()
    # Messages of it are left out: they are about the node, and name what others have there.
    HIDDEN = enum.auto()


FIELDS: Final = {
    f"{message}.{field}": kind
    for kind, rows in {
        Kind.TOPIC: {
            "topic": "AlterTopicRequest AssignedQueue Batch BrowseMessagesRequest CheckTransaction "
            "CreateTopicRequest DeleteTopicRequest Delivery DescribeTopicRequest FailedMessage "
            "FindOffsetsRequest GroupQueue LeaseInfo ListLeasesRequest ListScheduledRequest "
            "MessageTrace MissingTopic Origin PullRequest QueryMessagesRequest QueueId "
            "QueuePosition RecallRequest RecallScheduledRequest ReceiveRequest ReceivedRun "
            "Redirect ResetOffsetsRequest ScheduledMessage ScheduledTopic SendRequest "
            "StoredMessage Subscription TopicInfo TopicRoute TraceEvent TraceGroup TransactionInfo "
            "WorkStart",
            "topics": "ClientInfo GroupSummary RouteRequest",
            "similar": "MissingTopic",
        },
        Kind.GROUP: {
            "group": "AckRequest AlterGroupRequest AtomicRequest ChangeInvisibleRequest "
            "CommitOffsetsRequest DeadLetterCount DeleteGroupRequest DescribeGroupRequest "
            "GroupSettings GroupSummary HeartbeatRequest JoinRequest LeaveRequest "
            "ListDeadLettersRequest ListLeasesRequest NackRequest PurgeDeadLettersRequest "
            "QueryOffsetsRequest ReceiveRequest ResendDeadLettersRequest ResetOffsetsRequest "
            "RetryRequest SettleDeadLettersRequest SubscribeStart TraceEvent TraceGroup",
            "groups": "ClientInfo DescribeTopicResponse",
            "producer_group": "Half ListTransactionsRequest TransactStart TransactionInfo",
        },
        Kind.PRODUCER: {
            "producer_id": "Batch CheckTransactionNowResponse DeadLetterBatch SendRequest "
            "TraceEvent TransactStart",
        },
        Kind.TEXT: {"text": "BatchResult LetterOutcome RetryResult Status"},
        Kind.HIDDEN: {"damages": "BrokerStatusResponse"},
    }.items()
    for field, messages in rows.items()
    for message in messages.split()
}

# Ids of messages and transactions are places in the log, and a lease has a random number that makes
# it valid: the topic that they lead to is checked, not translated. Policies have full names.
NO_NAMES: Final = frozenset(
    f"{message}.{field}"
    for message, fields in {
        "AccessChange": "drop_user drop_credential drop_quota drop_namespace",
        "AccessNamespace": "name",
        "AccessPolicy": "subject line",
        "AddMemberRequest": "node_id address",
        "AtomicRequest": "member_id",
        "BatchResult": "leader_address",
        "BrokerSet": "name leader_id",
        "BrokerStatusResponse": "cluster broker_set node_id version role leader_id",
        "ChangeAccessResponse": "digest",
        "CheckAccessRequest": "user action kind name address",
        "CheckTransaction": "transaction_id",
        "CheckTransactionNowRequest": "transaction_id",
        "ClientCalls": "method",
        "ClientInfo": "address user_agent language version user",
        "CommitOffsetsRequest": "member_id",
        "ConfigOption": "name value default description",
        "CountScheduledResponse": "missing_sets",
        "Credential": "id user proof",
        "DeadLetterCount": "broker_sets",
        "DescribeAccessResponse": "digest",
        "DescribeGroupResponse": "missing_sets",
        "DescribeTopicResponse": "missing_sets",
        "EndTransactionRequest": "transaction_id",
        "FailedMessage": "reason",
        "Filter": "tags sql",
        "FollowerStatus": "node_id address",
        "GetMessageRequest": "message_id",
        "GreetRequest": "cluster",
        "GreetResponse": "access_digest",
        "GroupQueue": "member_id broker_set",
        "GroupSettings": "missing_sets",
        "GroupSummary": "member_ids",
        "HalfStored": "transaction_id",
        "Handle": "lease",
        "HeartbeatRequest": "member_id",
        "JoinRequest": "member_id zone",
        "LeaveRequest": "member_id reason",
        "LeaseInfo": "member_id broker_set",
        "LetterOutcome": "message_id",
        "ListClientsRequest": "page",
        "ListClientsResponse": "next_page node_id",
        "ListDeadLettersResponse": "missing_sets resent_ids",
        "ListDeadLettersResponse.NextOffsetsEntry": "key",
        # A page is that of the broker, as it was given.
        "ListLeasesRequest": "page",
        "ListLeasesResponse": "next_page missing_sets",
        "ListScheduledRequest": "page",
        "ListScheduledResponse": "next_page missing_sets",
        "ListTransactionsResponse": "missing_sets",
        "LogChunk": "data",
        "LoginRequest": "user password key_id key_digest",
        "MemberInfo": "member_id zone address broker_sets",
        "Message": "body tag keys ordering_key",
        "Message.PropertiesEntry": "key value",
        "MessageTrace": "message_id tag keys incomplete_reason broker_set",
        "NackRequest": "reason",
        "NodeRoute": "node_id address zone external_address",
        "Origin": "message_id reason",
        "PeerSet": "name addresses",
        "PullRequest": "zone",
        "PullResponse": "read_from",
        "QueryMessagesRequest": "key",
        "QueuePosition": "broker_set",
        "QueueStats": "broker_set",
        "Quota": "subject",
        "RecallRequest": "message_id",
        "RecallScheduledRequest": "message_id",
        "ReceiveRequest": "member_id",
        "ReceivedRun": "lease",
        "Redirect": "address",
        "RemoveBrokerSetRequest": "name",
        "RemoveMemberRequest": "node_id",
        "RetryRequest": "member_id",
        "RouteResponse": "cluster",
        "RocketMq": "message_id born_host trace_context",
        "ScheduledMessage": "message_id tag keys next_page",
        "SendResponse": "message_ids",
        "SetAccess": "broker_set digest",
        "SetConfigRequest": "name value",
        "SetMember": "node_id address",
        "Status": "leader_address",
        "StorageDamage": "kind file reason affected",
        "StoredMessage": "message_id",
        "SubscribeStart": "member_id zone",
        "TopicInfo": "broker_set",
        "TopicRoute": "broker_set",
        "TopicSummary": "broker_sets",
        "TraceEvent": "member_id user address message_id filter reason",
        "TraceMessageRequest": "message_id",
        "TransactionInfo": "transaction_id",
        "TransferLeadershipRequest": "node_id",
        "TransferLeadershipResponse": "leader_id",
        "User": "name roles namespaces",
        "WhoAmIResponse": "user roles namespaces credential auth_mode address",
    }.items()
    for field in fields.split()
)

# Methods that a caller with a namespace may not call, and why.
REFUSED: Final = {
    "AdminService/ListClients": "connections are of all namespaces",
    "AdminService/ReadLog": "the log has the messages of all namespaces",
    "ClusterService/Greet": "brokers tell each other of all namespaces",
}
