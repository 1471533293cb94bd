"""Transactions against a model: each ends once, and what became of it is what was said.

committed    on its topic once, with everything that came with it
rolled back  never seen
given up     kept in the give-up topic once, and never seen on its own
"""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from typing import TYPE_CHECKING

from mq.broker.transaction.questions import Question, Respondent
from mq.errors import MqError, TransactionNotFound
from mq.names import GIVE_UP_TOPIC
from mq.wire.v1.message_pb2 import Batch as WireBatch
from mq.wire.v1.message_pb2 import Half
from tests.sim.flow_checks import Seen, visible
from tests.sim.flow_clients import Sender, eventually, make_topic, tag_of
from tests.sim.flow_member import Options
from tests.sim.flow_world import Violation

if TYPE_CHECKING:
    from mq.broker.broker import Broker
    from tests.sim.flow_world import World

OPTIONS = Options(
    transactions={"first_check_ms": 400, "check_interval_ms": 700, "checks_max": 3},
)
_GROUP = "makers"
_TOPIC = "orders"


class Plan(enum.Enum):
    """The acts of its producer, and its answer to a check."""

    COMMIT = "commit"
    ROLL_BACK = "roll back"
    # It says nothing at first, or ever.
    COMMIT_LATER = "commit when asked"
    ROLL_BACK_LATER = "roll back when asked"
    NEVER = "never"

    @property
    def commits(self) -> bool:
        return self in (Plan.COMMIT, Plan.COMMIT_LATER)


class Transactions:
    """The producers of one group, and what they know of their transactions."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._plans: dict[str, Plan] = {}
        # The broker's answer to an end: whether it is committed.
        self.told: dict[str, bool] = {}
        # Whose end it refused: they must have ended otherwise.
        self.refused: set[str] = set()
        self._listeners: list[asyncio.Task[None]] = []

    async def run_one(self, sender: Sender, text: str, plan: Plan) -> None:
        self._plans[text] = plan
        half = Half(producer_group=_GROUP)
        stored = await sender.send(_TOPIC, text, f"{text}'", queue_id=len(text) % 2, half=half)
        if plan in (Plan.COMMIT, Plan.ROLL_BACK):
            # Now and then twice at once, as when an answer is late.
            ends = [
                self._end(stored.log_offset, text, commits=plan.commits)
                for _ in range(self._world.rng.choice((1, 2)))
            ]
            await asyncio.gather(*ends)

    async def _end(self, transaction_id: int, text: str, *, commits: bool) -> None:
        try:
            await self._world.patiently(
                lambda broker: broker.transacting.end(
                    transaction_id, commits=commits, producer_group=_GROUP
                )
            )
        except TransactionNotFound:
            self.refused.add(text)
        else:
            if self.told.get(text, commits) != commits:
                raise Violation(f"{text} was ended twice, as committed and rolled back")
            self.told[text] = commits

    # -- questions ---------------------------------------------------------------------------------

    def listen(self) -> None:
        """A producer with a stream, which is opened again whenever it breaks."""
        loop = asyncio.get_running_loop()
        self._listeners.append(loop.create_task(self._answer()))

    async def _answer(self) -> None:
        while True:
            process = await self._world.until_led()
            stream = process.life.run(lambda: Respondent(_GROUP, "listener", answers_checks=True))

            async def join(broker: Broker, stream: Respondent = stream) -> None:
                broker.transacting.join(stream)

            async def next_question(_: Broker, stream: Respondent = stream) -> Question:
                return await stream.next()

            try:
                await self._world.ask_process(process, join)
                while True:
                    question = await self._world.ask_process(process, next_question)
                    await self._judge(question)
            except (MqError, ConnectionResetError):
                await asyncio.sleep(0.3)

    async def _judge(self, question: Question) -> None:
        messages = WireBatch.FromString(bytes(question.batch.data)).messages
        text = messages[0].body.decode()
        plan = self._plans[text]
        if plan is not Plan.NEVER:
            await self._end(question.transaction.id, text, commits=plan.commits)

    def close(self) -> None:
        for one in self._listeners:
            one.cancel()

    # -- the end -----------------------------------------------------------------------------------

    def check(self) -> None:
        leader = self._world.leader
        assert leader is not None
        process = leader.running
        on_topic = visible(process, _TOPIC)
        given_up = visible(process, GIVE_UP_TOPIC)
        seen, kept = Counter(_bare(on_topic)), Counter(_bare(given_up))
        for text, plan in self._plans.items():
            self._check_one(text, plan, seen[text], kept[text])
        totals = process.machine.state.transactions
        found = totals.committed, totals.rolled_back, totals.given_up
        expected = len(seen), len(self._plans) - len(seen) - len(kept), len(kept)
        if found != expected:
            raise Violation(f"counted {found}, there are {expected}")
        for one in (*on_topic, *given_up):
            _check_whole(one)

    def _check_one(self, text: str, plan: Plan, seen: int, kept: int) -> None:
        told = self.told.get(text)
        if (seen, kept) not in {(2, 0), (0, 2), (0, 0)}:
            raise Violation(f"{text} is {seen} times on its topic and {kept} times given up")
        if told is not None and bool(seen) != told:
            raise Violation(f"{text}: told commit={told}, and it is {seen} times on its topic")
        if seen and not plan.commits:
            raise Violation(f"{text} was never committed, and is on its topic")
        if not seen and not kept and plan in (Plan.COMMIT, Plan.COMMIT_LATER, Plan.NEVER):
            raise Violation(f"{text} is gone")
        if text in self.refused and not kept:
            raise Violation(f"{text} ended as it was wanted to, and that was refused")
        if kept and told:
            raise Violation(f"{text} is given up, and was told to be committed")


def _bare(found: list[Seen]) -> list[str]:
    return [one.text.rstrip("'") for one in found]


def _check_whole(one: Seen) -> None:
    message, text = one.message, one.text
    if (
        message.tag != tag_of(text)
        or list(message.keys) != [text]
        or message.properties != {"is": text}
    ):
        raise Violation(f"{text} lost something of itself: {message}")


async def story(world: World, scale: int = 1) -> None:
    count = 6 * scale
    await make_topic(world, _TOPIC, 2)
    transactions = Transactions(world)
    senders = [Sender(world, f"maker-{at}") for at in range(2)]
    plans = list(Plan)
    world.arm()
    transactions.listen()

    async def produce(at: int) -> None:
        for number in range(at, count, len(senders)):
            plan = plans[number % len(plans)]
            await transactions.run_one(senders[at], f"{plan.name}-{number}", plan)

    await asyncio.gather(*(produce(at) for at in range(len(senders))))
    await eventually(world, "all end", lambda broker: not broker.state.transactions.open)
    world.disarm()
    await world.settled()
    transactions.close()
    transactions.check()
