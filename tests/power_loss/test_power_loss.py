"""A short `make power-loss`: all that was acknowledged before a cut is there, once, in order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.checker import WRONG
from tests.power_loss import disks

ROOT = Path(__file__).resolve().parents[2]
# Machines that are shared stand still for minutes.
TIMEOUT_S = 900.0


def test_a_set_that_loses_power_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    if reason := disks.why_not():
        pytest.skip(reason)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.power_loss", "--only", "set"),
            *("--minutes", "0.15", "--report", str(tmp_path)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-8_000:]}"
    found = json.loads(done.stdout.splitlines()[-1])
    assert {name: found[name] for name in WRONG} == dict.fromkeys(WRONG, 0)
    assert found["cuts"] >= 1
    assert found["acked"] > 100
    assert found["commits"] > 0
