"""Runs the commands of one section of a page, as they stand there: `make demo-security`.

    python tools/run_page.py docs/SECURITY.md "Quick start"

Blocks of a section are indented by four spaces. They run in one shell, in a directory of their own,
with `mq` on the PATH and without other settings; a port that is taken is replaced by a free one.
Each command is printed before what it prints. A command whose comment begins with "refused" has to
fail, every other one has to succeed. Whatever was left running ends with the section.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PORT = 8081
TIMEOUT_S = 300
STOP_S = 20.0


def commands(page: str, heading: str) -> list[str]:
    """Those of the section, continued lines joined."""
    text = page.partition(f"\n## {heading}\n")[2]
    if not text:
        raise SystemExit(f"the page has no section {heading!r}")
    section = re.split(r"^## ", text, maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line[4:] for line in section.splitlines() if line.startswith("    ")]
    return "\n".join(lines).replace("\\\n", "").splitlines()


def script(lines: list[str]) -> str:
    """What a shell is given: each command shown, and its outcome checked."""
    parts = ["set -uo pipefail"]
    for line in lines:
        command, _, comment = line.partition("  # ")
        shown = shlex.quote(f"$ {re.sub(' +', ' ', command)}")
        parts.append(f"printf '\\n%s\\n' {shown}")
        if comment.strip().startswith("refused"):
            said = shlex.quote(f"not refused: {command}")
            parts.append(f"if {command}; then echo {said} >&2; exit 1; fi")
        elif command.rstrip().endswith("&"):
            parts.append(command)
        else:
            parts.append(
                f"{command} || {{ echo {shlex.quote(f'failed: {command}')} >&2; exit 1; }}"
            )
    return "\n".join(parts)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return probe.connect_ex(("127.0.0.1", port)) != 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("heading")
    arguments = parser.parse_args()
    lines = commands(arguments.page.read_text(encoding="utf-8"), arguments.heading)
    port = PORT if is_free(PORT) else free_port()
    text = script(lines).replace(str(PORT), str(port))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MQ_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept["PATH"]])
    with tempfile.TemporaryDirectory(prefix="mq-page-") as folder:
        environment = {**kept, "PATH": path, "XDG_CONFIG_HOME": folder, "COLUMNS": "100"}
        shell = subprocess.Popen(
            ["bash", "-c", text],  # noqa: S607 - the shell of this machine
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = shell.wait(TIMEOUT_S)
        finally:
            end(shell)
    sys.exit(code)


def end(shell: subprocess.Popen[bytes]) -> None:
    """Also what the section has left running."""
    deadline_s = time.monotonic() + STOP_S
    number = int(signal.SIGTERM)
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.killpg(shell.pid, number)
            shell.poll()
            time.sleep(0.1)
            number = int(signal.SIGKILL) if time.monotonic() > deadline_s else 0


if __name__ == "__main__":
    main()
