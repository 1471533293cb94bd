"""A caller with a namespace sees its own names without it, and no others, whatever is sent and
answered; and a field of a new message cannot be forgotten.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from mq import names
from mq.errors import (
    IllegalFilter,
    IllegalGroup,
    IllegalRequest,
    IllegalTopic,
    MqError,
    NotLeader,
    PermissionDenied,
    TopicNotFound,
)
from mq.rpc.namespace_fields import FIELDS, NO_NAMES, REFUSED, Kind
from mq.rpc.namespaces import NamespacedCall, NamespacedContext, explained, local_text
from mq.store import batch as batches
from mq.wire import varint
from mq.wire.v1 import (
    admin_pb2,
    cluster_pb2,
    consumer_pb2,
    message_pb2,
    producer_pb2,
    security_pb2,
    transaction_pb2,
)

NAMESPACE = "acme"
FILES = (admin_pb2, cluster_pb2, consumer_pb2, producer_pb2, security_pb2, transaction_pb2)
METHODS = {
    f"{service.name}/{method.name}": method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
TRANSLATED = sorted(METHODS.keys() - REFUSED.keys())
# Of which answers are messages as they are stored.
WITH_RUNS = ("ConsumerService/Pull", "ConsumerService/Subscribe", "ConsumerService/Receive")
SEEDS = st.integers(0, 2**32)
EXAMPLES = 25  # of each method, of which there are about ninety
FOREIGN = ("rival%secret", "secret", "%RETRY%rival%secret", "%SYS%secret", "acme%x%secret")
# An id of a producer may have any text; and a word without % may be any word.
MEANT_OTHERWISE = {"acme%x%secret": [Kind.PRODUCER], "secret": [Kind.TEXT]}


def requested(method: str, data: bytes) -> bytes:
    return asyncio.run(NamespacedCall(method, NAMESPACE).request(data))


def answered(method: str, data: bytes) -> bytes:
    return asyncio.run(NamespacedCall(method, NAMESPACE).answer(data))


# -- the table ------------------------------------------------------------------------------------


def reachable(descriptor: Descriptor, known: dict[str, Descriptor]) -> dict[str, Descriptor]:
    if descriptor.full_name not in known:
        known[descriptor.full_name] = descriptor
        for field in descriptor.fields:
            if field.message_type is not None:
                reachable(field.message_type, known)
    return known


def texts_of_services() -> Iterator[str]:
    known: dict[str, Descriptor] = {}
    for method in METHODS.values():
        reachable(method.input_type, known)
        reachable(method.output_type, known)
    for name, descriptor in known.items():
        for field in descriptor.fields:
            if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
                yield f"{name.removeprefix('mq.v1.')}.{field.name}"


def test_every_text_of_every_method_has_one_row() -> None:
    named = {field for field, kind in FIELDS.items() if kind != Kind.HIDDEN}
    assert not named & NO_NAMES
    assert set(texts_of_services()) == named | NO_NAMES


def test_methods_that_are_refused_exist() -> None:
    assert REFUSED.keys() <= METHODS.keys()


@pytest.mark.parametrize("method", REFUSED)
def test_what_shows_all_namespaces_is_refused(method: str) -> None:
    with pytest.raises(PermissionDenied, match="acme"):
        NamespacedCall(method, NAMESPACE)


# -- random messages, and their names as protobuf reads them ---------------------------------------


class Filler:
    """Random messages. `with_groups`: also topics of groups, in which messages have origins."""

    def __init__(self, seed: int, *, with_groups: bool = True, foreign: float = 0) -> None:
        self._chosen = random.Random(seed)
        self._with_groups = with_groups
        self._foreign = foreign

    def message(self, descriptor: Descriptor, depth: int = 0) -> Any:
        message: Any = message_factory.GetMessageClass(descriptor)()
        for field in descriptor.fields:
            # A message that is stored has a topic.
            is_given = f"{descriptor.name}.{field.name}" == "StoredMessage.topic"
            if not is_given and (depth > 3 or self._chosen.random() < 0.25):
                continue
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                value = field.message_type.fields_by_name["value"]
                getattr(message, field.name)["key"] = self._value(descriptor, value, depth)
                continue
            count = self._chosen.randrange(3) if field.is_repeated else 1
            for value in [self._value(descriptor, field, depth) for _ in range(count)]:
                if field.is_repeated:
                    getattr(message, field.name).append(value)
                elif field.message_type is not None:
                    getattr(message, field.name).CopyFrom(value)
                else:
                    setattr(message, field.name, value)
        if descriptor.name == "Run":
            message.frame_sizes[:] = [frame_size(one) for one in message.messages]
        return message

    def _value(self, descriptor: Descriptor, field: Any, depth: int) -> Any:
        if field.message_type is not None:
            return self.message(field.message_type, depth + 1)
        if field.enum_type is not None:
            return self._chosen.choice(field.enum_type.values).number
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self._chosen.randbytes(self._chosen.choice([0, 3, 200]))
        if field.type == FieldDescriptor.TYPE_STRING:
            kind = FIELDS.get(f"{descriptor.name}.{field.name}")
            return self._text(kind) if kind else self._chosen.choice(["", "50%", "any text"])
        if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
            return self._chosen.random()
        return self._chosen.choice([0, 1, 127, 300, 2**31 - 1])

    def _text(self, kind: Kind) -> str:
        chosen = self._chosen
        if chosen.random() < self._foreign:
            return chosen.choice(
                [one for one in FOREIGN if kind not in MEANT_OTHERWISE.get(one, ())]
            )
        name: str = chosen.choice(["orders", "a", "b|c_d-e", "x" * 90])
        if kind == Kind.TOPIC and self._with_groups and chosen.random() < 0.3:
            return chosen.choice([names.RETRY_PREFIX, names.DEAD_LETTER_PREFIX]) + name
        if kind == Kind.PRODUCER and chosen.random() < 0.3:
            return chosen.choice([names.SINK_PREFIX, "%", "with % in it "]) + name
        return name


def frame_size(message: Message) -> int:
    return 1 + varint.width(message.ByteSize()) + message.ByteSize()


FULL = {
    Kind.TOPIC: names.full_topic,
    Kind.GROUP: names.full_group,
    Kind.PRODUCER: names.full_producer_id,
    Kind.TEXT: names.full_topic,
}


def with_full_names(message: Any, *, is_request: bool, has_origins: bool = False) -> Any:
    """By reflection, in place."""
    descriptor = message.DESCRIPTOR
    is_stored = descriptor.name == "StoredMessage"
    topic = message.topic if is_stored else ""
    has_origins |= topic.startswith((names.RETRY_PREFIX, names.DEAD_LETTER_PREFIX))
    for field, value in message.ListFields():
        kind = FIELDS.get(f"{descriptor.name}.{field.name}")
        if descriptor.name == "Origin" and not has_origins:
            continue
        if kind == Kind.HIDDEN:
            message.ClearField(field.name)
        elif kind is not None and field.is_repeated:
            value[:] = [FULL[kind](NAMESPACE, one) for one in value]
        elif kind is not None:
            setattr(message, field.name, FULL[kind](NAMESPACE, value))
        elif (
            field.message_type is None
            or field.message_type.GetOptions().map_entry
            or (field.message_type.name == "Message" and is_request)
        ):
            continue
        else:
            for one in value if field.is_repeated else [value]:
                with_full_names(one, is_request=is_request, has_origins=has_origins)
    return message


def copied(message: Any) -> Any:
    other = type(message)()
    other.CopyFrom(message)
    return other


@pytest.mark.parametrize("method", TRANSLATED)
@settings(max_examples=EXAMPLES)
@given(seed=SEEDS)
def test_names_of_requests_get_the_namespace(method: str, seed: int) -> None:
    asked = Filler(seed).message(METHODS[method].input_type)
    made = type(asked).FromString(requested(method, asked.SerializeToString()))
    assert made == with_full_names(asked, is_request=True)


@pytest.mark.parametrize("method", TRANSLATED)
@settings(max_examples=EXAMPLES)
@given(seed=SEEDS)
def test_fields_in_any_order_and_number_are_read_as_protobuf_does(method: str, seed: int) -> None:
    """Two messages behind each other are one; keys and lengths may be longer than they have to."""
    filler = Filler(seed)
    asked = [filler.message(METHODS[method].input_type) for _ in range(3)]
    data = b"".join(one.SerializeToString() for one in asked)
    longer = b"".join(stretched(data))
    whole = type(asked[0]).FromString(data)
    assert type(whole).FromString(longer) == whole
    made = type(whole).FromString(requested(method, longer))
    assert made == with_full_names(whole, is_request=True)


def stretched(data: bytes) -> Iterator[bytes]:
    """The fields of a message, each with a key of three bytes and a length of five."""
    position = 0
    while position < len(data):
        key, start = varint.decode(data, position)
        yield bytes([key & 0x7F | 0x80, key >> 7 | 0x80, 0])
        position = start
        if key & 7 == 2:
            length, start = varint.decode(data, start)
            yield bytes([*(length >> at & 0x7F | 0x80 for at in (0, 7, 14, 21)), length >> 28])
            position = start + length
        elif key & 7 == 0:
            _, position = varint.decode(data, start)
        else:
            position += 8 if key & 7 == 1 else 4
        yield data[start:position]


@pytest.mark.parametrize("method", TRANSLATED)
@settings(max_examples=EXAMPLES)
@given(seed=SEEDS)
def test_names_of_answers_lose_the_namespace(method: str, seed: int) -> None:
    filler = Filler(seed, with_groups=method not in WITH_RUNS)
    told = filler.message(METHODS[method].output_type)
    full = with_full_names(copied(told), is_request=False)
    made = type(told).FromString(answered(method, full.SerializeToString()))
    if method == "AdminService/BrokerStatus":
        told.ClearField("damages")
    assert made == told


@pytest.mark.parametrize("method", [one for one in TRANSLATED if "Security" not in one])
@settings(max_examples=EXAMPLES)
@given(seed=SEEDS)
def test_names_of_others_are_in_no_answer(method: str, seed: int) -> None:
    filler = Filler(seed, with_groups=False, foreign=0.4)
    told = filler.message(METHODS[method].output_type)
    try:
        made = answered(method, without_origins(told).SerializeToString())
    except PermissionDenied as error:
        made = str(error).encode()
    assert b"secret" not in made


def without_origins(message: Any) -> Any:
    """An origin in a topic that is no group's is an invention of the producer."""
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        if field.name == "origin":
            message.ClearField("origin")
            continue
        for one in value if field.is_repeated else [value]:
            without_origins(one)
    return message


