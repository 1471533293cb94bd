"""The commands about users, keys, policies, quotas and namespaces in processes of their own against
a real broker.
"""

from __future__ import annotations

import json
import os
import stat
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mq.access import keys
from tests.support.broker_process import BrokerProcess
from tests.support.raft_cluster import poll
from tests.support.secured_broker import SecuredBroker
from tests.support.warm_process import run_mq

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

DEADLINE_S = 60


class Program:
    """`mq` on a terminal of 80 columns."""

    def __init__(self, server: str, **variables: str) -> None:
        kept = {name: value for name, value in os.environ.items() if name[:3] != "MQ_"}
        self.environment = {**kept, "MQ_SERVER": server, **variables, "COLUMNS": "80"}

    def run(
        self, *arguments: str, exit_code: int = 0, stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        done = run_mq(*arguments, environment=self.environment, stdin=stdin, timeout=DEADLINE_S)
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        assert done.returncode == exit_code, (done.stdout + done.stderr).decode()
        return done

    def __call__(self, *arguments: str, exit_code: int = 0, stdin: bytes = b"") -> str:
        text = self.run(*arguments, exit_code=exit_code, stdin=stdin).stdout.decode()
        if {"list", "describe", "audit", "whoami"} & set(arguments):
            assert max(map(len, text.splitlines()), default=0) <= 80
        return text

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json").stdout)

    def refused(self, *arguments: str, exit_code: int = 1) -> str:
        done = self.run(*arguments, exit_code=exit_code)
        assert done.stdout == b""
        return done.stderr.decode()


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with SecuredBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield Program(broker.address, MQ_API_KEY_FILE=str(broker.root_file))


def test_a_user_from_its_creation_to_its_end(mq: Program, tmp_path: Path) -> None:
    assert mq("user", "create", "alice", "--role", "app") == "Created user alice, with role app.\n"
    assert "there is a user alice already" in mq.refused("user", "create", "alice")
    file = tmp_path / "alice.key"
    mq("key", "create", "alice", "--expires", "90d", "--output", str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    key = keys.parse(file.read_text().strip())
    assert key is not None
    assert keys.parse(mq("key", "create", "alice").strip()) is not None
    assert "revoke one first" in mq.refused("key", "create", "alice")
    mq("policy", "add", "--role", "app", "allow publish,describe topic orders-*")
    mq("policy", "add", "--user", "alice", "deny publish topic orders-secret from 10.0.0.0/8")
    text = mq("user", "describe", "alice")
    assert key.id in text
    assert "2 credentials, 2 policies" in text
    assert mq.json("key", "list", "alice")[0]["id"] == key.id
    mq("key", "revoke", key.id, "--yes")
    assert "no key" in mq.refused("key", "revoke", key.id, "--yes")
    mq("role", "grant", "alice", "billing")
    assert mq("role", "revoke", "alice", "app") == "User alice has role billing.\n"
    assert mq.json("user", "describe", "alice")["roles"] == ["billing"]
    mq("user", "disable", "alice")
    assert mq.json("user", "describe", "alice")["is_disabled"]
    mq("user", "enable", "alice")
    assert "not confirmed" in mq.refused("user", "delete", "alice")
    assert mq("user", "delete", "alice", "--yes") == "Deleted user alice.\n"
    assert "USER_NOT_FOUND" in mq.refused("user", "describe", "alice")
    mq("policy", "remove", "--role", "app", "allow publish,describe topic orders-*")


def test_the_deciding_line_is_shown_and_the_exit_code_says_it(mq: Program) -> None:
    mq("user", "create", "bob", "--role", "app")
    mq("policy", "add", "--role", "app", "allow publish topic orders-*")
    mq("policy", "add", "--user", "bob", "deny * topic orders-secret from 10.0.0.0/8")

    def check(resource: str, *more: str, exit_code: int) -> str:
        arguments = ("policy", "check", "bob", "publish", resource, *more)
        return mq.run(*arguments, exit_code=exit_code).stdout.decode()

    allowed = "allowed by role:app: allow publish topic orders-*\n"
    assert check("topic:orders-secret", exit_code=0) == allowed
    denied = check("topic:orders-secret", "--from", "10.1.2.3", exit_code=1)
    assert denied.startswith("denied by user:bob: deny ")
    assert check("group:orders-1", exit_code=1).startswith("denied: no line allows bob")
    assert "did you mean bob?" in mq.refused("policy", "check", "boob", "publish", "topic:x")
    assert "ILLEGAL_POLICY" in mq.refused("policy", "add", "--user", "bob", "allow eat topic x")
    mq("user", "delete", "bob", "--yes")


def test_quotas_and_namespaces(mq: Program) -> None:
    mq("namespace", "create", "shop")
    mq("user", "create", "carol", "--namespace", "shop")
    mq("quota", "set", "user:carol", "--publish-bytes", "10MiB/s", "--streams", "5")
    mq("quota", "set", "user:carol", "--streams", "unlimited", "--topics", "7")
    mq("quota", "set", "namespace:shop", "--stored-bytes", "5GiB")
    quotas = {one["subject"]: one for one in mq.json("quota", "list")}
    carol = quotas["user:carol"]
    assert (carol["publish_bytes_per_s"], carol["streams"], carol["topics"]) == (10 << 20, 0, 7)
    assert "10.0 MiB/s published, 7 topics" in mq("quota", "list")
    assert "carol" in mq("namespace", "list")
    assert "that of carol" in mq.refused("namespace", "delete", "shop", "--yes")
    assert "no namespace nope" in mq.refused("user", "alter", "carol", "--namespace", "nope")
    mq("quota", "remove", "user:carol")
    assert "has no quota" in mq.refused("quota", "remove", "user:carol")
    mq("user", "delete", "carol", "--yes")
    mq("namespace", "delete", "shop", "--yes")
    assert mq.json("quota", "list") == []


def test_every_change_is_in_the_audit_trail_without_its_secret(mq: Program) -> None:
    mq("user", "create", "dave", "--password-file", "-", stdin=b"correct horse\n")
    text = mq("key", "create", "dave").strip()
    key = keys.parse(text)
    assert key is not None
    mq("user", "delete", "dave", "--yes")
    lines = mq.run("audit", "--about", "user:dave", "--json").stdout.decode()
    records = [json.loads(line) for line in lines.splitlines()]
    assert [one["what"] for one in records] == [
        "put_user",
        "put_credential",
        "put_credential",
        "drop_user",
    ]
    assert key.id in lines
    assert key.secret not in lines
    assert "correct horse" not in lines
    assert "scrypt" not in lines
    assert "4 records" in mq("audit", "--about", "user:dave")
    assert "1 record\n" in mq("audit", "--about", "user:dave", "--what", "drop_user")
    assert "1 record\n" in mq("audit", "--about", "user:dave", "--what", "drop user")
    assert "0 records" in mq("audit", "--user", "nobody-else")


def test_from_the_first_token_to_a_session_and_a_user_that_may_do_one_thing(tmp_path: Path) -> None:
    data, password = tmp_path / "data", tmp_path / "password"
    password.write_text("correct horse\n")
    with BrokerProcess(data, "--auth-mode", "required") as broker:
        mq = Program(broker.address)
        mq.environment["XDG_CONFIG_HOME"] = str(tmp_path / "config")
        assert "mq login" in mq.refused("user", "list")
        poll((data / "bootstrap-token").exists, "there is a token", DEADLINE_S)
        token = (data / "bootstrap-token").read_text().strip()
        # A copy: the broker deletes its own.
        (tmp_path / "token").write_text(token)
        first = ("--api-key-file", str(tmp_path / "token"))
        arguments = ("--role", "superuser", "--password-file", str(password))
        # The token is of no use from here on, which is no trouble of this command.
        mq("user", "create", "root", *arguments, *first)
        assert "UNAUTHENTICATED" in mq.refused("user", "list", *first)
        login = ("login", "--user", "root", "--password-file", str(password))
        assert mq(*login).startswith("Logged in as root until ")
        assert "required" in mq("whoami")

        mq("user", "create", "shop")
        mq("policy", "add", "--user", "shop", "allow publish,create topic orders-*")
        file = tmp_path / "shop.key"
        mq("key", "create", "shop", "--output", str(file))
        as_shop = ("--api-key-file", str(file))
        mq("produce", "orders-1", "hello", *as_shop)
        assert "PERMISSION_DENIED" in mq.refused("produce", "secrets", "hello", *as_shop)
        assert "PERMISSION_DENIED" in mq.refused("consume", "orders-1", *as_shop)
        assert "PERMISSION_DENIED" in mq.refused("user", "create", "eve", *as_shop)
        assert [one["name"] for one in mq.json("user", "list", *as_shop)] == ["shop"]
        assert "orders-1" in mq("audit", "--user", "shop")
        # Refusals are written once a second.
        refused = ("audit", "--about", "topic:secrets", "--what", "denied")
        poll(lambda: "1 record\n" in mq(*refused), "the refusal is recorded", DEADLINE_S)

        profile = tmp_path / "config" / "mq" / "profiles.toml"
        session = tomllib.loads(profile.read_text())["mq"]["api_key"]
        mq("logout")
        assert "UNAUTHENTICATED" in mq.refused("user", "list")
        said = broker.output() + profile.read_text()
        for text in (token, session, file.read_text().strip()):
            key = keys.parse(text)
            assert key is not None
            assert key.secret not in said
        assert "correct horse" not in said


def test_nobody_is_known_while_authentication_is_off(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        mq = Program(broker.address)
        assert "everybody may do everything" in mq("whoami")
        [known] = mq.json("whoami").values()
        assert (known["user"], known["auth_mode"]) == ("", "off")
        assert "auth.mode is off" in mq.refused("user", "create", "mallory")
