"""A budget for deliveries that are made and that their clients have not taken yet: those of
streams, and the answers to `Pull` and `Receive`.

A transport takes a delivery as a whole and keeps it, and copies of it, until the client reads: what
clients that never read can cost is the size of one delivery a call. So deliveries are smaller the
more is unsent: each may have a part of what is left of the budget, but never less than a small one.
Clients that do read are served however many others do not. Knows nothing of the transport.
"""

from __future__ import annotations

# Any client may have so much at any time.
SMALL_BYTES = 64 << 10
# A delivery takes at most this part of what is left.
_PART = 8


class Unsent:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.held_bytes = 0

    def share(self, wanted_bytes: int) -> int:
        """The size that a delivery may have now, given its own limit."""
        left = (self._bytes_max - self.held_bytes) // _PART
        return min(wanted_bytes, max(SMALL_BYTES, left))

    def hold(self, size_bytes: int) -> None:
        """So much was handed to the transport; until `release`."""
        self.held_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes


class Allowance:
    """The limit of one stream for a delivery: small at first, doubled each time the client has
    reported as much as done. A client that never reads never gets beyond the first size.
    """

    __slots__ = ("_done_bytes", "bytes")

    def __init__(self) -> None:
        self.bytes = SMALL_BYTES
        self._done_bytes = 0

    def earn(self, done_bytes: int, bytes_max: int) -> None:
        self._done_bytes += done_bytes
        if self._done_bytes >= self.bytes < bytes_max:
            self.bytes = min(2 * self.bytes, bytes_max)
            self._done_bytes = 0
