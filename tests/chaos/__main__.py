"""`python -m tests.chaos --minutes 5 --engine docker`: `make chaos`, and `make chaos-local`.

Progress goes to stderr. The last line on stdout is JSON; the exit code is 1 when a promise was
broken. The report is below build/chaos.
"""

from __future__ import annotations

import argparse
import asyncio
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
from typing import TYPE_CHECKING, Any

from tests.chaos import docker_engine, report, rocketmq
from tests.chaos import engine as questions
from tests.chaos.docker_engine import DockerEngine
from tests.chaos.local_engine import LocalEngine
from tests.chaos.run import Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.engine import Engine

_LOG_CHARACTERS = 1_000_000


def main() -> None:
    arguments = _arguments()
    # Ends as Ctrl-C does: nothing is left running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # Clients say a lot while leaders die.
    logging.disable(logging.ERROR)
    directory = Path(tempfile.mkdtemp(prefix="mq-chaos-"))
    began_s = time.monotonic()

    def tell(what: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began_s:7.1f} s  {what}\n")
        sys.stderr.flush()

    if arguments.rocketmq:
        reason = rocketmq.why_not()
        if reason:
            sys.exit(f"--rocketmq: {reason}. Install Go 1.24, see https://go.dev")
        tell(f"RocketMQ's client is {rocketmq.command()[0]}")
    engine = _engine(arguments, directory)
    tell(f"starting two broker sets of three, {engine.name}, seed {arguments.seed}")
    for what, why in engine.unable.items():
        tell(f"left out: faults of the {what}: {why}")
    page_directory = arguments.report / f"{engine.name}-{arguments.seed}"
    # Of a run before, with the same seed.
    shutil.rmtree(page_directory, ignore_errors=True)
    try:
        run = _run(engine, arguments, tell, page_directory)
    except (KeyboardInterrupt, SystemExit):
        shutil.rmtree(directory, ignore_errors=True)
        raise
    verdict = _verdict(run, arguments.seed, engine)
    verdict["seconds"] = round(time.monotonic() - began_s, 1)
    page = page_directory / "report.html"
    verdict["report"] = str(page)
    details = "" if run.ledger.is_good() else run.ledger.details() or "nothing was acknowledged"
    report.write(page_directory, run.ledger, run.timeline, verdict, details)
    if details:
        tell(f"{details}\nlogs of the brokers are in {page_directory}, data in {directory}")
    else:
        shutil.rmtree(directory, ignore_errors=True)
    sys.stdout.write(json.dumps(verdict) + "\n")
    sys.stdout.flush()
    os._exit(bool(details))


def _run(
    engine: Engine, arguments: argparse.Namespace, tell: Callable[[str], None], logs: Path
) -> Run:
    """Brokers are gone in the end; what they said is in `logs` when a promise was broken."""
    with engine:
        pause_s, only = arguments.pause_ms / 1000, arguments.only
        run = Run(engine, arguments.seed, pause_s, tell, only, has_rocketmq=arguments.rocketmq)
        tell("all brokers are up")
        # Not closed in the end: clients of brokers that do not answer would be waited for.
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(run.execute(arguments.minutes * 60))
        except (KeyboardInterrupt, SystemExit):
            run.calm_down()
            raise
        if not run.ledger.is_good():
            _keep_logs(engine, logs)
    return run


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--engine", choices=("docker", "local"), default="local")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument(
        "--pause-ms", type=float, default=15.0, help="mean time between two messages of a kind"
    )
    parser.add_argument(
        "--only", nargs="*", default=(), metavar="FAULT", help="such as kill_leader  [all]"
    )
    parser.add_argument("--secure", action="store_true", help="TLS, and callers that are known")
    parser.add_argument(
        "--rocketmq", action="store_true", help="RocketMQ's client for Go is at work, too"
    )
    parser.add_argument("--report", type=Path, default=Path("build/chaos"), metavar="DIRECTORY")
    return parser.parse_args()


def _engine(arguments: argparse.Namespace, directory: Path) -> Engine:
    if arguments.engine == "local":
        return LocalEngine(directory, is_secure=arguments.secure)
    reason = docker_engine.why_not()
    if reason:
        sys.stderr.write(f"no Docker engine: {reason}. `make chaos-local` needs none\n")
        sys.exit(2)
    return DockerEngine(directory, arguments.minutes, is_secure=arguments.secure)


def _verdict(run: Run, seed: int, engine: Engine) -> dict[str, Any]:
    return {
        **run.ledger.verdict(),
        "faults": len(run.timeline.faults),
        "failover_pause_s_median": run.timeline.pause_s_median(),
        "failover_pause_s_max": run.timeline.pause_s_max(),
        "engine": engine.name,
        "secure": bool(engine.access.ca),
        "seed": seed,
    }


def _keep_logs(engine: Engine, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for node in questions.nodes_of(engine):
        (directory / f"{node}.log").write_text(engine.logs(node)[-_LOG_CHARACTERS:])


if __name__ == "__main__":
    main()
