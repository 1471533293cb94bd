from mq.wire.v1 import consumer_pb2 as _consumer_pb2
from mq.wire.v1 import message_pb2 as _message_pb2
from mq.wire.v1 import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Ack(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACK_QUORUM: _ClassVar[Ack]
    ACK_LEADER: _ClassVar[Ack]
    ACK_NONE: _ClassVar[Ack]
ACK_QUORUM: Ack
ACK_LEADER: Ack
ACK_NONE: Ack

class SendRequest(_message.Message):
    __slots__ = ("topic", "queue_id", "ack", "producer_id", "sequence", "deliver_at_ms", "delay_ms", "delay_level", "messages")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_MS_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    DELAY_LEVEL_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    ack: Ack
    producer_id: str
    sequence: int
    deliver_at_ms: int
    delay_ms: int
    delay_level: int
    messages: _containers.RepeatedCompositeFieldContainer[_message_pb2.Message]
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., ack: _Optional[_Union[Ack, str]] = ..., producer_id: _Optional[str] = ..., sequence: _Optional[int] = ..., deliver_at_ms: _Optional[int] = ..., delay_ms: _Optional[int] = ..., delay_level: _Optional[int] = ..., messages: _Optional[_Iterable[_Union[_message_pb2.Message, _Mapping]]] = ...) -> None: ...

class SendResponse(_message.Message):
    __slots__ = ("queue_id", "queue_offset", "stored_at_ms", "is_duplicate", "message_ids", "deliver_at_ms", "throttle_ms")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    IS_DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_MS_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_MS_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    queue_offset: int
    stored_at_ms: int
    is_duplicate: bool
    message_ids: _containers.RepeatedScalarFieldContainer[str]
    deliver_at_ms: int
    throttle_ms: int
    def __init__(self, queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., stored_at_ms: _Optional[int] = ..., is_duplicate: _Optional[bool] = ..., message_ids: _Optional[_Iterable[str]] = ..., deliver_at_ms: _Optional[int] = ..., throttle_ms: _Optional[int] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("request_id", "ack", "batches")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    ack: Ack
    batches: _containers.RepeatedCompositeFieldContainer[_message_pb2.Batch]
    def __init__(self, request_id: _Optional[int] = ..., ack: _Optional[_Union[Ack, str]] = ..., batches: _Optional[_Iterable[_Union[_message_pb2.Batch, _Mapping]]] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("request_id", "results", "throttle_ms")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_MS_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    results: _containers.RepeatedCompositeFieldContainer[BatchResult]
    throttle_ms: int
    def __init__(self, request_id: _Optional[int] = ..., results: _Optional[_Iterable[_Union[BatchResult, _Mapping]]] = ..., throttle_ms: _Optional[int] = ...) -> None: ...

class BatchResult(_message.Message):
    __slots__ = ("code", "text", "queue_id", "queue_offset", "log_offset", "stored_at_ms", "is_duplicate", "leader_address", "retry_after_ms", "deliver_at_ms")
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    IS_DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    LEADER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_MS_FIELD_NUMBER: _ClassVar[int]
    code: _status_pb2.Code
    text: str
    queue_id: int
    queue_offset: int
    log_offset: int
    stored_at_ms: int
    is_duplicate: bool
    leader_address: str
    retry_after_ms: int
    deliver_at_ms: int
    def __init__(self, code: _Optional[_Union[_status_pb2.Code, str]] = ..., text: _Optional[str] = ..., queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., log_offset: _Optional[int] = ..., stored_at_ms: _Optional[int] = ..., is_duplicate: _Optional[bool] = ..., leader_address: _Optional[str] = ..., retry_after_ms: _Optional[int] = ..., deliver_at_ms: _Optional[int] = ...) -> None: ...

class RecallRequest(_message.Message):
    __slots__ = ("topic", "message_id", "deliver_at_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    message_id: str
    deliver_at_ms: int
    def __init__(self, topic: _Optional[str] = ..., message_id: _Optional[str] = ..., deliver_at_ms: _Optional[int] = ...) -> None: ...

class RecallResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AtomicRequest(_message.Message):
    __slots__ = ("batches", "group", "member_id", "positions", "handles", "starts", "dead_letters")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[_message_pb2.Batch]
    group: str
    member_id: str
    positions: _containers.RepeatedCompositeFieldContainer[_consumer_pb2.QueuePosition]
    handles: _containers.RepeatedCompositeFieldContainer[_consumer_pb2.Handle]
    starts: _containers.RepeatedCompositeFieldContainer[WorkStart]
    dead_letters: DeadLetterBatch
    def __init__(self, batches: _Optional[_Iterable[_Union[_message_pb2.Batch, _Mapping]]] = ..., group: _Optional[str] = ..., member_id: _Optional[str] = ..., positions: _Optional[_Iterable[_Union[_consumer_pb2.QueuePosition, _Mapping]]] = ..., handles: _Optional[_Iterable[_Union[_consumer_pb2.Handle, _Mapping]]] = ..., starts: _Optional[_Iterable[_Union[WorkStart, _Mapping]]] = ..., dead_letters: _Optional[_Union[DeadLetterBatch, _Mapping]] = ...) -> None: ...

class DeadLetterBatch(_message.Message):
    __slots__ = ("producer_id", "sequence", "messages")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    producer_id: str
    sequence: int
    messages: _containers.RepeatedCompositeFieldContainer[_consumer_pb2.FailedMessage]
    def __init__(self, producer_id: _Optional[str] = ..., sequence: _Optional[int] = ..., messages: _Optional[_Iterable[_Union[_consumer_pb2.FailedMessage, _Mapping]]] = ...) -> None: ...

class RawAtomicRequest(_message.Message):
    __slots__ = ("batches", "group", "member_id", "positions", "handles", "starts", "dead_letters")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedScalarFieldContainer[bytes]
    group: str
    member_id: str
    positions: _containers.RepeatedCompositeFieldContainer[_consumer_pb2.QueuePosition]
    handles: _containers.RepeatedCompositeFieldContainer[_consumer_pb2.Handle]
    starts: _containers.RepeatedCompositeFieldContainer[WorkStart]
    dead_letters: DeadLetterBatch
    def __init__(self, batches: _Optional[_Iterable[bytes]] = ..., group: _Optional[str] = ..., member_id: _Optional[str] = ..., positions: _Optional[_Iterable[_Union[_consumer_pb2.QueuePosition, _Mapping]]] = ..., handles: _Optional[_Iterable[_Union[_consumer_pb2.Handle, _Mapping]]] = ..., starts: _Optional[_Iterable[_Union[WorkStart, _Mapping]]] = ..., dead_letters: _Optional[_Union[DeadLetterBatch, _Mapping]] = ...) -> None: ...

class WorkStart(_message.Message):
    __slots__ = ("topic", "queue_id", "stood_at", "first")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    STOOD_AT_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue_id: int
    stood_at: int
    first: int
    def __init__(self, topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., stood_at: _Optional[int] = ..., first: _Optional[int] = ...) -> None: ...

class AtomicResponse(_message.Message):
    __slots__ = ("results", "throttle_ms")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_MS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[BatchResult]
    throttle_ms: int
    def __init__(self, results: _Optional[_Iterable[_Union[BatchResult, _Mapping]]] = ..., throttle_ms: _Optional[int] = ...) -> None: ...
