"""Whose entries are: said once a term and segment, again when an entry was lost, and for nothing on
the way of a message.
"""

from __future__ import annotations

from typing import Any

import pytest

from mq.broker.attribution import NOBODY, Actor, Attribution
from mq.broker.publishing import Publisher, Slot
from mq.broker.state.machine import ProposedEntry
from mq.broker.writing import EntryWriter
from mq.errors import MqError, NotLeader
from mq.store.batch import decode_payload
from mq.store.format import Kind
from mq.wire.v1.state_pb2 import Command
from tests.support.consensus import Node, batch, on_loop
from tests.unit.broker.tracing.log_scene import Log, positions
from tests.unit.broker.tracing.log_scene import batch as log_batch
from tests.unit.store.test_hot_path import lines_run

ALICE, BOB = Actor(user="alice", address="a:1"), Actor(user="bob")


class Place:
    """Where the log is."""

    def __init__(self) -> None:
        self.term = self.segment = 1
        self.attribution = Attribution(lambda: self.term, lambda: self.segment)

    def said(self) -> list[tuple[int, str, str]]:
        return [(one.number, one.user, one.producer_id) for one in self.attribution.take()]


def test_a_number_is_said_once_in_a_segment_and_holds_for_a_term() -> None:
    place = Place()
    numbers = place.attribution.number
    assert (numbers(ALICE), numbers(BOB), numbers(ALICE), numbers(NOBODY)) == (1, 2, 1, 0)
    assert place.said() == [(1, "alice", ""), (2, "bob", "")]
    assert (numbers(ALICE), place.said()) == (1, [])
    place.segment = 2
    assert (numbers(BOB), place.said()) == (2, [(2, "bob", "")])
    place.term = 2
    again = numbers(ALICE)
    assert again not in (1, 2)
    assert place.said() == [(again, "alice", "")]


def test_a_producer_is_said_once_and_again_when_it_is_another_one() -> None:
    place = Place()
    for actor in (ALICE, ALICE, BOB):
        place.attribution.producer("p", actor)
    assert [(user, id_) for _, user, id_ in place.said()] == [("alice", "p"), ("bob", "p")]
    place.segment = 2
    place.attribution.producer("p", BOB)
    assert [(user, id_) for _, user, id_ in place.said()] == [("bob", "p")]


def test_one_number_stands_for_all_and_none_for_nobody() -> None:
    place = Place()
    assert place.attribution.numbers([ALICE, ALICE]) == [1]
    assert place.attribution.numbers([ALICE, NOBODY]) == [1, 0]
    assert place.attribution.numbers([NOBODY, NOBODY]) == []


class Proposals:
    """Keeps what is proposed."""

    def __init__(self) -> None:
        self.found: list[tuple[Kind, bytes, Any]] = []

    def propose(self, kind: Kind, payload: Any, _entry: Any, done: Any) -> None:
        self.found.append((kind, b"".join(payload), done))

    def commands(self) -> list[Command]:
        return [
            Command.FromString(data if kind == Kind.COMMAND else _command(data))
            for kind, data, _ in self.found
        ]


def _command(payload: bytes) -> bytes:
    return decode_payload(memoryview(payload), 0).command


@pytest.mark.parametrize("error", [None, NotLeader(None, None)])
def test_what_a_lost_entry_said_is_said_again(error: MqError | None) -> None:
    place, proposals = Place(), Proposals()
    writer = EntryWriter(proposals, place.attribution)  # type: ignore[arg-type]
    writer.attribution.number(ALICE)
    writer.propose(ProposedEntry([log_batch("t", b"m")]), lambda _: None)
    proposals.found[0][2](error)
    writer.attribution.number(ALICE)
    writer.propose(ProposedEntry((), Command(**positions("g", 1))), lambda _: None)
    said = [[one.user for one in command.provenance.actors] for command in proposals.commands()]
    assert said == [["alice"], ["alice"] if error else []]


def test_an_entry_without_room_leaves_it_to_the_next_one() -> None:
    place, proposals = Place(), Proposals()
    large = log_batch("t", bytes(900))
    writer = EntryWriter(proposals, place.attribution, entry_bytes_max=1_000)  # type: ignore[arg-type]
    writer.attribution.number(ALICE)
    for one in (large, log_batch("t", b"m")):
        writer.propose(ProposedEntry([one]), lambda _: None)
    assert [len(one.provenance.actors) for one in proposals.commands()] == [0, 1]


@on_loop
async def test_a_command_that_only_says_whose_it_is_changes_nothing() -> None:
    node = Node()
    await node.topic("t")
    before = node.machine.state.encode()
    node.broker.writer.attribution.number(ALICE)
    await node.broker.writer.write(Command())
    assert node.machine.state.encode() == before


@on_loop
async def test_saying_whose_a_batch_is_does_not_depend_on_its_messages() -> None:
    """Nor does it cost a byte once it was said."""
    node = Node()
    await node.topic("t")
    publisher: Publisher = node.broker.publisher

    def slots(count: int) -> list[Slot]:
        one = batch("t", *[b"m"] * count, producer_id="p", sequence=1)
        slot = publisher.begin(one)
        slot.sender = ALICE
        return [slot]

    few, many = slots(1), slots(2_000)
    attributed = publisher._attributed
    assert attributed(few) == []
    assert len(node.broker.writer.attribution.take()) == 1
    assert lines_run(lambda: attributed(few)) == lines_run(lambda: attributed(many))
    assert node.broker.writer.attribution.take() == []


def test_what_a_leader_says_is_what_a_trace_reads() -> None:
    place, log = Place(), Log()
    member = Actor("carol", "c:1", "", "g", "m", (("t", "TAG x"),))
    by = place.attribution.numbers([member])
    log.term = place.term
    stored = log.add(log_batch("t", b"m"))
    actors = place.attribution.take()
    log.add(**positions("g", 1, actors=by), provenance={"actors": actors})
    event = log.life(stored).events[-1]
    assert (event.actor, event.filter) == (member, "TAG x")
