"""Transactions, delays, retries, receive and acknowledge, exactly-once processing, retention,
users and their keys: with fail-over at every step, checked by a model of each; and whole stories at
random.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from mq.broker.receive import acks
from mq.broker.security.audit import AuditTrail
from mq.broker.state.access import Access
from mq.broker.state.machine import ProposedEntry
from mq.broker.state.schedule import Schedule
from mq.broker.state.transactions import Transactions
from tests.sim.flow_checks import check_replicas
from tests.sim.flow_clients import Sender, make_topic
from tests.sim.flow_world import Fault, Violation, World
from tests.sim.flows import (
    FLOWS,
    Case,
    Report,
    every_step,
    outcome,
    random_stories,
    run_cases,
    tell,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mq.broker.receive.leases import Handle
    from mq.wire.v1.state_pb2 import ChangeTransactions, DeliverScheduled, LaneState

# Each step with each fault; of flows that are long every third or fifth of them, and the others in
# `make sim`. The number of faults is no multiple of these, so that each has its turn.
SHARES = Counter({"retention": 5, "retries": 3, "receives-in-order": 3})
SEEDS = 12


@pytest.fixture(scope="module", params=sorted(FLOWS))
def report(request: pytest.FixtureRequest) -> tuple[str, Report]:
    name = str(request.param)
    cases = every_step(name)[:: SHARES[name] or 1]
    return name, run_cases([*cases, *random_stories(name, 0, SEEDS)])


def test_the_model_holds_with_a_fault_at_every_step(report: tuple[str, Report]) -> None:
    _, found = report
    assert not found.failed, found.failures()


def test_every_kind_of_fault_happens(report: tuple[str, Report]) -> None:
    name, found = report
    rare = [fault for fault in FLOWS[name].faults if found.counts[fault] < 5]
    assert rare == [], found.counts


@pytest.mark.parametrize("name", sorted(FLOWS))
def test_a_seed_tells_the_same_story_again(name: str) -> None:
    case = Case(name, 3, is_random=True)
    assert tell(case).notes == tell(case).notes


def test_a_failure_names_the_command_that_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Schedule, "messages", 1 / 2)
    case = Case("delays", 7, 3, Fault.KEPT)
    found = Report([outcome(case)], Counter(), 1)
    command = "python -m tests.sim.flows --flow delays --seed 7 --step 3 --fault kept"
    assert f"replay: {command}" in found.failures()


# -- what is broken on purpose is noticed ----------------------------------------------------------


def is_noticed(flow: str, *faults: Fault) -> bool:
    """By a story without faults, or with one of these at some step."""
    cases = [Case(flow, 1)]
    cases += [Case(flow, 1, step, fault) for step in range(20) for fault in faults]
    return any("Violation" in outcome(case).error for case in cases)


def test_a_delivery_that_leaves_no_trace_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def deliver(self: Schedule, command: DeliverScheduled) -> list[int]:
        del self, command
        return []

    monkeypatch.setattr(Schedule, "deliver", deliver)
    assert is_noticed("delays")


def test_an_end_that_is_forgotten_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    change = Transactions.change

    def forgetful(self: Transactions, command: ChangeTransactions, *more: object) -> None:
        del command.committed[:]
        change(self, command, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(Transactions, "change", forgetful)
    assert is_noticed("transactions")


def test_a_handle_of_another_lease_that_is_good_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def anything(draft: object, group: str, handle: Handle) -> object:
        leases = draft.get(group, handle.queue)  # type: ignore[attr-defined]
        return leases.within(handle.start, handle.end) or None

    monkeypatch.setattr(acks, "held_ranges", anything)
    cases = [Case("receives", seed, is_random=True) for seed in range(30)]
    assert any("Violation" in outcome(case).error for case in cases)


def test_a_revocation_that_is_forgotten_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Access, "_drop_credential", lambda *_: None)
    cases = [Case("access", seed, is_random=True) for seed in range(5)]
    assert any("Violation" in outcome(case).error for case in cases)


def test_a_change_without_its_record_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AuditTrail, "entry", lambda _, command, *__: ProposedEntry((), command))
    assert "Violation" in outcome(Case("access", 1)).error


def test_a_diverging_replica_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """State that depends on the node that applies it, such as a leader's memory, is not the same on
    all.
    """
    encode = Schedule.encode

    def with_identity(self: Schedule) -> Iterator[LaneState]:
        for lane in encode(self):
            lane.messages += id(self)
            yield lane

    async def story(world: World) -> None:
        await make_topic(world, "t", 1)
        await Sender(world, "sender").send("t", "later", delay_ms=60_000)
        await world.settled()
        check_replicas(world)

    World().run(story)
    monkeypatch.setattr(Schedule, "encode", with_identity)
    with pytest.raises(Violation, match="differs from the others"):
        World().run(story)
