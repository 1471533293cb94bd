"""Tests pass as a background job, too: what the shell ignores is not ignored by what they start."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

_SUITE = """
import os, signal, subprocess, sys
import tests.conftest
number = signal.Signals(int(sys.argv[1]))
os.kill(os.getpid(), number)
child = "import signal, sys; sys.exit(signal.getsignal(int(sys.argv[1])) is signal.SIG_IGN)"
sys.exit(subprocess.run([sys.executable, "-c", child, sys.argv[1]]).returncode)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_the_suite_ignores_has_its_default_in_programs_that_tests_start(
    number: signal.Signals,
) -> None:
    name = number.name.removeprefix("SIG")
    shell = ["/bin/sh", "-c", f"trap '' {name}; exec \"$@\"", "sh"]
    done = subprocess.run(
        [*shell, sys.executable, "-c", _SUITE, str(int(number))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # The suite was sent the signal, too, and went on.
    assert (done.returncode, done.stderr) == (0, "")
