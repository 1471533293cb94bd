"""Producers against a real broker: results, order, the end, and a broker that dies in between."""

from __future__ import annotations

import asyncio
import concurrent.futures
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import lz4.frame
import pytest

from mq.client import Admin, Message, Producer, SendResult, aio
from mq.errors import (
    ClientClosed,
    IllegalConfig,
    IllegalTopic,
    MessageTooLarge,
    PermissionDenied,
    QueueNotFound,
    TopicNotFound,
    Unreachable,
)
from mq.hashing import text_hash
from mq.wire.v1.admin_pb2 import StoredMessage
from mq.wire.v1.message_pb2 import COMPRESSION_LZ4
from tests.support.broker_process import BrokerProcess

DEADLINE_S = 30.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


@pytest.fixture
def admin(broker: BrokerProcess) -> Iterator[Admin]:
    with Admin(broker.address) as made:
        yield made


def read_queue(admin: Admin, topic: str, queue_id: int) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    while True:
        page = admin.browse_messages(topic, queue_id, len(found), max_messages=1000)
        if not page.messages:
            return found
        found += page.messages


def read_all(admin: Admin, topic: str) -> list[list[StoredMessage]]:
    """The messages of each queue."""
    queues = admin.describe_topic(topic).queues
    return [read_queue(admin, topic, queue.queue_id) for queue in queues]


def bodies(queues: Sequence[Sequence[StoredMessage]]) -> Counter[bytes]:
    return Counter(stored.message.body for queue in queues for stored in queue)


def test_a_message_is_where_its_result_says(broker: BrokerProcess, admin: Admin) -> None:
    sent = Message(
        b"paid",
        tag="orders",
        keys=["order-7", "customer-3"],
        properties={"region": "EU"},
        ordering_key="customer-3",
    )
    began_ms = time.time_ns() // 1_000_000
    with Producer(broker.address) as producer:
        result = producer.send("first", sent)
    assert result.status == "SEND_OK"
    assert result.queue_id == text_hash("customer-3") % 8
    stored = admin.get_message(result.message_id)
    assert (stored.topic, stored.queue_id, stored.queue_offset) == (
        "first",
        result.queue_id,
        result.queue_offset,
    )
    assert stored.stored_at_ms == result.stored_at_ms >= began_ms
    message = stored.message
    assert (message.body, message.tag, list(message.keys)) == (sent.body, "orders", sent.keys)
    assert dict(message.properties) == sent.properties
    assert (message.ordering_key, message.born_at_ms >= began_ms) == ("customer-3", True)


def test_every_result_of_many_batches_points_at_its_message(
    broker: BrokerProcess, admin: Admin
) -> None:
    with Producer(broker.address, batch_bytes=2000) as producer:
        futures = [producer.send_async("pointed", f"{n}".encode()) for n in range(2000)]
        results = [future.result(DEADLINE_S) for future in futures]
    places = {
        (stored.queue_id, stored.queue_offset): stored
        for queue in read_all(admin, "pointed")
        for stored in queue
    }
    assert len(places) == 2000
    for number, result in enumerate(results):
        stored = places[result.queue_id, result.queue_offset]
        assert stored.message.body == f"{number}".encode()
        assert stored.message_id == result.message_id


def check_places(admin: Admin, topic: str, results: Sequence[SendResult]) -> None:
    """Each result points at its message, whose body begins with its index."""
    places = {
        (stored.queue_id, stored.queue_offset): stored
        for queue in read_all(admin, topic)
        for stored in queue
    }
    assert len(places) == len(results)
    for number, result in enumerate(results):
        stored = places[result.queue_id, result.queue_offset]
        assert stored.message.body.split()[0] == b"%d" % number
        assert stored.message_id == result.message_id


def test_many_messages_at_once_are_where_their_results_say(
    broker: BrokerProcess, admin: Admin
) -> None:
    sent = [b"%d " % n + bytes(n % 700) for n in range(5_000)]
    mixed: list[Message | bytes | str] = [
        Message(body, tag="tagged", keys=[f"k-{n}"]) if n % 7 == 0 else body
        for n, body in enumerate(sent)
    ]
    with Producer(broker.address, batch_bytes=20_000) as producer:
        check_places(admin, "bulk", results := producer.send_many("bulk", sent))
        assert len({result.queue_id for result in results}) > 1
        check_places(admin, "bulk-mixed", producer.send_many("bulk-mixed", mixed))

    async def scenario() -> Sequence[SendResult]:
        async with aio.Producer(broker.address) as producer:
            return await producer.send_many("bulk-aio", sent)

    check_places(admin, "bulk-aio", asyncio.run(scenario()))


