"""Receive and acknowledge: the service on the leader.

Every change of leases is a request that one `BatchedDecider` decides, on applied state, so that
many requests become one entry: `grants` and `acks` decide, `members` remembers. Receives of one
message in one turn, which is how most consumers ask, are one grant. A call is answered by callback
when its entry is applied. A receive that finds nothing waits, and is woken by an arrival, by a
change, or when messages become visible again.

A receive with the attempt of a former one is a repetition: its caller did not get the answer. The
messages of the former one are taken back and given out in the same entry, by a new lease: no other
receiver gets them in between, and handles of the answer that was lost are stale.

A message that was given out more often than its group allows becomes a dead letter, by the entry
that says it is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from mq import errors, names
from mq.broker.batched_decider import BatchedDecider, TurnDecision
from mq.broker.consumer.groups import Groups, Start
from mq.broker.consumer.pulling import READ_BYTES_MAX, Puller, Query
from mq.broker.core import Core, Service
from mq.broker.long_work import in_turns
from mq.broker.queue import Queue
from mq.broker.receive import acks
from mq.broker.receive.grants import (
    Grant,
    GrantedRun,
    Receive,
    give,
    give_in_order,
    single_messages,
)
from mq.broker.receive.holders import LeaseHolders
from mq.broker.receive.leases import (
    AtomicBatches,
    Handle,
    LeaseTurn,
    NextTurn,
    attempt_of,
    attempted,
    marked,
    parse_handles,
)
from mq.broker.receive.members import ReceiveGroup, ReceiveGroups, ReceiveSpec
from mq.broker.receive.read_ahead import NotInMemory, ReadAhead
from mq.broker.state.dedup import StoredAt
from mq.errors import Internal, MqError, QueueDamaged, SubscriptionMismatch
from mq.logging import get_logger
from mq.wire.v1 import consumer_pb2, state_pb2

log = get_logger(__name__)

_WAIT_S_MAX = 60.0
# A filter that matches little is searched for so long, also for a call that does not wait.
_SEARCH_S = 1.0
# Queues that one receive looks at, before other calls have their turn.
_QUEUES_MAX = 64
# Messages that a filter left out are marked as done so often: only lag depends on it.
_SKIP_MS = 1_000
_FOR_EVER = functools.partial(float, "inf")

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class LeaseRequest(Protocol[Result_co]):
    """A request that changes leases. MqError and NextTurn may be raised; nothing changed then."""

    def decide(self, turn: LeaseTurn, /) -> Result_co: ...


_SingleTerms: TypeAlias = tuple[ReceiveGroup, ReceiveSpec, int, int]


class ReceiveCall:
    """A receive in flight, as a `LeaseRequest` and as a `WaitingCall`. It ends once: answered, or
    cancelled because its caller has gone.
    """

    __slots__ = (
        "_answer",
        "_began_s",
        "_deadline_s",
        "_is_reserved",
        "_service",
        "_time_left_s",
        "_timer",
        "is_over",
        "receive",
        "receive_group",
        "single_terms",
    )

    def __init__(
        self,
        service: ReceiveService,
        receive_group: ReceiveGroup,
        receive: Receive,
        answer: Callable[[list[GrantedRun] | Exception], None],
        time_left_s: Callable[[], float],
    ) -> None:
        self._service = service
        self._answer = answer
        self.receive_group = receive_group
        self.receive = receive
        self.is_over = False
        is_single = receive.messages_max == 1 and not receive.spec.is_ordered
        # Of a receive of one message, which may be any.
        self.single_terms: _SingleTerms | None = (
            (receive_group, receive.spec, receive.invisible_ms, receive.lease_mark)
            if is_single
            else None
        )
        self._began_s = service.loop.time()
        self._time_left_s = time_left_s
        self._deadline_s: float | None = None  # known when there was nothing
        # While it waits for messages.
        self._timer: asyncio.TimerHandle | None = None
        self._is_reserved = True
        receive_group.reserved += receive.messages_max

    @property
    def messages_max(self) -> int:
        return self.receive.messages_max

    def look(self) -> None:
        """Submits the receive, or waits if no queue has messages. Raises NotLeader."""
        group = self.receive_group
        if group.ready or not group.is_begun or group.may_have_attempt(self.receive.attempt):
            self._service.begin(self, self._decided)
        else:
            self._rest()

    def decide(self, turn: LeaseTurn) -> list[GrantedRun]:
        return [] if self.is_over else self._service.decide_receive(turn, self)

    def _decided(self, runs: list[GrantedRun] | Exception) -> None:
        group = self.receive_group
        if isinstance(runs, Exception):
            # Ranges may have left the heap without being given out.
            group.renew(group.topic)
            self._end(runs)
            return
        runs = self._service.granted(group, runs)
        if self.is_over:
            self._service.give_back(group.group, runs)
        elif runs:
            self._service.holders.note(self.receive.member_id, runs)
            self._end(runs)
        else:
            self._rest()

    def _rest(self) -> None:
        """There was nothing: looks again in the next turn of the loop, waits, or ends."""
        group, now_s = self.receive_group, self._service.loop.time()
        deadline_s = self._deadline_s
        if deadline_s is None:
            wait_until_s = self._began_s + min(self.receive.wait_s, _WAIT_S_MAX)
            deadline_s = self._deadline_s = min(wait_until_s, now_s + self._time_left_s())
        is_searching = group.ready and now_s < max(deadline_s, self._began_s + _SEARCH_S)
        if is_searching or not group.is_begun:
            self._service.loop.call_soon(self._look_again)
        elif now_s >= deadline_s or group.is_dropped:
            self._end([])
        else:
            self._release()
            self._timer = self._service.loop.call_at(deadline_s, self._waited_in_vain)
            group.wait(self)

    def wake(self, error: MqError | None = None) -> None:
        self._stop_timer()
        self._is_reserved = error is None
        self._service.loop.call_soon(self._look_again, error)

    def _look_again(self, error: MqError | None = None) -> None:
        if self.is_over:
            return
        try:
            if error is not None:
                raise error
            self._service.check(self.receive)
            self.look()
        except MqError as failure:
            self._end(failure)

    def _waited_in_vain(self) -> None:
        self.receive_group.forget(self)
        self._timer = None
        self._end([])

    def cancel(self) -> bool:
        """The caller has gone: what the call may be given goes to others. Returns False if it was
        over already.
        """
        if self.is_over:
            return False
        self._stop_waiting()
        self._leave()
        return True

    def supersede(self) -> None:
        """The caller has gone and asks again: this call must not be given what comes next."""
        self._stop_waiting()
        self._end([])

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._stop_timer()
            self.receive_group.forget(self)

    def _end(self, answer: list[GrantedRun] | Exception) -> None:
        if not self.is_over:
            self._leave()
            self._answer(answer)

    def _leave(self) -> None:
        self.is_over = True
        self._release()
        self._service.exit(self)

    def _release(self) -> None:
        if self._is_reserved:
            self._is_reserved = False
            self.receive_group.release(self.receive.messages_max)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class ReceiveService(Service):
    def __init__(self, core: Core, groups: Groups, puller: Puller) -> None:
        self.loop = asyncio.get_running_loop()
        self._core = core
        self._groups = groups
        self._puller = puller
        self._ahead = ReadAhead(puller)
        # Of the current turn: how many receives want one message, and what they are granted.
        self._single_calls: Counter[_SingleTerms] = Counter()
        self._singles: dict[_SingleTerms, deque[GrantedRun]] = {}
        # Calls in flight that may be repeated.
        self._attempt_calls: dict[tuple[ReceiveGroup, int], ReceiveCall] = {}
        # A lease that the turn which is being answered has made in a queue: the changes of a queue
        # are applied as a whole, or not at all.
        self._applied: tuple[Queue, int] | None = None
        self._decider: BatchedDecider[LeaseRequest[object], object] = BatchedDecider(
            core.writer, core.leadership, self._decide
        )
        self._expires_ms = core.settings.config.broker.member_expires_ms
        self._receive_groups = ReceiveGroups(
            core.state, core.arrivals, puller.end, self._expires_ms
        )
        self.holders = LeaseHolders()
        self._skipped_at_ms = 0
        self._skipping: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_dropping = False

    # -- receive ----------------------------------------------------------------------------------

    async def receive(self, wanted: Receive) -> list[GrantedRun]:
        """As `begin_receive`."""
        future: asyncio.Future[list[GrantedRun]] = self.loop.create_future()

        def answer(runs: list[GrantedRun] | Exception) -> None:
            if isinstance(runs, Exception):
                if not future.done():
                    future.set_exception(runs)
            elif future.done():
                self.give_back(wanted.group, runs)
            else:
                future.set_result(runs)

        call = self.begin_receive(wanted, answer)
        try:
            return await future
        except asyncio.CancelledError:
            if not call.cancel() and not future.cancelled() and future.exception() is None:
                self.give_back(wanted.group, future.result())
            raise

    def begin_receive(
        self,
        wanted: Receive,
        answer: Callable[[list[GrantedRun] | Exception], None],
        time_left_s: Callable[[], float] = _FOR_EVER,
    ) -> ReceiveCall:
        """Answers with messages that are leased to the caller for the invisible time, durably; none
        if there were none in time; an error as `Consensus.propose` has. A caller that can wait no
        longer than `time_left_s` is asked that when there is nothing. Raises TopicNotFound,
        PermissionDenied, SubscriptionMismatch.
        """
        self.check(wanted)
        group = self._receive_groups.of(wanted.group, wanted.topic)
        group.enter(wanted.member_id, wanted.spec, self._steady_ms(), self._expires_ms)
        call = ReceiveCall(self, group, wanted, answer, time_left_s)
        if wanted.attempt:
            former = self._attempt_calls.get((group, wanted.attempt))
            self._attempt_calls[group, wanted.attempt] = call
            if former is not None:
                former.supersede()
        try:
            call.look()
        except MqError:
            call.cancel()
            raise
        return call

    def exit(self, call: ReceiveCall) -> None:
        group, receive = call.receive_group, call.receive
        if receive.attempt and self._attempt_calls.get((group, receive.attempt)) is call:
            del self._attempt_calls[group, receive.attempt]
        group.exit(receive.member_id, self._steady_ms())

    def check(self, wanted: Receive) -> None:
        """Raises TopicNotFound, PermissionDenied, SubscriptionMismatch."""
        self._core.state.topics.readable(wanted.topic)
        live = self._groups.live(wanted.group)
        if live is not None and live.members:
            raise SubscriptionMismatch(
                f"group {wanted.group} has members that subscribe, {min(live.members)!r} for one: "
                f"member {wanted.member_id!r} cannot receive in it. Use another group, or stop the "
                "others first"
            )

    def granted(self, group: ReceiveGroup, runs: list[GrantedRun]) -> list[GrantedRun]:
        """The turn of a receive is over. Returns those of its runs that the group has now: it may
        have been moved while the entry was in flight.
        """
        if not group.is_begun and not group.missing:
            group.missing = self._missing(group)
            group.is_begun = not group.missing
        if len(runs) == 1 and (runs[0].queue, runs[0].lease) == self._applied:
            return runs
        return [one for one in runs if self._is_leased(group.group, one)]

    def _is_leased(self, group: str, granted: GrantedRun) -> bool:
        leases = self._core.state.leases.get(group, granted.queue)
        found = leases.at(granted.run.queue_offset) if leases else None
        if found is None or found.lease != granted.lease:
            return False
        self._applied = granted.queue, granted.lease
        return True

    def give_back(self, group: str, runs: list[GrantedRun]) -> None:
        """The receiver of these messages is gone: other receivers get them at once."""
        handles = [Handle(one.queue, one.lease, one.run.queue_offset, _end_of(one)) for one in runs]
        if handles:
            self._begin_task(self._quietly(self.submit(acks.Return(group, handles)), group))

    # -- one decision of a receive ----------------------------------------------------------------

    def decide_receive(self, turn: LeaseTurn, call: ReceiveCall) -> list[GrantedRun]:
        terms, receive = call.single_terms, call.receive
        if terms is None:
            return self.grant(turn, call.receive_group, receive)
        singles = self._singles.get(terms)
        if singles is None:
            # For all receives of the turn that have the same terms.
            count = self._single_calls[terms]
            together = receive._replace(messages_max=count, bytes_max=READ_BYTES_MAX)
            granted = self.grant(turn, call.receive_group, together if count > 1 else receive)
            singles = self._singles[terms] = deque(single_messages(granted))
        if not singles:
            return []
        single = singles.popleft()
        turn.hold_single(single.queue, single.run.queue_offset, receive.actor)
        return [single]

    def grant(self, turn: LeaseTurn, group: ReceiveGroup, receive: Receive) -> list[GrantedRun]:
        self._core.state.topics.readable(receive.topic)
        self._begin(turn, group, receive.start)
        queues = group.first_ready(_QUEUES_MAX)
        number = marked(self._core.random_number(), receive.lease_mark)
        if receive.attempt:
            former, taken_back = self._take_back_attempt(turn, group, receive.attempt)
            number = attempted(receive.attempt, former + 1 if former else number)
            if taken_back:
                queues = list(dict.fromkeys([*taken_back, *queues]))
        grant = Grant(
            receive,
            self._puller.unsent.share(min(receive.bytes_max, READ_BYTES_MAX)),
            self.retries_max(receive.group),
            number,
            turn,
            self._ahead.read,
        )
        for queue in queues:
            if not grant.has_room:
                break
            if turn.draft.get(receive.group, queue) is not None:
                self._look_at(group, queue, grant)
        turn.read_bytes += grant.size_bytes
        if receive.attempt and grant.runs:
            group.note_attempt(receive.attempt, list({one.queue: None for one in grant.runs}))
        return grant.runs

    def _take_back_attempt(
        self, turn: LeaseTurn, group: ReceiveGroup, attempt: int
    ) -> tuple[int, list[Queue]]:
        """Messages of the attempt's former lease are as if they had not been given out. Returns
        that lease, 0 if there is none, and their queues. Raises NextTurn: nothing changed then.
        """
        handles: list[Handle] = []
        for queue in group.attempt_queues(attempt, turn.draft):
            known = turn.draft.get(group.group, queue)
            handles += [
                Handle(queue, one.lease, one.start, one.end)
                for one in (known.ranges if known else ())
                if attempt_of(one.lease) == attempt
            ]
        if not handles:
            return 0, []
        acks.Return(group.group, handles).decide(turn)
        return handles[-1].lease, [one.queue for one in handles]

    def _look_at(self, group: ReceiveGroup, queue: Queue, grant: Grant) -> None:
        group.ready.pop(queue, None)
        memory = group.memory(queue, grant.leases(queue))
        decide = give_in_order if grant.receive.spec.is_ordered else give
        try:
            has_more = decide(grant, queue, memory, self._puller.end(queue))
        except (errors.MessagesDamaged, errors.Rebuilding, QueueDamaged) as error:
            group.set_aside(queue, is_mended=error.retryable)
            return
        except NotInMemory as error:
            self._begin_task(self._fetch(group, queue, error.query))
            return
        if memory.exhausted:
            group.exhausted_queues.add(queue)
        if has_more:
            group.ready[queue] = None
        group.sleep(memory, grant.now_ms)

    async def _fetch(self, group: ReceiveGroup, queue: Queue, query: Query) -> None:
        """Then the receives that wait are decided again."""
        # Whatever is wrong with it, the next decision finds it.
        with contextlib.suppress(MqError):
            await self._ahead.fetch(query)
        group.try_again(queue)

    def _take_back(self, turn: LeaseTurn) -> None:
        """Receives that did not fit into the turn have got messages with others: they come again,
        and so do these.
        """
        for (group, *_), singles in self._singles.items():
            for queue, _, attempt, _, run in singles:
                start, value = run.queue_offset, (0, turn.now_ms, attempt - 1)
                turn.draft.put(group.group, queue, start, start + 1, value)

    def _begin(self, turn: LeaseTurn, group: ReceiveGroup, start: Start) -> None:
        """The first receive of a topic fixes the group's position in all of its queues.

        Very many queues take several entries. The last queue comes first: a missing queue before
        others has not had its turn yet, one behind all others was added to the topic.
        """
        if group.is_begun:
            return
        if group.missing is None:
            group.missing = self._missing(group)
            group.last_known = self._last_known(group)
        positions = self._core.state.offsets.positions(group.group)
        while group.missing and not turn.is_full:
            queue = group.missing.pop()
            if turn.draft.get(group.group, queue) is None:
                is_added = 0 <= group.last_known < queue.queue_id
                begins_at = self._groups.start_offset(
                    queue, Start(is_earliest=True) if is_added else start
                )
                turn.draft.begin(group.group, queue, positions.get(queue, begins_at))

    def _missing(self, group: ReceiveGroup) -> list[Queue]:
        leases, name = self._core.state.leases, group.group
        return [queue for queue in group.queues if (name, queue) not in leases]

    def _last_known(self, group: ReceiveGroup) -> int:
        """The highest queue with a position or with leases; -1: there is none."""
        leases, name = self._core.state.leases, group.group
        positions = self._core.state.offsets.positions(name)
        begun = (one.queue_id for one in reversed(group.queues) if (name, one) in leases)
        placed = (one.queue_id for one in positions if one.topic == group.topic.name)
        return max(next(begun, -1), max(placed, default=-1))

    # -- handles ----------------------------------------------------------------------------------

    async def settle(self, request: acks.HandleRequest) -> acks.HandlesSettled:
        """Durable when this returns. Handles that are not valid change nothing."""
        if isinstance(request, acks.Nack) and self.makes_dead_letters(request):
            self._core.leadership.check()
            await self._core.catalog.ensure_internal(names.dead_letter_topic(request.group))
        return await self.submit(request)

    async def ack_atomically(
        self, group: str, shown: Sequence[consumer_pb2.Handle], atomic: AtomicBatches
    ) -> list[StoredAt]:
        """All handles or none, and the batches with them, as one entry. Returns the positions of
        the batches. Raises IllegalHandle, MessageTooLarge, and what `atomic` raises: nothing was
        written.
        """
        return await self.submit(acks.AtomicAck(group, parse_handles(shown), atomic))

    def makes_dead_letters(self, nack: acks.Nack) -> bool:
        """Whether some of the messages were given out so often that they become dead letters."""
        leases = self._core.state.leases
        for handle in nack.handles:
            known = leases.get(nack.group, handle.queue) if handle else None
            found = known.at(handle.start) if known and handle else None
            if found is not None and found.attempts > nack.retries_max:
                return True
        return False

    def leave(self, group: str, member_id: str) -> None:
        """The member stops receiving. Its leases last for their time."""
        self._receive_groups.leave(group, member_id)

    # -- questions --------------------------------------------------------------------------------

    def retries_max(self, group: str) -> int:
        own = self._core.state.offsets.retries_max(group)
        return self._core.settings.config.broker.retries_max if own is None else own

    def check_inactive(self, group: str) -> None:
        """Raises SubscriptionMismatch while a member receives in the group."""
        members = self.members(group)
        if members:
            raise SubscriptionMismatch(
                f"member {min(members)!r} receives in group {group}: no member can subscribe in it "
                "at the same time. Use another group, or stop the others first"
            )

    def members(self, group: str) -> dict[str, int]:
        """The members that receive in the group, each with the time since its last call."""
        return self._receive_groups.active_members(group, self._steady_ms())

    # -- deciding ---------------------------------------------------------------------------------

    def begin(
        self, request: LeaseRequest[Result], answer: Callable[[Result | Exception], None]
    ) -> None:
        """As `BatchedDecider.begin`."""
        self._decider.begin(request, cast("Callable[[object], None]", answer))

    async def submit(self, request: LeaseRequest[Result]) -> Result:
        return cast(Result, await self._decider.submit(request))

    def _decide(self, requests: list[LeaseRequest[object]]) -> TurnDecision[object]:
        config = self._core.settings.config
        turn = LeaseTurn(
            self._core.state,
            self._core.store,
            self._core.now_ms(),
            config.node.broker_set,
            config.store.entry_bytes_max,
            self._core.writer.attribution,
        )
        self._single_calls = Counter(
            one.single_terms
            for one in requests
            if isinstance(one, ReceiveCall) and one.single_terms and not one.is_over
        )
        self._singles = {}
        answers: list[object | MqError] = []
        for request in requests:
            if answers and turn.is_full:
                break
            try:
                answers.append(request.decide(turn))
            except NextTurn:
                break
            except MqError as error:
                answers.append(error)
            except Exception:
                # One mistake must not fail all calls of the turn.
                log.exception("a receive or acknowledgement failed")
                answers.append(Internal("a mistake of the broker's: its log has the details"))
        self._take_back(turn)

        def over(error: MqError | None) -> None:
            self._applied = None
            turn.over(error)

        return TurnDecision(answers, turn.entry(), over)

    def _begin_task(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _quietly(self, work: Coroutine[Any, Any, object], group: str) -> None:
        try:
            await work
        except MqError as error:
            # Nothing is lost: the next tick tries again, or another node leads.
            log.info("leases are not changed", group=group, error=str(error))

    # -- the service ------------------------------------------------------------------------------

    def step_down(self, error: MqError) -> None:
        self._receive_groups.dismiss(error)
        self.holders.forget()
        self._ahead.clear()

    def on_command(self, command: state_pb2.Command) -> None:
        if command.HasField("put_topic") or command.HasField("drop_topic"):
            self._ahead.clear()
        self._receive_groups.on_command(command, self._core.now_ms())

    def tick(self) -> None:
        now_ms, steady_ms = self._core.now_ms(), self._steady_ms()
        self._ahead.clear()
        self._receive_groups.pass_time(now_ms, steady_ms)
        if steady_ms - self._skipped_at_ms >= _SKIP_MS:
            self._skipped_at_ms = steady_ms
            if self._skipping is None or self._skipping.done():
                self._skipping = self._begin_task(self._skip_filtered([*self._receive_groups]))
        exhausted = [group for group in self._receive_groups if group.exhausted_queues]
        if exhausted and not self._is_dropping:
            self._is_dropping = True
            self._begin_task(self._drop_exhausted(exhausted))

    async def _skip_filtered(self, groups: list[ReceiveGroup]) -> None:
        """Messages that the filter left out are done, also while no other message comes."""
        for group in groups:
            skipped = await in_turns(self._skippable(group, [*group.memories]))
            if skipped:
                request = acks.SkipFiltered(group.group, dict(skipped))
                await self._quietly(self.submit(request), group.group)

    def _skippable(
        self, group: ReceiveGroup, queues: list[Queue]
    ) -> Iterator[tuple[Queue, tuple[int, int]]]:
        for queue in queues:
            memory = group.memories.get(queue)
            leases = self._core.state.leases.get(group.group, queue)
            if memory is not None and leases is not None and memory.passed > leases.next:
                yield queue, (leases.next, memory.passed)

    async def _drop_exhausted(self, exhausted: list[ReceiveGroup]) -> None:
        try:
            for group in exhausted:
                await self._quietly(self._drop_exhausted_of(group), group.group)
        finally:
            self._is_dropping = False

    async def _drop_exhausted_of(self, group: ReceiveGroup) -> None:
        name = group.group
        await self._core.catalog.ensure_internal(names.dead_letter_topic(name))
        queues = sorted(group.exhausted_queues)
        request = acks.DropExhausted(name, queues, self.retries_max(name))
        for queue in await self.submit(request):
            group.look_again(queue)
        group.wake()

    def _steady_ms(self) -> int:
        """Monotonic clock, for time-outs."""
        return int(self.loop.time() * 1000)


def _end_of(granted: GrantedRun) -> int:
    return granted.run.queue_offset + granted.run.message_count
