from mq.wire.v1 import log_pb2 as _log_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CheckpointMembers(_message.Message):
    __slots__ = ("members", "restorations")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    RESTORATIONS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[_log_pb2.Member]
    restorations: _containers.RepeatedCompositeFieldContainer[_log_pb2.Restoration]
    def __init__(self, members: _Optional[_Iterable[_Union[_log_pb2.Member, _Mapping]]] = ..., restorations: _Optional[_Iterable[_Union[_log_pb2.Restoration, _Mapping]]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_version", "cluster", "broker_set", "node_id", "peer_id", "birth_crc", "client_address", "zone", "external_address", "last_index", "restorations")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_SET_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    BIRTH_CRC_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    RESTORATIONS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    cluster: str
    broker_set: str
    node_id: str
    peer_id: str
    birth_crc: int
    client_address: str
    zone: str
    external_address: str
    last_index: int
    restorations: _containers.RepeatedCompositeFieldContainer[_log_pb2.Restoration]
    def __init__(self, protocol_version: _Optional[int] = ..., cluster: _Optional[str] = ..., broker_set: _Optional[str] = ..., node_id: _Optional[str] = ..., peer_id: _Optional[str] = ..., birth_crc: _Optional[int] = ..., client_address: _Optional[str] = ..., zone: _Optional[str] = ..., external_address: _Optional[str] = ..., last_index: _Optional[int] = ..., restorations: _Optional[_Iterable[_Union[_log_pb2.Restoration, _Mapping]]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class PreVoteRequest(_message.Message):
    __slots__ = ("proposed_term", "last_index", "last_term")
    PROPOSED_TERM_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    proposed_term: int
    last_index: int
    last_term: int
    def __init__(self, proposed_term: _Optional[int] = ..., last_index: _Optional[int] = ..., last_term: _Optional[int] = ...) -> None: ...

class PreVoteResponse(_message.Message):
    __slots__ = ("proposed_term", "granted", "would_grant")
    PROPOSED_TERM_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    WOULD_GRANT_FIELD_NUMBER: _ClassVar[int]
    proposed_term: int
    granted: bool
    would_grant: bool
    def __init__(self, proposed_term: _Optional[int] = ..., granted: _Optional[bool] = ..., would_grant: _Optional[bool] = ...) -> None: ...

class VoteRequest(_message.Message):
    __slots__ = ("last_index", "last_term", "is_unanimous")
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    IS_UNANIMOUS_FIELD_NUMBER: _ClassVar[int]
    last_index: int
    last_term: int
    is_unanimous: bool
    def __init__(self, last_index: _Optional[int] = ..., last_term: _Optional[int] = ..., is_unanimous: _Optional[bool] = ...) -> None: ...

class VoteResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Append(_message.Message):
    __slots__ = ("prev_index", "prev_term", "commit_index")
    PREV_INDEX_FIELD_NUMBER: _ClassVar[int]
    PREV_TERM_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    prev_index: int
    prev_term: int
    commit_index: int
    def __init__(self, prev_index: _Optional[int] = ..., prev_term: _Optional[int] = ..., commit_index: _Optional[int] = ...) -> None: ...

class StartOver(_message.Message):
    __slots__ = ("first_index", "log_offset", "commit_index")
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    first_index: int
    log_offset: int
    commit_index: int
    def __init__(self, first_index: _Optional[int] = ..., log_offset: _Optional[int] = ..., commit_index: _Optional[int] = ...) -> None: ...

class AppendAnswer(_message.Message):
    __slots__ = ("next_index", "success", "must_catch_up")
    NEXT_INDEX_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    MUST_CATCH_UP_FIELD_NUMBER: _ClassVar[int]
    next_index: int
    success: bool
    must_catch_up: bool
    def __init__(self, next_index: _Optional[int] = ..., success: _Optional[bool] = ..., must_catch_up: _Optional[bool] = ...) -> None: ...

class TimeoutNow(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Roster(_message.Message):
    __slots__ = ("checkpoint_index", "members")
    CHECKPOINT_INDEX_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    checkpoint_index: int
    members: _containers.RepeatedCompositeFieldContainer[_log_pb2.Member]
    def __init__(self, checkpoint_index: _Optional[int] = ..., members: _Optional[_Iterable[_Union[_log_pb2.Member, _Mapping]]] = ...) -> None: ...

class RaftFrame(_message.Message):
    __slots__ = ("term", "hello", "refusal", "pre_vote_request", "pre_vote_response", "vote_request", "vote_response", "append", "start_over", "append_answer", "timeout_now", "roster")
    TERM_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    PRE_VOTE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    PRE_VOTE_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    VOTE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    VOTE_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    START_OVER_FIELD_NUMBER: _ClassVar[int]
    APPEND_ANSWER_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_NOW_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    term: int
    hello: Hello
    refusal: Refusal
    pre_vote_request: PreVoteRequest
    pre_vote_response: PreVoteResponse
    vote_request: VoteRequest
    vote_response: VoteResponse
    append: Append
    start_over: StartOver
    append_answer: AppendAnswer
    timeout_now: TimeoutNow
    roster: Roster
    def __init__(self, term: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., pre_vote_request: _Optional[_Union[PreVoteRequest, _Mapping]] = ..., pre_vote_response: _Optional[_Union[PreVoteResponse, _Mapping]] = ..., vote_request: _Optional[_Union[VoteRequest, _Mapping]] = ..., vote_response: _Optional[_Union[VoteResponse, _Mapping]] = ..., append: _Optional[_Union[Append, _Mapping]] = ..., start_over: _Optional[_Union[StartOver, _Mapping]] = ..., append_answer: _Optional[_Union[AppendAnswer, _Mapping]] = ..., timeout_now: _Optional[_Union[TimeoutNow, _Mapping]] = ..., roster: _Optional[_Union[Roster, _Mapping]] = ...) -> None: ...
