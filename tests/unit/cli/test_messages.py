"""`mq message`: messages by id, key and place, whatever is in them."""

from __future__ import annotations

import lz4.frame
import pytest

from mq.cli.messages import message
from mq.client.messages import Sql
from mq.wire.v1 import admin_pb2 as pb
from mq.wire.v1.message_pb2 import COMPRESSION_LZ4, Message
from tests.support.commands import FakeAdmin, assert_fits, run, run_json


def stored(queue_id: int = 4, queue_offset: int = 0, **fields: object) -> pb.StoredMessage:
    given: dict[str, object] = {"body": b"hello", "tag": "paid", "keys": ["order-7"]}
    return pb.StoredMessage(
        message_id="set-0:332",
        topic="orders",
        queue_id=queue_id,
        queue_offset=queue_offset,
        log_offset=332,
        stored_at_ms=1_783_850_000_123,
        message=Message(born_at_ms=1_783_850_000_100, **{**given, **fields}),  # type: ignore[arg-type]
    )


def get(found: pb.StoredMessage, *flags: str) -> str:
    result = run(message, "get", "set-0:332", *flags, admin=FakeAdmin(get_message=found))
    assert result.exit_code == 0, result.output
    return result.stdout


# One message.


def test_a_message_is_shown_with_all_it_has() -> None:
    text = get(stored(ordering_key="c-3", properties={"b": "2", "a": "1"}))
    for part in ("set-0:332", "4, queue offset 0", "paid", "order-7", "c-3", "a=1, b=2", "5 bytes"):
        assert part in text
    assert "2026-07-12 09:53:20.123 UTC" in text
    assert text.endswith("\n\nhello\n")


def test_a_compressed_body_is_shown_as_it_was_sent() -> None:
    body = lz4.frame.compress(b"z" * 5000)
    found = stored(body=body, compression=COMPRESSION_LZ4)
    assert get(found).endswith("z" * 5000 + "\n")
    assert "5,000 bytes (4.9 KiB)" in get(found)
    assert get(found, "--raw") == "z" * 5000
    assert run_json(message, "get", "x", admin=FakeAdmin(get_message=found))["body"] == "z" * 5000


def test_a_body_that_cannot_be_decompressed_is_shown_as_it_stands() -> None:
    assert "no lz4" in get(stored(body=b"no lz4", compression=COMPRESSION_LZ4))


def test_a_body_that_is_no_text_is_dumped() -> None:
    text = get(stored(body=bytes(range(256)) + b"tail"))
    assert "00000000  00 01 02 03" in text
    assert "00000030  30 31 32 33 34 35 36 37 38 39 3a 3b 3c 3d 3e 3f  0123456789:;<=>?" in text
    assert "... 4 more bytes; --raw writes all" in text
    assert_fits(text)


def test_a_body_cannot_steer_the_terminal() -> None:
    text = get(stored(body=b"one\n\x1b[2Jtwo", tag="\x1bt", properties={"p": "\x07"}))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "one\n\\x1b[2Jtwo" in text


def test_raw_and_json_are_not_given_together() -> None:
    admin = FakeAdmin(get_message=stored())
    assert run(message, "get", "x", "--raw", "--json", admin=admin).exit_code == 2


# By key.


def test_query_hands_over_key_and_times() -> None:
    admin = FakeAdmin(query_messages=[stored(), stored(queue_offset=1)])
    flags = ("--topic", "orders", "--key", "order-7", "--from", "1000", "--until", "2000")
    result = run(message, "query", *flags, admin=admin)
    assert result.stdout.endswith("2 messages\n")
    times = {"begin_ms": 1000, "end_ms": 2000}
    assert admin.calls == [("query_messages", ("orders", "order-7"), times)]
    assert len(run_json(message, "query", *flags, admin=admin)) == 2


def test_an_unknown_key_is_no_error() -> None:
    admin = FakeAdmin(query_messages=[])
    result = run(message, "query", "--topic", "orders", "--key", "k", admin=admin)
    assert (result.exit_code, result.stdout) == (0, "No message of orders has the key k.\n")
    assert run_json(message, "query", "--topic", "t", "--key", "k", admin=admin) == []


