"""README.md as its tests read it: sections, blocks, and a shell that types what stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESS = "127.0.0.1:8081"
DEADLINE_S = 120


def section(heading: str) -> str:
    text = README.partition(f"\n{heading}\n")[2]
    assert text, heading
    return re.split(r"^#{2,3} ", text, maxsplit=1, flags=re.MULTILINE)[0]


_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def fenced_blocks(text: str) -> list[str]:
    return _FENCED.findall(text)


def indented_blocks(text: str) -> list[str]:
    return re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", _FENCED.sub("", text), re.MULTILINE)


def block(text: str, number: int = 0) -> str:
    """The lines of an indented block, as a shell gets them."""
    return re.sub(r"^ {4}", "", indented_blocks(text)[number], flags=re.MULTILINE).strip()


def environment(**variables: str) -> dict[str, str]:
    """With `mq` on the PATH, and no other configuration."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MQ_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**kept, "PATH": path, "COLUMNS": "140", **variables}


def shell(script: str, folder: Path, timeout_s: float = DEADLINE_S, **variables: str) -> str:
    """Every command of it has to succeed."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],  # noqa: S607
        cwd=folder,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout
