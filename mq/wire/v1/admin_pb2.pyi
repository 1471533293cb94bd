from mq.wire.v1 import cluster_pb2 as _cluster_pb2
from mq.wire.v1 import consumer_pb2 as _consumer_pb2
from mq.wire.v1 import message_pb2 as _message_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LetterAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LETTER_ACTION_UNSPECIFIED: _ClassVar[LetterAction]
    LETTER_ACTION_RESEND: _ClassVar[LetterAction]
    LETTER_ACTION_PURGE: _ClassVar[LetterAction]

class LetterResult(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LETTER_RESULT_UNSPECIFIED: _ClassVar[LetterResult]
    LETTER_RESULT_RESENT: _ClassVar[LetterResult]
    LETTER_RESULT_PURGED: _ClassVar[LetterResult]
    LETTER_RESULT_ALREADY_RESENT: _ClassVar[LetterResult]
    LETTER_RESULT_GONE: _ClassVar[LetterResult]
    LETTER_RESULT_REFUSED: _ClassVar[LetterResult]

class TraceKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRACE_UNKNOWN: _ClassVar[TraceKind]
    TRACE_BORN: _ClassVar[TraceKind]
    TRACE_STORED: _ClassVar[TraceKind]
    TRACE_DELAYED: _ClassVar[TraceKind]
    TRACE_DELIVERED: _ClassVar[TraceKind]
    TRACE_RECALLED: _ClassVar[TraceKind]
    TRACE_CARRIED: _ClassVar[TraceKind]
    TRACE_HALF: _ClassVar[TraceKind]
    TRACE_CHECKED: _ClassVar[TraceKind]
    TRACE_COMMITTED: _ClassVar[TraceKind]
    TRACE_ROLLED_BACK: _ClassVar[TraceKind]
    TRACE_GIVEN_UP: _ClassVar[TraceKind]
    TRACE_PASSED: _ClassVar[TraceKind]
    TRACE_SKIPPED: _ClassVar[TraceKind]
    TRACE_RECEIVED: _ClassVar[TraceKind]
    TRACE_EXTENDED: _ClassVar[TraceKind]
    TRACE_LEASE_EXPIRED: _ClassVar[TraceKind]
    TRACE_RETURNED: _ClassVar[TraceKind]
    TRACE_NACKED: _ClassVar[TraceKind]
    TRACE_ACKNOWLEDGED: _ClassVar[TraceKind]
    TRACE_POSTPONED: _ClassVar[TraceKind]
    TRACE_RETRY: _ClassVar[TraceKind]
    TRACE_REDELIVERED: _ClassVar[TraceKind]
    TRACE_DEAD_LETTER: _ClassVar[TraceKind]
    TRACE_RESENT: _ClassVar[TraceKind]
    TRACE_PURGED: _ClassVar[TraceKind]
    TRACE_GROUP_MOVED: _ClassVar[TraceKind]
    TRACE_GROUP_DELETED: _ClassVar[TraceKind]
    TRACE_TOPIC_DELETED: _ClassVar[TraceKind]
    TRACE_DROPPED: _ClassVar[TraceKind]
    TRACE_BEGAN_BEHIND: _ClassVar[TraceKind]

class TraceStanding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STANDING_NOT_REACHED: _ClassVar[TraceStanding]
    STANDING_PASSED: _ClassVar[TraceStanding]
    STANDING_SKIPPED: _ClassVar[TraceStanding]
    STANDING_LEASED: _ClassVar[TraceStanding]
    STANDING_WAITING: _ClassVar[TraceStanding]
    STANDING_ACKNOWLEDGED: _ClassVar[TraceStanding]
    STANDING_DEAD_LETTER: _ClassVar[TraceStanding]
    STANDING_BEGAN_BEHIND: _ClassVar[TraceStanding]
LETTER_ACTION_UNSPECIFIED: LetterAction
LETTER_ACTION_RESEND: LetterAction
LETTER_ACTION_PURGE: LetterAction
LETTER_RESULT_UNSPECIFIED: LetterResult
LETTER_RESULT_RESENT: LetterResult
LETTER_RESULT_PURGED: LetterResult
LETTER_RESULT_ALREADY_RESENT: LetterResult
LETTER_RESULT_GONE: LetterResult
LETTER_RESULT_REFUSED: LetterResult
TRACE_UNKNOWN: TraceKind
TRACE_BORN: TraceKind
TRACE_STORED: TraceKind
TRACE_DELAYED: TraceKind
TRACE_DELIVERED: TraceKind
TRACE_RECALLED: TraceKind
TRACE_CARRIED: TraceKind
TRACE_HALF: TraceKind
TRACE_CHECKED: TraceKind
TRACE_COMMITTED: TraceKind
TRACE_ROLLED_BACK: TraceKind
TRACE_GIVEN_UP: TraceKind
TRACE_PASSED: TraceKind
TRACE_SKIPPED: TraceKind
TRACE_RECEIVED: TraceKind
TRACE_EXTENDED: TraceKind
TRACE_LEASE_EXPIRED: TraceKind
TRACE_RETURNED: TraceKind
TRACE_NACKED: TraceKind
TRACE_ACKNOWLEDGED: TraceKind
TRACE_POSTPONED: TraceKind
TRACE_RETRY: TraceKind
TRACE_REDELIVERED: TraceKind
TRACE_DEAD_LETTER: TraceKind
TRACE_RESENT: TraceKind
TRACE_PURGED: TraceKind
TRACE_GROUP_MOVED: TraceKind
TRACE_GROUP_DELETED: TraceKind
TRACE_TOPIC_DELETED: TraceKind
TRACE_DROPPED: TraceKind
TRACE_BEGAN_BEHIND: TraceKind
STANDING_NOT_REACHED: TraceStanding
STANDING_PASSED: TraceStanding
STANDING_SKIPPED: TraceStanding
STANDING_LEASED: TraceStanding
STANDING_WAITING: TraceStanding
STANDING_ACKNOWLEDGED: TraceStanding
STANDING_DEAD_LETTER: TraceStanding
STANDING_BEGAN_BEHIND: TraceStanding

class TopicInfo(_message.Message):
    __slots__ = ("topic", "type", "write_queues", "read_queues", "is_readable", "is_writable", "created_at_ms", "is_internal", "priorities", "broker_set", "stored_bytes")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUES_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUES_FIELD_NUMBER: _ClassVar[int]
    IS_READABLE_FIELD_NUMBER: _ClassVar[int]
    IS_WRITABLE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    IS_INTERNAL_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    BROKER_SET_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    type: _cluster_pb2.TopicType
    write_queues: int
    read_queues: int
    is_readable: bool
    is_writable: bool
    created_at_ms: int
    is_internal: bool
    priorities: int
    broker_set: str
    stored_bytes: int
    def __init__(self, topic: _Optional[str] = ..., type: _Optional[_Union[_cluster_pb2.TopicType, str]] = ..., write_queues: _Optional[int] = ..., read_queues: _Optional[int] = ..., is_readable: _Optional[bool] = ..., is_writable: _Optional[bool] = ..., created_at_ms: _Optional[int] = ..., is_internal: _Optional[bool] = ..., priorities: _Optional[int] = ..., broker_set: _Optional[str] = ..., stored_bytes: _Optional[int] = ...) -> None: ...

class CreateTopicRequest(_message.Message):
    __slots__ = ("topic", "queues", "type", "priorities")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queues: int
    type: _cluster_pb2.TopicType
    priorities: int
    def __init__(self, topic: _Optional[str] = ..., queues: _Optional[int] = ..., type: _Optional[_Union[_cluster_pb2.TopicType, str]] = ..., priorities: _Optional[int] = ...) -> None: ...

class AlterTopicRequest(_message.Message):
    __slots__ = ("topic", "write_queues", "read_queues", "is_readable", "is_writable")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUES_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUES_FIELD_NUMBER: _ClassVar[int]
    IS_READABLE_FIELD_NUMBER: _ClassVar[int]
    IS_WRITABLE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    write_queues: int
    read_queues: int
    is_readable: bool
    is_writable: bool
    def __init__(self, topic: _Optional[str] = ..., write_queues: _Optional[int] = ..., read_queues: _Optional[int] = ..., is_readable: _Optional[bool] = ..., is_writable: _Optional[bool] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class DeleteTopicResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ("include_internal",)
    INCLUDE_INTERNAL_FIELD_NUMBER: _ClassVar[int]
    include_internal: bool
    def __init__(self, include_internal: _Optional[bool] = ...) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicSummary]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicSummary, _Mapping]]] = ...) -> None: ...

