"""`mq quota` and `mq namespace`: amounts with units, and what stays as it is."""

from __future__ import annotations

import pytest

from mq.cli.namespaces import namespace
from mq.cli.quotas import LIMITS, quota
from mq.wire.v1 import security_pb2 as pb
from tests.support import access
from tests.support.access import access_view
from tests.support.commands import FakeAdmin, assert_fits, run, run_json

VIEW = access_view(
    access.namespace("shop"),
    access.namespace("n" * 63),
    access.user("alice", namespaces=["shop"]),
    access.quota("user:alice", publish_bytes_per_s=10 << 20, publish_messages_per_s=1_000),
    access.quota("default", **{one.field: 1_000_000 for one in LIMITS}),
    access.quota("namespace:shop", stored_bytes=5 << 30),
)


def test_every_field_of_a_quota_has_an_option() -> None:
    fields = {one.name for one in pb.Quota.DESCRIPTOR.fields} - {"subject"}
    assert {one.field for one in LIMITS} == fields


def limits_set(*arguments: str) -> dict[str, int]:
    made = pb.Quota(subject=arguments[0], streams=7)
    admin = FakeAdmin(alter_quota=made)
    result = run(quota, "set", *arguments, admin=admin)
    assert (result.exit_code, result.stdout) == (0, f"{arguments[0]}: 7 streams.\n")
    [((subject, limits), _)] = admin.called("alter_quota")
    assert subject == arguments[0]
    assert isinstance(limits, dict)
    return limits


@pytest.mark.parametrize(
    ("flag", "text", "field", "amount"),
    [
        ("--publish-bytes", "10MiB/s", "publish_bytes_per_s", 10 << 20),
        ("--publish-bytes", "1.5MiB", "publish_bytes_per_s", 3 << 19),
        ("--delivered-bytes", "500kB/s", "delivered_bytes_per_s", 500_000),
        ("--publish-messages", "1000/s", "publish_messages_per_s", 1_000),
        ("--publish-messages", "2k/s", "publish_messages_per_s", 2_000),
        ("--stored-bytes", "2TiB", "stored_bytes", 2 << 40),
        ("--streams", "12", "streams", 12),
    ],
)
def test_amounts_have_units(flag: str, text: str, field: str, amount: int) -> None:
    assert limits_set("user:bob", flag, text) == {field: amount}


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--publish-bytes", "fast"),
        ("--publish-bytes", "10MiB/m"),
        ("--stored-bytes", "5GiB/s"),
        ("--streams", "5GiB"),
        ("--streams", "1.5"),
        ("--streams", "0"),
        ("--topics", "-1"),
    ],
)
def test_what_is_no_amount_is_told(flag: str, text: str) -> None:
    result = run(quota, "set", "user:bob", flag, text, admin=FakeAdmin())
    assert result.exit_code == 2
    assert text in result.stderr


def test_limits_that_are_not_given_stay_and_unlimited_lifts_one() -> None:
    given = limits_set("user:alice", "--streams", "3", "--publish-messages", "unlimited")
    assert given == {"streams": 3, "publish_messages_per_s": 0}


def test_a_quota_without_a_limit_is_told_as_none() -> None:
    admin = FakeAdmin(alter_quota=pb.Quota(subject="user:alice"))
    result = run(quota, "set", "user:alice", "--streams", "unlimited", admin=admin)
    assert result.stdout == "user:alice: not limited.\n"


@pytest.mark.parametrize("subject", ["alice", "user:", "role:app", "topic:x"])
def test_a_subject_is_a_user_a_namespace_or_the_default(subject: str) -> None:
    for arguments in (("set", subject, "--streams", "1"), ("remove", subject)):
        result = run(quota, *arguments, admin=FakeAdmin())
        assert result.exit_code == 2
        assert "user:alice, namespace:shop or default" in " ".join(result.stderr.split())
    assert run(quota, "set", "default", admin=FakeAdmin()).exit_code == 2


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_the_lists_fit_the_terminal(columns: int) -> None:
    for command in (quota, namespace):
        result = run(command, "list", admin=FakeAdmin(describe_access=VIEW), columns=columns)
        assert_fits(result.stdout, columns)
    text = " ".join(run(quota, "list", admin=FakeAdmin(describe_access=VIEW)).stdout.split())
    assert "user:alice 10.0 MiB/s published, 1,000 messages published/s" in text
    found = run_json(quota, "list", admin=FakeAdmin(describe_access=VIEW))
    assert [one["subject"] for one in found] == ["default", "namespace:shop", "user:alice"]


def test_namespaces_are_listed_with_their_users() -> None:
    found = run_json(namespace, "list", admin=FakeAdmin(describe_access=VIEW))
    assert {one["name"]: one["users"] for one in found} == {"shop": ["alice"], "n" * 63: []}


def test_a_namespace_is_created_and_its_deletion_asks() -> None:
    made = pb.AccessNamespace(name="shop")
    admin = FakeAdmin(create_namespace=made, delete_namespace=None)
    assert run(namespace, "create", "shop", admin=admin).stdout == "Created namespace shop.\n"
    assert run(namespace, "delete", "shop", admin=admin, stdin="n\n").exit_code == 1
    assert not admin.called("delete_namespace")
    assert run(namespace, "delete", "shop", "-y", admin=admin).exit_code == 0