# -- names that are refused, and batches that fail alone -------------------------------------------


@pytest.mark.parametrize(
    "topic", ["rival%orders", "%SYS%HALF", "%RETRY%rival%g", "%RETRY%", "%", "x" * 123]
)
def test_topics_that_are_not_in_the_namespace_are_refused(topic: str) -> None:
    with pytest.raises(IllegalTopic):
        requested("ConsumerService/Pull", consumer_pb2.PullRequest(topic=topic).SerializeToString())


@pytest.mark.parametrize("group", ["rival%g", "%RETRY%g", "x" * 123])
def test_groups_that_are_not_in_the_namespace_are_refused(group: str) -> None:
    with pytest.raises(IllegalGroup):
        requested(
            "ConsumerService/Leave", consumer_pb2.LeaveRequest(group=group).SerializeToString()
        )


def test_a_full_name_is_never_longer_than_the_broker_takes() -> None:
    request = consumer_pb2.PullRequest(topic="x" * 122)
    made = consumer_pb2.PullRequest.FromString(
        requested("ConsumerService/Pull", request.SerializeToString())
    )
    assert made.topic == "acme%" + "x" * 122
    names.check_topic(made.topic)


def plain_batch(topic: str, *bodies: bytes) -> message_pb2.Batch:
    messages = [message_pb2.Message(body=body) for body in bodies]
    return message_pb2.Batch(topic=topic, messages=messages)


