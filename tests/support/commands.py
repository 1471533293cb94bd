"""Commands of `mq` that talk to brokers, run in this process against a stand-in for the client.

admin = FakeAdmin(list_topics=[...])
result = run(topic, "list", "--json", admin=admin)
assert admin.calls == [("list_topics", (), {"include_internal": False})]
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any
from unittest import mock

import click
from click.testing import CliRunner, Result

from mq.cli import main as cli
from mq.cli.options import Brokers
from mq.wire.v1.cluster_pb2 import RouteResponse


class FakeAdmin:
    """Answers each method with what it was given: a value, or an error to raise, or a function.

    A route is that of a cluster of which nothing is known, unless it was given another.
    """

    def __init__(self, **answers: Any) -> None:
        self._answers = {"route": RouteResponse(), **answers}
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def method(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args, kwargs))
            answer = self._answers[name]
            if isinstance(answer, Exception):
                raise answer
            return answer(*args, **kwargs) if callable(answer) else answer

        return method

    def called(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(args, kwargs) for each, args, kwargs in self.calls if each == name]


def run(
    command: click.Command,
    *arguments: str,
    admin: FakeAdmin | None = None,
    columns: int = 80,
    stdin: str | bytes | None = None,
) -> Result:
    """As `mq NAME ARGUMENTS...`."""

    @contextlib.contextmanager
    def opened(_: Brokers) -> Iterator[FakeAdmin]:
        yield admin or FakeAdmin()

    name = command.name or ""
    group = cli._Group("mq", commands={name: command})
    runner = CliRunner(env={"COLUMNS": str(columns), "MQ_SERVER": None})
    with mock.patch.object(Brokers, "admin", opened):
        return runner.invoke(group, [name, *arguments], prog_name="mq", input=stdin)


def run_json(command: click.Command, *arguments: str, admin: FakeAdmin) -> Any:
    result = run(command, *arguments, "--json", admin=admin)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def assert_fits(text: str, columns: int = 80) -> None:
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= columns, text
    assert "…" not in text
