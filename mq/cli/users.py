"""`mq user` and `mq role`: the users of a cluster, their roles, and broker sets that differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mq.cli import output
from mq.cli.access import (
    day,
    in_sets,
    in_words,
    new_password,
    read_access,
    several,
    with_password,
    with_password_file,
)
from mq.cli.keys import credential_document, credential_type, key_columns
from mq.cli.options import Brokers, confirm, with_brokers, with_count, with_set, with_yes
from mq.cli.policies import policy_columns
from mq.cli.quotas import limits_text, quota_document
from mq.cli.tables import Column, counted, cut_note, print_pages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mq.access.views import AccessView
    from mq.wire.v1.security_pb2 import AccessChange, User

_SUPERUSER = "superuser"

_with_name = click.argument("name", metavar="USER")
_with_roles = click.option(
    "--role", "roles", metavar="ROLE", multiple=True, help="A role of it; may be repeated."
)
_with_namespaces = click.option(
    "--namespace",
    "namespaces",
    metavar="NAMESPACE",
    multiple=True,
    help="A namespace of it, the first is the usual one; may be repeated.",
)


@click.group(short_help="List, create, alter, delete users; bring sets in line.")
def user() -> None:
    """Users: those that call brokers, and prove it by keys, passwords or certificates.

    A user may do what the policies of its name and of its roles allow; the
    role superuser may do everything.
    """


@user.command("list")
@click.option("--role", metavar="ROLE", help="Only those with this role.")
@with_count
@with_set("As this broker set has them.")
@with_brokers()
def list_users(brokers: Brokers, role: str | None, broker_set: str, count: int | None) -> None:
    """List the users."""
    with brokers.admin() as admin:
        view = read_access(brokers, admin, broker_set)
    found = [one for one in view.state.users if role is None or role in one.roles]
    if brokers.as_json:
        output.write_json([_document(view, one) for one in found[:count]])
    elif not found:
        with_role = f" with role {role}" if role else " yet. Create one: mq user create NAME"
        click.echo(f"No users{with_role}")
    else:
        print_pages(output.console(), found[:count], lambda page: _columns(view, page))
        click.echo(counted(len(found), "user") + cut_note(len(found), count))


@user.command()
@_with_name
@_with_roles
@_with_namespaces
@with_password
@with_password_file
@with_brokers(taken=["--namespace"])
def create(
    brokers: Brokers,
    name: str,
    roles: Sequence[str],
    namespaces: Sequence[str],
    *,
    has_password: bool,
    password_file: Path | None,
) -> None:
    """Create a user.

    It may do nothing until a policy allows it (mq policy add), unless it is a
    superuser. If that breaks off between two broker sets, the same command
    completes it.
    """
    password = new_password(password_file, is_asked=has_password)
    with brokers.admin() as admin:
        where = "" if brokers.as_json else in_sets(admin)
        made = admin.create_user(
            name, roles=several(roles), namespaces=several(namespaces), password=password
        )
    if brokers.as_json:
        output.write_json(output.plain(made))
        return
    click.echo(f"Created user {name}{where}{_with(made)}.")
    if password is None:
        output.note(f"It comes in by a key: mq key create {name}")


@user.command()
@_with_name
@with_set("As this broker set has it.")
@with_brokers()
def describe(brokers: Brokers, name: str, broker_set: str) -> None:
    """Show a user, its keys, and what it may do."""
    with brokers.admin() as admin:
        view = read_access(brokers, admin, broker_set)
    found = view.user(name)
    credentials, policies = view.credentials_of(name), view.policies_of(found)
    quotas = view.quotas(f"user:{name}")
    if brokers.as_json:
        document = {
            **_document(view, found),
            "credentials": [credential_document(one) for one in credentials],
            "policies": [output.plain(one) for one in policies],
            "quota": quota_document(quotas[0]) if quotas else None,
        }
        output.write_json(document)
        return
    out = output.console()
    fields = [
        ("user", name),
        ("state", _state(found)),
        ("roles", ", ".join(found.roles) or "none"),
        ("namespaces", ", ".join(found.namespaces) or "none: names stand as they are"),
        ("created", f"{day(found.created_at_ms)} UTC"),
        ("quota", limits_text(quotas[0]) if quotas else "none of its own"),
    ]
    output.print_fields(out, fields)
    if credentials:
        print_pages(out, credentials, lambda page: key_columns(page, has_users=False))
    if _SUPERUSER in found.roles:
        click.echo("A superuser: it may do everything.")
    elif policies:
        print_pages(out, policies, policy_columns)
    keys = counted(len(credentials), "credential")
    click.echo(f"{keys}, {counted(len(policies), 'policy', 'policies')}")


@user.command()
@_with_name
@_with_roles
@click.option("--no-roles", is_flag=True, help="It has none any more.")
@_with_namespaces
@click.option("--no-namespaces", is_flag=True, help="Names stand as they are for it.")
@with_password
@with_password_file
@click.option("--no-password", is_flag=True, help="It has no password any more.")
@with_brokers(taken=["--namespace"])
def alter(  # noqa: PLR0913 - one a flag
    brokers: Brokers,
    name: str,
    roles: Sequence[str],
    namespaces: Sequence[str],
    *,
    no_roles: bool,
    no_namespaces: bool,
    has_password: bool,
    password_file: Path | None,
    no_password: bool,
) -> None:
    """Change a user: its roles, its namespaces, its password.

    What is given replaces what was there; mq role grant adds one role.
    """
    if (no_roles and roles) or (no_namespaces and namespaces):
        raise click.UsageError("--no-... takes away what the other option gives: give one")
    if no_password and (has_password or password_file):
        raise click.UsageError("--no-password takes away what the other option gives: give one")
    password = "" if no_password else new_password(password_file, is_asked=has_password)
    if not (roles or no_roles or namespaces or no_namespaces) and password is None:
        raise click.UsageError("say what to change: --role, --namespace, --password")
    with brokers.admin() as admin:
        where = "" if brokers.as_json else in_sets(admin)
        changed = admin.alter_user(
            name,
            roles=several(roles) if roles or no_roles else None,
            namespaces=several(namespaces) if namespaces or no_namespaces else None,
            password=password,
        )
    _print_user(brokers, changed, f"Changed user {name}{where}{_with(changed)}.")


@user.command()
@_with_name
@with_brokers()
def disable(brokers: Brokers, name: str) -> None:
    """Refuse a user from now on; its streams end within a second."""
    with brokers.admin() as admin:
        changed = admin.alter_user(name, is_disabled=True)
    _print_user(brokers, changed, f"Disabled user {name}: mq user enable lets it in again.")


@user.command()
@_with_name
@with_brokers()
def enable(brokers: Brokers, name: str) -> None:
    """Let a disabled user in again."""
    with brokers.admin() as admin:
        changed = admin.alter_user(name, is_disabled=False)
    _print_user(brokers, changed, f"Enabled user {name}.")


@user.command()
@_with_name
@with_yes
@with_brokers()
def delete(brokers: Brokers, name: str, *, is_sure: bool) -> None:
    """Delete a user with its keys, policies and quota."""
    with brokers.admin() as admin:
        where = "" if brokers.as_json else in_sets(admin)
        if not is_sure:
            view = read_access(brokers, admin)
            view.user(name)
            count = counted(len(view.credentials_of(name)), "credential")
            confirm(f"Delete user {name} with {count}, its policies and quota?", is_sure=False)
        admin.delete_user(name)
    if brokers.as_json:
        output.write_json({"user": name, "is_deleted": True})
    else:
        click.echo(f"Deleted user {name}{where}.")


@user.command()
@click.option(
    "--from", "source", metavar="SET", required=True, help="The broker set that is right."
)
@click.option(
    "--no-credentials",
    is_flag=True,
    help="Do not copy keys and passwords: list those that a set lacks.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@with_yes
@with_brokers()
def sync(
    brokers: Brokers, source: str, *, no_credentials: bool, dry_run: bool, is_sure: bool
) -> None:
    """Bring broker sets in line that differ from one of them.

    Users, keys, passwords, roles, policies, quotas and namespaces of the others
    become as they are there, and what it does not have is dropped. What proves
    keys and passwords is copied over TLS, or on the machine of the brokers: in
    plaintext, use --no-credentials, and make those anew that are listed.
    """
    with brokers.admin() as admin:
        view = admin.describe_access(source)
        brokers.note_missing(view)
        differences = view.differences
        left: dict[str, list[AccessChange]] = {}
        if brokers.as_json:
            if differences and not dry_run:
                confirm(f"Make {', '.join(differences)} as {source} is?", is_sure=is_sure)
                left = admin.sync_access(source, has_credentials=not no_credentials)
            _write_sync(source, differences, left, is_dry_run=dry_run)
            return
        if not differences:
            click.echo("All broker sets have the same users, keys, policies and quotas.")
            return
        _print_differences(view, differences)
        if dry_run:
            click.echo("Nothing was changed.")
            return
        sets = ", ".join(differences)
        confirm(f"Make {sets} as {source} is?", is_sure=is_sure)
        left = admin.sync_access(source, has_credentials=not no_credentials)
    click.echo(f"{sets} {'is' if len(differences) == 1 else 'are'} as {source} is now", nl=False)
    click.echo(", but for keys and passwords, which are to be made anew:" if left else ".")
    for name, changes in left.items():
        for one in changes:
            click.echo(f"  {name} {in_words(one, view.states[name])}")
    if left:
        raise click.exceptions.Exit(1)


def _write_sync(
    source: str,
    differences: dict[str, list[AccessChange]],
    left: dict[str, list[AccessChange]],
    *,
    is_dry_run: bool,
) -> None:
    document = {
        "source": source,
        "is_dry_run": is_dry_run,
        "differences": _plain_changes(differences),
        "left": _plain_changes(left),
    }
    output.write_json(document)


# -- roles -----------------------------------------------------------------------------------------


@click.group(short_help="List roles; grant and revoke them.")
def role() -> None:
    """Roles: names that users have and policies are for.

    A role exists by being named: grant it, and give it policies with
    mq policy add --role.
    """


@role.command("list")
@with_count
@with_brokers()
def list_roles(brokers: Brokers, count: int | None) -> None:
    """List the roles that users or policies name."""
    with brokers.admin() as admin:
        view = read_access(brokers, admin)
    users: dict[str, list[str]] = {}
    lines: dict[str, int] = {}
    for one in view.state.users:
        for name in one.roles:
            users.setdefault(name, []).append(one.name)
    for policy in view.state.policies:
        kind, _, name = policy.subject.partition(":")
        if kind == "role":
            lines[name] = lines.get(name, 0) + 1
    found = sorted({*users, *lines})
    names = found[:count]
    if brokers.as_json:
        output.write_json(
            [
                {"role": name, "users": users.get(name, []), "policies": lines.get(name, 0)}
                for name in names
            ]
        )
    elif not names:
        click.echo("No roles yet. Grant one: mq role grant USER ROLE")
    else:
        columns = [
            Column("role", names, "left", is_flexible=True),
            Column(
                "policies",
                ["all" if one == _SUPERUSER else str(lines.get(one, 0)) for one in names],
            ),
            Column(
                "users",
                [", ".join(users.get(one, ["-"])) for one in names],
                "left",
                is_flexible=True,
            ),
        ]
        print_pages(output.console(), [columns], lambda page: page[0])
        click.echo(counted(len(found), "role") + cut_note(len(found), count))


_with_role_names = click.argument("roles", metavar="ROLE...", nargs=-1, required=True)


@role.command()
@_with_name
@_with_role_names
@with_brokers()
def grant(brokers: Brokers, name: str, roles: Sequence[str]) -> None:
    """Give a user roles."""
    with brokers.admin() as admin:
        changed = admin.grant_roles(name, roles)
    _print_user(brokers, changed, f"User {name} has {_roles(changed)}.")


@role.command()
@_with_name
@_with_role_names
@with_brokers()
def revoke(brokers: Brokers, name: str, roles: Sequence[str]) -> None:
    """Take roles from a user."""
    with brokers.admin() as admin:
        changed = admin.revoke_roles(name, roles)
    _print_user(brokers, changed, f"User {name} has {_roles(changed)}.")


# -- what is printed -------------------------------------------------------------------------------


def _print_user(brokers: Brokers, changed: User, text: str) -> None:
    if brokers.as_json:
        output.write_json(output.plain(changed))
    else:
        click.echo(text)


def _document(view: AccessView, found: User) -> dict[str, Any]:
    return {**output.plain(found), "credential_count": len(view.credentials_of(found.name))}


def _roles(found: User) -> str:
    if not found.roles:
        return "no roles"
    noun = "role" if len(found.roles) == 1 else "roles"
    return f"{noun} {', '.join(found.roles)}"


def _with(found: User) -> str:
    text = f", with {_roles(found)}" if found.roles else ""
    return f"{text}, in namespace {', '.join(found.namespaces)}" if found.namespaces else text


def _state(found: User) -> str:
    return "disabled" if found.is_disabled else "enabled"


def _types(view: AccessView, found: User) -> list[str]:
    """Of its credentials, without sessions, which come and go."""
    types = map(credential_type, view.credentials_of(found.name))
    return [one for one in types if one != "session_key"]


def _columns(view: AccessView, users: Sequence[User]) -> list[Column]:
    created = [day(each.created_at_ms) for each in users]
    types = [_types(view, each) for each in users]
    return [
        Column("user", [each.name for each in users], "left", is_flexible=True),
        Column("state", [_state(each) for each in users], "left"),
        Column("roles", [", ".join(each.roles) or "-" for each in users], "left", is_flexible=True),
        Column(
            "namespaces",
            [", ".join(each.namespaces) or "-" for each in users],
            "left",
            is_flexible=True,
        ),
        Column("keys", [str(len(each) - each.count("password")) for each in types]),
        Column(
            "password", ["yes" if "password" in each else "-" for each in types], "left", rank=2
        ),
        Column(
            "created (UTC)",
            created,
            "left",
            rank=1,
            compact=Column("created (UTC)", [one[:10] for one in created], "left", rank=1),
        ),
    ]


def _print_differences(view: AccessView, differences: dict[str, list[AccessChange]]) -> None:
    for name, changes in differences.items():
        click.echo(f"{name} differs from {view.broker_set}:")
        for one in changes:
            click.echo(f"  {in_words(one, view.states[name])}")
        if not changes:
            click.echo("  a password or key has another secret there")


def _plain_changes(by_set: dict[str, list[AccessChange]]) -> dict[str, list[dict[str, Any]]]:
    return {name: [_plain_change(one) for one in changes] for name, changes in by_set.items()}


def _plain_change(change: AccessChange) -> dict[str, Any]:
    kind = str(change.WhichOneof("kind"))
    value = getattr(change, kind)
    if kind == "put_credential":
        return {kind: credential_document(value)}
    return {kind: value if isinstance(value, str) else output.plain(value)}
