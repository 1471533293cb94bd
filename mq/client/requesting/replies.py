"""Requests and replies as messages: what they carry beside what the user gave.

A request says where the reply goes, by which tag its sender hears of it, and which request it is. A
reply has that tag and number, and an error when the work failed. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from mq.client.messages import Message, ReceivedMessage
from mq.errors import RequestFailed

# A topic like others; whoever asks first creates it.
REPLY_TOPIC = "REPLIES"
REPLY_TO, REPLY_TAG, CORRELATION_ID = "reply-to", "reply-tag", "correlation-id"
ERROR = "reply-error"
_ERROR_CHARACTERS_MAX = 1_000


def request_message(
    message: Message | bytes | str, reply_to: str, tag: str, correlation_id: str
) -> Message:
    own = {REPLY_TO: reply_to, REPLY_TAG: tag, CORRELATION_ID: correlation_id}
    given = _as_message(message)
    return replace(given, properties={**given.properties, **own})


def is_request(message: ReceivedMessage) -> bool:
    return all(message.properties.get(name) for name in (REPLY_TO, REPLY_TAG, CORRELATION_ID))


def reply_message(request: ReceivedMessage, reply: object) -> Message:
    """Of what a handler returned; nothing is an empty reply. TypeError: it is no message."""
    given = _as_message(b"" if reply is None else reply)
    properties = {**given.properties, CORRELATION_ID: request.properties[CORRELATION_ID]}
    return replace(given, tag=request.properties[REPLY_TAG], properties=properties)


def error_reply(request: ReceivedMessage, error: BaseException) -> Message:
    text = f"{type(error).__name__}: {error}".encode("utf-8", "replace").decode()
    text = text[:_ERROR_CHARACTERS_MAX]
    return reply_message(request, Message(b"", properties={ERROR: text}))


def failure(reply: ReceivedMessage) -> RequestFailed | None:
    text = reply.properties.get(ERROR)
    return None if text is None else RequestFailed(text)


def _as_message(given: object) -> Message:
    if isinstance(given, Message):
        return given
    if isinstance(given, bytes | bytearray | memoryview):
        return Message(bytes(given))
    if isinstance(given, str):
        return Message(given.encode())
    raise TypeError(f"a message, bytes or text, not {type(given).__name__}")
