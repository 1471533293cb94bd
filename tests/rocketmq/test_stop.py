"""A broker that stops ends streams and long polls of RocketMQ's clients, and does not wait for
them.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from mq.wire.rocketmq import definition_pb2 as pb
from mq.wire.rocketmq import service_pb2 as service
from mq.wire.rocketmq.definition_pb2 import Code
from tests.rocketmq.raw import RawClient, message, new_name, resource
from tests.support.broker_process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def test_a_stop_does_not_wait_for_long_polls(tmp_path: Path) -> None:
    topic, over = new_name("topic"), threading.Event()

    def settings() -> Iterator[service.TelemetryCommand]:
        publishing = pb.Publishing(topics=[resource(topic)])
        yield service.TelemetryCommand(settings=pb.Settings(publishing=publishing))
        over.wait(60)

    polled: list[Any] = []
    with BrokerProcess(tmp_path / "data") as broker, RawClient(broker.address) as client:
        assert client.send(message(topic)).status.code == Code.OK
        assert client.receive(topic, "g")
        stream = client.telemetry(settings())
        next(stream)
        is_polling = threading.Event()

        def receive() -> None:
            """Twice: whoever has got a message asks for the next one."""
            client.receive(topic, "g", wait_s=25)
            is_polling.set()
            polled.extend(client.receive_raw(topic, "g", wait_s=25))

        poll = threading.Thread(target=receive)
        poll.start()
        assert client.send(message(topic)).status.code == Code.OK
        assert is_polling.wait(30)
        # It has arrived when a call behind it on the same connection is answered.
        assert client.call("Heartbeat", service.HeartbeatRequest()).status.code == Code.OK
        began_s = time.monotonic()
        assert broker.stop() == 0
        took_s = time.monotonic() - began_s
        poll.join()
        assert took_s < 8, took_s
        assert polled[0].status.code in (Code.HA_NOT_AVAILABLE, Code.MESSAGE_NOT_FOUND)
        with pytest.raises(grpc.RpcError) as ended:
            next(stream)
        assert ended.value.code() == grpc.StatusCode.UNAVAILABLE
        over.set()
        assert "Traceback" not in broker.output()
