"""What is said in the log about connections that come to nothing, and how often."""

from __future__ import annotations

from collections import OrderedDict

from mq.logging import RateLimit, get_logger

log = get_logger(__name__)

_COMPLAINTS_MAX = 256
# About strangers, which can connect at any rate and under any name.
_LINES_MAX, _LINES_S = 30, 60.0


class Complaints:
    """The last complaint about each peer, so that it is not repeated at each redial."""

    def __init__(self) -> None:
        self._strangers = RateLimit(_LINES_MAX, _LINES_S)
        self._last: OrderedDict[str, str] = OrderedDict()

    def is_new(self, origin: str, reason: str) -> bool:
        is_new = self._last.get(origin) != reason
        self._last[origin] = reason
        self._last.move_to_end(origin)
        while len(self._last) > _COMPLAINTS_MAX:  # strangers choose their names
            self._last.popitem(last=False)
        return is_new

    def forget(self, origin: str) -> None:
        self._last.pop(origin, None)

    def of_stranger(self, *, peer: str, address: str, reason: str) -> None:
        """At most so many lines a minute; the next one says how many were left out."""
        if self._strangers.admit():
            omitted = self._strangers.omitted()
            log.warning(
                "connection not accepted", peer=peer, address=address, reason=reason, **omitted
            )