def test_of_many_messages_the_illegal_one_is_named(broker: BrokerProcess, admin: Admin) -> None:
    with Producer(broker.address) as producer:
        messages = [b"x"] * 700 + [bytes((4 << 20) + 1)] + [b"x"] * 299
        with pytest.raises(MessageTooLarge, match="message 700 of 1000"):
            producer.send_many("bulk-illegal", messages)
        assert bodies(read_all(admin, "bulk-illegal")) == {b"x": 999}
        results = producer.send_many("bulk-illegal", messages, return_exceptions=True)
        assert list(results.errors) == [700]


def test_large_bodies_are_compressed_and_small_ones_are_not(
    broker: BrokerProcess, admin: Admin
) -> None:
    with Producer(broker.address) as producer:
        large = admin.get_message(producer.send("sizes", b"x" * 100_000).message_id).message
        small = admin.get_message(producer.send("sizes", b"x" * 4096).message_id).message
    assert large.compression == COMPRESSION_LZ4
    assert lz4.frame.decompress(large.body) == b"x" * 100_000
    assert small.body == b"x" * 4096


def test_the_largest_message_is_stored(broker: BrokerProcess, admin: Admin) -> None:
    body = bytes(4 * 1024 * 1024)
    with Producer(broker.address, compress_above_bytes=1 << 30) as producer:
        result = producer.send("sizes", body)
        assert len(admin.get_message(result.message_id).message.body) == len(body)
        with pytest.raises(MessageTooLarge):
            producer.send("sizes", body + b"x")
    with Producer(broker.address) as producer:
        large = producer.send("sizes", Message(body, tag="t", properties={"a": "b" * 16_000}))
        assert len(admin.get_message(large.message_id).message.body) < 100_000
        with pytest.raises(MessageTooLarge):
            producer.send("sizes", body + b"x")
        batch = producer.send_batch("sizes", [bytes(1 << 20)] * 3)
        assert [one.queue_offset - batch[0].queue_offset for one in batch] == [0, 1, 2]


def test_keys_keep_their_order_and_messages_without_spread(
    broker: BrokerProcess, admin: Admin
) -> None:
    def send(name: int) -> None:
        for number in range(1000):
            key = f"key-{name}" if number % 2 else ""
            producer.send_async("ordered", Message(f"{name}:{number}".encode(), ordering_key=key))

    with Producer(broker.address, batch_bytes=4000) as producer:
        threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    queues = read_all(admin, "ordered")
    assert sum(map(len, queues)) == 4000
    for name in range(4):
        queue = queues[text_hash(f"key-{name}") % 8]
        mine = [one.message.body for one in queue if one.message.ordering_key == f"key-{name}"]
        assert mine == [f"{name}:{number}".encode() for number in range(1, 1000, 2)]
    free = [sum(not one.message.ordering_key for one in queue) for queue in queues]
    assert sum(count > 0 for count in free) >= 4


def test_close_loses_no_message_of_any_kind_of_send(broker: BrokerProcess, admin: Admin) -> None:
    producer = Producer(broker.address, linger_ms=10_000)
    futures = [producer.send_async("closed", f"async {n}") for n in range(500)]
    for n in range(500):
        producer.send_one_way("closed", f"one-way {n}")
    producer.close()
    assert all(future.done() for future in futures)
    assert sum(map(len, read_all(admin, "closed"))) == 1000
    with pytest.raises(RuntimeError, match="closed"):
        producer.send("closed", b"late")
    producer.close()


def test_a_producer_that_was_used_and_is_closed_says_so(broker: BrokerProcess) -> None:
    producer = Producer(broker.address)
    result = producer.send("closed", Message(b"x", delay_s=3600))
    producer.close()
    sends: list[Callable[[], object]] = [
        lambda: producer.send("closed", b"x"),
        lambda: producer.send_async("closed", b"x"),
        lambda: producer.send_one_way("closed", b"x"),
        lambda: producer.send_batch("closed", [b"x"]),
        lambda: producer.recall(result),
    ]
    for send in sends:
        with pytest.raises(ClientClosed, match="make another one"):
            send()


