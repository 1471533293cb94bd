"""Rules for every method, the health service, and reflection."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.conformance.calls import METHODS, STREAMS, UNARY, Calls, path_of, refusal_of

SERVICES = [
    "AdminService",
    "ClusterService",
    "ConsumerService",
    "ProducerService",
    "SecurityService",
    "TransactionService",
]
# Unknown to the message, legal for protobuf: a field of a later version.
FUTURE = b"\xfa\x7f\x03new"


def raw_error(channel: grpc.Channel, path: str, data: bytes) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary(path)(data, timeout=10)
    return raised.value


def test_the_suite_knows_every_method() -> None:
    assert len(UNARY) + len(STREAMS) == len(METHODS) == 60


@pytest.mark.parametrize("method", UNARY)
@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05ab", b"\x00"])
def test_bytes_that_are_no_request_get_a_typed_answer(
    calls: Calls, method: str, data: bytes
) -> None:
    refusal = refusal_of(raw_error(calls.channel, path_of(method), data))
    assert (refusal.code, refusal.grpc_code) == (
        "ILLEGAL_REQUEST",
        grpc.StatusCode.INVALID_ARGUMENT,
    )


def test_text_that_is_not_utf_8_gets_a_typed_answer(calls: Calls) -> None:
    for method in ("AdminService/CreateTopic", "ConsumerService/Pull", "ProducerService/Send"):
        error = raw_error(calls.channel, path_of(method), b"\x0a\x02\xff\xff")
        assert refusal_of(error).code == "ILLEGAL_REQUEST"


@pytest.mark.parametrize("method", ["AdminService/ListTopics", "ClusterService/Route"])
def test_fields_of_a_later_version_are_passed_over(calls: Calls, method: str) -> None:
    assert isinstance(calls.raw(method, FUTURE), bytes)


@pytest.mark.every_client("a status without an answer")
@pytest.mark.parametrize("path", ["/mq.v1.AdminService/Explode", "/mq.v1.NoService/X", "/x"])
def test_an_unknown_method_is_refused(channel: grpc.Channel, path: str) -> None:
    error = raw_error(channel, path, b"")
    assert error.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.every_client("large messages")
def test_a_request_beyond_all_limits_is_refused(calls: Calls) -> None:
    error = raw_error(calls.channel, path_of("ProducerService/Send"), bytes(20 << 20))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert calls("BrokerStatus").is_ready


@pytest.mark.every_client("metadata")
def test_metadata_beyond_all_limits_is_refused(calls: Calls) -> None:
    method = calls.channel.unary_unary(path_of("AdminService/ListTopics"))
    metadata = [(f"x-{number}", "y" * 1_000) for number in range(200)]
    with pytest.raises(grpc.RpcError):
        method(b"", metadata=metadata, timeout=10)
    assert calls("BrokerStatus").is_ready


def test_health_is_served_for_the_node_and_each_service(channel: grpc.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for name in ("", *(f"mq.v1.{service}" for service in SERVICES)):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as raised:
        stub.Check(health_pb2.HealthCheckRequest(service="mq.v1.NoService"), timeout=10)
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND


@pytest.mark.every_client("an answer that is a stream, cancellation")
def test_health_can_be_watched(channel: grpc.Channel) -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()


def reflect(
    channel: grpc.Channel, request: reflection_pb2.ServerReflectionRequest
) -> reflection_pb2.ServerReflectionResponse:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    (answer,) = stub.ServerReflectionInfo(iter([request]))
    return answer


def test_reflection_lists_every_service(channel: grpc.Channel) -> None:
    request = reflection_pb2.ServerReflectionRequest(list_services="*")
    listed = reflect(channel, request).list_services_response.service
    assert {one.name for one in listed} == {
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        *(f"mq.v1.{service}" for service in SERVICES),
    }


@pytest.mark.every_client("a stream of one request")
@pytest.mark.parametrize("service", SERVICES)
def test_reflection_has_the_descriptors_that_a_tool_needs(
    channel: grpc.Channel, service: str
) -> None:
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=f"mq.v1.{service}")
    answer = reflect(channel, request).file_descriptor_response
    files = [FileDescriptorProto.FromString(one) for one in answer.file_descriptor_proto]
    methods = {
        f"{found.name}/{method.name}"
        for file in files
        for found in file.service
        if found.name == service
        for method in found.method
    }
    assert methods == {one for one in METHODS if one.startswith(service)}
    # With all that it imports: nothing else has to be asked for.
    names = {file.name for file in files}
    assert all(set(file.dependency) <= names for file in files)


def test_reflection_refuses_what_is_not_there(channel: grpc.Channel) -> None:
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol="mq.v1.NoService")
    assert reflect(channel, request).HasField("error_response")
