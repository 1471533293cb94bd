"""`mq login`, `mq logout` and `mq whoami`: who the brokers take this program for.

A login exchanges a password for a key of some hours, which is kept in a profile: all commands use
it from then on. The password is kept nowhere.
"""

from __future__ import annotations

import getpass
import ipaddress
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mq.access import keys
from mq.cli import output, profiles
from mq.cli.access import day, password_in, with_password_file
from mq.cli.options import Brokers, with_brokers
from mq.config import CLIENT_VARIABLES, PROFILE_VARIABLE
from mq.errors import IllegalRequest, Unauthenticated

if TYPE_CHECKING:
    from mq.wire.v1.security_pb2 import WhoAmIResponse

# Of a first login that names none.
_FIRST_PROFILE = "mq"
_PROFILE = f"{__name__}.profile"
_KEY_VARIABLES = [CLIENT_VARIABLES[name] for name in ("api_key", "api_key_file")]


def _known_profile(context: click.Context, _: click.Parameter, name: str | None) -> str | None:
    """Notes the name. Only a profile that exists says how to connect."""
    context.meta[_PROFILE] = name
    return name if name in profiles.names() else None


@click.command(short_help="Exchange a password for a key of some hours.")
@click.option("--user", metavar="USER", help="Who you are.  [default: asks]")
@with_password_file
@click.option(
    "--profile",
    "connect_profile",
    metavar="NAME",
    callback=_known_profile,
    help="Keep the key in this profile, which is made if it is missing; also MQ_PROFILE.",
)
@click.option("--plaintext", is_flag=True, help="Send the password over the network without TLS.")
@with_brokers(taken=("--profile",))
def login(
    brokers: Brokers, user: str | None, password_file: Path | None, *, plaintext: bool
) -> None:
    """Log in by a password, which is asked for without echo.

    The brokers give a key for eight hours. It is kept, with how to connect, in a
    profile that only you can read, and used by all commands from then on; mq
    logout ends it. Programs use keys of their own instead: mq key create.
    """
    if not plaintext:
        _check_private(brokers)
    name = user or click.prompt("User", default=getpass.getuser(), err=True)
    if password_file is not None:
        password = password_in(password_file)
    else:
        password = click.prompt("Password", hide_input=True, err=True)
    with brokers.admin() as admin:
        session = admin.login(name, password)
    profile = click.get_current_context().meta[_PROFILE] or _usual_profile(brokers)
    values = {**_connection(brokers), "api_key": session.key.text, "api_key_file": None}
    file = profiles.save(profile, **values)
    if profiles.find(None) is None:
        profiles.set_default(profile)
    brokers.missing.update(session.missing_sets)
    if brokers.as_json:
        document = {"user": name, "profile": profile, "file": str(file), "key_id": session.key.id}
        output.write_json({**document, "expires_at_ms": session.expires_at_ms})
    else:
        until = day(session.expires_at_ms)
        click.echo(f"Logged in as {name} until {until} UTC, in profile {profile}.")
        if profile != _current_profile():
            output.note(f"To use it: --profile {profile}, or {PROFILE_VARIABLE}={profile}")
    for variable in _KEY_VARIABLES:
        if os.environ.get(variable):
            output.note(f"{variable} is set, and counts before the profile: unset it")
    for one in session.refusing_sets:
        click.echo(f"warning: {one} has no such user or another password: mq user sync", err=True)


@click.command(short_help="End the session that a login has begun.")
@with_brokers()
def logout(brokers: Brokers) -> None:
    """Revoke the key that mq login has got, and forget it."""
    profile = click.get_current_context().params["connect_profile"] or _current_profile()
    presented = brokers.security.get("api_key")
    found = profiles.find(profile) if profile and presented else None
    is_stored = found is not None and found.values.get("api_key") == presented
    try:
        with brokers.admin() as admin:
            revoked = admin.logout()
    except Unauthenticated:
        # It has expired, or an administrator has revoked it.
        key = keys.parse(presented) if presented and is_stored else None
        if key is None:
            raise
        revoked = key.id
    if is_stored:
        profiles.save(profile, api_key=None)
    if brokers.as_json:
        output.write_json({"key_id": revoked, "is_revoked": True})
    else:
        click.echo(f"Logged out: key {revoked} is of no use any more.")


def _current_profile() -> str:
    """The one that is used without --profile; empty: none."""
    if name := os.environ.get(PROFILE_VARIABLE):
        return name
    found = profiles.find(None)
    return found.name if found else ""


def _usual_profile(brokers: Brokers) -> str:
    """Of a login that names none: the one in use, unless that is for other brokers."""
    name = _current_profile()
    if not name:
        return _FIRST_PROFILE
    found = profiles.find(name)
    if found is not None and found.values.get("server", brokers.servers) == brokers.servers:
        return name
    return re.sub(r"[^A-Za-z0-9]+", "-", brokers.servers.partition(",")[0]).strip("-")


def _connection(brokers: Brokers) -> dict[str, Any]:
    """The connection options of a profile, without the key."""
    files = {name: brokers.security.get(name) for name in ("ca", "cert", "key")}
    return {
        "server": brokers.servers,
        "tls": brokers.security.get("tls"),
        **{name: str(Path(file).absolute()) if file else None for name, file in files.items()},
        "namespace": brokers.security.get("namespace"),
    }


def _check_private(brokers: Brokers) -> None:
    """IllegalRequest if others could read the password on its way."""
    if any(brokers.security.get(name) for name in ("tls", "ca", "cert")):
        return
    for server in brokers.servers.split(","):
        host = server.rpartition(":")[0].strip("[]")
        if not _is_loopback(host):
            raise IllegalRequest(
                f"the password would go to {host} without TLS: connect by --tls or --ca, or say "
                "--plaintext"
            )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@click.command(short_help="Say who the brokers take you for.")
@with_brokers()
def whoami(brokers: Brokers) -> None:
    """Show as which user the brokers know you, and by what."""
    with brokers.admin() as admin:
        known = admin.who_am_i()
        sets = [one.name for one in admin.route().broker_sets]
    brokers.note_missing(known)
    if brokers.as_json:
        output.write_json({name: output.plain(one) for name, one in known.items()})
        return
    # The same user with the same credential: all else would be said by each set alike.
    distinct: dict[bytes, list[str]] = {}
    for name, one in known.items():
        distinct.setdefault(one.SerializeToString(deterministic=True), []).append(name)
    for names in distinct.values():
        fields = _fields(known[names[0]])
        if len(distinct) > 1:
            fields.insert(0, ("in set", ", ".join(names)))
        output.print_fields(output.console(), fields)
    unknown = [one for one in sets if one not in known and one not in known.missing_sets]
    if unknown:
        click.echo(f"warning: {', '.join(unknown)} knows no such user: mq user sync", err=True)


def _fields(known: WhoAmIResponse) -> list[tuple[str, str]]:
    everything = ": everybody may do everything" if known.auth_mode == "off" else ""
    return [
        ("user", known.user or f"nobody{everything}"),
        ("roles", ", ".join(known.roles) or "none"),
        ("namespaces", ", ".join(known.namespaces) or "none: names stand as they are"),
        ("known by", output.printable(known.credential) or "nothing: no key was presented"),
        ("until", f"{day(known.expires_at_ms)} UTC" if known.expires_at_ms else "without an end"),
        ("from", output.printable(known.address) or "-"),
        ("auth.mode", known.auth_mode or "off"),
    ]