@pytest.mark.parametrize("ack", ["leader", "none"])
def test_weaker_acknowledgement_stores_the_same(
    broker: BrokerProcess, admin: Admin, ack: str
) -> None:
    topic = f"ack-{ack}"
    with Producer(broker.address, ack=ack) as producer:  # type: ignore[arg-type]
        result = producer.send(topic, b"first")
        assert result.status == ("SENT" if ack == "none" else "SEND_OK")
        for n in range(1000):
            producer.send_one_way(topic, f"{n}")
        producer.flush(DEADLINE_S)
    deadline = time.monotonic() + DEADLINE_S
    while sum(map(len, read_all(admin, topic))) < 1001 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sum(map(len, read_all(admin, topic))) == 1001


def test_a_batch_that_is_sent_again_is_stored_once(broker: BrokerProcess, admin: Admin) -> None:
    def send() -> list[SendResult]:
        with Producer(broker.address, producer_id="again") as producer:
            return producer.send_batch("once", [b"a", b"b"], queue_id=2)

    first, second = send(), send()
    assert [one.is_duplicate for one in first] == [False, False]
    assert second == [one._replace(is_duplicate=True) for one in first]
    assert bodies(read_all(admin, "once")) == {b"a": 1, b"b": 1}


def test_without_idempotence_it_is_stored_again(broker: BrokerProcess, admin: Admin) -> None:
    for _ in range(2):
        with Producer(broker.address, idempotent=False, producer_id="again") as producer:
            assert not producer.send("twice", b"a").is_duplicate
    assert bodies(read_all(admin, "twice")) == {b"a": 2}


def test_an_unsendable_message_is_refused_with_its_own_error(
    broker: BrokerProcess, admin: Admin
) -> None:
    admin.create_topic("read-only", 2)
    admin.alter_topic("read-only", is_writable=False)
    with Producer(broker.address) as producer:
        with pytest.raises(IllegalTopic, match="no spaces"):
            producer.send("no spaces", b"")
        with pytest.raises(MessageTooLarge):
            producer.send("t", Message(b"", properties={"x": "y" * 20_000}))
        with pytest.raises(PermissionDenied):
            producer.send("read-only", b"")
        with pytest.raises(PermissionDenied):
            producer.send("%DLQ%group", b"")
        with pytest.raises(QueueNotFound):
            producer.send("t", b"", queue_id=8)
        with pytest.raises(TypeError):
            producer.send("t", 7)  # type: ignore[arg-type]
        assert producer.send("t", b"still works").status == "SEND_OK"
    with pytest.raises(IllegalConfig):
        Producer(broker.address, ack="some")  # type: ignore[arg-type]
    with pytest.raises(IllegalConfig):
        Producer("nowhere")


def test_topics_are_not_created_where_that_is_switched_off(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", "--broker-auto-create-topics", "no") as strict,
        Producer(strict.address) as producer,
        pytest.raises(TopicNotFound, match="missing"),
    ):
        producer.send("missing", b"")


def test_a_topic_that_is_deleted_while_it_is_written_is_created_again(
    broker: BrokerProcess, admin: Admin
) -> None:
    with Producer(broker.address) as producer:
        producer.send("deleted", b"1")
        admin.delete_topic("deleted")
        assert producer.send("deleted", b"2").status == "SEND_OK"


def test_a_topic_that_shrinks_while_it_is_written_loses_nothing(
    broker: BrokerProcess, admin: Admin
) -> None:
    admin.create_topic("shrinks", 16)
    with Producer(broker.address, batch_bytes=2000) as producer:
        futures = []
        for number in range(3000):
            message = Message(f"{number}".encode(), ordering_key=f"{number % 50}")
            futures.append(producer.send_async("shrinks", message))
            if number == 1000:
                admin.alter_topic("shrinks", write_queues=3)
        assert all(future.result(DEADLINE_S).status == "SEND_OK" for future in futures)
    found = bodies(read_all(admin, "shrinks"))
    assert found == Counter(f"{number}".encode() for number in range(3000))


