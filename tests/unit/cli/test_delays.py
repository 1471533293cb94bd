"""Delays on the command line: `mq produce --delay`, `mq message recall`."""

from __future__ import annotations

import json
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self

import click
import pytest

import mq.client
from mq.cli.messages import message
from mq.cli.options import Brokers, Duration, Moment
from mq.cli.produce import produce
from mq.client.messages import Message, SendResult
from mq.errors import MessageNotFound
from tests.support.commands import FakeAdmin, assert_fits, run, run_json

if TYPE_CHECKING:
    from click.testing import Result

AT_MS = 1_783_850_000_000  # 2026-07-12T09:53:20 UTC


class FakeProducer:
    sent: list[Message]
    recalled: list[dict[str, Any]]
    failure: Exception | None

    def __init__(self, servers: str, **settings: Any) -> None:
        pass

    def send_async(
        self, topic: str, message: Message, *, queue_id: int | None = None
    ) -> Future[SendResult]:
        self.sent.append(message)
        future: Future[SendResult] = Future()
        is_late = bool(message.deliver_at_ms or message.delay_s or message.delay_level)
        result = SendResult("set-0:9", topic, queue_id or 0, -1 if is_late else 4, 1000)
        future.set_result(result._replace(deliver_at_ms=AT_MS) if is_late else result)
        return future

    def recall(self, **fields: Any) -> None:
        if self.failure is not None:
            raise self.failure
        self.recalled.append(fields)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeProducer.sent, FakeProducer.recalled, FakeProducer.failure = [], [], None
    monkeypatch.setattr(mq.client, "Producer", FakeProducer)
    monkeypatch.setattr(Brokers, "check", lambda _: None)


def send(*arguments: str) -> Result:
    return run(produce, "orders", *arguments)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), Message(b"x")),
        (("--delay", "500ms"), Message(b"x", delay_s=0.5)),
        (("--delay", "30s"), Message(b"x", delay_s=30)),
        (("--delay", "1.5m"), Message(b"x", delay_s=90)),
        (("--delay", "2h"), Message(b"x", delay_s=7_200)),
        (("--delay", "40d"), Message(b"x", delay_s=3_456_000)),
        (("--delay-level", "18"), Message(b"x", delay_level=18)),
        (("--deliver-at", "2026-07-12T09:53:20"), Message(b"x", deliver_at_ms=AT_MS)),
        (("--deliver-at", "2026-07-12T11:53:20+02:00"), Message(b"x", deliver_at_ms=AT_MS)),
        (("--deliver-at", str(AT_MS)), Message(b"x", deliver_at_ms=AT_MS)),
    ],
)
def test_an_option_says_when_messages_are_delivered(
    flags: tuple[str, ...], expected: Message
) -> None:
    result = send("x", *flags)
    assert result.exit_code == 0, result.output
    [found] = FakeProducer.sent
    assert found == Message(expected.body, keys=(), **_delay(expected))


def _delay(message: Message) -> dict[str, Any]:
    return {name: getattr(message, name) for name in ("deliver_at_ms", "delay_s", "delay_level")}


@pytest.mark.parametrize(
    "flags",
    [
        ("--delay", "30"),
        ("--delay", "soon"),
        ("--delay", "-5s"),
        ("--delay-level", "0"),
        ("--delay-level", "19"),
        ("--deliver-at", "latest"),
        ("--deliver-at", "tomorrow"),
        ("--delay", "1s", "--delay-level", "1"),
        ("--deliver-at", str(AT_MS), "--delay-level", "1"),
    ],
)
def test_an_illegal_delay_is_a_usage_error(flags: tuple[str, ...]) -> None:
    assert send("x", *flags).exit_code == 2
    assert FakeProducer.sent == []


def test_the_time_is_printed_as_a_recall_wants_it() -> None:
    result = send("x", "--delay", "1h")
    assert_fits(result.stdout)
    assert str(AT_MS) in result.stdout
    assert "deliver at" not in send("x").stdout
    [line] = send("x", "--delay", "1h", "--json").stdout.splitlines()
    assert json.loads(line)["deliver_at_ms"] == AT_MS


@pytest.mark.parametrize("moment", [str(AT_MS), "2026-07-12T09:53:20"])
def test_a_message_is_taken_back_by_topic_id_and_time(moment: str) -> None:
    result = run(message, "recall", "orders", "set-0:9", "--deliver-at", moment)
    assert result.exit_code == 0, result.output
    assert "set-0:9" in result.stdout
    wanted = {"topic": "orders", "message_id": "set-0:9", "deliver_at_ms": AT_MS}
    assert FakeProducer.recalled == [wanted]
    flags = "set-0:9", "--deliver-at", moment
    found = run_json(message, "recall", "orders", *flags, admin=FakeAdmin())
    assert found == {"topic": "orders", "message_id": "set-0:9", "recalled": True}


def test_one_that_is_not_there_ends_with_an_error() -> None:
    FakeProducer.failure = MessageNotFound("it is delivered")
    result = run(message, "recall", "orders", "set-0:9", "--deliver-at", str(AT_MS))
    assert result.exit_code == 1
    assert "MESSAGE_NOT_FOUND: it is delivered" in result.stderr
    assert run(message, "recall", "orders", "set-0:9").exit_code == 2


def test_values_that_are_converted_already_stay() -> None:
    assert Duration().convert(1.5, None, None) == 1.5
    assert Moment().convert(5, None, None) == 5
    with pytest.raises(click.BadParameter):
        Moment().convert("earliest", None, None)
