"""The order in which owners get room while all wait: deficit round robin.

Owners that wait take turns, each for up to a quantum of bytes; what an owner could not use, because
its next piece is larger, it keeps for its next turn. So each owner gets the same share of bytes,
however many pieces it has waiting and however large they are, and pieces of one owner stay in their
order. An owner that has nothing waiting leaves with what it had saved.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")

QUANTUM_BYTES = 64 << 10


class _Owner(Generic[T]):
    __slots__ = ("credit", "pieces")

    def __init__(self) -> None:
        self.pieces: deque[tuple[T, int]] = deque()
        self.credit = 0

    @property
    def missing(self) -> int:
        """Bytes of credit that its first piece still needs."""
        return self.pieces[0][1] - self.credit


class FairQueue(Generic[T]):
    def __init__(self, quantum_bytes: int = QUANTUM_BYTES) -> None:
        self._quantum = quantum_bytes
        # In the order of their turns; the first one has its turn now, or is about to.
        self._owners: OrderedDict[str, _Owner[T]] = OrderedDict()
        # Whether the first one has its quantum of this turn.
        self._has_quantum = False
        self._first: T | None = None
        # Pieces that wait.
        self.waiting = 0

    def __contains__(self, owner: str) -> bool:
        """Whether the owner has something waiting."""
        return owner in self._owners

    def add(self, owner: str, piece: T, size: int) -> None:
        """Behind what the owner has waiting already."""
        found = self._owners.get(owner)
        if found is None:
            found = self._owners[owner] = _Owner()
        found.pieces.append((piece, size))
        self.waiting += 1

    def first(self) -> T | None:
        """The piece that is next, the same until it is removed; None: nothing waits."""
        if self._first is None and self._owners:
            self._first = self._next()
        return self._first

    def remove(self, owner: str, piece: T, *, is_served: bool) -> None:
        """It has what it waited for; or it gives up, which costs its owner nothing."""
        found = self._owners[owner]
        at, size = next((at, size) for at, (one, size) in enumerate(found.pieces) if one is piece)
        del found.pieces[at]
        self.waiting -= 1
        if is_served:
            found.credit -= size
        if piece is self._first:
            self._first = None
        if not found.pieces:
            self._has_quantum = self._has_quantum and found is not self._front()
            del self._owners[owner]

    def _front(self) -> _Owner[T]:
        return next(iter(self._owners.values()))

    def _next(self) -> T:
        passed = 0
        while True:
            owner = self._front()
            if not self._has_quantum:
                owner.credit += self._quantum
                self._has_quantum = True
            if owner.missing <= 0:
                return owner.pieces[0][0]
            self._owners.move_to_end(next(iter(self._owners)))
            self._has_quantum = False
            passed += 1
            if passed == len(self._owners):
                self._skip_rounds()

    def _skip_rounds(self) -> None:
        """Rounds in which no owner would have enough are counted at once."""
        rounds = min(-(-one.missing // self._quantum) for one in self._owners.values())
        for one in self._owners.values():
            one.credit += (rounds - 1) * self._quantum
