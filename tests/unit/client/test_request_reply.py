"""Requests and replies as messages: what is added, and what an error becomes."""

from __future__ import annotations

import pytest

from mq.client.messages import Message, ReceivedMessage
from mq.client.request_reply import (
    CORRELATION_ID,
    ERROR,
    REPLY_TAG,
    REPLY_TO,
    error_reply,
    is_request,
    reply_message,
    request_message,
)


def received(message: Message) -> ReceivedMessage:
    return ReceivedMessage(
        "t", 0, 0, "set-0:0", 0, 0, message.body, message.tag, (), message.properties, ""
    )


def test_a_request_keeps_what_the_user_gave() -> None:
    given = Message(b"body", tag="kind", properties={"a": "b"}, ordering_key="k")
    asked = request_message(given, "REPLIES", "me", "7")
    assert (asked.body, asked.tag, asked.ordering_key) == (b"body", "kind", "k")
    own = {REPLY_TO: "REPLIES", REPLY_TAG: "me", CORRELATION_ID: "7"}
    assert asked.properties == {"a": "b", **own}
    assert given.properties == {"a": "b"}
    assert is_request(received(asked))
    assert not is_request(received(given))


@pytest.mark.parametrize("made", [b"x", "x", bytearray(b"x"), Message(b"x", properties={"p": "q"})])
def test_a_reply_goes_to_its_request(made: object) -> None:
    asked = received(request_message(b"?", "REPLIES", "me", "7"))
    reply = reply_message(asked, made)
    assert (reply.body, reply.tag, reply.properties[CORRELATION_ID]) == (b"x", "me", "7")
    assert ERROR not in reply.properties
    assert reply_message(asked, None).body == b""
    with pytest.raises(TypeError):
        reply_message(asked, 7)


def test_an_error_of_the_replier_is_shortened() -> None:
    asked = received(request_message(b"?", "REPLIES", "me", "7"))
    reply = error_reply(asked, ValueError("no\ud800" + "x" * 5_000))
    assert len(reply.properties[ERROR]) == 1_000
    assert reply.properties[ERROR].startswith("ValueError: no?x")
