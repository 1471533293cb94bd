from mq.wire.v1 import message_pb2 as _message_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MessagesEntry(_message.Message):
    __slots__ = ("batches", "command")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[_message_pb2.Batch]
    command: bytes
    def __init__(self, batches: _Optional[_Iterable[_Union[_message_pb2.Batch, _Mapping]]] = ..., command: _Optional[bytes] = ...) -> None: ...

class TopicQueues(_message.Message):
    __slots__ = ("topic", "queue_ids", "starts", "ends", "tail_crcs")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_IDS_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    TAIL_CRCS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_ids: _containers.RepeatedScalarFieldContainer[int]
    starts: _containers.RepeatedScalarFieldContainer[int]
    ends: _containers.RepeatedScalarFieldContainer[int]
    tail_crcs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., queue_ids: _Optional[_Iterable[int]] = ..., starts: _Optional[_Iterable[int]] = ..., ends: _Optional[_Iterable[int]] = ..., tail_crcs: _Optional[_Iterable[int]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("node_id", "address")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    address: str
    def __init__(self, node_id: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("topics", "broker_state", "members", "restorations")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    BROKER_STATE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    RESTORATIONS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicQueues]
    broker_state: bytes
    members: _containers.RepeatedCompositeFieldContainer[Member]
    restorations: _containers.RepeatedCompositeFieldContainer[Restoration]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicQueues, _Mapping]]] = ..., broker_state: _Optional[bytes] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., restorations: _Optional[_Iterable[_Union[Restoration, _Mapping]]] = ...) -> None: ...

class Restoration(_message.Message):
    __slots__ = ("raft_index", "lineage")
    RAFT_INDEX_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    raft_index: int
    lineage: int
    def __init__(self, raft_index: _Optional[int] = ..., lineage: _Optional[int] = ...) -> None: ...

class IndexState(_message.Message):
    __slots__ = ("full_files", "newest_file", "newest_items", "newest_first_ms", "newest_tail_crc")
    FULL_FILES_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FILE_FIELD_NUMBER: _ClassVar[int]
    NEWEST_ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIRST_MS_FIELD_NUMBER: _ClassVar[int]
    NEWEST_TAIL_CRC_FIELD_NUMBER: _ClassVar[int]
    full_files: _containers.RepeatedScalarFieldContainer[str]
    newest_file: str
    newest_items: int
    newest_first_ms: int
    newest_tail_crc: int
    def __init__(self, full_files: _Optional[_Iterable[str]] = ..., newest_file: _Optional[str] = ..., newest_items: _Optional[int] = ..., newest_first_ms: _Optional[int] = ..., newest_tail_crc: _Optional[int] = ...) -> None: ...

class DerivedCheckpoint(_message.Message):
    __slots__ = ("raft_index", "term", "topics", "index", "broker_state")
    RAFT_INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    BROKER_STATE_FIELD_NUMBER: _ClassVar[int]
    raft_index: int
    term: int
    topics: _containers.RepeatedCompositeFieldContainer[TopicQueues]
    index: IndexState
    broker_state: bytes
    def __init__(self, raft_index: _Optional[int] = ..., term: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[TopicQueues, _Mapping]]] = ..., index: _Optional[_Union[IndexState, _Mapping]] = ..., broker_state: _Optional[bytes] = ...) -> None: ...