def prepared_batch(topic: str, *bodies: bytes, **header: Any) -> bytes:
    wire = message_pb2.Batch(topic=topic, **header)
    wire.messages.extend(message_pb2.Message(body=body, tag="t") for body in bodies)
    return batches.prepare(wire.SerializeToString())


def accepted(batch: bytes) -> batches.Batch | str:
    try:
        return batches.accept(batch, 1 << 20)
    except MqError as error:
        return error.code.name


def published(*wire: bytes) -> list[batches.Batch | str]:
    request = b"".join(b"\x7a" + varint.encode(len(one)) + one for one in wire)
    made = producer_pb2.PublishRequest.FromString
    data = requested("ProducerService/Publish", b"\x08\x07" + request)
    assert made(data[:2]).request_id == 7
    found, position = [], 2
    while position < len(data):
        length, start = varint.decode(data, position + 1)
        position = start + length
        found.append(accepted(data[start:position]))
    return found


def test_each_batch_of_a_request_fails_alone() -> None:
    good = plain_batch("orders", b"a").SerializeToString()
    cut = prepared_batch("orders", b"a")[:-1]
    foreign = plain_batch("rival%orders", b"a").SerializeToString()
    one, two, three, four, five = published(good, cut, foreign, b"\x0a\x7f", good)
    assert isinstance(one, batches.Batch)
    assert isinstance(five, batches.Batch)
    assert one.topic == five.topic == "acme%orders"
    assert (two, three, four) == ("MALFORMED_BATCH", "ILLEGAL_TOPIC", "MALFORMED_BATCH")


