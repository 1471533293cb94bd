"""One broker for all raw tests, on our own transport and on gRPC's: a test has its own topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mq.client import Admin
from tests.rocketmq.raw import RawClient, new_name
from tests.support.broker_process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session", params=["mq", "grpcio"])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("rocketmq") / "data"
    with BrokerProcess(data, "--broker-transport", request.param) as process:
        yield process
        assert process.is_running, process.output()
        assert "Traceback" not in process.output(), process.output()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.address, new_name("client")) as opened:
        yield opened


@pytest.fixture
def admin(broker: BrokerProcess) -> Iterator[Admin]:
    with Admin(broker.address) as opened:
        yield opened


@pytest.fixture
def topic() -> str:
    return new_name("topic")


@pytest.fixture
def group() -> str:
    return new_name("group")
