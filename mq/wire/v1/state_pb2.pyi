from mq.wire.v1 import cluster_pb2 as _cluster_pb2
from mq.wire.v1 import consumer_pb2 as _consumer_pb2
from mq.wire.v1 import security_pb2 as _security_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Command(_message.Message):
    __slots__ = ("put_topic", "drop_topic", "commit_positions", "drop_group", "lock_queues", "deliver_scheduled", "recall_scheduled", "carry_scheduled", "change_transactions", "change_leases", "put_group", "trim_queues", "many", "put_broker_set", "drop_broker_set", "change_access", "settle_letters", "provenance")
    PUT_TOPIC_FIELD_NUMBER: _ClassVar[int]
    DROP_TOPIC_FIELD_NUMBER: _ClassVar[int]
    COMMIT_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    DROP_GROUP_FIELD_NUMBER: _ClassVar[int]
    LOCK_QUEUES_FIELD_NUMBER: _ClassVar[int]
    DELIVER_SCHEDULED_FIELD_NUMBER: _ClassVar[int]
    RECALL_SCHEDULED_FIELD_NUMBER: _ClassVar[int]
    CARRY_SCHEDULED_FIELD_NUMBER: _ClassVar[int]
    CHANGE_TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    CHANGE_LEASES_FIELD_NUMBER: _ClassVar[int]
    PUT_GROUP_FIELD_NUMBER: _ClassVar[int]
    TRIM_QUEUES_FIELD_NUMBER: _ClassVar[int]
    MANY_FIELD_NUMBER: _ClassVar[int]
    PUT_BROKER_SET_FIELD_NUMBER: _ClassVar[int]
    DROP_BROKER_SET_FIELD_NUMBER: _ClassVar[int]
    CHANGE_ACCESS_FIELD_NUMBER: _ClassVar[int]
    SETTLE_LETTERS_FIELD_NUMBER: _ClassVar[int]
    PROVENANCE_FIELD_NUMBER: _ClassVar[int]
    put_topic: PutTopic
    drop_topic: DropTopic
    commit_positions: CommitPositions
    drop_group: DropGroup
    lock_queues: LockQueues
    deliver_scheduled: DeliverScheduled
    recall_scheduled: RecallScheduled
    carry_scheduled: CarryScheduled
    change_transactions: ChangeTransactions
    change_leases: ChangeLeases
    put_group: PutGroup
    trim_queues: TrimQueues
    many: Many
    put_broker_set: PutBrokerSet
    drop_broker_set: DropBrokerSet
    change_access: ChangeAccess
    settle_letters: SettleLetters
    provenance: Provenance
    def __init__(self, put_topic: _Optional[_Union[PutTopic, _Mapping]] = ..., drop_topic: _Optional[_Union[DropTopic, _Mapping]] = ..., commit_positions: _Optional[_Union[CommitPositions, _Mapping]] = ..., drop_group: _Optional[_Union[DropGroup, _Mapping]] = ..., lock_queues: _Optional[_Union[LockQueues, _Mapping]] = ..., deliver_scheduled: _Optional[_Union[DeliverScheduled, _Mapping]] = ..., recall_scheduled: _Optional[_Union[RecallScheduled, _Mapping]] = ..., carry_scheduled: _Optional[_Union[CarryScheduled, _Mapping]] = ..., change_transactions: _Optional[_Union[ChangeTransactions, _Mapping]] = ..., change_leases: _Optional[_Union[ChangeLeases, _Mapping]] = ..., put_group: _Optional[_Union[PutGroup, _Mapping]] = ..., trim_queues: _Optional[_Union[TrimQueues, _Mapping]] = ..., many: _Optional[_Union[Many, _Mapping]] = ..., put_broker_set: _Optional[_Union[PutBrokerSet, _Mapping]] = ..., drop_broker_set: _Optional[_Union[DropBrokerSet, _Mapping]] = ..., change_access: _Optional[_Union[ChangeAccess, _Mapping]] = ..., settle_letters: _Optional[_Union[SettleLetters, _Mapping]] = ..., provenance: _Optional[_Union[Provenance, _Mapping]] = ...) -> None: ...

