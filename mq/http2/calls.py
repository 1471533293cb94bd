"""A gRPC call on a stream: messages, deadline, status. What handlers see is the class `Call`.

A handler is one of two kinds. A unary one gets the request and returns the answer; or a coroutine
for it, which runs as a task; or None, and answers later by `Call.reply` or `Call.finish`: then the
call costs no task. A streaming one is a coroutine that reads and writes.

Messages are bytes. Compressed ones are refused: what brokers carry is compressed by its producers,
in batches.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast

from mq.http2 import frames, status
from mq.http2.connection import Connection
from mq.http2.deadlines import Deadlines, Expiring
from mq.http2.frames import ErrorCode
from mq.http2.hpack import encode_field, encode_status
from mq.http2.requests import Metadata, Request, Timeout, decode_timeout
from mq.http2.status import Status
from mq.http2.stream import SMALL_BYTES_MAX, Stream
from mq.logging import get_logger

log = get_logger(__name__)

# Before each message: whether it is compressed, and its size.
_PREFIX_BYTES: Final = 5
# What a message that waits for its reader takes in memory beside its bytes.
_MESSAGE_OVERHEAD: Final = 64
# Messages up to this size are copied into one piece with their frame.
_COPIED_BYTES_MAX: Final = 4_096
# Parts of a message below this size are copied: a view keeps all that came with it.
_VIEWED_BYTES_MIN: Final = 1_024
_NOT_GRPC: Final = b"this port speaks gRPC\n"
_IDENTITY: Final = (("grpc-accept-encoding", "identity"),)
_TOO_MANY_TEXT: Final = "too many bytes of requests wait on this connection"
_TOO_LARGE_TEXT: Final = "the received metadata size exceeds hard limit"


class CallEnded(Exception):
    """The call was written to after its end: the client has gone, or the deadline has passed."""


class CallAborted(Exception):
    """Raised by a handler, it ends the call with this status."""

    def __init__(
        self, code: Status, text: str, metadata: Sequence[tuple[str, str | bytes]] = ()
    ) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.metadata = metadata


UnaryHandler: TypeAlias = Callable[[bytes, "Call"], "Coroutine[Any, Any, bytes] | bytes | None"]
StreamHandler: TypeAlias = Callable[["Call"], "Coroutine[Any, Any, None]"]


class Unary(NamedTuple):
    serve: UnaryHandler


class Streaming(NamedTuple):
    serve: StreamHandler


Handlers: TypeAlias = Mapping[bytes, Unary | Streaming]


class CallAcceptor:
    """Makes calls of requests. Of one server."""

    too_large = status.HEADERS + status.trailers(Status.RESOURCE_EXHAUSTED, _TOO_LARGE_TEXT)

    def __init__(
        self,
        handlers: Handlers,
        deadlines: Deadlines,
        loop: asyncio.AbstractEventLoop,
        on_overload: Callable[[], None],
    ) -> None:
        self.handlers = handlers
        self.deadlines = deadlines
        self.loop = loop
        self.on_overload = on_overload

    def open(self, connection: Connection, stream_id: int, request: Request) -> Stream:
        if request.refusal:
            return _Refused(connection, stream_id, request)
        connection.last_request = request
        return Call(connection, stream_id, request, self)


class _Refused(Stream):
    """A request that is HTTP and not gRPC gets an answer in plain HTTP."""

    __slots__ = ("_status",)

    def __init__(self, connection: Connection, stream_id: int, request: Request) -> None:
        super().__init__(connection, stream_id, request.content_length)
        self._status = request.refusal

    def on_open(self, timeout: Timeout) -> None:
        pass

    def on_data(self, data: bytes, start: int, stop: int) -> None:  # noqa: ARG002
        self.credit(stop - start)

    def on_end(self) -> None:
        self.send_headers(
            encode_status(self._status) + encode_field(b"content-type", b"text/plain")
        )
        self.send_data([_NOT_GRPC])
        self.send_tail(b"")

    def on_whole(
        self,
        timeout: Timeout,  # noqa: ARG002
        data: bytes,
        start: int,
        stop: int,
    ) -> None:
        self.on_data(data, start, stop)
        self.on_end()

    def on_sent(self) -> None:
        pass

    def on_closed(self, connection: Connection, *, is_cancelled: bool) -> None:
        pass


class Call(Stream):
    """One task reads and one writes at a time."""

    __slots__ = (
        "_acceptor",
        "_callbacks",
        "_certificate_names",
        "_inbox",
        "_initial",
        "_is_head_sent",
        "_message",
        "_needed",
        "_parts",
        "_parts_bytes",
        "_peer",
        "_reader",
        "_rest_bytes_max",
        "_take_small",
        "_task",
        "_timeout",
        "_trailing",
        "_unary",
        "_work",
        "_writer",
        "due",
        "request",
    )

    def __init__(
        self, connection: Connection, stream_id: int, request: Request, acceptor: CallAcceptor
    ) -> None:
        super().__init__(connection, stream_id, request.content_length)
        self.request = request
        self._peer = connection.peer
        self._certificate_names = connection.certificate_names
        self._acceptor = acceptor
        self._unary: UnaryHandler | None = None
        # The request of a unary call, until the peer has ended its side.
        self._message: bytes | None = None
        self._inbox: deque[bytes] | None = None
        # The message that is being received: its parts, or of its prefix while `_needed` is None.
        self._parts: list[bytes | memoryview] = []
        self._parts_bytes = 0
        self._needed: int | None = None
        self._reader: asyncio.Future[None] | None = None
        self._take_small: Callable[[bytes], bool] | None = None
        self._writer: asyncio.Future[None] | None = None
        # The writer goes on when no more than this is in the queue.
        self._rest_bytes_max = 0
        self._task: asyncio.Task[None] | None = None
        self._work: Coroutine[Any, Any, bytes | None] | None = None
        self._timeout: Timeout = None
        self.due: set[Expiring] | None = None
        self._initial = self._trailing = b""
        self._is_head_sent = False
        self._callbacks: list[Callable[[], None]] = []

    # -- what handlers use ------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self.connection is not None

    @property
    def metadata(self) -> Metadata:
        """Of the request."""
        return self.request.metadata

    @property
    def caller(self) -> Any:
        """Facts that handlers keep about the client, for all calls with the same header block."""
        return self.request.caller

    @caller.setter
    def caller(self, caller: Any) -> None:
        self.request.caller = caller

    def header(self, name: str) -> str | None:
        """A field of the metadata; the first one, if there are several."""
        for key, value in self.request.metadata:
            if key == name and isinstance(value, str):
                return value
        return None

    def peer(self) -> str:
        """Address of the client, such as ipv4:127.0.0.1:50000."""
        return self._peer

    def certificate_names(self) -> Sequence[str]:
        """URI and DNS names that the client's verified certificate is made for; none without."""
        return self._certificate_names

    def is_encrypted(self) -> bool:
        """Whether the client is connected by TLS; False when the call has ended."""
        return self.connection is not None and self.connection.is_encrypted

    def time_remaining(self) -> float | None:
        """Seconds; None: the client waits for ever."""
        deadline_s = self.deadline_s()
        return None if deadline_s is None else max(0.0, deadline_s - self._acceptor.loop.time())

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """It is called when the answer has gone to the transport, or the call has failed."""
        if self.connection is None:
            callback()
        else:
            self._callbacks.append(callback)

    def set_initial_metadata(self, metadata: Sequence[tuple[str, str | bytes]]) -> None:
        """Before the first answer. As `set_trailing_metadata`, ValueError if it cannot be sent."""
        self._initial = status.encode_metadata(metadata)

    def set_trailing_metadata(self, metadata: Sequence[tuple[str, str | bytes]]) -> None:
        self._trailing = status.encode_metadata(metadata)

    async def read(self, take: Callable[[bytes], bool] | None = None) -> bytes | None:
        """The next request; None: there are no more. `take` is offered a small request that comes
        while this waits: if it returns True, the request is done with, and this waits for the next
        one. It must not raise.
        """
        inbox = self._inbox
        if inbox is None:
            raise TypeError("the request of a unary call is its argument")
        while not inbox:
            if self.is_ended_in or self.connection is None:
                return None
            # The rest of a message has to come in before it can be read.
            self.credit_owed()
            self._reader = self._acceptor.loop.create_future()
            if self.connection.limits.message_bytes_max >= SMALL_BYTES_MAX:
                self._take_small = take
            try:
                await self._reader
            finally:
                self._reader = self._take_small = None
        message = inbox.popleft()
        self.hold(-len(message) - _MESSAGE_OVERHEAD)
        self.credit_owed(len(message) + _PREFIX_BYTES)
        return message

    async def write(self, message: bytes) -> None:
        """Returns when at least half of it is sent, so that the handler prepares the next one
        while the rest goes out. CallEnded.
        """
        self._send(self._writable(), message)
        await self._until_sent(len(message) // 2)

    async def write_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        """As `write`, of a message in parts, which are not copied if they are large."""
        connection, size = self._writable(), sum(map(len, parts))
        if size <= _COPIED_BYTES_MAX:
            self._send(connection, b"".join(parts))
        else:
            self._send_parts(parts, size)
        await self._until_sent(size // 2)

    def _writable(self) -> Connection:
        if self.connection is None or self.tail is not None:
            raise CallEnded
        return self.connection

    async def _until_sent(self, rest_bytes_max: int) -> None:
        """Until no more than this is in the queue."""
        self._rest_bytes_max = rest_bytes_max
        while self.is_open and self.queued_bytes > rest_bytes_max:
            self._writer = self._acceptor.loop.create_future()
            try:
                await self._writer
            finally:
                self._writer = None
        if not self.is_open:
            raise CallEnded

    def try_write(self, message: bytes) -> bool:
        """As `write`, without waiting. Returns False and writes nothing if the client has no room
        now, or the call has ended.
        """
        connection = self.connection
        if connection is None or self.tail is not None or self.queue or connection.is_paused:
            return False
        length = len(message)
        size = length + _PREFIX_BYTES
        if (
            size > _COPIED_BYTES_MAX
            or size > self.send_window
            or size > connection.send_window
            or not self._is_head_sent
        ):
            self._send(connection, message)
        else:
            head = _pack_message(0, size, frames.DATA, 0, self.stream_id, 0, length)
            connection.write_data(self, head + message, size)
        return True

    def reply(self, message: bytes) -> None:
        """The answer of a unary call, and its end. Without effect if the call has ended."""
        connection = self.connection
        if connection is None or self.tail is not None:
            return
        size = len(message) + _PREFIX_BYTES
        is_plain = not (self._is_head_sent or self._initial or self._trailing)
        if not is_plain or not self.is_ended_in or not connection.fits(self, size):
            self._send(connection, message)
            self.finish(Status.OK)
            return
        stream_id = self.stream_id
        head = _ANSWER_HEAD.pack(
            _HEADERS_HEAD,
            stream_id,
            status.HEADERS,
            size,
            frames.DATA,
            0,
            stream_id,
            0,
            len(message),
        )
        tail = _ANSWER_TAIL.pack(_TRAILERS_HEAD, stream_id, status.TRAILERS_OK)
        connection.write_last(self, head + message + tail, size)

    def finish(
        self, code: Status, text: str = "", metadata: Sequence[tuple[str, str | bytes]] = ()
    ) -> None:
        """Ends the call after all that was written. Without effect if it has ended."""
        if self.connection is None or self.tail is not None:
            return
        block = status.trailers(code, text, metadata) + self._trailing
        if self._is_head_sent:
            self.send_tail(block)
        else:
            self._is_head_sent = True
            self.send_headers(status.HEADERS + self._initial + block, is_end=True)

    # -- sending ----------------------------------------------------------------------------------

    def _send(self, connection: Connection, message: bytes) -> None:
        size = len(message) + _PREFIX_BYTES
        if size > _COPIED_BYTES_MAX:
            self._send_parts([memoryview(message)], len(message))
            return
        self._send_head()
        if connection.fits(self, size):
            head = _pack_message(0, size, frames.DATA, 0, self.stream_id, 0, len(message))
            connection.write_data(self, head + message, size)
        else:
            self.send_data([b"\0" + _pack_size(len(message)) + message])

    def _send_parts(self, parts: Sequence[bytes | memoryview], size: int) -> None:
        self._send_head()
        self.send_data([b"\0" + _pack_size(size), *parts])

    def _send_head(self) -> None:
        if not self._is_head_sent:
            self._is_head_sent = True
            self.send_headers(status.HEADERS + self._initial)

    def on_sent(self) -> None:
        if self.queued_bytes <= self._rest_bytes_max:
            _wake(self._writer)

    # -- receiving --------------------------------------------------------------------------------

    def on_open(self, timeout: Timeout) -> None:
        handler = self._acceptor.handlers.get(self.request.path)
        if handler is None:
            self.finish(Status.UNIMPLEMENTED, "there is no such method")
            return
        if self.request.is_encoded:
            text = "compressed messages are not supported: use identity"
            self.finish(Status.UNIMPLEMENTED, text, _IDENTITY)
            return
        if timeout is not None:
            self._timeout = timeout
            self._acceptor.deadlines.add(self)
        if isinstance(handler, Unary):
            self._unary = handler.serve
        else:
            self._inbox = deque()
            self._run(self._stream(handler.serve))

    def on_whole(self, timeout: Timeout, data: bytes, start: int, stop: int) -> None:
        connection = cast("Connection", self.connection)  # it has just been opened
        handler = self._acceptor.handlers.get(self.request.path)
        size = stop - start
        if (
            not isinstance(handler, Unary)
            or self.request.is_encoded
            or size < _PREFIX_BYTES
            or size - _PREFIX_BYTES > connection.limits.message_bytes_max
            or data[start]
            or frames.UINT32.unpack_from(data, start + 1)[0] != size - _PREFIX_BYTES
        ):
            self._take_in_steps(connection, timeout, data, start, stop)
            return
        connection.credit(size)
        if timeout is not None:
            self._timeout = timeout
            self._acceptor.deadlines.add(self)
        self._serve_unary(handler.serve, data[start + _PREFIX_BYTES : stop])

    def _take_in_steps(
        self, connection: Connection, timeout: Timeout, data: bytes, start: int, stop: int
    ) -> None:
        self.on_open(timeout)
        if self.connection is None:
            connection.credit(stop - start)
            return
        self.on_data(data, start, stop)
        if self.is_open:
            self.on_end()

    def on_small(self, connection: Connection, data: bytes, start: int, stop: int) -> bool:
        take, reader = self._take_small, self._reader
        length = stop - start - _PREFIX_BYTES
        if (
            take is None
            or reader is None
            or length < 0
            or frames.UINT32.unpack_from(data, start + 1)[0] != length
            or data[start]
            or self._parts_bytes
            or self._needed is not None
            or self._content_left is not None
            or self.tail is not None
            or reader.done()
            or not connection.credit_at_once(self, stop - start)
        ):
            return False
        message = data[start + _PREFIX_BYTES : stop]
        if not take(message):
            self._deliver(message, 0)
        return True

    def on_data(self, data: bytes, start: int, stop: int) -> None:
        size = stop - start
        reader = self._reader
        take = None
        if self._unary is not None or (reader is not None and not reader.done()):
            take = self._take_small
            # The handler waits for them: this is as good as read.
            self.credit_early(size)
        else:
            self.owe(size)
        if self.tail is not None:
            self.credit_owed()
            return
        if not self._parts_bytes and self._needed is None and size >= _PREFIX_BYTES:
            # One whole message in one frame is what most calls are.
            needed = frames.UINT32.unpack_from(data, start + 1)[0]
            if needed == size - _PREFIX_BYTES and not data[start]:
                message = data[start + _PREFIX_BYTES : stop]
                if take is None or size > SMALL_BYTES_MAX or not take(message):
                    self._deliver(message, 0)
                return
        while start < stop and self.connection is not None and self.tail is None:
            start = self._take(data, start, stop)

    def _take(self, data: bytes, start: int, stop: int) -> int:
        """Takes what the current message, or its prefix, needs of the data. Returns the rest's
        start.
        """
        if self._needed is None:
            end = min(stop, start + _PREFIX_BYTES - self._parts_bytes)
            self._parts.append(data[start:end])
            self._parts_bytes += end - start
            if self._parts_bytes == _PREFIX_BYTES:
                self._read_prefix(b"".join(self._parts))
        else:
            end = min(stop, start + self._needed - self._parts_bytes)
            size = end - start
            view = memoryview(data)[start:end]
            self._parts.append(view if size >= _VIEWED_BYTES_MIN else bytes(view))
            self._parts_bytes += size
            if not self.hold(size):
                self._give_up(Status.RESOURCE_EXHAUSTED, _TOO_MANY_TEXT)
        if self._needed == self._parts_bytes:
            message, held = b"".join(self._parts), self._parts_bytes
            self._parts, self._parts_bytes, self._needed = [], 0, None
            self._deliver(message, held)
        return end

    def _read_prefix(self, prefix: bytes) -> None:
        self._parts, self._parts_bytes = [], 0
        self._needed = frames.UINT32.unpack_from(prefix, 1)[0]
        if prefix[0]:
            self._give_up(Status.INTERNAL, "a compressed message in a call without grpc-encoding")
        else:
            self._check_size(self._needed)

    def _check_size(self, size: int) -> None:
        connection = self.connection
        if connection is not None and size > connection.limits.message_bytes_max:
            bytes_max = connection.limits.message_bytes_max
            text = f"received message larger than max ({size} vs. {bytes_max})"
            self._give_up(Status.RESOURCE_EXHAUSTED, text)

    def _deliver(self, message: bytes, held: int) -> None:
        """`held` bytes of it are counted already."""
        if self._inbox is not None:
            self._inbox.append(message)
            if not self.hold(len(message) + _MESSAGE_OVERHEAD - held):
                self._give_up(Status.RESOURCE_EXHAUSTED, _TOO_MANY_TEXT)
            _wake(self._reader)
        elif self._message is not None:
            self._give_up(Status.INTERNAL, "a unary call has one request")
        else:
            self._message = message
            if not self.is_ended_in and not self.hold(len(message) - held):
                self._give_up(Status.RESOURCE_EXHAUSTED, _TOO_MANY_TEXT)
        self._check_size(len(message))

    def on_end(self) -> None:
        if self.tail is not None:
            return
        if self._parts_bytes or self._needed is not None:
            self._give_up(Status.INTERNAL, "a request is cut short")
        elif self._unary is None:
            _wake(self._reader)
        elif self._message is None:
            self._give_up(Status.INTERNAL, "a unary call has one request")
        else:
            message, self._message = self._message, None
            self.release()
            self._serve_unary(self._unary, message)

    # -- running handlers -------------------------------------------------------------------------

    def _serve_unary(self, serve: UnaryHandler, message: bytes) -> None:
        try:
            answer = serve(message, self)
        except CallAborted as refusal:
            self._refuse(refusal)
            return
        except Exception as error:  # noqa: BLE001 - the handler may raise anything
            self._fail(error)
            return
        if answer is None:
            return
        if isinstance(answer, bytes):
            self.reply(answer)
        else:
            self._run(answer)

    async def _stream(self, serve: StreamHandler) -> None:
        await serve(self)
        self.finish(Status.OK)

    def _run(self, work: Coroutine[Any, Any, bytes | None]) -> None:
        self._work = work
        self._task = self._acceptor.loop.create_task(self._guarded(work))

    async def _guarded(self, work: Coroutine[Any, Any, bytes | None]) -> None:
        """The answer of a unary handler; a streaming one has none."""
        try:
            answer = await work
            if answer is not None:
                self.reply(answer)
        except CallAborted as refusal:
            self._refuse(refusal)
        except CallEnded:
            pass  # there is no receiver for a status
        except asyncio.CancelledError:
            self.finish(Status.UNAVAILABLE, "the server stops")
            raise
        except Exception as error:  # noqa: BLE001 - the handler may raise anything
            self._fail(error)
        finally:
            self._task = self._work = None

    def _refuse(self, refusal: CallAborted) -> None:
        self.finish(refusal.code, refusal.text, refusal.metadata)

    def _fail(self, error: Exception) -> None:
        method = self.request.path.decode("latin-1")
        log.error("a call failed by a mistake of the server", method=method, exc_info=error)
        self.finish(Status.UNKNOWN, "the server made a mistake; its log says more")

    def _give_up(self, code: Status, text: str) -> None:
        """Ends the call and its handler."""
        connection = self.connection
        if connection is not None:
            self.finish(code, text)
            self._stop_handler(connection)

    def _stop_handler(self, connection: Connection) -> None:
        """Until it has stopped, the connection may have one call less: resets free no place."""
        task, work = self._task, self._work
        if task is None or work is None:
            return

        def stopped(_: object) -> None:
            connection.lingering -= 1
            # Python warns of a coroutine that was cancelled before it began.
            work.close()

        self._task = self._work = None
        connection.lingering += 1
        task.add_done_callback(stopped)
        task.cancel()

    def deadline_s(self) -> float | None:
        timeout = self._timeout
        if timeout is None or self.connection is None:
            return None
        if isinstance(timeout, bytes):
            timeout = self._timeout = decode_timeout(timeout)
        return self.opened_at_s + timeout

    def expire(self) -> None:
        """The deadline has passed. What the client has not taken by now is of no use to it."""
        if self.connection is None:
            return
        if self.queue or self.tail is not None:
            self.reset(ErrorCode.CANCEL)
        else:
            self._give_up(Status.DEADLINE_EXCEEDED, "the deadline has passed")

    def cancel(self) -> None:
        """The server stops."""
        self._give_up(Status.UNAVAILABLE, "the server stops")

    def on_closed(self, connection: Connection, *, is_cancelled: bool) -> None:
        if self.due is not None:
            self.due.discard(self)
            self.due = None
        if self._reader is not None:
            _wake(self._reader)
        if self._writer is not None:
            _wake(self._writer)
        if is_cancelled:
            self._stop_handler(connection)
        if self._callbacks:
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback()


_pack_size = frames.UINT32.pack
# Head of a frame of DATA, and the prefix of the message that it has.
_pack_message = struct.Struct(">BHBBIBI").pack
# Around the message of a unary call: HEADERS, the head of DATA and the prefix of the message; and
# the trailers. Heads of frames whose size is known are there but for the number of the stream.
_ANSWER_HEAD: Final = struct.Struct(f">5sI{len(status.HEADERS)}sxHBBIBI")
_ANSWER_TAIL: Final = struct.Struct(f">5sI{len(status.TRAILERS_OK)}s")
_HEADERS_HEAD: Final = frames.frame(frames.HEADERS, frames.END_HEADERS, 0, status.HEADERS)[:5]
_TRAILERS_HEAD: Final = frames.frame(
    frames.HEADERS, frames.END_STREAM | frames.END_HEADERS, 0, status.TRAILERS_OK
)[:5]


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
