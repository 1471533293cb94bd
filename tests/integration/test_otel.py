"""Spans of clients, with a real broker: from a producer over the broker to all kinds of consumers,
linked by what the messages carry.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from mq.client import (
    Consumer,
    Message,
    Nack,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Resolution,
    SimpleConsumer,
    TransactionProducer,
    aio,
    otel,
)
from mq.errors import MqError
from tests.support.broker_process import BrokerProcess
from tests.support.topics import create_topic, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

OTHER_PROCESS = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from mq.client import Producer, otel

provider = TracerProvider()
assert otel.instrument(provider)
with Producer(sys.argv[1]) as producer, \\
        provider.get_tracer("shop").start_as_current_span("order") as span:
    producer.send(sys.argv[2], b"from elsewhere")
    print(format(span.get_span_context().trace_id, "032x"))
"""
WITHOUT = """
import sys
sys.modules["opentelemetry"] = None
from mq.client import otel

assert not otel.instrument()
with otel.processing([]):
    print("works")
otel.uninstrument()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker.address


@pytest.fixture
def topic(name: str, server: str) -> str:
    create_topic(server, name, 1)
    return name


def said(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


class Spans:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def of(self, operation: str) -> list[ReadableSpan]:
        found = self._exporter.get_finished_spans()
        return [one for one in found if said(one)["messaging.operation.name"] == operation]

    def one(self, operation: str) -> ReadableSpan:
        eventually(lambda: self.of(operation))
        (found,) = self.of(operation)
        return found


@pytest.fixture
def spans() -> Iterator[Spans]:
    found = Spans()
    assert otel.instrument(found.provider)
    yield found
    otel.uninstrument()


def linked(span: ReadableSpan) -> list[int]:
    return [one.context.span_id for one in span.links]


def test_a_handler_goes_on_with_the_trace_of_another_process(
    server: str, topic: str, spans: Spans
) -> None:
    seen: list[str] = []

    def handle(_: ReceivedMessage) -> None:
        current = trace.get_current_span().get_span_context()
        seen.append(format(current.trace_id, "032x"))

    command = [sys.executable, "-c", OTHER_PROCESS, server, topic]
    sent = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    with PushConsumer(server, "g", topic, handle, start="earliest"):
        eventually(lambda: spans.of("process"))
    process = spans.one("process")
    assert seen == [sent.stdout.strip()]
    assert process.kind == SpanKind.CONSUMER
    assert process.name == f"process {topic}"
    assert format(process.links[0].context.trace_id, "032x") == seen[0]
    assert process.parent is not None
    assert process.links[0].context.span_id == process.parent.span_id
    expected = {
        "messaging.system": "mq",
        "messaging.operation.type": "process",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": "0",
        "messaging.consumer.group.name": "g",
        "messaging.message.body.size": 14,
        "mq.message.attempt": 1,
    }
    assert expected.items() <= said(process).items()
    scope = process.instrumentation_scope
    assert scope is not None
    assert scope.schema_url == otel.SCHEMA_URL


def test_a_message_that_failed_comes_back_with_its_link(
    server: str, topic: str, spans: Spans
) -> None:
    async def main() -> None:
        done = asyncio.Event()

        async def handle(message: ReceivedMessage) -> Nack | None:
            await asyncio.sleep(0)
            if message.attempt == 1:
                raise ValueError("the bank is closed")
            if message.attempt == 2:
                return Nack("not yet", delay_s=0)
            done.set()
            return None

        async with aio.Producer(server) as producer:
            await producer.send(topic, "pay")
        async with aio.PushConsumer(
            server, "g", topic, handle, start="earliest", retry_delay_s=0.1
        ):
            async with asyncio.timeout(60):
                await done.wait()

    asyncio.run(main())
    send = spans.one("send")
    eventually(lambda: len(spans.of("process")) == 3)
    attempts = sorted(spans.of("process"), key=lambda one: said(one)["mq.message.attempt"])
    for one in attempts:
        assert linked(one) == [send.context.span_id]
        assert one.context.trace_id == send.context.trace_id
    assert [said(one).get("error.type") for one in attempts] == ["ValueError", "Nack", None]
    assert attempts[0].status.status_code == StatusCode.ERROR
    assert attempts[0].status.description == "the bank is closed"
    assert attempts[2].status.status_code == StatusCode.UNSET


def test_batches_receives_and_acknowledgements_are_linked(
    server: str, topic: str, spans: Spans
) -> None:
    with Producer(server) as producer:
        first, second = producer.send_batch(topic, ["a", Message(b"b", tag="t")])
    created = [one.context.span_id for one in spans.of("create")]
    send = spans.one("send")
    assert linked(send) == created
    assert said(send)["messaging.batch.message_count"] == 2
    with SimpleConsumer(server, "g", topic, start="earliest") as consumer:
        found: list[ReceivedMessage] = []
        while len(found) < 2:
            found += consumer.receive(wait_s=10)
        consumer.ack(found)
        with pytest.raises(MqError):
            consumer.nack(found[0])
    assert [one.message_id for one in found] == [first.message_id, second.message_id]
    received = [one for span in spans.of("receive") for one in linked(span)]
    assert received == created
    ack, nack = spans.one("ack"), spans.one("nack")
    assert linked(ack) == created
    assert said(ack)["messaging.operation.type"] == "settle"
    assert ack.kind == SpanKind.CLIENT
    assert linked(nack) == created[:1]
    assert said(nack)["error.type"] == "IllegalHandle"


def test_futures_polls_and_commits_have_spans_and_work_has_one_when_it_says_so(
    server: str, topic: str, spans: Spans
) -> None:
    with Producer(server) as producer:
        futures = [producer.send_async(topic, b"x") for _ in range(3)]
        results = [one.result(30) for one in futures]
        producer.send_one_way(topic, b"y")
        producer.send_many(topic, [b"z"] * 10)
    eventually(lambda: len(spans.of("send")) == 5)
    ids = {said(one).get("messaging.message.id") for one in spans.of("send")}
    assert {one.message_id for one in results} <= ids
    with Consumer(server, "g", topic, start="earliest") as consumer:
        found: list[ReceivedMessage] = []
        while len(found) < 14:
            found += consumer.poll(100, timeout_s=10)
        with otel.processing(found[0], "g"):
            inside = trace.get_current_span().get_span_context()
        consumer.commit(found)
        assert consumer.poll(1, timeout_s=0.01) == []
    sent = {one.context.span_id for one in spans.of("send")}
    polled = [one for span in spans.of("poll") for one in linked(span)]
    # Those of `send_many` have one context; a poll without messages has no span.
    assert len(polled) == 14
    assert set(polled) == sent
    assert spans.one("process").context.span_id == inside.span_id
    assert linked(spans.one("process")) == [polled[0]]
    assert linked(spans.one("commit")) == polled
    with PullConsumer(server) as pull:
        assert len(pull.pull(topic, 0, 12).messages) == 2
    assert linked(spans.one("pull")) == polled[12:]


def test_a_transaction_is_one_send_and_what_it_executes_is_inside(
    server: str, topic: str, spans: Spans
) -> None:
    async def execute(*_: object) -> Resolution:
        inside.append(trace.get_current_span().get_span_context().span_id)
        return Resolution.COMMIT

    async def check(_: object) -> Resolution:
        return Resolution.UNKNOWN

    inside: list[int] = []

    async def main() -> None:
        async with aio.TransactionProducer(server, "buyers", execute, check) as producer:
            await producer.send_in_transaction(topic, b"paid")

    asyncio.run(main())
    send = spans.one("send")
    assert inside == [send.context.span_id]
    assert said(send)["mq.transaction.state"] == "COMMIT"
    arrived = threading.Event()
    with PushConsumer(server, "g", topic, lambda _: arrived.set(), start="earliest"):
        assert arrived.wait(60)
        eventually(lambda: spans.of("process"))
    assert linked(spans.one("process")) == [send.context.span_id]
    with TransactionProducer(
        server, "sellers", lambda *_: Resolution.ROLLBACK, lambda _: Resolution.UNKNOWN
    ) as producer:
        producer.send_in_transaction(topic, b"never")
    assert said(spans.of("send")[1])["mq.transaction.state"] == "ROLLBACK"


def test_what_a_user_has_set_is_never_overwritten(server: str, topic: str, spans: Spans) -> None:
    own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    kept = {"traceparent": own, "baggage": "tenant=7", "colour": "red"}
    token = context.attach(baggage.set_baggage("tenant", "8"))
    try:
        with Producer(server) as producer:
            message = Message(b"mine", properties=kept)
            producer.send(topic, message)
            producer.send(topic, b"theirs")
    finally:
        context.detach(token)
    assert message.properties == kept
    seen: list[tuple[Any, Any]] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append((message.properties, baggage.get_baggage("tenant")))

    with PushConsumer(server, "g", topic, handle, start="earliest", threads=1):
        eventually(lambda: len(spans.of("process")) == 2)
    (properties, tenant), (others, other_tenant) = seen
    assert (properties, tenant, other_tenant) == (kept, "7", "8")
    assert {"traceparent", "baggage"} == others.keys()
    assert linked(spans.of("process")[0]) == [0xB7AD6B7169203331]


def test_nothing_is_added_without_a_provider_or_without_being_asked(
    server: str, topic: str
) -> None:
    original = Producer.send
    with Producer(server) as producer, Consumer(server, "g", topic, start="earliest") as consumer:
        assert otel.instrument()
        try:
            assert Producer.send is not original
            producer.send(topic, b"no provider")
            with otel.processing([]):
                pass
        finally:
            otel.uninstrument()
        assert Producer.send is original
        producer.send(topic, b"not instrumented")
        found: list[ReceivedMessage] = []
        while len(found) < 2:
            found += consumer.poll(timeout_s=10)
    assert [one.properties for one in found] == [{}, {}]


def test_without_the_package_it_does_nothing() -> None:
    command = [sys.executable, "-c", WITHOUT]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "works\n"), done.stderr


def test_the_entry_point_instruments(spans: Spans) -> None:
    import importlib.metadata  # noqa: PLC0415

    del spans
    otel.uninstrument()
    original = Producer.send
    (point,) = importlib.metadata.entry_points(group="opentelemetry_instrumentor", name="mq")
    made = point.load()()
    made.instrument(skip_dep_check=True)
    assert Producer.send is not original
    made.uninstrument()
    assert Producer.send is original
