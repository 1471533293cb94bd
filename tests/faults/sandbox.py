"""A room of its own for everything that a run starts: processes, mounts, network namespaces.

The run is started again as the first process of new namespaces (PID, mount, network). When it ends,
in whatever way, the kernel kills its processes and takes back its mounts, interfaces and rules:
nothing of it is ever seen outside.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_TOOLS = ("ip", "iptables", "nsenter", "unshare")
_UNSHARE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_PROBE = "mount -t tmpfs tmpfs /run && ip netns add probe && iptables -w -L INPUT"
_COMMAND_S = 60.0


def why_not() -> str:
    """The reason why there can be none here; empty if there can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} missing (Debian: iproute2, iptables, util-linux)"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    done = subprocess.run(
        [*_UNSHARE, "sh", "-c", _PROBE],
        capture_output=True,
        text=True,
        check=False,
        timeout=_COMMAND_S,
    )
    return f"no namespaces: {done.stderr.strip()}" if done.returncode else ""


def run_inside(arguments: Sequence[str]) -> int:
    """`python -m tests.faults` with these arguments, in a sandbox; its exit code."""
    command = [*_UNSHARE, sys.executable, "-m", "tests.faults", *arguments]
    with subprocess.Popen(command) as process:
        try:
            return process.wait()
        finally:
            # Its death is that of everything inside.
            process.kill()


def furnish() -> None:
    """Inside, once: names of namespaces, and the lock of iptables, are of this sandbox alone."""
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    run("ip", "link", "set", "lo", "up")


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_COMMAND_S)
    if done.returncode != 0:
        raise RuntimeError(f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr}")
    return done.stdout
