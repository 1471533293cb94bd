from mq.wire.v1 import message_pb2 as _message_pb2
from mq.wire.v1 import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Resolution(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESOLUTION_UNKNOWN: _ClassVar[Resolution]
    RESOLUTION_COMMIT: _ClassVar[Resolution]
    RESOLUTION_ROLLBACK: _ClassVar[Resolution]
RESOLUTION_UNKNOWN: Resolution
RESOLUTION_COMMIT: Resolution
RESOLUTION_ROLLBACK: Resolution

class TransactRequest(_message.Message):
    __slots__ = ("request_id", "start", "half", "end", "checked", "more")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    HALF_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    CHECKED_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    start: TransactStart
    half: _message_pb2.Batch
    end: EndTransactionRequest
    checked: EndTransactionRequest
    more: _containers.RepeatedCompositeFieldContainer[TransactRequest]
    def __init__(self, request_id: _Optional[int] = ..., start: _Optional[_Union[TransactStart, _Mapping]] = ..., half: _Optional[_Union[_message_pb2.Batch, _Mapping]] = ..., end: _Optional[_Union[EndTransactionRequest, _Mapping]] = ..., checked: _Optional[_Union[EndTransactionRequest, _Mapping]] = ..., more: _Optional[_Iterable[_Union[TransactRequest, _Mapping]]] = ...) -> None: ...

class TransactStart(_message.Message):
    __slots__ = ("producer_group", "producer_id", "answers_checks", "reads_more")
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_CHECKS_FIELD_NUMBER: _ClassVar[int]
    READS_MORE_FIELD_NUMBER: _ClassVar[int]
    producer_group: str
    producer_id: str
    answers_checks: bool
    reads_more: bool
    def __init__(self, producer_group: _Optional[str] = ..., producer_id: _Optional[str] = ..., answers_checks: _Optional[bool] = ..., reads_more: _Optional[bool] = ...) -> None: ...

class EndTransactionRequest(_message.Message):
    __slots__ = ("transaction_id", "resolution")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    RESOLUTION_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    resolution: Resolution
    def __init__(self, transaction_id: _Optional[str] = ..., resolution: _Optional[_Union[Resolution, str]] = ...) -> None: ...

class EndTransactionResponse(_message.Message):
    __slots__ = ("queue_id", "queue_offset", "log_offset", "stored_at_ms")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    queue_offset: int
    log_offset: int
    stored_at_ms: int
    def __init__(self, queue_id: _Optional[int] = ..., queue_offset: _Optional[int] = ..., log_offset: _Optional[int] = ..., stored_at_ms: _Optional[int] = ...) -> None: ...

class TransactResponse(_message.Message):
    __slots__ = ("request_id", "started", "half", "ended", "failed", "check", "more")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    HALF_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    started: TransactStarted
    half: HalfStored
    ended: EndTransactionResponse
    failed: _status_pb2.Status
    check: CheckTransaction
    more: _containers.RepeatedCompositeFieldContainer[TransactResponse]
    def __init__(self, request_id: _Optional[int] = ..., started: _Optional[_Union[TransactStarted, _Mapping]] = ..., half: _Optional[_Union[HalfStored, _Mapping]] = ..., ended: _Optional[_Union[EndTransactionResponse, _Mapping]] = ..., failed: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., check: _Optional[_Union[CheckTransaction, _Mapping]] = ..., more: _Optional[_Iterable[_Union[TransactResponse, _Mapping]]] = ...) -> None: ...

class TransactStarted(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HalfStored(_message.Message):
    __slots__ = ("transaction_id", "stored_at_ms", "is_duplicate", "throttle_ms")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    IS_DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_MS_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    stored_at_ms: int
    is_duplicate: bool
    throttle_ms: int
    def __init__(self, transaction_id: _Optional[str] = ..., stored_at_ms: _Optional[int] = ..., is_duplicate: _Optional[bool] = ..., throttle_ms: _Optional[int] = ...) -> None: ...

class CheckTransaction(_message.Message):
    __slots__ = ("transaction_id", "topic", "queue_id", "stored_at_ms", "check", "messages")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    transaction_id: str
    topic: str
    queue_id: int
    stored_at_ms: int
    check: int
    messages: _containers.RepeatedCompositeFieldContainer[_message_pb2.Message]
    def __init__(self, transaction_id: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., stored_at_ms: _Optional[int] = ..., check: _Optional[int] = ..., messages: _Optional[_Iterable[_Union[_message_pb2.Message, _Mapping]]] = ...) -> None: ...
