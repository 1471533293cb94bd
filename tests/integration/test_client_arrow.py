"""Tables to a topic and back, against a real broker."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from mq.client import Consumer, Message, Producer, PullConsumer, QueueRef, ReceivedMessage, aio
from mq.client.arrow.columns import message_schema
from mq.errors import IllegalRequest, MessageTooLarge, TopicNotFound
from mq.wire.v1.message_pb2 import COMPRESSION_LZ4
from mq.wire.v1.message_pb2 import Message as WireMessage
from tests.support.broker_process import BrokerProcess
from tests.support.topics import DEADLINE_S, committed, create_topic, fill, send

if TYPE_CHECKING:
    from collections.abc import Iterator

SET = "set-0"
BORN = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker.address


def rows_of(table: pa.Table, *columns: str) -> list[tuple[Any, ...]]:
    return list(zip(*(table.column(column).to_pylist() for column in columns), strict=True))


FULL = pa.table(
    {
        "body": pa.array([b"small", b"large" * 2000, b""]),
        "keys": pa.array([["a", "b"], None, []], pa.list_(pa.string())),
        "tag": pa.array(["paid", None, "sent"]),
        "ordering_key": pa.array(["o", "o", None]),
        "properties": pa.array([[("p", "1")], [], None], pa.map_(pa.string(), pa.string())),
        "born_at": pa.array([BORN, None, None], pa.timestamp("us", "UTC")),
    }
)
PARTS = ("body", "keys", "tag", "ordering_key", "properties")


def test_a_table_comes_back_as_it_was_sent(server: str, name: str) -> None:
    create_topic(server, name, 1)
    with Producer(server) as producer, PullConsumer(server) as consumer:
        result = producer.send_arrow(name, FULL)
        assert (result.topic, result.rows) == (name, 3)
        found = consumer.to_arrow(name, with_properties=True)
        found.validate(full=True)
        assert found.schema == message_schema(with_properties=True)
        # Rows without an ordering key are in another batch.
        rows = sorted(rows_of(found, *PARTS))
        assert rows == [
            (b"", [], "sent", None, []),
            (b"large" * 2000, [], None, "o", []),
            (b"small", ["a", "b"], "paid", "o", [("p", "1")]),
        ]
        born = dict(rows_of(found, "body", "born_at"))
        assert born[b"small"] == BORN
        assert abs((born[b""] - datetime.now(UTC)).total_seconds()) < DEADLINE_S
        # What was read can be sent as it is.
        producer.send_arrow(f"{name}-2", found)
        again = consumer.to_arrow(f"{name}-2", with_properties=True)
        assert sorted(rows_of(again, *PARTS)) == rows


def test_messages_are_those_of_single_sends(server: str, name: str) -> None:
    """Columns say the same of a message as the objects of another consumer."""
    create_topic(server, name, 2)
    with Producer(server) as producer, PullConsumer(server) as reader:
        producer.send_arrow(name, FULL)
        producer.send(name, Message(b"single", keys=["k"], properties={"q": "2"}))
        found = reader.to_arrow(name, with_properties=True)
        with Consumer(server, name, name, start="earliest") as consumer:
            messages: list[ReceivedMessage] = []
            while len(messages) < 4:
                messages += consumer.poll(timeout_s=DEADLINE_S)
        expected = {
            (
                one.queue_id,
                one.queue_offset,
                one.message_id,
                one.body,
                one.tag or None,
                one.ordering_key or None,
                one.keys,
                tuple(one.properties.items()),
                one.stored_at_ms,
                one.born_at_ms,
            )
            for one in messages
        }
        assert {
            (
                row["queue_id"],
                row["queue_offset"],
                row["message_id"],
                row["body"],
                row["tag"],
                row["ordering_key"],
                tuple(row["keys"]),
                tuple(row["properties"]),
                round(row["stored_at"].timestamp() * 1000),
                round(row["born_at"].timestamp() * 1000),
            )
            for row in found.to_pylist()
        } == expected


def test_rows_of_one_ordering_key_keep_their_order(server: str, name: str) -> None:
    create_topic(server, name, 4)
    count = 60_000
    table = pa.table(
        {
            "value": [f"{at}".encode() for at in range(count)],
            "user": pa.array([f"u{at % 7}" for at in range(count)]).dictionary_encode(),
        }
    )
    with Producer(server) as producer, PullConsumer(server) as reader:
        result = producer.send_arrow(name, table, body="value", ordering_key="user")
        assert result.rows == count
        found = reader.to_arrow(name).sort_by(
            [("queue_id", "ascending"), ("queue_offset", "ascending")]
        )
        by_key: dict[str, list[int]] = {}
        for body, key in rows_of(found, "body", "ordering_key"):
            by_key.setdefault(key, []).append(int(body))
        assert by_key == {f"u{at}": list(range(at, count, 7)) for at in range(7)}
        # The queue of a key is that of a single send.
        single = producer.send(name, Message(b"x", ordering_key="u3"))
        queues = set(rows_of(found, "ordering_key", "queue_id"))
        assert ("u3", single.queue_id) in queues
        assert len(queues) == 7


def test_a_row_that_fits_no_message_is_an_error(server: str, name: str) -> None:
    with Producer(server) as producer:
        with pytest.raises(IllegalRequest, match="2 of 2 rows have no body"):
            producer.send_arrow(name, pa.table({"body": pa.array([None, None], pa.string())}))
        with pytest.raises(MessageTooLarge, match="a body of 5000000 bytes"):
            producer.send_arrow(name, pa.table({"body": [b"", bytes(5_000_000)]}))
        with pytest.raises(IllegalRequest, match="tag 'a b' is not legal"):
            producer.send_arrow(name, pa.table({"body": ["x"], "tag": ["a b"]}))
        assert producer.send_arrow(name, pa.table({"body": pa.array([], pa.string())})).rows == 0


def test_a_read_has_bounds(server: str, name: str) -> None:
    fill(server, name, queues=2, each=10)
    with PullConsumer(server) as reader:
        middle = {QueueRef(name, 1, SET): 4}
        end = {(name, 1): 7, (name, 0): 99}
        found = reader.to_arrow(name, start=middle, end=end)
        assert rows_of(found, "queue_id", "queue_offset") == [(1, 4), (1, 5), (1, 6)]
        assert reader.to_arrow(name, start="latest").num_rows == 0
        assert reader.to_arrow(name, end=end).num_rows == 17
        with pytest.raises(TopicNotFound):
            reader.to_arrow(f"{name}-missing")


def test_a_filter_is_exact_and_unreadable_messages_are_passed_over(
    server: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    create_topic(server, name, 1)
    with Producer(server) as producer, PullConsumer(server) as reader:
        producer.send_arrow(name, pa.table({"body": ["1", "2", "3"], "tag": ["a", "b", "a"]}))
        assert rows_of(reader.to_arrow(name, filter="a"), "body") == [(b"1",), (b"3",)]
        send(server, name, 0, [WireMessage(body=b"damaged", compression=COMPRESSION_LZ4)])
        producer.send(name, b"4")
        assert rows_of(reader.to_arrow(name), "body") == [(b"1",), (b"2",), (b"3",), (b"4",)]
    assert "is passed over" in caplog.text


def test_a_reader_gives_batches_one_after_the_other(server: str, name: str) -> None:
    bodies = fill(server, name, queues=3, each=5)
    with PullConsumer(server) as consumer:
        reader = consumer.read_arrow(name)
        assert isinstance(reader, pa.RecordBatchReader)
        assert reader.schema == message_schema(with_properties=False)
        assert {row[0] for batch in reader for row in rows_of(batch, "body")} == bodies
        # One that is not read to its end leaves nothing behind.
        next(iter(consumer.read_arrow(name)))


def test_the_same_with_asyncio(server: str, name: str) -> None:
    bodies = fill(server, name, queues=3, each=5)

    async def main() -> None:
        async with aio.PullConsumer(server) as consumer, aio.Producer(server) as producer:
            table = await consumer.to_arrow(name)
            assert set(table.column("body").to_pylist()) == bodies
            result = await producer.send_arrow(name, table)
            assert result.rows == 15
            count = 0
            async for batch in consumer.read_arrow(name):
                count += batch.num_rows
            assert count == 30
            async for _ in consumer.read_arrow(name):
                break

    asyncio.run(main())


def poll_rows(consumer: Consumer, count: int, **options: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    deadline_s = time.monotonic() + DEADLINE_S
    while len(rows) < count:
        assert time.monotonic() < deadline_s, f"{len(rows)} of {count} rows"
        rows += consumer.poll_arrow(**options).to_pylist()
    return rows


def test_polled_columns_are_the_messages_of_a_group_and_done_with_the_next_poll(
    server: str, name: str
) -> None:
    bodies = fill(server, name, queues=3, each=20)
    with Consumer(server, name, name, start="earliest") as consumer:
        rows = poll_rows(consumer, 60)
        assert {row["body"] for row in rows} == bodies
        for queue_id in range(3):
            offsets = [row["queue_offset"] for row in rows if row["queue_id"] == queue_id]
            assert offsets == list(range(20))
        assert consumer.poll_arrow(timeout_s=0).num_rows == 0
    assert committed(server, name, name) == {0: 20, 1: 20, 2: 20}


def test_polled_columns_that_are_not_done_come_again(server: str, name: str) -> None:
    bodies = fill(server, name, queues=1, each=10)
    with Consumer(server, name, name, start="earliest", auto_commit=False) as consumer:
        first = poll_rows(consumer, 4, max_messages=4)
        consumer.commit()
        assert poll_rows(consumer, 6)[0]["queue_offset"] == 4
    with Consumer(server, name, name, auto_commit=False) as consumer:
        again = poll_rows(consumer, 6)
        assert {row["body"] for row in first + again} == bodies


def test_polled_columns_are_decompressed_filtered_and_have_properties(
    server: str, name: str
) -> None:
    create_topic(server, name, 2)
    large = "large" * 2000
    with (
        Producer(server) as producer,
        Consumer(server, name, {name: "a"}, start="earliest") as consumer,
    ):
        for at in range(20):
            body = f"{large}{at}" if at % 3 else f"{at}"
            message = Message(body.encode(), tag="ab"[at % 2], properties={"at": str(at)})
            producer.send(name, message)
        send(server, name, 0, [WireMessage(body=b"damaged", tag="a", compression=COMPRESSION_LZ4)])
        rows = poll_rows(consumer, 10, with_properties=True)
        expected = {
            (f"{large}{at}" if at % 3 else f"{at}").encode(): [("at", str(at))]
            for at in range(0, 20, 2)
        }
        assert {row["body"]: row["properties"] for row in rows} == expected


def test_columns_are_polled_with_asyncio(server: str, name: str) -> None:
    bodies = fill(server, name, queues=2, each=10)

    async def main() -> None:
        found: set[bytes] = set()
        async with aio.Consumer(server, name, name, start="earliest") as consumer:
            async with asyncio.timeout(DEADLINE_S):
                while found != bodies:
                    batch = await consumer.poll_arrow()
                    found |= set(batch.column("body").to_pylist())
            batch = await consumer.poll_arrow(timeout_s=0)
            assert (batch.num_rows, batch.schema) == (0, message_schema(with_properties=False))

    asyncio.run(main())


def test_a_batch_of_messages_is_a_record_batch(server: str, name: str) -> None:
    fill(server, name, queues=1, each=10)
    with Consumer(server, name, name, start="earliest") as consumer:
        batch = consumer.poll_batch(timeout_s=DEADLINE_S)
        assert batch is not None
        assert batch.to_arrow().column("body").to_pylist() == batch.bodies
