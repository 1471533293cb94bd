"""`mq key`: secrets that are shown once, or written where only their owner reads them."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from mq.access import keys
from mq.cli.keys import key
from mq.client.admin.security import AccessKey
from mq.errors import IllegalRequest, UserNotFound
from mq.wire.v1 import security_pb2 as pb
from tests.support import access
from tests.support.access import access_view
from tests.support.commands import FakeAdmin, assert_fits, run, run_json

KEY = keys.new()
VIEW = access_view(
    access.user("alice"),
    access.user("b" * 100),
    access.credential("abcdefghijkl", "alice"),
    access.credential("password-alice", "alice", type=pb.PASSWORD),
    access.credential(
        "qrstuvwxyz23", "b" * 100, type=pb.SESSION_KEY, expires_at_ms=4_102_444_800_000
    ),
)


def test_a_new_key_is_alone_on_stdout() -> None:
    admin = FakeAdmin(create_key=KEY)
    result = run(key, "create", "alice", admin=admin)
    assert result.stdout == f"{KEY.text}\n"
    assert f"Key {KEY.id} of user alice" in result.stderr
    assert KEY.secret not in result.stderr
    assert admin.called("create_key") == [(("alice",), {"expires_at_ms": 0})]


def test_a_key_may_expire() -> None:
    admin = FakeAdmin(create_key=KEY)
    document = run_json(key, "create", "alice", "--expires", "90d", admin=admin)
    assert document["key"] == KEY.text
    assert document["expires_at_ms"] == admin.called("create_key")[0][1]["expires_at_ms"] > 0


def test_a_key_in_a_file_is_for_its_owner_alone_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "alice.key"
    result = run(key, "create", "alice", "--output", str(file), admin=FakeAdmin(create_key=KEY))
    assert result.exit_code == 0
    assert KEY.secret not in result.output
    assert file.read_text() == f"{KEY.text}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    document = run(
        key,
        *("create", "alice", "--output", str(tmp_path / "other"), "--json"),
        admin=FakeAdmin(create_key=KEY),
    )
    assert "key" not in json.loads(document.stdout)


def test_a_file_that_exists_stays_and_no_key_is_made(tmp_path: Path) -> None:
    file = tmp_path / "alice.key"
    file.write_text("old")
    admin = FakeAdmin(create_key=KEY)
    result = run(key, "create", "alice", "--output", str(file), admin=admin)
    assert result.exit_code == 1
    assert "exists" in result.stderr
    assert (file.read_text(), admin.called("create_key")) == ("old", [])
    missing = run(key, "create", "alice", "--output", str(tmp_path / "no" / "x"), admin=admin)
    assert "No such file" in missing.stderr
    assert not admin.called("create_key")


def test_a_key_that_could_not_be_made_leaves_no_file(tmp_path: Path) -> None:
    file = tmp_path / "alice.key"
    admin = FakeAdmin(create_key=UserNotFound("there is no user alice"))
    assert run(key, "create", "alice", "--output", str(file), admin=admin).exit_code == 1
    assert not file.exists()


@pytest.mark.parametrize("columns", [70, 80, 140])
def test_the_list_fits_the_terminal(columns: int) -> None:
    result = run(key, "list", admin=FakeAdmin(describe_access=VIEW), columns=columns)
    assert_fits(result.stdout, columns)
    assert "3 credentials" in result.stdout
    assert "2100-01-01 00:00:00" in result.stdout


def test_the_list_of_one_user_has_no_proof() -> None:
    found = run_json(key, "list", "alice", admin=FakeAdmin(describe_access=VIEW))
    assert [(one["id"], one["type"]) for one in found] == [
        ("abcdefghijkl", "api_key"),
        ("password-alice", "password"),
    ]
    assert not [one for one in found if "proof" in one]
    wrong = run(key, "list", "alise", admin=FakeAdmin(describe_access=VIEW))
    assert "did you mean alice?" in wrong.stderr


def test_a_revocation_asks_and_takes_a_whole_key_for_its_id() -> None:
    admin = FakeAdmin(revoke_key=None)
    assert run(key, "revoke", KEY.id, admin=admin, stdin="n\n").exit_code == 1
    assert not admin.called("revoke_key")
    result = run(key, "revoke", KEY.text, "--yes", admin=admin)
    assert result.stdout == f"Revoked key {KEY.id}.\n"
    assert admin.called("revoke_key") == [((KEY.id,), {})]
    unknown = FakeAdmin(revoke_key=IllegalRequest("there is no key 'x'"))
    assert run(key, "revoke", "x", "--yes", admin=unknown).exit_code == 1


def test_an_access_key_is_shown_once() -> None:
    admin = FakeAdmin(create_access_key=AccessKey("abc", "s3cret"))
    result = run(key, "create-access-key", "alice", admin=admin)
    assert result.stdout == "access key  abc\nsecret key  s3cret\n"
    assert "s3cret" not in repr(AccessKey("abc", "s3cret"))


def test_a_key_for_files_of_brokers_is_made_without_asking_one(tmp_path: Path) -> None:
    texts = {run(key, "generate").stdout.strip() for _ in range(2)}
    assert len(texts) == 2
    assert all(map(keys.parse, texts))
    file = tmp_path / "cluster.key"
    written = run(key, "generate", "--output", str(file))
    made = keys.parse(file.read_text().strip())
    assert made is not None
    assert made.secret not in written.output
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert run(key, "generate", "--output", str(file)).exit_code == 1
