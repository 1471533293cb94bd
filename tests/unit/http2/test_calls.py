"""Calls of gRPC on a connection, without sockets."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import hpack
import pytest

from mq.http2.calls import Call, CallAborted, CallAcceptor, CallEnded, Streaming, Unary
from mq.http2.deadlines import TICK_S, Deadlines
from mq.http2.frames import ErrorCode
from mq.http2.limits import Limits
from mq.http2.status import Status
from tests.support import http2_frames as http2
from tests.support.consensus import on_loop, turns
from tests.unit.http2.peer import Peer

LIMITS = Limits()
END = http2.END_STREAM


class Client(Peer):
    """Calls `serve` as method M."""

    def __init__(self, serve: Unary | Streaming, limits: Limits = LIMITS, **more: Any) -> None:
        self.deadlines = Deadlines()
        loop = asyncio.get_running_loop()
        acceptor = CallAcceptor({b"/s/M": serve}, self.deadlines, loop, lambda: None)
        self._decoder = hpack.Decoder()
        # Deadlines are by the loop's clock, which on a machine that has just started is low.
        super().__init__(limits, acceptor, now_s=loop.time(), **more)

    def call(self, *messages: bytes, more: tuple[tuple[str, str], ...] = ()) -> None:
        self.open(1, block=http2.call_headers("/s/M", *more))
        self.send(http2.data(1, b"".join(map(http2.grpc_message, messages)), END))

    async def answers(self) -> tuple[list[bytes], dict[str, str]]:
        """The messages and the last header block, of all that comes in a few turns."""
        data, fields = b"", {}
        for _ in range(5):
            await turns()
            for one in self.frames():
                if one.kind == http2.DATA:
                    data += one.payload
                elif one.kind == http2.HEADERS:
                    decoded = self._decoder.decode(one.payload, raw=True)
                    fields = {bytes(k).decode(): bytes(v).decode() for k, v in decoded}
        messages = []
        while data:
            size = int.from_bytes(data[1:5], "big")
            messages.append(data[5 : 5 + size])
            data = data[5 + size :]
        return messages, fields

    async def status(self) -> tuple[int, str]:
        _, fields = await self.answers()
        return int(fields["grpc-status"]), fields.get("grpc-message", "")


def echo(data: bytes, _: Call) -> bytes:
    return data


async def echo_later(data: bytes, _: Call) -> bytes:
    await asyncio.sleep(0)
    return data


def echo_by_callback(data: bytes, call: Call) -> None:
    asyncio.get_running_loop().call_soon(call.reply, data)


async def echo_stream(call: Call) -> None:
    while (data := await call.read()) is not None:
        await call.write(data)


@pytest.mark.parametrize("serve", [echo, echo_later, echo_by_callback])
@pytest.mark.parametrize("size", [0, 3, 16_380, 30_000])
@on_loop
async def test_a_unary_call_is_answered(serve: Callable[..., Any], size: int) -> None:
    client = Client(Unary(serve))
    client.open(1)
    request = http2.grpc_message(b"x" * size)
    for start in range(0, len(request), 10_000):
        client.send(http2.data(1, request[start : start + 10_000]))
    client.send(http2.data(1, b"", END))
    assert await client.answers() == ([b"x" * size], {"grpc-status": "0"})
    assert not client.connection.streams


@on_loop
async def test_messages_may_be_cut_anywhere() -> None:
    client = Client(Streaming(echo_stream))
    messages = [b"", b"a", b"bc" * 5_000, b"", b"d"]
    client.open(1)
    for byte in b"".join(map(http2.grpc_message, messages)):
        client.send(http2.data(1, bytes([byte])))
        client.now_s += 1
    client.send(http2.data(1, b"", END))
    assert (await client.answers())[0] == messages


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ([], "one request"),
        ([http2.grpc_message(b"a"), http2.grpc_message(b"b")], "one request"),
        ([http2.grpc_message(b"abc")[:-1]], "cut short"),
        ([b"\0\0"], "cut short"),
        ([b"\1" + http2.grpc_message(b"abc")[1:]], "compressed"),
    ],
)
@on_loop
async def test_malformed_requests_end_the_call(sent: list[bytes], text: str) -> None:
    client = Client(Unary(echo))
    client.open(1)
    for one in sent:
        client.send(http2.data(1, one))
    client.send(http2.data(1, b"", END))
    status, told = await client.status()
    assert status == Status.INTERNAL
    assert text in told


@on_loop
async def test_a_stream_that_is_cut_short_ends_with_an_error() -> None:
    client = Client(Streaming(echo_stream))
    client.open(1)
    client.send(http2.data(1, http2.grpc_message(b"abc")[:-1], END))
    assert (await client.status())[0] == Status.INTERNAL


ONE = http2.grpc_message(b"one")
CALL = http2.call_headers("/s/M")
LIMITED = http2.call_headers("/s/M", ("grpc-timeout", "5S"))


@pytest.mark.parametrize(
    ("block", "content"),
    [
        pytest.param(CALL, ONE, id="plain"),
        pytest.param(LIMITED, ONE, id="with a deadline"),
        pytest.param(CALL, http2.grpc_message(b""), id="empty message"),
        pytest.param(CALL, ONE + ONE, id="two messages"),
        pytest.param(CALL, ONE[:-1], id="message cut short"),
        pytest.param(CALL, ONE[:3], id="prefix cut short"),
        pytest.param(CALL, b"\1" + ONE[1:], id="compressed"),
        pytest.param(CALL, http2.grpc_message(b"x" * 1_001), id="too large"),
        pytest.param(http2.call_headers("/s/Other"), ONE, id="unknown method"),
        pytest.param(http2.call_headers("/s/M", ("grpc-encoding", "gzip")), ONE, id="encoded"),
        pytest.param(http2.call_headers("/s/M", ("content-length", "8")), ONE, id="length"),
        pytest.param(http2.call_headers("/s/M", ("content-length", "7")), ONE, id="wrong length"),
        pytest.param(http2.call_headers("/s/M", ("content-type", "text/html")), ONE, id="http"),
    ],
)
@pytest.mark.parametrize("serve", [Unary(echo), Unary(echo_by_callback), Streaming(echo_stream)])
@on_loop
async def test_a_request_that_comes_whole_is_served_as_one_in_pieces(
    block: bytes, content: bytes, serve: Unary | Streaming
) -> None:
    limits = replace(LIMITS, message_bytes_max=1_000)
    whole, pieces = Client(serve, limits), Client(serve, limits)
    # The peer does without a table, so that the second block of the same bytes is known.
    without_table = b"\x20"
    stream_id = 1
    for head in (without_table + block, block, block):
        request = http2.headers(stream_id, head) + http2.data(stream_id, content, END)
        whole.send(request)
        for at in range(len(request)):
            pieces.send(request[at : at + 1])
        for _ in range(5):
            await turns()
        # A refusal that came before the end of the request asks for no more of it.
        no_more = http2.rst_stream(stream_id, ErrorCode.NO_ERROR)
        answers = [one.output().replace(no_more, b"") for one in (whole, pieces)]
        assert answers[0] == answers[1]
        assert not whole.connection.streams
        stream_id += 2
    for one in (whole.connection, pieces.connection):
        assert one.received_bytes == 0
        assert one._receive_window + one._uncredited == limits.connection_window_bytes


@on_loop
async def test_the_reserved_bit_of_a_stream_id_is_ignored() -> None:
    client = Client(Unary(echo))
    for stream_id, block in ((1, b"\x20" + CALL), (3 | 1 << 31, CALL)):
        client.send(http2.headers(stream_id, block) + http2.data(stream_id, ONE, END))
    answered = {one.stream_id for one in client.frames() if one.kind == http2.DATA}
    assert answered == {1, 3}


@on_loop
async def test_an_unknown_method_and_compression_are_not_implemented() -> None:
    client = Client(Unary(echo))
    client.open(1, block=http2.call_headers("/s/Other"))
    assert (await client.status())[0] == Status.UNIMPLEMENTED
    client.open(3, block=http2.call_headers("/s/M", ("grpc-encoding", "gzip")))
    _, fields = await client.answers()
    assert fields["grpc-status"] == str(int(Status.UNIMPLEMENTED))
    assert fields["grpc-accept-encoding"] == "identity"


@on_loop
async def test_http_without_grpc_is_answered_in_http() -> None:
    client = Client(Unary(echo))
    get = [(":method", "GET"), (":scheme", "http"), (":path", "/")]
    client.send(http2.headers(1, http2.header_block(get), http2.END_HEADERS | END))
    head, body = client.frames()
    assert (head.kind, body.kind, body.flags) == (http2.HEADERS, http2.DATA, END)
    assert b"405" in head.payload
    assert b"gRPC" in body.payload


@on_loop
async def test_a_message_beyond_the_limit_ends_the_call() -> None:
    for size in (101, 1 << 31):
        for handler in (Unary(echo), Streaming(echo_stream)):
            client = Client(handler, replace(LIMITS, message_bytes_max=100))
            client.open(1)
            client.send(http2.data(1, b"\0" + size.to_bytes(4, "big") + bytes(101)))
            status, text = await client.status()
            assert (status, "larger than max" in text) == (Status.RESOURCE_EXHAUSTED, True)
            assert client.usage.received_bytes == 0


@on_loop
async def test_requests_that_no_handler_reads_stop_at_the_window() -> None:
    async def never_read(_: Call) -> None:
        await asyncio.Event().wait()

    client = Client(Streaming(never_read), replace(LIMITS, stream_window_bytes=10_000))
    client.open(1)
    client.send(http2.data(1, http2.grpc_message(bytes(995)) * 10))
    assert client.frames() == []
    assert client.connection.received_bytes >= 9_950
    client.send(http2.data(1, b"x"))
    (reset,) = client.frames()
    assert reset.error == ErrorCode.FLOW_CONTROL_ERROR
    assert client.connection.received_bytes == 0
    await turns()


@on_loop
async def test_a_message_may_be_larger_than_the_window() -> None:
    client = Client(Streaming(echo_stream), replace(LIMITS, stream_window_bytes=10_000))
    client.open(1)
    await turns()
    request = http2.grpc_message(b"x" * 100_000)
    for start in range(0, len(request), 5_000):
        client.send(http2.data(1, request[start : start + 5_000]))
    client.send(http2.window_update(1, 1 << 20) + http2.window_update(0, 1 << 20))
    assert (await client.answers())[0] == [b"x" * 100_000]


@on_loop
async def test_requests_whose_end_does_not_come_are_limited() -> None:
    client = Client(Unary(echo), replace(LIMITS, received_bytes_max=50_000))
    for stream_id in range(1, 21, 2):
        client.open(stream_id)
        client.send(http2.data(stream_id, http2.grpc_message(bytes(9_000))))
    assert client.connection.received_bytes <= 50_000
    assert (await client.status())[0] == Status.RESOURCE_EXHAUSTED


@on_loop
async def test_large_requests_of_one_connection_take_turns_and_all_get_done() -> None:
    limits = replace(LIMITS, stream_window_bytes=10_000, received_bytes_max=400_000)
    client = Client(Unary(echo), limits)
    request = http2.grpc_message(b"x" * 90_000)
    streams = range(1, 41, 2)
    client.open(*streams)
    windows, sent = dict.fromkeys(streams, 10_000), dict.fromkeys(streams, 0)
    finished: set[int] = set()
    while len(finished) < len(streams):
        before = len(finished)
        for one in client.frames():
            if one.kind == http2.WINDOW_UPDATE and one.stream_id:
                windows[one.stream_id] += int.from_bytes(one.payload, "big")
            elif one.kind == http2.HEADERS and one.flags & END:
                finished.add(one.stream_id)
        moved = 0
        for stream_id in streams:
            size = min(windows[stream_id], 1_000, len(request) - sent[stream_id])
            if size > 0:
                is_last = sent[stream_id] + size == len(request)
                part = request[sent[stream_id] :][:size]
                client.send(http2.data(stream_id, part, END if is_last else 0))
                windows[stream_id] -= size
                sent[stream_id] += size
                moved += size
        client.send(http2.window_update(0, 1_000_000))
        for stream_id in streams:
            client.send(http2.window_update(stream_id, 100_000))
        client.now_s += 1
        assert moved or len(finished) > before, "they wait for each other"
        assert client.connection.received_bytes <= 400_000
    assert client.connection.received_bytes == 0


# -- statuses and metadata -------------------------------------------------------------------------


@on_loop
async def test_a_handler_refuses_with_a_status_a_text_and_metadata() -> None:
    def refuse(*_: object) -> bytes:
        raise CallAborted(Status.NOT_FOUND, "ü 50%\n", [("x-bin", b"\xff\x00"), ("y", "z")])

    async def refuse_later(data: bytes, call: Call) -> bytes:
        return refuse(data, call)

    async def refuse_stream(call: Call) -> None:
        refuse(b"", call)

    for handler in (Unary(refuse), Unary(refuse_later), Streaming(refuse_stream)):
        client = Client(handler)
        client.call(b"")
        _, fields = await client.answers()
        assert fields["grpc-status"] == "5"
        assert fields["grpc-message"] == "%C3%BC 50%25%0A"
        assert (fields["x-bin"], fields["y"]) == ("/wA", "z")


@on_loop
async def test_a_handler_sees_metadata_the_peer_and_the_time_that_is_left() -> None:
    seen: list[Any] = []

    def look(_: bytes, call: Call) -> bytes:
        remaining = call.time_remaining()
        seen.extend((call.metadata, call.peer(), remaining is None or 4 < remaining <= 5))
        call.set_initial_metadata([("i", "1")])
        call.set_trailing_metadata([("t-bin", b"2")])
        return b"answer"

    client = Client(Unary(look))
    client.connection.peer = "ipv4:1.2.3.4:5"
    client.call(b"", more=(("x-bin", "AQ"), ("grpc-timeout", "5S")))
    messages, fields = await client.answers()
    assert seen == [(("x-bin", b"\x01"),), "ipv4:1.2.3.4:5", True]
    assert (messages, fields["t-bin"]) == ([b"answer"], "Mg")


@on_loop
async def test_an_exception_of_a_handler_is_a_status_without_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> bytes:
        raise RuntimeError("secret")

    async def fail_later(*_: object) -> None:
        fail()

    for handler in (Unary(fail), Streaming(fail_later)):
        client = Client(handler)
        client.call(b"")
        status, text = await client.status()
        assert (status, "secret" in text) == (Status.UNKNOWN, False)
        assert "mistake of the server" in caplog.text


# -- the end of calls ------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def waiting(**options: Any) -> AsyncIterator[tuple[Client, list[str]]]:
    """A call whose handler waits for ever; what happened to it."""
    seen: list[str] = []

    async def wait(call: Call) -> None:
        call.add_done_callback(lambda: seen.append("done"))
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    client = Client(Streaming(wait), **options)
    yield client, seen


@on_loop
async def test_a_reset_cancels_the_handler() -> None:
    async with waiting() as (client, seen):
        client.open(1)
        await turns()
        client.send(http2.rst_stream(1))
        await turns()
        assert sorted(seen) == ["cancelled", "done"]
        assert client.connection.lingering == 0


@on_loop
async def test_a_reset_before_the_handler_began_leaves_no_trace() -> None:
    async with waiting() as (client, seen):
        client.open(1)
        client.send(http2.rst_stream(1))
        assert client.connection.lingering == 1
        await turns()
        assert (seen, client.connection.lingering) == ([], 0)


@on_loop
async def test_a_reset_before_a_unary_handler_began_closes_its_coroutine() -> None:
    begun = [echo_later(b"x", None)]  # type: ignore[arg-type] # it does not look at the call
    client = Client(Unary(lambda *_: begun[0]))
    client.call(b"x")
    client.send(http2.rst_stream(1))
    await turns()
    assert inspect.getcoroutinestate(begun[0]) == inspect.CORO_CLOSED


@on_loop
async def test_a_deadline_ends_the_call_and_its_handler() -> None:
    async with waiting() as (client, seen):
        client.open(1, block=http2.call_headers("/s/M", ("grpc-timeout", "100m")))
        await turns()
        now_s = asyncio.get_running_loop().time()
        client.deadlines.sweep(now_s)
        assert client.connection.streams
        client.deadlines.sweep(now_s + 0.1 + 2 * TICK_S)
        assert (await client.status())[0] == Status.DEADLINE_EXCEEDED
        assert sorted(seen) == ["cancelled", "done"]


@on_loop
async def test_calls_that_ended_have_no_deadline() -> None:
    client = Client(Unary(echo))
    client.call(b"x", more=(("grpc-timeout", "1S"),))
    client.deadlines.sweep(client.now_s)
    assert not client.deadlines._new
    assert not client.deadlines._ticks


@on_loop
async def test_a_call_that_ends_leaves_its_deadline() -> None:
    async with waiting() as (client, _):
        client.open(1, block=http2.call_headers("/s/M", ("grpc-timeout", "1S")))
        await turns()
        client.deadlines.sweep(client.now_s)
        assert any(client.deadlines._ticks.values())
        client.send(http2.rst_stream(1))
        assert not any(client.deadlines._ticks.values())


@on_loop
async def test_a_server_that_stops_says_so() -> None:
    async with waiting() as (client, seen):
        client.open(1)
        await turns()
        for stream in [*client.connection.streams.values()]:
            assert isinstance(stream, Call)
            stream.cancel()
        assert (await client.status())[0] == Status.UNAVAILABLE
        assert sorted(seen) == ["cancelled", "done"]


@on_loop
async def test_writing_to_a_call_that_ended_fails() -> None:
    ends: list[type[BaseException]] = []

    async def write(call: Call) -> None:
        client.send(http2.rst_stream(1))
        try:
            await call.write(b"x")
        except CallEnded as error:
            ends.append(type(error))
            raise

    client = Client(Streaming(write))
    client.open(1)
    await turns()
    assert ends == [CallEnded]


@on_loop
async def test_a_writer_waits_for_its_client() -> None:
    written: list[int] = []

    async def write(call: Call) -> None:
        for number in range(10):
            await call.write(bytes(1_000))
            written.append(number)

    client = Client(Streaming(write), settings=http2.settings(initial_window_size=2_500))
    client.open(1, is_end=True)
    await turns()
    assert len(written) == 2
    client.output()
    client.send(http2.window_update(1, 1 << 20))
    client.output()
    await turns()
    assert len(written) == 10


@on_loop
async def test_a_writer_prepares_the_next_message_while_half_of_the_last_one_is_unsent() -> None:
    written: list[int] = []

    async def write(call: Call) -> None:
        for number in range(2):
            await call.write(bytes(100_000))
            written.append(number)

    client = Client(Streaming(write), settings=http2.settings(initial_window_size=49_000))
    client.open(1, is_end=True)
    client.output()
    await turns()
    assert written == []
    client.send(http2.window_update(1, 2_000))
    client.output()
    await turns()
    assert written == [0], "and of the second message nothing is sent"
    client.send(http2.window_update(1, 49_010))
    client.output()
    await turns()
    assert written == [0]


@pytest.mark.parametrize("sizes", [[], [0, 7], [4_000, 90, 5], [1, 30_000, 2]])
@on_loop
async def test_a_message_may_be_written_in_parts(sizes: list[int]) -> None:
    parts = [bytes([at]) * size for at, size in enumerate(sizes)]

    async def write(call: Call) -> None:
        await call.write_parts([memoryview(part) for part in parts])
        await call.write_parts(parts)

    client = Client(Streaming(write))
    client.open(1, is_end=True)
    messages, _ = await client.answers()
    assert messages == [b"".join(parts)] * 2


@on_loop
async def test_a_reader_that_waits_may_take_small_requests_as_they_come() -> None:
    taken: list[bytes] = []
    read: list[bytes] = []

    def take(message: bytes) -> bool:
        taken.append(message)
        return message != b"refused"

    async def serve(call: Call) -> None:
        while (message := await call.read(take)) is not None:
            read.append(message)

    client = Client(Streaming(serve), replace(LIMITS, stream_window_bytes=10_000))
    client.open(1)
    await turns()
    large = bytes(5_000)
    # The third one comes before the second one is read: their order is kept.
    for message in (b"first", b"refused", b"third", large):
        client.send(http2.data(1, http2.grpc_message(message)))
    await turns()
    assert (taken, read) == ([b"first", b"refused"], [b"refused", b"third", large])
    # What is taken has its credit: this is more than the window.
    for _ in range(100):
        client.send(http2.data(1, http2.grpc_message(bytes(500))))
    assert len(taken) == 102
    # In pieces, or padded, they are taken as well, or read.
    split = http2.grpc_message(b"split")
    client.send(http2.data(1, split[:7]) + http2.data(1, split[7:]))
    client.send(http2.data(1, b"\x02" + http2.grpc_message(b"padded") + b"\0\0", 8))  # PADDED
    await turns()
    assert [*taken, *read][-2:] == [b"split", b"padded"]
    connection, stream = client.connection, client.connection.streams[1]
    assert connection.received_bytes == 0
    window = connection._receive_window + connection._uncredited
    assert window == LIMITS.connection_window_bytes
    assert stream.receive_window + stream._uncredited_bytes == 10_000


@pytest.mark.parametrize("piece", [16_384, 16_385, 20_000, 33_333, 65_536])
@on_loop
async def test_large_requests_may_be_cut_anywhere_between_large_pieces(piece: int) -> None:
    read: list[bytes] = []

    async def serve(call: Call) -> None:
        while (message := await call.read()) is not None:
            read.append(message)

    client = Client(Streaming(serve))
    client.open(1)
    await turns()
    sent = [bytes([at]) * (10_007 * at) for at in range(1, 12)]
    content = b"".join(map(http2.grpc_message, sent))
    parts = [content[at : at + 16_384] for at in range(0, len(content), 16_384)]
    # Other frames stand between them.
    stream = b"".join(http2.data(1, part) + http2.ping(b"12345678") for part in parts[:-1])
    stream += http2.data(1, parts[-1], END)
    for at in range(0, len(stream), piece):
        client.send(stream[at : at + piece])
        await turns()
    assert read == sent
    assert client.connection._rest == b""


@on_loop
async def test_a_cut_frame_that_is_too_large_ends_the_connection() -> None:
    client = Client(Streaming(echo_stream))
    client.open(1)
    await turns()
    frame = http2.data(1, bytes(16_385))
    client.send(frame[:100])
    client.send(frame[100:] + bytes(20_000))
    assert client.connection.is_closed
    assert client.connection.has_failed


@on_loop
async def test_a_small_request_beyond_the_window_or_its_length_is_a_fault() -> None:
    async def serve(call: Call) -> None:
        while await call.read(lambda _: True) is not None:
            pass

    message = http2.data(1, http2.grpc_message(bytes(500)))
    client = Client(Streaming(serve), replace(LIMITS, stream_window_bytes=10_000))
    client.open(1)
    await turns()
    client.connection.streams[1].receive_window = 504
    client.send(message)
    assert ErrorCode.FLOW_CONTROL_ERROR in {
        int.from_bytes(one.payload, "big")
        for one in client.frames()
        if one.kind == http2.RST_STREAM
    }
    client.open(3, block=http2.call_headers("/s/M", ("content-length", "600")))
    await turns()
    client.send(http2.data(3, http2.grpc_message(bytes(500))) * 2)
    assert [one.stream_id for one in client.frames() if one.kind == http2.RST_STREAM] == [3]


@on_loop
async def test_a_message_is_tried_as_long_as_the_client_has_room() -> None:
    tried: list[bool] = []

    async def write(call: Call) -> None:
        # The third one does not fit whole, and goes when there is room.
        tried.extend(call.try_write(bytes(1_000)) for _ in range(5))
        await call.write(b"")
        tried.append(call.try_write(bytes(1_000)))
        client.send(http2.rst_stream(1))
        tried.append(call.try_write(b"x"))

    client = Client(Streaming(write), settings=http2.settings(initial_window_size=2_500))
    client.open(1, is_end=True)
    await turns()
    assert tried == [True, True, True, False, False]
    client.output()
    client.send(http2.window_update(1, 1 << 20))
    client.output()
    await turns()
    assert tried[5:] == [True, False]


@on_loop
async def test_an_answer_is_done_when_the_client_took_it() -> None:
    done: list[bool] = []

    def answer(_: bytes, call: Call) -> bytes:
        call.add_done_callback(lambda: done.append(True))
        return bytes(10_000)

    client = Client(Unary(answer), settings=http2.settings(initial_window_size=100))
    client.call(b"")
    client.output()
    assert done == []
    client.send(http2.window_update(1, 1 << 20))
    client.output()
    assert done == [True]
