from mq.wire.v1 import message_pb2 as _message_pb2
from mq.wire.v1 import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PullStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PULL_FOUND: _ClassVar[PullStatus]
    PULL_END: _ClassVar[PullStatus]
    PULL_TOO_SMALL: _ClassVar[PullStatus]
    PULL_TOO_LARGE: _ClassVar[PullStatus]

class ConsumeMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_CLUSTERING: _ClassVar[ConsumeMode]
    MODE_ORDERED: _ClassVar[ConsumeMode]
    MODE_BROADCAST: _ClassVar[ConsumeMode]

class StartPosition(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    START_LATEST: _ClassVar[StartPosition]
    START_EARLIEST: _ClassVar[StartPosition]
    START_TIMESTAMP: _ClassVar[StartPosition]

class OffsetKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OFFSET_EARLIEST: _ClassVar[OffsetKind]
    OFFSET_LATEST: _ClassVar[OffsetKind]
    OFFSET_AT_TIME: _ClassVar[OffsetKind]
PULL_FOUND: PullStatus
PULL_END: PullStatus
PULL_TOO_SMALL: PullStatus
PULL_TOO_LARGE: PullStatus
MODE_CLUSTERING: ConsumeMode
MODE_ORDERED: ConsumeMode
MODE_BROADCAST: ConsumeMode
START_LATEST: StartPosition
START_EARLIEST: StartPosition
START_TIMESTAMP: StartPosition
OFFSET_EARLIEST: OffsetKind
OFFSET_LATEST: OffsetKind
OFFSET_AT_TIME: OffsetKind

class Filter(_message.Message):
    __slots__ = ("tags", "sql")
    TAGS_FIELD_NUMBER: _ClassVar[int]
    SQL_FIELD_NUMBER: _ClassVar[int]
    tags: str
    sql: str
    def __init__(self, tags: _Optional[str] = ..., sql: _Optional[str] = ...) -> None: ...

class Subscription(_message.Message):
    __slots__ = ("topic", "filter")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    filter: Filter
    def __init__(self, topic: _Optional[str] = ..., filter: _Optional[_Union[Filter, _Mapping]] = ...) -> None: ...

class QueueId(_message.Message):
    __slots__ = ("topic", "queue_id", "epoch")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    epoch: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class QueuePosition(_message.Message):
    __slots__ = ("topic", "queue_id", "queue_offset", "epoch", "broker_set")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BROKER_SET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    queue_offset: int
    epoch: int
    broker_set: str
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., epoch: _Optional[int] = ..., broker_set: _Optional[str] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("queue_offset", "log_offset", "stored_at_ms", "frame_sizes", "messages")
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    FRAME_SIZES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    queue_offset: int
    log_offset: int
    stored_at_ms: int
    frame_sizes: _containers.RepeatedScalarFieldContainer[int]
    messages: _containers.RepeatedCompositeFieldContainer[_message_pb2.Message]
    def __init__(self, queue_offset: _Optional[int] = ..., log_offset: _Optional[int] = ..., stored_at_ms: _Optional[int] = ..., frame_sizes: _Optional[_Iterable[int]] = ..., messages: _Optional[_Iterable[_Union[_message_pb2.Message, _Mapping]]] = ...) -> None: ...

class RawRun(_message.Message):
    __slots__ = ("queue_offset", "log_offset", "stored_at_ms", "frame_sizes")
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    FRAME_SIZES_FIELD_NUMBER: _ClassVar[int]
    queue_offset: int
    log_offset: int
    stored_at_ms: int
    frame_sizes: bytes
    def __init__(self, queue_offset: _Optional[int] = ..., log_offset: _Optional[int] = ..., stored_at_ms: _Optional[int] = ..., frame_sizes: _Optional[bytes] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "queue_offset", "filter", "messages_max", "bytes_max", "wait_ms", "any_replica", "zone")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_MAX_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    ANY_REPLICA_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    queue_offset: int
    filter: Filter
    messages_max: int
    bytes_max: int
    wait_ms: int
    any_replica: bool
    zone: str
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., filter: _Optional[_Union[Filter, _Mapping]] = ..., messages_max: _Optional[int] = ..., bytes_max: _Optional[int] = ..., wait_ms: _Optional[int] = ..., any_replica: _Optional[bool] = ..., zone: _Optional[str] = ...) -> None: ...

