"""Messages that a push consumer works on stay invisible while it is alive, for hours if need be.

Such a consumer asks for no time: it is given one, and what it has not settled near the end of it
is renewed, as long as its client is heard of. In the leader's memory: after a fail-over a message
that is worked on comes again when its time is over, as after a crash.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools

from mq.broker.broker import Broker
from mq.broker.receive import acks
from mq.broker.receive.grants import GrantedRun
from mq.broker.receive.leases import Handle
from mq.errors import MqError
from mq.logging import get_logger
from mq.rpc.rocketmq.sessions import Sessions

log = get_logger(__name__)

# So long before its time is over a message is renewed; a client that was silent for longer is gone.
_BEFORE_MS = 15_000
_SILENT_MS_MAX = 45_000
_RENEWED_MS_MAX = 3 * 3_600_000
_LOOK_S = 1.0
OPEN_MAX = 200_000


class _Open:
    __slots__ = ("client_id", "given_ms", "group", "handle", "invisible_ms")

    def __init__(
        self, group: str, client_id: str, handle: Handle, given_ms: int, invisible_ms: int
    ) -> None:
        self.group = group
        self.client_id = client_id
        self.handle = handle
        self.given_ms = given_ms
        self.invisible_ms = invisible_ms


class Renewals:
    def __init__(self, broker: Broker, sessions: Sessions) -> None:
        self._broker = broker
        self._sessions = sessions
        self._open: dict[Handle, _Open] = {}
        # By the time at which they are looked at again.
        self._due: list[tuple[int, int, Handle]] = []
        self._order = itertools.count()
        self._task: asyncio.Task[None] | None = None

    def add(self, group: str, client_id: str, runs: list[GrantedRun], invisible_ms: int) -> None:
        now_ms = self._broker.steady_ms()
        for queue, lease, _, _, run in runs:
            for at in range(run.queue_offset, run.queue_offset + run.message_count):
                if len(self._open) >= OPEN_MAX:
                    return
                handle = Handle(queue, lease, at, at + 1)
                self._open[handle] = _Open(group, client_id, handle, now_ms, invisible_ms)
                self._schedule(handle, now_ms + invisible_ms - _BEFORE_MS)
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

    async def _renew(self, now_ms: int) -> None:
        while self._due and self._due[0][0] <= now_ms:
            _, _, handle = heapq.heappop(self._due)
            one = self._open.get(handle)
            if one is None:
                continue
            silent_ms = self._sessions.silent_ms(one.client_id)
            is_gone = silent_ms is None or silent_ms > _SILENT_MS_MAX
            if is_gone or now_ms - one.given_ms > _RENEWED_MS_MAX or not await self._renewed(one):
                self._open.pop(handle, None)
            else:
                self._schedule(handle, now_ms + one.invisible_ms - _BEFORE_MS)

    async def _renewed(self, one: _Open) -> bool:
        """False: another consumer has it by now."""
        try:
            settled = await self._broker.receiving.settle(
                acks.ChangeInvisible(one.group, [one.handle], one.invisible_ms)
            )
        except MqError as error:
            log.info("a message in flight is not renewed", group=one.group, error=str(error))
            return False
        return settled.valid[0]