class Provenance(_message.Message):
    __slots__ = ("actors", "senders")
    ACTORS_FIELD_NUMBER: _ClassVar[int]
    SENDERS_FIELD_NUMBER: _ClassVar[int]
    actors: _containers.RepeatedCompositeFieldContainer[Actor]
    senders: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, actors: _Optional[_Iterable[_Union[Actor, _Mapping]]] = ..., senders: _Optional[_Iterable[int]] = ...) -> None: ...

class Actor(_message.Message):
    __slots__ = ("number", "user", "address", "producer_id", "group", "member_id", "filters")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    number: int
    user: str
    address: str
    producer_id: str
    group: str
    member_id: str
    filters: _containers.RepeatedCompositeFieldContainer[TopicFilter]
    def __init__(self, number: _Optional[int] = ..., user: _Optional[str] = ..., address: _Optional[str] = ..., producer_id: _Optional[str] = ..., group: _Optional[str] = ..., member_id: _Optional[str] = ..., filters: _Optional[_Iterable[_Union[TopicFilter, _Mapping]]] = ...) -> None: ...

class TopicFilter(_message.Message):
    __slots__ = ("topic", "filter")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    filter: str
    def __init__(self, topic: _Optional[str] = ..., filter: _Optional[str] = ...) -> None: ...

class Many(_message.Message):
    __slots__ = ("commands",)
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    commands: _containers.RepeatedCompositeFieldContainer[Command]
    def __init__(self, commands: _Optional[_Iterable[_Union[Command, _Mapping]]] = ...) -> None: ...

class PutTopic(_message.Message):
    __slots__ = ("topic", "type", "write_queues", "read_queues", "is_readable", "is_writable", "priorities", "owner")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUES_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUES_FIELD_NUMBER: _ClassVar[int]
    IS_READABLE_FIELD_NUMBER: _ClassVar[int]
    IS_WRITABLE_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    type: _cluster_pb2.TopicType
    write_queues: int
    read_queues: int
    is_readable: bool
    is_writable: bool
    priorities: int
    owner: str
    def __init__(self, topic: _Optional[str] = ..., type: _Optional[_Union[_cluster_pb2.TopicType, str]] = ..., write_queues: _Optional[int] = ..., read_queues: _Optional[int] = ..., is_readable: _Optional[bool] = ..., is_writable: _Optional[bool] = ..., priorities: _Optional[int] = ..., owner: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("group", "positions", "actors")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    ACTORS_FIELD_NUMBER: _ClassVar[int]
    group: str
    positions: _containers.RepeatedCompositeFieldContainer[_consumer_pb2.QueuePosition]
    actors: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, group: _Optional[str] = ..., positions: _Optional[_Iterable[_Union[_consumer_pb2.QueuePosition, _Mapping]]] = ..., actors: _Optional[_Iterable[int]] = ...) -> None: ...

