"""Handles as text: of a message that was received, and of a delayed one that can be taken back.

    receipt = base64url( queue offset 8 | lease )                    see `mq.broker.receive.leases`
    recall  = base64url( log offset 8 | deliver_at_ms 8 | length 1 | set | length 1 | topic | id )

Numbers are little-endian, texts UTF-8. Clients treat them as opaque. The set stands in front so
that a recall can be told which set it is for.
"""

from __future__ import annotations

import base64
import binascii
import struct
from typing import NamedTuple

from mq.broker.receive.leases import Handle, parse_handles
from mq.rpc.rocketmq.codes import Refused
from mq.wire.rocketmq.definition_pb2 import Code
from mq.wire.v1.consumer_pb2 import Handle as WireHandle

_OFFSET = struct.Struct("<Q")
_RECALL = struct.Struct("<QqB")
_CHARACTERS_MAX = 1_024


def receipt(lease: bytes, queue_offset: int) -> str:
    return base64.urlsafe_b64encode(_OFFSET.pack(queue_offset) + lease).decode()


def parse_receipt(text: str) -> Handle | None:
    """None: no broker made it."""
    data = _decoded(text)
    if len(data) <= _OFFSET.size:
        return None
    (queue_offset,) = _OFFSET.unpack_from(data)
    return parse_handles([WireHandle(lease=data[_OFFSET.size :], queue_offset=queue_offset)])[0]


class Recall(NamedTuple):
    broker_set: str
    # Its full name.
    topic: str
    log_offset: int
    deliver_at_ms: int
    message_id: str

    def text(self) -> str:
        broker_set, topic = self.broker_set.encode(), self.topic.encode()
        head = _RECALL.pack(self.log_offset, self.deliver_at_ms, len(broker_set))
        tail = bytes([len(topic)]) + topic + self.message_id.encode()
        return base64.urlsafe_b64encode(head + broker_set + tail).decode()


def parse_recall(text: str) -> Recall:
    """Raises Refused."""
    data = _decoded(text)
    try:
        log_offset, deliver_at_ms, length = _RECALL.unpack_from(data)
        topic_at = _RECALL.size + length
        id_at = topic_at + 1 + data[topic_at]
        return Recall(
            data[_RECALL.size : topic_at].decode(),
            data[topic_at + 1 : id_at].decode(),
            log_offset,
            deliver_at_ms,
            data[id_at:].decode(),
        )
    except (struct.error, IndexError, UnicodeDecodeError):
        raise Refused(Code.BAD_REQUEST, "the recall handle is none that a send returned") from None


def _decoded(text: str) -> bytes:
    """Empty: it is no base64."""
    if len(text) > _CHARACTERS_MAX:
        return b""
    try:
        return base64.b64decode(text.encode(), b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        return b""
