"""`python -m tests.power_loss --minutes 10`: `make power-loss`.

Progress goes to stderr. The last line on stdout is JSON; the exit code is 1 when a promise was
broken. A table of the cuts and the same JSON are below build/power-loss, as of the last leg; so are
the logs, ledgers and data of legs that went wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos import engine as questions
from tests.chaos import report
from tests.power_loss import disks
from tests.power_loss.engine import PoweredSet
from tests.power_loss.leg import Leg
from tests.power_loss.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable

# Nodes of a set, and how it flushes.
SHAPES = {
    "set": (3, "sync"),
    "alone": (1, "sync"),
    "set-async": (3, "async"),
    "alone-async": (1, "async"),
}
# The log of a leg is read completely in the end.
_LEG_S = {"set": 100.0, "alone": 60.0, "set-async": 60.0, "alone-async": 40.0}


def main() -> None:
    arguments = _arguments()
    reason = disks.why_not()
    if reason:
        sys.stderr.write(f"no disks that can lose power: {reason}\n")
        sys.exit(2)
    disks.in_mount_namespace()
    # Ends as Ctrl-C does: nothing is left running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # Clients say a lot while leaders die.
    logging.disable(logging.ERROR)
    began_s = time.monotonic()

    def tell(what: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began_s:7.1f} s  {what}\n")
        sys.stderr.flush()

    tell(f"seed {arguments.seed}")
    table = Table()
    legs, shapes = 0, arguments.only
    end_s = began_s + arguments.minutes * 60
    verdict = ""
    # Each kind at least once.
    while (left_s := end_s - time.monotonic()) > 0 or legs < len(shapes):
        shape = shapes[legs % len(shapes)]
        least_s = arguments.minutes * 60 / len(shapes) if legs < len(shapes) else 0
        _run_leg(shape, min(_LEG_S[shape], max(left_s, least_s)), arguments, legs, table, tell)
        legs += 1
        verdict = json.dumps(
            {
                **table.verdict(),
                "legs": legs,
                "seed": arguments.seed,
                "seconds": round(time.monotonic() - began_s, 1),
                "report": str(arguments.report),
            }
        )
        # After each leg: a long run may be broken off.
        _write(arguments.report, table, verdict)
    sys.stdout.write(verdict + "\n")
    sys.stdout.flush()
    # Clients of brokers that are gone would be waited for.
    os._exit(bool(table.broken_legs))


def _write(directory: Path, table: Table, verdict: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "table.md").write_text(table.markdown())
    (directory / "verdict.json").write_text(verdict + "\n")


def _run_leg(
    shape: str,
    seconds: float,
    arguments: argparse.Namespace,
    number: int,
    table: Table,
    tell: Callable[[str], None],
) -> None:
    count, flush = SHAPES[shape]
    seed = arguments.seed + number
    directory = Path(tempfile.mkdtemp(prefix="mq-power-loss-"))
    try:
        with PoweredSet(directory, count, flush) as engine:
            tell(f"leg {number}: {shape}, seed {seed}, cuts for {seconds:.0f} s")
            leg = Leg(engine, seed, arguments.pause_ms / 1000, tell, is_async=flush == "async")
            loop = asyncio.new_event_loop()
            try:
                loop.run_until_complete(leg.execute(seconds))
            except (KeyboardInterrupt, SystemExit):
                leg.calm_down()
                raise
            _judge_disks(engine, leg)
            table.add(shape, leg)
            if not leg.ledger.is_good():
                _keep(engine, leg, directory, arguments.report / f"{shape}-{seed}", tell)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _judge_disks(engine: PoweredSet, leg: Leg) -> None:
    try:
        leg.ledger.errors += engine.differences()
    except Exception as error:  # noqa: BLE001 - such as a node that does not stop
        leg.ledger.errors.append(f"the disks could not be compared: {error!r}")


def _keep(
    engine: PoweredSet, leg: Leg, directory: Path, kept: Path, tell: Callable[[str], None]
) -> None:
    shutil.rmtree(kept, ignore_errors=True)
    details = leg.ledger.details() or "nothing was acknowledged"
    report.write(kept, leg.ledger, leg.timeline, leg.ledger.verdict(), details)
    for node in questions.nodes_of(engine):
        shutil.copy(directory / f"{node}.log", kept)
        # Of a disk that is still cut nothing can be read.
        with contextlib.suppress(shutil.Error):
            shutil.copytree(directory / node, kept / node)
    tell(f"{details}\nlogs and data of the brokers are in {kept}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.power_loss")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument(
        "--pause-ms", type=float, default=15.0, help="mean time between two messages of a kind"
    )
    parser.add_argument(
        "--only", nargs="+", choices=SHAPES, default=list(SHAPES), help="kinds of legs  [all]"
    )
    parser.add_argument(
        "--report", type=Path, default=Path("build/power-loss"), metavar="DIRECTORY"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
