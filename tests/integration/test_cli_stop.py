"""SIGTERM ends every command that runs for long, and the processes that the command has started.

All are started with SIGINT ignored, as a shell starts background jobs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.waiting import DEADLINE_S, poll

if TYPE_CHECKING:
    from collections.abc import Iterator

_AS_BACKGROUND_JOB = ["/bin/sh", "-c", "trap '' INT; exec \"$@\"", "sh"]
_MQ = ("-m", "mq")
_INTERRUPTED = 130


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    kept = {name: value for name, value in os.environ.items() if name[:3] != "MQ_"}
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield {**kept, "MQ_SERVER": broker.address}


@contextlib.contextmanager
def background_job(
    environment: dict[str, str], *arguments: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Leads a process group of its own."""
    with subprocess.Popen(
        [*_AS_BACKGROUND_JOB, sys.executable, *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as job:
        try:
            yield job
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)


def assert_sigterm_ends_all(job: subprocess.Popen[bytes]) -> None:
    job.terminate()
    assert job.wait(DEADLINE_S) == _INTERRUPTED
    poll(lambda: is_empty(job.pid), "the command's processes end with it", 10)


def is_empty(process_group: int) -> bool:
    try:
        os.killpg(process_group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize(
    "arguments",
    [
        ("consume", "stopped", "--follow"),
        ("consume", "stopped", "--follow", "--group", "stopped-consumers"),
        ("receive", "stopped", "--group", "stopped-receivers", "--timeout", "600"),
    ],
    ids=" ".join,
)
def test_sigterm_ends_a_command_that_waits_for_messages(
    environment: dict[str, str], arguments: tuple[str, ...]
) -> None:
    produce = [sys.executable, *_MQ, "produce", "stopped", "one"]
    subprocess.run(produce, env=environment, check=True, timeout=DEADLINE_S, capture_output=True)
    with background_job(environment, *_MQ, *arguments) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == b"one\n"
        assert_sigterm_ends_all(job)
        assert job.stderr is not None
        assert job.stderr.read() == b""


def test_sigterm_ends_a_producer_whose_input_is_open(environment: dict[str, str]) -> None:
    with background_job(environment, *_MQ, "produce", "half-read", "--json") as job:
        assert job.stdin is not None
        assert job.stdout is not None
        job.stdin.write(b"one\n")
        job.stdin.flush()
        assert job.stdout.readline()
        assert_sigterm_ends_all(job)


def test_sigterm_ends_a_bench_and_its_producer_processes(environment: dict[str, str]) -> None:
    bench = (*_MQ, "bench", "produce", "--topic", "stopped-bench")
    with background_job(environment, *bench, "--seconds", "600", "--producers", "2") as job:
        topics = [sys.executable, *_MQ, "topic", "describe", "stopped-bench", "--json"]
        # The topic is made by the first message: the producer processes are at work.
        poll(
            lambda: (
                subprocess.run(
                    topics, env=environment, check=False, timeout=DEADLINE_S, capture_output=True
                ).returncode
                == 0
            ),
            "the bench sends",
        )
        assert_sigterm_ends_all(job)


def test_sigterm_ends_the_demo_and_its_broker(environment: dict[str, str]) -> None:
    with background_job(environment, "-m", "mq.cli.demo") as job:
        assert job.stdout is not None
        assert b"A broker is up" in job.stdout.readline()
        assert_sigterm_ends_all(job)