@pytest.mark.parametrize("flags", [("--from", "latest"), ("--until", "earliest")])
def test_a_time_before_or_after_everything_is_a_usage_error(flags: tuple[str, str]) -> None:
    result = run(message, "query", "--topic", "t", "--key", "k", *flags, admin=FakeAdmin())
    assert result.exit_code == 2


# By place.


class Queues(FakeAdmin):
    """A topic with queues that end there; pages are as the broker makes them."""

    def __init__(
        self, *counts: int, page: int = 2, start: int = 0, sets: tuple[str, ...] = ("a",)
    ) -> None:
        self._counts = counts
        self.wanted: list[object] = []
        self.sets: list[str] = []
        self._page = page
        queues = [
            pb.QueueStats(queue_id=at, start=start, end=end, broker_set=name)
            for name in sets
            for at, end in enumerate(counts)
        ]
        super().__init__(
            describe_topic=pb.DescribeTopicResponse(queues=queues), browse_messages=self._browse
        )

    def _browse(
        self,
        _topic: str,
        queue_id: int,
        at: int,
        *,
        max_messages: int,
        filter: object,  # noqa: A002
        broker_set: str,
    ) -> pb.MessageList:
        self.wanted.append(filter)
        self.sets.append(broker_set)
        end = min(at + min(max_messages, self._page), self._counts[queue_id])
        found = [stored(queue_id, queue_offset) for queue_offset in range(at, end)]
        return pb.MessageList(messages=found, next_offset=max(at, end))


def places(*flags: str, admin: FakeAdmin) -> list[tuple[int, int]]:
    found = run_json(message, "browse", "--topic", "orders", *flags, admin=admin)
    return [(each["queue_id"], each["queue_offset"]) for each in found]


def test_browse_shows_every_queue_up_to_the_count() -> None:
    admin = Queues(5, 0, 1)
    assert places("--count", "3", admin=admin) == [(0, 0), (0, 1), (0, 2), (2, 0)]
    assert places(admin=admin) == [*((0, at) for at in range(5)), (2, 0)]


def test_browse_from_an_offset_or_the_last_ones() -> None:
    admin = Queues(5, 2)
    assert places("--queue", "0", "--from", "3", admin=admin) == [(0, 3), (0, 4)]
    assert places("--from", "latest", "--count", "1", admin=admin) == [(0, 4), (1, 1)]
    assert places("--from", "9", admin=admin) == []


def test_browse_begins_with_what_is_still_there() -> None:
    admin = Queues(5, start=3)
    assert places(admin=admin) == places("--from", "latest", admin=admin) == [(0, 3), (0, 4)]


def test_browse_asks_each_set_for_its_queues_or_one_of_them() -> None:
    admin = Queues(1, 1, sets=("a", "b"))
    assert places("--count", "1", admin=admin) == [(0, 0), (1, 0)] * 2
    assert admin.sets == ["a", "a", "b", "b"]
    admin.sets.clear()
    assert places("--count", "1", "--set", "b", "--queue", "1", admin=admin) == [(1, 0)]
    assert admin.sets == ["b"]
    for flags in (("--set", "c"), ("--queue", "2")):
        refused = run(message, "browse", "--topic", "orders", *flags, admin=admin)
        assert refused.stderr.startswith("error: QUEUE_NOT_FOUND: topic orders has no queue")


def test_browse_hands_over_the_filter() -> None:
    admin = Queues(1)
    places("--sql", "x > 1", admin=admin)
    places("--tags", "a", "--count", "1", admin=admin)
    assert admin.wanted == [Sql("x > 1"), Sql("x > 1"), "a"]


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_the_table_fits_the_terminal(columns: int) -> None:
    big = stored(queue_offset=1 << 50, body=b"\x00" * 5000, keys=["k" * 60, "l" * 60], tag="t" * 50)
    admin = FakeAdmin(query_messages=[stored(), big])
    text = run(message, "query", "--topic", "t", "--key", "k", admin=admin, columns=columns).stdout
    assert_fits(text, columns)
    assert str(1 << 50) in text