class PullResponse(_message.Message):
    __slots__ = ("status", "next_offset", "start", "end", "read_from", "runs")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    READ_FROM_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    status: PullStatus
    next_offset: int
    start: int
    end: int
    read_from: str
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    def __init__(self, status: _Optional[_Union[PullStatus, str]] = ..., next_offset: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., read_from: _Optional[str] = ..., runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ...) -> None: ...

class SubscribeRequest(_message.Message):
    __slots__ = ("start", "progress", "released", "alive", "seek", "resume")
    START_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    SEEK_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    start: SubscribeStart
    progress: Progress
    released: Released
    alive: Alive
    seek: Seek
    resume: Resume
    def __init__(self, start: _Optional[_Union[SubscribeStart, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., released: _Optional[_Union[Released, _Mapping]] = ..., alive: _Optional[_Union[Alive, _Mapping]] = ..., seek: _Optional[_Union[Seek, _Mapping]] = ..., resume: _Optional[_Union[Resume, _Mapping]] = ...) -> None: ...

class SubscribeStart(_message.Message):
    __slots__ = ("group", "member_id", "zone", "mode", "subscriptions", "start_position", "start_at_ms", "cache_messages", "cache_bytes", "positions", "delivery_bytes", "takes_redirects")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    START_POSITION_FIELD_NUMBER: _ClassVar[int]
    START_AT_MS_FIELD_NUMBER: _ClassVar[int]
    CACHE_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_BYTES_FIELD_NUMBER: _ClassVar[int]
    TAKES_REDIRECTS_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    zone: str
    mode: ConsumeMode
    subscriptions: _containers.RepeatedCompositeFieldContainer[Subscription]
    start_position: StartPosition
    start_at_ms: int
    cache_messages: int
    cache_bytes: int
    positions: _containers.RepeatedCompositeFieldContainer[QueuePosition]
    delivery_bytes: int
    takes_redirects: bool
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., zone: _Optional[str] = ..., mode: _Optional[_Union[ConsumeMode, str]] = ..., subscriptions: _Optional[_Iterable[_Union[Subscription, _Mapping]]] = ..., start_position: _Optional[_Union[StartPosition, str]] = ..., start_at_ms: _Optional[int] = ..., cache_messages: _Optional[int] = ..., cache_bytes: _Optional[int] = ..., positions: _Optional[_Iterable[_Union[QueuePosition, _Mapping]]] = ..., delivery_bytes: _Optional[int] = ..., takes_redirects: _Optional[bool] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("positions",)
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    positions: _containers.RepeatedCompositeFieldContainer[QueuePosition]
    def __init__(self, positions: _Optional[_Iterable[_Union[QueuePosition, _Mapping]]] = ...) -> None: ...

class Released(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueId]
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueId, _Mapping]]] = ...) -> None: ...

class Alive(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Seek(_message.Message):
    __slots__ = ("positions",)
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    positions: _containers.RepeatedCompositeFieldContainer[QueuePosition]
    def __init__(self, positions: _Optional[_Iterable[_Union[QueuePosition, _Mapping]]] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("positions",)
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    positions: _containers.RepeatedCompositeFieldContainer[QueuePosition]
    def __init__(self, positions: _Optional[_Iterable[_Union[QueuePosition, _Mapping]]] = ...) -> None: ...

class SubscribeResponse(_message.Message):
    __slots__ = ("assignment", "delivery", "redirect")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    REDIRECT_FIELD_NUMBER: _ClassVar[int]
    assignment: Assignment
    delivery: Delivery
    redirect: Redirect
    def __init__(self, assignment: _Optional[_Union[Assignment, _Mapping]] = ..., delivery: _Optional[_Union[Delivery, _Mapping]] = ..., redirect: _Optional[_Union[Redirect, _Mapping]] = ...) -> None: ...

class Redirect(_message.Message):
    __slots__ = ("topic", "queue_id", "epoch", "queue_offset", "address")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    epoch: int
    queue_offset: int
    address: str
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., epoch: _Optional[int] = ..., queue_offset: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class AssignedQueue(_message.Message):
    __slots__ = ("topic", "queue_id", "queue_offset", "epoch", "rank")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    queue_offset: int
    epoch: int
    rank: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., epoch: _Optional[int] = ..., rank: _Optional[int] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("generation", "queues", "heartbeat_ms", "expires_ms")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    queues: _containers.RepeatedCompositeFieldContainer[AssignedQueue]
    heartbeat_ms: int
    expires_ms: int
    def __init__(self, generation: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[AssignedQueue, _Mapping]]] = ..., heartbeat_ms: _Optional[int] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("topic", "queue_id", "epoch", "next_offset", "start", "end", "runs")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    epoch: int
    next_offset: int
    start: int
    end: int
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., epoch: _Optional[int] = ..., next_offset: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("group", "member_id", "zone", "mode", "subscriptions", "owned")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    zone: str
    mode: ConsumeMode
    subscriptions: _containers.RepeatedCompositeFieldContainer[Subscription]
    owned: _containers.RepeatedCompositeFieldContainer[QueueId]
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., zone: _Optional[str] = ..., mode: _Optional[_Union[ConsumeMode, str]] = ..., subscriptions: _Optional[_Iterable[_Union[Subscription, _Mapping]]] = ..., owned: _Optional[_Iterable[_Union[QueueId, _Mapping]]] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("group", "member_id", "owned")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    OWNED_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    owned: _containers.RepeatedCompositeFieldContainer[QueueId]
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., owned: _Optional[_Iterable[_Union[QueueId, _Mapping]]] = ...) -> None: ...

