"""The examples in other languages, built outside of the tree and run against a real broker.

Skipped where a toolchain, or the packages that it wants to download, cannot be had.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import grpc
import pytest

from mq.wire.v1.consumer_pb2 import QueryOffsetsRequest, QueryOffsetsResponse
from tests.support.broker_process import BrokerProcess
from tests.support.readme import block, section, shell

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parents[2]
GROUP = "example"
DEADLINE_S = 20
BUILD_DEADLINE_S = 240
pytestmark = pytest.mark.timeout(2 * BUILD_DEADLINE_S)
# Go's installer puts it there and leaves the PATH to the user.
SEARCH_PATH = os.pathsep.join([os.environ["PATH"], "/usr/local/go/bin"])
CANNOT_HAVE = re.compile(
    r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|dial tcp|i/o timeout|requires go >="
)


class Programs(NamedTuple):
    language: str
    folder: Path
    send: list[str]
    consume: list[str]


class Received(NamedTuple):
    queue_id: str
    queue_offset: str
    text: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker.address


def example(language: str, folder: Path) -> Path:
    """A copy of the example, with the protos where it looks for them."""
    copy = folder / "examples" / language
    shutil.copytree(ROOT / "proto", folder / "proto")
    ignored = shutil.ignore_patterns("node_modules", "bin")
    shutil.copytree(ROOT / "examples" / language, copy, ignore=ignored)
    return copy


def build(command: Sequence[str], folder: Path) -> None:
    if shutil.which(command[0], path=SEARCH_PATH) is None:
        pytest.skip(f"{command[0]} is not installed")
    environment = {**os.environ, "PATH": SEARCH_PATH}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=BUILD_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{command[0]} did not get its packages in {BUILD_DEADLINE_S} s")
    output = done.stdout + done.stderr
    if done.returncode and (found := CANNOT_HAVE.search(output)):
        pytest.skip(f"{command[0]} cannot get what it needs: {found[0]}")
    assert done.returncode == 0, output


@pytest.fixture(scope="module")
def go_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return example("go", tmp_path_factory.mktemp("go"))


@pytest.fixture(scope="module", params=["node", "go"])
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    if request.param == "node":
        folder = example("node", tmp_path_factory.mktemp("node"))
        quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1"]
        build(["npm", "ci", "--fetch-timeout=30000", *quiet], folder)
        node = shutil.which("node", path=SEARCH_PATH) or "node"
        send, consume = str(folder / "send.js"), str(folder / "consume.js")
        return Programs("node", folder, [node, send], [node, consume])
    folder = request.getfixturevalue("go_folder")
    build(["go", "build", "-o", "built/", "./send", "./consume"], folder)
    built = folder / "built"
    return Programs("go", folder, [str(built / "send")], [str(built / "consume")])


def run_send(programs: Programs, server: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*programs.send, *arguments],
        env={**os.environ, "MQ_SERVER": server},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def send(programs: Programs, server: str, topic: str, text: str) -> Received:
    """The part of it that a consumer is to receive."""
    done = run_send(programs, server, topic, text)
    assert done.returncode == 0, done.stderr
    match = re.fullmatch(r"sent \S+:\d+ queue (\d+) offset (\d+)\n", done.stdout)
    assert match, done.stdout
    return Received(match[1], match[2], text)


class Consumer:
    """A consumer that runs; its lines come as it prints them."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))

    def next(self) -> Received:
        line = self._lines.get(timeout=DEADLINE_S)
        match = re.fullmatch(r"received queue (\d+) offset (\d+) tag example: (.*)", line)
        assert match, line
        return Received(*match.groups())

    def stop(self) -> list[str]:
        """The output beyond the lines that were awaited."""
        self._process.terminate()
        self._process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        return [self._lines.get_nowait() for _ in range(self._lines.qsize())]


@contextlib.contextmanager
def consuming(programs: Programs, server: str, topic: str) -> Iterator[Consumer]:
    with subprocess.Popen(
        [*programs.consume, topic, GROUP],
        env={**os.environ, "MQ_SERVER": server},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Consumer(process)
        finally:
            process.kill()


def wait_until_committed(server: str, topic: str, count: int) -> None:
    """Until the group has consumed so many messages of the topic."""
    with grpc.insecure_channel(server) as channel:
        query = channel.unary_unary(
            "/mq.v1.ConsumerService/QueryOffsets",
            request_serializer=QueryOffsetsRequest.SerializeToString,
            response_deserializer=QueryOffsetsResponse.FromString,
        )
        deadline = time.monotonic() + DEADLINE_S
        while True:
            positions = query(QueryOffsetsRequest(group=GROUP), timeout=DEADLINE_S).positions
            done = sum(one.queue_offset for one in positions if one.topic == topic)
            if done == count:
                return
            assert time.monotonic() < deadline, f"{done} of {count} messages are committed"
            time.sleep(0.02)


def test_a_sent_message_is_received_once_and_the_next_run_continues(
    programs: Programs, server: str
) -> None:
    topic = f"orders-{programs.language}"
    sent = {send(programs, server, topic, text) for text in ("first order", "zweiter: ü")}
    with consuming(programs, server, topic) as consumer:
        assert {consumer.next(), consumer.next()} == sent
        # By now it waits for more.
        third = send(programs, server, topic, "third")
        assert consumer.next() == third
        wait_until_committed(server, topic, 3)
        assert consumer.stop() == []
    fourth = send(programs, server, topic, "fourth")
    with consuming(programs, server, topic) as consumer:
        assert consumer.next() == fourth
        assert consumer.stop() == []


def test_the_commands_of_the_readme_send_and_consume(programs: Programs, server: str) -> None:
    heading = {"node": "### Node.js", "go": "### Go"}[programs.language]
    # `npm ci` is what the fixture has done.
    lines = [one for one in block(section(heading)).splitlines() if one != "npm ci"]
    topic = f"readme-{programs.language}"
    send_it, consume_it = (one.replace(" orders", f" {topic}") for one in lines)
    environment = {"PATH": SEARCH_PATH, "MQ_SERVER": server}
    assert shell(send_it, programs.folder, BUILD_DEADLINE_S, **environment).count("sent ") == 2
    with subprocess.Popen(
        ["bash", "-c", consume_it],  # noqa: S607
        cwd=programs.folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        # `go run` starts the program as a child.
        start_new_session=True,
    ) as process:
        assert process.stdout
        received = {process.stdout.readline().rpartition(": ")[2].strip() for _ in range(2)}
        os.killpg(process.pid, signal.SIGKILL)
    assert received == {"first order", "second order"}


def test_an_error_is_printed_with_its_code(programs: Programs, server: str) -> None:
    done = run_send(programs, server, "not/a/topic", "text")
    assert done.returncode == 1
    assert done.stderr.startswith("ILLEGAL_TOPIC: topic 'not/a/topic' is not legal")
    assert done.stdout == ""


def test_the_stubs_for_go_are_what_the_protos_generate(go_folder: Path) -> None:
    committed = {path.name: path.read_text() for path in go_folder.glob("mqv1/*")}
    build(["go", "mod", "download"], go_folder)
    build(["make", "stubs", f"PYTHON={sys.executable}"], go_folder)
    generated = {path.name: path.read_text() for path in go_folder.glob("mqv1/*")}
    assert generated == committed, "run `make stubs` in examples/go and commit the result"
