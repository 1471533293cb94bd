"""The queues of a topic change while messages with ordering keys are under way: a key moves to its
new queue when its messages in the old one are answered, and not before.
"""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mq.client.producer.queues import Batch, BatchKind
from mq.hashing import text_hash
from tests.unit.client.producer.manual_accumulator import SIZE, ManualAccumulator, bodies, part

SETS = ["a", "b", "c"]


def routed(**queues: int) -> ManualAccumulator:
    manual = ManualAccumulator(batch_bytes=3 * SIZE)
    manual.free = manual.healthy = SETS
    route(manual, **queues)
    return manual


def route(manual: ManualAccumulator, **queues: int) -> None:
    manual.accumulator.set_route("t", [part(count, name) for name, count in queues.items()])


def key_of(broker_set: str, a: int, b: int) -> str:
    """A key of that set while they have so many queues."""
    wanted = range(a) if broker_set == "a" else range(a, a + b)
    return next(key for key in map(str, range(99)) if text_hash(key) % (a + b) in wanted)


def taken(manual: ManualAccumulator) -> dict[str, list[str]]:
    return {batch.broker_set: bodies(batch) for batch in manual.take_lingered()}


def test_a_key_waits_for_its_messages_in_a_set_that_is_gone_from_the_route() -> None:
    manual = routed(a=4, b=4)
    away, here = key_of("b", 4, 4), key_of("a", 4, 4)
    manual.add("1", away)
    [first] = manual.take_lingered()
    manual.accumulator.retry(first, manual.clock.now_s)  # its leader is away
    route(manual, a=4)
    manual.add("2", away)
    manual.add("x", here)
    [again, other] = manual.take_lingered()
    assert again is first
    assert (other.broker_set, bodies(other)) == ("a", ["x"]), "other keys do not wait"
    manual.done(other)
    assert manual.take_lingered() == []
    manual.done(first)
    [second] = manual.take_lingered()
    assert (second.broker_set, bodies(second)) == ("a", ["2"])
    manual.done(second)
    manual.add("3", away)
    assert taken(manual) == {"a": ["3"]}
    assert manual.accumulator.needs("a")


def test_new_queues_are_used_also_by_a_key_that_is_never_idle() -> None:
    manual = routed(a=1)
    manual.add("0", "k")
    [batch] = manual.take_lingered()
    route(manual, a=1, b=1)
    other_key = key_of("b", 1, 1)
    manual.add("1", other_key)  # it has nothing under way: it moves at once
    assert taken(manual) == {"b": ["1"]}
    places = []
    for number in range(1, 5):
        manual.add(str(number), "k")
        manual.done(batch)
        [batch] = [one for one in manual.take_lingered() if bodies(one) == [str(number)]]
        places.append(batch.broker_set)
    assert set(places) == {"a" if text_hash("k") % 2 == 0 else "b"}


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_queue_lets_its_keys_go_when_nothing_that_it_had_is_unanswered(is_stored: bool) -> None:
    manual = routed(a=1)
    manual.add("1", "k")
    [first] = manual.take_lingered()
    manual.add("2", "k", timeout_s=1.0)
    route(manual, b=1)
    manual.add("3", "k")
    [second] = [one for one in manual.accumulator.unsent() if bodies(one) == ["2"]]
    manual.done(second, is_stored=False)  # its time is over, while the first is in flight
    assert manual.take_lingered() == []
    manual.done(first, is_stored=is_stored)
    assert taken(manual) == {"b": ["3"]}


def test_a_refused_batch_takes_all_that_waits_behind_it_along() -> None:
    manual = routed(a=1)
    manual.add("1", "k")
    [first] = manual.take_lingered()
    manual.add("2", "k")
    route(manual, a=1, b=3)
    manual.add("3", "k")
    key = next(key for key in map(str, range(99)) if text_hash(key) % 4 == 0)
    manual.add("x", key)
    manual.accumulator.split(first)
    found: dict[int, list[str]] = {}
    while batches := manual.take_lingered():
        for batch in batches:
            found.setdefault(batch.queue_id + (batch.broker_set == "b"), []).extend(bodies(batch))
            manual.done(batch)
    at = text_hash("k") % 4
    assert found == {0: ["x"], at: ["1", "2", "3"]} if at else {0: ["1", "2", "3", "x"]}


class MovingKeys(RuleBasedStateMachine):
    """Messages of each key are in one queue at a time, and are taken in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.manual = routed(a=2, b=2)
        self.writable = {("a", 0), ("a", 1), ("b", 0), ("b", 1)}
        self.sent: defaultdict[str, int] = defaultdict(int)
        self.in_flight: list[Batch] = []
        self.answered: defaultdict[str, list[int]] = defaultdict(list)

    @rule(key=st.sampled_from("klmnop"), is_urgent=st.booleans())
    def add(self, key: str, is_urgent: bool) -> None:
        self.sent[key] += 1
        self.manual.add(f"{key}{self.sent[key]:04}", key, is_urgent=is_urgent)

    @rule(counts=st.tuples(*[st.integers(0, 3)] * 3).filter(any))
    def change_queues(self, counts: tuple[int, ...]) -> None:
        queues = {name: count for name, count in zip(SETS, counts, strict=True) if count}
        route(self.manual, **queues)
        self.writable = {(name, at) for name in queues for at in range(queues[name])}

    @rule()
    def take(self) -> None:
        self.in_flight += self.manual.take_lingered()

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        batch = self.in_flight.pop(data.draw(st.integers(0, len(self.in_flight) - 1)))
        if (batch.broker_set, batch.queue_id) not in self.writable and data.draw(st.booleans()):
            self.manual.accumulator.split(batch)
            return
        for body in bodies(batch):
            self.answered[body[0]].append(int(body[1:]))
        self.manual.done(batch)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        batch = self.in_flight.pop(data.draw(st.integers(0, len(self.in_flight) - 1)))
        self.manual.accumulator.retry(batch, self.manual.clock.now_s)

    @invariant()
    def keys_keep_their_order(self) -> None:
        for numbers in self.answered.values():
            assert numbers == sorted(numbers)
        under_way: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
        for batch in self.manual.accumulator.expedite():
            assert batch.kind is BatchKind.KEY
            for body in bodies(batch):
                under_way[body[0]].append((batch.broker_set, batch.queue_id))
        for places in under_way.values():
            assert len(set(places)) == 1

    def teardown(self) -> None:
        for _ in range(10_000):
            self.in_flight += self.manual.take_lingered()
            if not self.in_flight:
                break
            batch = self.in_flight.pop()
            for body in bodies(batch):
                self.answered[body[0]].append(int(body[1:]))
            self.manual.done(batch)
        for key, count in self.sent.items():
            assert self.answered[key] == list(range(1, count + 1))
        topic = self.manual.accumulator.topic("t")
        assert topic is not None
        assert (topic.leaving, topic.key_places, topic.unfinished) == ({}, {}, 0)
        assert self.manual.accumulator.is_empty


TestMovingKeys = MovingKeys.TestCase
TestMovingKeys.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
