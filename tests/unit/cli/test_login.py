"""`mq login`, `mq logout` and `mq whoami`: the key goes into a profile, the password nowhere."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from mq.access import keys
from mq.cli import profiles
from mq.cli.login import login, logout, whoami
from mq.client.admin.security import Session, SetAnswers
from mq.errors import Unauthenticated
from mq.wire.v1 import security_pb2 as pb
from mq.wire.v1.cluster_pb2 import BrokerSet, RouteResponse
from tests.support.commands import FakeAdmin, run

KEY, OTHER = keys.new(), keys.new()
EXPIRES_AT_MS = 1_783_850_000_123
SESSION = Session(KEY, EXPIRES_AT_MS)
WORD = "correct horse"


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("MQ_PROFILE", "MQ_API_KEY", "MQ_API_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "mq" / "profiles.toml"


def logged_in(*arguments: str, stdin: str = f"{WORD}\n", session: Session = SESSION) -> Any:
    admin = FakeAdmin(login=session)
    return run(login, "--user", "alice", *arguments, admin=admin, stdin=stdin)


def values(name: str | None = None) -> dict[str, Any]:
    found = profiles.find(name)
    assert found is not None
    return dict(found.values)


def test_a_first_login_makes_the_profile_that_is_used_from_then_on(config: Path) -> None:
    result = logged_in()
    assert result.stdout == "Logged in as alice until 2026-07-12 09:53:20 UTC, in profile mq.\n"
    assert values() == {"server": "127.0.0.1:8081", "api_key": KEY.text}
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    for secret in (WORD, KEY.secret):
        assert secret not in result.output
    assert WORD not in config.read_text()


def test_the_user_and_the_password_are_asked_for() -> None:
    admin = FakeAdmin(login=SESSION)
    result = run(login, admin=admin, stdin=f"bob\n{WORD}\n")
    assert admin.called("login") == [(("bob", WORD), {})]
    assert WORD not in result.output


def test_a_password_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{WORD}\n")
    admin = FakeAdmin(login=SESSION)
    result = run(login, "--user", "a", "--password-file", str(file), "--json", admin=admin)
    assert admin.called("login") == [(("a", WORD), {})]
    document = json.loads(result.stdout)
    assert (document["key_id"], document["profile"]) == (KEY.id, "mq")
    assert KEY.secret not in result.output


def test_a_named_profile_is_made_or_renewed_with_how_to_connect(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    arguments = ("--profile", "shop", "--server", "a.example:8081", "--ca", str(authority))
    result = logged_in(*arguments, "--namespace", "ns")
    assert result.exit_code == 0, result.output
    expected = {
        "server": "a.example:8081",
        "ca": str(authority),
        "namespace": "ns",
        "api_key": KEY.text,
    }
    assert values("shop") == expected
    profiles.save("shop", api_key=None, api_key_file="/old")
    again = logged_in("--profile", "shop", session=Session(OTHER, EXPIRES_AT_MS))
    assert again.exit_code == 0, again.output
    assert values("shop") == {**expected, "api_key": OTHER.text}


def test_a_login_to_other_brokers_leaves_the_usual_profile_alone() -> None:
    logged_in()
    result = logged_in("--server", "127.0.0.1:9999", session=Session(OTHER, EXPIRES_AT_MS))
    assert "in profile 127-0-0-1-9999." in result.stdout
    assert "--profile 127-0-0-1-9999" in result.stderr
    assert values()["api_key"] == KEY.text
    assert values("127-0-0-1-9999")["api_key"] == OTHER.text


def test_a_password_does_not_cross_a_network_in_the_clear() -> None:
    result = logged_in("--server", "127.0.0.1:8081,b.example:8081")
    assert result.exit_code == 1
    assert "would go to b.example without TLS" in result.stderr
    for arguments in (["--plaintext"], ["--tls"]):
        allowed = logged_in("--server", "b.example:8081", *arguments)
        assert allowed.exit_code == 0, allowed.output
    for server in ("[::1]:8081", "localhost:8081"):
        assert logged_in("--server", server).exit_code == 0


def test_a_login_that_is_refused_changes_no_profile(config: Path) -> None:
    admin = FakeAdmin(login=Unauthenticated("the user or the password is wrong"))
    result = run(login, "--user", "alice", admin=admin, stdin=f"{WORD}\n")
    assert result.exit_code == 1
    assert not config.exists()
    assert WORD not in result.output


def test_sets_that_do_not_know_the_key_are_told() -> None:
    session = Session(KEY, EXPIRES_AT_MS, ("set-1",), ("set-2",))
    result = logged_in(session=session)
    assert result.exit_code == 1
    assert "warning: set-2 has no such user or another password" in result.stderr
    assert "broker set set-1 did not answer" in result.stderr
    assert values()["api_key"] == KEY.text


def test_a_key_in_the_environment_is_told_since_it_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQ_API_KEY_FILE", "/some/file")
    assert "MQ_API_KEY_FILE is set" in logged_in().stderr


def test_a_logout_revokes_the_key_and_forgets_it() -> None:
    logged_in()
    result = run(logout, admin=FakeAdmin(logout=KEY.id))
    assert result.stdout == f"Logged out: key {KEY.id} is of no use any more.\n"
    assert values() == {"server": "127.0.0.1:8081"}


def test_a_session_that_is_over_is_forgotten_too() -> None:
    logged_in()
    assert run(logout, admin=FakeAdmin(logout=Unauthenticated("expired"))).exit_code == 0
    assert "api_key" not in values()


def test_a_logout_without_a_key_of_a_profile_leaves_profiles_alone() -> None:
    logged_in()
    arguments = ("--server", "127.0.0.1:9999")
    result = run(logout, *arguments, admin=FakeAdmin(logout=Unauthenticated("who?")))
    assert result.exit_code == 1
    assert values()["api_key"] == KEY.text


def test_who_am_i_is_said_once_for_sets_that_agree() -> None:
    alice = pb.WhoAmIResponse(
        user="alice",
        roles=["app"],
        credential=KEY.id,
        expires_at_ms=EXPIRES_AT_MS,
        auth_mode="required",
        address="10.0.0.1",
    )
    route = RouteResponse(broker_sets=[BrokerSet(name=f"set-{number}") for number in range(3)])
    admin = FakeAdmin(who_am_i=SetAnswers([("set-0", alice), ("set-1", alice)]), route=route)
    result = run(whoami, admin=admin)
    assert result.stdout.count("alice") == 1
    assert "2026-07-12 09:53:20 UTC" in result.stdout
    assert "warning: set-2 knows no such user" in result.stderr
    other = pb.WhoAmIResponse(user="bob")
    admin = FakeAdmin(who_am_i=SetAnswers([("set-0", alice), ("set-1", other)]), route=route)
    text = run(whoami, admin=admin).stdout
    assert ["in", "set", "set-1"] in [line.split() for line in text.splitlines()]


def test_callers_that_are_not_known_hear_what_to_do() -> None:
    result = run(whoami, admin=FakeAdmin(who_am_i=Unauthenticated("who?")))
    assert result.exit_code == 1
    assert "mq login" in result.stderr
