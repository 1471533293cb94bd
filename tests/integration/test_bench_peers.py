"""bench.peers as a process, with a Redis that is a few lines of Python."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import poll

SERVER = """
import os, pathlib, socket, sys
if sys.argv[1] == "--version":
    sys.exit(print("Redis server v=7.0.15") or 0)
words = pathlib.Path(sys.argv[1]).read_text().split()
listener = socket.create_server(("127.0.0.1", int(words[words.index("port") + 1])))
(pathlib.Path(__file__).parent / "server.pid").write_text(str(os.getpid()))
while True:
    listener.accept()[0].close()
"""
BENCHMARK = """
print('"test","rps"')
print('"XADD","5000.00"')
"""
ENDLESS = """
import pathlib, time
(pathlib.Path(__file__).parent / "load").touch()
time.sleep(600)
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, source in (("server", SERVER), ("benchmark", BENCHMARK), ("cli", "")):
        write(folder / f"redis-{name}", source)
    return folder


def write(path: Path, source: str) -> None:
    path.write_text(f"#!{sys.executable}\n{source}")
    path.chmod(0o755)


def start(programs: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.peers", "--json", "--only", "redis", "--offline"]
    command += ["--directory", str(programs.parent / "peers"), "--flush", "sync", "--rounds", "1"]
    command += ["--warm-bytes", "0"]
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PATH": path}
    )


def is_alive(pid_file: Path) -> bool:
    return Path(f"/proc/{pid_file.read_text()}").exists()


def test_a_peer_is_measured_and_stopped(programs: Path) -> None:
    with start(programs) as bench:
        output = bench.communicate(timeout=120)[0]
    assert bench.returncode == 0
    figures = json.loads(output)["figures"]
    assert {(one["title"], one["flush"], one["per_s"]) for one in figures} == {
        ("Redis 7 streams", "sync", 5000.0)
    }
    assert {(one["work"], one["size"]) for one in figures} == {
        (work, size) for work in ("batches", "calls") for size in (128, 1024)
    }
    assert not is_alive(programs / "server.pid")


def test_a_run_that_is_ended_by_a_signal_leaves_no_broker_behind(programs: Path) -> None:
    write(programs / "redis-benchmark", ENDLESS)
    with start(programs) as bench:
        poll((programs / "load").exists, "the load tool runs")
        assert is_alive(programs / "server.pid")
        bench.send_signal(signal.SIGTERM)
        output = bench.communicate(timeout=60)[0]
    assert json.loads(output)["skipped"] == {"the rest": "ended by a signal"}
    assert not is_alive(programs / "server.pid")
