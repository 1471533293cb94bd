"""`mq cluster restart-plan`: a rolling restart or upgrade, planned, and carried out if wanted.

Nothing is taken for granted from one step to the next: before each restart all nodes of the set are
looked at again, and a node that has come to lead meanwhile hands over first. The first trouble
ends it, with what was done and what to do.
"""

from __future__ import annotations

import shlex
import subprocess
import textwrap
import time
from typing import TYPE_CHECKING, Any

import click

from mq.cli import output
from mq.cli.nodes import Seen, checked_set, look, set_column, with_set
from mq.cli.options import SECONDS, Brokers, with_brokers
from mq.cli.restart_plan import Plan, Step, plan, unfit
from mq.cli.tables import Column, print_table
from mq.errors import IllegalMembership, MqError, NodeStopped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mq.client import Admin

_LOOK_S = 0.2
# Not all nodes know of a new leader at once.
_FIRST_LOOK_S = 5.0
# A command may take as long as a node may to be back, and so long at least.
_COMMAND_S = 10.0
_STDERR = 2
_WIDTH, _INDENT = 80, " " * 6


@click.command("restart-plan", short_help="Plan a rolling restart, or carry it out.")
@with_set
@click.option(
    "--run",
    "command",
    metavar="COMMAND",
    default="",
    help="Carry it out: the shell command that restarts a node; {node}, {set} and {address} "
    "stand for its name, its set and its address.",
)
@click.option(
    "--wait-s",
    metavar="SECONDS",
    type=SECONDS,
    default=300.0,
    show_default=True,
    help="With --run: how long a node may take to be back and to catch up.",
)
@with_brokers()
def restart_plan(brokers: Brokers, broker_set: str, command: str, wait_s: float) -> None:
    """Plan a rolling restart or upgrade; with --run, carry it out.

    Sets one after another; in each the followers first, then the leadership
    moves, then the former leader. Refused while a node is down or behind:
    another one less could stop the set.

    \b
    mq cluster restart-plan --run 'docker compose restart {node}'
    mq cluster restart-plan --set a --run 'ssh {node} systemctl restart mq'
    """
    with brokers.admin() as admin:
        names = _names(admin, broker_set)
        plans = [_planned(admin, name) for name in names]
        if brokers.as_json and not command:
            output.write_json({"sets": [_document(each) for each in plans]})
        elif not brokers.as_json:
            nodes = [seen for name in names for seen in _look(admin, name)]
            _print_versions(nodes)
            _print_plans(plans)
        refused = [
            f"{each.broker_set}: {', '.join(each.troubles)}" for each in plans if each.troubles
        ]
        if refused:
            raise IllegalMembership(
                f"no node may be restarted now: {'; '.join(refused)}. Bring it up, or wait until "
                "it has caught up (`mq cluster members`), and plan again"
            )
        if command:
            rolling = Rolling(admin, command, wait_s, say=output.note)
            done = [step for each in plans for step in rolling.restart_set(each)]
            if brokers.as_json:
                output.write_json({"restarted": done})
            else:
                _print_versions([seen for name in names for seen in _look(admin, name)])
                click.echo(f"Done: {len(done)} nodes were restarted.")


def _names(admin: Admin, broker_set: str) -> list[str]:
    route = admin.route()
    chosen = checked_set(route, broker_set)
    return [each.name for each in route.broker_sets if chosen in ("", each.name)]


def _look(admin: Admin, broker_set: str) -> list[Seen]:
    return look(admin, admin.route(), broker_set)


def _planned(admin: Admin, broker_set: str) -> Plan:
    deadline_s = time.monotonic() + _FIRST_LOOK_S
    while True:
        found = plan(broker_set, _look(admin, broker_set))
        if not found.troubles or time.monotonic() > deadline_s:
            return found
        time.sleep(_LOOK_S)


