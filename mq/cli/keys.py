"""`mq key`: the keys of users. The secret of a new one is made here and shown once: brokers keep
its hash alone.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mq.access import keys
from mq.cli import output
from mq.cli.access import day, in_sets, read_access
from mq.cli.options import Brokers, Duration, confirm, with_brokers, with_count, with_set, with_yes
from mq.cli.tables import Column, counted, cut_note, print_pages
from mq.errors import IllegalRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mq.access.keys import ApiKey
    from mq.wire.v1.security_pb2 import Credential


@click.group(short_help="List, create, revoke keys of users.")
def key() -> None:
    """Keys: what programs prove with who they are.

    A key is for one user and good in all broker sets. To replace one without a
    pause: create the second, hand it out, revoke the first.
    """


_with_file = click.option(
    "--output",
    "file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write it to a new FILE that only you can read, for MQ_API_KEY_FILE.",
)


@key.command()
@click.argument("name", metavar="USER")
@click.option(
    "--expires",
    "expires_s",
    metavar="DURATION",
    type=Duration(),
    help="After so long, such as 90d.  [default: never]",
)
@_with_file
@with_brokers()
def create(brokers: Brokers, name: str, expires_s: float | None, file: Path | None) -> None:
    """Create a key of a user, and print it.

    It is shown this once: nobody can look it up later.
    """
    expires_at_ms = 0 if expires_s is None else round((time.time() + expires_s) * 1000)
    # First, so that there is no key that could not be written down.
    descriptor = None if file is None else _new_file(file)
    try:
        with brokers.admin() as admin:
            where = "" if brokers.as_json else in_sets(admin)
            made = admin.create_key(name, expires_at_ms=expires_at_ms)
    except BaseException:
        if file is not None and descriptor is not None:
            os.close(descriptor)
            file.unlink(missing_ok=True)
        raise
    if descriptor is not None:
        _write(descriptor, made)
    expiry = f", until {day(expires_at_ms)} UTC" if expires_at_ms else ""
    if brokers.as_json:
        document: dict[str, Any] = {"id": made.id, "user": name, "expires_at_ms": expires_at_ms}
        output.write_json(document | _where(made, file))
    elif file is not None:
        click.echo(f"Wrote key {made.id} of user {name} to {file}{expiry}{where}.")
    else:
        output.note(f"Key {made.id} of user {name}{expiry}{where}. It is shown this once:")
        click.echo(made.text)


@key.command(short_help="Make a key that no broker knows.")
@_with_file
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for jq.")
def generate(file: Path | None, *, as_json: bool) -> None:
    """Make a key that no broker knows, and print it; none is asked.

    For files of the brokers themselves: auth.cluster_key_file, and
    auth.bootstrap_admin_file, which has NAME: before it.
    """
    made = keys.new()
    if file is not None:
        _write(_new_file(file), made)
    if as_json:
        output.write_json({"id": made.id, **_where(made, file)})
    else:
        click.echo(made.text if file is None else f"Wrote key {made.id} to {file}.")


@key.command("create-access-key", short_help="The same for clients of RocketMQ.")
@click.argument("name", metavar="USER")
@with_brokers()
def create_access_key(brokers: Brokers, name: str) -> None:
    """Create an access key for RocketMQ's clients, and print it.

    Its secret goes to the brokers, which encrypt it with auth.secret_key_file:
    use TLS. It is shown this once.
    """
    with brokers.admin() as admin:
        where = "" if brokers.as_json else in_sets(admin)
        made = admin.create_access_key(name)
    if brokers.as_json:
        output.write_json({"access_key": made.id, "secret_key": made.secret, "user": name})
        return
    output.note(f"Access key of user {name}{where}. Its secret is shown this once:")
    click.echo(f"access key  {made.id}")
    click.echo(f"secret key  {made.secret}")


@key.command("list", short_help="List keys, sessions and passwords.")
@click.argument("name", metavar="[USER]", required=False)
@with_count
@with_set("As this broker set has them.")
@with_brokers()
def list_keys(brokers: Brokers, name: str | None, broker_set: str, count: int | None) -> None:
    """List the keys, sessions and passwords of a user, or of all."""
    with brokers.admin() as admin:
        view = read_access(brokers, admin, broker_set)
    if name is not None:
        view.user(name)
    found = [one for one in view.state.credentials if name in (None, one.user)]
    found.sort(key=lambda one: (one.user, one.created_at_ms))
    if brokers.as_json:
        output.write_json([credential_document(one) for one in found[:count]])
    elif not found:
        click.echo(f"No keys. Create one: mq key create {name or 'USER'}")
    else:
        print_pages(output.console(), found[:count], lambda page: key_columns(page, has_users=True))
        click.echo(counted(len(found), "credential") + cut_note(len(found), count))


@key.command(short_help="Revoke a key, for good.")
@click.argument("key_id", metavar="ID")
@with_yes
@with_brokers()
def revoke(brokers: Brokers, key_id: str, *, is_sure: bool) -> None:
    """Revoke a key, for good; streams that use it end within a second.

    ID is as mq key list shows it, without the secret.
    """
    if key_id.startswith("mqk_"):
        key_id = key_id.removeprefix("mqk_").partition("_")[0]
    confirm(f"Revoke key {key_id}?", is_sure=is_sure)
    with brokers.admin() as admin:
        where = "" if brokers.as_json else in_sets(admin)
        admin.revoke_key(key_id)
    if brokers.as_json:
        output.write_json({"id": key_id, "is_revoked": True})
    else:
        click.echo(f"Revoked key {key_id}{where}.")


def _new_file(file: Path) -> int:
    """Its descriptor. One that exists is not overwritten: it may hold a key that is in use."""
    try:
        return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise IllegalRequest(f"{file} exists: name a new file, or remove that one first") from None
    except OSError as error:
        raise IllegalRequest(f"{file}: {error.strerror}") from None


def _where(made: ApiKey, file: Path | None) -> dict[str, str]:
    """For JSON: the key itself, or the file that it is in."""
    return {"key": made.text} if file is None else {"file": str(file)}


def _write(descriptor: int, made: ApiKey) -> None:
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(made.text + "\n")


# -- what is printed -------------------------------------------------------------------------------


def credential_document(credential: Credential) -> dict[str, Any]:
    return {
        "id": credential.id,
        "user": credential.user,
        "type": credential_type(credential),
        "created_at_ms": credential.created_at_ms,
        "expires_at_ms": credential.expires_at_ms,
    }


def credential_type(credential: Credential) -> str:
    types: Any = credential.DESCRIPTOR.fields_by_name["type"].enum_type
    found = types.values_by_number.get(credential.type)
    return found.name.lower() if found else str(credential.type)


def key_columns(credentials: Sequence[Credential], *, has_users: bool) -> list[Column]:
    now_ms = time.time() * 1000
    users = [each.user for each in credentials]
    ids = [each.id if not each.id.startswith("password-") else "-" for each in credentials]
    expiries = [
        "never"
        if not each.expires_at_ms
        else day(each.expires_at_ms)
        if each.expires_at_ms > now_ms
        else "expired"
        for each in credentials
    ]
    created = [day(each.created_at_ms) for each in credentials]
    types = [credential_type(each).replace("_", " ") for each in credentials]
    return [
        Column("id", ids, "left"),
        *([Column("user", users, "left", is_flexible=True)] if has_users else []),
        Column("type", types, "left"),
        Column(
            "created (UTC)",
            created,
            "left",
            rank=1,
            compact=Column("created (UTC)", [one[:10] for one in created], "left", rank=1),
        ),
        Column("expires (UTC)", expiries, "left"),
    ]
