"""Users, keys and revocations of a broker set of three nodes, over the loss of its leader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pytest

from mq.access import keys
from mq.client import Admin, Message, Producer
from mq.wire.v1 import admin_pb2, message_pb2, producer_pb2
from mq.wire.v1 import security_pb2 as pb
from tests.support.broker_set import BrokerSet
from tests.support.raft_cluster import poll
from tests.support.topics import call

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_S = 120.0


def private(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def ask(brokers: BrokerSet, node: str, name: str, request: Any, key: str) -> Any:
    response = getattr(pb, f"{name}Response")
    return call(brokers.address(node), f"SecurityService/{name}", request, response, key)


def who(brokers: BrokerSet, node: str, key: str) -> str:
    """Empty: the node does not know it."""
    try:
        return str(ask(brokers, node, "WhoAmI", pb.WhoAmIRequest(), key).user)
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.UNAUTHENTICATED:
            raise
        return ""


def until_known(brokers: BrokerSet, key: str, user: str) -> None:
    """By all nodes, as this user."""
    poll(lambda: {who(brokers, one, key) for one in brokers.nodes} == {user}, user, PATIENCE_S)


def test_every_node_knows_the_same_users_whoever_leads(tmp_path: Path) -> None:
    root, alice = keys.new(), keys.new()
    flags = [
        *("--auth-mode", "required"),
        *("--auth-cluster-key-file", private(tmp_path / "cluster", keys.new().text)),
        *("--auth-bootstrap-admin-file", private(tmp_path / "admin", f"root:{root.text}")),
    ]
    with BrokerSet(tmp_path, *flags) as brokers:
        brokers.key = root.text
        first = brokers.leader()
        until_known(brokers, root.text, "root")
        made = [
            pb.AccessChange(put_user=pb.User(name="alice")),
            pb.AccessChange(
                put_credential=pb.Credential(
                    id=alice.id, user="alice", type=pb.API_KEY, proof=keys.digest(alice.secret)
                )
            ),
            pb.AccessChange(
                put_policy=pb.AccessPolicy(subject="user:alice", line="allow publish topic t")
            ),
        ]
        request = pb.ChangeAccessRequest(changes=made)
        before = ask(brokers, first, "ChangeAccess", request, root.text)
        with Admin(brokers.servers, api_key=root.text) as admin:
            admin.create_topic("t", queues=2)
            with Producer(brokers.servers, api_key=alice.text, timeout_s=PATIENCE_S) as producer:
                producer.send("t", Message(b"1"))
                brokers.kill_leader()
                second = brokers.leader(other_than=first)
                # Her key is as good at the new leader, and the same users are there.
                producer.send("t", Message(b"2"))
                found = ask(
                    brokers, second, "DescribeAccess", pb.DescribeAccessRequest(), root.text
                )
                assert (found.state.version, found.digest) == (before.version, before.digest)
                revoke = pb.AccessChange(drop_credential=alice.id)
                change = pb.ChangeAccessRequest(changes=[revoke])
                ask(brokers, second, "ChangeAccess", change, root.text)
            send = producer_pb2.SendRequest(topic="t", messages=[message_pb2.Message(body=b"3")])
            with pytest.raises(grpc.RpcError) as caught:
                call(
                    brokers.address(second),
                    "ProducerService/Send",
                    send,
                    producer_pb2.SendResponse,
                    alice.text,
                )
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        # The one that was away hears of the revocation from the log.
        brokers.start(first)
        brokers.wait_same()
        until_known(brokers, root.text, "root")
        until_known(brokers, alice.text, "")
        # Brokers of the set read each other's log, as they do to mend their own.
        cluster_key = (tmp_path / "cluster").read_text()
        chunk = call(
            brokers.address(first),
            "AdminService/ReadLog",
            admin_pb2.ReadLogRequest(),
            admin_pb2.LogChunk,
            cluster_key,
        )
        assert chunk.data


def test_the_token_of_the_leader_is_taken_by_all_and_another_leader_makes_another(
    tmp_path: Path,
) -> None:
    with BrokerSet(tmp_path, "--auth-mode", "required") as brokers:
        # Without a key of the cluster, the operator hears of it.
        assert "auth.cluster_key_file" in brokers.nodes["n0"].output()
        paths = {name: tmp_path / name / "bootstrap-token" for name in brokers.nodes}

        def holder(other_than: str = "") -> str:
            found = [name for name, path in paths.items() if path.exists() and name != other_than]
            return found[0] if len(found) == 1 else ""

        first = str(poll(holder, "one node has a token", PATIENCE_S))
        token = brokers.key = paths[first].read_text().strip()
        until_known(brokers, token, "bootstrap")
        brokers.nodes[first].kill()
        second = str(poll(lambda: holder(first), "another node has a token", PATIENCE_S))
        brokers.key = paths[second].read_text().strip()
        brokers.start(first)
        poll(lambda: not paths[first].exists(), "the first token is gone", PATIENCE_S)
        until_known(brokers, token, "")
        until_known(brokers, brokers.key, "bootstrap")
