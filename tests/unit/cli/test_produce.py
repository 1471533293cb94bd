"""`mq produce`: how input becomes messages, and what is reported of their results."""

from __future__ import annotations

import io
import json
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self

import pytest

from mq.cli import produce as module
from mq.cli.options import Brokers
from mq.cli.produce import Line, Stamp, from_arguments, from_lines, from_whole, produce
from mq.client.messages import Message, SendResult
from mq.errors import DiskFull, IllegalRequest, MessageTooLarge
from tests.support.commands import assert_fits, run

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

NOTHING = Stamp("", (), {}, "")
STAMP = Stamp("t", ("k",), {"a": "1", "b": "2"}, "o")


def bodies(lines: Any) -> list[bytes]:
    return [line.message.body for line in lines]


def parsed(text: str, stamp: Stamp = NOTHING) -> list[Line]:
    return list(from_lines(io.BytesIO(text.encode()), stamp, is_json=True))


# From input to messages.


def test_each_line_is_a_message_without_its_end() -> None:
    file = io.BytesIO(b"one\n two\r\n\nlast \xff")
    lines = list(from_lines(file, STAMP, is_json=False))
    assert bodies(lines) == [b"one", b" two", b"", b"last \xff"]
    assert [line.place for line in lines] == ["line 1", "line 2", "line 3", "line 4"]
    assert [line.read_bytes for line in lines] == [4, 10, 11, 17]
    assert lines[0].message == Message(
        b"one", tag="t", keys=("k",), properties={"a": "1", "b": "2"}, ordering_key="o"
    )


def test_the_whole_input_is_one_message() -> None:
    assert bodies(from_whole(io.BytesIO(b"a\nb\n"), NOTHING)) == [b"a\nb\n"]


def test_arguments_are_bytes_as_they_came() -> None:
    assert bodies(from_arguments(["grün", "\udcff"], NOTHING)) == ["grün".encode(), b"\xff"]


def test_a_json_line_has_its_own_values_and_the_stamp_for_the_rest() -> None:
    text = (
        '{"body": "gr\\u00fcn", "tag": "own", "keys": ["x", "y"], "properties": {"b": "3"}}\n'
        "\n"
        '{"body_base64": "AAEC", "ordering_key": "p"}\n'
    )
    first, second = parsed(text, STAMP)
    properties = {"a": "1", "b": "3"}
    assert first.message == Message(
        "grün".encode(), tag="own", keys=("x", "y"), properties=properties, ordering_key="o"
    )
    assert (second.message.body, second.message.tag) == (b"\x00\x01\x02", "t")
    assert second.message.ordering_key == "p"
    assert second.place == "line 3"


def test_the_output_of_consume_can_be_sent_again() -> None:
    line = json.dumps(
        {
            "topic": "a",
            "queue_id": 1,
            "queue_offset": 2,
            "message_id": "s:3",
            "stored_at_ms": 4,
            "born_at_ms": 5,
            "tag": "",
            "keys": [],
            "properties": {},
            "ordering_key": "",
            "body": "x",
        }
    )
    assert bodies(parsed(line)) == [b"x"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "is no JSON"),
        ('"text"', "is no JSON object"),
        ("{}", "give one of body and body_base64"),
        ('{"body": "a", "body_base64": "AAEC"}', "give one of body and body_base64"),
        ('{"body": 1}', "the body is no string"),
        ('{"body_base64": "?"}', "is no base64"),
        ('{"body": "a", "tags": "b"}', "unknown fields: tags"),
        ('{"body": "a", "keys": "b"}', "made of strings"),
        ('{"body": "a", "keys": [1]}', "made of strings"),
        ('{"body": "a", "keys": 1}', "keys is a list"),
        ('{"body": "a", "properties": {"x": 1}}', "made of strings"),
        ('{"body": "a", "properties": []}', "properties an object"),
        ('{"body": "a", "tag": null}', "made of strings"),
    ],
)
def test_a_json_line_that_is_wrong_is_named(line: str, reason: str) -> None:
    with pytest.raises(IllegalRequest, match=f"line 2.*{reason}"):
        parsed('{"body": "fine"}\n' + line)


# Sending, to a stand-in.


class FakeProducer:
    """Stores every message; `refuse` and `fail` are bodies that it does not take."""

    refuse: bytes = b"refuse"
    fail: bytes = b"fail"

    def __init__(self, servers: str, **settings: Any) -> None:
        self.settings = {"servers": servers, **settings}
        self.sent: list[tuple[str, Message, int | None]] = []
        self.closed = 0
        made.append(self)

    def send_async(
        self, topic: str, message: Message, *, queue_id: int | None = None
    ) -> Future[SendResult]:
        if message.body == self.refuse:
            raise MessageTooLarge("a message of 9 bytes")
        self.sent.append((topic, message, queue_id))
        future: Future[SendResult] = Future()
        if message.body == self.fail:
            future.set_exception(DiskFull("no room"))
        else:
            at = len(self.sent) - 1
            future.set_result(SendResult(f"set-0:{at}", topic, queue_id or 0, at, 1000))
        return future

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed += 1


