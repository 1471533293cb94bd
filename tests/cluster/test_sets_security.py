"""Users, keys, policies and quotas in a cluster of several broker sets, which are separate logs: by
the client and by the commands on top of it.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

import pytest
from click.testing import CliRunner, Result

from mq.access import keys, passwords
from mq.cli import main as cli
from mq.cli.audit import audit
from mq.cli.keys import key
from mq.cli.policies import policy
from mq.cli.users import user
from mq.client import Admin
from mq.errors import IllegalRequest, MqError, Unauthenticated, Unreachable
from mq.wire.v1 import security_pb2 as pb
from tests.support.broker_process import BrokerProcess
from tests.support.raft_cluster import poll

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORD = "correct horse"
DEADLINE_S = 60.0


class SecuredSets:
    """Two sets of one broker each, a and b, which want to know their callers, and whose first
    administrator is the same: root.
    """

    def __init__(self, folder: Path, *, has_same_secret_key: bool = True) -> None:
        self.root = keys.new().text
        self.root_file = folder / "root.key"
        admin, cluster = folder / "first-admin", folder / "cluster.key"
        texts = {self.root_file: self.root, admin: f"root:{self.root}", cluster: keys.new().text}
        for path, text in texts.items():
            path.write_text(f"{text}\n")
            path.chmod(0o600)
        flags = [
            *("--auth-mode", "required"),
            *("--auth-bootstrap-admin-file", str(admin)),
            *("--auth-cluster-key-file", str(cluster)),
        ]
        secrets_of = {name: folder / f"{name}.secret" for name in "ab"}
        for at, path in enumerate(secrets_of.values()):
            path.write_text(
                "one secret of the whole cluster!" + "x" * at * (not has_same_secret_key)
            )
            path.chmod(0o600)
        self._flags = {
            name: [*flags, "--auth-secret-key-file", str(path), "--node-broker-set", name]
            for name, path in secrets_of.items()
        }
        self.a = BrokerProcess(folder / "a", *self._flags["a"])
        self._folder = folder

    @property
    def servers(self) -> str:
        return f"{self.a.address},{self.b.address}"

    def __enter__(self) -> Self:
        seeds = ("--broker-seeds", self.a.start().address)
        self.b = BrokerProcess(self._folder / "b", *self._flags["b"], *seeds).start()
        with Admin(self.a.address, api_key=self.root) as admin:
            poll(lambda: _known(admin) == {"a", "b"}, "both sets know root", DEADLINE_S)
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self.a, self.b):
            one.__exit__()


def _known(admin: Admin) -> set[str]:
    try:
        return set(admin.who_am_i())
    except MqError:
        return set()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredSets]:
    with SecuredSets(tmp_path_factory.mktemp("sets")) as made:
        yield made


@pytest.fixture(scope="module")
def admin(cluster: SecuredSets) -> Iterator[Admin]:
    with Admin(cluster.servers, api_key=cluster.root) as made:
        yield made


def mq(cluster: SecuredSets, *arguments: str, exit_code: int = 0) -> Result:
    """In this process, against the real brokers, on a terminal of 80 columns, as root."""
    main = cli._Group("mq", commands={str(one.name): one for one in (audit, key, policy, user)})
    environment = {
        "COLUMNS": "80",
        "MQ_SERVER": cluster.servers,
        "MQ_API_KEY_FILE": str(cluster.root_file),
    }
    result = CliRunner(env=environment).invoke(main, arguments, prog_name="mq")
    assert result.exit_code == exit_code, (result.output, result.exception)
    if "--json" not in arguments and "check" not in arguments:
        assert max([len(line.rstrip()) for line in result.stdout.splitlines()], default=0) <= 80
    return result


def mq_json(cluster: SecuredSets, *arguments: str) -> Any:
    return json.loads(mq(cluster, *arguments, "--json").stdout)


def test_every_set_has_every_change(cluster: SecuredSets, admin: Admin) -> None:
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
        assert [one.name for one in state.users] == ["alice", "root"]
        own = {one.id for one in state.credentials if one.user == "alice"}
        assert own == {made.id, "password-alice"}
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
    assert all(len(one.users) == 1 for one in admin.describe_access().states.values())


def test_a_set_that_differs_is_told_and_brought_in_line(cluster: SecuredSets, admin: Admin) -> None:
    admin.create_user("both")
    admin.change_access([pb.AccessChange(put_user=pb.User(name="bob"))], broker_set="a")
    admin.change_access([pb.AccessChange(put_user=pb.User(name="mallory"))], broker_set="b")
    listed = mq(cluster, "user", "list", "--set", "a")
    assert "3 users" in listed.stdout
    assert listed.stderr == (
        "warning: b differs from a, which is shown: also has user mallory, lacks user bob. "
        "mq user sync brings it in line.\n"
    )
    done = mq(cluster, "user", "sync", "--from", "a", "--yes")
    assert done.stdout.endswith("b is as a is now.\n")
    assert [one["name"] for one in mq_json(cluster, "user", "list", "--set", "b")] == [
        "bob",
        "both",
        "root",
    ]
    assert "All broker sets" in mq(cluster, "user", "sync", "--from", "a").stdout
    for name in ("bob", "both"):
        mq(cluster, "user", "delete", name, "--yes")


def test_another_password_in_one_set_is_seen_and_set_anew(
    cluster: SecuredSets, admin: Admin
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


def test_keys_and_passwords_are_copied_to_a_set_that_lacks_them(
    cluster: SecuredSets, admin: Admin
) -> None:
    admin.create_user("gina", password=WORD)
    made = admin.create_key("gina")
    access_key = admin.create_access_key("gina")
    before = _credentials(admin, "a")
    # As if the set had been added later, with another password that somebody gave gina there.
    changes = [
        pb.AccessChange(drop_user="gina"),
        pb.AccessChange(put_user=pb.User(name="gina")),
        pb.AccessChange(
            put_credential=pb.Credential(
                id="password-gina", user="gina", type=pb.PASSWORD, proof=passwords.hashed("other 1")
            )
        ),
    ]
    admin.change_access(changes, broker_set="b")
    with Admin(cluster.servers, api_key=made.text) as gina:
        assert set(gina.who_am_i()) == {"a"}
    assert admin.login("gina", WORD).refusing_sets == ("b",)

    done = mq(cluster, "user", "sync", "--from", "a", "--yes")
    assert done.stdout.endswith("b is as a is now.\n")
    view = admin.describe_access("a")
    assert view.differences == {}
    assert len(set(view.digests.values())) == 1
    # Byte for byte, also the secret that the broker has encrypted.
    assert _credentials(admin, "b") == _credentials(admin, "a") == before
    assert {made.id, access_key.id, "password-gina"} <= set(before)
    with Admin(cluster.servers, api_key=made.text) as gina:
        assert set(gina.who_am_i()) == {"a", "b"}
    assert admin.login("gina", WORD).refusing_sets == ()
    # Reading it is told, without what was read.
    lines = mq(cluster, "audit", "--what", "describe_proofs", "--json").stdout
    records = [json.loads(line) for line in lines.splitlines()]
    assert {one["broker_set"] for one in records} == {"a", "b"}
    assert {(one["user"], one["subject"]) for one in records} == {("root", "cluster:access")}
    said = lines + cluster.a.output() + cluster.b.output() + done.output
    assert "scrypt" not in said
    assert access_key.secret not in said
    admin.delete_user("gina")


def _credentials(admin: Admin, broker_set: str) -> dict[str, bytes]:
    """What proves those that sets share, by their ids."""
    state = _ask(admin, broker_set, pb.DescribeAccessRequest(with_proofs=True)).state
    return {one.id: one.proof for one in state.credentials if one.type != pb.SESSION_KEY}


def _ask(admin: Admin, broker_set: str, request: Any) -> Any:
    return admin._run(admin._client._ask(broker_set, request))


def test_a_set_with_another_secret_key_file_takes_no_access_keys(tmp_path: Path) -> None:
    with (
        SecuredSets(tmp_path, has_same_secret_key=False) as cluster,
        Admin(cluster.servers, api_key=cluster.root) as admin,
    ):
        admin.create_user("hans")
        put = pb.Credential(id="rocket", user="hans", type=pb.HMAC_SHA1, proof=b"of hans")
        admin.change_access([pb.AccessChange(put_credential=put)], broker_set="a")
        with pytest.raises(IllegalRequest, match=r"have the same auth\.secret_key_file"):
            admin.sync_access("a")
        assert "rocket" not in _credentials(admin, "b")


def test_administrators_at_once_lose_no_change_of_each_other(
    cluster: SecuredSets, admin: Admin
) -> None:
    admin.create_user("ivan")
    roles = [f"role{at}" for at in range(4)]

    def grant(role: str) -> None:
        with Admin(cluster.servers, api_key=cluster.root) as one:
            one.grant_roles("ivan", [role])

    with ThreadPoolExecutor(len(roles)) as pool:
        list(pool.map(grant, roles))
    view = admin.describe_access()
    assert view.differences == {}
    assert list(view.user("ivan").roles) == roles
    admin.delete_user("ivan")


def test_the_trails_of_all_sets_are_one_list(cluster: SecuredSets, admin: Admin) -> None:
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


def test_a_login_is_known_to_sets_that_tell_of_each_other_to_known_callers_alone(
    cluster: SecuredSets, admin: Admin
) -> None:
    admin.create_user("eve", password=WORD)
    with Admin(cluster.a.address) as nobody:
        with pytest.raises(Unauthenticated):
            nobody.route()
        session = nobody.login("eve", WORD)
    assert (session.missing_sets, session.refusing_sets) == ((), ())
    with Admin(cluster.a.address, api_key=session.key.text) as eve:
        assert {name: one.user for name, one in eve.who_am_i().items()} == {"a": "eve", "b": "eve"}
        eve.logout()
        with pytest.raises(Unauthenticated):
            eve.who_am_i()
    admin.delete_user("eve")


def test_a_client_is_served_by_the_set_that_knows_it(cluster: SecuredSets, admin: Admin) -> None:
    made = keys.new()
    proof = keys.digest(made.secret)
    credential = pb.Credential(id=made.id, user="frank", type=pb.API_KEY, proof=proof)
    changes = [
        pb.AccessChange(put_user=pb.User(name="frank")),
        pb.AccessChange(put_credential=credential),
    ]
    admin.change_access(changes, broker_set="b")
    # A broker of the other set is named first.
    with Admin(cluster.servers, api_key=made.text) as frank:
        assert {name: one.user for name, one in frank.who_am_i().items()} == {"b": "frank"}
    with (
        Admin(cluster.servers, api_key=keys.new().text) as nobody,
        pytest.raises(Unauthenticated),
    ):
        nobody.who_am_i()
    admin.change_access([pb.AccessChange(drop_user="frank")], broker_set="b")


def test_administrators_whose_keys_are_lost_get_back_in_set_by_set(tmp_path: Path) -> None:
    with SecuredSets(tmp_path) as cluster:
        files = {name: tmp_path / name / "bootstrap-token" for name in ("a", "b")}
        for file in files.values():
            file.touch()
        poll(lambda: all(map(_size, files.values())), "both have a token", DEADLINE_S)
        tokens = {name: file.read_text().strip() for name, file in files.items()}
        made = keys.new()
        proof = keys.digest(made.secret)
        credential = pb.Credential(id=made.id, user="root", type=pb.API_KEY, proof=proof)
        for name, token in tokens.items():
            with Admin(cluster.servers, api_key=token) as admin:
                changes = [pb.AccessChange(put_credential=credential)]
                admin.change_access(changes, broker_set=name)
        with Admin(cluster.servers, api_key=made.text) as root:
            assert {one.user for one in root.who_am_i().values()} == {"root"}
            view = root.describe_access()
            assert (set(view.states), view.differences) == ({"a", "b"}, {})
        found = mq(cluster, "audit", "--what", "bootstrap", "--json").stdout
        assert found.count('"bootstrap"') >= 2
        poll(lambda: not any(map(_size, files.values())), "the tokens are over", DEADLINE_S)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def test_nothing_is_changed_while_a_set_does_not_answer(tmp_path: Path) -> None:
    with (
        SecuredSets(tmp_path) as cluster,
        Admin(cluster.servers, api_key=cluster.root, timeout_s=2) as admin,
    ):
        admin.create_user("alice")
        cluster.b.kill()
        for change in (
            lambda: admin.create_user("bob"),
            lambda: admin.create_key("alice"),
            lambda: admin.delete_user("alice"),
        ):
            with pytest.raises(Unreachable, match="nothing was changed"):
                change()
        view = admin.describe_access()
        assert view.missing_sets == ("b",)
        assert [one.name for one in view.state.users] == ["alice", "root"]
        assert not view.credentials_of("alice")
        shown = mq(cluster, "user", "list", "--timeout", "2", exit_code=1)
        assert "2 users" in shown.stdout
        assert "broker set b did not answer" in shown.stderr
