"""The work that an event of Raft leads to, and how the parts of the core put it together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mq.raft.contracts import Leadership
from mq.raft.frames import Frame
from mq.store.commitlog import NewEntry
from mq.wire.v1.raft_pb2 import RaftFrame


class Ready(NamedTuple):
    """Work for the node, in this order. When `append` is refused, the rest is void."""

    # Term and vote, to be made durable.
    vote: tuple[int, str | None] | None = None
    # Entries from this raft index on leave the log.
    truncate: int | None = None
    # A region of the leader's log, or the first entry of a new leader; goes behind the last entry.
    append: memoryview | NewEntry | None = None
    # Entries up to here are committed and durable: apply them and say so with `applied`.
    commit: int = 0
    messages: Sequence[tuple[str, Frame]] = ()
    # The leadership has changed.
    role: Leadership | None = None
    # A follower lacks more entries: call `replicate` when the messages are sent.
    has_more: bool = False
    # The log has to be replaced by the leader's: the message was a StartOver.
    must_start_over: bool = False


NOTHING = Ready()


class ReadyBuilder:
    """The next `Ready`, and the time of the event that it answers. `Election` and `Replication`
    write into it, the core takes it.
    """

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self._clear()

    def _clear(self) -> None:
        self.vote: tuple[int, str | None] | None = None
        self.truncate: int | None = None
        self.append: memoryview | NewEntry | None = None
        self.commit = 0
        self.has_more = False
        self.must_start_over = False
        self._messages: list[tuple[str, Frame]] = []

    def send(
        self, peer_id: str, term: int, body: bytes | memoryview = b"", **content: object
    ) -> None:
        """With our term: a node of a higher one drops it, one of a lower one adopts it."""
        message = RaftFrame(term=term, **content)  # type: ignore[arg-type]
        self._messages.append((peer_id, Frame(message, body)))

    def take(self, role: Leadership | None) -> Ready:
        is_empty = not (
            self.commit
            or self._messages
            or role is not None
            or self.append is not None
            or self.vote is not None
            or self.must_start_over
        )
        if is_empty:
            return NOTHING
        ready = Ready(
            self.vote,
            self.truncate,
            self.append,
            self.commit,
            self._messages,
            role,
            self.has_more,
            self.must_start_over,
        )
        self._clear()
        return ready
