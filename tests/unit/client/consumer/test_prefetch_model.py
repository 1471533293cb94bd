"""Members of a group against a small model of the broker, in random orders of everything.

The model keeps what mq.broker promises: a queue is in the hand of one member, moves when that one
has released it, and starts where its progress was committed. What is on the wire takes its time,
and is lost with its stream.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field

import pytest

from mq.client.consumer.prefetch import PrefetchBuffer
from mq.client.consumer.prefetch_queue import InFlight
from mq.client.decode import Decoder, parse_subscribe_response
from mq.wire.v1.consumer_pb2 import SubscribeRequest
from tests.unit.client.consumer.deliveries import SET, assignment, delivery, response

MESSAGES, QUEUES, MEMBERS, CACHE = 40, 3, 3, 12


@dataclass
class Cursor:
    next_offset: int
    done: int
    epoch: int
    # What the member has of the queue from before it was given back.
    known_to: int = 0


class _NoSignal:
    def tell(self, *, is_urgent: bool) -> None:
        """The model sends reports at any time."""


def _buffer() -> PrefetchBuffer:
    buffer = PrefetchBuffer(Decoder(), cache_messages=CACHE, clock=lambda: 0.0)
    buffer.open_set(SET, _NoSignal())
    return buffer


@dataclass
class Member:
    """A consumer, and the broker's side of its stream."""

    name: int
    buffer: PrefetchBuffer = field(default_factory=_buffer)
    working: list[InFlight] = field(default_factory=list)
    is_new_stream: bool = True
    to_client: deque[bytes] = field(default_factory=deque)
    to_broker: deque[SubscribeRequest] = field(default_factory=deque)
    cursors: dict[int, Cursor] = field(default_factory=dict)
    leaving: dict[int, Cursor] = field(default_factory=dict)