class DropGroup(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class PutBrokerSet(_message.Message):
    __slots__ = ("broker_set",)
    BROKER_SET_FIELD_NUMBER: _ClassVar[int]
    broker_set: _cluster_pb2.PeerSet
    def __init__(self, broker_set: _Optional[_Union[_cluster_pb2.PeerSet, _Mapping]] = ...) -> None: ...

class DropBrokerSet(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ChangeAccess(_message.Message):
    __slots__ = ("changes",)
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[_security_pb2.AccessChange]
    def __init__(self, changes: _Optional[_Iterable[_Union[_security_pb2.AccessChange, _Mapping]]] = ...) -> None: ...

class PutGroup(_message.Message):
    __slots__ = ("group", "retries_max", "owner", "is_ordered")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RETRIES_MAX_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    IS_ORDERED_FIELD_NUMBER: _ClassVar[int]
    group: str
    retries_max: int
    owner: str
    is_ordered: bool
    def __init__(self, group: _Optional[str] = ..., retries_max: _Optional[int] = ..., owner: _Optional[str] = ..., is_ordered: _Optional[bool] = ...) -> None: ...

class TrimQueues(_message.Message):
    __slots__ = ("starts",)
    STARTS_FIELD_NUMBER: _ClassVar[int]
    starts: _containers.RepeatedCompositeFieldContainer[_consumer_pb2.QueuePosition]
    def __init__(self, starts: _Optional[_Iterable[_Union[_consumer_pb2.QueuePosition, _Mapping]]] = ...) -> None: ...

class SettleLetters(_message.Message):
    __slots__ = ("group", "resent", "purged", "start")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RESENT_FIELD_NUMBER: _ClassVar[int]
    PURGED_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    group: str
    resent: _containers.RepeatedScalarFieldContainer[int]
    purged: _containers.RepeatedScalarFieldContainer[int]
    start: int
    def __init__(self, group: _Optional[str] = ..., resent: _Optional[_Iterable[int]] = ..., purged: _Optional[_Iterable[int]] = ..., start: _Optional[int] = ...) -> None: ...

class LettersState(_message.Message):
    __slots__ = ("group", "resent", "purged")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RESENT_FIELD_NUMBER: _ClassVar[int]
    PURGED_FIELD_NUMBER: _ClassVar[int]
    group: str
    resent: _containers.RepeatedScalarFieldContainer[int]
    purged: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, group: _Optional[str] = ..., resent: _Optional[_Iterable[int]] = ..., purged: _Optional[_Iterable[int]] = ...) -> None: ...

class DeliverScheduled(_message.Message):
    __slots__ = ("lanes", "sources")
    LANES_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    lanes: _containers.RepeatedCompositeFieldContainer[LaneProgress]
    sources: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lanes: _Optional[_Iterable[_Union[LaneProgress, _Mapping]]] = ..., sources: _Optional[_Iterable[int]] = ...) -> None: ...

class LaneProgress(_message.Message):
    __slots__ = ("lane", "due_ms", "log_offset", "batches", "messages")
    LANE_FIELD_NUMBER: _ClassVar[int]
    DUE_MS_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    lane: int
    due_ms: int
    log_offset: int
    batches: int
    messages: int
    def __init__(self, lane: _Optional[int] = ..., due_ms: _Optional[int] = ..., log_offset: _Optional[int] = ..., batches: _Optional[int] = ..., messages: _Optional[int] = ...) -> None: ...

class RecallScheduled(_message.Message):
    __slots__ = ("lane", "due_ms", "log_offset", "message_log_offset", "topic")
    LANE_FIELD_NUMBER: _ClassVar[int]
    DUE_MS_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    lane: int
    due_ms: int
    log_offset: int
    message_log_offset: int
    topic: str
    def __init__(self, lane: _Optional[int] = ..., due_ms: _Optional[int] = ..., log_offset: _Optional[int] = ..., message_log_offset: _Optional[int] = ..., topic: _Optional[str] = ...) -> None: ...

class CarryScheduled(_message.Message):
    __slots__ = ("lanes",)
    LANES_FIELD_NUMBER: _ClassVar[int]
    lanes: _containers.RepeatedCompositeFieldContainer[LaneCarried]
    def __init__(self, lanes: _Optional[_Iterable[_Union[LaneCarried, _Mapping]]] = ...) -> None: ...

class LaneCarried(_message.Message):
    __slots__ = ("lane", "below_log_offset", "batches", "messages")
    LANE_FIELD_NUMBER: _ClassVar[int]
    BELOW_LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    lane: int
    below_log_offset: int
    batches: int
    messages: int
    def __init__(self, lane: _Optional[int] = ..., below_log_offset: _Optional[int] = ..., batches: _Optional[int] = ..., messages: _Optional[int] = ...) -> None: ...

