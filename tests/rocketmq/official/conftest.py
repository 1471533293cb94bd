"""One broker and one program a language for all scenarios: a test has topics and groups of its own.

Python and Go run every scenario. Java and Node.js run those marked `every_client`, and the others
with `--every-client` (`make conformance`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mq.client import Admin
from tests.rocketmq.official.client import CLIENTS, Client
from tests.support.broker_process import BrokerProcess
from tests.support.foreign import programs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _pytest.mark import ParameterSet

LANGUAGES = ("python", "go")
MORE_LANGUAGES = ("java", "node")
# Transactions are asked about as soon as a test can wait for it.
FLAGS = ("--transactions-first-check-ms", "1000", "--transactions-check-interval-ms", "1000")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "language" in metafunc.fixturenames:
        marked = metafunc.definition.get_closest_marker("every_client") is not None
        is_for_all = marked or metafunc.config.getoption("every_client")
        chosen = (*LANGUAGES, *MORE_LANGUAGES) if is_for_all else LANGUAGES
        metafunc.parametrize("language", [*map(_parameter, chosen)], scope="session")


def _parameter(language: str) -> ParameterSet:
    absent = programs.missing(language)
    marks = [pytest.mark.skip(reason=f"{absent} is not installed")] if absent else []
    return pytest.param(language, marks=marks)


@pytest.fixture(scope="session")
def command(language: str) -> list[str]:
    """Skips the test where the packages of the client cannot be had."""
    return programs.command(language, CLIENTS / language)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("rocketmq") / "data", *FLAGS) as process:
        yield process
        assert process.is_running, process.output()
        assert "Traceback" not in process.output(), process.output()


@pytest.fixture(scope="session")
def client(command: list[str], broker: BrokerProcess) -> Iterator[Client]:
    with Client(command, broker.address) as started:
        yield started


@pytest.fixture(scope="session")
def admin(broker: BrokerProcess) -> Iterator[Admin]:
    with Admin(broker.address) as opened:
        yield opened


@pytest.fixture
def name(request: pytest.FixtureRequest, language: str) -> str:
    """Of a topic or a group: each test has its own."""
    test = request.node.originalname.removeprefix("test_")
    # The clients for Java and Python refuse dots themselves.
    dot = "." if language in ("go", "node") else "-"
    return f"{language}{dot}{test}"[:60]


@pytest.fixture
def topic(admin: Admin, name: str) -> str:
    """With four queues."""
    admin.create_topic(name, queues=4)
    return name
