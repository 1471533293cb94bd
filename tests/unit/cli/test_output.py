"""Output of the commands: exact JSON, and text that cannot harm a terminal."""

from __future__ import annotations

import json
import sys

import pytest

from mq.cli import output
from mq.client.messages import ReceivedMessage
from mq.wire.v1 import admin_pb2 as pb
from mq.wire.v1.cluster_pb2 import TOPIC_ORDERED
from mq.wire.v1.consumer_pb2 import Filter, Subscription
from mq.wire.v1.message_pb2 import Message


def received(body: bytes) -> ReceivedMessage:
    return ReceivedMessage(
        "orders", 3, 17, "set-0:99", 1_000, 900, body, "paid", ("k1", "k2"), {"p": "v"}, "c-3"
    )


# JSON.


def test_a_protobuf_message_has_all_fields_and_numbers_are_numbers() -> None:
    found = output.plain(pb.DeadLetterCount(group="g", messages=1 << 60))
    expected = {"group": "g", "messages": 1 << 60, "last_stored_at_ms": 0, "broker_sets": []}
    assert found == expected


def test_enums_are_short_names_and_lists_and_maps_are_plain() -> None:
    topic = pb.TopicInfo(topic="a", type=TOPIC_ORDERED, is_readable=True)
    found = output.plain(pb.DescribeTopicResponse(info=topic, groups=["g"]))
    assert found["info"]["type"] == "ordered"
    assert found["info"]["is_readable"] is True
    assert found["groups"] == ["g"]
    assert found["queues"] == []
    properties = output.plain(Message(properties={"x": "1"}, keys=["k"]))
    assert properties["properties"] == {"x": "1"}
    assert properties["keys"] == ["k"]


def test_a_choice_that_was_not_made_is_left_out() -> None:
    chosen = output.plain(Subscription(topic="a", filter=Filter(sql="x > 1")))
    assert chosen == {"topic": "a", "filter": {"sql": "x > 1"}}
    assert output.plain(Subscription(topic="a")) == {"topic": "a"}


def test_a_message_document_has_text_as_text_and_the_rest_as_base64() -> None:
    document = output.message_document(received("grün".encode()))
    assert document["body"] == "grün"
    assert "body_base64" not in document
    assert (document["keys"], document["properties"]) == (["k1", "k2"], {"p": "v"})
    binary = output.message_document(received(b"\xff\x00"))
    assert binary["body_base64"] == "/wA="
    assert "body" not in binary


def test_a_json_line_is_one_line_however_many_the_body_has() -> None:
    line = output.json_line(output.message_document(received(b"a\nb")))
    assert line.count("\n") == 1
    assert json.loads(line)["body"] == "a\nb"


# Text.


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain grün 漢", "plain grün 漢"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\x9b2J", "\\x9b2J"),
        ("\udc80", "\\udc80"),
        ("right\u202eto left", "right\\u202eto left"),
    ],
)
def test_control_characters_become_escapes(text: str, shown: str) -> None:
    assert output.printable(text) == shown


def test_lines_stay_lines_and_tabs_become_spaces() -> None:
    assert output.printable_lines("a\tb\n\x1bc\n") == "a    b\n\\x1bc\n"


def test_a_body_that_is_no_text_is_shown_by_its_bytes() -> None:
    assert output.body_text(b"ab\xff\x00") == "ab\\xff\\x00"


@pytest.mark.parametrize(
    ("body", "shown"),
    [(b"short", "short"), (b"x" * 10, "x" * 10), (b"x" * 11, "xxxxxxx..."), (b"", "")],
)
def test_a_preview_is_cut_and_says_so(body: bytes, shown: str) -> None:
    assert output.preview(body, 10) == shown


def test_a_preview_of_a_huge_body_looks_at_its_start_only() -> None:
    # 44 bytes make 11 characters: all of them would fit, had it not been cut.
    body = "\N{GRINNING FACE}".encode() * 1_000_000
    assert output.preview(body, 10) == "\N{GRINNING FACE}" * 7 + "..."


def test_properties_are_shown_in_their_order() -> None:
    assert output.pairs({"b": "2", "a": "1"}) == "a=1, b=2"


def test_a_meter_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert not sys.stderr.isatty()
    with output.meter("sending", "message", 100) as show:
        for count in range(100):
            show(count, count)
    assert capsys.readouterr() == ("", "")
