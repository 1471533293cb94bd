"""grpc.testing.TestService of gRPC's interoperability tests, served by `mq.http2` in a process of
its own, and an echo for other tests.

    with InteropServer() as server:
        grpc.insecure_channel(server.address)

The messages are declared here as far as the tests use them: their numbers are
those of grpc/testing/messages.proto.
"""

from __future__ import annotations

import asyncio
import signal
import ssl
import subprocess
import sys
from typing import Any, Self

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from mq.http2.calls import Call, CallAborted, Handlers, Streaming, Unary
from mq.http2.limits import Limits
from mq.http2.server import Http2Server
from mq.http2.status import Status

INITIAL_KEY, TRAILING_KEY = "x-grpc-test-echo-initial", "x-grpc-test-echo-trailing-bin"

_FIELD = descriptor_pb2.FieldDescriptorProto
_MESSAGES: dict[str, list[tuple[str, int, Any, str]]] = {
    "Payload": [("type", 1, _FIELD.TYPE_INT32, ""), ("body", 2, _FIELD.TYPE_BYTES, "")],
    "EchoStatus": [("code", 1, _FIELD.TYPE_INT32, ""), ("message", 2, _FIELD.TYPE_STRING, "")],
    "ResponseParameters": [
        ("size", 1, _FIELD.TYPE_INT32, ""),
        ("interval_us", 2, _FIELD.TYPE_INT32, ""),
    ],
    "SimpleRequest": [
        ("response_size", 2, _FIELD.TYPE_INT32, ""),
        ("payload", 3, _FIELD.TYPE_MESSAGE, "Payload"),
        ("response_status", 7, _FIELD.TYPE_MESSAGE, "EchoStatus"),
    ],
    "SimpleResponse": [("payload", 1, _FIELD.TYPE_MESSAGE, "Payload")],
    "StreamingInputCallRequest": [("payload", 1, _FIELD.TYPE_MESSAGE, "Payload")],
    "StreamingInputCallResponse": [("aggregated_payload_size", 1, _FIELD.TYPE_INT32, "")],
    "StreamingOutputCallRequest": [
        ("response_parameters", 2, _FIELD.TYPE_MESSAGE, "*ResponseParameters"),
        ("payload", 3, _FIELD.TYPE_MESSAGE, "Payload"),
        ("response_status", 7, _FIELD.TYPE_MESSAGE, "EchoStatus"),
    ],
    "StreamingOutputCallResponse": [("payload", 1, _FIELD.TYPE_MESSAGE, "Payload")],
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="interop.proto", package="interop", syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, of in fields:
            is_repeated = of.startswith("*")
            field = message.field.add(name=field_name, number=number, type=kind)
            field.label = _FIELD.LABEL_REPEATED if is_repeated else _FIELD.LABEL_OPTIONAL
            if of:
                field.type_name = f".interop.{of.lstrip('*')}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"interop.{name}"))
        for name in _MESSAGES
    }


CLASSES = _classes()


def echo_metadata(call: Call) -> None:
    given = dict(call.metadata)
    if INITIAL_KEY in given:
        call.set_initial_metadata([(INITIAL_KEY, given[INITIAL_KEY])])
    if TRAILING_KEY in given:
        call.set_trailing_metadata([(TRAILING_KEY, given[TRAILING_KEY])])


def check_status(request: Any) -> None:
    if request.response_status.code:
        raise CallAborted(Status(request.response_status.code), request.response_status.message)


def empty_call(_: bytes, call: Call) -> bytes:
    echo_metadata(call)
    return b""


def unary_call(data: bytes, call: Call) -> bytes:
    request = CLASSES["SimpleRequest"].FromString(data)
    echo_metadata(call)
    check_status(request)
    payload = CLASSES["Payload"](body=bytes(request.response_size))
    answer = CLASSES["SimpleResponse"](payload=payload).SerializeToString()
    assert isinstance(answer, bytes)
    return answer


async def streaming_input_call(call: Call) -> None:
    size = 0
    while (data := await call.read()) is not None:
        size += len(CLASSES["StreamingInputCallRequest"].FromString(data).payload.body)
    answer = CLASSES["StreamingInputCallResponse"](aggregated_payload_size=size)
    await call.write(answer.SerializeToString())


async def answer_output(request: Any, call: Call) -> None:
    check_status(request)
    for parameters in request.response_parameters:
        await asyncio.sleep(parameters.interval_us / 1e6)
        payload = CLASSES["Payload"](body=bytes(parameters.size))
        answer = CLASSES["StreamingOutputCallResponse"](payload=payload)
        await call.write(answer.SerializeToString())


async def full_duplex_call(call: Call) -> None:
    echo_metadata(call)
    while (data := await call.read()) is not None:
        await answer_output(CLASSES["StreamingOutputCallRequest"].FromString(data), call)


# -- what other tests call -------------------------------------------------------------------------


def echo(data: bytes, _: Call) -> bytes:
    return data


async def echo_later(data: bytes, _: Call) -> bytes:
    await asyncio.sleep(0)
    return data


async def echo_stream(call: Call) -> None:
    while (data := await call.read()) is not None:
        await call.write(data)


def _test_service(name: str, serve: Unary | Streaming) -> tuple[bytes, Unary | Streaming]:
    return f"/grpc.testing.TestService/{name}".encode(), serve


HANDLERS: Handlers = dict(
    [
        _test_service("EmptyCall", Unary(empty_call)),
        _test_service("UnaryCall", Unary(unary_call)),
        _test_service("StreamingInputCall", Streaming(streaming_input_call)),
        _test_service("StreamingOutputCall", Streaming(full_duplex_call)),
        _test_service("FullDuplexCall", Streaming(full_duplex_call)),
        (b"/test/Echo", Unary(echo)),
        (b"/test/EchoLater", Unary(echo_later)),
        (b"/test/EchoStream", Streaming(echo_stream)),
    ]
)


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2"])
    return context


class InteropServer:
    def __init__(
        self,
        *,
        header_table_bytes: int = Limits().header_table_bytes,
        certificate: str = "",
        key: str = "",
    ) -> None:
        self._arguments = [str(header_table_bytes), certificate, key]

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", __name__, *self._arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate(timeout=30)
        assert self._process.returncode == -signal.SIGTERM

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


async def serve(header_table_bytes: int, tls: ssl.SSLContext | None) -> None:
    """For ever. Prints the port."""
    limits = Limits(header_table_bytes=header_table_bytes)
    server = Http2Server(HANDLERS, limits, 1_000, None if tls is None else lambda: tls)
    port = server.bind("127.0.0.1", 0)
    await server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def main(header_table_bytes: str, certificate: str, key: str) -> None:
    tls = tls_context(certificate, key) if certificate else None
    asyncio.run(serve(int(header_table_bytes), tls))


if __name__ == "__main__":
    main(*sys.argv[1:])
