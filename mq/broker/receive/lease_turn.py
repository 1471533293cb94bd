"""One turn of those who receive and acknowledge: what all of them come to is one entry.

The entry holds changes of leases, and the batches that are one atom with them: dead letters, and
what was made of messages that are acknowledged. It is bounded; who does not fit comes in the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mq import names
from mq.broker.queue import Queue
from mq.broker.receive.lease_draft import Draft
from mq.broker.retry.retries import Letter, attempts_before, dead_letters, stored_messages
from mq.broker.state.dedup import StoredAt
from mq.broker.state.leases import Range
from mq.broker.state.machine import ProposedEntry
from mq.broker.state.state import State
from mq.errors import MessageTooLarge, MqError
from mq.store.batch import Batch
from mq.store.reading import Status
from mq.store.store import Store

# A turn takes in more requests up to so much: of the entry, and of messages that were read.
_ENTRY_BYTES = 1 << 20
_READ_BYTES = 8 << 20
# Around batches and the command in their entry.
_MARGIN_BYTES = 1 << 10
_BATCH_HEAD_BYTES = 8
# Messages that become one batch of dead letters.
_LETTERS_MAX = 128
_LETTERS_BYTES_MAX = 1 << 20


# Told where its batches are, or why they are nowhere.
Over = Callable[[list[StoredAt], MqError | None], None]


class NextTurn(Exception):
    """The request does not fit any more."""


class LeaseTurn:
    def __init__(
        self, state: State, store: Store, now_ms: int, broker_set: str, entry_bytes_max: int
    ) -> None:
        self.draft = Draft(state.leases)
        self.now_ms = now_ms
        self.read_bytes = 0
        self._state = state
        self._store = store
        self._broker_set = broker_set
        self._entry_bytes_max = entry_bytes_max - _MARGIN_BYTES
        self._batches: list[Batch] = []
        self._batch_bytes = 0
        # Who wants to know where which of the batches are, and what else is to be told then.
        self._told: list[tuple[list[StoredAt], int, int, Over | None]] = []
        self._written: ProposedEntry | None = None

    @property
    def is_full(self) -> bool:
        entry_bytes = self.draft.size_bytes + self._batch_bytes
        return (
            entry_bytes >= min(_ENTRY_BYTES, self._entry_bytes_max // 2)
            or self.read_bytes >= _READ_BYTES
        )

    def fits(self, size_bytes: int) -> bool:
        return self.draft.size_bytes + self._batch_bytes + size_bytes <= self._entry_bytes_max

    def check_fits(self, size_bytes: int) -> None:
        """NextTurn; MessageTooLarge: it never will."""
        if self.fits(size_bytes):
            return
        if not self.draft.size_bytes and not self._batches:
            raise MessageTooLarge(
                f"{size_bytes} bytes are too large for one entry: at most {self._entry_bytes_max}"
            )
        raise NextTurn

    def add(self, batches: Sequence[Batch], over: Over | None = None) -> list[StoredAt]:
        """Where they are, as soon as the turn is over; `over` is called before anybody else."""
        stored: list[StoredAt] = []
        self._told.append((stored, len(self._batches), len(batches), over))
        self._batches += batches
        self._batch_bytes += sizes_bytes(batches)
        return stored

    def bury(self, group: str, queue: Queue, one: Range, reason: str) -> int:
        """Messages of the range become dead letters of the group, as many as fit; what is gone by
        now is done. Returns how far it came. The dead-letter topic has to be there.
        """
        if names.dead_letter_topic(group) not in self._state.topics:
            return one.start
        result = self._store.read(
            *queue,
            one.start,
            bytes_max=_LETTERS_BYTES_MAX,
            messages_max=min(_LETTERS_MAX, one.end - one.start),
        )
        reached = one.start
        if result.status == Status.TOO_SMALL:
            reached = min(result.start, one.end)
        elif result.status == Status.NOTHING_MATCHED:  # lost: see `ReadResult.lost`
            reached = min(result.next_offset, one.end)
        elif result.status == Status.FOUND:
            letters = [
                Letter(stored, attempts_before(group, stored) + one.attempts, reason)
                for run in result.runs
                for stored in stored_messages(queue, run)
            ]
            for count in (len(letters), 1):
                batch = dead_letters(group, self._broker_set, letters[:count])
                if self.fits(sizes_bytes([batch])):
                    self.add([batch])
                    reached = one.start + count
                    break
        self.draft.put(group, queue, one.start, reached, None)
        return reached

    def written(self) -> ProposedEntry | None:
        """None: nothing changes."""
        command = self.draft.command()
        if command is not None or self._batches:
            self._written = ProposedEntry(self._batches, command)
        return self._written

    def over(self, error: MqError | None) -> None:
        """The entry is applied, or has failed."""
        for stored, first, count, over in self._told:
            if error is None and self._written is not None:
                stored.extend(self._written.stored[first : first + count])
            if over is not None:
                over(stored, error)


def sizes_bytes(batches: Sequence[Batch]) -> int:
    """What they take of an entry."""
    return sum(len(batch.data) + _BATCH_HEAD_BYTES for batch in batches)
