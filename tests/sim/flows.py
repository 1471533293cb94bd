"""Flows with fail-over at every step, and random stories.

    python -m tests.sim.flows --seeds 200                  all flows, every step, and so many seeds
    python -m tests.sim.flows --flow delays --seed 17      one story again, with its notes
    python -m tests.sim.flows --flow delays --step 3 --fault kept

Each flow is a story of clients and a model of what they may see. It is told once without faults to
count its steps; then once more for each step and each kind of fault.
"""

from __future__ import annotations

import argparse
import functools
import logging
import multiprocessing
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from os import cpu_count
from typing import TYPE_CHECKING, NamedTuple

from tests.sim import (
    flow_access,
    flow_atoms,
    flow_delays,
    flow_deletions,
    flow_handles,
    flow_receives,
    flow_retention,
    flow_retries,
    flow_revocations,
    flow_transactions,
)
from tests.sim.flow_checks import check_replicas
from tests.sim.flow_member import Options
from tests.sim.flow_world import CLOCK_STEPS, FAULTS, Chaos, Fault, World

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from typing import Any


class Flow(NamedTuple):
    story: Callable[..., Coroutine[Any, Any, None]]
    options: Options = Options()
    faults: tuple[Fault, ...] = FAULTS
    chaos: Chaos = Chaos(clock_steps=False)


FLOWS = {
    "transactions": Flow(
        flow_transactions.story, flow_transactions.OPTIONS, (*FAULTS, *CLOCK_STEPS), Chaos()
    ),
    "delays": Flow(flow_delays.story, flow_delays.OPTIONS, (*FAULTS, *CLOCK_STEPS), Chaos()),
    "retries": Flow(flow_retries.story, flow_retries.OPTIONS),
    "receives": Flow(flow_receives.story, flow_receives.OPTIONS),
    "receives-in-order": Flow(flow_receives.story_in_order, flow_receives.OPTIONS),
    "deletions": Flow(
        flow_deletions.story, flow_deletions.OPTIONS, (*FAULTS, *CLOCK_STEPS), Chaos()
    ),
    "retention": Flow(flow_retention.story, flow_retention.OPTIONS),
    "atoms": Flow(flow_atoms.story, flow_atoms.OPTIONS),
    "access": Flow(flow_access.story, flow_access.OPTIONS, (*FAULTS, *CLOCK_STEPS), Chaos()),
    "atoms-of-handles": Flow(flow_handles.story, flow_handles.OPTIONS),
    "revocations": Flow(flow_revocations.story, flow_revocations.OPTIONS),
}


class Case(NamedTuple):
    """One story. `step` -1: none, and with a seed at random."""

    flow: str
    seed: int = 0
    step: int = -1
    fault: Fault = Fault.NONE
    is_random: bool = False

    @property
    def command(self) -> str:
        told = f"python -m tests.sim.flows --flow {self.flow} --seed {self.seed}"
        return told if self.is_random else f"{told} --step {self.step} --fault {self.fault}"


class Outcome(NamedTuple):
    case: Case
    error: str
    steps: int
    counts: dict[str, int]


def tell(case: Case) -> World:
    """Raises what went wrong."""
    flow = FLOWS[case.flow]
    world = World(
        case.seed,
        faults={case.step: case.fault},
        chaos=flow.chaos if case.is_random else None,
        options=flow.options,
    )

    # Random stories are longer, some of them.
    rounds = 1 + case.seed % 3 if case.is_random else 1
    drawn = f"{case.flow}, seed {case.seed}: {rounds} rounds"
    drawn += f", {flow.chaos}" if case.is_random else f", step {case.step}: {case.fault}"

    async def whole(world: World) -> None:
        await flow.story(world, rounds)
        world.disarm()
        await world.settled()
        check_replicas(world)

    try:
        world.run(whole)
    except BaseException as error:
        error.add_note("\n".join([drawn, *world.notes[-40:]]))
        raise
    world.notes.insert(0, drawn)
    return world


def outcome(case: Case) -> Outcome:
    try:
        world = tell(case)
    except Exception:  # noqa: BLE001 - whatever it is, the case is the news
        return Outcome(case, traceback.format_exc(), 0, {})
    return Outcome(case, "", world.steps, world.counts)


def every_step(name: str, seed: int = 0) -> list[Case]:
    steps = tell(Case(name, seed)).steps
    assert steps > 0
    return [Case(name, seed, step, fault) for step in range(steps) for fault in FLOWS[name].faults]


def random_stories(name: str, first: int, count: int) -> list[Case]:
    return [Case(name, seed, is_random=True) for seed in range(first, first + count)]


def be_quiet() -> None:
    logging.disable(logging.CRITICAL)


class Report(NamedTuple):
    failed: list[Outcome]
    counts: Counter[str]
    told: int

    def failures(self) -> str:
        return "\n".join(f"{one.error}\nreplay: {one.case.command}" for one in self.failed[:3])


def run_cases(cases: Iterable[Case], *, shows_progress: bool = False) -> Report:
    """On all processors."""
    failed: list[Outcome] = []
    counts: Counter[str] = Counter()
    told = 0
    for one in _pool().map(outcome, cases, chunksize=8):
        told += 1
        counts.update(one.counts)
        counts["steps"] += one.steps
        if one.error:
            failed.append(one)
            if shows_progress:
                _say(f"{one.error}\nreplay: {one.case.command}")
    return Report(failed, counts, told)


@functools.cache
def _pool() -> ProcessPoolExecutor:
    """For the life of this process. Not forked: other tests may have left gRPC's threads in it."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(cpu_count(), context, initializer=be_quiet)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.flows")
    parser.add_argument("--flow", choices=sorted(FLOWS), help="only this one")
    parser.add_argument("--seeds", type=int, default=50, help="random stories of each flow")
    parser.add_argument("--first", type=int, default=0, help="the first seed of them")
    parser.add_argument("--seed", type=int, help="only this story")
    parser.add_argument("--step", type=int, help="only this one, with --fault")
    parser.add_argument("--fault", type=Fault, choices=list(Fault), default=Fault.NONE)
    arguments = parser.parse_args()
    be_quiet()
    if arguments.flow and (arguments.seed is not None or arguments.step is not None):
        is_random = arguments.step is None
        case = Case(
            arguments.flow, arguments.seed or 0, arguments.step or 0, arguments.fault, is_random
        )
        world = tell(case)
        _say("\n".join(world.notes))
        _say(f"holds, {world.steps} steps, {world.term} terms")
        return
    is_bad = False
    for name in [arguments.flow] if arguments.flow else FLOWS:
        start_s = time.monotonic()
        cases = every_step(name) + random_stories(name, arguments.first, arguments.seeds)
        report = run_cases(cases, shows_progress=True)
        is_bad |= bool(report.failed)
        counts = ", ".join(f"{value} {what}" for what, value in sorted(report.counts.items()))
        spent_s = time.monotonic() - start_s
        _say(f"{name}: {report.told} stories, {len(report.failed)} failed, {spent_s:.0f} s")
        _say(f"    {counts}")
    sys.exit(is_bad)


if __name__ == "__main__":
    main()