class Membership(_message.Message):
    __slots__ = ("generation", "assigned", "is_rebalancing", "heartbeat_ms", "expires_ms")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    IS_REBALANCING_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    assigned: _containers.RepeatedCompositeFieldContainer[QueueId]
    is_rebalancing: bool
    heartbeat_ms: int
    expires_ms: int
    def __init__(self, generation: _Optional[int] = ..., assigned: _Optional[_Iterable[_Union[QueueId, _Mapping]]] = ..., is_rebalancing: _Optional[bool] = ..., heartbeat_ms: _Optional[int] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("group", "member_id", "reason")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    reason: str
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class LeaveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CommitOffsetsRequest(_message.Message):
    __slots__ = ("group", "member_id", "positions")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    positions: _containers.RepeatedCompositeFieldContainer[QueuePosition]
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., positions: _Optional[_Iterable[_Union[QueuePosition, _Mapping]]] = ...) -> None: ...

class CommitOffsetsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class QueryOffsetsRequest(_message.Message):
    __slots__ = ("group", "queues")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    group: str
    queues: _containers.RepeatedCompositeFieldContainer[QueueId]
    def __init__(self, group: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[QueueId, _Mapping]]] = ...) -> None: ...

class QueryOffsetsResponse(_message.Message):
    __slots__ = ("positions",)
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    positions: _containers.RepeatedCompositeFieldContainer[QueuePosition]
    def __init__(self, positions: _Optional[_Iterable[_Union[QueuePosition, _Mapping]]] = ...) -> None: ...

class FindOffsetsRequest(_message.Message):
    __slots__ = ("topic", "queue_ids", "kind", "at_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_IDS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_ids: _containers.RepeatedScalarFieldContainer[int]
    kind: OffsetKind
    at_ms: int
    def __init__(self, topic: _Optional[str] = ..., queue_ids: _Optional[_Iterable[int]] = ..., kind: _Optional[_Union[OffsetKind, str]] = ..., at_ms: _Optional[int] = ...) -> None: ...

class FindOffsetsResponse(_message.Message):
    __slots__ = ("positions",)
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    positions: _containers.RepeatedCompositeFieldContainer[QueuePosition]
    def __init__(self, positions: _Optional[_Iterable[_Union[QueuePosition, _Mapping]]] = ...) -> None: ...

class RetryRequest(_message.Message):
    __slots__ = ("group", "member_id", "sequence", "messages")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    sequence: int
    messages: _containers.RepeatedCompositeFieldContainer[FailedMessage]
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., sequence: _Optional[int] = ..., messages: _Optional[_Iterable[_Union[FailedMessage, _Mapping]]] = ...) -> None: ...

class FailedMessage(_message.Message):
    __slots__ = ("topic", "queue_id", "queue_offset", "delay_ms", "reason", "attempts")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    queue_offset: int
    delay_ms: int
    reason: str
    attempts: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., delay_ms: _Optional[int] = ..., reason: _Optional[str] = ..., attempts: _Optional[int] = ...) -> None: ...

class RetryResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[RetryResult]
    def __init__(self, results: _Optional[_Iterable[_Union[RetryResult, _Mapping]]] = ...) -> None: ...

class RetryResult(_message.Message):
    __slots__ = ("code", "text", "attempts", "deliver_at_ms")
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_MS_FIELD_NUMBER: _ClassVar[int]
    code: _status_pb2.Code
    text: str
    attempts: int
    deliver_at_ms: int
    def __init__(self, code: _Optional[_Union[_status_pb2.Code, str]] = ..., text: _Optional[str] = ..., attempts: _Optional[int] = ..., deliver_at_ms: _Optional[int] = ...) -> None: ...

class ReceiveRequest(_message.Message):
    __slots__ = ("group", "topic", "filter", "messages_max", "bytes_max", "invisible_ms", "wait_ms", "is_ordered", "start_position", "start_at_ms", "member_id")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_MAX_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_MS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    IS_ORDERED_FIELD_NUMBER: _ClassVar[int]
    START_POSITION_FIELD_NUMBER: _ClassVar[int]
    START_AT_MS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    filter: Filter
    messages_max: int
    bytes_max: int
    invisible_ms: int
    wait_ms: int
    is_ordered: bool
    start_position: StartPosition
    start_at_ms: int
    member_id: str
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., filter: _Optional[_Union[Filter, _Mapping]] = ..., messages_max: _Optional[int] = ..., bytes_max: _Optional[int] = ..., invisible_ms: _Optional[int] = ..., wait_ms: _Optional[int] = ..., is_ordered: _Optional[bool] = ..., start_position: _Optional[_Union[StartPosition, str]] = ..., start_at_ms: _Optional[int] = ..., member_id: _Optional[str] = ...) -> None: ...

class ReceiveResponse(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[ReceivedRun]
    def __init__(self, runs: _Optional[_Iterable[_Union[ReceivedRun, _Mapping]]] = ...) -> None: ...

class ReceivedRun(_message.Message):
    __slots__ = ("topic", "queue_id", "lease", "attempt", "invisible_until_ms", "run")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    lease: bytes
    attempt: int
    invisible_until_ms: int
    run: Run
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., lease: _Optional[bytes] = ..., attempt: _Optional[int] = ..., invisible_until_ms: _Optional[int] = ..., run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class Handle(_message.Message):
    __slots__ = ("lease", "queue_offset", "count")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    lease: bytes
    queue_offset: int
    count: int
    def __init__(self, lease: _Optional[bytes] = ..., queue_offset: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class AckRequest(_message.Message):
    __slots__ = ("group", "handles")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    group: str
    handles: _containers.RepeatedCompositeFieldContainer[Handle]
    def __init__(self, group: _Optional[str] = ..., handles: _Optional[_Iterable[_Union[Handle, _Mapping]]] = ...) -> None: ...

class NackRequest(_message.Message):
    __slots__ = ("group", "handles", "delay_ms", "reason")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    group: str
    handles: _containers.RepeatedCompositeFieldContainer[Handle]
    delay_ms: int
    reason: str
    def __init__(self, group: _Optional[str] = ..., handles: _Optional[_Iterable[_Union[Handle, _Mapping]]] = ..., delay_ms: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ChangeInvisibleRequest(_message.Message):
    __slots__ = ("group", "handles", "invisible_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_MS_FIELD_NUMBER: _ClassVar[int]
    group: str
    handles: _containers.RepeatedCompositeFieldContainer[Handle]
    invisible_ms: int
    def __init__(self, group: _Optional[str] = ..., handles: _Optional[_Iterable[_Union[Handle, _Mapping]]] = ..., invisible_ms: _Optional[int] = ...) -> None: ...

class HandleResponse(_message.Message):
    __slots__ = ("codes", "invisible_until_ms")
    CODES_FIELD_NUMBER: _ClassVar[int]
    INVISIBLE_UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    codes: _containers.RepeatedScalarFieldContainer[_status_pb2.Code]
    invisible_until_ms: int
    def __init__(self, codes: _Optional[_Iterable[_Union[_status_pb2.Code, str]]] = ..., invisible_until_ms: _Optional[int] = ...) -> None: ...
