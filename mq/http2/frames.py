"""Frames of HTTP/2 (RFC 9113): their numbers, how they are written, and the two kinds of faults.

    length 24 | type 8 | flags 8 | reserved 1, stream id 31 | payload

The kinds and flags are plain integers, not enums: the loop in `connection` compares them for every
frame.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES: Final = 9
# The smallest limit that the protocol allows, and the one that this server announces.
FRAME_BYTES_MAX: Final = 16_384
WINDOW_DEFAULT: Final = 65_535
WINDOW_MAX: Final = 0x7FFFFFFF
STREAM_ID_MAX: Final = 0x7FFFFFFF

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITISED: Final = 0x20

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

HEAD: Final = struct.Struct(">BHBBI")
UINT32: Final = struct.Struct(">I")
SETTING: Final = struct.Struct(">HI")


class ErrorCode(enum.IntEnum):
    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class ConnectionFault(Exception):
    """Ends the connection, with GOAWAY."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class StreamFault(Exception):
    """Ends one stream, with RST_STREAM."""

    def __init__(self, stream_id: int, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.stream_id = stream_id
        self.code = code


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id) + payload


def settings(values: Mapping[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*one) for one in values.items()))


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream_id, UINT32.pack(code))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, UINT32.pack(increment))


def goaway(last_stream_id: int, code: ErrorCode, text: str = "") -> bytes:
    head = UINT32.pack(last_stream_id) + UINT32.pack(code)
    return frame(GOAWAY, 0, 0, head + text.encode())


def header_frames(stream_id: int, block: bytes, frame_bytes_max: int, *, is_end: bool) -> bytes:
    """HEADERS, and CONTINUATION for what does not fit into it."""
    first = END_STREAM if is_end else 0
    if len(block) <= frame_bytes_max:
        return frame(HEADERS, first | END_HEADERS, stream_id, block)
    parts = [frame(HEADERS, first, stream_id, block[:frame_bytes_max])]
    for start in range(frame_bytes_max, len(block), frame_bytes_max):
        is_last = start + frame_bytes_max >= len(block)
        flags = END_HEADERS if is_last else 0
        parts.append(frame(CONTINUATION, flags, stream_id, block[start : start + frame_bytes_max]))
    return b"".join(parts)
