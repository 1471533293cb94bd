"""gRPC's clients of other languages, as channels that a test uses in place of a `grpc.Channel`.

    with ForeignChannel(programs.command("java"), broker.address) as channel:
        answer = channel.unary_unary("/mq.v1.ClusterService/Route")(b"", timeout=10)

A channel is a process of its own, a small program in that language which makes the calls: bytes
in, bytes out. It has the part of the face of a `grpc.Channel` that tests need, and a call fails
with a `grpc.RpcError`.

Frames, over stdin and stdout of the program:

    +-------------------+-------------+----------+----------------+
    | payload bytes u32 | call id u32 | kind u8  | payload        |      all big-endian
    +-------------------+-------------+----------+----------------+

    to the program      O  open: a list of "unary" or "stream", path, deadline in milliseconds or 0,
                           request, and metadata: key, value, key, value, ...
                        W  write the payload, H  half-close, C  cancel
                        R  read one message: nothing is read that is not asked for
    from the program    M  a message, S  the end: a list of code, text, and trailing metadata

A list is the length of each part in a u32 before it. A unary call is opened, and answers by itself.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import struct
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import grpc

_HEAD = struct.Struct(">IIc")
_SIZE = struct.Struct(">I")
_STOP_S = 30.0
# Messages that a reader asks for in advance, as the loops of these languages do: when an error ends
# a stream, Node.js drops what nobody has asked for.
_READ_AHEAD = 64
_CODES = {code.value[0]: code for code in grpc.StatusCode}

Metadata = Iterable[tuple[str, str]]


class ForeignError(grpc.RpcError):  # type: ignore[misc] # grpcio has no types
    """The failure of a call, as grpcio's own."""

    def __init__(
        self, code: grpc.StatusCode, text: str, trailers: list[tuple[str, str | bytes]]
    ) -> None:
        super().__init__(f"{code.name}: {text}")
        self._found = code, text, trailers

    def code(self) -> grpc.StatusCode:
        return self._found[0]

    def details(self) -> str:
        return self._found[1]

    def trailing_metadata(self) -> list[tuple[str, str | bytes]]:
        return self._found[2]


class _Frame(NamedTuple):
    kind: bytes
    payload: bytes


class ForeignChannel:
    def __init__(self, command: Sequence[str], address: str, *options: str) -> None:
        """`command` is the program."""
        self._process = subprocess.Popen(
            [*command, address, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._calls: dict[int, queue.SimpleQueue[_Frame]] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The program ends with its input, and its connection with it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(_STOP_S)
        self._reader.join(_STOP_S)
        self._process.stdout.close()

    # -- as grpc.Channel --------------------------------------------------------------------------

    def unary_unary(self, path: str, *args: Any, **options: Any) -> _Unary:
        return _Unary(self, path, *args, **options)

    def unary_stream(self, path: str, *args: Any, **options: Any) -> Callable[..., _Call]:
        stream = _Stream(self, path, *args, **options)
        return lambda request, **more: stream([request], **more)

    def stream_stream(self, path: str, *args: Any, **options: Any) -> _Stream:
        return _Stream(self, path, *args, **options)

    # -- frames -----------------------------------------------------------------------------------

    def open(
        self, shape: str, path: str, request: bytes, timeout: float | None, metadata: Metadata
    ) -> tuple[int, queue.SimpleQueue[_Frame]]:
        """The id of the call, and the frames that the program sends for it."""
        call_id, frames = next(self._ids), queue.SimpleQueue[_Frame]()
        self._calls[call_id] = frames
        timeout_ms = 0 if timeout is None else max(1, round(timeout * 1000))
        texts = [shape, path, str(timeout_ms), *itertools.chain.from_iterable(metadata)]
        parts = [text.encode() for text in texts]
        self.write(call_id, b"O", _joined([*parts[:3], request, *parts[3:]]))
        return call_id, frames

    def write(self, call_id: int, kind: bytes, payload: bytes = b"") -> None:
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(_HEAD.pack(len(payload), call_id, kind))
            self._process.stdin.write(payload)
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while head := self._process.stdout.read(_HEAD.size):
            size, call_id, kind = _HEAD.unpack(head)
            frame = _Frame(kind, self._process.stdout.read(size))
            frames = self._calls[call_id] if kind == b"M" else self._calls.pop(call_id)
            frames.put(frame)
        # Of calls that never ended: the program has failed.
        for frames in [*self._calls.values()]:
            frames.put(_Frame(b"S", _joined([b"2", b"the program has ended"])))


class _Method:
    def __init__(
        self,
        channel: ForeignChannel,
        path: str,
        request_serializer: Callable[[Any], bytes] = bytes,
        response_deserializer: Callable[[bytes], Any] = bytes,
        **_: object,
    ) -> None:
        self._channel = channel
        self._path = path
        self._encode = request_serializer
        self._decode = response_deserializer


class _Unary(_Method):
    def __call__(self, request: Any, timeout: float | None = None, metadata: Metadata = ()) -> Any:
        (answer,) = self.future(request, timeout, metadata)
        return answer

    def future(self, request: Any, timeout: float | None = None, metadata: Metadata = ()) -> _Call:
        opened = self._channel.open("unary", self._path, self._encode(request), timeout, metadata)
        return _Call(self._channel, *opened, self._decode, is_stream=False)


class _Stream(_Method):
    def __call__(
        self, requests: Iterable[Any], timeout: float | None = None, metadata: Metadata = ()
    ) -> _Call:
        opened = self._channel.open("stream", self._path, b"", timeout, metadata)
        call = _Call(self._channel, *opened, self._decode, is_stream=True)
        encoded = map(self._encode, requests)
        threading.Thread(target=call.write, args=(encoded,), daemon=True).start()
        return call


class _Call(Iterator[Any]):
    def __init__(
        self,
        channel: ForeignChannel,
        call_id: int,
        frames: queue.SimpleQueue[_Frame],
        decode: Callable[[bytes], Any],
        *,
        is_stream: bool,
    ) -> None:
        self._channel = channel
        self._id = call_id
        self._frames = frames
        self._decode = decode
        self._is_stream = is_stream
        # How many to ask for; a unary call reads its answer by itself.
        self._reads = _READ_AHEAD if is_stream else 0

    def write(self, requests: Iterable[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):  # the channel was closed
            for request in requests:
                self._channel.write(self._id, b"W", request)
            self._channel.write(self._id, b"H")

    def cancel(self) -> None:
        self._channel.write(self._id, b"C")

    def __next__(self) -> Any:
        while self._reads:
            self._channel.write(self._id, b"R")
            self._reads -= 1
        frame = self._frames.get()
        if frame.kind == b"M":
            self._reads = 1 if self._is_stream else 0
            return self._decode(frame.payload)
        self._frames.put(frame)
        code, text, *pairs = _split(frame.payload)
        if code == b"0":
            raise StopIteration
        keys = (key.decode() for key in pairs[::2])
        trailers: list[tuple[str, str | bytes]] = [
            (key, value if key.endswith("-bin") else value.decode())
            for key, value in zip(keys, pairs[1::2], strict=True)
        ]
        raise ForeignError(_CODES[int(code)], text.decode(), trailers)


def _joined(parts: Iterable[bytes]) -> bytes:
    return b"".join(_SIZE.pack(len(part)) + part for part in parts)


def _split(joined: bytes) -> list[bytes]:
    parts = []
    while joined:
        end = _SIZE.size + _SIZE.unpack_from(joined)[0]
        parts.append(joined[_SIZE.size : end])
        joined = joined[end:]
    return parts
