"""Whatever the bytes of a request are, the answer is a status, and the broker goes on."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.protobuf import message_factory

from mq.wire.rocketmq.definition_pb2 import Code
from tests.rocketmq.raw import SERVICE, RawClient, message
from tests.support.wire_fuzz import fill, mutate

if TYPE_CHECKING:
    from tests.support.broker_process import BrokerProcess

ROUNDS = 60
METHODS = [one.name for one in SERVICE.methods if one.name != "Telemetry"]


@pytest.mark.parametrize("name", METHODS)
def test_any_request_gets_an_answer(broker: BrokerProcess, client: RawClient, name: str) -> None:
    rng = random.Random(name)
    request = message_factory.GetMessageClass(SERVICE.methods_by_name[name].input_type)
    for _ in range(ROUNDS):
        made: Any = fill(request(), rng, ["fuzz", "%DLQ%fuzz"])
        if hasattr(made, "long_polling_timeout"):
            made.long_polling_timeout.Clear()
            made.long_polling_timeout.SetInParent()
        data = made.SerializeToString()
        if rng.random() < 0.5:
            data = mutate(data, rng)
        _answered(client, name, data)
    assert broker.is_running
    assert client.send(message("fuzz-after")).status.code == Code.OK


def _answered(client: RawClient, name: str, data: bytes) -> None:
    try:
        # A damaged request may ask to wait for long.
        answer = client.call(name, data, timeout_s=2.0)
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error  # noqa: PT017
        return
    status = answer[0].status if isinstance(answer, list) else answer.status
    assert status.code in Code.values()
    assert status.code not in (Code.INTERNAL_SERVER_ERROR, Code.HA_NOT_AVAILABLE), status


def test_any_command_is_answered_or_ends_the_stream(
    broker: BrokerProcess, client: RawClient
) -> None:
    rng = random.Random("Telemetry")
    command = message_factory.GetMessageClass(SERVICE.methods_by_name["Telemetry"].input_type)
    for _ in range(ROUNDS):
        made: Any = fill(command(), rng, ["fuzz"])
        try:
            list(client.telemetry([made]))
        except grpc.RpcError as error:
            assert error.code() in (  # noqa: PT017
                grpc.StatusCode.INVALID_ARGUMENT,
                grpc.StatusCode.UNAVAILABLE,
            ), error
    assert broker.is_running
