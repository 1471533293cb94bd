"""A short run of `make faults`: a leader that is heard and hears no other node, in real namespaces.

It has to step down, since it cannot know what others have; the set goes on without it, and loses
and doubles nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults import sandbox

if TYPE_CHECKING:
    from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Machines that are shared stand still for minutes.
TIMEOUT_S = 350.0
WHY_NOT = sandbox.why_not()


@pytest.mark.skipif(bool(WHY_NOT), reason=f"no network namespaces: {WHY_NOT}")
def test_a_leader_that_hears_no_other_node_steps_down_and_the_set_goes_on(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.faults", "--only", "deaf-to-nodes/leader"),
            *("--seconds", "8", "--report", str(tmp_path / "report")),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-8_000:]}"
    results: list[dict[str, Any]] = json.loads((tmp_path / "report/results.json").read_text())
    (result,) = results
    assert result["elections"] > 0
    assert result["verdict"]["acked"] > 100
    for phase in ("before", "during", "after"):
        assert result["phases"][phase]["sends"] > 0, phase
