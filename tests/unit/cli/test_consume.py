"""`mq consume`: what is written, in which order, and when it counts as done."""

from __future__ import annotations

import asyncio
import io
import json
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import pytest

from mq.cli import consume as module
from mq.cli.consume import ConsumeOptions, Reader, consume
from mq.cli.options import Brokers, Place
from mq.cli.sink import Sink
from mq.client.messages import FilterLike, QueueRef, ReceivedMessage, Sql
from mq.errors import FlowControl, MqError, TopicNotFound, Unreachable
from mq.wire.v1.cluster_pb2 import MissingTopic, RouteResponse, TopicRoute
from tests.support.commands import FakeAdmin, run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from click.testing import Result


def message(queue_id: int, queue_offset: int, stored_at_ms: int = 0, **fields: Any) -> Any:
    given: dict[str, Any] = {
        "message_id": f"set-0:{queue_id}{queue_offset}",
        "born_at_ms": 0,
        "body": f"{queue_id}/{queue_offset}".encode(),
        "tag": "",
        "keys": (),
        "properties": {},
        "ordering_key": "",
    }
    return ReceivedMessage("t", queue_id, queue_offset, stored_at_ms=stored_at_ms, **given | fields)


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


def written(messages: Sequence[ReceivedMessage], file: io.BytesIO, **flags: bool) -> bytes:
    sink = Sink(file, as_json=flags.get("as_json", False), with_meta=flags.get("with_meta", False))
    sink.write(messages)
    assert sink.written == len(messages)
    return file.getvalue()


# Forms.


def test_bodies_go_out_byte_for_byte_a_line_each() -> None:
    messages = [message(0, 0, body=b"\x1b[31m\xff"), message(0, 1, body=b"b")]
    assert written(messages, io.BytesIO()) == b"\x1b[31m\xff\nb\n"


def test_a_terminal_gets_no_control_characters() -> None:
    assert written([message(0, 0, body=b"\x1b[31m\xff\nb")], Terminal()) == b"\\x1b[31m\\xff\nb\n"


def test_with_meta_a_line_has_all_that_is_known() -> None:
    fields = {"tag": "paid", "keys": ("a", "b"), "properties": {"x": "\x1b"}, "ordering_key": "o"}
    found = message(3, 17, 1_783_850_000_123, body=b"one\ntwo", **fields)
    assert written([found], io.BytesIO(), with_meta=True) == (
        b"2026-07-12 09:53:20.123  t/3@17  set-0:317  tag=paid  keys=a,b  ordering_key=o  "
        b"x=\\x1b  one\\ntwo\n"
    )


def test_json_lines_have_everything() -> None:
    lines = written([message(0, 0), message(0, 1, body=b"\xff")], io.BytesIO(), as_json=True)
    first, second = map(json.loads, lines.splitlines())
    assert (first["body"], first["queue_offset"]) == ("0/0", 0)
    assert second["body_base64"] == "/w=="


# Without a group.


class Pulled(NamedTuple):
    messages: list[ReceivedMessage]
    next_offset: int


class FakePuller:
    """Queues as lists, in pages of two; offsets that they leave out are those that a filter does.
    `calls` has an error for each call that fails, in order.
    """

    unreadable_messages = 0

    def __init__(
        self,
        queues: dict[int, list[ReceivedMessage]],
        ends: dict[int, int] | None = None,
        calls: Sequence[MqError | None] = (),
    ) -> None:
        self.queues = queues
        self.ends = ends or {at: len(queue) for at, queue in queues.items()}
        self.calls = list(calls)
        self.filters: list[object] = []

    def _called(self) -> None:
        if self.calls and (error := self.calls.pop(0)) is not None:
            raise error

    async def pull(self, _topic: str, queue_id: int, at: int, **asked: Any) -> Pulled:
        self._called()
        self.filters.append(asked["filter"])
        queue = [one for one in self.queues[queue_id] if one.queue_offset >= at][:2]
        return Pulled(queue, queue[-1].queue_offset + 1 if queue else at + 2)

    async def find_offsets(self, _topic: str, to: object) -> dict[QueueRef, int]:
        self._called()
        if isinstance(to, int):
            return {QueueRef("t", at): to for at in self.ends}
        return {QueueRef("t", at): 0 if to == "earliest" else end for at, end in self.ends.items()}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


def wanted_options(
    place: Place = "earliest", wanted: FilterLike = None, idle_s: float | None = None
) -> ConsumeOptions:
    return ConsumeOptions(("t",), place, wanted, None, idle_s)


def backlog(puller: FakePuller, options: ConsumeOptions) -> tuple[list[str], dict[QueueRef, int]]:
    """Bodies, and where the reader is then."""

    async def read() -> tuple[list[str], dict[QueueRef, int]]:
        reader = Reader(puller, options)  # type: ignore[arg-type]
        found = [one.body.decode() async for one in reader.backlog()]
        return found, reader.positions

    return asyncio.run(read())


