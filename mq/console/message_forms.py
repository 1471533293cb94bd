"""Messages as other forms than a page: of what brokers store, JSON lines, what to send again."""

from __future__ import annotations

import base64
import json

from mq.client.aio import Message, ReceivedMessage
from mq.client.decode import decompressed
from mq.wire.v1.admin_pb2 import StoredMessage


def opened(stored: StoredMessage) -> ReceivedMessage:
    """With its body as it was sent; what cannot be decompressed stays as it stands."""
    found = stored.message
    unpacked = decompressed(found.body, found.compression)
    return ReceivedMessage(
        stored.topic,
        stored.queue_id,
        stored.queue_offset,
        stored.message_id,
        stored.stored_at_ms,
        found.born_at_ms,
        unpacked if isinstance(unpacked, bytes) else found.body,
        found.tag,
        tuple(found.keys),
        dict(found.properties),
        found.ordering_key,
    )


def json_line(message: ReceivedMessage) -> bytes:
    """As `mq produce --jsonl` reads it back; a body that is no text is in base64."""
    document: dict[str, object] = {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": message.message_id,
        "stored_at_ms": message.stored_at_ms,
        "born_at_ms": message.born_at_ms,
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": dict(message.properties),
        "ordering_key": message.ordering_key,
    }
    try:
        document["body"] = message.body.decode()
    except UnicodeDecodeError:
        document["body_base64"] = base64.b64encode(message.body).decode()
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"


def again(message: ReceivedMessage) -> Message:
    """A new message with the same content. It is delivered at once, whatever the first one was."""
    return Message(
        message.body,
        tag=message.tag,
        keys=message.keys,
        properties=message.properties,
        ordering_key=message.ordering_key,
    )
