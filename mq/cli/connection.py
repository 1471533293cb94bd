"""How a command connects: the flags, the variables and the profile, put together.

A flag beats a variable, a variable beats the profile. What belongs together comes from one source:
a certificate with its key, and the API key, whether it is given as text or as a file. A secret is
never a flag: everybody on the machine sees those.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import click

from mq.cli import profiles
from mq.config import CLIENT_VARIABLES, PROFILE_VARIABLE, SERVER_VARIABLE
from mq.errors import IllegalConfig

DEFAULT_SERVER = "127.0.0.1:8081"

_TOGETHER = (
    ("server",),
    ("tls",),
    ("ca",),
    ("cert", "key"),
    ("api_key", "api_key_file"),
    ("namespace",),
)
_YES, _NO = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off", ""})

Command = Callable[..., Any]


@dataclasses.dataclass(frozen=True, slots=True)
class ConnectionChoice:
    """The brokers, and the arguments of clients about security."""

    servers: str
    security: Mapping[str, Any] = dataclasses.field(repr=False)


def choose(flags: Mapping[str, Any], environ: Mapping[str, str]) -> ConnectionChoice:
    """From the values of the flags of `with_connection`, None for those that were not given.
    Raises IllegalConfig.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    variables = _variables(environ)
    profile = profiles.find(given.pop("profile", None) or environ.get(PROFILE_VARIABLE))
    server = given.get("server") or variables.get("server")
    stored: Mapping[str, Any] = {}
    if profile is not None and _is_meant(profile, server):
        stored = profile.values
    chosen: dict[str, Any] = {}
    for names in _TOGETHER:
        for source in (given, variables, stored):
            if found := {name: source[name] for name in names if name in source}:
                chosen |= found
                break
    servers = chosen.pop("server", DEFAULT_SERVER)
    if chosen.get("tls") is False:
        for name in ("tls", "ca", "cert", "key"):
            chosen.pop(name, None)
    return ConnectionChoice(servers, chosen)


def _is_meant(profile: profiles.Profile, server: str | None) -> bool:
    """The default profile is for the brokers that it names: its key is not shown to others."""
    return not (profile.is_default and server and profile.values.get("server", server) != server)


def _variables(environ: Mapping[str, str]) -> dict[str, Any]:
    """The values of variables that are not empty."""
    found: dict[str, Any] = {
        name: environ[variable]
        for name, variable in CLIENT_VARIABLES.items()
        if environ.get(variable)
    }
    if server := environ.get(SERVER_VARIABLE):
        found["server"] = server
    if "tls" in found:
        text = found["tls"].strip().lower()
        if text not in _YES | _NO:
            variable = CLIENT_VARIABLES["tls"]
            raise IllegalConfig(f"{variable} is {found['tls']!r}: use yes or no")
        found["tls"] = text in _YES
    return found


# The flags of a connection: the names, the metavar and the help of each.
_FLAGS: dict[str, tuple[tuple[str, ...], str | None, str]] = {
    "tls": (("--tls/--no-tls",), None, "Connect by TLS, or without."),
    "ca": (("--ca",), "FILE", "The authority of the brokers' certificates."),
    "cert": (("--cert",), "FILE", "A certificate of this client's own."),
    "key": (("--key", "--cert-key"), "FILE", "The key of --cert."),
    "api_key_file": (("--api-key-file",), "FILE", "Holds the API key; also MQ_API_KEY, the key."),
    "namespace": (("--namespace",), "NAME", "The namespace of topics and groups."),
    "profile": (("--profile",), "NAME", "A connection of ~/.config/mq/profiles.toml."),
}
# Of their values among the arguments of a command, which may have a `key` of its own.
_PREFIX = "connect_"


def with_connection(taken: Collection[str] = ()) -> Callable[[Command], Command]:
    """Adds the flags about security and --profile, whose values `take_flags` takes. `taken`: flags
    that the command has for something else.
    """

    def add(command: Command) -> Command:
        for name, (flags, metavar, text) in reversed(_FLAGS.items()):
            free = [flag for flag in flags if flag not in taken]
            if free:
                settings: dict[str, Any] = {"metavar": metavar} if metavar else {"default": None}
                option = click.option(*free, f"{_PREFIX}{name}", help=text, **settings)
                command = option(command)
        return command

    return add


def take_flags(arguments: dict[str, Any]) -> dict[str, Any]:
    """Removes the values of these flags from the arguments of a command."""
    return {name: arguments.pop(f"{_PREFIX}{name}", None) for name in _FLAGS}
