"""What `poll` has handed out and is not done yet. For both faces; safe from any thread."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from mq.client.consumer.held_queue import Taken
from mq.client.consumer.holdings import Holdings
from mq.client.messages import ReceivedMessage

_Place = tuple[str, str, int, int]


class Polled:
    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._lock = threading.Lock()
        # By its place and not by the object: users may hand back a copy.
        self._open: dict[_Place, Taken] = {}

    def add(self, taken: Iterable[Taken]) -> list[ReceivedMessage]:
        with self._lock:
            messages = []
            for one in taken:
                former = self._open.pop(place := _place(one.message), None)
                if former is not None:
                    # It came again after a seek.
                    self._holdings.give_up([former])
                self._open[place] = one
                messages.append(one.message)
            return messages

    def done(self, messages: Iterable[ReceivedMessage]) -> None:
        """Those that are done already, or void by now, are left out."""
        with self._lock:
            found = [self._open.pop(_place(one), None) for one in messages]
            self._holdings.done([one for one in found if one is not None])

    def take_back(self, messages: Iterable[ReceivedMessage]) -> list[Taken]:
        """Those of them that are not done, for somebody else to finish."""
        with self._lock:
            found = [self._open.pop(_place(one), None) for one in messages]
            return [one for one in found if one is not None]

    def all_done(self) -> None:
        with self._lock:
            taken, self._open = self._open, {}
            self._holdings.done(taken.values())


def _place(message: ReceivedMessage) -> _Place:
    # The id begins with the broker set.
    return message.message_id, message.topic, message.queue_id, message.queue_offset
