"""A broker that knows its callers: its first administrator, what survives a restart, a backup, and
what is nowhere to be read.
"""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from mq.access import keys, passwords
from mq.names import AUDIT_TOPIC
from mq.wire.v1 import admin_pb2, cluster_pb2
from mq.wire.v1 import security_pb2 as pb
from tests.support.broker_process import BrokerProcess
from tests.support.raft_cluster import poll
from tests.support.topics import call
from tests.support.warm_process import run_mq

if TYPE_CHECKING:
    from pathlib import Path

    from mq.access.keys import ApiKey

REQUIRED = ("--auth-mode", "required", "--metrics-enabled", "no")
PASSWORD = "correct horse battery"  # noqa: S105 - of no one


def ask(broker: BrokerProcess, name: str, request: Any, key: str = "") -> Any:
    """Of SecurityService."""
    response = getattr(pb, f"{name}Response")
    return call(broker.address, f"SecurityService/{name}", request, response, key)


def refused(broker: BrokerProcess, name: str, request: Any, key: str = "") -> str:
    with pytest.raises(grpc.RpcError) as caught:
        ask(broker, name, request, key)
    error: Any = caught.value
    return str(dict(error.trailing_metadata()).get("mq-code"))


def credential(user: str, key: ApiKey) -> pb.AccessChange:
    proof = keys.digest(key.secret)
    return pb.AccessChange(
        put_credential=pb.Credential(id=key.id, user=user, type=pb.API_KEY, proof=proof)
    )


def change(broker: BrokerProcess, key: str, *changes: pb.AccessChange) -> Any:
    return ask(broker, "ChangeAccess", pb.ChangeAccessRequest(changes=changes), key)


def put_user(name: str, *roles: str) -> pb.AccessChange:
    return pb.AccessChange(put_user=pb.User(name=name, roles=roles))


def who(broker: BrokerProcess, key: str) -> str:
    return str(ask(broker, "WhoAmI", pb.WhoAmIRequest(), key).user)


def trail(broker: BrokerProcess, key: str) -> list[dict[str, Any]]:
    request = admin_pb2.BrowseMessagesRequest(topic=AUDIT_TOPIC, messages_max=1_000)
    found = call(broker.address, "AdminService/BrowseMessages", request, admin_pb2.MessageList, key)
    return [json.loads(one.message.body) for one in found.messages]


