"""How fast one follower is fed.

A follower is *probed* until it has answered that its log matches ours: one append at a time,
because where its log ends is a guess. Then entries are sent as they come, without waiting for
answers, as long as the connection takes them. PySyncObj by itself does neither.
"""

from __future__ import annotations

_SUSPICIOUS_REFUSALS = 20


class Flow:
    def __init__(self) -> None:
        self.is_connected = False
        self.is_probing = True
        self.is_voter = False  # by its own word
        self._probed_at_s: float | None = None
        self._probed_index = 0
        self._refusals = 0

    def start_probing(self) -> None:
        """Nothing is known of the follower's log: a new leader, a new connection."""
        self.is_probing = True
        self._probed_at_s = None
        self._probed_index = 0

    def may_send(self, now_s: float, period_s: float, *, has_room: bool) -> bool:
        if not self.is_connected or not has_room:
            return False
        if not self.is_probing or self._probed_at_s is None:
            return True
        # No answer, or none that helped: once per heartbeat.
        return now_s - self._probed_at_s >= period_s

    def sent(self, next_index: int, now_s: float) -> None:
        """An append went out that starts at `next_index`."""
        if self.is_probing:
            self._probed_at_s = now_s
            self._probed_index = next_index

    def matched(self) -> None:
        self.is_probing = False
        self._probed_at_s = None

    def refused(self, next_index: int) -> bool:
        """The follower wants to start elsewhere. The same place again: it cannot go on right now,
        for want of space or because our entries there are damaged; asking at once would make two
        machines spin. True when our own entries there deserve a look: the first time, and now and
        then.
        """
        self.is_probing = True
        if next_index != self._probed_index:
            self._probed_at_s = None
            self._refusals = 0
            return False
        self._refusals += 1
        return self._refusals % _SUSPICIOUS_REFUSALS == 1
