"""Runs seeds: `python -m tests.sim --seeds 2000`, or one again: `python -m tests.sim --seed 17`."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from os import cpu_count

from tests.sim.faults import run_seed
from tests.sim.ledger import Violation


def run_quietly(seed: int) -> tuple[int, str, dict[str, int]]:
    """The seed, what went wrong (empty: nothing), what happened."""
    logging.disable(logging.CRITICAL)
    try:
        world = run_seed(seed)
    except Violation as error:
        return seed, str(error), {}
    except Exception:  # noqa: BLE001 - whatever it is, the seed is the news
        return seed, traceback.format_exc(), {}
    return (
        seed,
        "",
        {
            "elections": len(world.ledger.leaders),
            "acknowledged": len(world.ledger.acknowledged),
            "starts": sum(node.starts for node in world.nodes.values()),
            "frames": world.network.frames_sent,
        },
    )


def run_seeds(first: int, count: int, *, shows_progress: bool = False) -> list[tuple[int, str]]:
    """The seeds that failed, with what went wrong. On all processors."""
    failed: list[tuple[int, str]] = []
    totals: dict[str, int] = {}
    start_s = time.monotonic()
    with ProcessPoolExecutor(cpu_count()) as pool:
        results = pool.map(run_quietly, range(first, first + count), chunksize=4)
        for done, (seed, error, facts) in enumerate(results, start=1):
            if error:
                failed.append((seed, error))
            for name, number in facts.items():
                totals[name] = totals.get(name, 0) + number
            if shows_progress and (done % 50 == 0 or done == count or error):
                text = ", ".join(f"{number:,} {name}" for name, number in totals.items())
                spent_s = time.monotonic() - start_s
                print(f"{done}/{count} seeds, {len(failed)} failed, {spent_s:.0f} s: {text}")
                if error:
                    print(f"seed {seed}: {error}\nreplay: {replay_command(seed)}")
    return failed


def replay_command(seed: int) -> str:
    return f"python -m tests.sim --seed {seed}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="only this one, with all that happened")
    arguments = parser.parse_args()
    if arguments.seed is None:
        sys.exit(bool(run_seeds(arguments.first, arguments.seeds, shows_progress=True)))
    world = run_seed(arguments.seed, shows_notes=True)
    print(f"seed {arguments.seed} holds: {world.state()}")


if __name__ == "__main__":
    main()
