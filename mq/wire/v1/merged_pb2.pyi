from mq.wire.v1 import message_pb2 as _message_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MergedBatch(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: MergedMessage
    def __init__(self, messages: _Optional[_Union[MergedMessage, _Mapping]] = ...) -> None: ...

class MergedMessage(_message.Message):
    __slots__ = ("body", "tags", "keys", "properties", "ordering_key", "born_at_ms", "compression", "origin", "priority", "rocketmq")
    class Property(_message.Message):
        __slots__ = ("name", "value")
        NAME_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        name: str
        value: str
        def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BODY_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    ORDERING_KEY_FIELD_NUMBER: _ClassVar[int]
    BORN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ROCKETMQ_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    tags: _containers.RepeatedScalarFieldContainer[str]
    keys: _containers.RepeatedScalarFieldContainer[str]
    properties: _containers.RepeatedCompositeFieldContainer[MergedMessage.Property]
    ordering_key: str
    born_at_ms: int
    compression: _message_pb2.Compression
    origin: _message_pb2.Origin
    priority: int
    rocketmq: _message_pb2.RocketMq
    def __init__(self, body: _Optional[bytes] = ..., tags: _Optional[_Iterable[str]] = ..., keys: _Optional[_Iterable[str]] = ..., properties: _Optional[_Iterable[_Union[MergedMessage.Property, _Mapping]]] = ..., ordering_key: _Optional[str] = ..., born_at_ms: _Optional[int] = ..., compression: _Optional[_Union[_message_pb2.Compression, str]] = ..., origin: _Optional[_Union[_message_pb2.Origin, _Mapping]] = ..., priority: _Optional[int] = ..., rocketmq: _Optional[_Union[_message_pb2.RocketMq, _Mapping]] = ...) -> None: ...