class TopicSummary(_message.Message):
    __slots__ = ("info", "messages", "broker_sets", "messages_written")
    INFO_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BROKER_SETS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    info: TopicInfo
    messages: int
    broker_sets: _containers.RepeatedScalarFieldContainer[str]
    messages_written: int
    def __init__(self, info: _Optional[_Union[TopicInfo, _Mapping]] = ..., messages: _Optional[int] = ..., broker_sets: _Optional[_Iterable[str]] = ..., messages_written: _Optional[int] = ...) -> None: ...

class DescribeTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class DescribeTopicResponse(_message.Message):
    __slots__ = ("info", "queues", "groups", "parts", "missing_sets")
    INFO_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    MISSING_SETS_FIELD_NUMBER: _ClassVar[int]
    info: TopicInfo
    queues: _containers.RepeatedCompositeFieldContainer[QueueStats]
    groups: _containers.RepeatedScalarFieldContainer[str]
    parts: _containers.RepeatedCompositeFieldContainer[TopicInfo]
    missing_sets: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, info: _Optional[_Union[TopicInfo, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[QueueStats, _Mapping]]] = ..., groups: _Optional[_Iterable[str]] = ..., parts: _Optional[_Iterable[_Union[TopicInfo, _Mapping]]] = ..., missing_sets: _Optional[_Iterable[str]] = ...) -> None: ...

class QueueStats(_message.Message):
    __slots__ = ("queue_id", "start", "end", "last_stored_at_ms", "broker_set")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LAST_STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    BROKER_SET_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    start: int
    end: int
    last_stored_at_ms: int
    broker_set: str
    def __init__(self, queue_id: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., last_stored_at_ms: _Optional[int] = ..., broker_set: _Optional[str] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupSummary]
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupSummary, _Mapping]]] = ...) -> None: ...