made: list[FakeProducer] = []


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    made.clear()
    monkeypatch.setattr("mq.client.Producer", FakeProducer)
    monkeypatch.setattr(Brokers, "check", lambda _: None)


def send(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return run(produce, *arguments, stdin=stdin)


def test_options_go_to_every_message_and_to_the_producer() -> None:
    flags = ("--tag", "t", "--key", "a", "--key", "b", "--property", "x=1=2", "--queue", "3")
    more = ("--ordering-key", "o", "--ack", "leader", "--timeout", "9", "--server", "h:1")
    result = send("orders", "one", "two", *flags, *more)
    assert result.exit_code == 0, result.output
    (producer,) = made
    assert producer.settings == {"servers": "h:1", "ack": "leader", "timeout_s": 9.0}
    assert [message.body for _, message, _ in producer.sent] == [b"one", b"two"]
    topic, message, queue_id = producer.sent[1]
    assert (topic, queue_id) == ("orders", 3)
    assert message == Message(
        b"two", tag="t", keys=("a", "b"), properties={"x": "1=2"}, ordering_key="o"
    )
    assert producer.closed == 1


def test_stdin_and_a_file_are_read_by_lines(tmp_path: Path) -> None:
    send("orders", stdin="a\nb\n")
    file = tmp_path / "input"
    file.write_bytes(b"c\nd\n")
    send("orders", "--file", str(file))
    send("orders", "--file", "-", "--whole", stdin="e\nf\n")
    sent = [[message.body for _, message, _ in producer.sent] for producer in made]
    assert sent == [[b"a", b"b"], [b"c", b"d"], [b"e\nf\n"]]


def test_few_results_are_a_table_and_many_a_summary() -> None:
    few = send("orders", stdin="x\n" * 20).stdout
    assert_fits(few)
    assert "set-0:19" in few
    assert "Sent" not in few
    many = send("orders", stdin="x\n" * 21).stdout
    assert many.startswith("Sent 21 messages to orders, 21 B, in ")
    assert "set-0" not in many
    assert send("orders", stdin="").stdout.startswith("Sent 0 messages to orders")


def test_an_offset_that_is_not_known_is_a_dash() -> None:
    text = module._result_columns([SendResult("", "t", 2, -1, 0, False, "SENT")])
    assert [column.cells[0] for column in text] == ["-", "t", "2", "-", "-", "SENT"]


def test_results_as_json_are_a_line_each_in_the_order_of_the_input() -> None:
    result = send("orders", "--json", stdin="x\n" * 1000)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["queue_offset"] for line in lines] == list(range(1000))
    assert lines[0] == {
        "message_id": "set-0:0",
        "topic": "orders",
        "queue_id": 0,
        "queue_offset": 0,
        "stored_at_ms": 1000,
        "is_duplicate": False,
        "status": "SEND_OK",
        "deliver_at_ms": 0,
        "broker_set": "",
    }


# Failures.


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ("fail", "error: DISK_FULL: line 2: no room\n"),
        ("refuse", "error: MESSAGE_TOO_LARGE: line 2: a message of 9 bytes\n"),
    ],
)
def test_a_message_that_is_not_stored_ends_with_1_and_its_place(bad: str, error: str) -> None:
    result = send("orders", stdin=f"a\n{bad}\n")
    assert (result.exit_code, result.stderr) == (1, error)
    # What was stored before is still reported.
    assert "set-0:0" in result.stdout
    assert made[0].closed == 1


def test_a_line_that_cannot_be_read_ends_the_command_behind_those_before_it() -> None:
    result = send("orders", "--jsonl", "--json", stdin='{"body": "a"}\n{"bod": "b"}\n')
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ILLEGAL_REQUEST: line 2 has unknown fields: bod;")
    assert [message.body for _, message, _ in made[0].sent] == [b"a"]
    assert json.loads(result.stdout)["status"] == "SEND_OK"


def test_a_failure_stands_among_the_json_results() -> None:
    result = send("orders", "a", "fail", "--json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert lines[1] == {"status": "DISK_FULL", "text": "no room", "input": "message 2"}


def test_after_a_failure_no_more_is_sent() -> None:
    send("orders", stdin="refuse\n" + "x\n" * 10)
    assert made[0].sent == []


@pytest.mark.parametrize(
    "flags",
    [
        ("body", "--jsonl"),
        ("body", "--whole"),
        ("body", "--file", "-"),
        ("--jsonl", "--whole"),
        ("body", "--property", "novalue"),
        ("body", "--property", "=v"),
        ("--file", "does-not-exist"),
        ("body", "--ack", "some"),
    ],
)
def test_options_that_make_no_sense_are_a_usage_error(flags: tuple[str, ...]) -> None:
    assert send("orders", *flags).exit_code == 2
    assert made == []
