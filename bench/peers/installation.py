"""Where peers come from: their registries, by the tools that are configured on this machine (Maven,
Go, pip), into one directory that is kept between runs.

A piece that is there is not fetched again. A piece that cannot be had raises `Skipped` with the
reason: a benchmark beside nine systems is of use with eight.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

_FETCH_S = 1200.0
_STAMP = "installed.json"


class Skipped(Exception):
    """A peer that is not measured, and why."""


class GoProgram(NamedTuple):
    module: str
    version: str
    package: str


class Installation:
    def __init__(self, directory: Path, *, offline: bool) -> None:
        """`offline`: what is not in the directory yet is skipped."""
        self._directory = directory
        self._offline = offline

    def jars(self, name: str, *coordinates: str) -> Path:
        """The folder with these Maven artifacts (`group:artifact:version`) and all they need."""

        def fetch(target: Path) -> None:
            (target / "pom.xml").write_text(pom(coordinates))
            goal = ["dependency:copy-dependencies", "-DoutputDirectory=lib"]
            self._run([tool("mvn"), "--batch-mode", "--quiet", *goal], target)

        tool("java")
        return self._once(name, coordinates, fetch) / "lib"

    def go(self, name: str, program: GoProgram) -> Path:
        """The program, built in a module of its own: `go install` asks for a list of all versions,
        which not every proxy gives.
        """

        def build(target: Path) -> None:
            require = f"require {program.module} {program.version}\n"
            (target / "go.mod").write_text(f"module peer\n\ngo 1.24.0\n\n{require}")
            options = ["-mod=mod", "-o", str(target / name), program.package]
            self._run([tool("go"), "build", *options], target)

        return self._once(name, program, build) / name

    def python(self, name: str, *requirements: str) -> Path:
        """The interpreter of a virtual environment with these packages."""

        def create(target: Path) -> None:
            self._run([sys.executable, "-m", "venv", str(target / "venv")], target)
            pip = [str(target / "venv" / "bin" / "pip"), "install", "--quiet", *requirements]
            self._run(pip, target)

        return self._once(name, requirements, create) / "venv" / "bin" / "python"

    def _once(self, name: str, key: Sequence[str], fetch: Callable[[Path], None]) -> Path:
        """The folder of this name; fetched if it does not hold what `key` says."""
        target = self._directory / name
        stamp = target / _STAMP
        if stamp.exists() and json.loads(stamp.read_text()) == list(key):
            return target
        if self._offline:
            raise Skipped(f"{name} is not in {self._directory}, and --offline was given")
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        fetch(target)
        # The stamp comes last: a fetch that was interrupted is made again.
        stamp.write_text(json.dumps(key))
        return target

    def _run(self, command: list[str], directory: Path) -> None:
        what = " ".join([Path(command[0]).name, *command[1:3]])
        try:
            done = subprocess.run(
                command,
                cwd=directory,
                capture_output=True,
                text=True,
                check=False,
                timeout=_FETCH_S,
            )
        except subprocess.TimeoutExpired:
            raise Skipped(f"{what} took more than {_FETCH_S:.0f} s") from None
        if done.returncode != 0:
            raise Skipped(f"{what} failed: {reason(done.stdout + done.stderr)}")


def tool(*names: str) -> str:
    """The path of the first of these programs that is installed."""
    for name in names:
        if (found := shutil.which(name)) is not None:
            return found
    raise Skipped(f"{names[-1]} is not installed")


def reason(output: str) -> str:
    """The line of a failed program's output that says most: the first error, or the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b", line, re.IGNORECASE)]
    return (errors or lines[-1:] or ["no output"])[0][:200]


def pom(coordinates: Sequence[str]) -> str:
    """A Maven project that does nothing but depend on these artifacts."""
    dependencies = []
    for one in coordinates:
        group, artifact, version = one.split(":")
        dependencies.append(
            f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
            f"<version>{version}</version></dependency>"
        )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>bench</groupId><artifactId>peer</artifactId><version>1</version>"
        "<packaging>pom</packaging>\n"
        f"<dependencies>\n{chr(10).join(dependencies)}\n</dependencies></project>\n"
    )
