from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TopicType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOPIC_NORMAL: _ClassVar[TopicType]
    TOPIC_ORDERED: _ClassVar[TopicType]
    TOPIC_DELAYED: _ClassVar[TopicType]
    TOPIC_TRANSACTIONAL: _ClassVar[TopicType]
TOPIC_NORMAL: TopicType
TOPIC_ORDERED: TopicType
TOPIC_DELAYED: TopicType
TOPIC_TRANSACTIONAL: TopicType

class RouteRequest(_message.Message):
    __slots__ = ("topics", "create_missing")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    CREATE_MISSING_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    create_missing: bool
    def __init__(self, topics: _Optional[_Iterable[str]] = ..., create_missing: _Optional[bool] = ...) -> None: ...

class RouteResponse(_message.Message):
    __slots__ = ("cluster", "broker_sets", "topics", "missing")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_SETS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_sets: _containers.RepeatedCompositeFieldContainer[BrokerSet]
    topics: _containers.RepeatedCompositeFieldContainer[TopicRoute]
    missing: _containers.RepeatedCompositeFieldContainer[MissingTopic]
    def __init__(self, cluster: _Optional[str] = ..., broker_sets: _Optional[_Iterable[_Union[BrokerSet, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[TopicRoute, _Mapping]]] = ..., missing: _Optional[_Iterable[_Union[MissingTopic, _Mapping]]] = ...) -> None: ...

class MissingTopic(_message.Message):
    __slots__ = ("topic", "similar")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SIMILAR_FIELD_NUMBER: _ClassVar[int]
    topic: str
    similar: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic: _Optional[str] = ..., similar: _Optional[_Iterable[str]] = ...) -> None: ...

class BrokerSet(_message.Message):
    __slots__ = ("name", "leader_id", "term", "nodes", "age_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    leader_id: str
    term: int
    nodes: _containers.RepeatedCompositeFieldContainer[NodeRoute]
    age_ms: int
    def __init__(self, name: _Optional[str] = ..., leader_id: _Optional[str] = ..., term: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[NodeRoute, _Mapping]]] = ..., age_ms: _Optional[int] = ...) -> None: ...

class NodeRoute(_message.Message):
    __slots__ = ("node_id", "address", "zone", "external_address")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    address: str
    zone: str
    external_address: str
    def __init__(self, node_id: _Optional[str] = ..., address: _Optional[str] = ..., zone: _Optional[str] = ..., external_address: _Optional[str] = ...) -> None: ...

class TopicRoute(_message.Message):
    __slots__ = ("topic", "type", "broker_set", "write_queues", "read_queues", "is_readable", "is_writable", "priorities")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    BROKER_SET_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUES_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUES_FIELD_NUMBER: _ClassVar[int]
    IS_READABLE_FIELD_NUMBER: _ClassVar[int]
    IS_WRITABLE_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    type: TopicType
    broker_set: str
    write_queues: int
    read_queues: int
    is_readable: bool
    is_writable: bool
    priorities: int
    def __init__(self, topic: _Optional[str] = ..., type: _Optional[_Union[TopicType, str]] = ..., broker_set: _Optional[str] = ..., write_queues: _Optional[int] = ..., read_queues: _Optional[int] = ..., is_readable: _Optional[bool] = ..., is_writable: _Optional[bool] = ..., priorities: _Optional[int] = ...) -> None: ...

class PeerSet(_message.Message):
    __slots__ = ("name", "addresses")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    name: str
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class GreetRequest(_message.Message):
    __slots__ = ("cluster", "sender", "others", "topics_version")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_VERSION_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    sender: PeerSet
    others: _containers.RepeatedCompositeFieldContainer[PeerSet]
    topics_version: int
    def __init__(self, cluster: _Optional[str] = ..., sender: _Optional[_Union[PeerSet, _Mapping]] = ..., others: _Optional[_Iterable[_Union[PeerSet, _Mapping]]] = ..., topics_version: _Optional[int] = ...) -> None: ...

class GreetResponse(_message.Message):
    __slots__ = ("broker_set", "others", "topics_version", "topics", "access_version", "access_digest")
    BROKER_SET_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    ACCESS_VERSION_FIELD_NUMBER: _ClassVar[int]
    ACCESS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    broker_set: BrokerSet
    others: _containers.RepeatedCompositeFieldContainer[PeerSet]
    topics_version: int
    topics: _containers.RepeatedCompositeFieldContainer[TopicRoute]
    access_version: int
    access_digest: bytes
    def __init__(self, broker_set: _Optional[_Union[BrokerSet, _Mapping]] = ..., others: _Optional[_Iterable[_Union[PeerSet, _Mapping]]] = ..., topics_version: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[TopicRoute, _Mapping]]] = ..., access_version: _Optional[int] = ..., access_digest: _Optional[bytes] = ...) -> None: ...
