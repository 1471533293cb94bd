from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEND_OK: _ClassVar[Code]
    OUTCOME_UNKNOWN: _ClassVar[Code]
    FLUSH_TIMEOUT: _ClassVar[Code]
    REPLICATION_TIMEOUT: _ClassVar[Code]
    NOT_LEADER: _ClassVar[Code]
    FLOW_CONTROL: _ClassVar[Code]
    DISK_FULL: _ClassVar[Code]
    NODE_STOPPED: _ClassVar[Code]
    REBALANCING: _ClassVar[Code]
    MESSAGES_DAMAGED: _ClassVar[Code]
    REBUILDING: _ClassVar[Code]
    ILLEGAL_REQUEST: _ClassVar[Code]
    ILLEGAL_TOPIC: _ClassVar[Code]
    ILLEGAL_GROUP: _ClassVar[Code]
    ILLEGAL_FILTER: _ClassVar[Code]
    ILLEGAL_OFFSET: _ClassVar[Code]
    ILLEGAL_SEQUENCE: _ClassVar[Code]
    ILLEGAL_CONFIG: _ClassVar[Code]
    ILLEGAL_MEMBERSHIP: _ClassVar[Code]
    ILLEGAL_DELAY: _ClassVar[Code]
    ILLEGAL_HANDLE: _ClassVar[Code]
    MALFORMED_BATCH: _ClassVar[Code]
    MESSAGE_TOO_LARGE: _ClassVar[Code]
    PERMISSION_DENIED: _ClassVar[Code]
    UNAUTHENTICATED: _ClassVar[Code]
    ILLEGAL_POLICY: _ClassVar[Code]
    QUOTA_EXCEEDED: _ClassVar[Code]
    TOPIC_NOT_FOUND: _ClassVar[Code]
    QUEUE_NOT_FOUND: _ClassVar[Code]
    GROUP_NOT_FOUND: _ClassVar[Code]
    MESSAGE_NOT_FOUND: _ClassVar[Code]
    TRANSACTION_NOT_FOUND: _ClassVar[Code]
    USER_NOT_FOUND: _ClassVar[Code]
    TOPIC_EXISTS: _ClassVar[Code]
    GROUP_NOT_EMPTY: _ClassVar[Code]
    SUBSCRIPTION_MISMATCH: _ClassVar[Code]
    UNKNOWN_MEMBER: _ClassVar[Code]
    NOT_ASSIGNED: _ClassVar[Code]
    VERSION_MISMATCH: _ClassVar[Code]
    INTERNAL: _ClassVar[Code]
    STORAGE_FAILED: _ClassVar[Code]
    QUEUE_DAMAGED: _ClassVar[Code]
    LOG_DAMAGED: _ClassVar[Code]
SEND_OK: Code
OUTCOME_UNKNOWN: Code
FLUSH_TIMEOUT: Code
REPLICATION_TIMEOUT: Code
NOT_LEADER: Code
FLOW_CONTROL: Code
DISK_FULL: Code
NODE_STOPPED: Code
REBALANCING: Code
MESSAGES_DAMAGED: Code
REBUILDING: Code
ILLEGAL_REQUEST: Code
ILLEGAL_TOPIC: Code
ILLEGAL_GROUP: Code
ILLEGAL_FILTER: Code
ILLEGAL_OFFSET: Code
ILLEGAL_SEQUENCE: Code
ILLEGAL_CONFIG: Code
ILLEGAL_MEMBERSHIP: Code
ILLEGAL_DELAY: Code
ILLEGAL_HANDLE: Code
MALFORMED_BATCH: Code
MESSAGE_TOO_LARGE: Code
PERMISSION_DENIED: Code
UNAUTHENTICATED: Code
ILLEGAL_POLICY: Code
QUOTA_EXCEEDED: Code
TOPIC_NOT_FOUND: Code
QUEUE_NOT_FOUND: Code
GROUP_NOT_FOUND: Code
MESSAGE_NOT_FOUND: Code
TRANSACTION_NOT_FOUND: Code
USER_NOT_FOUND: Code
TOPIC_EXISTS: Code
GROUP_NOT_EMPTY: Code
SUBSCRIPTION_MISMATCH: Code
UNKNOWN_MEMBER: Code
NOT_ASSIGNED: Code
VERSION_MISMATCH: Code
INTERNAL: Code
STORAGE_FAILED: Code
QUEUE_DAMAGED: Code
LOG_DAMAGED: Code

class Status(_message.Message):
    __slots__ = ("code", "text", "leader_address", "retry_after_ms")
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LEADER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    code: Code
    text: str
    leader_address: str
    retry_after_ms: int
    def __init__(self, code: _Optional[_Union[Code, str]] = ..., text: _Optional[str] = ..., leader_address: _Optional[str] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...
