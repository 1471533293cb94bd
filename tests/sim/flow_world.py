"""A broker set of three in one process, on virtual time, with a fault at any proposal.

Everything that a leader writes is a step. At each step the story may take one of the turns of
`Fault`; then another node leads, in a new term, with everything that was committed, and the one
that crashed comes back from its disk and follows. Clients call the leader as they would over the
network: a request to a node that dies gets no answer, and they do not know whether it was
done.
"""

from __future__ import annotations

import asyncio
import contextvars
import enum
import random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from mq.errors import FlowControl, MqError
from tests.sim.flow_log import Proposal, Seat
from tests.sim.flow_loop import VirtualLoop
from tests.sim.flow_member import Member, Options, Process

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from mq.broker.broker import Broker
    from mq.store.logreader import EntryRef

Result = TypeVar("Result")

NODES = 3
_ELECTION_S = 0.3
_RESTART_S = 1.5
_SLOW_S = 2.5
_STEPS_MAX = 4_000
# Nothing that a client asks for takes as long, whatever happens.
_PATIENCE_S = 900.0


class Violation(Exception):
    """A promise was broken."""


class Fault(enum.StrEnum):
    NONE = "none"
    # Nothing is written; the leader lives on.
    REFUSED = "refused"
    # The entry is written, and for seconds no follower gets it.
    SLOW = "slow"
    # The leader is killed: before the entry is written; when it is on its own disk alone and gets
    # lost; when the next leader has it, too; when it is committed and applied, but not answered.
    BEFORE = "before"
    LOST = "lost"
    KEPT = "kept"
    COMMITTED = "committed"
    # The leader lives on, but another one leads: its entry is lost, or kept.
    DEPOSED_LOST = "deposed-lost"
    DEPOSED_KEPT = "deposed-kept"
    # Its clock is set, when the entry is on its way.
    CLOCK_BACK = "clock-back"
    CLOCK_AHEAD = "clock-ahead"


FAULTS = (
    Fault.REFUSED,
    Fault.SLOW,
    Fault.BEFORE,
    Fault.LOST,
    Fault.KEPT,
    Fault.COMMITTED,
    Fault.DEPOSED_LOST,
    Fault.DEPOSED_KEPT,
)
_DEPOSING = (Fault.DEPOSED_LOST, Fault.DEPOSED_KEPT)
CLOCK_STEPS = (Fault.CLOCK_BACK, Fault.CLOCK_AHEAD)


class Chaos(NamedTuple):
    """Frequencies of the events of a random story."""

    at_a_step: float = 0.12
    between_s: float = 5.0
    clock_steps: bool = True


