"""Every repeated field of every request of RocketMQ's protocol has a limit, and every method is
served.
"""

from __future__ import annotations

from typing import Any, cast

import pytest
from google.protobuf import message_factory

from mq.errors import Code as Own
from mq.errors import IllegalRequest
from mq.rpc.access import Rules
from mq.rpc.context import StreamHandler
from mq.rpc.limits import Reader
from mq.rpc.rocketmq.calls import LIMITS, NAME
from mq.rpc.rocketmq.codes import CODES, Refused, status_of
from mq.rpc.rocketmq.service import MessagingService
from mq.rpc.status import GRPC_CODES
from mq.wire.rocketmq import service_pb2 as service
from mq.wire.rocketmq.definition_pb2 import Code
from tests.support.consensus import Node, on_loop
from tests.support.naive_wire import field as wire_field
from tests.support.repeated_fields import RepeatedField, repeated_fields

SERVICE = service.DESCRIPTOR.services_by_name["MessagingService"]
REQUESTS = {one.input_type.name: one.input_type for one in SERVICE.methods}
PLACES = [place for request in REQUESTS.values() for place in repeated_fields(request)]
STREAMS = {"ReceiveMessage", "PullMessage", "Telemetry"}


def test_every_repeated_field_of_every_request_has_a_limit() -> None:
    assert {place.name for place in PLACES} == set(LIMITS)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place.request.name}: {place.name}")
def test_as_many_elements_as_allowed_are_read_and_no_more(place: RepeatedField) -> None:
    reader: Reader[Any] = Reader(message_factory.GetMessageClass(place.request), LIMITS)
    limit = LIMITS[place.name]
    reader(place.filled(limit))
    for data in (
        place.filled(limit + 1),
        place.filled(limit) + place.filled(1),
        wire_field(100, b"x" * 100) + place.filled(limit + 1),
    ):
        with pytest.raises(IllegalRequest, match=f"{place.name} has at least {limit + 1} "):
            reader(data)


@on_loop
async def test_every_method_of_the_protocol_is_served() -> None:
    broker = Node().broker
    made = MessagingService(broker, "set-0", Rules(broker), lambda *_: None, cast("Any", None))
    handlers = made.handlers(is_external=False)
    assert handlers.keys() == {f"/{NAME}/{one.name}" for one in SERVICE.methods}
    for path, handler in handlers.items():
        assert isinstance(handler, StreamHandler) == (path.rpartition("/")[2] in STREAMS)


def test_errors_for_clients_have_a_code_of_rocketmq() -> None:
    without = {
        Own.REBALANCING,
        Own.MESSAGES_DAMAGED,
        Own.REBUILDING,
        Own.ILLEGAL_SEQUENCE,
        Own.ILLEGAL_CONFIG,
        Own.ILLEGAL_MEMBERSHIP,
        Own.ILLEGAL_POLICY,
        Own.USER_NOT_FOUND,
        Own.TOPIC_EXISTS,
        Own.GROUP_NOT_EMPTY,
        Own.VERSION_MISMATCH,
        Own.UNKNOWN_MEMBER,
        Own.NOT_ASSIGNED,
        Own.INTERNAL,
        Own.STORAGE_FAILED,
        Own.QUEUE_DAMAGED,
        Own.LOG_DAMAGED,
    }
    assert GRPC_CODES.keys() - CODES.keys() == without


def test_an_error_is_told_by_its_code_and_a_short_text() -> None:
    status = status_of(Refused(Code.ILLEGAL_MESSAGE_TAG, "x" * 9_000))
    assert status.code == Code.ILLEGAL_MESSAGE_TAG
    assert len(status.message) == 1_500
    assert status_of(IllegalRequest("no")).code == Code.BAD_REQUEST
