"""Quotas and stored bytes are those of the set: a new leader has the same."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import grpc
import pytest

from mq.access import keys
from mq.client import Admin, Message, Producer
from mq.errors import QuotaExceeded
from mq.wire.v1 import security_pb2 as pb
from tests.support.access import namespace, quota
from tests.support.broker_set import BrokerSet
from tests.support.raft_cluster import poll
from tests.support.topics import call

if TYPE_CHECKING:
    from pathlib import Path

TOPIC = "acme%t"
SIZE = 100_000


class Root:
    """The administrator of a set that knows its callers and refuses none."""

    def __init__(self, tmp_path: Path) -> None:
        key = keys.new()
        file = tmp_path / "admin"
        file.write_text(f"root:{key.text}\n")
        file.chmod(0o600)
        self.key = key.text
        self.flags = ("--auth-mode", "observe", "--auth-bootstrap-admin-file", str(file))

    def change(self, brokers: BrokerSet, *changes: pb.AccessChange) -> None:
        request, response = pb.ChangeAccessRequest(changes=changes), pb.ChangeAccessResponse

        def is_changed() -> bool:
            address = brokers.address(brokers.leader())
            try:
                call(address, "SecurityService/ChangeAccess", request, response, self.key)
            except grpc.RpcError:
                return False
            return True

        poll(is_changed, "root is known, and its change is made", 60.0)


def stored_bytes(brokers: BrokerSet) -> int:
    with Admin(brokers.servers, timeout_s=60.0) as admin:
        return int(admin.describe_topic(TOPIC).info.stored_bytes)


def test_a_new_leader_limits_as_the_old_one_did_and_counts_the_same(tmp_path: Path) -> None:
    root = Root(tmp_path)
    with BrokerSet(tmp_path, *root.flags) as brokers:
        limits = quota("namespace:acme", stored_bytes=5 * SIZE, publish_bytes_per_s=10 * SIZE)
        root.change(brokers, namespace("acme"), limits)
        with Producer(brokers.servers, timeout_s=60.0) as producer:
            for _ in range(4):
                producer.send(TOPIC, Message(random.randbytes(SIZE)))
            before = stored_bytes(brokers)
            assert 4 * SIZE < before < 4.1 * SIZE
            # Each node leads once, also one that was away.
            for _ in range(3):
                killed = brokers.kill_leader()
                assert stored_bytes(brokers) == before
                with pytest.raises(QuotaExceeded, match="stored_bytes of namespace:acme"):
                    producer.send(TOPIC, Message(random.randbytes(2 * SIZE)))
                brokers.start(killed)
                brokers.wait_same()
            producer.send(TOPIC, Message(random.randbytes(SIZE // 2)))
