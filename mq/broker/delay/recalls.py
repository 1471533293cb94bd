"""Taking back messages that wait.

A message is looked for first, which may take long, and then decided on together with all others
that were found meanwhile, while nothing is delivered or written again: so it is either taken back
or on its topic, whatever happens at the same time.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Container, Iterable
from typing import NamedTuple

from mq.broker.core import Core
from mq.broker.delay.due import DueUnit
from mq.broker.delay.lanes import Lanes
from mq.errors import FlowControl, MessageNotFound, MqError
from mq.store.holding import lane_of
from mq.wire.v1.state_pb2 import Command, Many, RecallScheduled

# Recalls that are decided together.
_REQUESTS_MAX = 1_000
# Recalled messages whose time has not come: each is remembered until then.
RECALLED_MAX = 100_000


class _RecallOutcome(enum.Enum):
    TAKEN_BACK = enum.auto()
    # It was written again meanwhile: it has to be looked for again.
    MOVED = enum.auto()


class _Recall(NamedTuple):
    number: int
    unit: DueUnit
    message_log_offset: int
    topic: str
    outcome: asyncio.Future[_RecallOutcome]


class Recalls:
    def __init__(self, core: Core, lanes: Lanes, turn: asyncio.Lock) -> None:
        """`turn` is held for each change of the schedule, from the decision until it is applied."""
        self._core = core
        self._lanes = lanes
        self._turn = turn
        self._requests: list[_Recall] = []
        self._task: asyncio.Task[None] | None = None

    async def recall(self, topic: str, message_log_offset: int, deliver_at_ms: int) -> None:
        """The message will not be delivered once this returns. Raises MessageNotFound if it is
        delivered or due right now, was recalled already, or never existed; NotLeader; as
        `Consensus.propose`.
        """
        loop = asyncio.get_running_loop()
        while True:
            self._core.leadership.check()
            unit = await self._lanes.find(topic, message_log_offset, deliver_at_ms)
            if unit is None:
                raise _not_found(message_log_offset)
            request = _Recall(
                lane_of(deliver_at_ms), unit, message_log_offset, topic, loop.create_future()
            )
            self._requests.append(request)
            if self._task is None:
                self._task = loop.create_task(self._run())
            if await request.outcome == _RecallOutcome.TAKEN_BACK:
                return

    def step_down(self, error: MqError) -> None:
        requests, self._requests = self._requests, []
        for one in requests:
            _tell(one, error)

    async def _run(self) -> None:
        try:
            while self._requests:
                async with self._turn:
                    requests = self._requests[:_REQUESTS_MAX]
                    del self._requests[:_REQUESTS_MAX]
                    await self._decide([one for one in requests if not one.outcome.done()])
        finally:
            self._task = None

    async def _decide(self, requests: list[_Recall]) -> None:
        wanted: dict[int, _Recall] = {}
        try:
            self._core.leadership.check()
            self._check_room(len(requests))
            for one in requests:
                verdict = self._verdict(one, wanted)
                if verdict is None:
                    wanted[one.message_log_offset] = one
                else:
                    _tell(one, verdict)
            if wanted:
                await self._core.writer.write(_command(wanted.values()))
        except Exception as error:  # noqa: BLE001 - told to the callers
            for one in requests:
                _tell(one, error)
        for one in wanted.values():
            _tell(one, _RecallOutcome.TAKEN_BACK)

    def _check_room(self, count: int) -> None:
        """Raises FlowControl if too many are remembered."""
        recalled = sum(len(lane.recalled) for lane in self._core.state.schedule.lanes.values())
        if recalled + count > RECALLED_MAX:
            raise FlowControl(
                f"{recalled} messages that were taken back wait for their time to pass: at most "
                f"{RECALLED_MAX} are remembered"
            )

    def _verdict(self, request: _Recall, wanted: Container[int]) -> _RecallOutcome | MqError | None:
        """The outcome; None: it can be taken back now."""
        number, unit, message_log_offset, *_ = request
        lane = self._core.state.schedule.lanes.get(number)
        if lane is None or message_log_offset in lane.recalled or message_log_offset in wanted:
            return _not_found(message_log_offset)
        if unit.log_offset < lane.below_log_offset:
            return _RecallOutcome.MOVED
        if not self._lanes.is_waiting(number, unit):
            return _not_found(message_log_offset)
        return None


def _command(requests: Iterable[_Recall]) -> Command:
    return Command(
        many=Many(
            commands=[
                Command(
                    recall_scheduled=RecallScheduled(
                        lane=one.number,
                        due_ms=one.unit.due_ms,
                        log_offset=one.unit.log_offset,
                        message_log_offset=one.message_log_offset,
                        topic=one.topic,
                    )
                )
                for one in requests
            ]
        )
    )


def _tell(request: _Recall, outcome: _RecallOutcome | Exception) -> None:
    if request.outcome.done():
        return
    if isinstance(outcome, Exception):
        request.outcome.set_exception(outcome)
    else:
        request.outcome.set_result(outcome)


def _not_found(message_log_offset: int) -> MessageNotFound:
    return MessageNotFound(
        f"no message of log offset {message_log_offset} waits for that time on this topic: it is "
        "delivered, was taken back already, or never was"
    )
