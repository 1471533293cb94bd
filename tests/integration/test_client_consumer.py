"""The consumers against a real broker: places, filters, limits, and what a user hears of errors."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

import pytest

from mq.client import (
    Admin,
    Consumer,
    PullConsumer,
    PushConsumer,
    QueueRef,
    ReceivedMessage,
    Sql,
    aio,
)
from mq.errors import (
    IllegalFilter,
    IllegalOffset,
    NotAssigned,
    SubscriptionMismatch,
    TopicNotFound,
    Unreachable,
)
from mq.wire.v1 import admin_pb2
from mq.wire.v1.consumer_pb2 import OFFSET_EARLIEST
from mq.wire.v1.message_pb2 import COMPRESSION_LZ4, Message
from tests.support.broker_process import BrokerProcess
from tests.support.topics import (
    DEADLINE_S,
    call,
    committed,
    create_topic,
    eventually,
    fill,
    send,
    send_prepared,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker.address


def take(consumer: Consumer, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count}: {found}"
        found += consumer.poll(count - len(found))
    return found


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return [one.body for one in messages]


# Reading


def test_each_message_comes_once_in_the_order_of_its_queue_and_not_again(
    server: str, name: str
) -> None:
    sent = fill(server, name, queues=3, each=20)
    with Consumer(server, name, name, start="earliest") as consumer:
        found = take(consumer, 60)
        assert consumer.assignment == {QueueRef(name, at, "set-0") for at in range(3)}
    assert set(bodies(found)) == sent
    for queue_id in range(3):
        of_queue = [one for one in found if one.queue_id == queue_id]
        assert [one.queue_offset for one in of_queue] == list(range(20))
    assert committed(server, name, name) == {0: 20, 1: 20, 2: 20}
    send(server, name, 1, [b"new"])
    with Consumer(server, name, name, start="earliest") as consumer:
        assert bodies(take(consumer, 1)) == [b"new"]
        assert consumer.poll(timeout_s=0.2) == []


def test_a_message_has_its_id_its_times_and_all_that_was_sent(server: str, name: str) -> None:
    create_topic(server, name, 1)
    sent = Message(body=b"b", tag="t", keys=["k"], properties={"p": "v"}, born_at_ms=7)
    before_ms = time.time_ns() // 1_000_000
    send(server, name, 0, [b"first", sent])
    with Consumer(server, name, name, start="earliest") as consumer:
        found = take(consumer, 2)[1]
    assert (found.body, found.tag, found.keys) == (b"b", "t", ("k",))
    assert (found.properties, found.born_at_ms) == ({"p": "v"}, 7)
    assert found.stored_at_ms >= before_ms
    request = admin_pb2.GetMessageRequest(message_id=found.message_id)
    stored = call(server, "AdminService/GetMessage", request, admin_pb2.StoredMessage)
    assert (stored.queue_offset, stored.message.body) == (1, b"b")


def test_latest_is_what_comes_after_the_first_visit_also_when_nothing_was_consumed(
    server: str, name: str
) -> None:
    fill(server, name, queues=1, each=5)
    with Consumer(server, name, name) as consumer:
        assert consumer.poll(timeout_s=0.2) == []
    send(server, name, 0, [b"between"])
    with Consumer(server, name, name) as consumer:
        assert bodies(take(consumer, 1)) == [b"between"]


def test_uncommitted_messages_are_redelivered_to_the_next_consumer(server: str, name: str) -> None:
    fill(server, name, queues=1, each=5)

    def fail() -> None:
        with Consumer(server, name, name, start="earliest") as consumer:
            take(consumer, 3)
            consumer.commit()
            consumer.poll()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert committed(server, name, name) == {0: 3}
    with Consumer(server, name, name) as consumer:
        assert bodies(take(consumer, 2)) == [b"0-3", b"0-4"]


def test_progress_is_committed_while_the_consumer_runs(server: str, name: str) -> None:
    fill(server, name, queues=1, each=5)
    with Consumer(server, name, name, start="earliest", auto_commit=False) as consumer:
        found = take(consumer, 5)
        consumer.done(found[0], found[2])
        eventually(lambda: committed(server, name, name) == {0: 1})
        consumer.done(found[1])
        eventually(lambda: committed(server, name, name) == {0: 3})


def test_queues_that_are_added_are_consumed_from_their_beginning(server: str, name: str) -> None:
    create_topic(server, name, 1)
    with Consumer(server, name, name) as consumer:
        assert consumer.poll(timeout_s=0.1) == []
        request = admin_pb2.AlterTopicRequest(topic=name, write_queues=3, read_queues=3)
        call(server, "AdminService/AlterTopic", request, admin_pb2.TopicInfo)
        send(server, name, 2, [b"on a new queue"])
        assert bodies(take(consumer, 1)) == [b"on a new queue"]


# Places


def test_seeking_by_offset_and_by_name(server: str, name: str) -> None:
    fill(server, name, queues=2, each=10)
    with Consumer(server, name, name, start="earliest") as consumer:
        take(consumer, 20)
        consumer.seek(name, 0, 7)
        assert bodies(take(consumer, 3)) == [b"0-7", b"0-8", b"0-9"]
        consumer.seek_to_earliest()
        assert len(set(bodies(take(consumer, 20)))) == 20
        consumer.seek_to_earliest(name)
        consumer.seek_to_latest()
        assert consumer.poll(timeout_s=0.2) == []
        send(server, name, 1, [b"new"])
        assert bodies(take(consumer, 1)) == [b"new"]
        with pytest.raises(IllegalOffset, match="which is 10"):
            consumer.seek(name, 0, 11)
        with pytest.raises(NotAssigned):
            consumer.pause((name, 5))


def test_seeking_by_time(server: str, name: str) -> None:
    create_topic(server, name, 1)
    send(server, name, 0, [b"old"])
    with PullConsumer(server) as puller:
        old_ms = puller.pull(name, 0, 0).messages[0].stored_at_ms
    eventually(lambda: time.time_ns() // 1_000_000 > old_ms + 5)
    send(server, name, 0, [b"new"])
    with Consumer(server, name, name) as consumer:
        consumer.seek_to_time(old_ms + 1)
        assert bodies(take(consumer, 1)) == [b"new"]
        consumer.seek_to_time(old_ms)
        assert bodies(take(consumer, 2)) == [b"old", b"new"]
    with Consumer(server, f"{name}-2", name, start=old_ms + 1) as consumer:
        assert bodies(take(consumer, 1)) == [b"new"]


def test_a_seek_holds_for_the_group_when_the_consumer_is_gone(server: str, name: str) -> None:
    fill(server, name, queues=1, each=10)
    with Consumer(server, name, name, start="earliest") as consumer:
        take(consumer, 10)
        consumer.commit()
        consumer.seek(name, 0, 4)
    with Consumer(server, name, name) as consumer:
        assert bodies(take(consumer, 1)) == [b"0-4"]


def test_a_reset_by_an_operator_moves_a_consumer_that_runs(server: str, name: str) -> None:
    fill(server, name, queues=1, each=5)
    with Consumer(server, name, name, start="earliest") as consumer:
        take(consumer, 5)
        request = admin_pb2.ResetOffsetsRequest(group=name, topic=name, kind=OFFSET_EARLIEST)
        call(server, "AdminService/ResetOffsets", request, admin_pb2.ResetOffsetsResponse)
        assert bodies(take(consumer, 5)) == [b"0-%d" % at for at in range(5)]


# Filters


def test_tags_choose_messages_and_the_others_are_done(server: str, name: str) -> None:
    create_topic(server, name, 1)
    send(server, name, 0, [Message(body=tag.encode(), tag=tag) for tag in ("a", "b", "c", "a")])
    send(server, name, 0, [Message(tag="b")] * 50)
    with Consumer(server, name, {name: "a || c"}, start="earliest") as consumer:
        assert bodies(take(consumer, 3)) == [b"a", b"c", b"a"]
        consumer.poll(timeout_s=0.0)
        eventually(lambda: committed(server, name, name) == {0: 54})


def test_sql_chooses_messages_by_their_properties(server: str, name: str) -> None:
    create_topic(server, name, 1)
    sent = [
        Message(body=b"%d" % at, properties={"amount": str(at), "region": "EU" if at % 2 else "US"})
        for at in range(20)
    ]
    send(server, name, 0, sent)
    chosen = Sql("region = 'EU' AND amount > 14")
    with Consumer(server, name, {name: chosen}, start="earliest") as consumer:
        assert bodies(take(consumer, 3)) == [b"15", b"17", b"19"]
    with pytest.raises(IllegalFilter), Consumer(server, "g", {name: Sql("region =")}) as consumer:
        consumer.poll(timeout_s=DEADLINE_S)


def test_an_unreadable_message_stops_no_consumer(
    server: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    create_topic(server, name, 1)
    good = [Message(body=b"%d" % at).SerializeToString() for at in range(3)]
    bad = Message(body=b"this is no LZ4", compression=COMPRESSION_LZ4).SerializeToString()
    unknown = b"\x0a\x01x\x38\x07"  # a compression that will be known one day
    send_prepared(server, name, 0, [good[0], bad, good[1], unknown, good[2]])
    with Consumer(server, name, name, start="earliest") as consumer:
        assert bodies(take(consumer, 3)) == [b"0", b"1", b"2"]
        assert consumer.unreadable_messages == 2
    assert committed(server, name, name) == {0: 5}
    assert "is passed over" in caplog.text
    with PullConsumer(server) as puller:
        assert bodies(puller.pull(name, 0, 0).messages) == [b"0", b"1", b"2"]
        assert puller.unreadable_messages == 2


# Limits


def test_a_slow_consumer_is_sent_no_more_than_it_wants_to_keep(server: str, name: str) -> None:
    fill(server, name, queues=2, each=200)
    with Consumer(server, name, name, start="earliest", cache_messages=10) as consumer:
        take(consumer, 1)
        buffer = consumer._client._session.buffer
        eventually(lambda: sum(buffer.cached_messages.values()) == 19)
        assert consumer.poll(1)
        for _ in range(10):
            time.sleep(0.02)
            assert all(count <= 10 for count in buffer.cached_messages.values())
        assert len(take(consumer, 398)) == 398


def test_large_messages_are_limited_by_their_bytes(server: str, name: str) -> None:
    create_topic(server, name, 1)
    for _ in range(8):
        send(server, name, 0, [bytes(100_000)] * 4)
    with Consumer(server, name, name, start="earliest", cache_bytes=300_000) as consumer:
        take(consumer, 1)
        for _ in range(10):
            time.sleep(0.02)
            assert consumer._client._session.buffer.cached_messages[QueueRef(name, 0, "set-0")] <= 3
        assert len(take(consumer, 31)) == 31


# Push


def test_threads_handle_everything_and_failures_again(server: str, name: str) -> None:
    sent = fill(server, name, queues=4, each=250)
    handled: list[bytes] = []
    failed: set[bytes] = set()

    def handle(message: ReceivedMessage) -> None:
        if message.queue_offset % 50 == 7 and message.body not in failed:
            failed.add(message.body)
            raise ValueError(message.body)
        handled.append(message.body)

    options = {"start": "earliest", "threads": 8, "retry_delay_s": 0.05}
    with PushConsumer(server, name, name, handle, **options):  # type: ignore[arg-type]
        eventually(lambda: len(handled) == 1000)
    assert set(handled) == sent
    assert len(failed) == 20
    assert committed(server, name, name) == dict.fromkeys(range(4), 250)


def test_ordered_queues_are_handled_one_by_one(server: str, name: str) -> None:
    fill(server, name, queues=4, each=50)
    handled: dict[int, list[int]] = {at: [] for at in range(4)}
    working: set[int] = set()
    lock = threading.Lock()

    def handle(message: ReceivedMessage) -> None:
        with lock:
            assert message.queue_id not in working
            working.add(message.queue_id)
        time.sleep(0.0005)
        with lock:
            working.remove(message.queue_id)
            handled[message.queue_id].append(message.queue_offset)

    with PushConsumer(server, name, name, handle, mode="ordered", start="earliest"):
        eventually(lambda: all(len(one) == 50 for one in handled.values()))
    assert all(one == list(range(50)) for one in handled.values())


def test_coroutines_handle_everything(server: str, name: str) -> None:
    sent = fill(server, name, queues=3, each=100)

    async def story() -> None:
        handled: list[bytes] = []
        has_all = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            await asyncio.sleep(0.001)
            handled.append(message.body)
            if len(handled) == len(sent):
                has_all.set()

        async with (
            asyncio.timeout(DEADLINE_S),
            aio.PushConsumer(server, name, name, handle, start="earliest"),
        ):
            await has_all.wait()
        assert sorted(handled) == sorted(sent)

    asyncio.run(story())
    assert committed(server, name, name) == dict.fromkeys(range(3), 100)


# Broadcast


def test_every_broadcast_member_gets_everything(server: str, name: str) -> None:
    sent = fill(server, name, queues=2, each=10)
    members = [Consumer(server, name, name, mode="broadcast", start="earliest") for _ in range(3)]
    for member in members:
        assert set(bodies(take(member, 20))) == sent
    for member in members:
        member.close()
    assert committed(server, name, name) == {}


def test_a_broadcast_member_goes_on_from_its_file(server: str, name: str, tmp_path: Path) -> None:
    fill(server, name, queues=1, each=10)
    path = tmp_path / "offsets.json"

    def consumer() -> Consumer:
        return Consumer(server, name, name, mode="broadcast", start="earliest", offsets_file=path)

    with consumer() as first:
        assert len(take(first, 4)) == 4
    with consumer() as second:
        assert bodies(take(second, 6)) == [b"0-%d" % at for at in range(4, 10)]


# Errors


def test_a_member_with_another_subscription_hears_of_both(server: str, name: str) -> None:
    create_topic(server, name, 2)
    with Consumer(server, name, {name: "paid"}, member_id="first-one") as first:
        first.poll(timeout_s=0.1)
        eventually(lambda: first.assignment)
        second = Consumer(server, name, {name: "shipped"}, member_id="second-one")
        with pytest.raises(SubscriptionMismatch) as mismatch:
            second.poll(timeout_s=DEADLINE_S)
        second.close()
        text = str(mismatch.value)
        assert all(word in text for word in ("first-one", "second-one", "paid", "shipped"))
        pushing = PushConsumer(server, name, {name: "shipped"}, print)
        with pytest.raises(SubscriptionMismatch):
            pushing.start()
        assert first.poll(timeout_s=0.1) == []


def test_a_consumer_may_be_there_before_its_topic(server: str, name: str) -> None:
    with Consumer(server, name, name) as consumer:
        assert consumer.poll(timeout_s=0.2) == []
        send(server, name, 0, [b"first"])
        assert bodies(take(consumer, 1)) == [b"first"]


def test_a_consumer_of_a_topic_with_a_slip_in_its_name_creates_none_and_says_once_what_is_there(
    server: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    send(server, f"{name}-orders", 0, [b"elsewhere"])
    slip = f"{name}-ordres"
    with Consumer(server, name, slip) as consumer:
        eventually(lambda: consumer.poll(timeout_s=0.1) == [] and said(caplog, slip))
        assert consumer.poll(timeout_s=1.5) == []
        with Admin(server) as admin:
            assert slip not in {one.info.topic for one in admin.list_topics()}
        [text] = said(caplog, slip)
        assert text == (
            f"topic {slip} does not exist: group {name} waits until it is created, "
            f"or did you mean {name}-orders?"
        )


def said(caplog: pytest.LogCaptureFixture, topic: str) -> list[str]:
    return [text for text in caplog.messages if f"topic {topic} does not exist" in text]


def test_a_topic_that_does_not_exist_is_an_error_where_none_is_made(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", "--broker-auto-create-topics", "no") as broker:
        with (
            pytest.raises(TopicNotFound, match="no-such"),
            Consumer(broker.address, "g", "no-such") as consumer,
        ):
            consumer.poll(timeout_s=DEADLINE_S)
        with pytest.raises(TopicNotFound, match="no-such"):
            PushConsumer(broker.address, "g", "no-such", print).start()


def test_without_a_broker_a_start_names_the_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq.client.consumer.push.JOIN_S", 0.5)
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
        PushConsumer("127.0.0.1:1", "g", "t", print).start()
    with Consumer("127.0.0.1:1", "g", "t") as consumer:
        assert consumer.poll(timeout_s=0.1) == []
