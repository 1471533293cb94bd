"""One HTTP/2 connection of a server, without IO: bytes in, bytes out, the time handed in.

`receive` takes what came from the peer and calls the hooks of its streams; `take_output` returns
what is to be sent. `wake` is called when there is output that no `receive` asked for. The owner
closes the transport once `is_closed` and everything is sent.

Flow control, from the peer: a stream returns credit when its handler reads (`Stream.credit`), so
that a peer can have no more in memory than the windows allow. To the peer: small answers go out at
once; what is larger, or does not fit into the windows, waits in the queue of its stream. Streams
with a queue take turns, a quantum each, so that a large answer holds up no other.

All that a peer can do without cost to itself is rationed: see `limits`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from mq.http2 import frames
from mq.http2.frames import ConnectionFault, ErrorCode, StreamFault
from mq.http2.hpack import TABLE_BYTES_DEFAULT, Decoder, HeaderFault, HeadersTooLarge
from mq.http2.limits import Limits, Rate, TokenBucket, Usage
from mq.http2.requests import MalformedRequest, Request, RequestReader, check_field
from mq.http2.stream import SMALL_BYTES_MAX, Stream

# Larger frames than the smallest limit are sent where the peer takes them, up to this size.
_FRAME_BYTES_SENT_MAX: Final = 64 << 10
# What a stream sends before it is the turn of the next.
_QUANTUM_BYTES: Final = 64 << 10
# WINDOW_UPDATE frames that a call, and a frame of data that was sent, give a reason for.
_UPDATES_PER_CALL: Final = 4
_UPDATES_PER_FRAME: Final = 2
_UPDATES_EARNED_MAX: Final = 8_192
# Streams that this side has ended before the peer did: what still comes for them is legal.
_ABANDONED_MAX: Final = 4_096
# Part of the memory for requests that messages in the making share without taking turns.
_SHARED_PARTS: Final = 4
# An older call is given up by its client, which is no flood: its number was limited all the time.
_AGE_S_MIN: Final = 0.5
# Each may change the windows of all streams.
_SETTINGS_BYTES_MAX: Final = 32 * frames.SETTING.size
_KEEPALIVE_PING: Final = b"keepaliv"
_DRAIN_PING: Final = b"draining"
# Between two looks at answers that wait for the peer.
_ANSWERS_CHECKED_S: Final = 5.0


class Acceptor(Protocol):
    """Makes the streams of a connection."""

    # Header block that answers a request whose header fields are too large.
    too_large: bytes

    def open(self, connection: Connection, stream_id: int, request: Request) -> Stream: ...

    def on_overload(self) -> None:
        """All connections together have more in memory than they may."""


class Connection:
    """`write`, `credit`, `hold`, `queued` and `end` are for streams."""

    def __init__(
        self,
        acceptor: Acceptor,
        limits: Limits,
        usage: Usage,
        wake: Callable[[], None],
        now_s: float,
    ) -> None:
        self._acceptor = acceptor
        self.limits = limits
        self._usage = usage
        self._wake = wake
        self.now_s = now_s
        self.peer = ""
        # By TLS.
        self.is_encrypted = False
        # Of the certificate that the peer has shown.
        self.certificate_names: tuple[str, ...] = ()
        # The newest one, which tells who the peer is.
        self.last_request: Request | None = None
        self.streams: dict[int, Stream] = {}
        # Handlers that have not returned although their streams are closed.
        self.lingering = 0
        self.is_closed = False
        # It ends by a fault, of which the peer is told.
        self.has_failed = False
        # The transport has enough to send.
        self.is_paused = False
        self.received_bytes = self.unsent_bytes = 0
        self.peer_window = frames.WINDOW_DEFAULT
        self.send_window = frames.WINDOW_DEFAULT
        self.peer_frame_bytes = frames.FRAME_BYTES_MAX
        self._output: list[bytes | memoryview] = []
        self._is_awake = True
        self._line: deque[Stream] = deque()
        self._rest = b""
        self._has_preface = False
        # The only kind of frame that may come next.
        self._expected: int | None = frames.SETTINGS
        self._last_id = 0
        self._receive_window = limits.connection_window_bytes
        self._uncredited = 0
        # Whose messages wait for their turn, and whose turn it is.
        self._withheld: dict[Stream, None] = {}
        self._favoured: Stream | None = None
        self._block: list[bytes] = []
        self._block_bytes = self._block_id = self._block_flags = 0
        # No window of a stream has less, and no frame more.
        self._whole_bytes_max = min(frames.FRAME_BYTES_MAX, limits.stream_window_bytes)
        self._reader = RequestReader(Decoder(TABLE_BYTES_DEFAULT, limits.header_list_bytes_max))
        self._abandoned: dict[int, None] = {}
        self._buckets: dict[Rate, TokenBucket] = {}
        self._updates_earned = 0
        self._has_sent_since_ping = False
        self._is_draining = self._is_peer_leaving = False
        self._began_s = self._received_at_s = self._idle_since_s = now_s
        self._pinged_at_s: float | None = None
        self._is_acknowledged = False
        self._greet()

    def _greet(self) -> None:
        limits = self.limits
        told = {
            frames.HEADER_TABLE_SIZE: limits.header_table_bytes,
            frames.MAX_CONCURRENT_STREAMS: limits.streams_max,
            frames.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
            frames.MAX_FRAME_SIZE: frames.FRAME_BYTES_MAX,
            frames.MAX_HEADER_LIST_SIZE: limits.header_list_bytes_max,
        }
        self._output.append(frames.settings(told))
        more = limits.connection_window_bytes - frames.WINDOW_DEFAULT
        self._output.append(frames.window_update(0, more))

    @property
    def opened_streams(self) -> int:
        """Of this connection, since it began."""
        return (self._last_id + 1) // 2

    @property
    def began_s(self) -> float:
        return self._began_s

    # -- the owner --------------------------------------------------------------------------------

    def receive(self, data: bytes, now_s: float) -> None:
        """The owner takes the output afterwards. Raises nothing."""
        if self.is_closed:
            return
        self.now_s = self._received_at_s = now_s
        self._pinged_at_s = None
        self._is_awake = True
        try:
            position = 0
            if self._rest:
                cut = self._complete(data)
                if cut:
                    position = cut
                else:
                    data = self._rest + data
            position = self._read_frames(data, position)
        except ConnectionFault as fault:
            self.fail(fault.code, str(fault))
        else:
            self._rest = data[position:] if position < len(data) else b""

    def _complete(self, data: bytes) -> int:
        """Takes the frame of DATA that the last bytes have cut, out of those and the first of
        these: the others, many more, are not copied for it. Returns where it ends in these; 0:
        nothing was done. ConnectionFault.
        """
        rest = self._rest
        if len(data) < frames.FRAME_BYTES_MAX or len(rest) < frames.HEAD_BYTES:
            return 0
        high, low, kind, _, _ = frames.HEAD.unpack_from(rest)
        cut: int = frames.HEAD_BYTES + (high << 16 | low) - len(rest)
        if kind != frames.DATA or not 0 < cut <= len(data) or not self._has_preface:
            return 0
        self._rest = b""
        self._read_frames(rest + data[:cut], 0)
        return cut

    def take_output(self, bytes_max: int) -> list[bytes | memoryview]:
        """The pieces to be sent now: all frames that are ready, and about `bytes_max` of queued
        data; none when the windows allow no more. Large answers are not copied, small ones are
        one piece.
        """
        self._is_awake = False
        is_large = False
        if self._line:
            before = self.send_window
            self._pump(bytes_max)
            is_large = before - self.send_window >= _QUANTUM_BYTES
        output = self._output
        if output:
            self._output = []
            if not is_large:
                return [b"".join(output)]
        return output

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self._wake_up()

    def lost(self) -> None:
        """The transport is gone."""
        self.is_closed = True
        self._close_streams()

    def fail(self, code: ErrorCode, text: str) -> None:
        """Ends the connection, and tells the peer why."""
        if self.is_closed:
            return
        self.write(frames.goaway(self._last_id, code, text))
        self.is_closed = self.has_failed = True
        self._close_streams()

    def drain(self) -> None:
        """Lets calls in flight end. The second GOAWAY, with the number of the last call, follows
        when the peer has seen the first: what it had sent until then is served.
        """
        if self.is_closed or self._is_draining:
            return
        self.write(frames.goaway(frames.STREAM_ID_MAX, ErrorCode.NO_ERROR, "the server stops"))
        self.write(frames.frame(frames.PING, 0, 0, _DRAIN_PING))

    def refuse_more(self) -> None:
        """The second half of `drain`, which need not wait for the peer."""
        if self.is_closed or self._is_draining:
            return
        self._is_draining = True
        self.write(frames.goaway(self._last_id, ErrorCode.NO_ERROR, "the server stops"))
        self._close_if_done()

    def on_time(self, now_s: float) -> float:
        """Ends what takes too long; sends PINGs. Returns when to call it again."""
        self.now_s = now_s
        limits = self.limits
        if not self._is_acknowledged or self._expected == frames.SETTINGS:
            due_s = self._began_s + limits.handshake_s
            if now_s >= due_s:
                self.fail(ErrorCode.SETTINGS_TIMEOUT, "settings_timeout")
            return due_s
        idle_s = limits.handshake_s if self._is_peer_leaving else limits.idle_s
        if not self.streams and now_s >= self._idle_since_s + idle_s:
            self.refuse_more()
            return now_s + limits.handshake_s
        due_s = self._keep_alive(now_s)
        if self.unsent_bytes:
            self._drop_untaken(now_s)
            due_s = min(due_s, now_s + _ANSWERS_CHECKED_S)
        return due_s

    def _keep_alive(self, now_s: float) -> float:
        limits = self.limits
        if self._pinged_at_s is not None:
            due_s = self._pinged_at_s + limits.keepalive_timeout_s
            if now_s >= due_s:
                self.fail(ErrorCode.NO_ERROR, "keepalive_timeout")
            return due_s
        due_s = self._received_at_s + limits.keepalive_s
        if now_s >= due_s:
            self._pinged_at_s = now_s
            self.write(frames.frame(frames.PING, 0, 0, _KEEPALIVE_PING))
            return now_s + limits.keepalive_timeout_s
        return due_s

    def _drop_untaken(self, now_s: float) -> None:
        for stream in [*self.streams.values()]:
            is_late = now_s - stream.finished_at_s >= self.limits.answer_s
            if stream.tail is not None and is_late:
                stream.reset(ErrorCode.CANCEL)

    # -- what streams use -------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Whole frames, which flow control does not bind."""
        self._output.append(data)
        if not self._is_awake:
            self._wake_up()

    def write_headers(self, stream_id: int, block: bytes, *, is_end: bool) -> None:
        self._has_sent_since_ping = True
        self.write(frames.header_frames(stream_id, block, self.peer_frame_bytes, is_end=is_end))

    def write_data(self, stream: Stream, data: bytes, size: int) -> None:
        """Frames of which `size` bytes count for the windows, which have room for them: see
        `fits`.
        """
        stream.send_window -= size
        self.send_window -= size
        self._has_sent_since_ping = True
        self._updates_earned += _UPDATES_PER_FRAME
        self._output.append(data)
        if not self._is_awake:
            self._wake_up()

    def write_last(self, stream: Stream, data: bytes, size: int) -> None:
        """As `write_data`, with the end of a stream that the peer has ended before."""
        self.send_window -= size
        self._has_sent_since_ping = True
        self._output.append(data)
        if not self._is_awake:
            self._wake_up()
        self._close(stream, is_cancelled=False)

    def fits(self, stream: Stream, size: int) -> bool:
        """Whether so many bytes of data may be sent at once, in one frame."""
        return (
            size <= stream.send_window
            and size <= self.send_window
            and size <= frames.FRAME_BYTES_MAX
            and not self.is_paused
            and not stream.queue
        )

    def queued(self, stream: Stream, size: int) -> None:
        """More waits in the queue of the stream."""
        self.unsent_bytes += size
        self._usage.unsent_bytes += size
        if self.unsent_bytes > self.limits.unsent_bytes_max:
            self.fail(ErrorCode.ENHANCE_YOUR_CALM, "too many answers are not read")
        elif self._usage.unsent_bytes > self.limits.unsent_bytes_max_in_all:
            self._acceptor.on_overload()
        if stream.line_up():
            self._line.append(stream)
            if not self._is_awake:
                self._wake_up()

    def credit(self, size: int) -> None:
        self._uncredited += size
        if self._uncredited * 2 >= self.limits.connection_window_bytes:
            self.write(frames.window_update(0, self._uncredited))
            self._receive_window += self._uncredited
            self._uncredited = 0

    def credit_at_once(self, stream: Stream, size: int) -> bool:
        """Counts a frame of data, not the last one, and credits it: its stream takes it in the same
        step. False: nothing was done, and the frame has to go its way through all checks.
        """
        if (
            size > self._receive_window
            or size > stream.receive_window
            or stream.is_ended_in
            or self.received_bytes * _SHARED_PARTS > self.limits.received_bytes_max
        ):
            return False
        self._receive_window -= size
        stream.receive_window -= size
        self._uncredited += size
        if self._uncredited * 2 >= self.limits.connection_window_bytes:
            self.credit(0)
        stream.widen(self, size)
        return True

    def hold(self, stream: Stream, size: int) -> bool:
        self.received_bytes += size
        self._usage.received_bytes += size
        if size < 0:
            self.leave_turn(stream)
        elif self._usage.received_bytes > self.limits.received_bytes_max_in_all:
            self._acceptor.on_overload()
        return self.received_bytes <= self.limits.received_bytes_max

    def admits(self, stream: Stream) -> bool:
        """Whether the stream may have more of its message in memory. With little in memory all
        may; else one may, so that it gets done, and the others wait for their turn.
        """
        if self.received_bytes * _SHARED_PARTS <= self.limits.received_bytes_max:
            return True
        if self._favoured is None:
            self._favoured = stream
        if self._favoured is stream:
            return True
        self._withheld[stream] = None
        return False

    def leave_turn(self, stream: Stream) -> None:
        """The stream has its message, or is closed."""
        if self._favoured is stream:
            self._favoured = None
        if stream in self._withheld:
            del self._withheld[stream]
            stream.credit_withheld()
        while self._withheld and self.admits(first := next(iter(self._withheld))):
            del self._withheld[first]
            first.credit_withheld()
            if self._favoured is first:
                return

    def end(self, stream: Stream) -> None:
        """This side has sent its last frame of the stream."""
        if not stream.is_ended_in:
            # The peer need not send the rest of its request.
            self.write(frames.rst_stream(stream.stream_id, ErrorCode.NO_ERROR))
            self._abandon(stream.stream_id)
        self._close(stream, is_cancelled=False)

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        self.write(frames.rst_stream(stream_id, code))
        self._abandon(stream_id)
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._close(stream, is_cancelled=True)

    # -- streams ----------------------------------------------------------------------------------

    def _close(self, stream: Stream, *, is_cancelled: bool) -> None:
        del self.streams[stream.stream_id]
        if stream.queued_bytes:
            self.unsent_bytes -= stream.queued_bytes
            self._usage.unsent_bytes -= stream.queued_bytes
        if self._favoured is stream or self._withheld:
            self.leave_turn(stream)
        owed = stream.close(self, is_cancelled=is_cancelled)
        if self.is_closed:
            return
        if owed:
            self.credit(owed)
        if not self.streams:
            self._idle_since_s = self.now_s
            self._close_if_done()

    def _close_streams(self) -> None:
        for stream in [*self.streams.values()]:
            if stream.connection is not None:
                self._close(stream, is_cancelled=True)

    def _close_if_done(self) -> None:
        if self._is_draining and not self.streams:
            self.is_closed = True
            self._wake_up()

    def _abandon(self, stream_id: int) -> None:
        self._abandoned[stream_id] = None
        if len(self._abandoned) > _ABANDONED_MAX:
            del self._abandoned[next(iter(self._abandoned))]

    def _wake_up(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            self._wake()

    def _pump(self, bytes_max: int) -> None:
        line = self._line
        while line and bytes_max > 0 and self.send_window > 0 and not self.is_paused:
            stream = line.popleft()
            stream.leave_line()
            if stream.connection is None:
                continue
            if stream.queue:
                bytes_max -= self._send_quantum(stream, stream.queue)
                stream.on_sent()
            if not stream.queue:
                self._drained(stream)
            elif stream.line_up():
                line.append(stream)

    def _send_quantum(self, stream: Stream, queue: deque[bytes | memoryview]) -> int:
        """Returns how many bytes of data it sent."""
        quantum = min(_QUANTUM_BYTES, stream.send_window, self.send_window, stream.queued_bytes)
        left = quantum
        frame_max = min(self.peer_frame_bytes, _FRAME_BYTES_SENT_MAX)
        output = self._output
        stream.send_window -= quantum
        self.send_window -= quantum
        stream.queued_bytes -= quantum
        self.unsent_bytes -= quantum
        self._usage.unsent_bytes -= quantum
        self._has_sent_since_ping = True
        while left:
            size = min(left, frame_max)
            left -= size
            is_end = not left and not stream.queued_bytes and stream.tail == b""
            flags = frames.END_STREAM if is_end else 0
            output.append(
                frames.HEAD.pack(size >> 16, size & 0xFFFF, frames.DATA, flags, stream.stream_id)
            )
            self._updates_earned += _UPDATES_PER_FRAME
            while size:
                piece = queue[0]
                if len(piece) <= size:
                    output.append(queue.popleft())
                    size -= len(piece)
                else:
                    piece = memoryview(piece)
                    output.append(piece[:size])
                    queue[0] = piece[size:]
                    size = 0
        return quantum

    def _drained(self, stream: Stream) -> None:
        tail = stream.tail
        if tail:
            stream.send_headers(tail, is_end=True)
        elif tail is not None:
            self.end(stream)

    # -- frames -----------------------------------------------------------------------------------

    def _read_frames(self, data: bytes, position: int) -> int:  # noqa: C901 - a call for each frame costs as much
        """Returns how far it came. ConnectionFault."""
        end = len(data)
        if not self._has_preface:
            position = self._read_preface(data)
            if not position:
                return 0
        head = frames.HEAD.unpack_from
        while end - position >= frames.HEAD_BYTES and not self.is_closed:
            high, low, kind, flags, stream_id = head(data, position)
            size = high << 16 | low
            if size > frames.FRAME_BYTES_MAX:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "the frame is too large")
            if self._expected is not None and kind != self._expected:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "another frame is expected")
            start = position + frames.HEAD_BYTES
            if start + size > end:
                break
            position = start + size
            if kind == frames.HEADERS and flags == frames.END_HEADERS:
                stop = self._take_whole(stream_id, data[start:position], data, position, end)
                if stop:
                    position = stop
                    continue
            elif kind == frames.DATA and not flags and size <= SMALL_BYTES_MAX:
                stream = self.streams.get(stream_id)
                if stream is not None and stream.on_small(self, data, start, position):
                    continue
            try:
                self._on_frame(kind, flags, stream_id & frames.STREAM_ID_MAX, data, start, position)
            except StreamFault as fault:
                self._ration(self.limits.resets_by_us, "too many faults")
                self.reset(fault.stream_id, fault.code)
        return position

    def _take_whole(
        self, stream_id: int, block: bytes, data: bytes, position: int, end: int
    ) -> int:
        """Opens and completes a stream in one go, when all of a small request is there: a header
        block that is known, and then one frame of data at `position`. It is what most calls are.
        Returns where that frame ends; 0: these frames are to be taken one by one.
        """
        start = position + frames.HEAD_BYTES
        if start >= end:
            return 0
        high, size, kind, flags, data_id = frames.HEAD.unpack_from(data, position)
        stop: int = start + size
        if (
            kind != frames.DATA
            or flags != frames.END_STREAM
            or data_id != stream_id
            or stop > end
            or high
            or not 0 < size <= self._whole_bytes_max
            or size > self._receive_window
            or not self._last_id < stream_id <= frames.STREAM_ID_MAX
            or not stream_id & 1
            or len(self.streams) + self.lingering >= self.limits.streams_max
            or self._is_draining
        ):
            return 0
        known = self._reader.known(block)
        if known is None or known[0].content_length is not None:
            return 0
        request, timeout = known
        self._last_id = stream_id
        self._updates_earned += _UPDATES_PER_CALL
        stream = self.streams[stream_id] = self._acceptor.open(self, stream_id, request)
        stream.is_ended_in = True
        self._receive_window -= size
        stream.on_whole(timeout, data, start, stop)
        return stop

    def _read_preface(self, data: bytes) -> int:
        size = len(frames.PREFACE)
        if data[:size] != frames.PREFACE[: len(data)]:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "this is not HTTP/2")
        if len(data) < size:
            return 0
        self._has_preface = True
        return size

    def _ration(self, rate: Rate, text: str) -> None:
        """ConnectionFault: the peer does it too often."""
        bucket = self._buckets.get(rate)
        if bucket is None:
            bucket = self._buckets[rate] = TokenBucket(rate, self._began_s)
        if not bucket.take(self.now_s):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, text)

    def _on_data(self, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> None:
        size = stop - start
        self._receive_window -= size
        if self._receive_window < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "more than the window")
        stream = self.streams.get(stream_id)
        if stream is None or stream.is_ended_in:
            self.credit(size)
            self._on_late_data(flags, stream_id, size)
            return
        stream.receive_window -= size
        if flags & frames.PADDED:
            start, stop = _without_padding(data, start, stop)
            stream.credit(size - (stop - start))
        if flags & frames.END_STREAM:
            stream.is_ended_in = True
        elif start == stop:
            self._ration(self.limits.empty_data, "too many empty frames")
        try:
            stream.expect_content(stop - start)
        except StreamFault:
            self.credit(stop - start)
            raise
        if start < stop:
            stream.on_data(data, start, stop)
        if stream.is_ended_in and stream.connection is not None:
            stream.on_end()

    def _on_late_data(self, flags: int, stream_id: int, size: int) -> None:
        """DATA for a stream that does not take any."""
        if stream_id == 0 or stream_id > self._last_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA for a stream that is not open")
        if stream_id not in self._abandoned:
            raise StreamFault(stream_id, ErrorCode.STREAM_CLOSED)
        if flags & frames.END_STREAM:
            del self._abandoned[stream_id]
        elif not size:
            self._ration(self.limits.empty_data, "too many empty frames")

    def _on_headers(self, flags: int, stream_id: int, data: bytes, start: int, stop: int) -> None:
        if not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "no client has streams of this number")
        if flags & frames.PADDED:
            start, stop = _without_padding(data, start, stop)
        if flags & frames.PRIORITISED:
            start = _without_priority(stream_id, data, start, stop)
        block = data[start:stop]
        if flags & frames.END_HEADERS:
            self._on_block(flags, stream_id, block)
            return
        self._expected = frames.CONTINUATION
        self._block = [block]
        self._block_bytes = len(block)
        self._block_id, self._block_flags = stream_id, flags

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._expected != frames.CONTINUATION or stream_id != self._block_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "there is nothing to continue")
        self._block.append(payload)
        self._block_bytes += len(payload)
        limits = self.limits
        if (
            self._block_bytes > limits.header_block_bytes_max
            or len(self._block) > limits.continuations_max + 1
        ):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "the header block is too large")
        if flags & frames.END_HEADERS:
            block, self._block, self._expected = b"".join(self._block), [], None
            self._on_block(self._block_flags, stream_id, block)

    def _on_block(self, flags: int, stream_id: int, block: bytes) -> None:
        try:
            if stream_id > self._last_id:
                self._last_id = stream_id
                self._open(flags, stream_id, block)
            else:
                self._on_more_headers(flags, stream_id, block)
        except HeaderFault as fault:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, str(fault)) from None
        except MalformedRequest:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR) from None
        except HeadersTooLarge:
            self._ration(self.limits.resets_by_us, "too many large headers")
            self._refuse(flags, stream_id)

    def _open(self, flags: int, stream_id: int, block: bytes) -> None:
        request, timeout = self._reader.read(block)
        if self._is_draining:
            return  # the peer has been told which call was the last
        if len(self.streams) + self.lingering >= self.limits.streams_max:
            raise StreamFault(stream_id, ErrorCode.REFUSED_STREAM)
        self._updates_earned += _UPDATES_PER_CALL
        stream = self.streams[stream_id] = self._acceptor.open(self, stream_id, request)
        is_end = stream.is_ended_in = bool(flags & frames.END_STREAM)
        if is_end:
            stream.expect_content(0)
        stream.on_open(timeout)
        if is_end and stream.connection is not None:
            stream.on_end()

    def _on_more_headers(self, flags: int, stream_id: int, block: bytes) -> None:
        """Trailers, most of the time. They are read also where nothing else comes of them: the
        table of header fields has to stay in step.
        """
        fields = self._reader.decoder.decode(block)
        stream = self.streams.get(stream_id)
        if stream is None:
            if stream_id not in self._abandoned:
                raise ConnectionFault(ErrorCode.STREAM_CLOSED, "HEADERS for a closed stream")
            if flags & frames.END_STREAM:
                del self._abandoned[stream_id]
            return
        if stream.is_ended_in:
            raise StreamFault(stream_id, ErrorCode.STREAM_CLOSED)
        if not flags & frames.END_STREAM:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR)
        for name, value in fields:
            if name.startswith(b":"):
                raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR)
            check_field(name, value)
        stream.is_ended_in = True
        stream.expect_content(0)
        stream.on_end()

    def _refuse(self, flags: int, stream_id: int) -> None:
        """The header fields are too large."""
        if stream_id in self.streams:
            raise StreamFault(stream_id, ErrorCode.ENHANCE_YOUR_CALM)
        self.write_headers(stream_id, self._acceptor.too_large, is_end=True)
        if not flags & frames.END_STREAM:
            self.write(frames.rst_stream(stream_id, ErrorCode.NO_ERROR))
            self._abandon(stream_id)

    def _on_window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE has four bytes")
        if self._updates_earned > 0:
            self._updates_earned = min(self._updates_earned, _UPDATES_EARNED_MAX) - 1
        else:
            self._ration(self.limits.window_updates, "too many window updates")
        more = frames.UINT32.unpack(payload)[0] & frames.WINDOW_MAX
        if stream_id == 0:
            self.send_window += more
            if not more:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "an update by nothing")
            if self.send_window > frames.WINDOW_MAX:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the window is too large")
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            if stream_id > self._last_id:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "an update of an idle stream")
            return
        if not more:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR)
        self._widen(stream, more)
        if stream.send_window > frames.WINDOW_MAX:
            raise StreamFault(stream_id, ErrorCode.FLOW_CONTROL_ERROR)

    def _widen(self, stream: Stream, more: int) -> None:
        stream.send_window += more
        if stream.queue and stream.line_up():
            self._line.append(stream)

    def _on_frame(
        self, kind: int, flags: int, stream_id: int, data: bytes, start: int, stop: int
    ) -> None:
        if kind == frames.DATA:
            self._on_data(flags, stream_id, data, start, stop)
        elif kind == frames.HEADERS:
            self._on_headers(flags, stream_id, data, start, stop)
        elif kind == frames.WINDOW_UPDATE:
            self._on_window_update(stream_id, data[start:stop])
        else:
            self._on_rare_frame(kind, flags, stream_id, data[start:stop])

    def _on_rare_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        match kind:
            case frames.RST_STREAM:
                self._on_reset(stream_id, payload)
            case frames.PING:
                self._on_ping(flags, stream_id, payload)
            case frames.SETTINGS:
                self._on_settings(flags, stream_id, payload)
            case frames.CONTINUATION:
                self._on_continuation(flags, stream_id, payload)
            case frames.PRIORITY:
                self._on_priority(stream_id, payload)
            case frames.GOAWAY:
                if stream_id:
                    raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "GOAWAY is for a connection")
                # The peer closes when it has its answers; if it does not, `on_time` does.
                self._is_peer_leaving = True
            case frames.PUSH_PROMISE:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "clients do not push")
            case _:
                self._ration(self.limits.priorities, "too many unknown frames")

    def _on_reset(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM has four bytes")
        if stream_id == 0 or stream_id > self._last_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "RST_STREAM for an idle stream")
        self._abandoned.pop(stream_id, None)
        stream = self.streams.get(stream_id)
        if stream is None or self.now_s - stream.opened_at_s < _AGE_S_MIN:
            self._ration(self.limits.resets_by_peer, "too many resets")
        if stream is not None:
            self._close(stream, is_cancelled=True)

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "PING has eight bytes")
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PING is for a connection")
        if flags & frames.ACK:
            if payload == _DRAIN_PING:
                self.refuse_more()
            return
        if self._has_sent_since_ping:
            self._has_sent_since_ping = False
        else:
            # Clients of gRPC know this text, and ping less.
            self._ration(self.limits.pings, "too_many_pings")
        self.write(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _on_priority(self, stream_id: int, payload: bytes) -> None:
        """Priorities of HTTP/2 are deprecated: they are checked and passed over."""
        if not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PRIORITY is for a stream")
        if len(payload) != 5:
            raise StreamFault(stream_id, ErrorCode.FRAME_SIZE_ERROR)
        if frames.UINT32.unpack_from(payload)[0] & frames.STREAM_ID_MAX == stream_id:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR)
        self._ration(self.limits.priorities, "too many priorities")

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS are for a connection")
        if flags & frames.ACK:
            if payload:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement is empty")
            self._is_acknowledged = True
            # From now on the peer knows the limit; it tells when it keeps to it.
            self._reader.decoder.table_limit = self.limits.header_table_bytes
            return
        if len(payload) % frames.SETTING.size:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS are of six bytes each")
        if len(payload) > _SETTINGS_BYTES_MAX:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many settings")
        if self._expected is None:
            self._ration(self.limits.settings, "too many settings")
        self._expected = None
        for number, value in frames.SETTING.iter_unpack(payload):
            self._apply(number, value)
        self.write(frames.frame(frames.SETTINGS, frames.ACK, 0))

    def _apply(self, number: int, value: int) -> None:
        """The peer's tables of header fields, and what else is not named, are of no concern."""
        match number:
            case frames.ENABLE_PUSH:
                if value > 1:
                    raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is 0 or 1")
            case frames.INITIAL_WINDOW_SIZE:
                if value > frames.WINDOW_MAX:
                    raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the window is too large")
                more, self.peer_window = value - self.peer_window, value
                for stream in self.streams.values():
                    self._widen(stream, more)
                    if stream.send_window > frames.WINDOW_MAX:
                        raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "too large a window")
            case frames.MAX_FRAME_SIZE:
                if not frames.FRAME_BYTES_MAX <= value < 1 << 24:
                    raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE is illegal")
                self.peer_frame_bytes = value


def _without_padding(data: bytes, start: int, stop: int) -> tuple[int, int]:
    """ConnectionFault."""
    if start == stop:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "the frame is too short")
    stop -= data[start]
    start += 1
    if stop < start:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
    return start, stop


def _without_priority(stream_id: int, data: bytes, start: int, stop: int) -> int:
    """Where the header block starts. ConnectionFault."""
    if stop - start < 5:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "the frame is too short")
    if frames.UINT32.unpack_from(data, start)[0] & frames.STREAM_ID_MAX == stream_id:
        # The block is not read: from here on the table of header fields would be out of step.
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")
    return start + 5
