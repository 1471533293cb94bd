"""The values that users of the client hand over and get back: messages, results, filters.

They know nothing of the network, and are not shared between threads. Classes of which one instance
is made per message have slots and are not frozen: a frozen one takes three times as long to make.
A field of a received message is decoded when it is first read.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mq.errors import IllegalFilter
from mq.names import message_id
from mq.wire.v1.consumer_pb2 import Filter, Run
from mq.wire.v1.message_pb2 import Message as WireMessage

# The tag of a frame, which no Message without its body begins with.
_FRAME = b"\x7a"

if TYPE_CHECKING:
    from mq.client.decode import Runs

AckName = Literal["quorum", "leader", "none"]


@dataclass(slots=True)
class Message:
    """A message to send. It is encoded when it is sent: later changes are not seen.

    `tag` is one word that consumers filter by; by `keys` operators find the message again;
    messages of one `ordering_key` stand in one queue, in the order in which they were sent. In a
    topic with priorities `priority` says which, 0 is the lowest; elsewhere it means nothing.

    It is delivered at once, or later, by one of three: at `deliver_at_ms`, milliseconds since 1970;
    `delay_s` seconds from when the broker has it; or after the time of a `delay_level`, 1 to 18.
    At most 40 days ahead.

    >>> Message(b"paid", tag="orders", keys=["order-7"], ordering_key="customer-3").tag
    'orders'
    """

    body: bytes
    _: KW_ONLY
    tag: str = ""
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    ordering_key: str = ""
    priority: int = 0
    deliver_at_ms: int = 0
    delay_s: float = 0
    delay_level: int = 0


class Origin(NamedTuple):
    """The first place of a message that failed and came back, and why it failed last."""

    topic: str
    queue_id: int
    queue_offset: int
    message_id: str
    stored_at_ms: int
    reason: str = ""


class Shared(NamedTuple):
    """Fields that messages of one delivery share."""

    queue: QueueRef
    attempt: int = 1
    handle: bytes = b""


class Lease(NamedTuple):
    """Messages that a SimpleConsumer received by one handle; their queue offsets ascend."""

    broker_set: str
    handle: bytes
    queue_offsets: Sequence[int]


class _Unread:
    """The fields of a received message that were not read yet, in place of attributes that are not
    set. A message has the bytes of its own frame, so that keeping it keeps no delivery.
    """

    __slots__ = ("_frame", "_log_offset", "_shared")

    # None: the message was made by a user, and has all attributes.
    _shared: Shared | None
    # A frame of the protocol or a Message without its body, see `Runs.fields`; or what protobuf
    # made of it when a field was read.
    _frame: bytes | WireMessage
    _log_offset: int

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name == "_shared":
                return None
            if self._shared is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            value = self._read(name)
            setattr(self, name, value)
            return value

    def _read(self, name: str) -> Any:
        shared = self._shared
        assert shared is not None  # noqa: S101 # `__getattr__` has looked
        match name:
            case "message_id":
                return message_id(shared.queue.broker_set, self._log_offset)
            case "attempt" | "handle":
                return getattr(shared, name)
            case "origin":
                return None
            case "stored_topic":
                return ""
            case "born_at_ms" | "tag" | "ordering_key":
                return getattr(self._wire, name)
            case "keys":
                return tuple(self._wire.keys)
            case "properties":
                return dict(self._wire.properties)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def _wire(self) -> WireMessage:
        frame = self._frame
        if isinstance(frame, bytes):
            is_frame = frame.startswith(_FRAME)
            wire = Run.FromString(frame).messages[0] if is_frame else WireMessage.FromString(frame)
            self._frame = frame = wire
        return frame

    def _read_all(self, wire: WireMessage | None = None) -> None:
        """Reads all fields, so that the frame is not kept; `wire` if protobuf has read it."""
        self._frame = wire or self._frame
        for name in ReceivedMessage.__slots__:
            getattr(self, name)
        self._frame = b""


@dataclass(slots=True)
class ReceivedMessage(_Unread):
    """A message as it stands in its queue; `body` is as it was sent, compressed or not.

    One that failed and came back has the `topic` that it was sent to, and an `origin`; its queue,
    offset, id and time are those of the copy that came.
    """

    topic: str
    queue_id: int
    queue_offset: int
    message_id: str
    stored_at_ms: int
    born_at_ms: int
    body: bytes
    tag: str
    keys: tuple[str, ...]
    properties: Mapping[str, str]
    ordering_key: str
    # Which delivery of it this is: 1 is the first.
    attempt: int = 1
    origin: Origin | None = None
    # The topic of its queue, if that is not `topic`.
    stored_topic: str = ""
    # Of one that a SimpleConsumer received: what it is acknowledged by, with its queue offset.
    handle: bytes = b""

    @property
    def queue(self) -> QueueRef:
        if self._shared is not None:
            return self._shared.queue
        return QueueRef(self.stored_topic or self.topic, self.queue_id, self.broker_set)

    @property
    def broker_set(self) -> str:
        if self._shared is not None:
            return self._shared.queue.broker_set
        return self.message_id.rpartition(":")[0]

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, or one in another process, is made with all of its fields read."""
        return type(self), tuple(getattr(self, one.name) for one in fields(self))


