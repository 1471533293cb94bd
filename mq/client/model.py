"""What users of the client hand over and get back: messages, results, filters.

Plain values. They know nothing of the network, and nothing here is shared between threads. What is
made once a message has slots and is not frozen: a frozen one takes three times as long to make.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal, NamedTuple

from mq.errors import IllegalFilter
from mq.wire.v1.consumer_pb2 import Filter

AckName = Literal["quorum", "leader", "none"]


@dataclass(slots=True)
class Message:
    """What a producer sends. It is encoded when it is sent: later changes are not seen.

    `tag` is one word that consumers filter by; by `keys` operators find the message again;
    messages of one `ordering_key` stand in one queue, in the order in which they were sent.

    >>> Message(b"paid", tag="orders", keys=["order-7"], ordering_key="customer-3").tag
    'orders'
    """

    body: bytes
    _: KW_ONLY
    tag: str = ""
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    ordering_key: str = ""


@dataclass(slots=True)
class ReceivedMessage:
    """A message as it stands in its queue; `body` is as it was sent, compressed or not."""

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

    @property
    def queue(self) -> QueueRef:
        return QueueRef(self.topic, self.queue_id)


class SendResult(NamedTuple):
    """Where a message stands. With ack="leader" the broker answers before that is known: the id is
    empty and the queue offset -1. With ack="none" there is no answer at all: the status is "SENT".
    """

    message_id: str
    topic: str
    queue_id: int
    queue_offset: int
    stored_at_ms: int
    # It had been stored before, by an attempt whose answer was lost; this is where.
    is_duplicate: bool = False
    status: str = "SEND_OK"


class QueueRef(NamedTuple):
    topic: str
    queue_id: int


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