class GroupSummary(_message.Message):
    __slots__ = ("group", "mode", "members", "generation", "lag", "topics", "member_ids")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_IDS_FIELD_NUMBER: _ClassVar[int]
    group: str
    mode: _consumer_pb2.ConsumeMode
    members: int
    generation: int
    lag: int
    topics: _containers.RepeatedScalarFieldContainer[str]
    member_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group: _Optional[str] = ..., mode: _Optional[_Union[_consumer_pb2.ConsumeMode, str]] = ..., members: _Optional[int] = ..., generation: _Optional[int] = ..., lag: _Optional[int] = ..., topics: _Optional[_Iterable[str]] = ..., member_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class DescribeGroupResponse(_message.Message):
    __slots__ = ("summary", "subscriptions", "members", "queues", "missing_sets")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MISSING_SETS_FIELD_NUMBER: _ClassVar[int]
    summary: GroupSummary
    subscriptions: _containers.RepeatedCompositeFieldContainer[_consumer_pb2.Subscription]
    members: _containers.RepeatedCompositeFieldContainer[MemberInfo]
    queues: _containers.RepeatedCompositeFieldContainer[GroupQueue]
    missing_sets: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, summary: _Optional[_Union[GroupSummary, _Mapping]] = ..., subscriptions: _Optional[_Iterable[_Union[_consumer_pb2.Subscription, _Mapping]]] = ..., members: _Optional[_Iterable[_Union[MemberInfo, _Mapping]]] = ..., queues: _Optional[_Iterable[_Union[GroupQueue, _Mapping]]] = ..., missing_sets: _Optional[_Iterable[str]] = ...) -> None: ...

class MemberInfo(_message.Message):
    __slots__ = ("member_id", "zone", "address", "last_seen_at_ms", "is_streaming", "queues", "is_receiving", "broker_sets", "stalled_ms")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    IS_STREAMING_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    IS_RECEIVING_FIELD_NUMBER: _ClassVar[int]
    BROKER_SETS_FIELD_NUMBER: _ClassVar[int]
    STALLED_MS_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    zone: str
    address: str
    last_seen_at_ms: int
    is_streaming: bool
    queues: int
    is_receiving: bool
    broker_sets: _containers.RepeatedScalarFieldContainer[str]
    stalled_ms: int
    def __init__(self, member_id: _Optional[str] = ..., zone: _Optional[str] = ..., address: _Optional[str] = ..., last_seen_at_ms: _Optional[int] = ..., is_streaming: _Optional[bool] = ..., queues: _Optional[int] = ..., is_receiving: _Optional[bool] = ..., broker_sets: _Optional[_Iterable[str]] = ..., stalled_ms: _Optional[int] = ...) -> None: ...

class GroupQueue(_message.Message):
    __slots__ = ("topic", "queue_id", "committed", "start", "end", "lag", "member_id", "broker_set")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_SET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    committed: int
    start: int
    end: int
    lag: int
    member_id: str
    broker_set: str
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., committed: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., lag: _Optional[int] = ..., member_id: _Optional[str] = ..., broker_set: _Optional[str] = ...) -> None: ...

class ResetOffsetsRequest(_message.Message):
    __slots__ = ("group", "topic", "queue_ids", "kind", "at_ms", "is_dry_run", "may_be_new")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_IDS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    IS_DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    MAY_BE_NEW_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    queue_ids: _containers.RepeatedScalarFieldContainer[int]
    kind: _consumer_pb2.OffsetKind
    at_ms: int
    is_dry_run: bool
    may_be_new: bool
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., queue_ids: _Optional[_Iterable[int]] = ..., kind: _Optional[_Union[_consumer_pb2.OffsetKind, str]] = ..., at_ms: _Optional[int] = ..., is_dry_run: _Optional[bool] = ..., may_be_new: _Optional[bool] = ...) -> None: ...

class ResetOffsetsResponse(_message.Message):
    __slots__ = ("before", "after")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    before: _containers.RepeatedCompositeFieldContainer[_consumer_pb2.QueuePosition]
    after: _containers.RepeatedCompositeFieldContainer[_consumer_pb2.QueuePosition]
    def __init__(self, before: _Optional[_Iterable[_Union[_consumer_pb2.QueuePosition, _Mapping]]] = ..., after: _Optional[_Iterable[_Union[_consumer_pb2.QueuePosition, _Mapping]]] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AlterGroupRequest(_message.Message):
    __slots__ = ("group", "retries_max", "is_ordered")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RETRIES_MAX_FIELD_NUMBER: _ClassVar[int]
    IS_ORDERED_FIELD_NUMBER: _ClassVar[int]
    group: str
    retries_max: int
    is_ordered: bool
    def __init__(self, group: _Optional[str] = ..., retries_max: _Optional[int] = ..., is_ordered: _Optional[bool] = ...) -> None: ...

class GroupSettings(_message.Message):
    __slots__ = ("group", "retries_max", "is_default", "missing_sets", "is_ordered")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RETRIES_MAX_FIELD_NUMBER: _ClassVar[int]
    IS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    MISSING_SETS_FIELD_NUMBER: _ClassVar[int]
    IS_ORDERED_FIELD_NUMBER: _ClassVar[int]
    group: str
    retries_max: int
    is_default: bool
    missing_sets: _containers.RepeatedScalarFieldContainer[str]
    is_ordered: bool
    def __init__(self, group: _Optional[str] = ..., retries_max: _Optional[int] = ..., is_default: _Optional[bool] = ..., missing_sets: _Optional[_Iterable[str]] = ..., is_ordered: _Optional[bool] = ...) -> None: ...

class ListTransactionsRequest(_message.Message):
    __slots__ = ("producer_group", "transactions_max")
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_MAX_FIELD_NUMBER: _ClassVar[int]
    producer_group: str
    transactions_max: int
    def __init__(self, producer_group: _Optional[str] = ..., transactions_max: _Optional[int] = ...) -> None: ...

class ListTransactionsResponse(_message.Message):
    __slots__ = ("transactions", "open", "missing_sets")
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    MISSING_SETS_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[TransactionInfo]
    open: int
    missing_sets: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, transactions: _Optional[_Iterable[_Union[TransactionInfo, _Mapping]]] = ..., open: _Optional[int] = ..., missing_sets: _Optional[_Iterable[str]] = ...) -> None: ...

