"""A client of apache.rocketmq.v2 that does one call at a time, and shows the answer as it is."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any, Self

import grpc
from google.protobuf import message_factory

from mq.wire.rocketmq import definition_pb2 as pb
from mq.wire.rocketmq import service_pb2 as service

if TYPE_CHECKING:
    from collections.abc import Iterable

SERVICE = service.DESCRIPTOR.services_by_name["MessagingService"]
CALL_S = 30.0
_OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
_numbers = itertools.count(1)


def new_name(kind: str) -> str:
    return f"{kind}.{os.getpid()}-{next(_numbers)}"


class RawClient:
    def __init__(self, address: str, client_id: str = "raw-client", **metadata: str) -> None:
        self._channel = grpc.insecure_channel(address, options=_OWN_CONNECTION)
        self.metadata = [("x-mq-client-id", client_id)] if client_id else []
        self.metadata += [(name.replace("_", "-"), value) for name, value in metadata.items()]

    @classmethod
    def over_tls(cls, address: str, credentials: grpc.ChannelCredentials) -> Self:
        made = cls(address)
        made._channel.close()
        made._channel = grpc.secure_channel(address, credentials, options=_OWN_CONNECTION)
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def call(self, name: str, request: Any, timeout_s: float = CALL_S) -> Any:
        """The answer of a unary call; all answers of a stream."""
        method = SERVICE.methods_by_name[name]
        response = message_factory.GetMessageClass(method.output_type)
        coding = {
            "request_serializer": _encoded,
            "response_deserializer": response.FromString,
        }
        path = f"/{SERVICE.full_name}/{name}"
        if name in ("ReceiveMessage", "PullMessage"):
            call = self._channel.unary_stream(path, **coding)
            return list(call(request, metadata=self.metadata, timeout=timeout_s))
        return self._channel.unary_unary(path, **coding)(
            request, metadata=self.metadata, timeout=timeout_s
        )

    def telemetry(self, commands: Iterable[service.TelemetryCommand]) -> Any:
        return self._channel.stream_stream(
            f"/{SERVICE.full_name}/Telemetry",
            request_serializer=service.TelemetryCommand.SerializeToString,
            response_deserializer=service.TelemetryCommand.FromString,
        )(iter(commands), metadata=self.metadata, timeout=CALL_S)

    # -- the usual calls --------------------------------------------------------------------------

    def send(self, *messages: pb.Message) -> service.SendMessageResponse:
        found: service.SendMessageResponse = self.call(
            "SendMessage", service.SendMessageRequest(messages=messages)
        )
        return found

    def receive(
        self,
        topic: str,
        group: str,
        *,
        batch_size: int = 16,
        invisible_s: float = 30.0,
        wait_s: float = 5.0,
        tags: str = "*",
        sql: str = "",
        **more: Any,
    ) -> list[pb.Message]:
        """Empty: nothing came in time."""
        answers = self.receive_raw(
            topic,
            group,
            batch_size=batch_size,
            invisible_s=invisible_s,
            wait_s=wait_s,
            tags=tags,
            sql=sql,
            **more,
        )
        status = answers[0].status
        if status.code == pb.MESSAGE_NOT_FOUND:
            assert len(answers) == 1
            return []
        assert status.code == pb.OK, status
        assert answers[-1].WhichOneof("content") == "delivery_timestamp"
        return [one.message for one in answers[1:-1]]

    def receive_raw(
        self,
        topic: str,
        group: str,
        *,
        batch_size: int = 16,
        invisible_s: float = 30.0,
        wait_s: float = 5.0,
        tags: str = "*",
        sql: str = "",
        namespace: str = "",
        **more: Any,
    ) -> list[service.ReceiveMessageResponse]:
        expression = pb.FilterExpression(type=pb.TAG, expression=tags)
        if sql:
            expression = pb.FilterExpression(type=pb.SQL, expression=sql)
        request = service.ReceiveMessageRequest(
            group=resource(group, namespace),
            message_queue=pb.MessageQueue(topic=resource(topic, namespace), id=-1),
            filter_expression=expression,
            batch_size=batch_size,
            **more,
        )
        if not request.auto_renew:
            set_duration(request.invisible_duration, invisible_s)
        set_duration(request.long_polling_timeout, wait_s)
        found: list[service.ReceiveMessageResponse] = self.call("ReceiveMessage", request)
        return found

    def ack(self, topic: str, group: str, *messages: pb.Message) -> service.AckMessageResponse:
        entries = [
            service.AckMessageEntry(
                message_id=one.system_properties.message_id,
                receipt_handle=one.system_properties.receipt_handle,
            )
            for one in messages
        ]
        found: service.AckMessageResponse = self.call(
            "AckMessage",
            service.AckMessageRequest(
                group=resource(group), topic=resource(topic), entries=entries
            ),
        )
        return found


def _encoded(request: Any) -> bytes:
    """Also bytes that are no request."""
    return request if isinstance(request, bytes) else bytes(request.SerializeToString())


def resource(name: str, namespace: str = "") -> pb.Resource:
    return pb.Resource(name=name, resource_namespace=namespace)


def message(topic: str, body: bytes = b"body", **system: Any) -> pb.Message:
    made = pb.Message(topic=resource(topic), body=body)
    properties = made.system_properties
    properties.message_id = system.pop("message_id", "") or new_name("0102FC")
    properties.born_timestamp.GetCurrentTime()
    properties.born_host = "test"
    for name, value in system.items():
        if name == "properties":
            made.user_properties.update(value)
        elif name == "namespace":
            made.topic.resource_namespace = value
        elif name == "keys":
            properties.keys.extend(value)
        elif name == "deliver_at_s":
            set_duration(properties.delivery_timestamp, value)
        elif name == "first_check_s":
            set_duration(properties.orphaned_transaction_recovery_duration, value)
        else:
            setattr(properties, name, value)
    return made


def set_duration(field: Any, seconds: float) -> None:
    field.seconds, field.nanos = int(seconds), int(seconds % 1 * 1_000_000_000)