def token_of(data: Path) -> str:
    path = data / "bootstrap-token"
    poll(path.exists, "there is a token", 60.0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return path.read_text().strip()


def test_the_one_time_token_makes_the_first_administrator_and_is_over(tmp_path: Path) -> None:
    data, root, alice = tmp_path / "data", keys.new(), keys.new()
    with BrokerProcess(data, *REQUIRED) as broker:
        token = token_of(data)
        assert refused(broker, "WhoAmI", pb.WhoAmIRequest()) == "UNAUTHENTICATED"
        assert who(broker, token) == "bootstrap"
        # A restart leaves it as it is.
        broker.kill()
        broker.start()
        assert token_of(data) == token
        change(broker, token, put_user("root", "superuser"), credential("root", root))
        assert refused(broker, "WhoAmI", pb.WhoAmIRequest(), token) == "UNAUTHENTICATED"
        poll(lambda: not (data / "bootstrap-token").exists(), "the file is gone", 60.0)
        stored = passwords.hashed(PASSWORD)
        change(
            broker,
            root.text,
            put_user("alice"),
            credential("alice", alice),
            pb.AccessChange(
                put_credential=pb.Credential(
                    id="password-alice", user="alice", type=pb.PASSWORD, proof=stored
                )
            ),
        )
        session = keys.new()
        login = pb.LoginRequest(
            user="alice",
            password=PASSWORD,
            key_id=session.id,
            key_digest=keys.digest(session.secret),
        )
        ask(broker, "Login", login)
        assert who(broker, session.text) == "alice"
        drop = pb.AccessChange(drop_credential=alice.id)
        change(broker, session.text, drop)
        assert broker.stop() == 0
        # Users, keys, sessions, revocations and records are in the log.
        broker.start("--broker-default-queues", "1")
        assert who(broker, root.text) == "root"
        assert who(broker, session.text) == "alice"
        assert refused(broker, "WhoAmI", pb.WhoAmIRequest(), alice.text) == "UNAUTHENTICATED"
        found = [(one["what"], one["user"], one["subject"]) for one in trail(broker, root.text)]
        assert found[:4] == [
            ("bootstrap", "%broker", "user:bootstrap"),
            ("bootstrap", "%broker", "user:bootstrap"),
            ("put_user", "bootstrap", "user:root"),
            ("put_credential", "bootstrap", "user:root"),
        ]
        assert ("login", "alice", "user:alice") in found
        assert ("drop_credential", "alice", "user:alice") in found
        # What would let somebody in is neither logged nor shown.
        texts = broker._log_path.read_text()
        texts += json.dumps(trail(broker, root.text))
        options = call(
            broker.address,
            "AdminService/GetConfig",
            admin_pb2.GetConfigRequest(),
            admin_pb2.ConfigList,
            root.text,
        )
        described = ask(broker, "DescribeAccess", pb.DescribeAccessRequest(), root.text)
        texts += str(options) + str(described)
        secrets = [PASSWORD, token, stored.decode(), *(one.secret for one in (root, session))]
        assert not [one for one in secrets if one in texts]


@pytest.mark.parametrize("variable", ["MQ_AUTH_BOOTSTRAP_ADMIN_FILE", "MQ_BOOTSTRAP_ADMIN_FILE"])
def test_the_first_administrator_is_the_one_that_a_file_names(
    tmp_path: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, file = keys.new(), tmp_path / "admin"
    file.write_text(f"root:{root.text}\n")
    file.chmod(0o600)
    monkeypatch.setenv(variable, str(file))
    with BrokerProcess(tmp_path / "data", *REQUIRED) as broker:
        poll(lambda: _is_known(broker, root.text), "root is known", 60.0)
        found = ask(broker, "WhoAmI", pb.WhoAmIRequest(), root.text)
        assert [*found.roles] == ["superuser"]
        assert not (tmp_path / "data" / "bootstrap-token").exists()
        assert root.secret not in broker.output()


def _is_known(broker: BrokerProcess, key: str) -> bool:
    try:
        return bool(who(broker, key))
    except grpc.RpcError:
        return False


def test_a_file_that_others_can_read_keeps_the_node_from_starting(tmp_path: Path) -> None:
    file = tmp_path / "admin"
    file.write_text("root:correct horse")
    file.chmod(0o644)
    command = [sys.executable, "-m", "mq", "server", "--data", str(tmp_path / "data"), "--port"]
    command += ["0", *REQUIRED, "--auth-bootstrap-admin-file", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert ended.returncode != 0
    assert "chmod 600" in ended.stdout + ended.stderr
    assert "correct horse" not in ended.stdout + ended.stderr


def test_brokers_of_a_cluster_greet_each_other_by_their_key(tmp_path: Path) -> None:
    """Two sets, which both require identities; users of one are not those of the other."""
    file, other, root = tmp_path / "cluster", keys.new(), keys.new()
    file.write_text(keys.new().text)
    file.chmod(0o600)
    admin = tmp_path / "admin"
    admin.write_text(f"root:{root.text}\n")
    admin.chmod(0o600)
    cluster = ("--auth-cluster-key-file", str(file))
    flags = (*REQUIRED, *cluster, "--auth-bootstrap-admin-file", str(admin))
    with (
        BrokerProcess(tmp_path / "a", *flags, "--node-broker-set", "a") as a,
        BrokerProcess(
            tmp_path / "b", *flags, "--node-broker-set", "b", "--broker-seeds", a.address
        ) as b,
    ):

        def sets(broker: BrokerProcess) -> dict[str, Any]:
            try:
                found = ask(broker, "DescribeAccess", pb.DescribeAccessRequest(), root.text)
            except grpc.RpcError:
                return {}
            here = {"here": found.digest} if found.digest else {}
            return here | {one.broker_set: one.digest for one in found.others}

        # Both have the administrator of the same file, and nothing else: they agree.
        poll(lambda: len({*sets(a).values()}) == 1 == len(sets(a)) - 1, "a knows b", 60.0)
        poll(lambda: len({*sets(b).values()}) == 1 == len(sets(b)) - 1, "b knows a", 60.0)
        change(a, root.text, put_user("alice"))
        poll(lambda: len({*sets(b).values()}) == 2, "b sees that a differs", 60.0)
        change(b, root.text, put_user("alice"))
        poll(lambda: len({*sets(a).values()}) == 1, "they agree again", 60.0)
        # The key of the cluster may greet, read the log and hand leadership over, and nothing else.
        cluster_key = file.read_text()
        request = cluster_pb2.GreetRequest(cluster="mq", sender=cluster_pb2.PeerSet(name="b"))
        call(a.address, "ClusterService/Greet", request, cluster_pb2.GreetResponse, cluster_key)
        log_request = admin_pb2.ReadLogRequest()
        call(a.address, "AdminService/ReadLog", log_request, admin_pb2.LogChunk, cluster_key)
        with pytest.raises(grpc.RpcError, match="alone in its set"):
            call(
                a.address,
                "AdminService/TransferLeadership",
                admin_pb2.TransferLeadershipRequest(),
                admin_pb2.TransferLeadershipResponse,
                cluster_key,
            )
        changed = pb.ChangeAccessRequest(changes=[put_user("mallory", "superuser")])
        assert refused(a, "ChangeAccess", changed, cluster_key) == "PERMISSION_DENIED"
        with pytest.raises(grpc.RpcError):
            call(
                a.address,
                "AdminService/CreateTopic",
                admin_pb2.CreateTopicRequest(topic="t"),
                admin_pb2.TopicInfo,
                cluster_key,
            )
        with pytest.raises(grpc.RpcError):
            call(a.address, "ClusterService/Greet", request, cluster_pb2.GreetResponse, other.text)
        assert cluster_key not in a.output() + b.output()


def test_a_backup_has_the_users_and_what_proves_them(tmp_path: Path) -> None:
    root, data = keys.new(), tmp_path / "restored"
    file = tmp_path / "key"
    file.write_text(root.text)
    file.chmod(0o600)
    with BrokerProcess(tmp_path / "data", *REQUIRED) as broker:
        token = token_of(tmp_path / "data")
        change(broker, token, put_user("root", "superuser"), credential("root", root))
        before = ask(broker, "DescribeAccess", pb.DescribeAccessRequest(), root.text)
        server = ("--server", broker.address, "--api-key-file", str(file))
        for arguments in (
            ("backup", str(tmp_path / "backup"), *server),
            ("restore", str(tmp_path / "backup"), "--data", str(data), "--node", "node-0"),
        ):
            ended = run_mq(*arguments)
            assert ended.returncode == 0, ended.stdout + ended.stderr
    with BrokerProcess(data, *REQUIRED) as restored:
        found = ask(restored, "DescribeAccess", pb.DescribeAccessRequest(), root.text)
        assert (found.state, found.digest) == (before.state, before.digest)
        assert not (data / "bootstrap-token").exists()
        found = [one["what"] for one in trail(restored, root.text)]
        assert found == ["bootstrap", "bootstrap", "put_user", "put_credential"]