def test_frames_of_prepared_batches_are_not_walked() -> None:
    """Of a hundred thousand messages none is looked at: the loop has no time for so many."""
    data = prepared_batch("orders", *[b""] * 100_000, producer_id="p", sequence=1)
    wire = b"\x7a" + varint.encode(len(data)) + data
    made = NamespacedCall("ProducerService/Publish", NAMESPACE).short_request(wire)
    assert made is not None
    length, start = varint.decode(made, 1)
    batch = accepted(made[start : start + length])
    assert isinstance(batch, batches.Batch)
    assert (batch.topic, batch.producer_id) == ("acme%orders", "acme%p")
    assert batch.message_count == 100_000


@given(
    st.lists(st.sampled_from([b"", b"a", b"x" * 200]), min_size=1, max_size=4),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 400), st.binary(min_size=0, max_size=20)), max_size=3),
)
def test_no_batch_gets_out_of_the_namespace(
    bodies: list[bytes], is_prepared: bool, inserted: list[tuple[int, bytes]]
) -> None:
    """Whatever a producer writes into the bytes, also the topic of another one."""
    data = (
        prepared_batch("orders", *bodies, producer_id="p", sequence=1)
        if is_prepared
        else plain_batch("orders", *bodies).SerializeToString()
    )
    for at, piece in inserted:
        data = data[:at] + piece + b"\x0a\x0crival%orders" + data[at:]
    for batch in published(data):
        if isinstance(batch, batches.Batch):
            assert names.namespace_of(batch.topic) == NAMESPACE


def test_producers_of_two_namespaces_are_not_one() -> None:
    for producer_id in ("p", "%SINK%p"):
        request = producer_pb2.SendRequest(topic="t", producer_id=producer_id, sequence=1)
        made = requested("ProducerService/Send", request.SerializeToString())
        full = producer_pb2.SendRequest.FromString(made).producer_id
        assert full == producer_id.replace("p", "acme%p")


# -- messages -------------------------------------------------------------------------------------


def retried(topic: str, count: int) -> consumer_pb2.Run:
    messages = [
        message_pb2.Message(
            body=b"b" * at, origin=message_pb2.Origin(topic=topic, queue_offset=at, reason="50%off")
        )
        for at in range(count)
    ]
    return consumer_pb2.Run(
        queue_offset=10,
        log_offset=1_000,
        stored_at_ms=5,
        frame_sizes=map(frame_size, messages),
        messages=messages,
    )