class World:
    def __init__(
        self,
        seed: int = 0,
        *,
        faults: Mapping[int, Fault] | None = None,
        chaos: Chaos | None = None,
        options: Options | None = None,
        clock_step_ms: int = 20_000,
    ) -> None:
        self.seed = seed
        self.rng = random.Random(f"flows {seed}")
        self.members = [
            Member(f"n{at}", seed * NODES + at, options or Options()) for at in range(NODES)
        ]
        self.majority = NODES // 2 + 1
        self.term = 0
        self.leader: Member | None = None
        self.steps = 0
        self.counts: dict[str, int] = {}
        self.notes: list[str] = []
        self._clock_step_ms = clock_step_ms
        self._faults = dict(faults or {})
        self._chaos = chaos
        self._is_armed = False
        self._slow_until_s = 0.0
        self._committed: dict[int, int] = {}
        # The clock of the leader that proposed an entry, by its raft index and term.
        self.proposed_at_ms: dict[tuple[int, int], int] = {}
        self._disturber: asyncio.Task[None] | None = None

    # -- life --------------------------------------------------------------------------------------

    def run(self, story: Callable[[World], Coroutine[Any, Any, None]]) -> None:
        """The whole story, in virtual time."""
        loop = VirtualLoop()

        async def whole() -> None:
            for member in self.members:
                member.start(lambda process: Seat(self, process))
            self._elect()
            await self.until_led()
            await story(self)
            self.disarm()
            await self.settled()

        loop.finish(whole())
        if loop.unhandled:
            raise Violation(f"nobody handled: {loop.unhandled[0]}")

    def arm(self) -> None:
        """From here on proposals are steps, and faults happen."""
        self._is_armed = True
        if self._chaos is not None:
            loop = asyncio.get_running_loop()
            self._disturber = loop.create_task(self._disturb(self._chaos))

    def disarm(self) -> None:
        self._is_armed = False
        if self._disturber is not None:
            self._disturber.cancel()
            self._disturber = None

    def note(self, what: str) -> None:
        self.notes.append(f"{asyncio.get_running_loop().time() - 1000:9.3f} {what}")

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    async def until_led(self) -> Process:
        """A leader that serves."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        while True:
            if loop.unhandled:
                raise Violation(f"nobody handled: {loop.unhandled[0]}")
            leader = self.leader
            if leader is not None and leader.running.broker.leadership.is_serving:
                return leader.running
            await asyncio.sleep(0.01)

    async def settled(self) -> None:
        """All are up, and have applied all."""
        while True:
            await self.until_led()
            processes = [one.process for one in self.members if one.process is not None]
            lasts = {one.log.last_index for one in processes}
            lasts |= {one.store.applied_index for one in processes}
            if len(processes) == NODES and len(lasts) == 1:
                return
            await asyncio.sleep(0.05)

    # -- steps -------------------------------------------------------------------------------------

    def written_by(self, seat: Seat, proposal: Proposal) -> None:
        """The leader writes an entry; what else happens, happens here."""
        fault = self._fault()
        process = seat.process
        if fault == Fault.REFUSED:
            seat.end(proposal, FlowControl("the simulation takes no entry now"))
        elif fault == Fault.BEFORE:
            self.crash(process.member)
        elif fault in (Fault.NONE, Fault.SLOW, *CLOCK_STEPS):
            self._append(seat, proposal)
            if fault == Fault.SLOW:
                self._slow_until_s = asyncio.get_running_loop().time() + _SLOW_S
            if fault in CLOCK_STEPS:
                self.step_clock(process.member, is_back=fault == Fault.CLOCK_BACK)
        else:
            self._append(seat, proposal)
            self._lose_leader(seat, fault)

    def _append(self, seat: Seat, proposal: Proposal) -> None:
        try:
            seat.append(proposal)
        except MqError:
            self.steps -= self._is_armed  # it comes again
            raise

    def _fault(self) -> Fault:
        if not self._is_armed:
            return Fault.NONE
        step, self.steps = self.steps, self.steps + 1
        if step > _STEPS_MAX:
            raise Violation(f"{step} entries, and no end of it")
        fault = self._faults.get(step, Fault.NONE)
        if self._chaos is not None and self.rng.random() < self._chaos.at_a_step:
            steps = CLOCK_STEPS if self._chaos.clock_steps else ()
            fault = self.rng.choice([*FAULTS, *steps])
        if fault != Fault.NONE:
            self.note(f"step {step}: {fault}")
            self.count(fault)
        return fault

    def _lose_leader(self, seat: Seat, fault: Fault) -> None:
        member = seat.process.member
        others = [one for one in self.members if one is not member and one.is_up]
        if fault == Fault.COMMITTED:
            for one in others:
                seat.copy_to(one)
            seat.advance(is_silent=True)
        elif fault in (Fault.KEPT, Fault.DEPOSED_KEPT) and others:
            seat.copy_to(self.rng.choice(others))
        if fault in _DEPOSING:
            self.depose(member)
        else:
            self.crash(member)

    def note_written(self, ref: EntryRef, proposal: Proposal) -> None:
        self.proposed_at_ms[ref.raft_index, ref.term] = proposal.now_ms

    def committed(self, raft_index: int, term: int) -> None:
        if self._committed.setdefault(raft_index, term) != term:
            raise Violation(f"the simulation lost entry {raft_index}, which was committed")

    def latency_s(self) -> float:
        slow_s = self._slow_until_s - asyncio.get_running_loop().time()
        return max(slow_s, 0.0) + self.rng.uniform(0.000_2, 0.003)

    # -- leadership --------------------------------------------------------------------------------

    def crash(self, member: Member, *, loses_power: bool = False) -> None:
        self.note(f"{member.name} {'loses power' if loses_power else 'is killed'}")
        if member is self.leader:
            self._lead_anew()
        member.kill(loses_power=loses_power)
        self._later(_RESTART_S, self._restart, member)

    def depose(self, member: Member) -> None:
        """It lives, and hears that it does not lead now."""
        self.note(f"{member.name} is deposed")
        self._lead_anew(without=member)
        process = member.running
        seat = process.consensus
        assert isinstance(seat, Seat)
        seat.leading_term = 0
        # Not in the middle of its own writing.
        process.life.run(asyncio.get_running_loop().call_soon, seat.step_down)

    def _lead_anew(self, without: Member | None = None) -> None:
        self.leader = None
        self._later(_ELECTION_S * self.rng.uniform(0.5, 1.5), self._elect, without)

    def _later(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None:
        """The world goes on, whichever process dies."""
        loop = asyncio.get_running_loop()
        loop.call_later(delay_s, action, *arguments, context=contextvars.Context())

    def _restart(self, member: Member) -> None:
        self.note(f"{member.name} is back")
        if self.rng.random() < 0.25:
            self.note(f"{member.name} has lost its derived files")
            member.lose_derived_files()
        member.start(lambda process: Seat(self, process))
        if self.leader is not None:
            self._seat(self.leader).forget_told(member.name)

    def _elect(self, without: Member | None = None) -> None:
        if self.leader is not None:
            return
        voters = [one for one in self.members if one.is_up and one is not without]
        if len(voters) < self.majority:
            self._later(_ELECTION_S, self._elect)
            return
        # A majority has no more than it: nothing that is committed can be missing.
        places = [_place(one) for one in voters]
        good = [
            one for one in voters if sum(place <= _place(one) for place in places) >= self.majority
        ]
        self.leader = self.rng.choice(good)
        self.term += 1
        self.note(f"{self.leader.name} leads in term {self.term}")
        process = self.leader.running
        process.life.run(self._seat(self.leader).lead, self.term)

    def _seat(self, member: Member) -> Seat:
        seat = member.running.consensus
        assert isinstance(seat, Seat)
        return seat

    def step_clock(self, member: Member, *, is_back: bool) -> None:
        member.skew_ms += -self._clock_step_ms if is_back else self._clock_step_ms
        self.note(f"the clock of {member.name} is off by {member.skew_ms} ms")

    async def _disturb(self, chaos: Chaos) -> None:
        """Events between steps."""
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / chaos.between_s))
            member = self.rng.choice(self.members)
            kinds = ["kill", "power", "depose", *(["clock"] if chaos.clock_steps else [])]
            kind = self.rng.choice(kinds)
            self.note(f"between steps: {kind}")
            if kind == "clock":
                self.step_clock(member, is_back=self.rng.random() < 0.5)
            elif kind == "depose" and self.leader is not None:
                self.depose(self.leader)
            elif kind in ("kill", "power") and sum(one.is_up for one in self.members) == NODES:
                self.crash(member, loses_power=kind == "power")
            self.count(f"{kind} in between")

    # -- clients -----------------------------------------------------------------------------------

    async def ask(self, question: Callable[[Broker], Awaitable[Result]]) -> Result:
        """One try at the present leader. MqError: its answer. ConnectionResetError: it died, and
        the outcome is unknown.
        """
        process = await self.until_led()
        return await self.ask_process(process, question)

    async def ask_process(
        self, process: Process, question: Callable[[Broker], Awaitable[Result]]
    ) -> Result:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = loop.create_future()
        process.open.add(answer)

        async def handle() -> None:
            try:
                result = await question(process.broker)
            except Exception as error:  # noqa: BLE001 - raised to the caller
                if not answer.done():
                    answer.set_exception(error)
            else:
                if not answer.done():
                    answer.set_result(result)

        task = process.life.run(lambda: loop.create_task(handle()))
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await answer
        except TimeoutError:
            raise Violation(f"{process.member.name} never answered {question}") from None
        finally:
            process.open.discard(answer)
            if not task.done() and not process.life.is_over:
                process.life.run(task.cancel)

    async def patiently(
        self, question: Callable[[Broker], Awaitable[Result]], pause_s: float = 0.1
    ) -> Result:
        """As clients do: again, until there is an answer. Only for what may be asked twice."""
        while True:
            try:
                return await self.ask(question)
            except ConnectionResetError:
                pass
            except MqError as error:
                if not error.retryable:
                    raise
            await asyncio.sleep(pause_s * self.rng.uniform(0.5, 1.5))


def _place(member: Member) -> tuple[int, int]:
    log = member.running.log
    return log.last_term, log.last_index
