"""The quick start of docs/SECURITY.md works as it is written: `make demo-security`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 240


def test_the_quick_start_works_as_written() -> None:
    done = subprocess.run(
        [sys.executable, "tools/run_page.py", "docs/SECURITY.md", "Quick start"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # What the sentences between the commands promise.
    said = done.stdout + done.stderr
    assert said.count("error: PERMISSION_DENIED") == 3
    assert "denied: no line allows billing to publish topic orders" in said
    assert "error: UNAUTHENTICATED" in said
    assert "drop_credential" in said or "drop credential" in said