def places(runs: Any) -> list[tuple[int, int, int, str]]:
    """Of each message, as clients find them."""
    found = []
    for run in runs:
        log_offset = run.log_offset
        for at, (size, message) in enumerate(zip(run.frame_sizes, run.messages, strict=True)):
            assert size == frame_size(message)
            found.append(
                (run.queue_offset + at, log_offset, run.stored_at_ms, message.origin.topic)
            )
            log_offset += size
    return found


OWN = [
    (10 + at, 1_000 + sum(map(frame_size, retried("acme%orders", 3).messages[:at])), 5, "orders")
    for at in range(3)
]


def test_retries_and_dead_letters_tell_where_they_come_from_and_where_they_are() -> None:
    run = retried("acme%orders", 3)
    delivery = consumer_pb2.Delivery(topic="%RETRY%acme%g", runs=[run, retried("rival%x", 1)])
    told = consumer_pb2.SubscribeResponse(delivery=delivery).SerializeToString()
    made = consumer_pb2.SubscribeResponse.FromString(answered("ConsumerService/Subscribe", told))
    assert made.delivery.topic == "%RETRY%g"
    assert places(made.delivery.runs) == [*OWN, (10, 1_000, 5, "")]

    received = consumer_pb2.ReceivedRun(topic="%DLQ%acme%g", lease=b"l", attempt=3, run=run)
    told = consumer_pb2.ReceiveResponse(runs=[received]).SerializeToString()
    parts = consumer_pb2.ReceiveResponse.FromString(answered("ConsumerService/Receive", told))
    assert {(one.topic, one.lease, one.attempt) for one in parts.runs} == {("%DLQ%g", b"l", 3)}
    assert places(one.run for one in parts.runs) == OWN


def test_what_is_pulled_is_in_the_topic_that_was_asked_for() -> None:
    told = consumer_pb2.PullResponse(next_offset=13, runs=[retried("acme%orders", 3)])

    async def pulled(topic: str) -> consumer_pb2.PullResponse:
        call = NamespacedCall("ConsumerService/Pull", NAMESPACE)
        await call.request(consumer_pb2.PullRequest(topic=topic).SerializeToString())
        return consumer_pb2.PullResponse.FromString(await call.answer(told.SerializeToString()))

    assert places(asyncio.run(pulled("%RETRY%g")).runs) == OWN
    assert asyncio.run(pulled("orders")) == told


def test_messages_of_other_topics_are_not_opened() -> None:
    """An origin there is an invention of the producer, and frames may be anything."""
    frames = b"\x7a\x03\xff\xff\xff"
    run = (
        consumer_pb2.RawRun(frame_sizes=struct.pack("<I", len(frames))).SerializeToString() + frames
    )
    head = consumer_pb2.Delivery(topic="acme%orders", queue_id=3).SerializeToString()
    delivery = head + b"\x7a" + varint.encode(len(run)) + run
    told = b"\x12" + varint.encode(len(delivery)) + delivery
    made = answered("ConsumerService/Subscribe", told)
    assert made.endswith(b"\x7a" + varint.encode(len(run)) + run)
    assert b"acme" not in made


def test_a_retry_that_cannot_be_read_is_delivered_as_it_is() -> None:
    frames = b"\x7a\x03\xff\xff\xff"
    run = consumer_pb2.RawRun(
        queue_offset=4, log_offset=9, frame_sizes=struct.pack("<2I", len(frames), len(frames))
    )
    content = run.SerializeToString() + frames * 2
    head = consumer_pb2.Delivery(topic="%RETRY%acme%g").SerializeToString()
    delivery = head + b"\x7a" + varint.encode(len(content)) + content
    made = answered("ConsumerService/Subscribe", b"\x12" + varint.encode(len(delivery)) + delivery)
    assert made.count(frames) == 2


