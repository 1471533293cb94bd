"""A replica on an asyncio loop: real time, real connections, a thread that syncs the log.

All of it runs on the loop that it was made on, beside the rest of the broker; only syncs wait on a
thread. Proposals of one turn of the loop are written together, so that those of many producers
become one append and one sync.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from mq.clock import Clock
from mq.errors import IllegalMembership, MqError, OffsetOutOfRange
from mq.logging import get_logger
from mq.raft.contracts import (
    Committed,
    Leadership,
    Outcome,
    Role,
    Settings,
    StateMachine,
    Status,
)
from mq.raft.frames import Frame
from mq.raft.handshake import Past, Presence
from mq.raft.replica import Replica
from mq.raft.tls import TlsContexts
from mq.raft.transport import Transport
from mq.raft.vote import VoteFile
from mq.store.commitlog import CommitLog
from mq.store.flush import Flusher
from mq.store.format import Kind
from mq.store.identity import Identity
from mq.tls import Certificates

log = get_logger(__name__)

_TICK_S = 0.02
# A sync of no more than this is done on the loop when the disk was idle before: to hand it to a
# thread and back takes as long as the sync. When one follows the other, a thread does it, so that
# entries gather meanwhile; unless only one caller is there, whose entry is small. After a slow sync
# a thread does it for a while.
_INLINE_BYTES_MAX = 64 << 10
_LONE_BYTES_MAX = 4 << 10
_IDLE_DISK_S = 0.0004
_SLOW_SYNC_S = 0.005
_SLOW_DISK_S = 0.1
# Waiting to be sent to one peer. It stands in front of heartbeats, and a follower that is behind
# gets so much in one go, read from the disk on the loop.
_SEND_BYTES_MAX = 4 << 20
# A planned stop waits for entries in flight, then for another leader.
_DRAIN_S = 2.0
_HAND_OVER_S = 2.0


class Disk(NamedTuple):
    """The files of this node. The owner opens and closes them."""

    log: CommitLog
    vote: VoteFile
    flusher: Flusher


class Node:
    """Made on a running loop, and all methods are for that loop's thread. After `start`, `stop` it
    in any case.
    """

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        disk: Disk,
        clock: Clock,
        *,
        tls: Certificates[TlsContexts] | None = None,
    ) -> None:
        self._settings = settings
        self._node_id = settings.node_id
        self._disk = disk
        self.now_ms = clock.now_ms
        self._loop = asyncio.get_running_loop()
        # The term in which this node leads; 0: it does not. Asked for every call.
        self.leading_term = 0
        self._failed: asyncio.Future[MqError] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._is_turn_due = False
        self._is_syncing = False
        self._is_sync_wanted = False
        self._is_sync_due = False
        self._sync_began_s = self._sync_ended_s = self._inline_from_s = 0.0
        self._is_stopped = False
        self._transport = Transport(
            identity,
            self,
            genesis_crc=self._genesis_crc,
            past=self._past,
            tls=None if tls is None else lambda: tls.current,
            send_buffer_bytes=_SEND_BYTES_MAX,
        )

    # -- life -------------------------------------------------------------------------------------

    async def start(
        self,
        listen: str | None,
        machine: StateMachine,
        on_leadership: Callable[[Leadership], object] = lambda _: None,
    ) -> None:
        """Returns when peers may connect. PortUnavailable: the node has stopped."""
        self._tell_leadership = on_leadership
        disk = self._disk
        self._replica = Replica(self._settings, disk.log, disk.vote, machine, self._transport, self)
        try:
            await self._transport.start(listen)
        except BaseException:
            await self.stop()
            raise
        self._run()

    async def step_aside(self) -> None:
        """Begins a planned stop: nothing new is proposed, what is under way ends, and another node
        leads when this returns, if there is one that can.
        """
        if not self._is_stopped:
            await self._hand_over(self._replica)

    async def stop(self) -> None:
        """Hands leadership over when it can, then ends. Pending proposals get an answer."""
        await self.step_aside()
        self._end()
        await self._transport.close()

    async def failed(self) -> MqError:
        """Returns when the node has given up, with the reason."""
        return await asyncio.shield(self._failed)

    def _end(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self._replica.end()

    async def _hand_over(self, replica: Replica) -> None:
        replica.begin_stop()
        await self._until(lambda: not replica.waiting, _DRAIN_S)

        def is_over() -> bool:
            replica.hand_over()
            is_alone = not self._transport.connected()
            return is_alone or replica.leadership.role != Role.LEADER

        await self._until(is_over, _HAND_OVER_S)

    async def _until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        deadline = self._loop.time() + timeout_s
        while not (self._is_stopped or condition() or self._loop.time() >= deadline):  # noqa: ASYNC110
            await asyncio.sleep(_TICK_S)

    # -- use --------------------------------------------------------------------------------------

    def propose(
        self, kind: Kind, payload: Sequence[bytes | memoryview], context: Any = ()
    ) -> asyncio.Future[Committed]:
        """Done when the entry is committed, durable and applied here.

        NotLeader, FlowControl, MessageTooLarge, DiskFull, NodeStopped: nothing was written.
        OutcomeUnknown: it may be in the log or not.
        """
        return self._begin(self._replica.propose, kind, payload, context=context)

    def submit(
        self,
        kind: Kind,
        payload: Sequence[bytes | memoryview],
        context: object,
        done: Callable[[MqError | None], None],
    ) -> None:
        """As `propose`, without a future: `done` is called once, later, at the end of the turn in
        which the entry is applied, or with the error.
        """
        try:
            self._replica.propose(kind, payload, partial(_tell, done), context)
        except MqError as error:
            self._loop.call_soon(done, error)
        else:
            self._wake()

    def add_member(self, node_id: str, address: str) -> asyncio.Future[Committed]:
        """Done when the node has the log, is a member, and that is committed. IllegalMembership,
        NotLeader; the future may be cancelled while the node does not come.
        """
        future = self._begin(self._replica.add_member, node_id, address)
        future.add_done_callback(self._cancel_change)
        return future

    def remove_member(self, node_id: str) -> asyncio.Future[Committed]:
        return self._begin(self._replica.remove_member, node_id)

    def transfer_leadership(self) -> bool:
        """Asks a node that has all of the log to lead. Returns False if there is none."""
        return self._replica.hand_over()

    async def move_leadership(self, node_id: str = "", wait_s: float = 10.0) -> Leadership:
        """Returns when another node leads: this one, or the one that has most of the log, which may
        take `wait_s` to catch up. What is proposed meanwhile waits, and is refused with NotLeader
        in the end. IllegalMembership: none took over, and this node leads on.
        """
        replica = self._replica
        if node_id == self._node_id and self.leadership.role == Role.LEADER:
            return self.leadership
        replica.begin_transfer(node_id, wait_s)
        await self._until(lambda: not replica.transfer.is_under_way, wait_s + _HAND_OVER_S)
        if replica.transfer.failure:
            raise IllegalMembership(
                f"{replica.transfer.failure}: {self._node_id} leads on; see `mq cluster status`"
            )
        await self._until(lambda: self.leadership.leader_id is not None, _HAND_OVER_S)
        return self.leadership

    @property
    def leadership(self) -> Leadership:
        return self._replica.leadership

    @property
    def is_ready(self) -> bool:
        """There is a leader, and this node has applied all that it knows to be committed."""
        return self._replica.is_ready

    @property
    def presences(self) -> dict[str, Presence]:
        """The presence of each node that was connected once, and of this one."""
        return {**self._transport.presences, self._node_id: self._transport.presence}

    def introduce(self, presence: Presence) -> None:
        """Sets the presence that the others are told; before `start`."""
        self._transport.presence = presence

    @property
    def port(self) -> int:
        return self._transport.port

    def status(self) -> Status:
        return self._replica.status()

    def _begin(
        self, begin: Callable[..., None], *arguments: Any, **more: Any
    ) -> asyncio.Future[Committed]:
        future: asyncio.Future[Committed] = self._loop.create_future()
        try:
            begin(*arguments, done=partial(_end, future), **more)
        except MqError as error:
            _end(future, error)
        else:
            self._wake()
        return future

    def _cancel_change(self, future: asyncio.Future[Committed]) -> None:
        if future.cancelled():
            self._replica.cancel_change()

    # -- the loop ---------------------------------------------------------------------------------

    def _run(self) -> None:
        self._timer = self._loop.call_later(_TICK_S, self._run)
        # In async flush mode no proposal waits for the flusher, but its failure is as final.
        if self._disk.flusher.failure is not None:
            self._replica.fail(self._disk.flusher.failure)
        self._tick()

    def _wake(self) -> None:
        if not self._is_turn_due:
            self._is_turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_turn_due = False
        if self._is_stopped:
            return
        if self._replica.has_more_to_apply:
            self._tick()
        else:
            self._replica.write()
            self._finish()

    def _tick(self) -> None:
        self._replica.tick()
        self._finish()
        if self._replica.has_more_to_apply:
            self._wake()

    def _finish(self) -> None:
        """Ends each call of the loop into the replica."""
        replica = self._replica
        if self._is_stopped:
            return
        if replica.failure is not None:
            self._give_up(replica.failure)
            return
        if self._is_sync_due:
            self._sync_here()
        if replica.leadership.role == Role.LEADER and replica.has_more_to_apply:
            self._wake()  # callers wait for it; a follower applies with the timer

    def _give_up(self, failure: MqError) -> None:
        """Closing the connections tells the others to elect another leader at once."""
        self._end()
        if not self._failed.done():
            self._failed.set_result(failure)
            self._closing = self._loop.create_task(self._transport.close())

    # -- Driver -----------------------------------------------------------------------------------

    now_s = staticmethod(time.monotonic)

    def on_leadership(self, leadership: Leadership) -> None:
        self.leading_term = leadership.term if leadership.role == Role.LEADER else 0
        log.info(
            "leadership",
            node=self._node_id,
            role=leadership.role.name.lower(),
            term=leadership.term,
            leader=leadership.leader_id,
        )
        self._tell_leadership(leadership)

    def request_sync(self) -> None:
        """One at a time: what comes while one runs goes with the next."""
        if self._is_syncing:
            self._is_sync_wanted = True
            return
        self._is_syncing, self._is_sync_wanted = True, False
        now_s = self._loop.time()
        if now_s >= self._inline_from_s and self._unsynced_bytes() <= self._inline_bytes(now_s):
            # At the end of what the loop is doing for us right now.
            self._is_sync_due = True
        else:
            self._sync_began_s = now_s
            waiter = self._disk.flusher.wait(self._disk.log.end_offset)
            waiter.add_done_callback(self._hand_to_loop)

    def _unsynced_bytes(self) -> int:
        commitlog = self._disk.log
        return commitlog.end_offset - commitlog.durable_offset

    def _inline_bytes(self, now_s: float) -> int:
        """The number of bytes that may be synced on the loop."""
        if now_s - self._sync_ended_s >= _IDLE_DISK_S:
            return _INLINE_BYTES_MAX
        return _LONE_BYTES_MAX if self._replica.waiting == 1 else 0

    def _sync_here(self) -> None:
        self._is_sync_due = False
        self._sync_began_s = self._loop.time()
        try:
            self._disk.log.sync()
        except MqError as error:
            self._replica.fail(error)
        self._synced()

    def _hand_to_loop(self, waiter: Future[int]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_synced, waiter)

    def _on_synced(self, waiter: Future[int]) -> None:
        error = waiter.exception()
        if isinstance(error, OffsetOutOfRange):
            # Truncated meanwhile: there may be other entries in its place.
            self._is_sync_wanted = True
        elif isinstance(error, MqError):
            self._replica.fail(error)
        self._synced()

    def _synced(self) -> None:
        self._is_syncing = False
        ended_s = self._sync_ended_s = self._loop.time()
        if ended_s - self._sync_began_s > _SLOW_SYNC_S:
            self._inline_from_s = ended_s + _SLOW_DISK_S
        if self._is_sync_wanted and not self._is_stopped:
            self.request_sync()
        self._replica.on_synced()
        self._finish()

    # -- Listener ---------------------------------------------------------------------------------

    def on_connected(self, peer_id: str) -> None:
        self._replica.on_connected(peer_id)
        self._finish()

    def on_disconnected(self, peer_id: str, was_lost: bool) -> None:  # noqa: FBT001
        self._replica.on_disconnected(peer_id, was_lost=was_lost)
        self._finish()

    def on_frame(self, peer_id: str, frame: Frame) -> None:
        """Handled at once: proposals wait for what follows from it."""
        self._replica.receive(peer_id, frame)
        self._finish()

    def on_writable(self, peer_id: str) -> None:  # noqa: ARG002 - to all peers that have room
        self._replica.on_writable()
        self._finish()

    def _genesis_crc(self) -> int:
        return self._replica.trust.genesis_crc()

    def _past(self) -> Past:
        return self._replica.membership.past()


def _tell(done: Callable[[MqError | None], None], outcome: Outcome) -> None:
    done(outcome if isinstance(outcome, MqError) else None)


def _end(future: asyncio.Future[Committed], outcome: Outcome) -> None:
    if future.done():
        return
    if isinstance(outcome, MqError):
        future.set_exception(outcome)
        # Retrieve it so that asyncio does not warn: a caller may be cancelled in the same turn.
        future.exception()
    else:
        future.set_result(outcome)
