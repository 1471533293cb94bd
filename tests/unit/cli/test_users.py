"""`mq user` and `mq role`: what they ask the brokers, what they show, and when they ask first."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from mq.cli.users import role, user
from mq.errors import Unreachable
from mq.wire.v1 import security_pb2 as pb
from mq.wire.v1.cluster_pb2 import BrokerSet, RouteResponse
from tests.support import access
from tests.support.access import access_view
from tests.support.commands import FakeAdmin, assert_fits, run, run_json

TWO_SETS = RouteResponse(broker_sets=[BrokerSet(name="set-0"), BrokerSet(name="set-1")])
ALICE = pb.User(name="alice", roles=["app"], namespaces=["shop"])
VIEW = access_view(
    access.namespace("shop"),
    access.user("alice", roles=["app", "web"], namespaces=["shop"]),
    access.user("x" * 127, is_disabled=True),
    access.user("root", roles=["superuser"]),
    access.credential("abcdefghijkl", "alice"),
    access.credential("password-alice", "alice", type=pb.PASSWORD),
    access.credential("qrstuvwxyz23", "alice", type=pb.SESSION_KEY, expires_at_ms=1),
    access.policy("user:alice", "allow publish topic orders-* from 10.0.0.0/8"),
    access.policy("role:app", "deny consume group billing"),
    access.quota("user:alice", publish_bytes_per_s=10 << 20, streams=3),
)


@pytest.mark.parametrize("columns", [70, 80, 140])
def test_the_list_fits_the_terminal(columns: int) -> None:
    result = run(user, "list", admin=FakeAdmin(describe_access=VIEW), columns=columns)
    assert_fits(result.stdout, columns)
    assert "3 users" in result.stdout
    assert "disabled" in result.stdout
    assert result.stderr == ""


def test_the_list_of_a_role() -> None:
    found = run_json(user, "list", "--role", "web", admin=FakeAdmin(describe_access=VIEW))
    assert [(one["name"], one["credential_count"]) for one in found] == [("alice", 3)]
    nobody = run(user, "list", "--role", "none", admin=FakeAdmin(describe_access=VIEW))
    assert nobody.stdout == "No users with role none\n"


def test_an_empty_list_says_how_to_begin() -> None:
    admin = FakeAdmin(describe_access=access_view())
    assert "mq user create" in run(user, "list", admin=admin).stdout


@pytest.mark.parametrize("columns", [80, 140])
def test_a_description_has_keys_policies_of_roles_and_the_quota(columns: int) -> None:
    admin = FakeAdmin(describe_access=VIEW)
    text = run(user, "describe", "alice", admin=admin, columns=columns).stdout
    assert_fits(text, columns)
    for part in ("enabled", "app, web", "abcdefghijkl", "expired", "10.0 MiB/s published", "3 str"):
        assert part in text
    assert "deny consume group billing" in " ".join(text.split())
    assert "3 credentials, 2 policies" in text
    (document,) = [run_json(user, "describe", "alice", admin=FakeAdmin(describe_access=VIEW))]
    assert [one["type"] for one in document["credentials"]] == [
        "api_key",
        "password",
        "session_key",
    ]
    assert document["quota"]["publish_bytes_per_s"] == 10 << 20


def test_a_user_that_is_mistyped_is_told_with_the_one_that_may_be_meant() -> None:
    result = run(user, "describe", "alcie", admin=FakeAdmin(describe_access=VIEW))
    assert result.exit_code == 1
    assert "USER_NOT_FOUND" in result.stderr
    assert "did you mean alice?" in result.stderr


def test_a_user_is_created_in_all_sets_without_its_password_in_the_arguments(
    tmp_path: Path,
) -> None:
    file = tmp_path / "password"
    file.write_text("correct horse\nignored\n")
    admin = FakeAdmin(create_user=ALICE, route=TWO_SETS)
    arguments = ("--role", "app,web", "--role", "x", "--namespace", "shop")
    result = run(user, "create", "alice", *arguments, "--password-file", str(file), admin=admin)
    expected = {
        "roles": ["app", "web", "x"],
        "namespaces": ["shop"],
        "password": "correct horse",
    }
    assert admin.called("create_user") == [(("alice",), expected)]
    assert result.stdout == (
        "Created user alice in set-0, set-1, with role app, in namespace shop.\n"
    )
    assert "correct" not in result.output


def test_a_password_is_asked_for_twice_and_never_shown() -> None:
    admin = FakeAdmin(create_user=ALICE)
    result = run(user, "create", "alice", "--password", admin=admin, stdin="secret 1\nsecret 1\n")
    assert result.exit_code == 0, result.output
    assert admin.called("create_user")[0][1]["password"] == "secret 1"  # noqa: S105
    assert "secret" not in result.output
    piped = FakeAdmin(create_user=ALICE)
    run(user, "create", "alice", "--password-file", "-", admin=piped, stdin="from a pipe\n")
    assert piped.called("create_user")[0][1]["password"] == "from a pipe"  # noqa: S105


def test_what_is_not_given_stays_as_it_is() -> None:
    admin = FakeAdmin(alter_user=ALICE)
    run(user, "alter", "alice", "--no-roles", admin=admin)
    run(user, "alter", "alice", "--namespace", "a", "--namespace", "b", admin=admin)
    run(user, "alter", "alice", "--no-password", admin=admin)
    run(user, "disable", "alice", admin=admin)
    nothing = {"roles": None, "namespaces": None, "password": None}
    assert admin.called("alter_user") == [
        (("alice",), {**nothing, "roles": []}),
        (("alice",), {**nothing, "namespaces": ["a", "b"]}),
        (("alice",), {**nothing, "password": ""}),
        (("alice",), {"is_disabled": True}),
    ]
    assert run(user, "alter", "alice", admin=admin).exit_code == 2
    assert run(user, "alter", "alice", "--role", "a", "--no-roles", admin=admin).exit_code == 2


def test_a_deletion_says_what_goes_and_asks() -> None:
    admin = FakeAdmin(describe_access=VIEW, delete_user=None)
    refused = run(user, "delete", "alice", admin=admin, stdin="n\n")
    assert refused.exit_code == 1
    assert "with 3 credentials" in refused.stderr
    assert not admin.called("delete_user")
    assert run(user, "delete", "alice", "--yes", admin=admin).stdout == "Deleted user alice.\n"
    assert admin.called("delete_user") == [(("alice",), {})]


# Sets that differ.

DIFFERENT = access_view(
    access.user("alice", roles=["app"]),
    access.user("bob"),
    access.credential("abcdefghijkl", "bob"),
    access.policy("user:bob", "allow publish topic x"),
    access.quota("default", streams=1),
    source="set-0",
    set_1=[access.user("alice"), access.user("mallory")],
)


def test_a_set_that_differs_is_told_beside_the_list() -> None:
    result = run(user, "list", admin=FakeAdmin(describe_access=DIFFERENT))
    assert result.exit_code == 0
    assert "2 users" in result.stdout
    assert result.stderr == (
        "warning: set-1 differs from set-0, which is shown: also has user mallory, has another "
        "user alice, lacks user bob and 3 more. mq user sync brings it in line.\n"
    )


def test_a_synchronisation_shows_what_it_will_do_and_asks() -> None:
    admin = FakeAdmin(describe_access=DIFFERENT, sync_access={})
    shown = run(user, "sync", "--from", "set-0", "--dry-run", admin=admin)
    assert shown.stdout == (
        "set-1 differs from set-0:\n"
        "  also has user mallory\n"
        "  has another user alice\n"
        "  lacks user bob\n"
        "  lacks key abcdefghijkl of bob\n"
        "  lacks user:bob 'allow publish topic x'\n"
        "  lacks quota default\n"
        "Nothing was changed.\n"
    )
    assert run(user, "sync", "--from", "set-0", admin=admin, stdin="n\n").exit_code == 1
    assert not admin.called("sync_access")
    done = run(user, "sync", "--from", "set-0", "--yes", admin=admin)
    assert done.stdout.endswith("set-1 is as set-0 is now.\n")
    assert admin.called("sync_access") == [(("set-0",), {"has_credentials": True})]


def test_keys_that_are_not_copied_are_told_and_fail_the_command() -> None:
    left = {"set-1": [access.credential("abcdefghijkl", "bob")]}
    admin = FakeAdmin(describe_access=DIFFERENT, sync_access=left)
    result = run(user, "sync", "--from", "set-0", "--no-credentials", "--yes", admin=admin)
    assert result.exit_code == 1
    assert admin.called("sync_access") == [(("set-0",), {"has_credentials": False})]
    assert result.stdout.endswith(
        "which are to be made anew:\n  set-1 lacks key abcdefghijkl of bob\n"
    )


def test_sets_that_agree_have_nothing_to_synchronise() -> None:
    admin = FakeAdmin(describe_access=VIEW)
    assert "All broker sets" in run(user, "sync", "--from", "set-0", admin=admin).stdout


def test_another_password_shows_in_the_digest_alone() -> None:
    first, second = (
        [access.user("alice"), access.credential("password-alice", "alice", proof=one)]
        for one in (b"1", b"2")
    )
    view = access_view(*first, set_1=second)
    result = run(user, "list", admin=FakeAdmin(describe_access=view))
    assert "a password or key has another secret there" in result.stderr


# Roles.


def test_roles_are_those_that_users_and_policies_name() -> None:
    found = run_json(role, "list", admin=FakeAdmin(describe_access=VIEW))
    assert [(one["role"], one["users"], one["policies"]) for one in found] == [
        ("app", ["alice"], 1),
        ("superuser", ["root"], 0),
        ("web", ["alice"], 0),
    ]
    text = run(role, "list", admin=FakeAdmin(describe_access=VIEW)).stdout
    assert ["superuser", "all", "root"] in [line.split() for line in text.splitlines()]


def test_a_role_is_granted_beside_the_others_and_revoked_alone() -> None:
    admin = FakeAdmin(grant_roles=ALICE, revoke_roles=ALICE)
    for verb in ("grant", "revoke"):
        result = run(role, verb, "alice", "new", "web", admin=admin)
        assert result.stdout == "User alice has role app.\n"
        assert admin.called(f"{verb}_roles") == [(("alice", ("new", "web")), {})]


def test_what_was_done_in_some_sets_alone_is_told() -> None:
    error = Unreachable("broker set b: gone; user alice is created in a by now")
    result = run(user, "create", "alice", admin=FakeAdmin(create_user=error))
    assert result.exit_code == 1
    assert "is created in a by now" in result.stderr


def test_passwords_are_no_argument(tmp_path: Path) -> None:
    assert not [one for one in user.commands["create"].params if one.name == "password"]
    empty = tmp_path / "empty"
    empty.touch(mode=stat.S_IRUSR)
    result = run(user, "create", "alice", "--password-file", str(empty), admin=FakeAdmin())
    assert result.exit_code == 2
    assert "first line is empty" in result.stderr
