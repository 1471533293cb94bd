"""Receive and acknowledge: the driver on the leader.

Everything that changes leases goes through one line of turns, so that it is decided on applied
state alone and becomes few entries, each for many: `granting` and `settling` decide, `taking`
remembers. A call is answered when its entry is applied. Who finds nothing waits in line, and is
woken when there is something: by an arrival, by a change, or when messages come again.

A message that was given out more often than its group allows is a dead letter: by the entry that
says it is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from mq import errors, names
from mq.broker.consumer.filters import CompiledFilter
from mq.broker.consumer.groups import Groups, Start
from mq.broker.consumer.pulling import READ_BYTES_MAX, Puller
from mq.broker.core import Core, Service
from mq.broker.queue import Queue
from mq.broker.receive import handles, settling
from mq.broker.receive.granting import Given, Hand, Wanted, take, take_in_order
from mq.broker.receive.handles import Handle
from mq.broker.receive.lease_turn import LeaseTurn, NextTurn, Over, sizes_bytes
from mq.broker.receive.settling import Settle
from mq.broker.receive.taking import Spec, Taking
from mq.broker.receive.takings import Takings
from mq.broker.state.dedup import StoredAt
from mq.broker.state.leases import Range
from mq.broker.turns import Turns, Verdict
from mq.errors import IllegalHandle, Internal, MqError, QueueDamaged, SubscriptionMismatch
from mq.logging import get_logger
from mq.store.batch import Batch
from mq.wire.v1 import consumer_pb2, state_pb2

log = get_logger(__name__)

_WAIT_S_MAX = 60.0
# A filter that matches little: for so long it is searched on, also for who does not wait.
_SEARCH_S = 1.0
# Queues that one receive looks at, before others have their turn.
_QUEUES_MAX = 64
# How far a filter has left out everything may be told so much later: only lag depends on it.
_PASSED_MS = 1_000

Result = TypeVar("Result")
# What somebody wants to be decided.
Step = Callable[[LeaseTurn], object]


class Receive(NamedTuple):
    group: str
    topic: str
    member_id: str
    spec: Spec
    filter: CompiledFilter
    messages_max: int
    bytes_max: int
    invisible_ms: int
    wait_s: float = 0.0
    start: Start = Start()


class _Call:
    """A receive under way; whoever made it may be gone."""

    __slots__ = ("is_cancelled", "receive")

    def __init__(self, receive: Receive) -> None:
        self.receive = receive
        self.is_cancelled = False


class Receiving(Service):
    def __init__(self, core: Core, groups: Groups, puller: Puller) -> None:
        self._core = core
        self._groups = groups
        self._puller = puller
        self._turns: Turns[Step, object] = Turns(core.writer, core.leadership, self._decide)
        self._expires_ms = core.settings.config.broker.member_expires_ms
        self._takings = Takings(core.state, core.arrivals, self._end, self._expires_ms)
        self._passed_ms = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_burying = False

    # -- receive ----------------------------------------------------------------------------------

    async def receive(self, wanted: Receive) -> list[Given]:
        """Messages that are the caller's for the invisible time, durably; none: there were none in
        time. TopicNotFound, PermissionDenied, SubscriptionMismatch; as `Consensus.propose`.
        """
        self._check(wanted)
        taking = self._takings.of(wanted.group, wanted.topic)
        taking.enter(wanted.member_id, wanted.spec, self._steady_ms(), self._expires_ms)
        try:
            return await self._receive(taking, wanted)
        finally:
            taking.exit(wanted.member_id, self._steady_ms())

    async def _receive(self, taking: Taking, wanted: Receive) -> list[Given]:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        deadline_s = began_s + min(wanted.wait_s, _WAIT_S_MAX)
        taking.reserved += wanted.messages_max
        is_reserved = True
        try:
            while True:
                if taking.ready or not taking.is_begun:
                    given = await self._grant(taking, wanted)
                    if given:
                        return given
                now_s = loop.time()
                is_searching = taking.ready and now_s < max(deadline_s, began_s + _SEARCH_S)
                if is_searching or not taking.is_begun:
                    self._check(wanted)
                    continue
                if now_s >= deadline_s or taking.is_dropped:
                    return []
                is_reserved = False
                taking.release(wanted.messages_max)
                is_reserved = await taking.wait(wanted.messages_max, deadline_s - now_s)
                if not is_reserved:
                    return []
                self._check(wanted)
        finally:
            if is_reserved:
                taking.release(wanted.messages_max)

    def _check(self, wanted: Receive) -> None:
        self._core.leadership.check()
        self._core.state.topics.readable(wanted.topic)
        live = self._groups.live(wanted.group)
        if live is not None and live.members:
            raise SubscriptionMismatch(
                f"group {wanted.group} has members that subscribe, {min(live.members)!r} for one: "
                f"member {wanted.member_id!r} cannot receive in it. Use another group, or stop the "
                "others first"
            )

    async def _grant(self, taking: Taking, wanted: Receive) -> list[Given]:
        call = _Call(wanted)
        work = self._begin_task(self._granted(taking, call))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            call.is_cancelled = True
            work.add_done_callback(lambda done: self._return(wanted.group, done))
            raise

    async def _granted(self, taking: Taking, call: _Call) -> list[Given]:
        try:
            given = await self._ask(lambda turn: self._give(turn, taking, call))
        except MqError:
            # It may have been taken off the lists and not given.
            taking.renew(taking.topic)
            raise
        if not taking.is_begun:
            leases = self._core.state.leases
            taking.is_begun = all((taking.group, queue) in leases for queue in taking.queues)
        # The group may have been moved while the entry was on its way.
        return [one for one in given if self._is_held(call.receive.group, one)]

    def _is_held(self, group: str, given: Given) -> bool:
        leases = self._core.state.leases.get(group, given.queue)
        found = leases.at(given.run.queue_offset) if leases else None
        return found is not None and found.lease == given.lease

    def _return(self, group: str, done: asyncio.Future[list[Given]]) -> None:
        """Whoever was given these is gone: others have them at once."""
        if done.cancelled() or done.exception() is not None or not done.result():
            return
        back: list[Handle | None] = [
            Handle(one.queue, one.lease, one.run.queue_offset, _end_of(one))
            for one in done.result()
        ]

        def step(turn: LeaseTurn) -> list[bool]:
            how = settling.take_back(turn.draft, group, turn.now_ms)
            return settling.settle(turn.draft, group, back, how)

        async def give_back() -> None:
            try:
                await self._ask(step)
            except MqError as error:
                log.info("messages stay invisible for their time", group=group, error=str(error))

        self._begin_task(give_back())

    # -- one decision of a receive ----------------------------------------------------------------

    def _give(self, turn: LeaseTurn, taking: Taking, call: _Call) -> list[Given]:
        receive = call.receive
        if call.is_cancelled:
            return []
        self._core.state.topics.readable(receive.topic)
        self._begin(turn, taking, receive.start)
        wanted = Wanted(
            receive.group,
            receive.filter,
            receive.spec.is_ordered,
            receive.messages_max,
            self._puller.unsent.share(min(receive.bytes_max, READ_BYTES_MAX)),
            self.retries_max(receive.group),
        )
        lease = self._core.random_number() or 1
        until_ms = turn.now_ms + receive.invisible_ms
        hand = Hand(wanted, lease, until_ms, turn.draft, self._puller.read)
        for queue in taking.order()[:_QUEUES_MAX]:
            if not hand.has_room:
                break
            if turn.draft.get(receive.group, queue) is not None:
                self._look_at(taking, queue, hand, turn.now_ms)
        turn.read_bytes += hand.size_bytes
        return hand.given

    def _look_at(self, taking: Taking, queue: Queue, hand: Hand, now_ms: int) -> None:
        taking.ready.pop(queue, None)
        memory = taking.memory(queue, hand.leases(queue))
        decide = take_in_order if hand.wanted.is_ordered else take
        try:
            has_more = decide(hand, queue, memory, self._end(queue), now_ms)
        except (errors.MessagesDamaged, errors.Rebuilding, QueueDamaged) as error:
            taking.set_aside(queue, is_mended=error.retryable)
            return
        if memory.spent:
            taking.spent_queues.add(queue)
        if has_more:
            taking.ready[queue] = None
        taking.sleep(memory, now_ms)

    def _begin(self, turn: LeaseTurn, taking: Taking, start: Start) -> None:
        """The first sight of a topic fixes the group's place in all of its queues.

        In very many queues by several entries. The last queue comes first: one that is missing and
        stands before others was not come to yet, one behind all others was added to the topic.
        """
        if taking.is_begun:
            return
        group, name = taking.group, taking.topic.name
        positions = self._core.state.offsets.positions(group)
        missing = [one for one in taking.queues if turn.draft.get(group, one) is None]
        known = {queue.queue_id for queue in positions if queue.topic == name}
        known |= {one.queue_id for one in taking.queues} - {one.queue_id for one in missing}
        last = max(known, default=-1)
        for queue in reversed(missing):
            if turn.is_full:
                break
            is_added = 0 <= last < queue.queue_id
            place = self._groups.start_offset(queue, Start(is_earliest=True) if is_added else start)
            turn.draft.begin(group, queue, positions.get(queue, place))

    # -- handles ----------------------------------------------------------------------------------

    async def ack(self, group: str, shown: Sequence[consumer_pb2.Handle]) -> list[bool]:
        """Which were good: these messages are done, durably. The others change nothing."""
        return await self._settle(
            group, shown, lambda turn: settling.acknowledge(turn.draft, group)
        )

    async def acknowledge(
        self,
        group: str,
        shown: Sequence[consumer_pb2.Handle],
        batches: Sequence[Batch] = (),
        judge: Callable[[], list[StoredAt] | None] | None = None,
        begin: Callable[[], Over] | None = None,
    ) -> list[StoredAt]:
        """All of them or none, and the batches with them, as one atom. Returns where these are.

        `judge` is asked when it is decided: None, or that it was done before and where the batches
        are; it may raise. `begin` is called when the batches are on their way, and what it returns
        when they are applied, or failed. IllegalHandle, MessageTooLarge: nothing was written.
        """
        parsed = handles.parse(shown)

        def step(turn: LeaseTurn) -> list[StoredAt]:
            turn.check_fits(sizes_bytes(batches) + settling.size_bytes(parsed))
            done = judge() if judge is not None else None
            if done is not None:
                return done
            for at, handle in enumerate(parsed):
                if handle is None or settling.in_hand(turn.draft, group, handle) is None:
                    raise IllegalHandle(
                        f"handle {at} of {len(parsed)} is of no message in hand of group {group}: "
                        "acknowledged before, or its time was over and somebody else has it"
                    )
            settling.settle(turn.draft, group, parsed, settling.acknowledge(turn.draft, group))
            return turn.add(batches, begin() if begin is not None else None)

        return await self._ask(step)

    async def nack(
        self,
        group: str,
        shown: Sequence[consumer_pb2.Handle],
        delay_ms: int | None = None,
        reason: str = "",
    ) -> list[bool]:
        """Visible again after the delay, or by the number of attempts; what was given out too often
        is a dead letter, with the reason.
        """
        parsed = handles.parse(shown)
        limit = self.retries_max(group)
        if any(one and self._is_spent(group, one, limit) for one in parsed):
            self._core.leadership.check()
            await self._core.catalog.ensure_internal(names.dead_letter_topic(group))

        def how(turn: LeaseTurn) -> Settle:
            def bury(queue: Queue, one: Range) -> int:
                return turn.bury(group, queue, one, reason)

            return settling.give_back(turn.draft, group, turn.now_ms, delay_ms, limit, bury)

        return await self._settle(group, shown, how)

    async def change_invisible(
        self, group: str, shown: Sequence[consumer_pb2.Handle], invisible_ms: int
    ) -> tuple[list[bool], int]:
        """And until when they are invisible now."""
        until_ms = 0

        def how(turn: LeaseTurn) -> Settle:
            nonlocal until_ms
            until_ms = turn.now_ms + invisible_ms
            return settling.hold_longer(turn.draft, group, until_ms)

        return await self._settle(group, shown, how), until_ms

    async def _settle(
        self,
        group: str,
        shown: Sequence[consumer_pb2.Handle],
        how: Callable[[LeaseTurn], Settle],
    ) -> list[bool]:
        parsed = handles.parse(shown)

        def step(turn: LeaseTurn) -> list[bool]:
            turn.check_fits(settling.size_bytes(parsed))
            return settling.settle(turn.draft, group, parsed, how(turn))

        return await self._ask(step)

    def _is_spent(self, group: str, handle: Handle, retries_max: int) -> bool:
        leases = self._core.state.leases.get(group, handle.queue)
        found = leases.at(handle.start) if leases else None
        return found is not None and found.attempts > retries_max

    def leave(self, group: str, member_id: str) -> None:
        """The member does not receive any more. What it has stays its own for its time."""
        self._takings.leave(group, member_id)

    # -- questions --------------------------------------------------------------------------------

    def retries_max(self, group: str) -> int:
        own = self._core.state.offsets.retries_max(group)
        return self._core.settings.config.broker.retries_max if own is None else own

    def check_inactive(self, group: str) -> None:
        """SubscriptionMismatch while somebody receives in the group."""
        members = self.members(group)
        if members:
            raise SubscriptionMismatch(
                f"member {min(members)!r} receives in group {group}: nobody can subscribe in it at "
                "the same time. Use another group, or stop the others first"
            )

    def members(self, group: str) -> dict[str, int]:
        """Who receives in the group, or did a moment ago, and for how long each was silent."""
        return self._takings.active_members(group, self._steady_ms())

    # -- turns ------------------------------------------------------------------------------------

    async def _ask(self, step: Callable[[LeaseTurn], Result]) -> Result:
        return cast(Result, await self._turns.ask(step))

    def _decide(self, steps: list[Step]) -> Verdict[object]:
        config = self._core.settings.config
        turn = LeaseTurn(
            self._core.state,
            self._core.store,
            self._core.now_ms(),
            config.node.broker_set,
            config.store.entry_bytes_max,
        )
        answers: list[object | MqError] = []
        for step in steps:
            if answers and turn.is_full:
                break
            try:
                answers.append(step(turn))
            except NextTurn:
                break
            except MqError as error:
                answers.append(error)
            except Exception:
                # One mistake must not fail everybody's calls.
                log.exception("a receive or acknowledgement failed")
                answers.append(Internal("a mistake of the broker's: its log has the details"))
        return Verdict(answers, turn.written(), turn.over)

    def _begin_task(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- what changes around it -------------------------------------------------------------------

    def step_down(self, error: MqError) -> None:
        self._takings.dismiss(error)

    def on_command(self, command: state_pb2.Command) -> None:
        self._takings.on_command(command, self._core.now_ms())

    def tick(self) -> None:
        now_ms, steady_ms = self._core.now_ms(), self._steady_ms()
        self._takings.pass_time(now_ms, steady_ms)
        if steady_ms - self._passed_ms >= _PASSED_MS:
            self._passed_ms = steady_ms
            for taking in self._takings:
                self._note_passed(taking)
        spent = [taking for taking in self._takings if taking.spent_queues]
        if spent and not self._is_burying:
            self._is_burying = True
            self._begin_task(self._bury(spent))

    def _note_passed(self, taking: Taking) -> None:
        """What the filter left out is done, also while nothing comes that it lets through."""
        passed = {}
        for queue, memory in taking.memories.items():
            leases = self._core.state.leases.get(taking.group, queue)
            if leases is not None and memory.passed > leases.next:
                passed[queue] = leases.next, memory.passed

        def step(turn: LeaseTurn) -> None:
            for queue, (known, to) in passed.items():
                leases = turn.draft.get(taking.group, queue)
                if leases is not None and leases.next == known:
                    turn.draft.put(taking.group, queue, known, to, None)

        if passed:
            self._begin_task(self._quietly(self._ask(step), taking.group))

    async def _bury(self, spent: list[Taking]) -> None:
        """Messages that were given out too often, and not acknowledged in time."""
        try:
            for taking in spent:
                await self._quietly(self._bury_of(taking), taking.group)
        finally:
            self._is_burying = False

    async def _bury_of(self, taking: Taking) -> None:
        group = taking.group
        await self._core.catalog.ensure_internal(names.dead_letter_topic(group))

        def step(turn: LeaseTurn) -> list[Queue]:
            limit = self.retries_max(group)
            over: list[Queue] = []
            for queue in sorted(taking.spent_queues):
                leases = turn.draft.get(group, queue)
                for one in list(leases.ranges) if leases else ():
                    if one.attempts <= limit or one.visible_at_ms > turn.now_ms:
                        continue
                    reason = f"given out {one.attempts} times and not acknowledged in time"
                    if turn.is_full or turn.bury(group, queue, one, reason) < one.end:
                        return over  # the rest at the next tick
                over.append(queue)
            return over

        for queue in await self._ask(step):
            taking.look_again(queue)
        taking.wake()

    async def _quietly(self, work: Coroutine[Any, Any, object], group: str) -> None:
        try:
            await work
        except MqError as error:
            # Nothing is lost: the next tick tries again, or another node leads.
            log.info("leases are not changed", group=group, error=str(error))

    def _end(self, queue: Queue) -> int:
        return self._groups.extent(queue)[1]

    def _steady_ms(self) -> int:
        """A clock that nobody sets."""
        return int(asyncio.get_running_loop().time() * 1000)


def _end_of(given: Given) -> int:
    return given.run.queue_offset + given.run.message_count