class LaneState(_message.Message):
    __slots__ = ("lane", "batches", "messages", "due_ms", "log_offset", "below_log_offset", "recalled")
    LANE_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    DUE_MS_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BELOW_LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECALLED_FIELD_NUMBER: _ClassVar[int]
    lane: int
    batches: int
    messages: int
    due_ms: int
    log_offset: int
    below_log_offset: int
    recalled: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lane: _Optional[int] = ..., batches: _Optional[int] = ..., messages: _Optional[int] = ..., due_ms: _Optional[int] = ..., log_offset: _Optional[int] = ..., below_log_offset: _Optional[int] = ..., recalled: _Optional[_Iterable[int]] = ...) -> None: ...

class ChangeTransactions(_message.Message):
    __slots__ = ("committed", "rolled_back", "given_up", "checked")
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    CHECKED_FIELD_NUMBER: _ClassVar[int]
    committed: _containers.RepeatedScalarFieldContainer[int]
    rolled_back: _containers.RepeatedScalarFieldContainer[int]
    given_up: _containers.RepeatedScalarFieldContainer[int]
    checked: _containers.RepeatedCompositeFieldContainer[TransactionChecked]
    def __init__(self, committed: _Optional[_Iterable[int]] = ..., rolled_back: _Optional[_Iterable[int]] = ..., given_up: _Optional[_Iterable[int]] = ..., checked: _Optional[_Iterable[_Union[TransactionChecked, _Mapping]]] = ...) -> None: ...

class TransactionChecked(_message.Message):
    __slots__ = ("id", "next_check_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    NEXT_CHECK_MS_FIELD_NUMBER: _ClassVar[int]
    id: int
    next_check_ms: int
    def __init__(self, id: _Optional[int] = ..., next_check_ms: _Optional[int] = ...) -> None: ...

class TransactionState(_message.Message):
    __slots__ = ("id", "log_offset", "size", "messages", "stored_at_ms", "producer_group", "checks", "next_check_ms", "check_interval_ms", "checks_max", "topic")
    ID_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_GROUP_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CHECK_MS_FIELD_NUMBER: _ClassVar[int]
    CHECK_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    CHECKS_MAX_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    id: int
    log_offset: int
    size: int
    messages: int
    stored_at_ms: int
    producer_group: str
    checks: int
    next_check_ms: int
    check_interval_ms: int
    checks_max: int
    topic: str
    def __init__(self, id: _Optional[int] = ..., log_offset: _Optional[int] = ..., size: _Optional[int] = ..., messages: _Optional[int] = ..., stored_at_ms: _Optional[int] = ..., producer_group: _Optional[str] = ..., checks: _Optional[int] = ..., next_check_ms: _Optional[int] = ..., check_interval_ms: _Optional[int] = ..., checks_max: _Optional[int] = ..., topic: _Optional[str] = ...) -> None: ...

class ChangeLeases(_message.Message):
    __slots__ = ("queues",)
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueLeases]
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueLeases, _Mapping]]] = ...) -> None: ...

class QueueLeases(_message.Message):
    __slots__ = ("group", "topic", "queue_id", "changes", "next")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    queue_id: int
    changes: _containers.RepeatedCompositeFieldContainer[LeaseChange]
    next: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., changes: _Optional[_Iterable[_Union[LeaseChange, _Mapping]]] = ..., next: _Optional[int] = ...) -> None: ...

class LeaseChange(_message.Message):
    __slots__ = ("start", "end", "is_done", "lease", "visible_at_ms", "attempts", "actors", "reason")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    IS_DONE_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    VISIBLE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    ACTORS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    is_done: bool
    lease: int
    visible_at_ms: int
    attempts: int
    actors: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., is_done: _Optional[bool] = ..., lease: _Optional[int] = ..., visible_at_ms: _Optional[int] = ..., attempts: _Optional[int] = ..., actors: _Optional[_Iterable[int]] = ..., reason: _Optional[str] = ...) -> None: ...

