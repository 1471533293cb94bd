"""`mq server` as a real process: how it starts, why it refuses to, how it stops."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mq.store.identity import Identity
from mq.store.store import Store
from mq.store.vfs import RealVfs
from tests.support.stores import (
    apply_through,
    batch,
    fill,
    messages_of,
    put,
    read_all,
    small_config,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mq.config import StoreConfig
    from mq.wire.v1.message_pb2 import Message

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 20
NODE = Identity("mq", "set-0", "node-0")
SEGMENTS = small_config(segment_bytes=64 << 10, queue_file_units=100)


class Server:
    """A node on a directory; its log lines go to a file beside it."""

    def __init__(self, data: Path, *flags: str) -> None:
        self._log = data.with_name(data.name + ".stderr")
        command = [
            sys.executable,
            "-m",
            "mq",
            "server",
            "--data",
            str(data),
            "--port",
            "0",
            "--metrics-port",
            "0",
            *flags,
        ]
        with self._log.open("wb") as stderr:
            self.process = subprocess.Popen(command, cwd=ROOT, stderr=stderr)

    def events(self) -> list[dict[str, Any]]:
        lines = self._log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line[0] == "{" and line[-1] == "\n"]

    def stderr(self) -> str:
        return self._log.read_text()

    def wait_for(self, event: str) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            assert self.process.poll() is None, self.stderr()
            return next((one for one in self.events() if one["event"] == event), None)

        return poll(found)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)


def poll(question: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
    deadline = time.monotonic() + DEADLINE_S
    while (answer := question()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return answer


@contextlib.contextmanager
def server(data: Path, *flags: str) -> Iterator[Server]:
    started = Server(data, *flags)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
            started.process.wait()


def refusal(data: Path, *flags: str) -> tuple[int, str]:
    """Exit code and the line that says why."""
    with server(data, *flags) as refused:
        code = refused.process.wait(DEADLINE_S)
        return code, refused.stderr().splitlines()[-1]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@contextlib.contextmanager
def opened(data: Path, config: StoreConfig = SEGMENTS) -> Iterator[Store]:
    store = Store(RealVfs(), str(data), config, NODE)
    try:
        apply_through(store, store.log.last_index)
        yield store
    finally:
        store.close()


def write_segments(data: Path, count: int) -> list[Message]:
    with opened(data) as store:
        # Of now, or a node takes them for expired.
        return fill(store, count, now_ms=int(time.time() * 1000))


# -- starting and stopping -------------------------------------------------------------------------


def test_a_node_starts_on_an_empty_directory_and_stops_when_told(data: Path) -> None:
    with server(data) as node:
        up = node.wait_for("node is up")
        assert (up["data"], up["queues"], up["role"]) == (str(data), 0, "leader")
        # A checkpoint opens the log, and the leader of a group of one has said so.
        assert up["entries"] == 2
        assert node.stop() == 0
        assert node.events()[-1]["event"] == "node is down"
    assert 'node = "node-0"' in (data / "node.toml").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_a_node_quietly(number: signal.Signals, data: Path) -> None:
    with server(data) as node:
        node.wait_for("node is up")
        assert node.stop(number) == 0
        assert [one["event"] for one in node.events()] == [
            "leadership",
            "node is up",
            "node is down",
        ]
        assert "Traceback" not in node.stderr()


def test_a_node_finds_again_what_a_killed_one_left(data: Path) -> None:
    sent = write_segments(data, 3)
    with server(data) as node:
        node.wait_for("node is up")
        assert node.stop(signal.SIGKILL) == -signal.SIGKILL
    with server(data) as node:
        up = node.wait_for("node is up")
        assert up["queues"] == 1
        assert up["log_bytes"] > 2 * (60 << 10)
        assert node.stop() == 0
    with opened(data) as store:
        assert read_all(store) == sent


def test_a_node_rebuilds_what_was_deleted_while_it_was_stopped(data: Path) -> None:
    sent = write_segments(data, 2)
    (data / "checkpoint").unlink()
    with server(data) as node:
        node.wait_for("queues and index are rebuilt from the log")
        assert node.wait_for("node is up")["queues"] == 1
        assert node.stop() == 0
    with opened(data) as store:
        assert read_all(store) == sent


# -- refusing --------------------------------------------------------------------------------------


def test_a_second_process_on_the_same_directory_is_refused(data: Path) -> None:
    with server(data) as node:
        node.wait_for("node is up")
        second = ["-m", "mq", "server", "--data", str(data), "--port", "0", "--metrics-port", "0"]
        refused = subprocess.run(
            [sys.executable, *second], cwd=ROOT, capture_output=True, timeout=20, check=False
        )
        assert refused.returncode == 1
        assert b"DATA_DIRECTORY_IN_USE" in refused.stderr
        assert b"Traceback" not in refused.stderr
        assert node.process.poll() is None
        assert node.stop() == 0


@pytest.mark.parametrize(
    "flags",
    [
        ("--node-id", "node-1"),
        ("--node-broker-set", "set-1"),
        ("--node-cluster", "other"),
    ],
)
def test_the_directory_of_another_node_is_refused(flags: tuple[str, str], data: Path) -> None:
    write_segments(data, 1)
    code, line = refusal(data, *flags)
    assert code == 1
    assert line.startswith("error: WRONG_DATA_DIRECTORY: ")
    assert "node-0" in line


def test_a_directory_with_other_things_in_it_is_refused(data: Path) -> None:
    data.mkdir()
    (data / "thesis.tex").write_text("precious")
    code, line = refusal(data)
    assert code == 1
    assert line.startswith("error: WRONG_DATA_DIRECTORY: ")
    assert [path.name for path in data.iterdir()] == ["thesis.tex"]


def test_a_damaged_log_is_refused_with_file_and_position(data: Path) -> None:
    write_segments(data, 3)
    segment = data / "commitlog" / f"{0:020d}.log"
    content = bytearray(segment.read_bytes())
    content[30_000] ^= 1
    segment.write_bytes(content)
    code, line = refusal(data)
    assert code == 1
    assert line.startswith(f"error: LOG_DAMAGED: {segment} is damaged at byte ")
    assert segment.read_bytes() == content


@pytest.mark.parametrize(
    "flags",
    [("--broker-host", "0.0.0.0"), ("--broker-external-listen", "[::]:0")],  # noqa: S104
)
def test_clients_of_other_machines_are_not_let_in_by_accident(
    flags: tuple[str, str], data: Path
) -> None:
    code, line = refusal(data, *flags)
    assert code == 2
    assert "ILLEGAL_CONFIG" in line
    assert "auth.open = yes" in line
    assert not data.exists()
    with server(data, *flags, "--auth-open", "yes") as meant:
        meant.wait_for("node is up")


def test_an_unknown_flag_is_a_wrong_call(data: Path) -> None:
    code, line = refusal(data, "--no-such-flag")
    assert code == 2
    assert "--no-such-flag" in line
    assert not data.exists()


def test_an_unknown_key_of_the_file_is_a_wrong_call(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "mq.toml"
    file.write_text('[store]\nflsh = "sync"\n')
    code, line = refusal(data, "--config", str(file))
    assert code == 2
    assert line.startswith("error: ILLEGAL_CONFIG: ")
    assert "flsh" in line
    assert not data.exists()


# -- keeping house ---------------------------------------------------------------------------------


def test_retention_by_size_drops_segments_and_the_files_of_their_queues(data: Path) -> None:
    sent = write_segments(data, 8)
    with opened(data) as store:
        put(store, batch(messages_of(1), "bills"))
    limit = 200 << 10
    with server(data, "--retention-bytes", str(limit), "--retention-check-ms", "10ms") as node:
        dropped = node.wait_for("segments dropped")
        assert dropped["segments"] >= 4
        assert dropped["queues"] == 1
        poll(lambda: None if (data / f"consumequeue/orders/0/{0:020d}").exists() else {})
        # A thread removes them.
        left = 8 - dropped["segments"]
        poll(lambda: {} if len(list((data / "commitlog").glob("*.log"))) == left else None)
        assert node.stop() == 0
    with opened(data) as store:
        assert store.log.end_offset - store.log.start_offset <= limit
        queue = store.queues.get("orders", 0)
        assert queue is not None
        assert 0 < queue.start < queue.end == len(sent)
        assert read_all(store) == sent[queue.start :]
        assert read_all(store, "bills") == messages_of(1)