def test_a_broker_that_is_killed_and_comes_back_loses_and_repeats_nothing(tmp_path: Path) -> None:
    keys, count = 5, 6000
    with BrokerProcess(tmp_path / "data") as broker:
        with Producer(broker.address, timeout_s=20, batch_bytes=4000) as producer:
            futures = []
            for number in range(count):
                message = Message(f"{number}".encode(), ordering_key=f"{number % keys}")
                futures.append(producer.send_async("survives", message))
                if number in (count // 3, 2 * count // 3):
                    futures[number // 2].result(DEADLINE_S)
                    broker.kill()
                    broker.start()
            results = [future.result(DEADLINE_S) for future in futures]
        with Admin(broker.address) as admin:
            queues = read_all(admin, "survives")
        assert bodies(queues) == Counter(f"{number}".encode() for number in range(count))
        for key in range(keys):
            queue = queues[text_hash(f"{key}") % 8]
            mine = [int(one.message.body) for one in queue if one.message.ordering_key == f"{key}"]
            assert mine == list(range(key, count, keys))
        for number, result in enumerate(results):
            if result.queue_offset >= 0:
                stored = queues[result.queue_id][result.queue_offset]
                assert stored.message.body == f"{number}".encode()


def test_a_broker_that_stays_away_fails_messages_in_time(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        producer = Producer(broker.address, timeout_s=1.0)
        producer.send("t", b"")
        broker.kill()
        began_s = time.monotonic()
        future = producer.send_async("t", b"lost")
        with pytest.raises(Unreachable, match=broker.address):
            producer.send("t", b"lost, too")
        assert time.monotonic() - began_s < 5
        producer.close()
        assert isinstance(future.exception(), Unreachable)


def test_a_send_waits_no_longer_than_its_timeout(broker: BrokerProcess) -> None:
    with Producer("127.0.0.1:1", timeout_s=20) as producer:
        began_s = time.monotonic()
        with pytest.raises(Unreachable):
            producer.send("t", b"", timeout_s=0.2)
        assert time.monotonic() - began_s < 5
    with Producer(broker.address, buffer_bytes=1, linger_ms=10_000) as producer:
        producer.send("t", b"")
        producer.send_one_way("t", b"fills the buffer, and lingers")
        with pytest.raises(Unreachable):
            producer.send("t", b"", timeout_s=0.2)


def test_the_face_for_asyncio_does_the_same(broker: BrokerProcess, admin: Admin) -> None:
    async def scenario() -> list[SendResult]:
        async with aio.Producer(broker.address, linger_ms=1) as producer:
            one = await producer.send("from-asyncio", Message(b"one", tag="x"))
            many = await asyncio.gather(*(producer.send("from-asyncio", "m") for _ in range(100)))
            future = await producer.send_async("from-asyncio", b"f")
            batch = await producer.send_batch("from-asyncio", [b"b", b"b"], queue_id=1)
            await producer.send_one_way("from-asyncio", b"w")
            await producer.flush()
            assert future.done()
            with pytest.raises(IllegalTopic):
                await producer.send("no spaces", b"")
            return [one, *many, await future, *batch]

    results = asyncio.run(scenario())
    assert len({result.message_id for result in results}) == 104
    found = bodies(read_all(admin, "from-asyncio"))
    assert found == {b"one": 1, b"m": 100, b"f": 1, b"b": 2, b"w": 1}


def test_a_full_buffer_makes_threads_wait_and_loses_nothing(
    broker: BrokerProcess, admin: Admin
) -> None:
    def send() -> None:
        for _ in range(500):
            producer.send_one_way("narrow", b"x" * 1000)

    with Producer(broker.address, buffer_bytes=20_000, batch_bytes=5000) as producer:
        threads = [threading.Thread(target=send) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
    assert sum(map(len, read_all(admin, "narrow"))) == 1500


def test_futures_are_futures(broker: BrokerProcess) -> None:
    with Producer(broker.address) as producer:
        called = threading.Event()
        futures = [producer.send_async("futures", f"{n}") for n in range(100)]
        futures[0].add_done_callback(lambda _: called.set())
        done, pending = concurrent.futures.wait(futures, DEADLINE_S)
        assert (len(done), len(pending)) == (100, 0)
        assert len(list(concurrent.futures.as_completed(futures, DEADLINE_S))) == 100
        assert called.wait(DEADLINE_S)
        assert not futures[0].cancel()


def test_a_callback_that_would_wait_for_itself_raises(broker: BrokerProcess) -> None:
    errors: list[BaseException] = []

    def callback(_: object) -> None:
        try:
            producer.send("callbacks", b"waits")
        except RuntimeError as error:
            errors.append(error)

    # It lingers, so that the callback is there before the answer is: later, it is called at once.
    with Producer(broker.address, linger_ms=500) as producer:
        future = producer.send_async("callbacks", b"x")
        future.add_done_callback(callback)
        future.result(DEADLINE_S)
        producer.flush(DEADLINE_S)
    deadline = time.monotonic() + DEADLINE_S
    while not errors and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "must not wait" in str(errors[0])


def run_script(text: str, address: str) -> str:
    """A process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", text, address],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_program_that_forgets_to_close_loses_nothing(broker: BrokerProcess, admin: Admin) -> None:
    script = """
import sys
from mq.client import Producer
producer = Producer(sys.argv[1], linger_ms=10_000)
for n in range(100):
    producer.send_one_way("forgotten", f"{n}")
"""
    run_script(script, broker.address)
    assert sum(map(len, read_all(admin, "forgotten"))) == 100


def test_clients_raise_in_a_child_process(broker: BrokerProcess) -> None:
    script = """
import os, sys
from mq.client import Producer
producer = Producer(sys.argv[1])
producer.send("forked", b"parent")
if os.fork() == 0:
    for attempt in (lambda: producer.send_async("forked", b"child"), lambda: Producer(sys.argv[1])):
        try:
            attempt()
        except RuntimeError as error:
            print(error, flush=True)
    os._exit(0)
_, status = os.wait()
assert status == 0, status
producer.send("forked", b"parent again")
producer.close()
"""
    assert run_script(script, broker.address).count("was forked from one that had clients") == 2


def test_a_process_that_forks_first_uses_clients_on_both_sides(broker: BrokerProcess) -> None:
    script = """
import os, sys
from mq.client import Producer
child = os.fork()
with Producer(sys.argv[1]) as producer:
    line = producer.send("forked", b"").status + "\\n"
    os.write(1, line.encode())  # in one piece: both write to the same pipe
if child:
    _, status = os.wait()
    assert status == 0, status
"""
    assert run_script(script, broker.address).split() == ["SEND_OK", "SEND_OK"]


def test_two_hundred_thousand_messages(
    broker: BrokerProcess, admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prints how long it takes: machines differ, so nothing is asserted about that."""
    count, body = 200_000, b"x" * 128
    with Producer(broker.address, timeout_s=30) as producer:
        producer.send("many", b"")
        began_s, cpu_s = time.perf_counter(), time.process_time()
        futures = [producer.send_async("many", body) for _ in range(count)]
        producer.flush(120)
        took_s = time.perf_counter() - began_s
        cpu_s = time.process_time() - cpu_s
    assert all(future.result().status == "SEND_OK" for future in futures)
    described = admin.describe_topic("many")
    assert sum(queue.end - queue.start for queue in described.queues) == count + 1
    with capsys.disabled():
        rate, each_us = count / took_s, cpu_s / count * 1e6
        sys.stdout.write(f"\n{rate:,.0f} messages/s of 128 bytes, {each_us:.1f} us of CPU each\n")


def test_messages_that_come_while_the_queues_of_a_topic_are_asked_for_keep_their_order(
    broker: BrokerProcess,
) -> None:
    async def sent(topic: str) -> list[int]:
        async with aio.Producer(broker.address) as producer:
            tasks = []
            for number in range(12):
                message = Message(b"%d" % number, ordering_key="key")
                tasks.append(asyncio.create_task(producer.send(topic, message)))
                # About as long as an answer takes: some of them come just when it is there.
                await asyncio.sleep(0.001)
            return [result.queue_offset for result in await asyncio.gather(*tasks)]

    for attempt in range(40):
        assert asyncio.run(sent(f"unknown-{attempt}")) == list(range(12))