class LeaseState(_message.Message):
    __slots__ = ("group", "topic", "queue_id", "next", "ranges")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    queue_id: int
    next: int
    ranges: bytes
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., queue_id: _Optional[int] = ..., next: _Optional[int] = ..., ranges: _Optional[bytes] = ...) -> None: ...

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
    __slots__ = ("topics", "groups", "producers", "lanes", "transactions", "leases", "transaction_totals", "broker_sets", "access", "counts_stored_bytes", "begins_counting", "letters")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_TOTALS_FIELD_NUMBER: _ClassVar[int]
    BROKER_SETS_FIELD_NUMBER: _ClassVar[int]
    ACCESS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    BEGINS_COUNTING_FIELD_NUMBER: _ClassVar[int]
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicState]
    groups: _containers.RepeatedCompositeFieldContainer[GroupState]
    producers: _containers.RepeatedCompositeFieldContainer[ProducerState]
    lanes: _containers.RepeatedCompositeFieldContainer[LaneState]
    transactions: _containers.RepeatedCompositeFieldContainer[TransactionState]
    leases: _containers.RepeatedCompositeFieldContainer[LeaseState]
    transaction_totals: TransactionTotals
    broker_sets: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.PeerSet]
    access: _security_pb2.AccessState
    counts_stored_bytes: bool
    begins_counting: bool
    letters: _containers.RepeatedCompositeFieldContainer[LettersState]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicState, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[GroupState, _Mapping]]] = ..., producers: _Optional[_Iterable[_Union[ProducerState, _Mapping]]] = ..., lanes: _Optional[_Iterable[_Union[LaneState, _Mapping]]] = ..., transactions: _Optional[_Iterable[_Union[TransactionState, _Mapping]]] = ..., leases: _Optional[_Iterable[_Union[LeaseState, _Mapping]]] = ..., transaction_totals: _Optional[_Union[TransactionTotals, _Mapping]] = ..., broker_sets: _Optional[_Iterable[_Union[_cluster_pb2.PeerSet, _Mapping]]] = ..., access: _Optional[_Union[_security_pb2.AccessState, _Mapping]] = ..., counts_stored_bytes: _Optional[bool] = ..., begins_counting: _Optional[bool] = ..., letters: _Optional[_Iterable[_Union[LettersState, _Mapping]]] = ...) -> None: ...

class TransactionTotals(_message.Message):
    __slots__ = ("committed", "rolled_back", "given_up", "ended")
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    committed: int
    rolled_back: int
    given_up: int
    ended: bytes
    def __init__(self, committed: _Optional[int] = ..., rolled_back: _Optional[int] = ..., given_up: _Optional[int] = ..., ended: _Optional[bytes] = ...) -> None: ...

class TopicState(_message.Message):
    __slots__ = ("topic", "created_at_ms", "created_at_log_offset", "stored_bytes", "delayed_messages")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DELAYED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    topic: PutTopic
    created_at_ms: int
    created_at_log_offset: int
    stored_bytes: int
    delayed_messages: int
    def __init__(self, topic: _Optional[_Union[PutTopic, _Mapping]] = ..., created_at_ms: _Optional[int] = ..., created_at_log_offset: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., delayed_messages: _Optional[int] = ...) -> None: ...

class GroupState(_message.Message):
    __slots__ = ("group", "positions", "locks", "settings")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    LOCKS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    group: str
    positions: _containers.RepeatedCompositeFieldContainer[_consumer_pb2.QueuePosition]
    locks: _containers.RepeatedCompositeFieldContainer[QueueLock]
    settings: PutGroup
    def __init__(self, group: _Optional[str] = ..., positions: _Optional[_Iterable[_Union[_consumer_pb2.QueuePosition, _Mapping]]] = ..., locks: _Optional[_Iterable[_Union[QueueLock, _Mapping]]] = ..., settings: _Optional[_Union[PutGroup, _Mapping]] = ...) -> None: ...

class ProducerState(_message.Message):
    __slots__ = ("producer_id", "stored", "newest")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    producer_id: str
    stored: _containers.RepeatedScalarFieldContainer[int]
    newest: bytes
    def __init__(self, producer_id: _Optional[str] = ..., stored: _Optional[_Iterable[int]] = ..., newest: _Optional[bytes] = ...) -> None: ...
