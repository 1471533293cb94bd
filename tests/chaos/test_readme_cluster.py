"""The README's cluster in containers, typed as it stands there, on ports of its own."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tests.chaos.docker_engine import why_not
from tests.support.readme import ROOT, block, section, shell

# The image may have to be built first.
TIMEOUT_S = 600.0
NODES = ("A1", "A2", "A3", "B1", "B2", "B3")


def free_ports(count: int) -> list[int]:
    """All are held until the last is found, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


@pytest.mark.skipif(bool(why_not()), reason="no Docker engine answers")
def test_the_cluster_of_the_readme_loses_a_node_and_nothing_else(tmp_path: Path) -> None:
    names = [f"{kind}_{node}" for kind in ("PORT", "METRICS") for node in NODES]
    ports = dict(zip([*names, "PORT_CONSOLE"], map(str, free_ports(13)), strict=True))
    variables = {**ports, "COMPOSE_PROJECT_NAME": f"mq-readme-{os.getpid()}"}
    commands = block(section("## A cluster"))
    assert commands.startswith("make up ")
    assert "make down" in commands
    for written, port in (("18081", ports["PORT_A1"]), ("18084", ports["PORT_B1"])):
        assert f"127.0.0.1:{written}" in commands
        commands = commands.replace(f"127.0.0.1:{written}", f"127.0.0.1:{port}")
    commands = commands.replace("mq backup backup", f"mq backup {tmp_path}/backup")
    commands = commands.replace("mq backup verify backup", f"mq backup verify {tmp_path}/backup")
    try:
        printed = shell(commands, ROOT, TIMEOUT_S, **variables)
    finally:
        shell("make down VOLUMES=1", ROOT, TIMEOUT_S, **variables)
    assert "The cluster is up" in printed
    assert "\norder 7 is paid\n" in printed
