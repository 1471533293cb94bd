"""Every repeated field of every request has a limit, kept before the request is parsed."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.protobuf import message_factory

from mq.errors import IllegalRequest
from mq.rpc import limits
from mq.rpc.framing import read_publish, read_transact
from mq.rpc.limits import LIMITS, PLAIN_MAX, PREPARED_MAX, Reader, accept_batch
from mq.store.batch import prepare
from mq.wire.v1 import consumer_pb2, message_pb2, producer_pb2, transaction_pb2
from tests.conformance.calls import METHODS
from tests.support.naive_wire import field as wire_field
from tests.support.repeated_fields import RepeatedField, repeated_fields
from tests.support.wire_fuzz import fill, mutate

MESSAGE_BYTES_MAX = 4 << 20
# Read by hand, or as another message.
BY_HAND = {"PublishRequest", "TransactRequest", "AtomicRequest"}


REQUESTS = {method.input_type.name: method.input_type for method in METHODS.values()}
PLACES = [place for request in REQUESTS.values() for place in repeated_fields(request)]
READ = [place for place in PLACES if place.request.name not in BY_HAND]
for other in (message_pb2.Batch.DESCRIPTOR, producer_pb2.RawAtomicRequest.DESCRIPTOR):
    READ += repeated_fields(other)


def test_every_repeated_field_of_every_request_has_a_limit() -> None:
    assert {place.name for place in PLACES} == set(LIMITS)


def reader_of(place: RepeatedField) -> Reader[Any]:
    return Reader(message_factory.GetMessageClass(place.request))


@pytest.mark.parametrize("place", READ, ids=lambda place: f"{place.request.name}: {place.name}")
def test_as_many_elements_as_allowed_are_read_and_no_more(place: RepeatedField) -> None:
    reader, limit = reader_of(place), LIMITS[place.name]
    reader(place.filled(limit))
    too_many = [
        place.filled(limit + 1),
        # The same message twice is one with the elements of both.
        place.filled(limit) + place.filled(1),
        # Behind an unknown field.
        wire_field(14, b"x" * 100) + place.filled(limit + 1),
    ]
    for data in too_many:
        with pytest.raises(IllegalRequest, match=f"{place.name} has at least {limit + 1} "):
            reader(data)
    # Numbers that are not packed are a field each.
    with pytest.raises(IllegalRequest, match=f"{place.name} has at least |more than .* fields"):
        reader(place.filled(limit + 1, is_packed=False))


def test_tags_that_are_longer_than_they_have_to_be_are_counted() -> None:
    reader, limit = Reader(producer_pb2.SendRequest), LIMITS["SendRequest.messages"]
    for tag in (b"\xfa\x00", b"\xfa\x80\x00"):
        with pytest.raises(IllegalRequest, match=r"SendRequest\.messages"):
            reader((tag + b"\0") * (limit + 1))


def test_elements_of_all_messages_of_a_request_are_counted_together() -> None:
    limit = LIMITS["Message.keys"]
    messages = [message_pb2.Message(keys=[""] * (limit // 100))] * 100
    reader = Reader(producer_pb2.SendRequest)
    reader(producer_pb2.SendRequest(messages=messages).SerializeToString())
    messages.append(message_pb2.Message(keys=[""]))
    with pytest.raises(IllegalRequest, match=r"Message\.keys"):
        reader(producer_pb2.SendRequest(messages=messages).SerializeToString())


def test_bodies_that_look_like_fields_count_for_nothing() -> None:
    body = bytes([0x1A, 0x00, 0x22, 0x00, 0x7A, 0x00]) * 100_000
    request = producer_pb2.SendRequest(messages=[message_pb2.Message(body=body, keys=["k"])])
    assert Reader(producer_pb2.SendRequest)(request.SerializeToString()) == request


def test_a_request_cannot_be_walked_for_long() -> None:
    """Fields that are said again and again are no elements, and cost a walk all the same."""
    filler = wire_field(1, b"t") * limits._FIELDS_MAX
    many = (b"\x7a\x00") * (LIMITS["SendRequest.messages"] - 1)
    request = many + filler + b"\x12\x7a\x12\x7a"
    with pytest.raises(IllegalRequest, match=f"more than {limits._FIELDS_MAX} fields"):
        Reader(producer_pb2.SendRequest)(request)


@pytest.mark.parametrize("name", sorted(REQUESTS.keys() - BY_HAND))
def test_a_request_within_the_limits_is_walked_to_its_end(name: str) -> None:
    rng = random.Random(name)
    request_type = message_factory.GetMessageClass(REQUESTS[name])
    reader: Reader[Any] = Reader(request_type)
    for _ in range(30):
        request = fill(request_type(), rng, ("t",))
        limits._Walk(name).message(memoryview(request.SerializeToString()), reader._fields)


def test_damage_is_a_typed_error_and_never_another_one() -> None:
    rng = random.Random(1)
    reader = Reader(consumer_pb2.SubscribeRequest)
    for _ in range(2_000):
        data = mutate(fill(consumer_pb2.SubscribeRequest(), rng, ("t",)).SerializeToString(), rng)
        try:
            limits._Walk("SubscribeRequest").message(memoryview(data), reader._fields)
        except IllegalRequest:
            continue


def test_batches_of_a_publish_request_are_counted_while_they_are_read() -> None:
    limit = LIMITS["PublishRequest.batches"]
    assert len(read_publish(b"\x7a\x00" * limit).batches) == limit
    with pytest.raises(IllegalRequest, match=r"PublishRequest\.batches has at least 2001 "):
        read_publish(b"\x7a\x00" * 4_000_000)


def test_requests_in_more_are_counted_while_they_are_read() -> None:
    one = transaction_pb2.TransactRequest(end=transaction_pb2.EndTransactionRequest())
    data, limit = wire_field(15, one.SerializeToString()), LIMITS["TransactRequest.more"]
    assert len(read_transact(data * limit)[1]) == limit
    with pytest.raises(IllegalRequest, match=r"TransactRequest\.more has at least 10001 "):
        read_transact(data * (limit + 1))


def plain(count: int, **fields: Any) -> bytes:
    messages = [message_pb2.Message(**fields)] * count
    return message_pb2.Batch(topic="t", messages=messages).SerializeToString()


def test_messages_of_a_plain_batch_are_counted_before_they_are_opened() -> None:
    assert accept_batch(plain(PLAIN_MAX), MESSAGE_BYTES_MAX).message_count == PLAIN_MAX
    with pytest.raises(IllegalRequest, match=r"Batch\.messages has at least 4001 "):
        accept_batch(plain(PLAIN_MAX + 1), MESSAGE_BYTES_MAX)
    with pytest.raises(IllegalRequest, match=r"Message\.keys has at least 8001 "):
        accept_batch(plain(3, keys=[""] * 4_000), MESSAGE_BYTES_MAX)


def test_messages_of_a_prepared_batch_have_a_limit_of_their_own() -> None:
    batch = prepare(plain(PLAIN_MAX + 1))
    assert accept_batch(batch, MESSAGE_BYTES_MAX).message_count == PLAIN_MAX + 1
    with pytest.raises(IllegalRequest, match=f"at most {PREPARED_MAX} are allowed"):
        accept_batch(prepare(plain(PREPARED_MAX + 1)), MESSAGE_BYTES_MAX)
