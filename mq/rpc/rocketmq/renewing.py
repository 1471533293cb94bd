"""Messages that a push consumer works on stay invisible while it is alive, for hours if need be.

Such a consumer asks for no time: it is given one, and what it has not settled near the end of it
is renewed, as long as its client is heard of. That is in the leader's memory. The next leader knows
the leases of a client by their mark, and takes them over when it hears of the client: leases are
replicated, and last for longer than the time between two heartbeats.

A message that was on its way when a connection broke, or when a leader died, never arrived, and
looks the same as one that is worked on: its message group would wait for hours. So what was given
out by another leader, or by connections that its client does not ask by any longer, is renewed
once, and then comes again. In an ordered group it comes at once if the client repeats the receive
as the same attempt (`attempt_mark`).
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import NamedTuple

from mq.broker.broker import Broker
from mq.broker.queue import Queue
from mq.broker.receive import acks
from mq.broker.receive.grants import GrantedRun
from mq.broker.receive.leases import MARK_MAX, Handle, mark_of
from mq.broker.state.leases import Range
from mq.errors import MqError
from mq.hashing import text_hash, text_hashes
from mq.logging import get_logger
from mq.rpc.rocketmq.sessions import Sessions

log = get_logger(__name__)

# So long before its time is over a message is renewed; a client that was silent for longer is gone.
_BEFORE_MS = 15_000
_SILENT_MS_MAX = 45_000
_RENEWED_MS_MAX = 3 * 3_600_000
_LOOK_S = 1.0
OPEN_MAX = 200_000
# What such a consumer is given, and each time that it is renewed.
INVISIBLE_MS = 60_000
_TAG_BYTES = 4


def client_mark(client_id: str) -> int:
    """Of the leases of a push consumer. Two clients of a group that share one, of 16 million, keep
    each other's messages invisible.
    """
    return text_hash(client_id) % MARK_MAX + 1


def attempt_mark(client_id: str, attempt_id: str) -> int:
    """Of the leases of a receive that its client repeats with the same id if it got no answer. If
    two attempts of a client share one, of 4 billion, the second takes the messages of the first:
    the client is given them twice.
    """
    # Not `text_hash`, which keeps its results: an id hardly ever comes again.
    tag = int.from_bytes(text_hashes([attempt_id.encode()])[:_TAG_BYTES], "little")
    return client_mark(client_id) << 8 * _TAG_BYTES | tag


class Path(NamedTuple):
    """The way by which a client asks a broker, as routes name it, for messages."""

    client_id: str
    broker: str
    # Those of the client, and of the node that passes the call on.
    connections: str

    @property
    def ends(self) -> tuple[str, str]:
        return self.client_id, self.broker


class _Open:
    __slots__ = ("group", "handle", "path", "until_ms")

    def __init__(self, group: str, path: Path, handle: Handle, until_ms: int) -> None:
        self.group = group
        self.path = path
        self.handle = handle
        # It is not renewed after that.
        self.until_ms = until_ms


class Renewals:
    def __init__(self, broker: Broker, sessions: Sessions) -> None:
        self._broker = broker
        self._sessions = sessions
        self._open: dict[Handle, _Open] = {}
        # By which each client asked last, of those that were given something.
        self._connections: dict[tuple[str, str], str] = {}
        # By the time at which they are looked at again.
        self._due: list[tuple[int, int, Handle]] = []
        self._order = itertools.count()
        # Leases of former terms, by group and mark; of the term in which they were looked for.
        self._inherited: dict[tuple[str, int], list[tuple[Queue, Range]]] = {}
        self._term = self._inherited_until_ms = 0
        self._task: asyncio.Task[None] | None = None

    def add(self, group: str, path: Path, runs: list[GrantedRun], invisible_ms: int) -> None:
        self._connections[path.ends] = path.connections
        for queue, lease, _, _, run in runs:
            end = run.queue_offset + run.message_count
            self._keep(group, path, Handle(queue, lease, run.queue_offset, end), invisible_ms)

    def asked(self, path: Path) -> None:
        if path.ends in self._connections:
            self._connections[path.ends] = path.connections

    def adopt(self, group: str, client_id: str) -> None:
        """The client is there: messages that it has from a former leader are renewed from now on.
        Called before it is given any by this one.
        """
        now_ms, term = self._broker.now_ms(), self._broker.leadership.term
        if self._term != term:
            self._term, self._inherited = term, self._leases(now_ms)
            self._inherited_until_ms = now_ms + INVISIBLE_MS
        elif self._inherited and now_ms > self._inherited_until_ms:
            self._inherited = {}
        for queue, one in self._inherited.pop((group, client_mark(client_id)), ()):
            handle = Handle(queue, one.lease, one.start, one.end)
            path = Path(client_id, "", "of the former leader")
            self._keep(group, path, handle, one.visible_at_ms - now_ms)

    def _leases(self, now_ms: int) -> dict[tuple[str, int], list[tuple[Queue, Range]]]:
        """Those that may be of push consumers: their time is not over, and not longer than theirs
        is.
        """
        found: dict[tuple[str, int], list[tuple[Queue, Range]]] = {}
        for (group, queue), leases in self._broker.state.leases.items():
            for one in leases.ranges:
                if one.lease and 0 < one.visible_at_ms - now_ms <= INVISIBLE_MS:
                    found.setdefault((group, mark_of(one.lease)), []).append((queue, one))
        return found

    def _keep(self, group: str, path: Path, run: Handle, left_ms: int) -> None:
        """Each message for itself: consumers decide about them one by one."""
        now_ms = self._broker.steady_ms()
        for at in range(run.start, run.end):
            if len(self._open) >= OPEN_MAX:
                return
            handle = Handle(run.queue, run.lease, at, at + 1)
            if handle in self._open:
                continue
            self._open[handle] = _Open(group, path, handle, now_ms + _RENEWED_MS_MAX)
            self._schedule(handle, now_ms + left_ms - _BEFORE_MS)
        if self._task is None and self._open:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def forget(self, handle: Handle | None) -> None:
        """Its consumer has decided about it."""
        if handle is not None:
            self._open.pop(handle, None)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _schedule(self, handle: Handle, due_ms: int) -> None:
        heapq.heappush(self._due, (due_ms, next(self._order), handle))

    async def _run(self) -> None:
        try:
            while self._due:
                await asyncio.sleep(_LOOK_S)
                if not self._broker.leadership.is_serving:
                    # Another leader gives them out when their time is over.
                    self._open.clear()
                    self._due.clear()
                await self._renew(self._broker.steady_ms())
        finally:
            self._task = None
            if not self._open:
                self._connections.clear()

    async def _renew(self, now_ms: int) -> None:
        while self._due and self._due[0][0] <= now_ms:
            _, _, handle = heapq.heappop(self._due)
            one = self._open.get(handle)
            if one is None:
                continue
            silent_ms = self._sessions.silent_ms(one.path.client_id)
            is_gone = silent_ms is None or silent_ms > _SILENT_MS_MAX
            if is_gone or now_ms > one.until_ms or not await self._renewed(one):
                self._open.pop(handle, None)
                continue
            if self._connections.get(one.path.ends) != one.path.connections:
                one.until_ms = now_ms
            self._schedule(handle, now_ms + INVISIBLE_MS - _BEFORE_MS)

    async def _renewed(self, one: _Open) -> bool:
        """False: another consumer has it by now."""
        try:
            settled = await self._broker.receiving.settle(
                acks.ChangeInvisible(one.group, [one.handle], INVISIBLE_MS)
            )
        except MqError as error:
            log.info("a message in flight is not renewed", group=one.group, error=str(error))
            return False
        return settled.valid[0]
