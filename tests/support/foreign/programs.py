"""The programs of this folder, and others in Go: built once on a machine, outside of the tree.

Their toolchains fetch packages from the registries of their languages. A test is skipped where a
toolchain or its registry cannot be had; source that does not compile fails.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

LANGUAGES = ("go", "java", "node")

_BUILD_S_MAX = 600
_SOURCES = Path(__file__).parent
_CACHE = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
_PLACE = Path(_CACHE) / "mq-tests"
# In the tree, by whoever follows a README.
_INSTALLED = {".venv", "node_modules", "__pycache__"}
# Go's installer puts it there and leaves the PATH to the user.
_SEARCH_PATH = os.pathsep.join([os.environ["PATH"], "/usr/local/go/bin"])
# Starts in half the time, and tests are short.
_JAVA_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx512m")


def installed(package: str, version: str) -> Path:
    """A program in Go, from the module proxy."""
    go = _tool("go")
    key = f"{package.rpartition('/')[2]}-{version}"

    def build(place: Path) -> None:
        environment = {"GOBIN": str(place), "GOFLAGS": "-buildvcs=false"}
        _fetch([go, "install", f"{package}@{version}"], place, environment)

    return _built(key, build) / package.rpartition("/")[2]


def module(name: str, version: str) -> Path:
    """The files of a module in Go, from the module proxy: programs, and what lies beside them."""
    go = _tool("go")
    _PLACE.mkdir(parents=True, exist_ok=True)
    said = _fetch([go, "mod", "download", "-json", f"{name}@{version}"], _PLACE)
    return Path(json.loads(said)["Dir"])


def missing(language: str) -> str:
    """The first tool of this language that is not installed; empty: there are all."""
    absent = (tool for tool in _BUILDS[language][1] if _find(tool) is None)
    return next(absent, "")


def command(language: str, source: Path | None = None) -> list[str]:
    """The client in this language; arguments are the address and, for TLS, the file of the CA.

    Another program than that of this folder has its files in `source`, under the same names.
    """
    build, tools = _BUILDS[language]
    found = [_tool(tool) for tool in tools]
    place = _copied_and_built(source or _SOURCES / language, f"client-{language}", build)
    return {
        "go": [str(place / "client")],
        "java": [*found[:1], *_JAVA_FLAGS, "-cp", f"{place}:{place}/jars/*", "Client"],
        "node": [*found[:1], str(place / "client.js")],
        "python": [str(place / "venv" / "bin" / "python"), str(place / "client.py")],
    }[language]


def examples(language: str, source: Path, names: Sequence[str]) -> list[list[str]]:
    """Of a folder of programs, the commands of those with these names: in Go or Python."""
    if language == "python":
        place = _copied_and_built(source, "examples-python", _build_python)
        python = str(place / "venv" / "bin" / "python")
        return [[python, str(place / f"{name}.py")] for name in names]
    place = _copied_and_built(source, "examples-go", _build_go_folders)
    return [[str(place / "built" / name)] for name in names]


def _copied_and_built(source: Path, key: str, build: Callable[[Path], None]) -> Path:
    """The place of a copy: what is built outside of the tree does not litter it."""
    found = sorted(source.rglob("*"))
    files = [path for path in found if path.is_file() and not _INSTALLED & set(path.parts)]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]

    def copy_and_build(place: Path) -> None:
        ignored = shutil.ignore_patterns(*_INSTALLED)
        shutil.copytree(source, place, ignore=ignored, dirs_exist_ok=True)
        build(place)

    return _built(f"{key}-{digest}", copy_and_build)


def _build_go_folders(place: Path) -> None:
    _fetch([_tool("go"), "mod", "download"], place)
    _run([_tool("go"), "build", "-o", "built/", "./..."], place)


def _build_go(place: Path) -> None:
    _fetch([_tool("go"), "mod", "download"], place)
    _run([_tool("go"), "build", "-o", "client", "."], place)


def _build_java(place: Path) -> None:
    copy = ["dependency:copy-dependencies", "-DoutputDirectory=jars"]
    _fetch([_tool("mvn"), "--quiet", "--batch-mode", *copy], place)
    _run([_tool("javac"), "-Xlint:all", "-Werror", "-cp", "jars/*", "Client.java"], place)


def _build_node(place: Path) -> None:
    quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1"]
    _fetch([_tool("npm"), "ci", "--fetch-timeout=30000", *quiet], place)


def _build_python(place: Path) -> None:
    """In an environment of its own: its packages may want others of ours."""
    _run([sys.executable, "-m", "venv", "venv"], place)
    install = ["-m", "pip", "install", "--quiet", "--requirement", "requirements.txt"]
    _fetch([str(place / "venv" / "bin" / "python"), *install], place)


# How each is built, and the programs that it takes, first the one that runs it.
_BUILDS: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "go": (_build_go, ("go",)),
    "java": (_build_java, ("java", "javac", "mvn")),
    "node": (_build_node, ("node", "npm")),
    "python": (_build_python, ()),
}


def _find(tool: str) -> str | None:
    return shutil.which(tool, path=_SEARCH_PATH)


def _tool(name: str) -> str:
    found = _find(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def _built(key: str, build: Callable[[Path], None]) -> Path:
    """The folder that `build` has filled, now or in an earlier run."""
    _PLACE.mkdir(parents=True, exist_ok=True)
    place = _PLACE / key
    if place.exists():  # whole: it has its name since the end of its build
        return place
    with (_PLACE / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            with tempfile.TemporaryDirectory(dir=_PLACE) as folder:
                unfinished = Path(folder) / key
                unfinished.mkdir()
                build(unfinished)
                unfinished.rename(place)
    return place


def _fetch(arguments: Sequence[str], place: Path, environment: dict[str, str] | None = None) -> str:
    """What it says."""
    try:
        done = _completed(arguments, place, environment)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{arguments[0]} did not get its packages in {_BUILD_S_MAX} s")
    if done.returncode != 0:
        lines = done.stdout.strip().splitlines() or ["it says nothing"]
        reason = next((line for line in lines if "error" in line.lower()), lines[-1])
        pytest.skip(f"{arguments[0]} cannot get what it needs: {reason[:200]}")
    return done.stdout


def _run(arguments: Sequence[str], place: Path) -> None:
    done = _completed(arguments, place, None)
    assert done.returncode == 0, done.stdout


def _completed(
    arguments: Sequence[str], place: Path, environment: dict[str, str] | None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments,
        cwd=place,
        env={**os.environ, "PATH": _SEARCH_PATH, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_BUILD_S_MAX,
        check=False,
    )
