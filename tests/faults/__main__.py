"""`python -m tests.faults`: `make faults`. Faults of a machine, one after the other, each against
three new brokers under load; `--help` has the options.

Progress goes to stderr; stdout gets a table in Markdown, and a line of JSON at the end. The exit
code is 1 when a promise was broken. Results and logs are below build/faults.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos import engine as questions
from tests.faults import sandbox, table
from tests.faults.engine import NamespaceEngine, why_no_slow_disk
from tests.faults.faults import all_faults
from tests.faults.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.faults.faults import Fault
    from tests.faults.trial import Result

_LOG_CHARACTERS = 1_000_000


def main() -> None:
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if arguments.inside is None:
        sys.exit(_outside())
    sandbox.furnish()
    # Clients say a lot while leaders die.
    logging.disable(logging.ERROR)
    shutil.rmtree(arguments.report, ignore_errors=True)
    arguments.report.mkdir(parents=True)
    results = []
    for number, (fault, role) in enumerate(_chosen(arguments.only)):
        result = _try(arguments, fault, role, f"{number:02}-{fault.name}-{role}")
        results.append(result)
        documents = [one.document() for one in results]
        (arguments.report / "results.json").write_text(json.dumps(documents, indent=1))
    sys.stdout.write(table.markdown(results))
    broken = [f"{one.fault}/{one.role}" for one in results if one.details]
    sys.stdout.write(json.dumps({"faults": len(results), "broken": broken}) + "\n")
    sys.stdout.flush()
    os._exit(bool(broken))


def _outside() -> int:
    reason = sandbox.why_not()
    if reason:
        sys.stderr.write(f"this machine cannot do it: {reason}\n")
        return 2
    with tempfile.TemporaryDirectory(prefix="mq-faults-") as directory:
        return sandbox.run_inside([*sys.argv[1:], "--inside", directory])


def _arguments() -> argparse.Namespace:
    names = ", ".join(dict.fromkeys(one.name for one in all_faults()))
    parser = argparse.ArgumentParser(prog="python -m tests.faults", epilog=f"Faults: {names}.")
    parser.add_argument(
        "--seconds", type=float, default=8.0, help="before, during and after a fault, each  [8]"
    )
    parser.add_argument(
        "--only", nargs="*", default=(), metavar="FAULT", help="such as deaf or deaf/leader  [all]"
    )
    parser.add_argument("--report", type=Path, default=Path("build/faults"), metavar="DIRECTORY")
    # Set by itself: where the data of the brokers goes.
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def _chosen(only: Iterable[str]) -> list[tuple[Fault, str]]:
    found = [(fault, role) for fault in all_faults() for role in fault.roles]
    names = set(only)
    unknown = names - {one for fault, role in found for one in (fault.name, f"{fault.name}/{role}")}
    if unknown:
        sys.exit(f"no such fault: {', '.join(unknown)}; --help has their names")
    reason = why_no_slow_disk()
    if reason:
        sys.stderr.write(f"left out: faults of disks: {reason}\n")
    return [
        (fault, role)
        for fault, role in found
        if (not names or fault.name in names or f"{fault.name}/{role}" in names)
        and not (fault.has_slow_disk and reason)
    ]


def _try(arguments: argparse.Namespace, fault: Fault, role: str, name: str) -> Result:
    began_s = time.monotonic()

    def tell(what: str) -> None:
        sys.stderr.write(f"{name}: {time.monotonic() - began_s:5.1f} s  {what}\n")
        sys.stderr.flush()

    directory = arguments.inside / name
    directory.mkdir()
    engine = NamespaceEngine(
        directory,
        *fault.flags,
        has_slow_disk=fault.has_slow_disk,
        has_slow_network=fault.has_slow_network,
    )
    with engine:
        tell("all brokers are up")
        trial = Trial(engine, fault, role, tell)
        asyncio.run(trial.execute(arguments.seconds))
        for node in questions.nodes_of(engine):
            log = engine.all_logs(node)[-_LOG_CHARACTERS:]
            (arguments.report / f"{name}-{node}.log").write_text(log)
    shutil.rmtree(directory, ignore_errors=True)
    tell(table.line(trial.result))
    return trial.result


if __name__ == "__main__":
    main()
