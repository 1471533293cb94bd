"""The programs of examples/rocketmq in Python and Go, as a newcomer runs them."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.foreign import programs
from tests.support.waiting import DEADLINE_S, poll

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "rocketmq"


class Example(NamedTuple):
    language: str
    send: list[str]
    consume: list[str]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker.address


@pytest.fixture(scope="module", params=["python", "go"])
def example(request: pytest.FixtureRequest) -> Example:
    language: str = request.param
    commands = programs.examples(language, EXAMPLES / language, ("send", "consume"))
    return Example(language, *commands)


def test_what_is_sent_is_consumed(example: Example, server: str) -> None:
    topic = f"orders-{example.language}"
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "MQ_SERVER": server, "HOME": home}
        done = subprocess.run(
            [*example.send, topic, "first order", "zweiter: ü"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        sent = re.fullmatch(r"sent (\w{34})\nsent (\w{34})\n", done.stdout)
        assert sent, done.stdout
        expected = {
            f"received {sent[1]} tag example: first order",
            f"received {sent[2]} tag example: zweiter: ü",
        }
        output = Path(home) / "output"
        with output.open("wb") as stdout:
            consumer = subprocess.Popen([*example.consume, topic], env=environment, stdout=stdout)
        try:
            poll(lambda: set(output.read_text().splitlines()) == expected, "both messages")
        finally:
            consumer.kill()
            consumer.wait(DEADLINE_S)
