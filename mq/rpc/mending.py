"""Mends what is damaged in this node's log, from the other nodes of its set.

Every report of damage (`store.damage`) starts a pass, one segment at a time: reads all of it, asks
the other nodes for the damaged entries (`ReadLog`, as a backup does), and writes them in place; see
`store.segment_mending` for the checks. While no other node can be reached it tries again, with a
back-off. Entries that no node has are lost: readers skip them, and operators are told which
messages those were. So a node alone loses damaged entries at once.

A leader whose damage cannot be mended for some seconds hands the leadership over: the others need a
leader that has all of the log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import grpc

from mq.broker.contracts import Peer
from mq.errors import MqError
from mq.logging import get_logger
from mq.rpc.status import details
from mq.rpc.tls import BrokerChannel, Connect
from mq.store.damage import Damage, DamageKind
from mq.store.segment import Segment
from mq.store.segment_mending import (
    Gap,
    Survey,
    is_filled_by,
    survey,
    write_mended,
    write_mended_idx,
)
from mq.store.store import Store
from mq.store.vfs import Vfs, is_shortage
from mq.wire.v1.admin_pb2 import LogChunk, ReadLogRequest
from mq.wire.v1.status_pb2 import MESSAGES_DAMAGED

log = get_logger(__name__)

_READ_LOG = "/mq.v1.AdminService/ReadLog"
_ANSWER_S_MAX = 5.0
_BACKOFF_S = 1.0
_BACKOFF_S_MAX = 30.0
# A leader tries for so long before it hands over.
_LEADS_S = 5.0
_OPTIONS = (
    ("grpc.max_receive_message_length", 8 << 20),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A name may lead to another address when its broker comes back.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    ("grpc.enable_retries", 0),
)
_QUEUES_NAMED = 8
_QUEUES_AT_ONCE = 256


class Others(NamedTuple):
    """The rest of the broker set, as the mender needs it."""

    peers: Callable[[], Sequence[Peer]]
    connect: Connect
    is_leading: Callable[[], bool]
    hand_over: Callable[[], bool]
    # Of a call: who asks.
    metadata: Callable[[], Sequence[tuple[str, str]]] = list


class _Unreachable(Exception):
    """A node that may have it did not answer."""


class Mender:
    """`run` it on the loop of the broker."""

    def __init__(self, store: Store, vfs: Vfs, node_id: str, others: Others) -> None:
        self._store = store
        self._vfs = vfs
        self._node_id = node_id
        self._others = others
        self._channels: dict[str, BrokerChannel] = {}
        # By segment: when it is tried again, the pause after that, and since when it is damaged.
        self._waits: dict[int, tuple[float, float, float]] = {}
        self._handed_over: set[int] = set()

    async def run(self) -> None:
        loop, is_found = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(is_found.set)

        self._store.damage.watch(wake)
        try:
            while True:
                is_found.clear()
                await self._mend_all()
                next_s = min((at_s for at_s, *_ in self._waits.values()), default=None)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(next_s):
                        await is_found.wait()
        finally:
            self._store.damage.unwatch(wake)
            for channel in self._channels.values():
                await channel.close()

    async def _mend_all(self) -> None:
        loop = asyncio.get_running_loop()
        bases = self._damaged_segments()
        for base in self._waits.keys() - bases:
            del self._waits[base]
        for base in sorted(bases):
            at_s, pause_s, since_s = self._waits.get(base, (0.0, _BACKOFF_S, loop.time()))
            if loop.time() < at_s:
                continue
            try:
                is_done = await self._mend(base) and base not in self._damaged_segments()
            except (MqError, OSError) as error:
                log.warning("damage is not mended yet", error=str(error))
                is_done = False
            except Exception:
                log.exception("damage is not mended by a mistake of the broker")
                is_done = False
            if is_done:
                self._waits.pop(base, None)
                continue
            at_s = loop.time() + pause_s
            self._waits[base] = at_s, min(2 * pause_s, _BACKOFF_S_MAX), since_s
            self._hand_over(base, loop.time() - since_s)

    def _damaged_segments(self) -> set[int]:
        """Log offsets where segments start that have something to be mended."""
        commitlog = self._store.log
        return {
            commitlog.segment_around(one.start)[0]
            for one in self._store.damage.records()
            if one.kind == DamageKind.LOG
            and one.is_open
            and not one.is_lost
            and commitlog.start_offset <= one.start < commitlog.end_offset
        }

    def _hand_over(self, base: int, open_s: float) -> None:
        """Once for a segment: the leadership must not go back and forth between two nodes with
        damage.
        """
        if open_s < _LEADS_S or base in self._handed_over or not self._others.is_leading():
            return
        if self._others.hand_over():
            self._handed_over.add(base)
            log.warning("damage cannot be mended for now: another node is asked to lead")

    # -- one segment ------------------------------------------------------------------------------

    async def _mend(self, base: int) -> bool:
        """Returns whether the segment is done with."""
        twin = self._store.log.twin_at(base)
        if twin is None:
            return True
        with contextlib.closing(twin):
            found = await asyncio.to_thread(survey, twin)
            await self._report(twin, found)
            pieces, lost = await self._fetch_all(found)
            is_whole = len(pieces) + len(lost) == len(found.gaps)
            if pieces or (found.is_idx_damaged and not found.gaps):
                is_whole &= await self._put(twin, found, pieces, has_lost=len(lost) > 0)
            elif not found.gaps:
                # It reads as it was written now: a single error of the disk or of memory.
                self._store.damage.mended(DamageKind.LOG, twin.log_path)
        for gap in lost:
            await self._lose(twin, gap)
        return is_whole

    async def _report(self, twin: Segment, found: Survey) -> None:
        for gap in found.gaps:
            for number, (position, start, end) in enumerate(gap.entries(twin.base)):
                reason = f"entry {gap.first_index + number} is not what was written"
                affected = await self._affected(start, end)
                path = twin.log_path
                self._store.damage.found(
                    Damage(DamageKind.LOG, path, position, reason, start, end, affected)
                )

    async def _put(
        self, twin: Segment, found: Survey, pieces: dict[int, bytes], *, has_lost: bool
    ) -> bool:
        """Writes the pieces in place. Returns False if that has to be tried again."""
        commitlog, base = self._store.log, found.base
        is_put = False
        if commitlog.is_resting(base):
            is_put = await self._put_beside(twin, found, pieces, has_lost=has_lost)
        if not is_put:
            results = [
                await asyncio.to_thread(commitlog.rewrite, base, position, piece)
                for position, piece in pieces.items()
            ]
            is_put = all(results) and not found.is_idx_damaged
        if is_put:
            self._close(twin, found, pieces)
        return is_put

    async def _put_beside(
        self, twin: Segment, found: Survey, pieces: dict[int, bytes], *, has_lost: bool
    ) -> bool:
        """By new files. Returns False if there is no space for them, or the segment is gone."""
        log_path = idx_path = None
        try:
            if pieces:
                log_path = await asyncio.to_thread(
                    write_mended, self._vfs, twin, pieces, has_lost=has_lost
                )
            if found.is_idx_damaged and not has_lost:
                idx_path = await asyncio.to_thread(
                    write_mended_idx, self._vfs, twin, log_path or twin.log_path
                )
            return self._store.log.replace_files(found.base, log_path, idx_path)
        except OSError as error:
            if not is_shortage(error):
                raise
            return False

    def _close(self, twin: Segment, found: Survey, pieces: dict[int, bytes]) -> None:
        damage = self._store.damage
        if len(pieces) == len(found.gaps):
            damage.mended(DamageKind.LOG, twin.log_path)
            return
        for gap in found.gaps:
            if gap.start in pieces:
                for position, *_ in gap.entries(found.base):
                    damage.mended(DamageKind.LOG, twin.log_path, position)

    async def _lose(self, twin: Segment, gap: Gap) -> None:
        for _, start, end in gap.entries(twin.base):
            self._store.damage.lose(twin.log_path, start, await self._affected(start, end))

    async def _affected(self, start: int, end: int) -> str:
        """The messages there, in words."""
        named: list[str] = []
        more = 0
        for at, one in enumerate(self._store.messages_between(start, end)):
            if at % _QUEUES_AT_ONCE == _QUEUES_AT_ONCE - 1:
                await asyncio.sleep(0)
            if one is None:
                continue
            if len(named) < _QUEUES_NAMED:
                named.append(f"{one.topic}/{one.queue_id}: {one.start} to {one.end - 1}")
            else:
                more += 1
        return ", ".join(named + ([f"and {more} more queues"] if more else []))

    # -- the others -------------------------------------------------------------------------------

    async def _fetch_all(self, found: Survey) -> tuple[dict[int, bytes], list[Gap]]:
        """Pieces by their position, and the gaps that no node can fill."""
        pieces: dict[int, bytes] = {}
        lost: list[Gap] = []
        for gap in found.gaps:
            try:
                piece = await self._fetch(found.base, gap)
            except _Unreachable:
                continue
            if piece is None:
                lost.append(gap)
            else:
                pieces[gap.start] = piece
        return pieces, lost

    async def _fetch(self, base: int, gap: Gap) -> bytes | None:
        """From the first node that has it; None: all answered, and none has."""
        is_sure = True
        for peer in self._others.peers():
            if peer.node_id == self._node_id:
                continue
            data = await self._ask(peer, base + gap.start, base + gap.end)
            if data is None:
                is_sure = False
            elif is_filled_by(gap, data):
                log.info(
                    "damage is mended from another node",
                    node=peer.node_id,
                    first_index=gap.first_index,
                    bytes=len(data),
                )
                return data
        if not is_sure:
            raise _Unreachable
        return None

    async def _ask(self, peer: Peer, start: int, end: int) -> bytes | None:
        """Its bytes of [start, end), fewer if it has not all of them; None: it does not answer."""
        parts: list[bytes] = []
        if not peer.address:
            return None
        while start < end:
            request = ReadLogRequest(log_offset=start, bytes_max=end - start)
            try:
                chunk = await self._read_log(peer.address, request)
            except grpc.aio.AioRpcError as error:
                return b"" if _is_damaged_there(error) else None
            if chunk.log_offset != start:
                return b""  # it has dropped this part of the log
            if not chunk.data:
                return None  # it is not so far yet
            parts.append(chunk.data[: end - start])
            start += len(parts[-1])
        return b"".join(parts)

    async def _read_log(self, address: str, request: ReadLogRequest) -> LogChunk:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._others.connect(address, _OPTIONS)
            self._channels[address] = channel
        ask = channel.unary_unary(
            _READ_LOG,
            request_serializer=ReadLogRequest.SerializeToString,
            response_deserializer=LogChunk.FromString,
        )
        chunk: LogChunk = await ask(
            request, timeout=_ANSWER_S_MAX, metadata=self._others.metadata()
        )
        return chunk


def _is_damaged_there(error: grpc.aio.AioRpcError) -> bool:
    """Whether the node answered that its own copy is damaged; all other errors may pass."""
    found = details(error)
    return found is not None and found.code == MESSAGES_DAMAGED
