"""One stream of a connection: its windows, its queue, and what it holds in memory.

`connection` runs streams; what a stream carries, a subclass says by its hooks.
"""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from mq.http2 import frames
from mq.http2.frames import ErrorCode, StreamFault

if TYPE_CHECKING:
    from mq.http2.connection import Connection
    from mq.http2.requests import Timeout


# Of a frame whose content may be taken in one step.
SMALL_BYTES_MAX: Final = 4_096


class Stream(abc.ABC):
    """The state that every stream has; a subclass gives its content a meaning by the hooks.

    Once it is closed, `connection` is None, and nothing of it has any effect.
    """

    __slots__ = (
        "_content_left",
        "_held_bytes",
        "_is_in_line",
        "_owed_bytes",
        "_uncredited_bytes",
        "_withheld_bytes",
        "connection",
        "finished_at_s",
        "is_ended_in",
        "opened_at_s",
        "queue",
        "queued_bytes",
        "receive_window",
        "send_window",
        "stream_id",
        "tail",
    )

    def __init__(self, connection: Connection, stream_id: int, content_length: int | None) -> None:
        self.connection: Connection | None = connection
        self.stream_id = stream_id
        self.send_window = connection.peer_window
        self.receive_window = connection.limits.stream_window_bytes
        # The peer has ended its side.
        self.is_ended_in = False
        # Pieces of DATA that are not sent yet, and the trailers after them; b"": no trailers, the
        # last frame of data ends the stream.
        self.queue: deque[bytes | memoryview] | None = None
        self.queued_bytes = 0
        self.tail: bytes | None = None
        self.opened_at_s = connection.now_s
        self.finished_at_s = 0.0
        self._is_in_line = False
        self._content_left = content_length
        # Received bytes in memory; received bytes without credit; credit that is not told yet.
        self._held_bytes = 0
        self._owed_bytes = 0
        self._uncredited_bytes = 0
        self._withheld_bytes = 0

    # -- hooks ------------------------------------------------------------------------------------

    @abc.abstractmethod
    def on_open(self, timeout: Timeout) -> None:
        """`timeout` is how long the peer waits for the answer."""

    @abc.abstractmethod
    def on_data(self, data: bytes, start: int, stop: int) -> None:
        """More of the request: `data[start:stop]`, not empty. `is_ended_in` is True already if
        these are the last. Owes credit for them.
        """

    def on_small(self, connection: Connection, data: bytes, start: int, stop: int) -> bool:  # noqa: ARG002
        """As `on_data`, of a frame up to SMALL_BYTES_MAX that the connection has not counted yet:
        see `Connection.credit_at_once`. False: nothing was done.
        """
        return False

    @abc.abstractmethod
    def on_end(self) -> None:
        """The request is complete."""

    @abc.abstractmethod
    def on_whole(self, timeout: Timeout, data: bytes, start: int, stop: int) -> None:
        """All of a request at once: as `on_open`, `on_data` and `on_end`."""

    @abc.abstractmethod
    def on_sent(self) -> None:
        """Some or all of the queue was sent."""

    @abc.abstractmethod
    def on_closed(self, connection: Connection, *, is_cancelled: bool) -> None:
        """`is_cancelled`: by the peer, by a fault, or by the end of the connection."""

    # -- receiving --------------------------------------------------------------------------------

    def owe(self, size: int) -> None:
        """These bytes get their credit later."""
        self._owed_bytes += size

    def credit_owed(self, size: int | None = None) -> None:
        """Of so many of these bytes; None: of all."""
        size = self._owed_bytes if size is None else min(size, self._owed_bytes)
        if size:
            self._owed_bytes -= size
            self.credit(size)

    def credit(self, size: int) -> None:
        """The handler has taken these bytes: the peer may send as many more."""
        connection = self.connection
        if connection is None:
            return
        connection.credit(size)
        if not self.is_ended_in:
            self.widen(connection, size)

    def credit_early(self, size: int) -> None:
        """As `credit`, for bytes of a message that the handler waits for and that is not complete:
        it may be larger than the window. When too much of such messages is in memory, they take
        turns: see `Connection.admits`.
        """
        connection = self.connection
        if connection is None:
            return
        connection.credit(size)
        if self.is_ended_in:
            return
        if connection.admits(self):
            self.widen(connection, size)
        else:
            self._withheld_bytes += size

    def credit_withheld(self) -> None:
        """It is its turn."""
        size, self._withheld_bytes = self._withheld_bytes, 0
        if self.connection is not None and not self.is_ended_in:
            self.widen(self.connection, size)

    def widen(self, connection: Connection, size: int) -> None:
        """Credit of the stream alone."""
        self._uncredited_bytes += size
        if self._uncredited_bytes * 2 >= connection.limits.stream_window_bytes:
            connection.write(frames.window_update(self.stream_id, self._uncredited_bytes))
            self.receive_window += self._uncredited_bytes
            self._uncredited_bytes = 0

    def hold(self, size: int) -> bool:
        """Counts received bytes that stay in memory; negative: that are freed. Returns False if
        the connection holds too many.
        """
        connection = self.connection
        if connection is None:
            return True
        self._held_bytes += size
        return connection.hold(self, size)

    def release(self) -> None:
        """None of the received bytes are in memory any longer."""
        self.hold(-self._held_bytes)

    # -- sending ----------------------------------------------------------------------------------

    def send_headers(self, block: bytes, *, is_end: bool = False) -> None:
        connection = self.connection
        if connection is None:
            return
        connection.write_headers(self.stream_id, block, is_end=is_end)
        if is_end:
            connection.end(self)

    def send_data(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Queues them."""
        connection = self.connection
        if connection is None:
            return
        if self.queue is None:
            self.queue = deque()
        self.queue.extend(pieces)
        size = sum(map(len, pieces))
        self.queued_bytes += size
        connection.queued(self, size)

    def send_tail(self, trailers: bytes) -> None:
        """Ends the stream after everything that is queued; b"": without trailers."""
        connection = self.connection
        if connection is None or self.tail is not None:
            return
        if self.queue:
            self.tail = trailers
            self.finished_at_s = connection.now_s
            connection.queued(self, 0)
        else:
            self.send_headers(trailers, is_end=True)

    def reset(self, code: ErrorCode) -> None:
        if self.connection is not None:
            self.connection.reset(self.stream_id, code)

    def close(self, connection: Connection, *, is_cancelled: bool) -> int:
        """Returns the bytes whose credit is still owed. For the connection alone."""
        if self._held_bytes:
            self.release()
        owed, self._owed_bytes = self._owed_bytes, 0
        self.connection = None
        self.queue = None
        self.on_closed(connection, is_cancelled=is_cancelled)
        return owed

    # -- for the connection -----------------------------------------------------------------------

    def expect_content(self, size: int) -> None:
        """Checks the window, and counts down the content-length. StreamFault."""
        if self.receive_window < 0:
            raise StreamFault(self.stream_id, ErrorCode.FLOW_CONTROL_ERROR)
        if self._content_left is not None:
            self._content_left -= size
            if self._content_left < 0 or (self.is_ended_in and self._content_left):
                raise StreamFault(self.stream_id, ErrorCode.PROTOCOL_ERROR)

    def line_up(self) -> bool:
        """Returns False if it is in the line already, or may not send."""
        if self._is_in_line or self.send_window <= 0:
            return False
        self._is_in_line = True
        return True

    def leave_line(self) -> None:
        self._is_in_line = False
