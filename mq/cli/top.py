"""`mq top`: the cluster at a glance, while it works.

Two looks at the counters that nodes, topics and groups keep anyway give rates; brokers do nothing
for it beyond answering. What moves most comes first: topics by messages a second, groups by lag.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from mq.cli import output
from mq.cli.nodes import Seen, behind, leadership, look, set_column
from mq.cli.options import Brokers, Duration, with_brokers
from mq.cli.tables import Column, counted, nonzero, print_table, size, state
from mq.cli.watch import watch

if TYPE_CHECKING:
    from mq.client import Admin
    from mq.wire.v1.cluster_pb2 import RouteResponse

_EVERY_S = 2.0
_ROWS = 10
_NEVER = "growing"


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """The counters at one moment."""

    at_s: float
    route: RouteResponse
    nodes: Sequence[Seen]
    # By topic: messages ever written, and bytes that are kept.
    topics: Mapping[str, tuple[int, int]]
    # By group: how many messages it is behind, and its members.
    groups: Mapping[str, tuple[int, int]]


@dataclasses.dataclass(frozen=True, slots=True)
class TopicRate:
    topic: str
    per_s: float
    stored_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class GroupLag:
    group: str
    members: int
    lag: int
    # Of the lag, a second; negative: the group catches up.
    change_per_s: float

    @property
    def drained_in(self) -> str:
        """When the group has caught up, if it goes on like this."""
        if not self.lag:
            return "0 s"
        if self.change_per_s >= 0:
            return _NEVER if self.change_per_s > 0 else "-"
        return _seconds(self.lag / -self.change_per_s)


def topic_rates(before: Sample, now: Sample) -> list[TopicRate]:
    """The liveliest first. A topic that is new has its first messages within the time."""
    passed_s = max(now.at_s - before.at_s, 1e-9)
    rates = [
        # A topic that was deleted and created anew counts from the beginning.
        TopicRate(topic, max(0, end - before.topics.get(topic, (0, 0))[0]) / passed_s, stored)
        for topic, (end, stored) in now.topics.items()
    ]
    return sorted(rates, key=lambda one: (-one.per_s, -one.stored_bytes, one.topic))


def group_lags(before: Sample, now: Sample) -> list[GroupLag]:
    """Those that are furthest behind first."""
    passed_s = max(now.at_s - before.at_s, 1e-9)
    lags = [
        GroupLag(group, members, lag, (lag - before.groups.get(group, (lag, 0))[0]) / passed_s)
        for group, (lag, members) in now.groups.items()
    ]
    return sorted(lags, key=lambda one: (-one.lag, one.group))


def take(admin: Admin) -> Sample:
    route = admin.route()
    nodes = look(admin, route)
    topics = {
        each.info.topic: (each.messages_written, each.info.stored_bytes)
        for each in admin.list_topics()
    }
    groups = {each.group: (each.lag, each.members) for each in admin.list_groups()}
    return Sample(time.monotonic(), route, nodes, topics, groups)


@click.command(short_help="Show rates, lags and nodes, live.")
@click.option(
    "--every", "every_s", metavar="2s", type=Duration(), default=_EVERY_S, help="How often."
)
@click.option("--count", metavar="N", type=click.IntRange(1), help="End after so many pictures.")
@click.option(
    "--rows",
    metavar="N",
    type=click.IntRange(1),
    default=_ROWS,
    show_default=True,
    help="Topics and groups at the most.",
)
@with_brokers()
def top(brokers: Brokers, *, every_s: float, count: int | None, rows: int) -> None:
    """Show the nodes, the liveliest topics and the groups that are furthest behind, until Ctrl-C.

    \b
    in/s, out/s  messages that the node takes and delivers
    CPU          of one core
    drained in   how long the group needs to catch up, if it goes on like this
    """
    every_s = max(every_s, 0.1)
    with brokers.admin() as admin:
        before = take(admin)

        def show() -> None:
            nonlocal before
            now = take(admin)
            if brokers.as_json:
                output.write_json(_document(before, now))
            else:
                _print(before, now, rows)
            before = now

        # A rate needs two looks.
        time.sleep(min(every_s, 1.0))
        watch(show, every_s, count)


# -- what is printed -------------------------------------------------------------------------------


def _print(before: Sample, now: Sample, rows: int) -> None:
    out = output.console()
    print_table(out, _node_columns(before, now))
    for each in leadership(now.route, now.nodes):
        if each.problem:
            click.echo(each.problem)
    rates, lags = topic_rates(before, now), group_lags(before, now)
    if rates:
        print_table(out, _topic_columns(rates[:rows]))
    if lags:
        print_table(out, _group_columns(lags[:rows]))
    total_per_s = sum(one.per_s for one in rates)
    lag = sum(one.lag for one in lags)
    topics, groups = counted(len(rates), "topic"), counted(len(lags), "group")
    click.echo(f"{topics}, {total_per_s:,.0f} messages/s in; {groups}, {lag:,} behind")


def _node_columns(before: Sample, now: Sample) -> list[Column]:
    earlier = {each.place: each.status for each in before.nodes}
    passed_s = max(now.at_s - before.at_s, 1e-9)

    def rates(name: str, form: str, factor: float = 1.0) -> list[str]:
        cells = []
        for each in now.nodes:
            status, past = each.status, earlier.get(each.place)
            # A node that was restarted counts from 0 again.
            if status is None or past is None or past.started_at_ms != status.started_at_ms:
                cells.append("-")
            else:
                change = getattr(status, name) - getattr(past, name)
                cells.append(form.format(max(0.0, factor * change / passed_s)))
        return cells

    lacking = behind(now.nodes)
    places = [(each.broker_set, each.node_id) for each in now.nodes]
    lags = [f"{lacking[place]:,}" if place in lacking else "-" for place in places]
    disk = [
        f"{100 * each.status.disk_used_bytes / max(each.status.disk_total_bytes, 1):.0f} %"
        if each.status is not None
        else "-"
        for each in now.nodes
    ]
    memory = [size(each.status.rss_bytes) if each.status else "-" for each in now.nodes]
    return [
        *set_column([each.broker_set for each in now.nodes]),
        Column("node", [each.node_id for each in now.nodes], "left"),
        Column("role", [each.role for each in now.nodes], "left", style=state),
        Column("in/s", rates("messages_in", "{:,.0f}")),
        Column("out/s", rates("messages_out", "{:,.0f}")),
        Column("CPU", rates("cpu_seconds", "{:.0f} %", 100.0)),
        Column("memory", memory, rank=2),
        Column("disk used", disk, rank=3),
        Column("behind", lags, rank=1, style=nonzero),
    ]


def _topic_columns(rates: Sequence[TopicRate]) -> list[Column]:
    return [
        Column("topic", [one.topic for one in rates], "left", is_flexible=True),
        Column("in/s", [f"{one.per_s:,.0f}" for one in rates]),
        Column("stored", [size(one.stored_bytes) for one in rates]),
    ]


def _group_columns(lags: Sequence[GroupLag]) -> list[Column]:
    return [
        Column("group", [one.group for one in lags], "left", is_flexible=True),
        Column("members", [str(one.members) for one in lags]),
        Column("behind", [f"{one.lag:,}" for one in lags], style=nonzero),
        Column("change/s", [f"{one.change_per_s:+,.0f}" for one in lags]),
        Column(
            "drained in",
            [one.drained_in for one in lags],
            style=lambda cell: "red" if cell == _NEVER else "",
        ),
    ]


def _seconds(length_s: float) -> str:
    if length_s < 100:
        return f"{length_s:.0f} s"
    if length_s < 6_000:
        return f"{length_s / 60:.0f} min"
    return f"{length_s / 3_600:,.0f} h"


def _document(before: Sample, now: Sample) -> dict[str, object]:
    return {
        "nodes": [
            {
                "broker_set": each.broker_set,
                "node_id": each.node_id,
                "role": each.role,
                "problem": each.health,
            }
            for each in now.nodes
        ],
        "topics": [dataclasses.asdict(one) for one in topic_rates(before, now)],
        "groups": [dataclasses.asdict(one) for one in group_lags(before, now)],
    }