def shared_of(message: ReceivedMessage) -> Shared:
    """The same object for messages that were received together, and are no copies."""
    shared = message._shared  # noqa: SLF001
    return shared or Shared(message.queue, message.attempt, message.handle)


def make_messages(
    shared: Shared, runs: Runs, start: int, end: int, bodies: Sequence[bytes]
) -> list[ReceivedMessage]:
    """The rows [start, end). Not by the constructor, and with few attributes: this is the cost of
    receiving a message.
    """
    topic, queue_id, _ = shared.queue
    made: list[ReceivedMessage] = list(
        map(object.__new__, itertools.repeat(ReceivedMessage, end - start))
    )
    row = 0
    one: Any
    for place, at, to in runs.spans(start, end):
        stored_at_ms, log_shift = place.stored_at_ms, place.log_shift
        count = to - at
        for one, position, queue_offset, frame, body in zip(
            made[row : row + count],
            place.starts[at:to],
            range(place.queue_offset + at, place.queue_offset + to),
            runs.fields(place, at, to),
            bodies[row : row + count],
            strict=True,
        ):
            one._shared = shared  # noqa: SLF001
            one._frame = frame  # noqa: SLF001
            one._log_offset = position + log_shift  # noqa: SLF001
            one.topic = topic
            one.queue_id = queue_id
            one.queue_offset = queue_offset
            one.stored_at_ms = stored_at_ms
            one.body = body
        row += count
    return made


class SendResult(NamedTuple):
    """The place of a stored message. With ack="leader" the broker answers before that is known: the
    id is empty and the queue offset -1. With ack="none" there is no answer: the status is "SENT".
    """

    message_id: str
    topic: str
    queue_id: int
    queue_offset: int
    stored_at_ms: int
    # It had been stored before, by an attempt whose answer was lost; this is where.
    is_duplicate: bool = False
    status: str = "SEND_OK"
    # When it is delivered, if that is later; it gets its queue offset only then, and is -1 here.
    deliver_at_ms: int = 0
    # Which one has it, also where there is no id: each set counts the queues of a topic for itself.
    broker_set: str = ""


class QueueRef(NamedTuple):
    """A queue of a topic: each broker set that has some counts its own from 0. All that the client
    gives out names the set; what it is given may leave it out when only one set has the topic.
    """

    topic: str
    queue_id: int
    broker_set: str = ""


@dataclass(frozen=True, slots=True)
class Tags:
    """Messages with one of these tags. A plain string says the same.

    >>> Tags("paid || shipped").expression
    'paid || shipped'
    """

    expression: str


@dataclass(frozen=True, slots=True)
class Sql:
    """Messages whose properties make this SQL92 condition true.

    >>> Sql("region = 'EU' AND amount > 100").expression
    "region = 'EU' AND amount > 100"
    """

    expression: str


FilterLike = str | Tags | Sql | None


def wire_filter(chosen: FilterLike) -> Filter | None:
    """As it goes over the wire; None lets every message through."""
    match chosen:
        case None | "" | "*":
            return None
        case str():
            return Filter(tags=chosen)
        case Tags():
            return wire_filter(chosen.expression)
        case Sql():
            return Filter(sql=chosen.expression)
        case _:
            raise IllegalFilter(
                f"{chosen!r} is no filter: use a string of tags such as 'a || b', Tags or Sql"
            )
