"""Short chaos runs, as `make chaos` and `make chaos-local` make long ones: nothing is lost, twice,
out of order, early, a phantom, or there again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.chaos import docker_engine, rocketmq
from tests.chaos.checker import WRONG

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
# Machines that are shared stand still for minutes.
TIMEOUT_S = 900.0
# Each has one fault of each kind that only this engine can make, or that is the worst of its kind.
IN_CONTAINERS = ("isolate_leader", "cut_to_leader", "fill_disk", "kill_set")
IN_PROCESSES = ("kill_both_leaders", "freeze_leader", "kill_everything", "rot_at_rest")


def run(
    tmp_path: Path, engine: str, minutes: float, only: Sequence[str], *flags: str
) -> dict[str, Any]:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.chaos", "--engine", engine, *flags),
            *("--minutes", str(minutes), "--report", str(tmp_path), "--only", *only),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-8_000:]}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def judge(found: dict[str, Any]) -> None:
    assert {name: found[name] for name in WRONG} == dict.fromkeys(WRONG, 0)
    assert found["acked"] > 300
    assert found["faults"] >= 1
    assert Path(found["report"]).read_text().startswith("<!doctype html>")


def test_every_promise_is_kept_while_processes_die_freeze_and_rot(tmp_path: Path) -> None:
    """With TLS and callers that are known; and with RocketMQ's client, where it can be built."""
    flags = ["--secure"] if rocketmq.why_not() else ["--secure", "--rocketmq"]
    judge(run(tmp_path, "local", 0.12, IN_PROCESSES, *flags))


@pytest.mark.skipif(bool(docker_engine.why_not()), reason="no Docker engine answers")
def test_every_promise_is_kept_while_containers_networks_and_disks_fail(tmp_path: Path) -> None:
    judge(run(tmp_path, "docker", 0.35, IN_CONTAINERS))
