from mq.wire.v1 import cluster_pb2 as _cluster_pb2
from mq.wire.v1 import consumer_pb2 as _consumer_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Command(_message.Message):
    __slots__ = ("put_topic", "drop_topic", "commit_positions", "drop_group", "lock_queues")
    PUT_TOPIC_FIELD_NUMBER: _ClassVar[int]
    DROP_TOPIC_FIELD_NUMBER: _ClassVar[int]
    COMMIT_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    DROP_GROUP_FIELD_NUMBER: _ClassVar[int]
    LOCK_QUEUES_FIELD_NUMBER: _ClassVar[int]
    put_topic: PutTopic
    drop_topic: DropTopic
    commit_positions: CommitPositions
    drop_group: DropGroup
    lock_queues: LockQueues
    def __init__(self, put_topic: _Optional[_Union[PutTopic, _Mapping]] = ..., drop_topic: _Optional[_Union[DropTopic, _Mapping]] = ..., commit_positions: _Optional[_Union[CommitPositions, _Mapping]] = ..., drop_group: _Optional[_Union[DropGroup, _Mapping]] = ..., lock_queues: _Optional[_Union[LockQueues, _Mapping]] = ...) -> None: ...

class PutTopic(_message.Message):
    __slots__ = ("topic", "type", "write_queues", "read_queues", "is_readable", "is_writable")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUES_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUES_FIELD_NUMBER: _ClassVar[int]
    IS_READABLE_FIELD_NUMBER: _ClassVar[int]
    IS_WRITABLE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    type: _cluster_pb2.TopicType
    write_queues: int
    read_queues: int
    is_readable: bool
    is_writable: bool
    def __init__(self, topic: _Optional[str] = ..., type: _Optional[_Union[_cluster_pb2.TopicType, str]] = ..., write_queues: _Optional[int] = ..., read_queues: _Optional[int] = ..., is_readable: _Optional[bool] = ..., is_writable: _Optional[bool] = ...) -> None: ...

class DropTopic(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class CommitPositions(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupPositions]
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupPositions, _Mapping]]] = ...) -> None: ...

class GroupPositions(_message.Message):
    __slots__ = ("group", "positions")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    group: str
    positions: _containers.RepeatedCompositeFieldContainer[_consumer_pb2.QueuePosition]
    def __init__(self, group: _Optional[str] = ..., positions: _Optional[_Iterable[_Union[_consumer_pb2.QueuePosition, _Mapping]]] = ...) -> None: ...

class DropGroup(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class LockQueues(_message.Message):
    __slots__ = ("group", "locks")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LOCKS_FIELD_NUMBER: _ClassVar[int]
    group: str
    locks: _containers.RepeatedCompositeFieldContainer[QueueLock]
    def __init__(self, group: _Optional[str] = ..., locks: _Optional[_Iterable[_Union[QueueLock, _Mapping]]] = ...) -> None: ...

class QueueLock(_message.Message):
    __slots__ = ("topic", "queue_id", "member_id")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    member_id: str
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., member_id: _Optional[str] = ...) -> None: ...

class BrokerState(_message.Message):
    __slots__ = ("topics", "groups", "producers")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicState]
    groups: _containers.RepeatedCompositeFieldContainer[GroupState]
    producers: _containers.RepeatedCompositeFieldContainer[ProducerState]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicState, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[GroupState, _Mapping]]] = ..., producers: _Optional[_Iterable[_Union[ProducerState, _Mapping]]] = ...) -> None: ...

class TopicState(_message.Message):
    __slots__ = ("topic", "created_at_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    topic: PutTopic
    created_at_ms: int
    def __init__(self, topic: _Optional[_Union[PutTopic, _Mapping]] = ..., created_at_ms: _Optional[int] = ...) -> None: ...

class GroupState(_message.Message):
    __slots__ = ("group", "positions", "locks")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    LOCKS_FIELD_NUMBER: _ClassVar[int]
    group: str
    positions: _containers.RepeatedCompositeFieldContainer[_consumer_pb2.QueuePosition]
    locks: _containers.RepeatedCompositeFieldContainer[QueueLock]
    def __init__(self, group: _Optional[str] = ..., positions: _Optional[_Iterable[_Union[_consumer_pb2.QueuePosition, _Mapping]]] = ..., locks: _Optional[_Iterable[_Union[QueueLock, _Mapping]]] = ...) -> None: ...

class ProducerState(_message.Message):
    __slots__ = ("producer_id", "stored", "newest")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    producer_id: str
    stored: _containers.RepeatedScalarFieldContainer[int]
    newest: bytes
    def __init__(self, producer_id: _Optional[str] = ..., stored: _Optional[_Iterable[int]] = ..., newest: _Optional[bytes] = ...) -> None: ...
