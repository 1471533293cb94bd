"""Official clients while the leader of three brokers dies: sends are at most late.

Routes are theirs for 30 s, whatever happens, and a retry goes to another broker name: it is for the
brokers to take a send wherever it comes to.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from mq.client import Admin, Consumer
from tests.rocketmq.official.client import CLIENTS, Client
from tests.support.broker_set import BrokerSet
from tests.support.foreign import programs
from tests.support.waiting import poll

if TYPE_CHECKING:
    from pathlib import Path

IN_FLIGHT = 16
LOAD_S = 12.0


def stored(admin: Admin) -> int:
    return sum(queue.end for queue in admin.describe_topic("load").queues)


@pytest.fixture(params=["go", "java"])
def command(request: pytest.FixtureRequest) -> list[str]:
    language: str = request.param
    if language == "java" and not request.config.getoption("every_client"):
        pytest.skip("needs --every-client")
    if absent := programs.missing(language):
        pytest.skip(f"{absent} is not installed")
    return programs.command(language, CLIENTS / language)


def test_every_send_succeeds_while_the_leader_is_killed(command: list[str], tmp_path: Path) -> None:
    with BrokerSet(tmp_path) as brokers, Admin(brokers.servers) as admin:
        admin.create_topic("load", queues=8)
        endpoints = brokers.servers.replace(",", ";")
        with Client(command, endpoints) as client:
            load = client.begin("load", topic="load", in_flight=IN_FLIGHT, seconds=LOAD_S, size=128)
            poll(lambda: stored(admin) > 100, "the load has begun")
            brokers.kill_leader()
            killed_at = time.monotonic()
            answer = load(LOAD_S + 60)
            assert answer["errors"] == []
            # It went on afterwards.
            assert time.monotonic() - killed_at > LOAD_S / 4
        sent = {(caller, n) for caller, count in enumerate(answer["sent"]) for n in range(count)}
        assert len({caller for caller, _ in sent}) == IN_FLIGHT
        seen: set[tuple[int, int]] = set()
        with Consumer(brokers.servers, "reader", "load", start="earliest") as consumer:

            def all_seen() -> bool:
                for one in consumer.poll():
                    caller, number, _ = one.body.split(b" ", 2)
                    seen.add((int(caller), int(number)))
                return sent <= seen

            poll(all_seen, "all that was acknowledged")