# -- texts and errors -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("there is no topic acme%orders: create it", "there is no topic orders: create it"),
        ("queue 3 of '%RETRY%acme%g'", "queue 3 of '%RETRY%g'"),
        (
            "no policy allows it on topic rival%orders",
            "no policy allows it on topic " + "(another namespace)",
        ),
        ("%SYS%HALF is the broker's own", "(another namespace) is the broker's own"),
        ("the disk is 95% full", None),
        ("no % in it", None),
        ("topic 'acme%ä' is not legal", "topic 'ä' is not legal"),
        ("use letters, digits and %|_-, and no % at the start", None),
        ("xacme%orders", "(another namespace)"),
        ("%RETRY% and %DLQ% stand before a group", None),
    ],
)
def test_texts_have_local_names_alone(text: str, shown: str | None) -> None:
    assert local_text(NAMESPACE, text) == (text if shown is None else shown)


def test_an_error_of_several_calls_stays_as_it_is() -> None:
    error = TopicNotFound("there is no topic acme%orders")
    error.topic = "acme%orders"
    made = explained(error, NAMESPACE)
    assert (type(made), str(made)) == (TopicNotFound, "there is no topic orders")
    assert str(error) == "there is no topic acme%orders"
    elsewhere = NotLeader("node-1", "h:1")
    assert explained(elsewhere, NAMESPACE) is elsewhere
    illegal = explained(IllegalTopic("'rival%x' is not legal, nor is acme%y%z"), NAMESPACE)
    assert str(illegal) == "'rival%x' is not legal, nor is acme%y%z"
    filtered = IllegalFilter("LIKE 'eu%west' is no filter")
    assert explained(filtered, NAMESPACE) is filtered


# -- work that is too long for one turn of the loop, and streams -----------------------------------


def test_long_requests_are_walked_beside_the_loop() -> None:
    positions = [consumer_pb2.QueuePosition(topic="orders", queue_id=at) for at in range(20_000)]
    request = consumer_pb2.CommitOffsetsRequest(group="g", positions=positions)
    data = request.SerializeToString()
    assert NamespacedCall("ConsumerService/CommitOffsets", NAMESPACE).short_request(data) is None
    made = consumer_pb2.CommitOffsetsRequest.FromString(
        requested("ConsumerService/CommitOffsets", data)
    )
    assert made == with_full_names(request, is_request=True)


def test_messages_in_each_other_end_somewhere() -> None:
    data = b""
    for _ in range(2_000):
        data = b"\x7a" + varint.encode(len(data)) + data
    with pytest.raises(IllegalRequest):
        requested("TransactionService/Transact", data)


class FakeStream:
    """A call that offers its requests to `take` first, as our transport does."""

    def __init__(self, *requests: bytes) -> None:
        self._requests = list(requests)
        self.written: list[bytes] = []

    async def read(self, take: Any = None) -> bytes | None:
        while self._requests:
            data = self._requests.pop(0)
            if take is None or not take(data):
                return data
        return None

    async def write(self, message: bytes) -> None:
        self.written.append(message)

    def try_write(self, message: bytes) -> bool:
        self.written.append(message)
        return True


def test_a_request_that_was_declined_comes_back_as_the_same_object() -> None:
    """`PublishStream` knows by that what it has seen."""
    good = plain_batch("orders", b"a").SerializeToString()
    request = b"\x7a" + varint.encode(len(good)) + good
    fake = FakeStream(request, request, b"\x0a")
    context = NamespacedContext(fake, NamespacedCall("ProducerService/Publish", NAMESPACE))  # type: ignore[arg-type]
    offered: list[bytes] = []

    def take(data: bytes) -> bool:
        offered.append(data)
        return len(offered) == 1

    async def run() -> None:
        data = await context.read(take)
        assert data is offered[1]
        assert data == offered[0]
        assert b"acme%orders" in offered[0]
        with pytest.raises(IllegalRequest):
            await context.read(take)
        assert await context.read(take) is None
        result = producer_pb2.BatchResult(text="topic acme%orders is full")
        told = producer_pb2.PublishResponse(results=[result]).SerializeToString()
        await context.write(told)
        await context.write_parts([told[:3], memoryview(told)[3:]])
        assert context.try_write(told)

    asyncio.run(run())
    for one in fake.written:
        assert (
            producer_pb2.PublishResponse.FromString(one).results[0].text == "topic orders is full"
        )