class World:
    def __init__(self, seed: int, *, is_rough: bool) -> None:
        """A rough one has broken streams, and handlers that fail."""
        self.is_rough = is_rough
        self.dice = random.Random(seed)
        self.members = [Member(name) for name in range(MEMBERS)]
        self.holder: dict[int, int | None] = dict.fromkeys(range(QUEUES))
        self.committed = dict.fromkeys(range(QUEUES), 0)
        self.done: Counter[tuple[int, int]] = Counter()
        self.steps = [
            self.hand_out,
            self.revoke,
            self.deliver,
            self.deliver,
            self.receive,
            self.receive,
            self.take,
            self.finish,
            self.finish,
            self.report,
            self.hear,
            self.hear,
        ]
        if is_rough:
            self.steps.append(self.break_stream)
        for member in self.members:
            self.tell_assignment(member)

    # The broker

    def tell_assignment(self, member: Member) -> None:
        queues = [(queue, one.next_offset, one.epoch) for queue, one in member.cursors.items()]
        member.to_client.append(response(assignment(*queues)))

    def hand_out(self, member: Member) -> None:
        """A queue that nobody has, or that its holder was about to let go of."""
        for queue, holder in self.holder.items():
            if holder is None or (holder == member.name and queue in member.leaving):
                former = member.leaving.pop(queue, None)
                at = self.committed[queue]
                epoch, known_to = (former.epoch + 1, former.next_offset) if former else (0, 0)
                member.cursors[queue] = Cursor(at, at, epoch, known_to)
                self.holder[queue] = member.name
                self.tell_assignment(member)
                return

    def revoke(self, member: Member) -> None:
        """Also again before the member knows. Not before it can report what it has done: progress
        follows what was delivered.
        """
        queues = [queue for queue, one in member.cursors.items() if one.next_offset >= one.known_to]
        if queues and self.dice.random() < 0.3:
            queue = self.dice.choice(queues)
            member.leaving[queue] = member.cursors.pop(queue)
            self.tell_assignment(member)

    def deliver(self, member: Member) -> None:
        if not member.cursors:
            return
        queue = self.dice.choice(sorted(member.cursors))
        cursor = member.cursors[queue]
        room = CACHE - (cursor.next_offset - cursor.done)
        count = min(room, MESSAGES - cursor.next_offset, self.dice.randint(1, 5))
        if count > 0:
            end = cursor.next_offset + count
            # Every fifth message is one that the filter leaves out.
            wanted = [at for at in range(cursor.next_offset, end) if at % 5]
            sent = delivery(queue, wanted, next_offset=end, epoch=cursor.epoch)
            member.to_client.append(response(sent))
            cursor.next_offset = end

    def hear(self, member: Member) -> None:
        if not member.to_broker:
            return
        request = member.to_broker.popleft()
        for place in request.progress.positions:
            cursor = member.cursors.get(place.queue_id) or member.leaving.get(place.queue_id)
            if cursor is None or cursor.epoch != place.epoch:
                continue
            assert place.queue_offset <= cursor.next_offset
            if place.queue_offset > cursor.done:
                cursor.done = self.committed[place.queue_id] = place.queue_offset
                self.check_committed(place.queue_id)
        for released in request.released.queues:
            cursor = member.leaving.get(released.queue_id)
            if cursor is not None and cursor.epoch == released.epoch:
                del member.leaving[released.queue_id]
                self.holder[released.queue_id] = None

    def break_stream(self, member: Member) -> None:
        """What was on the wire is lost. The member comes back with what it has in hand."""
        if self.dice.random() < 0.7:
            return
        member.to_client.clear()
        member.to_broker.clear()
        member.is_new_stream = True
        claimed = {ref.queue_id: at for ref, at in member.buffer.positions(SET).items()}
        for queue in [*member.cursors, *member.leaving]:
            if queue not in claimed:
                self.holder[queue] = None
        member.cursors.clear()
        member.leaving.clear()
        for queue, at in claimed.items():
            cursor = Cursor(at, self.committed[queue], 0)
            if self.dice.random() < 0.5:
                member.cursors[queue] = cursor
            else:
                member.leaving[queue] = cursor
        self.tell_assignment(member)

    # The consumer

    def receive(self, member: Member) -> None:
        if member.to_client:
            parsed, runs = parse_subscribe_response(member.to_client.popleft())
            if parsed.HasField("assignment"):
                member.buffer.assign(parsed.assignment, SET, is_first=member.is_new_stream)
                member.is_new_stream = False
            else:
                member.buffer.deliver(parsed.delivery, runs, "set-0")
                cached = member.buffer.cached_messages.values()
                # A queue that came back may have some twice the limit, for a moment.
                assert all(count <= 2 * CACHE for count in cached)

    def take(self, member: Member) -> None:
        """Messages that were taken together are finished together, or each by itself; the last ones
        may be put back.
        """
        found = member.buffer.take(self.dice.randint(1, 6))
        if found and len(found[-1].messages) > 1 and self.dice.random() < 0.3:
            last = found.pop()
            kept = self.dice.randrange(1, len(last.messages))
            member.buffer.put_back(last.part(kept, len(last.messages)))
            found.append(last.part(0, kept))
        for taken in found:
            member.working.extend([taken] if self.dice.random() < 0.5 else taken.singles)

    def finish(self, member: Member) -> None:
        if member.working:
            at = self.dice.randrange(len(member.working))
            taken = member.working.pop(at)
            if self.is_rough and self.dice.random() < 0.1:
                for failed in [taken] if self.dice.random() < 0.5 else taken.singles:
                    member.buffer.retry(failed, 0.0)
                return
            member.buffer.done([taken])
            for message in taken.messages:
                self.done[message.queue_id, message.queue_offset] += 1

    def report(self, member: Member) -> None:
        if not member.is_new_stream:
            member.to_broker.extend(member.buffer.outgoing(SET))

    # What must hold

    def check_committed(self, queue: int) -> None:
        missing = [at for at in range(self.committed[queue]) if at % 5 and not self.done[queue, at]]
        assert missing == [], f"committed {self.committed[queue]} of queue {queue}"

    def is_finished(self) -> bool:
        return all(at == MESSAGES for at in self.committed.values())

    def run(self) -> None:
        for _ in range(4_000):
            if self.is_finished():
                break
            self.dice.choice(self.steps)(self.dice.choice(self.members))
        # Nothing is moved any more: what is left must come to its end.
        for _ in range(500):
            for step in (self.hand_out, self.deliver, self.receive, self.take, self.finish):
                for member in self.members:
                    step(member)
            for member in self.members:
                self.report(member)
                self.hear(member)
        assert self.is_finished(), self.committed
        wanted = {(queue, at) for queue in range(QUEUES) for at in range(MESSAGES) if at % 5}
        assert set(self.done) == wanted


@pytest.mark.parametrize("seed", range(25))
def test_members_that_come_and_go_lose_nothing_and_repeat_nothing(seed: int) -> None:
    world = World(seed, is_rough=False)
    world.run()
    assert set(world.done.values()) == {1}


@pytest.mark.parametrize("seed", range(25))
def test_broken_streams_and_failing_handlers_lose_nothing(seed: int) -> None:
    World(seed, is_rough=True).run()


def test_the_model_moves_queues_at_all() -> None:
    """Guards the tests above: a world in which nothing moves proves nothing."""
    world, given_back = World(1, is_rough=True), 0
    for _ in range(2_000):
        world.dice.choice(world.steps)(world.dice.choice(world.members))
        given_back += any(one.epoch for member in world.members for one in member.cursors.values())
    assert given_back > 10
    assert sum(world.done.values()) > 50
