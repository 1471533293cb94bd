"""Receive and acknowledge against a plain model, message by message.

    acknowledged             never comes again
    in flight                no other consumer gets it before its time is over
    given back, or expired   comes again, with a higher attempt
    given out too often      one dead letter, and nothing more
    in order                 not before all of its key that stand before it are done

Answers get lost: then a client does not know what it was given, or whether it was done, and the
model allows both. In order, such a client repeats its receive as the same attempt.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from mq import names
from mq.broker.consumer.filters import compile_filter
from mq.broker.consumer.groups import Start
from mq.broker.queue import Queue
from mq.broker.receive.acks import Ack, ChangeInvisible, Nack
from mq.broker.receive.grants import Receive
from mq.broker.receive.leases import lease_bytes, parse_handles
from mq.broker.receive.members import ReceiveSpec
from mq.errors import MqError
from mq.wire.v1.consumer_pb2 import Filter, Handle
from tests.sim.flow_checks import visible
from tests.sim.flow_clients import Sender, eventually, make_topic
from tests.sim.flow_member import EPOCH_MS, Options
from tests.sim.flow_world import Violation

if TYPE_CHECKING:
    from mq.broker.broker import Broker
    from mq.broker.receive.acks import HandleRequest
    from mq.broker.receive.grants import GrantedRun
    from tests.sim.flow_world import World

_LIMIT = 4
OPTIONS = Options(broker={"retries_max": _LIMIT})
_GROUP, _TOPIC = "takers", "tasks"
_INVISIBLE_MS = 2_000
_QUEUES = 2


class Message(NamedTuple):
    queue: Queue
    queue_offset: int


class Grant:
    """A message in flight."""

    def __init__(self, message: Message, given: GrantedRun) -> None:
        self.message = message
        self.lease = given.lease
        self.attempt = given.attempt
        self.given_at_ms = given.visible_at_ms - _INVISIBLE_MS
        # No other consumer gets it before.
        self.until_ms = given.visible_at_ms

    def handle(self) -> Handle:
        lease = lease_bytes(self.message.queue, self.lease)
        return Handle(lease=lease, queue_offset=self.message.queue_offset, count=1)


class Model:
    def __init__(self, world: World, *, is_ordered: bool) -> None:
        self._world = world
        self.is_ordered = is_ordered
        self.grants: dict[Message, list[Grant]] = defaultdict(list)
        self.acked: set[Message] = set()
        # Acknowledged without an answer: the outcome is unknown.
        self.maybe_acked: set[Message] = set()

    def give(self, message: Message, given: GrantedRun) -> Grant:
        grant = Grant(message, given)
        if message in self.acked:
            raise Violation(f"{message} was acknowledged and comes again")
        for former in self.grants[message]:
            if former.attempt >= grant.attempt:
                raise Violation(f"{message}: attempt {grant.attempt} after {former.attempt}")
            if former.until_ms > grant.given_at_ms:
                early_ms = former.until_ms - grant.given_at_ms
                raise Violation(f"{message} was given to a second one {early_ms} ms too early")
        if grant.attempt > _LIMIT + 1:
            raise Violation(f"{message} is given out for the {grant.attempt}th time")
        if self.is_ordered:
            self._check_order(message)
        self.grants[message].append(grant)
        return grant

    def _check_order(self, message: Message) -> None:
        """By what is stored, wherever that can still be asked."""
        leader = self._world.leader
        if leader is None:
            return
        process = leader.running
        queue = [one for one in visible(process, _TOPIC) if one.queue_id == message.queue.queue_id]
        dead = {one.text for one in visible(process, names.dead_letter_topic(_GROUP))}
        keys = {one.queue_offset: one.message.ordering_key for one in queue}
        key = keys.get(message.queue_offset)
        for one in queue:
            place = Message(message.queue, one.queue_offset)
            is_before = one.queue_offset < message.queue_offset
            is_done = place in self.maybe_acked or one.text in dead
            if is_before and keys[one.queue_offset] == key and not is_done:
                raise Violation(f"{message} of {key} was given out before {one.queue_offset}")


class Taker:
    def __init__(self, world: World, model: Model, name: str) -> None:
        self._world = world
        self._model = model
        self._name = name
        # Of the receive that comes next, or is repeated.
        self._attempt = 0
        self.is_over = False
        # In the end everything is acknowledged.
        self.is_eager = False

    async def run(self) -> None:
        rng = self._world.rng
        while not self.is_over:
            grants = await self._receive()
            if not grants:
                continue
            await asyncio.sleep(rng.uniform(0, 0.5))
            rng.shuffle(grants)
            choice = "ack" if self.is_eager else rng.choice(("ack", "ack", "nack", "keep", "drop"))
            some = grants[: rng.randint(1, len(grants))]
            if choice == "ack":
                await self._ack(grants if self.is_eager else some)
            elif choice == "nack":
                await self._nack(some)
            elif choice == "keep":
                await self._keep(some)
                await self._ack(some)

    async def _receive(self) -> list[Grant]:
        rng = self._world.rng
        if self._model.is_ordered and not self._attempt:
            self._attempt = rng.getrandbits(56)
        wanted = Receive(
            _GROUP,
            _TOPIC,
            self._name,
            ReceiveSpec("", is_ordered=self._model.is_ordered),
            compile_filter(Filter()),
            rng.randint(1, 4),
            1 << 20,
            _INVISIBLE_MS,
            wait_s=rng.choice((0.0, 3.0)),
            start=Start(is_earliest=True),
            attempt=self._attempt,
        )
        try:
            # Some do not wait for the answer.
            async with asyncio.timeout(rng.choice((30.0, 30.0, 30.0, 0.002))):
                given = await self._world.ask(lambda broker: broker.receiving.receive(wanted))
        except (TimeoutError, ConnectionResetError):
            await asyncio.sleep(0.05)
            return []
        except MqError as error:
            if not error.retryable:
                raise
            await asyncio.sleep(0.1)
            return []
        if not given:
            await asyncio.sleep(0.05)
        elif self._attempt and rng.random() < 0.2:
            return []  # lost on its way: the broker does not know
        self._attempt = 0
        return [
            self._model.give(Message(one.queue, one.run.queue_offset + at), one)
            for one in given
            for at in range(one.run.message_count)
        ]

    async def _ack(self, grants: list[Grant]) -> None:
        messages = [one.message for one in grants]
        ack = Ack(_GROUP, parse_handles(one.handle() for one in grants))
        self._model.maybe_acked.update(messages)
        good = await self._say(ack)
        for grant, is_good in zip(grants, good, strict=True):
            if is_good:
                self._model.acked.add(grant.message)

    async def _nack(self, grants: list[Grant]) -> None:
        delay_ms = self._world.rng.choice((0, 300))
        now_ms = self._now_ms()
        # Whatever becomes of the answer, they may be given to others from here on.
        for one in grants:
            one.until_ms = min(one.until_ms, now_ms + delay_ms)
        handles = parse_handles(one.handle() for one in grants)
        await self._say(Nack(_GROUP, handles, delay_ms, _LIMIT, "no"))

    async def _keep(self, grants: list[Grant]) -> None:
        handles = parse_handles(one.handle() for one in grants)
        request = ChangeInvisible(_GROUP, handles, 2 * _INVISIBLE_MS)
        try:
            good, until_ms = await self._world.ask(lambda broker: broker.receiving.settle(request))
        except (MqError, ConnectionResetError):
            return
        for grant, is_good in zip(grants, good, strict=True):
            if is_good:
                self._hold(grant, until_ms)
        await asyncio.sleep(self._world.rng.uniform(0, 4))

    def _hold(self, grant: Grant, until_ms: int) -> None:
        if self._model.grants[grant.message][-1] is not grant:
            raise Violation(f"{grant.message} is in other hands, and a stale handle held it")
        grant.until_ms = until_ms

    async def _say(self, request: HandleRequest) -> list[bool]:
        settled = await self._world.patiently(lambda broker: broker.receiving.settle(request))
        return settled.valid

    def _now_ms(self) -> int:
        return EPOCH_MS + round(asyncio.get_running_loop().time() * 1000)


async def story(world: World, scale: int = 1, *, is_ordered: bool = False) -> None:
    count = 10 * scale
    await make_topic(world, _TOPIC, _QUEUES)
    model = Model(world, is_ordered=is_ordered)
    sender = Sender(world, "sender")
    takers = [Taker(world, model, f"taker-{at}") for at in range(3)]
    world.arm()
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(one.run()) for one in takers]
    for at in range(0, count, 2):
        await sender.send(_TOPIC, f"t{at}", f"t{at + 1}", queue_id=at // 2 % _QUEUES)
        await asyncio.sleep(world.rng.uniform(0, 1))
    await asyncio.sleep(5)
    for one in takers:
        one.is_eager = True

    def is_drained(broker: Broker) -> bool:
        for task in tasks:
            if task.done():
                task.result()
        found = broker.state.leases.items()
        leases = {queue: one for (group, queue), one in found if group == _GROUP}
        return len(leases) == _QUEUES and all(
            one.next == broker.groups.extent(queue)[1] and not one.ranges
            for queue, one in leases.items()
        )

    await eventually(world, "all is acknowledged or dead", is_drained)
    world.disarm()
    for one in takers:
        one.is_over = True
    await asyncio.gather(*tasks)
    await world.settled()
    _check(world, model)


async def story_in_order(world: World, scale: int = 1) -> None:
    await story(world, scale, is_ordered=True)


def _check(world: World, model: Model) -> None:
    assert world.leader is not None
    process = world.leader.running
    sent = {
        Message(Queue(_TOPIC, one.queue_id), one.queue_offset): one.text
        for one in visible(process, _TOPIC)
    }
    letters = Counter(one.text for one in visible(process, names.dead_letter_topic(_GROUP)))
    for message, text in sent.items():
        if letters[text] > 1 or (letters[text] and message in model.acked):
            raise Violation(
                f"{text}: {letters[text]} dead letters, acked: {message in model.acked}"
            )
        if not letters[text] and message not in model.maybe_acked:
            raise Violation(f"{text} is lost: nobody acknowledged it, and it is no dead letter")
    positions = process.machine.state.offsets.positions(_GROUP)
    ends = {Queue(_TOPIC, at): process.broker.groups.extent(Queue(_TOPIC, at))[1] for at in (0, 1)}
    if {queue: positions.get(queue) for queue in ends} != ends:
        raise Violation(f"the group stands at {positions}, not at {ends}")
