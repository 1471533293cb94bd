"""Official push consumers in order, when the answer to a receive is lost.

The clients for Python and Node.js repeat the receive as the same attempt after any failure. That
for Java (5.2.0) does so after a time-out alone, that for Go (5.1.4) never.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mq.client import Admin
from tests.rocketmq.official.client import CLIENTS, Client
from tests.support.broker_process import BrokerProcess
from tests.support.foreign import programs
from tests.support.lost_answer import LostAnswer
from tests.support.raft_cluster import free_port

if TYPE_CHECKING:
    from pathlib import Path

# Shorter than what a message is invisible for: it has not waited for that.
WITHIN_S = 45.0


@pytest.fixture(params=["python", "node"])
def command(request: pytest.FixtureRequest) -> list[str]:
    language: str = request.param
    if language == "node" and not request.config.getoption("every_client"):
        pytest.skip("needs --every-client")
    if absent := programs.missing(language):
        pytest.skip(f"{absent} is not installed")
    return programs.command(language, CLIENTS / language)


def test_a_message_group_goes_on_at_once(command: list[str], tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", port=free_port())
    with LostAnswer(b"the first", broker.address) as relay:
        broker.start("--broker-advertised", relay.address)
        try:
            with Admin(broker.address) as admin:
                admin.create_topic("t", queues=4, type="ordered")
            with Client(command, relay.address) as client:
                consumer = client.do("push", topic="t", group="g")["consumer"]
                for body in ("the first", "the second", "the third"):
                    client.do("send", topic="t", body=body, message_group="x")
                found = client.messages(consumer, 3, WITHIN_S)
                assert relay.is_lost.is_set()
                assert [one["body"] for one in found] == ["the first", "the second", "the third"]
                assert [one["attempt"] for one in found] == [1, 1, 1]
        finally:
            broker.kill()
