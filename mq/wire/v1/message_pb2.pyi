from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Compression(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMPRESSION_NONE: _ClassVar[Compression]
    COMPRESSION_LZ4: _ClassVar[Compression]
COMPRESSION_NONE: Compression
COMPRESSION_LZ4: Compression

class Message(_message.Message):
    __slots__ = ("body", "tag", "keys", "properties", "ordering_key", "born_at_ms", "compression", "origin", "priority", "rocketmq")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BODY_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    ORDERING_KEY_FIELD_NUMBER: _ClassVar[int]
    BORN_AT_MS_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ROCKETMQ_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    tag: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    properties: _containers.ScalarMap[str, str]
    ordering_key: str
    born_at_ms: int
    compression: Compression
    origin: Origin
    priority: int
    rocketmq: RocketMq
    def __init__(self, body: _Optional[bytes] = ..., tag: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ..., properties: _Optional[_Mapping[str, str]] = ..., ordering_key: _Optional[str] = ..., born_at_ms: _Optional[int] = ..., compression: _Optional[_Union[Compression, str]] = ..., origin: _Optional[_Union[Origin, _Mapping]] = ..., priority: _Optional[int] = ..., rocketmq: _Optional[_Union[RocketMq, _Mapping]] = ...) -> None: ...

class RocketMq(_message.Message):
    __slots__ = ("message_id", "born_host", "message_type", "deliver_at_ms", "trace_context")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    BORN_HOST_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_MS_FIELD_NUMBER: _ClassVar[int]
    TRACE_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    born_host: str
    message_type: int
    deliver_at_ms: int
    trace_context: str
    def __init__(self, message_id: _Optional[str] = ..., born_host: _Optional[str] = ..., message_type: _Optional[int] = ..., deliver_at_ms: _Optional[int] = ..., trace_context: _Optional[str] = ...) -> None: ...

class Origin(_message.Message):
    __slots__ = ("topic", "queue_id", "queue_offset", "message_id", "stored_at_ms", "attempts", "reason")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    queue_offset: int
    message_id: str
    stored_at_ms: int
    attempts: int
    reason: str
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., message_id: _Optional[str] = ..., stored_at_ms: _Optional[int] = ..., attempts: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("topic", "queue_id", "producer_id", "sequence", "tag_hashes", "frame_sizes", "key_hashes", "key_counts", "deliver_at_ms", "delay_ms", "half", "origin_log_offset", "messages")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TAG_HASHES_FIELD_NUMBER: _ClassVar[int]
    FRAME_SIZES_FIELD_NUMBER: _ClassVar[int]
    KEY_HASHES_FIELD_NUMBER: _ClassVar[int]
    KEY_COUNTS_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    HALF_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    producer_id: str
    sequence: int
    tag_hashes: _containers.RepeatedScalarFieldContainer[int]
    frame_sizes: _containers.RepeatedScalarFieldContainer[int]
    key_hashes: _containers.RepeatedScalarFieldContainer[int]
    key_counts: _containers.RepeatedScalarFieldContainer[int]
    deliver_at_ms: int
    delay_ms: int
    half: Half
    origin_log_offset: int
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., producer_id: _Optional[str] = ..., sequence: _Optional[int] = ..., tag_hashes: _Optional[_Iterable[int]] = ..., frame_sizes: _Optional[_Iterable[int]] = ..., key_hashes: _Optional[_Iterable[int]] = ..., key_counts: _Optional[_Iterable[int]] = ..., deliver_at_ms: _Optional[int] = ..., delay_ms: _Optional[int] = ..., half: _Optional[_Union[Half, _Mapping]] = ..., origin_log_offset: _Optional[int] = ..., messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ...) -> None: ...

class Half(_message.Message):
    __slots__ = ("producer_group", "first_check_ms", "check_interval_ms", "checks_max")
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    FIRST_CHECK_MS_FIELD_NUMBER: _ClassVar[int]
    CHECK_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    CHECKS_MAX_FIELD_NUMBER: _ClassVar[int]
    producer_group: str
    first_check_ms: int
    check_interval_ms: int
    checks_max: int
    def __init__(self, producer_group: _Optional[str] = ..., first_check_ms: _Optional[int] = ..., check_interval_ms: _Optional[int] = ..., checks_max: _Optional[int] = ...) -> None: ...

class RawBatch(_message.Message):
    __slots__ = ("topic", "queue_id", "producer_id", "sequence", "tag_hashes", "frame_sizes", "key_hashes", "key_counts", "deliver_at_ms", "delay_ms", "half", "origin_log_offset", "messages")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TAG_HASHES_FIELD_NUMBER: _ClassVar[int]
    FRAME_SIZES_FIELD_NUMBER: _ClassVar[int]
    KEY_HASHES_FIELD_NUMBER: _ClassVar[int]
    KEY_COUNTS_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    HALF_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    producer_id: str
    sequence: int
    tag_hashes: bytes
    frame_sizes: bytes
    key_hashes: bytes
    key_counts: bytes
    deliver_at_ms: int
    delay_ms: int
    half: bytes
    origin_log_offset: int
    messages: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., producer_id: _Optional[str] = ..., sequence: _Optional[int] = ..., tag_hashes: _Optional[bytes] = ..., frame_sizes: _Optional[bytes] = ..., key_hashes: _Optional[bytes] = ..., key_counts: _Optional[bytes] = ..., deliver_at_ms: _Optional[int] = ..., delay_ms: _Optional[int] = ..., half: _Optional[bytes] = ..., origin_log_offset: _Optional[int] = ..., messages: _Optional[_Iterable[bytes]] = ...) -> None: ...
