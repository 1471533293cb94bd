"""Programs in Go that test our server: built once on a machine, from the module proxy."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

_BUILD_S_MAX = 600
_PLACE = Path(tempfile.gettempdir()) / f"mq-go-tools-{os.getuid()}"


def built(package: str, version: str) -> Path:
    """The program. Skips the test where there is no Go, or the module cannot be had."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("there is no Go on this machine")
    place = _PLACE / version
    program = place / package.rpartition("/")[2]
    place.mkdir(parents=True, exist_ok=True)
    with (_PLACE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            building = subprocess.run(
                [go, "install", f"{package}@{version}"],
                env={**os.environ, "GOBIN": str(place), "GOFLAGS": "-buildvcs=false"},
                capture_output=True,
                text=True,
                timeout=_BUILD_S_MAX,
                check=False,
            )
            if not program.exists():
                pytest.skip(f"{package} cannot be built: {building.stderr[-300:]}")
    return program
