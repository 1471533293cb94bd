"""Administration against a real broker, by both faces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mq.client import Admin, Consumer, Message, Producer, Sql, aio
from mq.errors import (
    GroupNotFound,
    IllegalConfig,
    IllegalRequest,
    IllegalTopic,
    MessageNotFound,
    TopicExists,
    TopicNotFound,
    Unreachable,
)
from mq.wire.v1.cluster_pb2 import TOPIC_NORMAL, TOPIC_ORDERED
from tests.support.broker_process import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


@pytest.fixture
def admin(broker: BrokerProcess) -> Iterator[Admin]:
    with Admin(broker.address) as made:
        yield made


@pytest.fixture
def producer(broker: BrokerProcess) -> Iterator[Producer]:
    with Producer(broker.address) as made:
        yield made


def test_topics_are_created_changed_described_and_deleted(admin: Admin) -> None:
    made = admin.create_topic("life", queues=3)
    assert (made.write_queues, made.read_queues, made.type) == (3, 3, TOPIC_NORMAL)
    assert (made.is_readable, made.is_writable, made.is_internal) == (True, True, False)
    with pytest.raises(TopicExists, match="life"):
        admin.create_topic("life", queues=5)
    altered = admin.alter_topic("life", write_queues=6, read_queues=6, is_writable=False)
    assert (altered.write_queues, altered.is_writable, altered.is_readable) == (6, False, True)
    described = admin.describe_topic("life")
    assert described.info.write_queues == 6
    assert [queue.queue_id for queue in described.queues] == list(range(6))
    assert "life" in [one.info.topic for one in admin.list_topics()]
    admin.delete_topic("life")
    assert "life" not in [one.info.topic for one in admin.list_topics()]
    with pytest.raises(TopicNotFound, match="life"):
        admin.describe_topic("life")


def test_a_topic_without_a_number_of_queues_gets_eight(admin: Admin) -> None:
    assert admin.create_topic("default").write_queues == 8
    assert admin.create_topic("in-order", 2, "ordered").type == TOPIC_ORDERED


def test_illegal_admin_requests_are_refused_by_client_or_broker(admin: Admin) -> None:
    with pytest.raises(IllegalTopic):
        admin.create_topic("no spaces")
    with pytest.raises(IllegalRequest, match="type"):
        admin.create_topic("x", type="strange")  # type: ignore[arg-type]
    with pytest.raises(IllegalRequest, match="queues is -1"):
        admin.create_topic("x", -1)
    with pytest.raises(IllegalRequest, match="earliest"):
        admin.reset_offsets("g", "x", "soon")  # type: ignore[arg-type]
    with pytest.raises(IllegalRequest, match="queue_offset is -1"):
        admin.browse_messages("x", 0, -1)
    with pytest.raises(IllegalConfig):
        admin.set_config("no.such.option", "1")


def test_messages_are_found_by_id_by_key_and_by_place(admin: Admin, producer: Producer) -> None:
    admin.create_topic("found", 1)
    sent = [
        Message(
            f"{n}".encode(),
            tag="odd" if n % 2 else "even",
            keys=[f"order-{n}"],
            properties={"n": f"{n}"},
        )
        for n in range(5)
    ]
    results = producer.send_batch("found", sent)
    stored = admin.get_message(results[3].message_id)
    assert (stored.message_id, stored.queue_offset) == (results[3].message_id, 3)
    assert (stored.message.body, stored.message.tag) == (b"3", "odd")
    with pytest.raises(MessageNotFound):
        admin.get_message(results[3].message_id + "0")
    [by_key] = admin.query_messages("found", "order-2")
    assert by_key.message.body == b"2"
    assert admin.query_messages("found", "order-2", begin_ms=by_key.stored_at_ms + 1) == []
    browsed = admin.browse_messages("found", 0, 1, max_messages=2)
    assert [one.message.body for one in browsed.messages] == [b"1", b"2"]
    assert browsed.next_offset == 3
    odd = admin.browse_messages("found", 0, 0, filter="odd")
    assert [one.message.body for one in odd.messages] == [b"1", b"3"]
    large = admin.browse_messages("found", 0, 0, filter=Sql("n > 2"))
    assert [one.message.body for one in large.messages] == [b"3", b"4"]


def test_groups_that_do_not_exist_are_not_found(admin: Admin) -> None:
    assert admin.list_groups() == []
    with pytest.raises(GroupNotFound):
        admin.describe_group("nobody")
    admin.create_topic("read")
    with pytest.raises(GroupNotFound):
        admin.reset_offsets("nobody", "read", "earliest")
    with pytest.raises(GroupNotFound):
        admin.delete_group("nobody")


def test_a_broker_counts_topics_and_queues_as_their_list_does(
    admin: Admin, broker: BrokerProcess
) -> None:
    admin.create_topic("counted", queues=5)
    with Producer(broker.address) as producer:
        producer.send("counted", b"fails once")
    with Consumer(broker.address, "counters", "counted", start="earliest") as consumer:
        [failed] = consumer.poll(timeout_s=30)
        consumer.nack(failed)
        consumer.commit()
    shown, every = admin.list_topics(), admin.list_topics(include_internal=True)
    assert len(every) > len(shown)
    status = admin.broker_status()
    assert status.topics - status.internal_topics == len(shown)
    assert status.internal_topics == len(every) - len(shown)
    assert status.topic_queues == sum(one.info.read_queues for one in shown)


def test_a_broker_tells_of_itself(admin: Admin, broker: BrokerProcess) -> None:
    status = admin.broker_status()
    assert (status.role, status.is_ready) == ("leader", True)
    assert status == admin.broker_status(broker.address) or status.term == 1
    route = admin.route(["no-such-topic"])
    [broker_set] = route.broker_sets
    assert [node.address for node in broker_set.nodes] == [broker.address]
    assert route.topics == []
    options = {one.name: one for one in admin.get_config()}
    dynamic = [one for one in options.values() if one.is_dynamic]
    assert dynamic
    [changed] = admin.set_config(dynamic[0].name, dynamic[0].value)
    assert changed.value == dynamic[0].value


def test_the_face_for_asyncio_does_the_same(broker: BrokerProcess) -> None:
    async def scenario() -> None:
        async with aio.Admin(broker.address) as admin:
            await admin.create_topic("from-asyncio", 2)
            described = await admin.describe_topic("from-asyncio")
            assert len(described.queues) == 2
            with pytest.raises(TopicExists):
                await admin.create_topic("from-asyncio", 3)
            assert (await admin.broker_status()).is_ready

    asyncio.run(scenario())


def test_without_a_broker_the_error_names_the_addresses(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "gone") as gone:
        address = gone.address
    with Admin([address, "127.0.0.1:1"], timeout_s=0.5) as admin:
        began_s = time.monotonic()
        reasons = rf"{address} \(connection refused\), 127.0.0.1:1 \(connection refused\)"
        with pytest.raises(Unreachable, match=reasons):
            admin.list_topics()
        assert time.monotonic() - began_s < 5
