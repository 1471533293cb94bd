"""Topics with priorities against a real broker: producers, consumers, administration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mq.client import Admin, Consumer, Message, Producer, PullConsumer
from mq.errors import IllegalRequest
from tests.support.broker_process import BrokerProcess
from tests.support.topics import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process.address


def test_messages_stand_in_queues_of_their_priority_and_high_comes_first(server: str) -> None:
    with Admin(server) as admin:
        assert admin.create_topic("jobs", queues=4, priorities=2).priorities == 2
    with Producer(server) as producer:
        for n in range(300):
            low = Message(b"low %d" % n, ordering_key="k" if n % 3 else "")
            producer.send_async("jobs", low)
        results = [producer.send_async("jobs", Message(b"high", priority=1)) for _ in range(300)]
        assert {future.result(30).queue_id % 2 for future in results} == {1}
        batch: list[Message | bytes] = [Message(b"low"), Message(b"high", priority=1), b"low"]
        sent = producer.send_batch("jobs", batch)
        assert [one.queue_id % 2 for one in sent] == [0, 1, 0]
        with pytest.raises(IllegalRequest, match="priority 2"):
            producer.send("jobs", Message(b"none", priority=2))
    with PullConsumer(server) as puller:
        for topic, queue_id, _ in puller.queues("jobs"):
            found = puller.pull(topic, queue_id, 0, max_messages=1_000).messages
            assert all(one.body.startswith(b"high" if queue_id % 2 else b"low") for one in found)
    with Consumer(server, "workers", "jobs", start="earliest") as consumer:
        consumer._background.run(consumer._client._session.joined(30))
        buffer = consumer._client._session.buffer
        eventually(lambda: sum(buffer.cached_messages.values()) == 603, "not all has come")
        bodies = [consumer.poll(1)[0].body for _ in range(603)]
    assert sum(body == b"high" for body in bodies[:100]) == 90
    assert sum(body == b"high" for body in bodies[:330]) >= 290


def test_a_priority_means_nothing_elsewhere(server: str) -> None:
    with Producer(server) as producer:
        assert producer.send("plain", Message(b"x", priority=9)).status == "SEND_OK"
