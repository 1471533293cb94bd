"""Next steps for a user, in words that can be pasted into the shell at hand."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from mq.config import CLIENT_VARIABLES, SERVER_VARIABLE, BrokerConfig


def program() -> str:
    """The command that starts this program from here: a virtual environment may not be on PATH."""
    if shutil.which("mq"):
        return "mq"
    found = Path(sys.executable).with_name("mq")
    if not found.exists():
        return "mq"
    near = os.path.relpath(found)
    return str(found) if near.startswith("..") else near


def security_variables(broker: BrokerConfig) -> dict[str, str]:
    """The variables by which clients of this broker speak TLS; empty if they need not."""
    if broker.tls != "required":
        return {}
    if broker.tls_ca:
        return {CLIENT_VARIABLES["ca"]: os.path.abspath(broker.tls_ca)}
    return {CLIENT_VARIABLES["tls"]: "yes"}


def first_steps(
    addresses: str,
    command: str,
    variables: Mapping[str, str] | None = None,
    console: str = "",
) -> str:
    """Next steps after starting brokers at these addresses, for clients with these variables, with
    a console at this URL.
    """
    defaults = BrokerConfig()
    lines = [f"Clients connect to {addresses}. In another terminal:"]
    if addresses != f"{defaults.host}:{defaults.port}":
        lines.append(f"  export {SERVER_VARIABLE}={addresses}")
    for name, value in (variables or {}).items():
        lines.append(f"  export {name}={shlex.quote(value)}")
    lines += [
        f"  {command} produce greetings hello",
        f"  {command} consume greetings --follow",
        f"  {command} cluster status",
        *([f"In a browser: {console}"] if console else []),
        "Ctrl-C here ends it.",
    ]
    return "\n".join(lines) + "\n"
