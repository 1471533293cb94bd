"""`mq policy`: the lines that allow and deny, and what they decide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mq.access.policies import Action, Kind, Resource, topic_resource
from mq.cli import output
from mq.cli.access import in_sets, read_access
from mq.cli.options import Brokers, with_brokers, with_count, with_set
from mq.cli.tables import Column, counted, cut_note, print_pages
from mq.names import namespace_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mq.client import Admin
    from mq.wire.v1.security_pb2 import AccessPolicy, CheckAccessResponse


@click.group(short_help="List, add, remove, check policies.")
def policy() -> None:
    """Policies: lines that allow or deny something to a user or a role.

    \b
    allow|deny ACTIONS topic|group|cluster NAME|PREFIX*|* [from CIDR]
      mq policy add --user shop "allow publish topic orders-*"
      mq policy add --role billing "allow consume,describe group billing"
      mq policy add --role guest "deny * topic secret-* from 10.0.0.0/8"

    ACTIONS are publish, consume, describe, create, alter, delete, with commas
    between, or * for all. What no line allows is denied, and a line that
    denies wins over all that allow. Names are in full, also for users in a
    namespace: "allow publish topic shop%orders-*".
    """


def _with_subject(command: Callable[..., Any]) -> Callable[..., Any]:
    with_role = click.option("--role", metavar="ROLE", help="Of this role.")
    return click.option("--user", metavar="USER", help="Of this user.")(with_role(command))


_with_line = click.argument("words", metavar="LINE", nargs=-1, required=True)


@policy.command()
@_with_subject
@_with_line
@with_brokers()
def add(brokers: Brokers, user: str | None, role: str | None, words: Sequence[str]) -> None:
    """Add a line, such as "allow publish topic orders-*".

    It counts at once, also for streams that are open.
    """
    with brokers.admin() as admin:
        where = "" if brokers.as_json else in_sets(admin)
        added = admin.add_policy(_subject(user, role), " ".join(words))
    _print_change(brokers, added, f"Added to {added.subject}{where}: {added.line}")


@policy.command()
@_with_subject
@_with_line
@with_brokers()
def remove(brokers: Brokers, user: str | None, role: str | None, words: Sequence[str]) -> None:
    """Remove a line, as mq policy list shows it."""
    with brokers.admin() as admin:
        where = "" if brokers.as_json else in_sets(admin)
        removed = admin.remove_policy(_subject(user, role), " ".join(words))
    _print_change(brokers, removed, f"Removed from {removed.subject}{where}: {removed.line}")


@policy.command("list", short_help="List policies.")
@_with_subject
@with_count
@with_set("As this broker set has them.")
@with_brokers()
def list_policies(
    brokers: Brokers, user: str | None, role: str | None, broker_set: str, count: int | None
) -> None:
    """List all policies, or those of a user (with its roles) or a role."""
    with brokers.admin() as admin:
        view = read_access(brokers, admin, broker_set)
    found: Sequence[AccessPolicy] = view.state.policies
    if user is not None:
        found = view.policies_of(view.user(user))
    if role is not None:
        found = [one for one in found if one.subject == f"role:{role}"]
    if brokers.as_json:
        output.write_json([output.plain(one) for one in found[:count]])
    elif not found:
        whose = f" for {user or role}" if user or role else ""
        click.echo(f"No policies{whose}: what no line allows is denied. mq policy add --help")
    else:
        print_pages(output.console(), found[:count], policy_columns)
        click.echo(counted(len(found), "policy", "policies") + cut_note(len(found), count))


@policy.command(short_help="Say what would be decided, and by which line.")
@click.argument("user", metavar="USER")
@click.argument("action", metavar="ACTION", type=click.Choice([*map(str, Action)]))
@click.argument("resource", metavar="RESOURCE")
@click.option("--from", "address", metavar="ADDRESS", default="", help="For a client there.")
@with_brokers()
def check(brokers: Brokers, user: str, action: str, resource: str, address: str) -> None:
    """Say whether USER may do ACTION to RESOURCE, and which line decides.

    RESOURCE is like topic:orders, group:billing, cluster or cluster:config. The
    exit code is 0 if it is allowed, and 1 if it is denied.
    """
    asked = parse_resource(resource)
    with brokers.admin() as admin:
        answers = admin.check_access(user, action, asked, address=address)
        is_allowed = all(one.is_allowed for one in answers.values())
        outside = "" if is_allowed or brokers.as_json else _outside(admin, user, asked)
    brokers.note_missing(answers)
    if brokers.as_json:
        output.write_json(_check_document(answers, is_allowed=is_allowed))
    else:
        texts = {
            name: outside or decision(one, user, action, asked) for name, one in answers.items()
        }
        if len(set(texts.values())) == 1:
            click.echo(next(iter(texts.values())))
        else:
            for name, text in texts.items():
                click.echo(f"{name}: {text}")
    if not is_allowed:
        raise click.exceptions.Exit(1)


def _outside(admin: Admin, user: str, resource: Resource) -> str:
    """A word on a name that is in none of the namespaces of the user; empty otherwise."""
    namespaces = list(admin.describe_access().user(user).namespaces)
    if not namespaces or resource.kind == Kind.CLUSTER or namespace_of(resource.name) in namespaces:
        return ""
    return (
        f"denied: {resource} is outside of the namespaces of {user}, {', '.join(namespaces)}: "
        f"names are given in full, such as {namespaces[0]}%{resource.name}"
    )


def parse_resource(text: str) -> Resource:
    """From topic:NAME, group:NAME, cluster or cluster:NAME."""
    kind, _, name = text.partition(":")
    if kind == Kind.CLUSTER:
        return Resource(Kind.CLUSTER, name)
    if kind not in (Kind.TOPIC, Kind.GROUP) or not name:
        raise click.BadParameter(
            f"{text!r} is not like topic:orders, group:billing or cluster", param_hint="RESOURCE"
        )
    # Retries and dead letters belong to their group.
    return topic_resource(name) if kind == Kind.TOPIC else Resource(Kind.GROUP, name)


def decision(answer: CheckAccessResponse, user: str, action: str, resource: Resource) -> str:
    verdict = "allowed" if answer.is_allowed else "denied"
    # What the policies say does not count for a user that may not come in.
    if not answer.is_allowed and (answer.is_superuser or answer.policy.line.startswith("allow ")):
        return f"{verdict}: user {user} is disabled"
    if answer.HasField("policy"):
        return f"{verdict} by {answer.policy.subject}: {answer.policy.line}"
    if answer.is_superuser:
        return f"{verdict}: {user} is a superuser"
    what = f"{resource.kind} {resource.name}".strip()
    return f"{verdict}: no line allows {user} to {action} {what}"


def _subject(user: str | None, role: str | None) -> str:
    if (user is None) == (role is None):
        raise click.UsageError("say whose: --user USER or --role ROLE")
    return f"role:{role}" if user is None else f"user:{user}"


# -- what is printed -------------------------------------------------------------------------------


def _print_change(brokers: Brokers, changed: AccessPolicy, text: str) -> None:
    if brokers.as_json:
        output.write_json(output.plain(changed))
    else:
        click.echo(text)


def _check_document(
    answers: Mapping[str, CheckAccessResponse], *, is_allowed: bool
) -> dict[str, Any]:
    sets = {name: output.plain(one) for name, one in answers.items()}
    return {"is_allowed": is_allowed, "broker_sets": sets}


def policy_columns(policies: Sequence[AccessPolicy]) -> list[Column]:
    return [
        Column("of", [each.subject for each in policies], "left", is_flexible=True),
        Column("policy", [each.line for each in policies], "left", is_flexible=True),
    ]
