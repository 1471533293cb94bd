"""A short soak: everything at once, while leaders are killed. `make soak` is the long one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MINUTES = 0.2
# Machines that are shared stand still for minutes.
TIMEOUT_S = 600.0


def test_nothing_is_lost_doubled_early_or_a_phantom_while_leaders_are_killed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak", "--minutes", str(MINUTES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6_000:]}"
    found = json.loads(done.stdout.splitlines()[-1])
    wrong = {name: found[name] for name in ("lost", "duplicated", "early", "phantom")}
    assert wrong == dict.fromkeys(wrong, 0)
    assert found["acked"] > 300
    assert found["kills"] >= 1
