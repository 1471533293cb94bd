"""Runs seeds: `python -m tests.sim --seeds 2000`, or one again: `python -m tests.sim --seed 17`."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from os import cpu_count
from typing import NamedTuple

from tests.sim.faults import run_seed
from tests.sim.ledger import Violation


class Report(NamedTuple):
    failed: list[tuple[int, str]]  # seed, what went wrong
    counts: Counter[str]

    def failures(self) -> str:
        return "\n".join(
            f"seed {seed}: {error}\nreplay: {replay_command(seed)}" for seed, error in self.failed
        )


def run_quietly(seed: int) -> tuple[int, str, Counter[str]]:
    """The seed, what went wrong (empty: nothing), what happened."""
    try:
        world = run_seed(seed)
    except Violation as error:
        return seed, "\n".join([str(error), *getattr(error, "__notes__", ())]), Counter()
    except Exception:  # noqa: BLE001 - whatever it is, the seed is the news
        return seed, traceback.format_exc(), Counter()
    counts = Counter(
        {
            "elections": len(world.ledger.leaders),
            "acknowledged": len(world.ledger.acknowledged),
            "frames": world.network.frames_sent,
            "frames lost": world.network.frames_lost,
            "frames copied": world.network.frames_copied,
        }
    )
    return seed, "", counts + world.counts


def be_quiet() -> None:
    logging.disable(logging.CRITICAL)


def run_seeds(first: int, count: int, *, shows_progress: bool = False) -> Report:
    """On all processors."""
    report = Report([], Counter())
    start_s = time.monotonic()
    # Not forked: other tests may have left gRPC's threads in this process.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cpu_count(), context, initializer=be_quiet) as pool:
        results = pool.map(run_quietly, range(first, first + count), chunksize=4)
        for done, (seed, error, counts) in enumerate(results, start=1):
            report.counts.update(counts)
            if error:
                report.failed.append((seed, error))
            if shows_progress and (done % 50 == 0 or done == count or error):
                spent_s = time.monotonic() - start_s
                text = counts_text(report, "elections", "starts", "acknowledged")
                print(f"{done}/{count} seeds, {len(report.failed)} failed, {spent_s:.0f} s: {text}")
                if error:
                    print(f"seed {seed}: {error}\nreplay: {replay_command(seed)}")
    return report


def counts_text(report: Report, *names: str) -> str:
    return ", ".join(f"{report.counts[name]:,} {name}" for name in names or sorted(report.counts))


def replay_command(seed: int) -> str:
    return f"python -m tests.sim --seed {seed}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="only this one, with all that happened")
    arguments = parser.parse_args()
    if arguments.seed is None:
        report = run_seeds(arguments.first, arguments.seeds, shows_progress=True)
        print(counts_text(report))
        sys.exit(bool(report.failed))
    world = run_seed(arguments.seed, shows_notes=True)
    print(f"seed {arguments.seed} holds: {world.state()}")


if __name__ == "__main__":
    # By its own name: processes of the pool import what they run.
    from tests.sim import __main__ as module  # noqa: PLW0406

    module.main()
