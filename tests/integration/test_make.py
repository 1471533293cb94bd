"""`make run`, and `make` on machines that are not ready: what is wrong is said before anything is
installed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.support.raft_cluster import free_port
from tests.support.readme import ROOT, block, environment, section
from tests.support.waiting import poll

DEADLINE_S = 60

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


def make_run(folder: Path, python: str) -> str:
    """What a failing `make run` says, in a folder that has the Makefile alone."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    done = subprocess.run(
        ["make", "run", f"PYTHON={python}"],  # noqa: S607
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode != 0
    return done.stderr


def fake_python(folder: Path, script: str) -> str:
    path = folder / "fake-python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.skipif(not (ROOT / ".venv" / ".run").exists(), reason="not in the .venv of make")
def test_the_first_command_of_the_readme_starts_a_broker_with_a_console(tmp_path: Path) -> None:
    run, test = (
        one.partition("#")[0].strip() for one in block(section("## Two commands")).splitlines()
    )
    assert (run, test) == ("make run", "make test")
    console, log = free_port(), tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*run.split(), f"DATA={tmp_path / 'data'}", f"CONSOLE_PORT={console}"],
            cwd=ROOT,
            # The ports of the README may be taken here.
            env=environment(MQ_BROKER_PORT="0", MQ_METRICS_PORT="0"),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        is_up = re.compile(r"Console of 127.0.0.1:\d+")
        poll(lambda: process.poll() is not None or is_up.search(log.read_text()), "it is up")
        assert process.poll() is None, log.read_text()
        with urllib.request.urlopen(f"http://127.0.0.1:{console}/", timeout=DEADLINE_S) as page:
            assert page.status == 200
    finally:
        if process.poll() is None:
            # As Ctrl-C in a terminal.
            os.killpg(process.pid, signal.SIGINT)
            process.wait(DEADLINE_S)
    assert "node is down" in log.read_text()


def test_a_python_that_is_too_old_is_named_and_leaves_no_environment(tmp_path: Path) -> None:
    old = fake_python(tmp_path, '[ "$1" = --version ] && echo Python 3.10.12 && exit; exit 1')
    said = make_run(tmp_path, old)
    assert f"mq needs Python 3.11 or newer; {old} is Python 3.10.12." in said
    assert "make PYTHON=" in said
    assert not (tmp_path / ".venv").exists()


def test_an_environment_that_was_left_half_made_is_begun_again(tmp_path: Path) -> None:
    """As Debian leaves it where python3-venv is missing: with Python, and without pip."""
    half = 'case "$*" in *venv*) mkdir -p .venv/bin; echo no ensurepip >&2; exit 1; esac'
    python = fake_python(tmp_path, f'{half}\nexec {sys.executable} "$@"')
    for _ in range(2):
        assert "no ensurepip" in make_run(tmp_path, python)