class Rolling:
    """Carries plans out."""

    def __init__(
        self, admin: Admin, command: str, wait_s: float, say: Callable[[str], None]
    ) -> None:
        self._admin = admin
        self._command = command
        self._wait_s = wait_s
        self._say = say
        self._done: list[str] = []

    def restart_set(self, planned: Plan) -> list[dict[str, Any]]:
        """Restarts the nodes and returns the outcome of each."""
        return [self._restart(step) for step in planned.steps if step.action == "restart"]

    def _restart(self, step: Step) -> dict[str, Any]:
        name = f"{step.broker_set}/{step.node_id}"
        before = self._fit(step, f"before {name} is restarted")
        if before.role == "leader" and len(_others(self._seen(step), step)) > 0:
            before = self._hand_over(step, name)
        assert before.status is not None  # noqa: S101 - it is fit
        self._say(f"{name}: restarting")
        began_s = time.monotonic()
        self._run(step, name)
        after = self._back(step, name, before.status.started_at_ms)
        assert after.status is not None  # noqa: S101
        took_s = time.monotonic() - began_s
        self._say(f"{name}: back after {took_s:.1f} s, votes and has caught up")
        self._done.append(name)
        return {
            "broker_set": step.broker_set,
            "node_id": step.node_id,
            "took_s": round(took_s, 3),
            "version_before": before.status.version,
            "version_after": after.status.version,
        }

    def _hand_over(self, step: Step, name: str) -> Seen:
        """On a machine that stalls the other node may need a second try."""

        def moved(nodes: Sequence[Seen]) -> str:
            if _own(nodes, step).role != "leader":
                return ", ".join(unfit(nodes))
            try:
                found = self._admin.transfer_leadership(broker_set=step.broker_set)
            except MqError as error:
                return f"{name} still leads: {error}"
            self._say(f"{name}: leads no more, {found.leader_id} does, term {found.term}")
            return f"{name} has just led"

        return self._until(step, moved, f"before {name} is restarted")

    def _run(self, step: Step, name: str) -> None:
        command = self._command
        values = {"{node}": step.node_id, "{set}": step.broker_set, "{address}": step.address}
        for placeholder, value in values.items():
            command = command.replace(placeholder, shlex.quote(value))
        # What it prints goes to stderr: it is not part of a document that we print.
        limit_s = max(self._wait_s, _COMMAND_S)
        try:
            ended = subprocess.run(  # noqa: S602 - a shell is what the operator asks for
                command, shell=True, check=False, stdout=_STDERR, timeout=limit_s
            )
        except subprocess.TimeoutExpired:
            raise NodeStopped(
                f"{name}: `{command}` did not end in {limit_s:g} s and was killed. "
                f"{self._so_far()}. See whether the node runs, then plan again"
            ) from None
        if ended.returncode:
            raise NodeStopped(
                f"{name}: `{command}` ended with {ended.returncode}. {self._so_far()}. See whether "
                "the node runs, then plan again"
            )

    def _back(self, step: Step, name: str, started_before_ms: int) -> Seen:
        def is_back(nodes: Sequence[Seen]) -> str:
            own = _own(nodes, step)
            if own.status is not None and own.status.started_at_ms == started_before_ms:
                return f"{name} is still the process that it was: did the command restart it?"
            return ", ".join(unfit(nodes))

        return self._until(step, is_back, f"after {name} was restarted")

    def _fit(self, step: Step, when: str) -> Seen:
        return self._until(step, lambda nodes: ", ".join(unfit(nodes)), when)

    def _until(self, step: Step, trouble: Callable[[Sequence[Seen]], str], when: str) -> Seen:
        """The node, as soon as nothing is wrong. NodeStopped when that takes too long."""
        deadline_s = time.monotonic() + self._wait_s
        while True:
            try:
                nodes = self._seen(step)
                reason = trouble(nodes)
            except MqError as error:
                if not error.retryable:
                    raise
                reason = str(error)
            if not reason:
                return _own(nodes, step)
            if time.monotonic() > deadline_s:
                raise NodeStopped(
                    f"{when}, for {self._wait_s:g} s: {reason}. {self._so_far()}. Nothing more is "
                    "restarted: bring all nodes up, then plan again"
                )
            time.sleep(_LOOK_S)

    def _seen(self, step: Step) -> list[Seen]:
        return _look(self._admin, step.broker_set)

    def _so_far(self) -> str:
        return f"Restarted: {', '.join(self._done)}" if self._done else "Nothing was restarted yet"


def _own(nodes: Sequence[Seen], step: Step) -> Seen:
    for each in nodes:
        if each.node_id == step.node_id:
            return each
    raise IllegalMembership(f"{step.node_id} is no longer a member of {step.broker_set}")


def _others(nodes: Sequence[Seen], step: Step) -> list[Seen]:
    return [each for each in nodes if each.node_id != step.node_id]


# -- what is printed -------------------------------------------------------------------------------


def _document(planned: Plan) -> dict[str, Any]:
    return planned._asdict() | {"steps": [step._asdict() for step in planned.steps]}


def _print_versions(nodes: Sequence[Seen]) -> None:
    print_table(
        output.console(),
        [
            *set_column([each.broker_set for each in nodes]),
            Column("node", [each.node_id for each in nodes], "left"),
            Column("address", [each.address or "?" for each in nodes], "left"),
            Column("role", [each.role for each in nodes], "left"),
            Column("version", [each.status.version if each.status else "-" for each in nodes]),
            Column("state", [each.health or "fit" for each in nodes], "left", is_flexible=True),
        ],
    )


def _print_plans(plans: Sequence[Plan]) -> None:
    number = 0
    for planned in plans:
        if planned.steps:
            click.echo(f"Broker set {planned.broker_set}:")
        for note in planned.notes:
            click.echo(textwrap.fill(f"  Note: {note}.", _WIDTH, subsequent_indent="  "))
        for step in planned.steps:
            number += 1
            what, *how = _lines(step)
            first = f"  {number:2}. "
            lines = textwrap.fill(
                what,
                _WIDTH,
                initial_indent=first,
                subsequent_indent=_INDENT,
                break_on_hyphens=False,
                break_long_words=False,
            )
            click.echo(lines)
            for line in how:
                click.echo(f"{_INDENT}{line}")


def _lines(step: Step) -> list[str]:
    """The step and its reason, then the command, if it is done by hand."""
    option = f"--set {shlex.quote(step.broker_set)}"
    if step.action == "transfer":
        return [
            f"Move the leadership away from {step.node_id}: {step.why}.",
            f"mq cluster transfer-leader {option}",
        ]
    restart = f"Restart {step.node_id} ({step.address}): {step.why}."
    return [
        f"{restart} Then wait until it votes and has caught up:",
        f"mq cluster members {option}",
    ]