class TransactionInfo(_message.Message):
    __slots__ = ("transaction_id", "topic", "producer_group", "stored_at_ms", "messages", "checks", "checks_max", "next_check_ms", "producers")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    CHECKS_MAX_FIELD_NUMBER: _ClassVar[int]
    NEXT_CHECK_MS_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    topic: str
    producer_group: str
    stored_at_ms: int
    messages: int
    checks: int
    checks_max: int
    next_check_ms: int
    producers: int
    def __init__(self, transaction_id: _Optional[str] = ..., topic: _Optional[str] = ..., producer_group: _Optional[str] = ..., stored_at_ms: _Optional[int] = ..., messages: _Optional[int] = ..., checks: _Optional[int] = ..., checks_max: _Optional[int] = ..., next_check_ms: _Optional[int] = ..., producers: _Optional[int] = ...) -> None: ...

class CheckTransactionNowRequest(_message.Message):
    __slots__ = ("transaction_id",)
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    def __init__(self, transaction_id: _Optional[str] = ...) -> None: ...

class CheckTransactionNowResponse(_message.Message):
    __slots__ = ("producer_id",)
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    producer_id: str
    def __init__(self, producer_id: _Optional[str] = ...) -> None: ...

class ListScheduledRequest(_message.Message):
    __slots__ = ("topic", "begin_ms", "messages_max", "page")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BEGIN_MS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_MAX_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    begin_ms: int
    messages_max: int
    page: str
    def __init__(self, topic: _Optional[str] = ..., begin_ms: _Optional[int] = ..., messages_max: _Optional[int] = ..., page: _Optional[str] = ...) -> None: ...

class ListScheduledResponse(_message.Message):
    __slots__ = ("messages", "next_page", "missing_sets")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_FIELD_NUMBER: _ClassVar[int]
    MISSING_SETS_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ScheduledMessage]
    next_page: str
    missing_sets: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, messages: _Optional[_Iterable[_Union[ScheduledMessage, _Mapping]]] = ..., next_page: _Optional[str] = ..., missing_sets: _Optional[_Iterable[str]] = ...) -> None: ...

class ScheduledMessage(_message.Message):
    __slots__ = ("message_id", "topic", "queue_id", "deliver_at_ms", "born_at_ms", "size_bytes", "tag", "keys", "next_page")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_MS_FIELD_NUMBER: _ClassVar[int]
    BORN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    topic: str
    queue_id: int
    deliver_at_ms: int
    born_at_ms: int
    size_bytes: int
    tag: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    next_page: str
    def __init__(self, message_id: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., deliver_at_ms: _Optional[int] = ..., born_at_ms: _Optional[int] = ..., size_bytes: _Optional[int] = ..., tag: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ..., next_page: _Optional[str] = ...) -> None: ...

class CountScheduledRequest(_message.Message):
    __slots__ = ("buckets_max",)
    BUCKETS_MAX_FIELD_NUMBER: _ClassVar[int]
    buckets_max: int
    def __init__(self, buckets_max: _Optional[int] = ...) -> None: ...

class CountScheduledResponse(_message.Message):
    __slots__ = ("messages", "buckets", "bucket_ms", "counts_batches", "topics", "missing_sets")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    BUCKET_MS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_BATCHES_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    MISSING_SETS_FIELD_NUMBER: _ClassVar[int]
    messages: int
    buckets: _containers.RepeatedCompositeFieldContainer[ScheduledBucket]
    bucket_ms: int
    counts_batches: bool
    topics: _containers.RepeatedCompositeFieldContainer[ScheduledTopic]
    missing_sets: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, messages: _Optional[int] = ..., buckets: _Optional[_Iterable[_Union[ScheduledBucket, _Mapping]]] = ..., bucket_ms: _Optional[int] = ..., counts_batches: _Optional[bool] = ..., topics: _Optional[_Iterable[_Union[ScheduledTopic, _Mapping]]] = ..., missing_sets: _Optional[_Iterable[str]] = ...) -> None: ...

