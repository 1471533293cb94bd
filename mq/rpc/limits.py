"""Limits on the elements of repeated fields in requests, checked before a request is parsed.

An empty element takes two bytes on the wire and fifty to a thousand as an object: counting parsed
elements would be too late, so `Reader` counts on the bytes. The count is exact and mostly free: a
request too short to hold too many elements is not looked at, nor is one in which the tags of its
fields occur too rarely. Only the rest is walked, field by field, up to the first element beyond a
limit.

`framing` counts while it reads `PublishRequest` and `TransactRequest`. Batches that a producer
prepared are columns, counted by their length. Plain ones are opened by the store: `accept_batch`
counts before that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from mq import names
from mq.broker.atomic_sends import BATCHES_MAX
from mq.broker.directory import SETS_MAX
from mq.broker.other_set import ADDRESSES_MAX
from mq.broker.retry.dead_letters import LIST_MAX
from mq.broker.retry.retrying import FAILED_MAX
from mq.broker.security.changes import CHANGES_MAX
from mq.errors import IllegalRequest
from mq.store import batch as batches
from mq.store.batch import Batch
from mq.store.message_check import KEYS_MAX
from mq.wire import varint
from mq.wire.v1 import message_pb2

POSITIONS_MAX = 20_000
# Decided and written as one, in one turn of the loop.
ATOMIC_POSITIONS_MAX = 2_000
TOPICS_MAX = 256
HANDLES_MAX = 2_000
ROUTES_MAX = 10_000
# Of all users in one change.
USER_ROLES_MAX, USER_NAMESPACES_MAX = 3_200, 10_000
PUBLISHED_MAX = 2_000
TRANSACTED_MAX = 10_000
# Messages of a batch whose sizes and hashes the producer has sent along: all are checked at once.
PREPARED_MAX = 200_000
# Messages that the broker opens one by one, for their tags and keys.
PLAIN_MAX = 4_000

# Elements of the field in one request, in all messages of it together; in one batch, where the
# field is one of a batch.
LIMITS = {
    "AckRequest.handles": HANDLES_MAX,
    "AtomicRequest.batches": BATCHES_MAX,
    "AtomicRequest.handles": HANDLES_MAX,
    "AtomicRequest.positions": ATOMIC_POSITIONS_MAX,
    "AtomicRequest.starts": ATOMIC_POSITIONS_MAX,
    "Batch.frame_sizes": PREPARED_MAX,
    "Batch.key_counts": PREPARED_MAX,
    "Batch.key_hashes": KEYS_MAX,
    "Batch.messages": PLAIN_MAX,
    "Batch.tag_hashes": PREPARED_MAX,
    "ChangeInvisibleRequest.handles": HANDLES_MAX,
    "ChangeAccessRequest.changes": CHANGES_MAX,
    "CommitOffsetsRequest.positions": POSITIONS_MAX,
    "DeadLetterBatch.messages": FAILED_MAX,
    "FindOffsetsRequest.queue_ids": names.QUEUE_ID_MAX + 1,
    "GreetRequest.others": SETS_MAX,
    "HeartbeatRequest.owned": POSITIONS_MAX,
    "JoinRequest.owned": POSITIONS_MAX,
    "JoinRequest.subscriptions": TOPICS_MAX,
    "Message.keys": 2 * PLAIN_MAX,
    "Message.properties": 5 * PLAIN_MAX,
    "NackRequest.handles": HANDLES_MAX,
    "PeerSet.addresses": (SETS_MAX + 1) * ADDRESSES_MAX,
    "Progress.positions": POSITIONS_MAX,
    "PublishRequest.batches": PUBLISHED_MAX,
    "QueryOffsetsRequest.queues": POSITIONS_MAX,
    "Released.queues": POSITIONS_MAX,
    "ResendDeadLettersRequest.queue_offsets": LIST_MAX,
    "ResetOffsetsRequest.queue_ids": names.QUEUE_ID_MAX + 1,
    "Resume.positions": POSITIONS_MAX,
    "RetryRequest.messages": FAILED_MAX,
    "RouteRequest.topics": ROUTES_MAX,
    "Seek.positions": POSITIONS_MAX,
    "SendRequest.messages": PLAIN_MAX,
    "SettleDeadLettersRequest.queue_offsets": LIST_MAX,
    "SubscribeStart.positions": POSITIONS_MAX,
    "SubscribeStart.subscriptions": TOPICS_MAX,
    "TransactRequest.more": TRANSACTED_MAX,
    "User.namespaces": USER_NAMESPACES_MAX,
    "User.roles": USER_ROLES_MAX,
}
# No request within the limits has so many fields, unless it repeats some.
_FIELDS_MAX = 100_000

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_CONTINUES = bytes(range(0x80, 0x100))
_FIXED64_TYPES = (
    FieldDescriptor.TYPE_FIXED64,
    FieldDescriptor.TYPE_SFIXED64,
    FieldDescriptor.TYPE_DOUBLE,
)
_FIXED32_TYPES = (
    FieldDescriptor.TYPE_FIXED32,
    FieldDescriptor.TYPE_SFIXED32,
    FieldDescriptor.TYPE_FLOAT,
)
M = TypeVar("M", bound=Message)


def exceeded(field: str, count: int, limit: int | None = None) -> IllegalRequest:
    """The error for a field with so many elements or more."""
    allowed = LIMITS[field] if limit is None else limit
    return IllegalRequest(
        f"{field} has at least {count} elements: at most {allowed} are allowed in one request"
    )


class _Field(NamedTuple):
    """A field that is repeated, or a message with such fields in it."""

    # Of LIMITS; empty: it is not repeated.
    name: str
    # Bytes of an element of a packed field, 1 for varints; 0: an element is a field of its own.
    packed_bytes: int
    # By their numbers.
    inner: dict[int, _Field]


def _fields(descriptor: Any) -> dict[int, _Field]:
    found = {}
    for field in descriptor.fields:
        inner = {}
        # An entry of a map has a key and a value.
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            inner = _fields(field.message_type)
        if field.is_repeated:
            # Some requests are read as another message of the same wire format.
            name = f"{descriptor.name.removeprefix('Raw')}.{field.name}"
            found[field.number] = _Field(name, _packed_bytes(field), inner)
        elif inner:
            found[field.number] = _Field("", 0, inner)
    return found


def _packed_bytes(field: FieldDescriptor) -> int:
    if field.type in _FIXED64_TYPES:
        return 8
    if field.type in _FIXED32_TYPES:
        return 4
    is_scalar = field.type not in (
        FieldDescriptor.TYPE_STRING,
        FieldDescriptor.TYPE_BYTES,
        FieldDescriptor.TYPE_MESSAGE,
    )
    return 1 if is_scalar else 0


def _repeated(fields: dict[int, _Field]) -> Iterator[tuple[int, _Field]]:
    for number, field in fields.items():
        if field.name:
            yield number, field
        yield from _repeated(field.inner)


class Reader(Generic[M]):
    """Reads requests of one type."""

    def __init__(self, request_type: type[M], limits: Mapping[str, int] = LIMITS) -> None:
        """`limits` has each repeated field of the request."""
        self._limits = limits
        self._parse = request_type.FromString
        self._name = request_type.DESCRIPTOR.name
        self._fields = _fields(request_type.DESCRIPTOR)
        repeated = list(_repeated(self._fields))
        # No request that is shorter has too many elements of any field.
        self._bytes_min = min(
            (limits[field.name] * (field.packed_bytes or 2) for _, field in repeated), default=0
        )
        self._elements = [
            # A tag may be written longer than it has to be: then its first byte has the high bit.
            (bytes([tag]), bytes([tag | 0x80]), limits[field.name])
            for number, field in repeated
            if not field.packed_bytes
            for tag in [(number << 3 | _BYTES) & 0xFF | (0x80 if number > 15 else 0)]
        ]
        self._packed = [
            (field.packed_bytes, limits[field.name]) for _, field in repeated if field.packed_bytes
        ]

    def __call__(self, data: bytes) -> M:
        """Raises IllegalRequest for too many elements; DecodeError if the bytes are no such
        request.
        """
        if self._fields and len(data) > self._bytes_min:
            self.check(data)
        return self._parse(data)

    def check(self, data: bytes) -> None:
        if self._fields and len(data) > self._bytes_min and self._may_exceed(data):
            _Walk(self._name, self._limits).message(memoryview(data), self._fields)

    def _may_exceed(self, data: bytes) -> bool:
        size = len(data)
        return any(size // width > limit for width, limit in self._packed) or any(
            data.count(tag) + data.count(longer) > limit for tag, longer, limit in self._elements
        )


class _Walk:
    """Over one request, which is counted as a whole."""

    def __init__(self, name: str, limits: Mapping[str, int] = LIMITS) -> None:
        self._name = name
        self._limits = limits
        self._counts: dict[str, int] = {}
        self._fields_left = _FIELDS_MAX

    def message(self, view: memoryview, fields: dict[int, _Field]) -> None:
        position, end = 0, len(view)
        while position < end:
            self._fields_left -= 1
            if self._fields_left < 0:
                raise IllegalRequest(f"a {self._name} of more than {_FIELDS_MAX} fields")
            key = view[position]
            position += 1
            if key >= 0x80:
                key, position = self._varint(view, position - 1)
            wire_type, field = key & 7, fields.get(key >> 3)
            start = position
            if wire_type == _BYTES:
                length = view[position] if position < end else 0x80
                start = position + 1
                if length >= 0x80:
                    length, start = self._varint(view, position)
                position = start + length
            elif wire_type == _VARINT:
                _, position = self._varint(view, position)
            elif wire_type in (_FIXED64, _FIXED32):
                position += 8 if wire_type == _FIXED64 else 4
            else:
                raise self._not_one()
            if position > end:
                raise self._not_one()
            if field is not None:
                self._count(field, wire_type, view[start:position])

    def _count(self, field: _Field, wire_type: int, content: memoryview) -> None:
        name, packed_bytes, inner = field
        if name:
            count = 1
            if packed_bytes and wire_type == _BYTES:
                count = len(content) // packed_bytes
                if packed_bytes == 1:
                    count = len(bytes(content).translate(None, _CONTINUES))
            total = self._counts[name] = self._counts.get(name, 0) + count
            if total > self._limits[name]:
                raise exceeded(name, total, self._limits[name])
        if inner and wire_type == _BYTES:
            self.message(content, inner)

    def _varint(self, view: memoryview, position: int) -> tuple[int, int]:
        try:
            return varint.decode(view, position)
        except ValueError:
            raise self._not_one() from None

    def _not_one(self) -> IllegalRequest:
        return IllegalRequest(
            f"the bytes of the request are not the message it should be: no {self._name}"
        )


_PLAIN_BATCH = Reader(message_pb2.Batch)


def accept_batch(
    data: bytes | memoryview,
    message_bytes_max: int,
    normal_half: Callable[[bytes], bytes] | None = None,
) -> Batch:
    """As `mq.store.batch.accept`; a batch of too many messages is IllegalRequest."""
    batch = batches.accept(data, message_bytes_max, _check_plain, normal_half)
    if batch.message_count > PREPARED_MAX:
        raise exceeded("Batch.messages", batch.message_count, PREPARED_MAX)
    return batch


def _check_plain(data: bytes | memoryview) -> None:
    _PLAIN_BATCH.check(bytes(data))
