"""`mq completion`: what a shell offers after the tab key, names of topics and groups included.

The shell runs `mq` itself for each tab: click answers for commands and flags, and the functions
here ask the brokers that the line names. A tab must not disturb: brokers that are away, too slow or
that refuse the caller offer no names, and no words either.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import get_completion_class

from mq.cli.connection import choose, take_flags

if TYPE_CHECKING:
    from mq.client import Admin

_VARIABLE = "_MQ_COMPLETE"
_TIMEOUT_S = 1.0
_NAMES_MAX = 500
_INSTALL = {
    "bash": "mq completion bash > ~/.local/share/bash-completion/completions/mq",
    "zsh": "mq completion zsh > ~/.zfunc/_mq       (a directory of fpath)",
    "fish": "mq completion fish > ~/.config/fish/completions/mq.fish",
}

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


@click.command(
    short_help="Print the completion script of a shell.",
    epilog="\b\nFor good:\n" + "\n".join(f"  {line}" for line in _INSTALL.values()),
)
@click.argument("shell", type=click.Choice(list(_INSTALL)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that lets a shell complete commands, flags, topics and groups.

    For this session: source <(mq completion bash)
    """
    made = get_completion_class(shell)
    assert made is not None  # noqa: S101 - click has all three
    click.echo(made(context.find_root().command, {}, "mq", _VARIABLE).source())


def _topics(admin: Admin) -> Iterable[str]:
    return (one.info.topic for one in admin.list_topics())


def _groups(admin: Admin) -> Iterable[str]:
    return (one.group for one in admin.list_groups())


def _completes(names: Callable[[Admin], Iterable[str]]) -> Complete:
    def complete(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
        try:
            return _asked(names, dict(context.params), begun)
        # Whatever it is, a person at a prompt is not to be told of it.
        except Exception:  # noqa: BLE001
            return []

    return complete


complete_topic, complete_group = _completes(_topics), _completes(_groups)


def _asked(
    names: Callable[[Admin], Iterable[str]], params: dict[str, Any], begun: str
) -> list[str]:
    flags = take_flags(params)
    chosen = choose({"server": params.get("server"), **flags}, os.environ)
    from mq.client import Admin  # noqa: PLC0415 - a tab after a flag does not wait for gRPC

    with Admin(chosen.servers, timeout_s=_TIMEOUT_S, **chosen.security) as admin:
        return sorted(name for name in names(admin) if name.startswith(begun))[:_NAMES_MAX]