def test_queues_are_merged_by_the_time_at_which_messages_were_stored() -> None:
    queues = {
        0: [message(0, at, stored_at_ms=10 * at) for at in range(5)],
        1: [message(1, at, stored_at_ms=10 * at + 5) for at in range(3)],
    }
    found, positions = backlog(FakePuller(queues), wanted_options())
    assert found == ["0/0", "1/0", "0/1", "1/1", "0/2", "1/2", "0/3", "0/4"]
    assert positions == {QueueRef("t", 0): 5, QueueRef("t", 1): 3}


def test_reading_ends_where_the_queue_ended_at_the_start() -> None:
    puller = FakePuller({0: [message(0, at) for at in range(5)]}, ends={0: 3})
    assert backlog(puller, wanted_options()) == (["0/0", "0/1", "0/2"], {QueueRef("t", 0): 3})


def test_filtered_messages_are_skipped() -> None:
    puller = FakePuller({0: [message(0, 0), message(0, 7)]}, ends={0: 9})
    found, positions = backlog(puller, wanted_options(place=1, wanted="a"))
    assert found == ["0/7"]
    assert positions[QueueRef("t", 0)] >= 9
    assert set(puller.filters) == {"a"}


@pytest.mark.parametrize("outages", [1, 2, 3, 4])
def test_following_outlasts_outages_and_reads_each_message_once(
    outages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REPEAT_S", 0.0)
    queues = {0: [message(0, at) for at in range(3)]}
    endless = wanted_options(idle_s=float("inf"))
    for before in range(4):
        calls = [None] * before + [Unreachable("away")] * outages
        assert backlog(FakePuller(queues, calls=calls), endless)[0] == ["0/0", "0/1", "0/2"]
        with pytest.raises(Unreachable):
            backlog(FakePuller(queues, calls=calls), wanted_options())


def test_following_ends_by_an_error_that_does_not_pass() -> None:
    puller = FakePuller({0: []}, calls=[TopicNotFound("t")])
    with pytest.raises(TopicNotFound):
        backlog(puller, wanted_options(idle_s=float("inf")))


# As a member of a group.


class FakeConsumer:
    """Hands out pages; a page that is an exception is raised. It has queues from a time on."""

    unreadable_messages = 0
    assigned_at_s = 0.0

    def __init__(self, servers: str, group: str, subscriptions: object, **settings: Any) -> None:
        self.settings = {"servers": servers, "group": group, "topics": subscriptions, **settings}
        self.asked: list[int] = []
        self.did: list[ReceivedMessage] = []
        made.append(self)

    def poll(self, max_messages: int, timeout_s: float) -> list[ReceivedMessage]:
        self.asked.append(max_messages)
        clock.advance(timeout_s)
        page = pages.pop(0) if pages else []
        if isinstance(page, BaseException):
            raise page
        assert len(page) <= max_messages
        return page

    @property
    def assignment(self) -> set[QueueRef]:
        return {QueueRef("t", 0)} if clock.now_s >= self.assigned_at_s else set()

    def __enter__(self) -> Self:
        return self

    def done(self, *messages: ReceivedMessage) -> None:
        self.did += messages

    def __exit__(self, *_: object) -> None:
        pass


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def advance(self, length_s: float) -> None:
        self.now_s += length_s

    sleep = advance


made: list[FakeConsumer] = []
pages: list[Any] = []
clock = Clock()


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    made.clear()
    pages.clear()
    monkeypatch.setattr("mq.client.Consumer", FakeConsumer)
    monkeypatch.setattr(Brokers, "check", lambda _: None)
    monkeypatch.setattr(module, "time", clock)


def receive(*arguments: str) -> Result:
    topics = [TopicRoute(topic="t"), TopicRoute(topic="a"), TopicRoute(topic="b")]
    missing = [MissingTopic(topic="ordrs", similar=["orders", "order"])]
    route = RouteResponse(topics=topics, missing=missing)
    return run(consume, *arguments, admin=FakeAdmin(route=route))


def test_options_go_to_the_consumer() -> None:
    flags = ("--group", "g", "--mode", "ordered", "--from", "1000", "--sql", "x > 1")
    assert receive("a", "b", *flags, "--server", "h:1").exit_code == 0
    assert made[0].settings == {
        "servers": "h:1",
        "group": "g",
        "topics": {"a": Sql("x > 1"), "b": Sql("x > 1")},
        "mode": "ordered",
        "start": 1000,
        "auto_commit": False,
        "cache_messages": 1000,
        "cache_bytes": 100 << 20,
    }


def test_consume_commits_and_ends_when_nothing_comes() -> None:
    pages.extend([[message(0, 0)], [], [message(0, 1)]])
    result = receive("t", "--group", "g", "--timeout", "2.5")
    assert (result.exit_code, result.stdout) == (0, "0/0\n0/1\n")
    # One second a poll: two empty ones are not enough, three are.
    assert len(made[0].asked) == 3 + 3
    assert len(made[0].did) == 2


def test_the_wait_for_queues_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    began_s = clock.now_s
    monkeypatch.setattr(FakeConsumer, "assigned_at_s", began_s + 10)
    pages.extend([[]] * 11 + [[message(0, 0)]])
    assert receive("t", "--group", "g", "--timeout", "2").stdout == "0/0\n"
    assert clock.now_s == pytest.approx(began_s + 12 + 2)


def test_a_member_that_never_gets_a_queue_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    began_s = clock.now_s
    monkeypatch.setattr(FakeConsumer, "assigned_at_s", float("inf"))
    assert receive("t", "--group", "g", "--timeout", "2").exit_code == 0
    assert clock.now_s == pytest.approx(began_s + 15)


def test_a_topic_that_does_not_exist_yet_is_named() -> None:
    pages.append([message(0, 0)])
    result = receive("t", "typo", "--group", "g", "--count", "1")
    assert (result.exit_code, result.stdout) == (0, "0/0\n")
    assert result.stderr == "topic typo does not exist yet: waiting for its first message\n"
    pages.append([message(0, 0)])
    assert receive("ordrs", "--group", "g", "--count", "1").stderr == (
        "topic ordrs does not exist yet: waiting for its first message, "
        "or did you mean orders or order?\n"
    )


def test_a_member_that_follows_outlasts_outages() -> None:
    pages.extend([Unreachable("away"), [message(0, 0)], FlowControl("busy"), [message(0, 1)]])
    result = receive("t", "--group", "g", "--follow", "--count", "2")
    assert (result.exit_code, result.stdout) == (0, "0/0\n0/1\n")
    pages.append(Unreachable("away"))
    assert receive("t", "--group", "g").exit_code == 1


def test_a_count_is_never_exceeded() -> None:
    pages.extend([[message(0, 0), message(0, 1)], [message(0, 2)]])
    result = receive("t", "--group", "g", "--count", "3")
    assert result.stdout == "0/0\n0/1\n0/2\n"
    assert made[0].asked == [3, 1]
    assert len(made[0].did) == 3


def test_ctrl_c_is_quiet_and_what_was_written_is_done() -> None:
    pages.extend([[message(0, 0)], KeyboardInterrupt()])
    result = receive("t", "--group", "g", "--follow")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "0/0\n", "")
    assert made[0].did == [message(0, 0)]


