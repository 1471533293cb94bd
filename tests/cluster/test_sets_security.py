"""Users, keys, policies and quotas in a cluster of several broker sets, which are separate logs: by
the client and by the commands on top of it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from mq.access import keys, passwords
from mq.cli import main as cli
from mq.cli.audit import audit
from mq.cli.keys import key
from mq.cli.policies import policy
from mq.cli.users import user
from mq.client import Admin
from mq.errors import MqError, Unauthenticated, Unreachable
from mq.wire.v1 import security_pb2 as pb
from tests.support.broker_cluster import BrokerCluster
from tests.support.broker_process import BrokerProcess
from tests.support.raft_cluster import poll

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORD = "correct horse"
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with BrokerCluster(tmp_path_factory.mktemp("sets"), "a", "b") as made:
        yield made


@pytest.fixture(scope="module")
def admin(cluster: BrokerCluster) -> Iterator[Admin]:
    with Admin(cluster.servers) as made:
        yield made


def mq(cluster: BrokerCluster, *arguments: str, exit_code: int = 0) -> Result:
    """In this process, against the real brokers, on a terminal of 80 columns."""
    main = cli._Group("mq", commands={str(one.name): one for one in (audit, key, policy, user)})
    runner = CliRunner(env={"COLUMNS": "80", "MQ_SERVER": cluster.servers})
    result = runner.invoke(main, arguments, prog_name="mq")
    assert result.exit_code == exit_code, (result.output, result.exception)
    if "--json" not in arguments and "check" not in arguments:
        assert max([len(line.rstrip()) for line in result.stdout.splitlines()], default=0) <= 80
    return result


def mq_json(cluster: BrokerCluster, *arguments: str) -> Any:
    return json.loads(mq(cluster, *arguments, "--json").stdout)


def test_every_set_has_every_change(cluster: BrokerCluster, admin: Admin) -> None:
    admin.create_namespace("shop")
    admin.create_user("alice", roles=["app"], namespaces=["shop"], password=WORD)
    made = admin.create_key("alice", expires_at_ms=4_102_444_800_000)
    admin.add_policy("user:alice", "allow publish topic shop%orders-*")
    admin.set_quota(pb.Quota(subject="user:alice", streams=5))
    view = admin.describe_access()
    assert set(view.states) == {"a", "b"}
    assert len(set(view.digests.values())) == 1
    assert view.differences == {}
    for state in view.states.values():
        assert [one.name for one in state.users] == ["alice"]
        assert {one.id for one in state.credentials} == {made.id, "password-alice"}
        assert not any(one.proof for one in state.credentials)
    mq(cluster, "policy", "check", "alice", "publish", "topic:shop%orders-1")
    mq(cluster, "policy", "check", "alice", "consume", "topic:shop%orders-1", exit_code=1)
    outside = mq(cluster, "policy", "check", "alice", "publish", "topic:orders-1", exit_code=1)
    assert "such as shop%orders-1" in outside.stdout
    session = admin.login("alice", WORD)
    assert (session.missing_sets, session.refusing_sets) == ((), ())
    for state in admin.describe_access().states.values():
        assert session.key.id in {one.id for one in state.credentials}
    # Sessions end by the clock of each set: they are no difference.
    assert admin.describe_access().differences == {}
    admin.revoke_key(session.key.id)
    admin.delete_user("alice")
    admin.delete_namespace("shop")
    assert not any(one.users for one in admin.describe_access().states.values())


def test_a_set_that_differs_is_told_and_brought_in_line(
    cluster: BrokerCluster, admin: Admin
) -> None:
    admin.create_user("both")
    admin.change_access([pb.AccessChange(put_user=pb.User(name="bob"))], broker_set="a")
    admin.change_access([pb.AccessChange(put_user=pb.User(name="mallory"))], broker_set="b")
    listed = mq(cluster, "user", "list", "--set", "a")
    assert "2 users" in listed.stdout
    assert listed.stderr == (
        "warning: b differs from a, which is shown: also has user mallory, lacks user bob. "
        "mq user sync brings it in line.\n"
    )
    done = mq(cluster, "user", "sync", "--from", "a", "--yes")
    assert done.stdout.endswith("b is as a is now.\n")
    assert [one["name"] for one in mq_json(cluster, "user", "list", "--set", "b")] == [
        "bob",
        "both",
    ]
    assert "All broker sets" in mq(cluster, "user", "sync", "--from", "a").stdout
    for name in ("bob", "both"):
        mq(cluster, "user", "delete", name, "--yes")


def test_another_password_in_one_set_is_seen_and_set_anew(
    cluster: BrokerCluster, admin: Admin
) -> None:
    admin.create_user("carol", password=WORD)
    proof = passwords.hashed("another word")
    changed = pb.Credential(id="password-carol", user="carol", type=pb.PASSWORD, proof=proof)
    admin.change_access([pb.AccessChange(put_credential=changed)], broker_set="b")
    assert admin.describe_access("a").differences == {"b": []}
    assert "another secret" in mq(cluster, "user", "list", "--set", "a").stderr
    assert admin.login("carol", WORD).refusing_sets == ("b",)
    admin.alter_user("carol", password=WORD)
    assert admin.describe_access("a").differences == {}
    assert admin.login("carol", WORD).refusing_sets == ()
    admin.delete_user("carol")


def test_the_trails_of_all_sets_are_one_list(cluster: BrokerCluster, admin: Admin) -> None:
    admin.create_user("dave")
    admin.delete_user("dave")
    lines = mq(cluster, "audit", "--about", "user:dave", "--json").stdout.splitlines()
    found = [json.loads(line) for line in lines]
    assert sorted((one["broker_set"], one["what"]) for one in found) == [
        ("a", "drop_user"),
        ("a", "put_user"),
        ("b", "drop_user"),
        ("b", "put_user"),
    ]
    assert [one["at_ms"] for one in found] == sorted(one["at_ms"] for one in found)
    assert "4 records" in mq(cluster, "audit", "--about", "user:dave").stdout


def test_nothing_is_changed_while_a_set_does_not_answer(tmp_path: Path) -> None:
    with BrokerCluster(tmp_path, "a", "b") as cluster, Admin(cluster.servers, timeout_s=2) as admin:
        admin.create_user("alice")
        cluster.sets["b"].kill_leader()
        for change in (
            lambda: admin.create_user("bob"),
            lambda: admin.create_key("alice"),
            lambda: admin.delete_user("alice"),
        ):
            with pytest.raises(MqError, match="nothing was changed") as caught:
                change()
            assert isinstance(caught.value, Unreachable)
        view = admin.describe_access()
        assert (view.missing_sets, [one.name for one in view.state.users]) == (("b",), ["alice"])
        assert not view.state.credentials
        shown = mq(cluster, "user", "list", "--timeout", "2", exit_code=1)
        assert "1 user" in shown.stdout
        assert "broker set b did not answer" in shown.stderr


def test_a_login_is_known_to_sets_that_tell_of_each_other_to_known_callers_alone(
    tmp_path: Path,
) -> None:
    root, cluster_key = keys.new(), keys.new()
    texts = {"admin": f"root:{root.text}", "cluster": cluster_key.text}
    for name, text in texts.items():
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_text(text)
    flags = [
        *("--auth-mode", "required"),
        *("--auth-bootstrap-admin-file", str(tmp_path / "admin")),
        *("--auth-cluster-key-file", str(tmp_path / "cluster")),
    ]
    with (
        BrokerProcess(tmp_path / "a", *flags, "--node-broker-set", "a") as a,
        BrokerProcess(
            tmp_path / "b", *flags, "--node-broker-set", "b", "--broker-seeds", a.address
        ),
        Admin(a.address, api_key=root.text) as admin,
        Admin(a.address) as nobody,
    ):
        poll(lambda: _known(admin) == {"a", "b"}, "both sets know the administrator", DEADLINE_S)
        assert admin.describe_access().differences == {}
        admin.create_user("alice", password=WORD)
        session = nobody.login("alice", WORD)
        assert (session.missing_sets, session.refusing_sets) == ((), ())
        with Admin(a.address, api_key=session.key.text) as alice:
            assert {name: one.user for name, one in alice.who_am_i().items()} == {
                "a": "alice",
                "b": "alice",
            }
            alice.logout()
            with pytest.raises(Unauthenticated):
                alice.who_am_i()


def _known(admin: Admin) -> set[str]:
    try:
        return set(admin.who_am_i())
    except MqError:
        return set()