class ScheduledBucket(_message.Message):
    __slots__ = ("begin_ms", "count")
    BEGIN_MS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    begin_ms: int
    count: int
    def __init__(self, begin_ms: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class ScheduledTopic(_message.Message):
    __slots__ = ("topic", "messages")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    messages: int
    def __init__(self, topic: _Optional[str] = ..., messages: _Optional[int] = ...) -> None: ...

class RecallScheduledRequest(_message.Message):
    __slots__ = ("topic", "message_id", "deliver_at_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    message_id: str
    deliver_at_ms: int
    def __init__(self, topic: _Optional[str] = ..., message_id: _Optional[str] = ..., deliver_at_ms: _Optional[int] = ...) -> None: ...

class RecallScheduledResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListLeasesRequest(_message.Message):
    __slots__ = ("group", "topic", "leases_max", "page")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    LEASES_MAX_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    leases_max: int
    page: str
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., leases_max: _Optional[int] = ..., page: _Optional[str] = ...) -> None: ...

class ListLeasesResponse(_message.Message):
    __slots__ = ("leases", "next_page", "leased", "waiting", "missing_sets")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    MISSING_SETS_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[LeaseInfo]
    next_page: str
    leased: int
    waiting: int
    missing_sets: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, leases: _Optional[_Iterable[_Union[LeaseInfo, _Mapping]]] = ..., next_page: _Optional[str] = ..., leased: _Optional[int] = ..., waiting: _Optional[int] = ..., missing_sets: _Optional[_Iterable[str]] = ...) -> None: ...

class LeaseInfo(_message.Message):
    __slots__ = ("topic", "queue_id", "start", "end", "is_leased", "visible_at_ms", "attempts", "member_id", "broker_set")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    IS_LEASED_FIELD_NUMBER: _ClassVar[int]
    VISIBLE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    BROKER_SET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    start: int
    end: int
    is_leased: bool
    visible_at_ms: int
    attempts: int
    member_id: str
    broker_set: str
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., is_leased: _Optional[bool] = ..., visible_at_ms: _Optional[int] = ..., attempts: _Optional[int] = ..., member_id: _Optional[str] = ..., broker_set: _Optional[str] = ...) -> None: ...

class ListClientsRequest(_message.Message):
    __slots__ = ("clients_max", "page")
    CLIENTS_MAX_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    clients_max: int
    page: str
    def __init__(self, clients_max: _Optional[int] = ..., page: _Optional[str] = ...) -> None: ...

class ListClientsResponse(_message.Message):
    __slots__ = ("clients", "next_page", "connections", "node_id", "is_count_only")
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    IS_COUNT_ONLY_FIELD_NUMBER: _ClassVar[int]
    clients: _containers.RepeatedCompositeFieldContainer[ClientInfo]
    next_page: str
    connections: int
    node_id: str
    is_count_only: bool
    def __init__(self, clients: _Optional[_Iterable[_Union[ClientInfo, _Mapping]]] = ..., next_page: _Optional[str] = ..., connections: _Optional[int] = ..., node_id: _Optional[str] = ..., is_count_only: _Optional[bool] = ...) -> None: ...

class ClientInfo(_message.Message):
    __slots__ = ("address", "user_agent", "language", "version", "user", "connected_at_ms", "calls", "in_flight", "is_encrypted", "groups", "topics")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    USER_AGENT_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    IS_ENCRYPTED_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    address: str
    user_agent: str
    language: str
    version: str
    user: str
    connected_at_ms: int
    calls: int
    in_flight: _containers.RepeatedCompositeFieldContainer[ClientCalls]
    is_encrypted: bool
    groups: _containers.RepeatedScalarFieldContainer[str]
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, address: _Optional[str] = ..., user_agent: _Optional[str] = ..., language: _Optional[str] = ..., version: _Optional[str] = ..., user: _Optional[str] = ..., connected_at_ms: _Optional[int] = ..., calls: _Optional[int] = ..., in_flight: _Optional[_Iterable[_Union[ClientCalls, _Mapping]]] = ..., is_encrypted: _Optional[bool] = ..., groups: _Optional[_Iterable[str]] = ..., topics: _Optional[_Iterable[str]] = ...) -> None: ...

class ClientCalls(_message.Message):
    __slots__ = ("method", "count")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    method: str
    count: int
    def __init__(self, method: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class ListDeadLettersRequest(_message.Message):
    __slots__ = ("group", "queue_offset", "messages_max")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_MAX_FIELD_NUMBER: _ClassVar[int]
    group: str
    queue_offset: int
    messages_max: int
    def __init__(self, group: _Optional[str] = ..., queue_offset: _Optional[int] = ..., messages_max: _Optional[int] = ...) -> None: ...

class ListDeadLettersResponse(_message.Message):
    __slots__ = ("groups", "messages", "next_offset", "next_offsets", "missing_sets", "resent_ids")
    class NextOffsetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    MISSING_SETS_FIELD_NUMBER: _ClassVar[int]
    RESENT_IDS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[DeadLetterCount]
    messages: _containers.RepeatedCompositeFieldContainer[StoredMessage]
    next_offset: int
    next_offsets: _containers.ScalarMap[str, int]
    missing_sets: _containers.RepeatedScalarFieldContainer[str]
    resent_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, groups: _Optional[_Iterable[_Union[DeadLetterCount, _Mapping]]] = ..., messages: _Optional[_Iterable[_Union[StoredMessage, _Mapping]]] = ..., next_offset: _Optional[int] = ..., next_offsets: _Optional[_Mapping[str, int]] = ..., missing_sets: _Optional[_Iterable[str]] = ..., resent_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class DeadLetterCount(_message.Message):
    __slots__ = ("group", "messages", "last_stored_at_ms", "broker_sets")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LAST_STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    BROKER_SETS_FIELD_NUMBER: _ClassVar[int]
    group: str
    messages: int
    last_stored_at_ms: int
    broker_sets: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group: _Optional[str] = ..., messages: _Optional[int] = ..., last_stored_at_ms: _Optional[int] = ..., broker_sets: _Optional[_Iterable[str]] = ...) -> None: ...

