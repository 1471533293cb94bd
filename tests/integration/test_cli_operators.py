"""Commands by which operators look at what waits, what is leased, and who is connected."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import pytest

from mq.client import Consumer, Message, Producer, SimpleConsumer
from mq.errors import PermissionDenied
from tests.support.broker_process import BrokerProcess
from tests.support.topics import create_topic, eventually
from tests.support.warm_process import run_mq

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("operators") / "data") as broker:
        yield broker.address


def mq(server: str, *arguments: str, exit_code: int = 0) -> str:
    environment = {**os.environ, "MQ_SERVER": server, "COLUMNS": "80"}
    done = run_mq(*arguments, environment=environment)
    assert done.returncode == exit_code, (done.stdout + done.stderr).decode()
    text = done.stdout.decode()
    assert "--json" in arguments or max(map(len, text.splitlines()), default=0) <= 80, text
    return text if exit_code == 0 else done.stderr.decode()


def test_what_waits_is_listed_counted_and_taken_back(server: str) -> None:
    assert "No message waits" in mq(server, "message", "scheduled")
    assert "No message waits" in mq(server, "message", "scheduled", "--histogram")
    with Producer(server) as producer:
        for minutes in (30, 10, 20):
            message = Message(b"x", tag="\x1b[31mt", keys=[f"k{minutes}"], delay_s=minutes * 60)
            producer.send("reminders", message)
    text = mq(server, "message", "scheduled")
    assert text.index("k10") < text.index("k20") < text.index("k30")
    assert "\x1b" not in text
    listed = json.loads(mq(server, "message", "scheduled", "reminders", "--count", "2", "--json"))
    assert [one["keys"] for one in listed] == [["k10"], ["k20"]]
    assert "3 messages waiting" in mq(server, "message", "scheduled", "--histogram")
    counts = json.loads(mq(server, "message", "scheduled", "--histogram", "--json"))
    assert sum(one["count"] for one in counts["buckets"]) == 3
    first = listed[0]
    place = ["reminders", first["message_id"], "--deliver-at", str(first["deliver_at_ms"])]
    assert "will not be delivered" in mq(server, "message", "recall", *place, "--operator")
    assert "MESSAGE_NOT_FOUND" in mq(server, "message", "recall", *place, exit_code=1)
    assert "k10" not in mq(server, "message", "scheduled", "--from", place[3])

    mq(server, "message", "scheduled", "reminders", "--histogram", exit_code=2)


def test_leases_are_listed_with_their_members(server: str) -> None:
    create_topic(server, "orders", 1)
    with Producer(server) as producer:
        for _ in range(4):
            producer.send("orders", Message(b"x"))
    assert "GROUP_NOT_FOUND" in mq(server, "group", "leases", "mailers", exit_code=1)
    with SimpleConsumer(server, "mailers", "orders", start="earliest") as consumer:
        assert len(consumer.receive(3, wait_s=10)) == 3
        text = mq(server, "group", "leases", "mailers")
        assert "3 messages leased" in text
        leases = json.loads(mq(server, "group", "leases", "mailers", "--json"))
    assert (leases[0]["start"], leases[-1]["end"]) == (0, 3)
    for lease in leases:
        assert lease["attempts"] == 1
        assert lease["member_id"]
        assert lease["visible_at_ms"] > time.time() * 1_000


def test_a_member_is_sent_away(server: str) -> None:
    create_topic(server, "idle", 1)
    with Consumer(server, "idlers", "idle", member_id="stuck") as consumer:
        consumer.poll(timeout_s=0)
        flags = ["group", "evict", "idlers"]
        assert "not confirmed" in mq(server, *flags, "stuck", exit_code=1)
        assert "UNKNOWN_MEMBER" in mq(server, *flags, "other", "--yes", exit_code=1)
        why = ["--reason", "it hangs"]
        assert "sent away" in mq(server, *flags, "stuck", "--yes", *why)
        with pytest.raises(PermissionDenied, match="it hangs"):
            consumer.poll(timeout_s=30)
    assert "stuck" not in mq(server, "group", "describe", "idlers")


def test_connections_are_listed_with_what_they_do(server: str) -> None:
    create_topic(server, "watched", 1)
    with Consumer(server, "watchers", "watched") as consumer:
        consumer.poll(timeout_s=0)

        def mine() -> list[str]:
            found = json.loads(mq(server, "cluster", "clients", "--json"))
            return [
                call["method"]
                for one in found
                if one.get("groups") == ["watchers"] and one["language"] == "python"
                for call in one["in_flight"]
            ]

        eventually(lambda: "ConsumerService/Subscribe" in mine())
        text = mq(server, "cluster", "clients")
    assert "Subscribe" in text
    assert "python" in text
    assert "no broker set" in mq(server, "cluster", "clients", "--set", "x", exit_code=1)
