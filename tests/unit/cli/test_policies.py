"""`mq policy`: lines, and what they decide."""

from __future__ import annotations

import pytest

from mq.access.policies import Kind, Resource
from mq.cli.policies import policy
from mq.client.admin.security import SetAnswers
from mq.errors import IllegalPolicy
from mq.wire.v1 import security_pb2 as pb
from tests.support import access
from tests.support.access import access_view
from tests.support.commands import FakeAdmin, assert_fits, run, run_json

LINE = pb.AccessPolicy(subject="user:alice", line="allow publish topic orders-*")
VIEW = access_view(
    access.user("alice", roles=["app"]),
    access.policy("user:alice", LINE.line),
    access.policy("role:app", f"allow consume,describe group {'g' * 100} from 10.0.0.0/8"),
    access.policy("role:other", "deny * cluster *"),
)


def test_a_line_may_be_one_argument_or_several() -> None:
    admin = FakeAdmin(add_policy=LINE, remove_policy=LINE)
    result = run(policy, "add", "--user", "alice", "allow publish topic orders-*", admin=admin)
    assert result.stdout == "Added to user:alice: allow publish topic orders-*\n"
    run(policy, "add", "--role", "app", "allow", "publish", "topic", "orders-*", admin=admin)
    run(policy, "remove", "--role", "app", LINE.line, admin=admin)
    assert admin.called("add_policy") == [
        (("user:alice", "allow publish topic orders-*"), {}),
        (("role:app", "allow publish topic orders-*"), {}),
    ]
    assert admin.called("remove_policy") == [(("role:app", LINE.line), {})]


@pytest.mark.parametrize("whose", [[], ["--user", "a", "--role", "b"]])
def test_a_line_is_that_of_one_user_or_role(whose: list[str]) -> None:
    result = run(policy, "add", *whose, "allow publish topic x", admin=FakeAdmin())
    assert result.exit_code == 2
    assert "--user USER or --role ROLE" in result.stderr


def test_a_line_that_is_none_is_told() -> None:
    admin = FakeAdmin(add_policy=IllegalPolicy("'read' is no action"))
    result = run(policy, "add", "--user", "a", "allow read topic x", admin=admin)
    assert (result.exit_code, result.stderr) == (
        1,
        "error: ILLEGAL_POLICY: 'read' is no action\n",
    )


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_the_list_fits_the_terminal(columns: int) -> None:
    result = run(policy, "list", admin=FakeAdmin(describe_access=VIEW), columns=columns)
    assert_fits(result.stdout, columns)
    assert "3 policies" in result.stdout


def test_the_list_of_a_user_has_those_of_its_roles() -> None:
    def subjects(*arguments: str) -> list[str]:
        found = run_json(policy, "list", *arguments, admin=FakeAdmin(describe_access=VIEW))
        return [one["subject"] for one in found]

    assert subjects("--user", "alice") == ["role:app", "user:alice"]
    assert subjects("--role", "other") == ["role:other"]
    assert len(subjects()) == 3


@pytest.mark.parametrize(
    ("text", "resource"),
    [
        ("topic:orders", Resource(Kind.TOPIC, "orders")),
        ("group:billing", Resource(Kind.GROUP, "billing")),
        ("cluster", Resource(Kind.CLUSTER, "")),
        ("cluster:config", Resource(Kind.CLUSTER, "config")),
        ("topic:%DLQ%billing", Resource(Kind.GROUP, "billing")),
        ("topic:%SYS%AUDIT", Resource(Kind.CLUSTER, "%SYS%AUDIT")),
    ],
)
def test_resources_are_those_that_brokers_check(text: str, resource: Resource) -> None:
    answers = SetAnswers([("a", pb.CheckAccessResponse(is_allowed=True))])
    admin = FakeAdmin(check_access=answers)
    run(policy, "check", "alice", "publish", text, "--from", "10.0.0.1", admin=admin)
    assert admin.calls == [
        ("check_access", ("alice", "publish", resource), {"address": "10.0.0.1"})
    ]


@pytest.mark.parametrize("text", ["orders", "topic:", "queue:x", ""])
def test_what_is_no_resource_is_told(text: str) -> None:
    result = run(policy, "check", "alice", "publish", text, admin=FakeAdmin())
    assert result.exit_code == 2
    assert "topic:orders" in result.stderr
    assert run(policy, "check", "alice", "read", "topic:x", admin=FakeAdmin()).exit_code == 2


@pytest.mark.parametrize(
    ("answer", "exit_code", "text"),
    [
        (
            pb.CheckAccessResponse(is_allowed=True, policy=LINE),
            0,
            "allowed by user:alice: allow publish topic orders-*\n",
        ),
        (
            pb.CheckAccessResponse(
                policy=pb.AccessPolicy(subject="role:app", line="deny publish topic *")
            ),
            1,
            "denied by role:app: deny publish topic *\n",
        ),
        (pb.CheckAccessResponse(), 1, "denied: no line allows alice to publish topic orders\n"),
        (
            pb.CheckAccessResponse(is_allowed=True, is_superuser=True),
            0,
            "allowed: alice is a superuser\n",
        ),
        (pb.CheckAccessResponse(policy=LINE), 1, "denied: user alice is disabled\n"),
        (pb.CheckAccessResponse(is_superuser=True), 1, "denied: user alice is disabled\n"),
    ],
)
def test_the_deciding_line_is_shown_and_the_exit_code_says_it(
    answer: pb.CheckAccessResponse, exit_code: int, text: str
) -> None:
    answers = SetAnswers([("a", answer), ("b", answer)])
    admin = FakeAdmin(check_access=answers, describe_access=VIEW)
    result = run(policy, "check", "alice", "publish", "topic:orders", admin=admin)
    assert (result.exit_code, result.stdout) == (exit_code, text)
    as_json = run(policy, "check", "alice", "publish", "topic:orders", "--json", admin=admin)
    assert as_json.exit_code == exit_code


def test_sets_that_decide_differently_are_named_and_one_denial_is_enough() -> None:
    answers = SetAnswers(
        [
            ("set-0", pb.CheckAccessResponse(is_allowed=True, policy=LINE)),
            ("set-1", pb.CheckAccessResponse()),
        ]
    )
    admin = FakeAdmin(check_access=answers, describe_access=VIEW)
    result = run(policy, "check", "alice", "publish", "topic:orders-x", admin=admin)
    assert result.exit_code == 1
    assert [line.split()[:2] for line in result.stdout.splitlines()] == [
        ["set-0:", "allowed"],
        ["set-1:", "denied:"],
    ]


def test_a_name_outside_of_the_namespaces_of_a_user_is_told() -> None:
    view = access_view(access.namespace("shop"), access.user("bob", namespaces=["shop"]))
    answers = SetAnswers([("a", pb.CheckAccessResponse())])
    admin = FakeAdmin(check_access=answers, describe_access=view)
    result = run(policy, "check", "bob", "publish", "topic:orders", admin=admin)
    assert "outside of the namespaces of bob, shop" in result.stdout
    assert "such as shop%orders" in result.stdout
    inside = run(policy, "check", "bob", "publish", "topic:shop%orders", admin=admin)
    assert inside.stdout == "denied: no line allows bob to publish topic shop%orders\n"
