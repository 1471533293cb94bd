"""Alarms: things that an operator should look at first, found in a sample, worst first. No clock,
no network.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from mq.console import formats
from mq.console.sampler import Sample
from mq.console.series import History
from mq.wire.v1.consumer_pb2 import MODE_BROADCAST

_DISK_WARN, _DISK_BAD = 0.75, 0.85
_BEHIND_ENTRIES = 1_000
# A lag that has grown over the last samples, and is not small.
_GROWING_SAMPLES, _GROWING_LEAST = 24, 1_000
_SHOWN_MAX = 20


class Level(enum.IntEnum):
    BAD = 0
    WARN = 1

    @property
    def word(self) -> str:
        return ("critical", "warning")[self]


@dataclass(frozen=True, slots=True)
class Alarm:
    level: Level
    text: str
    # A path of the console, or nothing.
    href: str = ""
    command: str = ""


def alarms(sample: Sample, history: History) -> list[Alarm]:
    found = [
        *_of_sets(sample),
        *_of_nodes(sample),
        *_of_disks(sample),
        *_of_groups(sample, history),
    ]
    return sorted(found, key=lambda one: one.level)[:_SHOWN_MAX]


def _of_sets(sample: Sample) -> Iterator[Alarm]:
    if sample.error is not None:
        yield Alarm(Level.BAD, f"The last poll failed: {sample.error}", command="mq cluster status")
    health = "mq cluster health"
    for one in sample.sets:
        if not one.leader_id:
            yield Alarm(Level.BAD, f"Broker set {one.name} has no leader.", command=health)
    for name in sample.missing_sets:
        yield Alarm(
            Level.BAD,
            f"Broker set {name} did not answer: its topics and groups are not shown.",
            command=health,
        )


def _of_nodes(sample: Sample) -> Iterator[Alarm]:
    if sample.is_status_denied:
        return
    for node in sample.nodes:
        name = f"Node {node.name} of {node.broker_set}"
        if node.status is None:
            reason = f": {node.error}" if node.error else ""
            yield Alarm(Level.BAD, f"{name} does not answer{reason}", command="mq cluster health")
            continue
        if node.status.open_damages:
            count = formats.counted(node.status.open_damages, "damaged place")
            yield Alarm(Level.BAD, f"{name} has {count} on its disk.", command="mq cluster health")
        for other in node.status.followers:
            follower = f"Node {other.node_id} of {node.broker_set}"
            if not other.is_connected:
                yield Alarm(Level.WARN, f"{follower} is not connected to its leader.")
            elif other.behind >= _BEHIND_ENTRIES:
                behind = formats.counted(other.behind, "entry", "entries")
                yield Alarm(Level.WARN, f"{follower} is {behind} behind its leader.")


def _of_disks(sample: Sample) -> Iterator[Alarm]:
    """One for all nodes of a set: they fill alike."""
    full: dict[tuple[str, Level], list[tuple[float, int, str]]] = {}
    for node in sample.nodes:
        status = node.status
        if status is None or not status.disk_total_bytes:
            continue
        used = status.disk_used_bytes / status.disk_total_bytes
        if used >= _DISK_WARN:
            level = Level.BAD if used >= _DISK_BAD else Level.WARN
            free = status.disk_total_bytes - status.disk_used_bytes
            full.setdefault((node.broker_set, level), []).append((used, free, node.name))
    for (broker_set, level), found in full.items():
        most, left = max(one[0] for one in found), formats.size(min(one[1] for one in found))
        names = f"{', '.join(sorted(one[2] for one in found))} of {broker_set}"
        word = "The disk of" if len(found) == 1 else "The fullest disk of"
        text = f"{word} {names} is {most:.0%} full, {left} are left."
        yield Alarm(level, text, "/brokers", "mq cluster status")


def _of_groups(sample: Sample, history: History) -> Iterator[Alarm]:
    for one in sample.groups:
        if not one.lag or one.mode == MODE_BROADCAST:
            continue
        href = f"/groups/{quote(one.group, safe='')}"
        command = formats.command("group", "describe", one.group)
        count = formats.counted(one.lag, "message")
        if not one.members:
            text = f"Group {one.group} has {count} to consume, and no member."
            yield Alarm(Level.WARN, text, href, command)
        elif is_growing(history.last("lag", one.group, _GROWING_SAMPLES)):
            text = f"Group {one.group} falls behind: {count}, and growing."
            yield Alarm(Level.WARN, text, href, command)
    letters = sum(one.status.dead_letters for one in sample.nodes if one.is_leader and one.status)
    if letters:
        waiting = formats.counted(letters, "dead letter waits", "dead letters wait")
        text = f"{waiting} for a decision."
        yield Alarm(Level.WARN, text, "/dead-letters", "mq dlq list")


def is_growing(lags: Sequence[float | None]) -> bool:
    """Higher in the end than in the middle, and there than in the beginning."""
    known = [one for one in lags if one is not None]
    if len(known) < _GROWING_SAMPLES // 2 or known[-1] < _GROWING_LEAST:
        return False
    return known[-1] > known[len(known) // 2] > known[0]
