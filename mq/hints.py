"""Next steps for a user, in words that can be pasted into the shell at hand."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from mq.config import SERVER_VARIABLE, BrokerConfig


def program() -> str:
    """The command that starts this program from here: a virtual environment may not be on PATH."""
    if shutil.which("mq"):
        return "mq"
    found = Path(sys.executable).with_name("mq")
    if not found.exists():
        return "mq"
    near = os.path.relpath(found)
    return str(found) if near.startswith("..") else near


def first_steps(addresses: str, command: str) -> str:
    """Next steps after starting brokers at these addresses."""
    defaults = BrokerConfig()
    lines = [f"Clients connect to {addresses}. In another terminal:"]
    if addresses != f"{defaults.host}:{defaults.port}":
        lines.append(f"  export {SERVER_VARIABLE}={addresses}")
    lines += [
        f"  {command} produce greetings hello",
        f"  {command} consume greetings --follow",
        f"  {command} cluster status",
        "Ctrl-C here ends it.",
    ]
    return "\n".join(lines) + "\n"
