"""`mq spark ...` in a process of its own, with the JVM and the workers that belong to it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

# Generous: a machine that is shared stands still now and then.
DEADLINE_S = 240
_QUICK = (
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory=1g",
    "spark.sql.shuffle.partitions=2",
    "spark.ui.enabled=false",
)


class SparkCommand:
    def __init__(self, directory: Path, *arguments: str) -> None:
        """Its output goes to files there."""
        conf = [part for each in _QUICK for part in ("--conf", each)]
        self._errors = directory / "stderr"
        with (directory / "stdout").open("w") as out, self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mq", "spark", *arguments, "--master", "local[2]", *conf],
                stdout=out,
                stderr=errors,
                start_new_session=True,
            )
        self._out = directory / "stdout"

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def result(self) -> str:
        """The output; it has to end well."""
        code = self._process.wait(DEADLINE_S)
        assert code == 0, self.errors
        return self._out.read_text()

    def kill(self) -> None:
        """SIGKILL for it and Java. Spark's workers end when Java is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(DEADLINE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