def test_a_message_that_could_not_be_written_is_not_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Sink, "write", fail)
    pages.append([message(0, 0)])
    result = receive("t", "--group", "g")
    assert result.exit_code == 1
    assert result.stderr == "Error: cannot write to stdout: No space left on device\n"
    assert made[0].did == []


def test_a_file_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "out"
    result = receive("t", "--group", "g", "--output", str(path))
    assert result.exit_code == 1
    assert result.stderr == f"Error: cannot write to {path}: No such file or directory\n"
    assert made == []


def test_messages_go_to_a_file(tmp_path: Path) -> None:
    pages.append([message(0, 0)])
    path = tmp_path / "out"
    assert receive("t", "--group", "g", "--output", str(path)).stdout == ""
    assert path.read_bytes() == b"0/0\n"


def test_without_a_group_nothing_but_reading_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    puller = FakePuller({0: [message(0, at) for at in range(3)], 1: [message(1, 0, 1)]})
    monkeypatch.setattr("mq.client.aio.PullConsumer", lambda _: puller)
    assert receive("t", "--tags", "a").stdout == "0/0\n0/1\n0/2\n1/0\n"
    assert set(puller.filters) == {"a"}
    assert receive("t", "--count", "2").stdout == "0/0\n0/1\n"
    assert receive("t", "--from", "latest").stdout == ""
    assert made == []


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("t", "--mode", "ordered"),
        ("t", "--follow", "--timeout", "3"),
        ("t", "--meta", "--json"),
        ("t", "--tags", "a", "--sql", "b"),
        ("t", "--count", "0"),
        ("t", "--from", "never"),
    ],
)
def test_options_that_make_no_sense_are_a_usage_error(flags: tuple[str, ...]) -> None:
    assert receive(*flags).exit_code == 2


def test_the_next_poll_is_bounded_by_the_step_and_by_what_is_left() -> None:
    endless = ConsumeOptions(("t",), "earliest", None, None, None)
    assert endless.left(10**9) == 500
    assert ConsumeOptions(("t",), "earliest", None, 600, None).left(200) == 400
