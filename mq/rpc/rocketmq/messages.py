"""Messages of RocketMQ's protocol as ours, and ours as theirs.

Tag, keys, properties, group (ordering key), priority and time of birth have their place in a
message of ours; what has none is kept beside them, in `Message.rocketmq`. So a message reads the
same for consumers of either protocol, whichever its producer used.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple, cast

import lz4.frame
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from mq import names
from mq.errors import MessageTooLarge
from mq.rpc.rocketmq.codes import Refused
from mq.wire.rocketmq import definition_pb2 as pb
from mq.wire.rocketmq.definition_pb2 import Code, MessageType
from mq.wire.v1.message_pb2 import COMPRESSION_LZ4, Message

_ID_CHARACTERS_MAX = 255
_GZIP_WBITS = 31
_I64_MAX = (1 << 63) - 1
# Looked up once: protobuf looks for a value of an enum each time that it is named.
_NORMAL, _GZIP = MessageType.NORMAL, pb.GZIP


class Place(NamedTuple):
    """Where a message is stored."""

    queue_id: int
    queue_offset: int
    log_offset: int
    stored_at_ms: int


# -- in -------------------------------------------------------------------------------------------


def accepted(wire: pb.Message, body_bytes_max: int) -> Message:
    """Raises Refused, MessageTooLarge."""
    system = wire.system_properties
    message_id, tag, keys = system.message_id, system.tag, system.keys
    if not 0 < len(message_id) <= _ID_CHARACTERS_MAX:
        raise Refused(
            Code.ILLEGAL_MESSAGE_ID, f"message_id has 1 to {_ID_CHARACTERS_MAX} characters"
        )
    kind, group = type_of(system), system.message_group
    is_delayed = system.HasField("delivery_timestamp")
    if kind != _NORMAL or is_delayed or group or system.HasField("message_group"):
        _check_type(system, kind)
    message = Message(
        body=_body(wire, system, body_bytes_max), born_at_ms=milliseconds(system.born_timestamp)
    )
    own = message.rocketmq
    own.message_id, own.born_host, own.message_type = message_id, system.born_host, kind
    # What most messages do not have is not even looked into.
    if tag:
        message.tag = _legal_tag(tag)
    if keys:
        _add_keys(message, keys)
    if wire.user_properties:
        _add_properties(message, wire.user_properties)
    if group:
        message.ordering_key = group
    if system.priority > 0:
        message.priority = system.priority
    if is_delayed:
        own.deliver_at_ms = deliver_at_ms(system)
    if system.trace_context:
        own.trace_context = system.trace_context
    return message


def _legal_tag(tag: str) -> str:
    if not names.is_legal_tag(tag):
        raise Refused(
            Code.ILLEGAL_MESSAGE_TAG,
            f"tag {tag[:200]!r} is not legal: no filter could ask for it; use one word "
            "without spaces and |",
        )
    return tag


def _add_keys(message: Message, keys: Iterable[str]) -> None:
    if any(not key.strip() for key in keys):
        raise Refused(Code.ILLEGAL_MESSAGE_KEY, "a key is empty")
    message.keys.extend(keys)


def _add_properties(message: Message, properties: Mapping[str, str]) -> None:
    if "" in properties:
        raise Refused(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "the name of a property is empty")
    message.properties.update(properties)


def _check_type(system: pb.SystemProperties, kind: int) -> None:
    has = system.HasField
    if kind == MessageType.LITE:
        raise Refused(Code.UNSUPPORTED, "lite topics are not supported")
    has_group = has("message_group")
    if has_group and not system.message_group.strip():
        raise Refused(Code.ILLEGAL_MESSAGE_GROUP, "the message group is empty")
    conflicts: dict[int, bool] = {
        MessageType.NORMAL: has_group or has("delivery_timestamp"),
        MessageType.FIFO: not has_group or has("delivery_timestamp"),
        MessageType.DELAY: not has("delivery_timestamp") or has_group,
        MessageType.TRANSACTION: has_group or has("delivery_timestamp"),
        MessageType.PRIORITY: not has("priority") or has_group or has("delivery_timestamp"),
    }
    if conflicts.get(kind, True):
        name = MessageType.Name(kind) if kind in MessageType.values() else str(kind)
        raise Refused(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"a message of type {name} with other properties than its type has",
        )


def type_of(system: pb.SystemProperties) -> int:
    if system.message_type:
        return system.message_type
    if system.HasField("delivery_timestamp"):
        return MessageType.DELAY
    if system.HasField("message_group"):
        return MessageType.FIFO
    return MessageType.PRIORITY if system.HasField("priority") else MessageType.NORMAL


def deliver_at_ms(system: pb.SystemProperties) -> int:
    """0: at once."""
    if not system.HasField("delivery_timestamp"):
        return 0
    return milliseconds(system.delivery_timestamp)


def _body(wire: pb.Message, system: pb.SystemProperties, bytes_max: int) -> bytes:
    body = wire.body
    if system.HasField("body_digest"):
        _check_digest(body, system.body_digest)
    if system.body_encoding == _GZIP:
        unpacking = zlib.decompressobj(_GZIP_WBITS)
        try:
            body = unpacking.decompress(body, bytes_max + 1)
        except zlib.error:
            raise Refused(Code.MESSAGE_CORRUPTED, "the body is not what gzip packs") from None
        if len(body) <= bytes_max and not unpacking.eof:
            raise Refused(Code.MESSAGE_CORRUPTED, "the packed body is cut short")
    if not body:
        raise Refused(Code.MESSAGE_BODY_EMPTY, "the body of the message is empty")
    if len(body) > bytes_max:
        raise MessageTooLarge(f"a body of {len(body)} bytes or more: at most {bytes_max}")
    return body


def _check_digest(body: bytes, digest: pb.Digest) -> None:
    """Of CRC32 each client writes its digits in another way: it is not compared."""
    if digest.type == pb.MD5:
        found = hashlib.md5(body, usedforsecurity=False).hexdigest()
    elif digest.type == pb.SHA1:
        found = hashlib.sha1(body, usedforsecurity=False).hexdigest()
    else:
        return
    if digest.checksum and found.upper() != digest.checksum.upper():
        raise Refused(Code.MESSAGE_CORRUPTED, "the body is not the one of the digest")


# -- out ------------------------------------------------------------------------------------------


def message_id(message: Message, broker_set: str, log_offset: int) -> str:
    """The same for all deliveries, also as a dead letter."""
    if message.rocketmq.message_id:
        return message.rocketmq.message_id
    return message.origin.message_id or names.message_id(broker_set, log_offset)


def shown(
    message: Message, topic: pb.Resource, place: Place, broker_set: str, store_host: str
) -> pb.Message:
    """As consumers are told of it; what belongs to a delivery is added by its caller."""
    body, own = _unpacked(message), message.rocketmq
    system = pb.SystemProperties(
        keys=message.keys,
        message_id=message_id(message, broker_set, place.log_offset),
        body_digest=pb.Digest(
            type=pb.MD5, checksum=hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
        ),
        body_encoding=pb.IDENTITY,
        message_type=cast(MessageType, own.message_type or _type(message)),
        born_host=own.born_host or "unknown",
        store_host=store_host,
        queue_id=place.queue_id,
        queue_offset=place.queue_offset,
    )
    set_time(system.born_timestamp, message.born_at_ms or place.stored_at_ms)
    set_time(system.store_timestamp, place.stored_at_ms)
    if message.tag:
        system.tag = message.tag
    if message.ordering_key:
        system.message_group = message.ordering_key
    if own.deliver_at_ms:
        set_time(system.delivery_timestamp, own.deliver_at_ms)
    if own.trace_context:
        system.trace_context = own.trace_context
    if message.priority:
        system.priority = message.priority
    return pb.Message(
        topic=topic, user_properties=message.properties, system_properties=system, body=body
    )


def _type(message: Message) -> int:
    """Of a message that did not come by this protocol."""
    return MessageType.FIFO if message.ordering_key else MessageType.NORMAL


def _unpacked(message: Message) -> bytes:
    """A body that cannot be unpacked is shown as it is stored."""
    if message.compression != COMPRESSION_LZ4:
        return message.body
    try:
        unpacked: bytes = lz4.frame.decompress(message.body)
    except RuntimeError:
        return message.body
    return unpacked


def milliseconds(wire: Timestamp | Duration) -> int:
    """Of a time or a duration; one beyond all that can be stored is the last one that can."""
    found = wire.seconds * 1000 + wire.nanos // 1_000_000
    return found if -_I64_MAX <= found <= _I64_MAX else max(-_I64_MAX, min(found, _I64_MAX))


def set_time(timestamp: Timestamp, at_ms: int) -> None:
    timestamp.seconds, timestamp.nanos = at_ms // 1000, at_ms % 1000 * 1_000_000
