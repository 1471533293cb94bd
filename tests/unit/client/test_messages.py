"""Messages, received messages and filters."""

from __future__ import annotations

import pytest

from mq.client.messages import (
    FilterLike,
    Message,
    QueueRef,
    ReceivedMessage,
    Sql,
    Tags,
    wire_filter,
)
from mq.errors import IllegalFilter
from mq.wire.v1.consumer_pb2 import Filter


@pytest.mark.parametrize(
    ("chosen", "sent"),
    [
        (None, None),
        ("", None),
        ("*", None),
        (Tags("*"), None),
        ("a || b", Filter(tags="a || b")),
        (Tags("a"), Filter(tags="a")),
        (Sql("n > 1"), Filter(sql="n > 1")),
    ],
)
def test_filters_are_tags_or_sql(chosen: FilterLike, sent: Filter | None) -> None:
    assert wire_filter(chosen) == sent


def test_a_value_of_another_type_is_no_filter() -> None:
    with pytest.raises(IllegalFilter, match="7 is no filter"):
        wire_filter(7)  # type: ignore[arg-type]


def test_messages_do_not_share_their_properties() -> None:
    assert Message(b"").properties is not Message(b"").properties


def test_a_received_message_knows_its_queue() -> None:
    message = ReceivedMessage("t", 3, 7, "set-0:1", 0, 0, b"", "", (), {}, "")
    assert message.queue == QueueRef("t", 3, "set-0")
