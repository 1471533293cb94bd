"""Dead letters that were sent again or purged one by one: part of the replicated state, changed
only by applying entries.

A letter cannot leave the middle of its queue: it stands there until the queue is trimmed, and this
is what is known of it meanwhile. Purged letters are shown to no reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mq.names import DEAD_LETTER_PREFIX
from mq.wire.v1.state_pb2 import LettersState, SettleLetters

_NONE: frozenset[int] = frozenset()


class SettledLetters:
    def __init__(self) -> None:
        # By group: queue offsets in its dead-letter queue.
        self._resent: dict[str, set[int]] = {}
        self._purged: dict[str, set[int]] = {}

    def resent(self, group: str) -> frozenset[int] | set[int]:
        return self._resent.get(group, _NONE)

    def purged(self, group: str) -> frozenset[int] | set[int]:
        return self._purged.get(group, _NONE)

    # -- applying ---------------------------------------------------------------------------------

    def settle(self, command: SettleLetters) -> None:
        for known, added in ((self._resent, command.resent), (self._purged, command.purged)):
            known.setdefault(command.group, set()).update(added)
        self._forget_before(command.group, command.start)

    def trim(self, topic: str, queue_offset: int) -> None:
        """The queue of a topic begins here from now on."""
        if topic.startswith(DEAD_LETTER_PREFIX):
            self._forget_before(topic.removeprefix(DEAD_LETTER_PREFIX), queue_offset)

    def drop_topic(self, topic: str) -> None:
        self.trim(topic, 1 << 64)

    def _forget_before(self, group: str, queue_offset: int) -> None:
        for known in (self._resent, self._purged):
            left = {one for one in known.get(group, ()) if one >= queue_offset}
            if left:
                known[group] = left
            else:
                known.pop(group, None)

    # -- checkpoints ------------------------------------------------------------------------------

    def encode(self) -> Iterator[LettersState]:
        for group in sorted({*self._resent, *self._purged}):
            yield LettersState(
                group=group,
                resent=sorted(self.resent(group)),
                purged=sorted(self.purged(group)),
            )

    def restore(self, states: Iterable[LettersState]) -> None:
        self._resent.clear()
        self._purged.clear()
        for one in states:
            self.settle(SettleLetters(group=one.group, resent=one.resent, purged=one.purged))