class ResendDeadLettersRequest(_message.Message):
    __slots__ = ("group", "queue_offsets")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    group: str
    queue_offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, group: _Optional[str] = ..., queue_offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class ResendDeadLettersResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: int
    def __init__(self, messages: _Optional[int] = ...) -> None: ...

class PurgeDeadLettersRequest(_message.Message):
    __slots__ = ("group", "before_offset")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    BEFORE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    group: str
    before_offset: int
    def __init__(self, group: _Optional[str] = ..., before_offset: _Optional[int] = ...) -> None: ...

class PurgeDeadLettersResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: int
    def __init__(self, messages: _Optional[int] = ...) -> None: ...

class SettleDeadLettersRequest(_message.Message):
    __slots__ = ("group", "queue_offsets", "action", "again")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    group: str
    queue_offsets: _containers.RepeatedScalarFieldContainer[int]
    action: LetterAction
    again: bool
    def __init__(self, group: _Optional[str] = ..., queue_offsets: _Optional[_Iterable[int]] = ..., action: _Optional[_Union[LetterAction, str]] = ..., again: _Optional[bool] = ...) -> None: ...

class SettleDeadLettersResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[LetterOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[LetterOutcome, _Mapping]]] = ...) -> None: ...

class LetterOutcome(_message.Message):
    __slots__ = ("queue_offset", "result", "message_id", "text")
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    queue_offset: int
    result: LetterResult
    message_id: str
    text: str
    def __init__(self, queue_offset: _Optional[int] = ..., result: _Optional[_Union[LetterResult, str]] = ..., message_id: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class StoredMessage(_message.Message):
    __slots__ = ("message_id", "topic", "queue_id", "queue_offset", "log_offset", "stored_at_ms", "message")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    stored_at_ms: int
    message: _message_pb2.Message
    def __init__(self, message_id: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., log_offset: _Optional[int] = ..., stored_at_ms: _Optional[int] = ..., message: _Optional[_Union[_message_pb2.Message, _Mapping]] = ...) -> None: ...

class GetMessageRequest(_message.Message):
    __slots__ = ("message_id",)
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    def __init__(self, message_id: _Optional[str] = ...) -> None: ...

class QueryMessagesRequest(_message.Message):
    __slots__ = ("topic", "key", "begin_ms", "end_ms", "messages_max")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    BEGIN_MS_FIELD_NUMBER: _ClassVar[int]
    END_MS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_MAX_FIELD_NUMBER: _ClassVar[int]
    topic: str
    key: str
    begin_ms: int
    end_ms: int
    messages_max: int
    def __init__(self, topic: _Optional[str] = ..., key: _Optional[str] = ..., begin_ms: _Optional[int] = ..., end_ms: _Optional[int] = ..., messages_max: _Optional[int] = ...) -> None: ...

class BrowseMessagesRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "queue_offset", "messages_max", "filter")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_MAX_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    queue_offset: int
    messages_max: int
    filter: _consumer_pb2.Filter
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., messages_max: _Optional[int] = ..., filter: _Optional[_Union[_consumer_pb2.Filter, _Mapping]] = ...) -> None: ...

class MessageList(_message.Message):
    __slots__ = ("messages", "next_offset")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[StoredMessage]
    next_offset: int
    def __init__(self, messages: _Optional[_Iterable[_Union[StoredMessage, _Mapping]]] = ..., next_offset: _Optional[int] = ...) -> None: ...

class TraceMessageRequest(_message.Message):
    __slots__ = ("message_id", "budget_ms", "continue_token")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    BUDGET_MS_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    budget_ms: int
    continue_token: int
    def __init__(self, message_id: _Optional[str] = ..., budget_ms: _Optional[int] = ..., continue_token: _Optional[int] = ...) -> None: ...

