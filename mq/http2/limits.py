"""Bounds and rates: the cost that one client, and all of them together, may cause.

A rate is a bucket of tokens: `burst` at once, `per_s` in the long run. An honest connection that
lives for months is never near one; a flood ends within its burst. What is rationed are frames that
cost this side work while they cost the peer nothing; frames that follow from what this side has
sent, such as WINDOW_UPDATE, earn their tokens by it.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Rate:
    burst: int
    per_s: float


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a server. The defaults are for a broker."""

    # -- bounds of one connection
    streams_max: int = 1_024
    message_bytes_max: int = 4 << 20
    # Names and values of one header block, each field with 32 bytes on top; and as it is sent.
    header_list_bytes_max: int = 16 << 10
    header_block_bytes_max: int = 64 << 10
    # Of the table of header fields. Without one, the same header blocks are the same bytes, which
    # makes them cheap: see `requests`.
    header_table_bytes: int = 0
    # Frames of one header block, after the first.
    continuations_max: int = 16
    # What a peer may send before a handler has read it.
    stream_window_bytes: int = 512 << 10
    connection_window_bytes: int = 16 << 20
    # Requests in memory that no handler has read, and answers that the peer does not take. Large
    # enough for several of the largest messages.
    received_bytes_max: int = 64 << 20
    unsent_bytes_max: int = 256 << 20
    # -- bounds of all connections together
    received_bytes_max_in_all: int = 256 << 20
    unsent_bytes_max_in_all: int = 1 << 30
    # -- times
    # From the connection to the peer's SETTINGS, and to its answer to ours.
    handshake_s: float = 5.0
    idle_s: float = 1_800.0
    # Silence after which a PING is sent, and how long it may take to hear anything then.
    keepalive_s: float = 30.0
    keepalive_timeout_s: float = 10.0
    # How long the answer of a call that has ended may wait for the peer to take it.
    answer_s: float = 60.0
    # -- rates of one connection
    # Of calls that were open for less than half a second.
    resets_by_peer: Rate = field(default=Rate(burst=1_000, per_s=100))
    # Streams that this side resets or refuses because of what the peer did.
    resets_by_us: Rate = field(default=Rate(burst=500, per_s=50))
    # Free for a peer that has been sent something since its last: it measures bandwidth by them.
    pings: Rate = field(default=Rate(burst=100, per_s=10))
    settings: Rate = field(default=Rate(burst=100, per_s=10))
    # PRIORITY and frames of types that are not known.
    priorities: Rate = field(default=Rate(burst=1_000, per_s=100))
    empty_data: Rate = field(default=Rate(burst=500, per_s=50))
    window_updates: Rate = field(default=Rate(burst=4_000, per_s=1_000))


class TokenBucket:
    """Looks at the clock only when it is empty."""

    __slots__ = ("_burst", "_filled_at_s", "_level", "_per_s")

    def __init__(self, rate: Rate, now_s: float) -> None:
        self._burst = rate.burst
        self._per_s = rate.per_s
        self._level = float(rate.burst)
        self._filled_at_s = now_s

    def take(self, now_s: float) -> bool:
        """Returns False if there is none left: the peer is too fast."""
        if self._level < 1:
            earned = (now_s - self._filled_at_s) * self._per_s
            self._level = min(float(self._burst), self._level + earned)
            self._filled_at_s = now_s
            if self._level < 1:
                return False
        self._level -= 1
        return True

    def earn(self, tokens: int) -> None:
        self._level = min(float(self._burst), self._level + tokens)


class Usage:
    """Bytes in memory, of all connections of a server."""

    __slots__ = ("received_bytes", "unsent_bytes")

    def __init__(self) -> None:
        self.received_bytes = 0
        self.unsent_bytes = 0