class MessageTrace(_message.Message):
    __slots__ = ("message_id", "topic", "queue_id", "queue_offset", "tag", "keys", "body_bytes", "events", "groups", "is_complete", "continue_token", "incomplete_reason", "raft_index", "stored_at_ms", "broker_set")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    BODY_BYTES_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    IS_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_REASON_FIELD_NUMBER: _ClassVar[int]
    RAFT_INDEX_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    BROKER_SET_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    topic: str
    queue_id: int
    queue_offset: int
    tag: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    body_bytes: int
    events: _containers.RepeatedCompositeFieldContainer[TraceEvent]
    groups: _containers.RepeatedCompositeFieldContainer[TraceGroup]
    is_complete: bool
    continue_token: int
    incomplete_reason: str
    raft_index: int
    stored_at_ms: int
    broker_set: str
    def __init__(self, message_id: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., tag: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ..., body_bytes: _Optional[int] = ..., events: _Optional[_Iterable[_Union[TraceEvent, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[TraceGroup, _Mapping]]] = ..., is_complete: _Optional[bool] = ..., continue_token: _Optional[int] = ..., incomplete_reason: _Optional[str] = ..., raft_index: _Optional[int] = ..., stored_at_ms: _Optional[int] = ..., broker_set: _Optional[str] = ...) -> None: ...

class TraceEvent(_message.Message):
    __slots__ = ("kind", "at_ms", "group", "member_id", "user", "address", "producer_id", "topic", "queue_id", "queue_offset", "message_id", "raft_index", "term", "attempt", "until_ms", "filter", "reason")
    KIND_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    RAFT_INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    kind: TraceKind
    at_ms: int
    group: str
    member_id: str
    user: str
    address: str
    producer_id: str
    topic: str
    queue_id: int
    queue_offset: int
    message_id: str
    raft_index: int
    term: int
    attempt: int
    until_ms: int
    filter: str
    reason: str
    def __init__(self, kind: _Optional[_Union[TraceKind, str]] = ..., at_ms: _Optional[int] = ..., group: _Optional[str] = ..., member_id: _Optional[str] = ..., user: _Optional[str] = ..., address: _Optional[str] = ..., producer_id: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., message_id: _Optional[str] = ..., raft_index: _Optional[int] = ..., term: _Optional[int] = ..., attempt: _Optional[int] = ..., until_ms: _Optional[int] = ..., filter: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class TraceGroup(_message.Message):
    __slots__ = ("group", "standing", "topic", "queue_id", "position", "behind", "attempts")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    group: str
    standing: TraceStanding
    topic: str
    queue_id: int
    position: int
    behind: int
    attempts: int
    def __init__(self, group: _Optional[str] = ..., standing: _Optional[_Union[TraceStanding, str]] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., position: _Optional[int] = ..., behind: _Optional[int] = ..., attempts: _Optional[int] = ...) -> None: ...

class BrokerStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BrokerStatusResponse(_message.Message):
    __slots__ = ("cluster", "broker_set", "node_id", "version", "role", "leader_id", "term", "commit_index", "applied_index", "last_index", "first_index", "log_bytes", "disk_total_bytes", "disk_used_bytes", "topics", "groups", "queues", "members", "messages_in", "messages_out", "rss_bytes", "started_at_ms", "cpu_seconds", "followers", "is_ready", "half_messages", "timing_messages", "dead_letters", "is_voter", "joining", "set_members", "damages", "open_damages", "internal_topics", "topic_queues")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_SET_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_IN_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_OUT_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    CPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    FOLLOWERS_FIELD_NUMBER: _ClassVar[int]
    IS_READY_FIELD_NUMBER: _ClassVar[int]
    HALF_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TIMING_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    IS_VOTER_FIELD_NUMBER: _ClassVar[int]
    JOINING_FIELD_NUMBER: _ClassVar[int]
    SET_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    DAMAGES_FIELD_NUMBER: _ClassVar[int]
    OPEN_DAMAGES_FIELD_NUMBER: _ClassVar[int]
    INTERNAL_TOPICS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_QUEUES_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_set: str
    node_id: str
    version: str
    role: str
    leader_id: str
    term: int
    commit_index: int
    applied_index: int
    last_index: int
    first_index: int
    log_bytes: int
    disk_total_bytes: int
    disk_used_bytes: int
    topics: int
    groups: int
    queues: int
    members: int
    messages_in: int
    messages_out: int
    rss_bytes: int
    started_at_ms: int
    cpu_seconds: float
    followers: _containers.RepeatedCompositeFieldContainer[FollowerStatus]
    is_ready: bool
    half_messages: int
    timing_messages: int
    dead_letters: int
    is_voter: bool
    joining: FollowerStatus
    set_members: _containers.RepeatedCompositeFieldContainer[SetMember]
    damages: _containers.RepeatedCompositeFieldContainer[StorageDamage]
    open_damages: int
    internal_topics: int
    topic_queues: int
    def __init__(self, cluster: _Optional[str] = ..., broker_set: _Optional[str] = ..., node_id: _Optional[str] = ..., version: _Optional[str] = ..., role: _Optional[str] = ..., leader_id: _Optional[str] = ..., term: _Optional[int] = ..., commit_index: _Optional[int] = ..., applied_index: _Optional[int] = ..., last_index: _Optional[int] = ..., first_index: _Optional[int] = ..., log_bytes: _Optional[int] = ..., disk_total_bytes: _Optional[int] = ..., disk_used_bytes: _Optional[int] = ..., topics: _Optional[int] = ..., groups: _Optional[int] = ..., queues: _Optional[int] = ..., members: _Optional[int] = ..., messages_in: _Optional[int] = ..., messages_out: _Optional[int] = ..., rss_bytes: _Optional[int] = ..., started_at_ms: _Optional[int] = ..., cpu_seconds: _Optional[float] = ..., followers: _Optional[_Iterable[_Union[FollowerStatus, _Mapping]]] = ..., is_ready: _Optional[bool] = ..., half_messages: _Optional[int] = ..., timing_messages: _Optional[int] = ..., dead_letters: _Optional[int] = ..., is_voter: _Optional[bool] = ..., joining: _Optional[_Union[FollowerStatus, _Mapping]] = ..., set_members: _Optional[_Iterable[_Union[SetMember, _Mapping]]] = ..., damages: _Optional[_Iterable[_Union[StorageDamage, _Mapping]]] = ..., open_damages: _Optional[int] = ..., internal_topics: _Optional[int] = ..., topic_queues: _Optional[int] = ...) -> None: ...

class StorageDamage(_message.Message):
    __slots__ = ("kind", "file", "position", "reason", "start_log_offset", "end_log_offset", "affected", "found_at_ms", "mended_at_ms", "is_lost")
    KIND_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    START_LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    AFFECTED_FIELD_NUMBER: _ClassVar[int]
    FOUND_AT_MS_FIELD_NUMBER: _ClassVar[int]
    MENDED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    IS_LOST_FIELD_NUMBER: _ClassVar[int]
    kind: str
    file: str
    position: int
    reason: str
    start_log_offset: int
    end_log_offset: int
    affected: str
    found_at_ms: int
    mended_at_ms: int
    is_lost: bool
    def __init__(self, kind: _Optional[str] = ..., file: _Optional[str] = ..., position: _Optional[int] = ..., reason: _Optional[str] = ..., start_log_offset: _Optional[int] = ..., end_log_offset: _Optional[int] = ..., affected: _Optional[str] = ..., found_at_ms: _Optional[int] = ..., mended_at_ms: _Optional[int] = ..., is_lost: _Optional[bool] = ...) -> None: ...

class FollowerStatus(_message.Message):
    __slots__ = ("node_id", "address", "behind", "is_connected", "is_voter")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    IS_CONNECTED_FIELD_NUMBER: _ClassVar[int]
    IS_VOTER_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    address: str
    behind: int
    is_connected: bool
    is_voter: bool
    def __init__(self, node_id: _Optional[str] = ..., address: _Optional[str] = ..., behind: _Optional[int] = ..., is_connected: _Optional[bool] = ..., is_voter: _Optional[bool] = ...) -> None: ...

class GetConfigRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetConfigRequest(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class ConfigList(_message.Message):
    __slots__ = ("options",)
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    options: _containers.RepeatedCompositeFieldContainer[ConfigOption]
    def __init__(self, options: _Optional[_Iterable[_Union[ConfigOption, _Mapping]]] = ...) -> None: ...

class ConfigOption(_message.Message):
    __slots__ = ("name", "value", "default", "description", "is_dynamic")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    IS_DYNAMIC_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    default: str
    description: str
    is_dynamic: bool
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., default: _Optional[str] = ..., description: _Optional[str] = ..., is_dynamic: _Optional[bool] = ...) -> None: ...

class AddMemberRequest(_message.Message):
    __slots__ = ("node_id", "address")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    address: str
    def __init__(self, node_id: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class RemoveMemberRequest(_message.Message):
    __slots__ = ("node_id",)
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    def __init__(self, node_id: _Optional[str] = ...) -> None: ...

class MemberList(_message.Message):
    __slots__ = ("members", "joining")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    JOINING_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[SetMember]
    joining: FollowerStatus
    def __init__(self, members: _Optional[_Iterable[_Union[SetMember, _Mapping]]] = ..., joining: _Optional[_Union[FollowerStatus, _Mapping]] = ...) -> None: ...

class SetMember(_message.Message):
    __slots__ = ("node_id", "address")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    address: str
    def __init__(self, node_id: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class TransferLeadershipRequest(_message.Message):
    __slots__ = ("node_id",)
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    def __init__(self, node_id: _Optional[str] = ...) -> None: ...

class TransferLeadershipResponse(_message.Message):
    __slots__ = ("leader_id", "term")
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    leader_id: str
    term: int
    def __init__(self, leader_id: _Optional[str] = ..., term: _Optional[int] = ...) -> None: ...

class AddBrokerSetRequest(_message.Message):
    __slots__ = ("broker_set",)
    BROKER_SET_FIELD_NUMBER: _ClassVar[int]
    broker_set: _cluster_pb2.PeerSet
    def __init__(self, broker_set: _Optional[_Union[_cluster_pb2.PeerSet, _Mapping]] = ...) -> None: ...

class RemoveBrokerSetRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class BrokerSetList(_message.Message):
    __slots__ = ("broker_sets",)
    BROKER_SETS_FIELD_NUMBER: _ClassVar[int]
    broker_sets: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.PeerSet]
    def __init__(self, broker_sets: _Optional[_Iterable[_Union[_cluster_pb2.PeerSet, _Mapping]]] = ...) -> None: ...

class ReadLogRequest(_message.Message):
    __slots__ = ("log_offset", "bytes_max")
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    log_offset: int
    bytes_max: int
    def __init__(self, log_offset: _Optional[int] = ..., bytes_max: _Optional[int] = ...) -> None: ...

class LogChunk(_message.Message):
    __slots__ = ("log_offset", "data", "segment_offset", "next_offset", "end_offset", "end_index", "term")
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    log_offset: int
    data: bytes
    segment_offset: int
    next_offset: int
    end_offset: int
    end_index: int
    term: int
    def __init__(self, log_offset: _Optional[int] = ..., data: _Optional[bytes] = ..., segment_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., end_index: _Optional[int] = ..., term: _Optional[int] = ...) -> None: ...
