"""A chaos run as Markdown, to be kept: the verdict, faults by kind with their pauses, what rotted,
topics, sends that ended with an error.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING

from tests.chaos.checker import WRONG

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tests.chaos.checker import Ledger
    from tests.chaos.timeline import Fault, Timeline

_SHOWN = ("acked", *WRONG, "unknown", "redelivered", "repeated")
_ADDRESS = re.compile(r"127\.0\.0\.1:\d+")


def markdown(ledger: Ledger, timeline: Timeline, works: Mapping[str, Mapping[str, int]]) -> str:
    """`works`: the counts of each topic."""
    verdict = ledger.verdict()
    parts = [
        _table(["", "messages"], [[name, verdict[name]] for name in _SHOWN]),
        _latencies(timeline),
        "### Faults\n",
        _table(
            [
                "fault",
                "times",
                "well again after: median, longest",
                "a set's sends paused: median, longest",
            ],
            [_fault_row(kind, found) for kind, found in sorted(_by_kind(timeline.faults).items())],
        ),
        "### Rot\n",
        _table(
            ["kind of file", "damaged places", "mended"],
            [[kind, count, ledger.mended[kind]] for kind, count in sorted(ledger.rotted.items())],
        ),
        "### Topics\n",
        _table(
            ["topic", *next(iter(works.values()), {})],
            [[topic, *counts.values()] for topic, counts in works.items()],
        ),
        "### Sends that ended with an error\n",
        _table(["sends", "why"], [[count, why] for why, count in _reasons(ledger)]),
    ]
    return "\n".join(parts)


def _latencies(timeline: Timeline) -> str:
    found = sorted(1e3 * latency_s for _, latency_s in timeline.sends)
    if not found:
        return ""
    marks = [found[int(len(found) * share)] for share in (0.5, 0.9, 0.99, 0.999)]
    text = ", ".join(f"{mark:,.0f}" for mark in (*marks, found[-1]))
    return f"Milliseconds of a send, faults and all: p50, p90, p99, p99.9, longest: {text}.\n"


def _by_kind(faults: Iterable[Fault]) -> dict[str, list[Fault]]:
    """Without numbers and nodes: `clock +312 ms` is `clock`."""
    found: dict[str, list[Fault]] = defaultdict(list)
    for fault in faults:
        found[re.sub(r" [ab]\d$| [+-]?\d+( ms|%)", "", fault.kind)].append(fault)
    return found


def _fault_row(kind: str, faults: Sequence[Fault]) -> list[object]:
    healed_s = [one.ended_s - one.began_s for one in faults]
    pauses_s = [pause_s for one in faults for pause_s in one.pauses_s.values()]
    return [kind, len(faults), _seconds(healed_s), _seconds(pauses_s)]


def _seconds(found: Sequence[float]) -> str:
    return f"{statistics.median(found):.1f} s, {max(found):.1f} s" if found else ""


def _reasons(ledger: Ledger) -> list[tuple[str, int]]:
    """Without addresses, most frequent first."""
    found: dict[str, int] = defaultdict(int)
    for why, count in ledger.refusals.items():
        found[_ADDRESS.sub("a broker", why).replace("|", "/").replace("\n", " ")] += count
    return sorted(found.items(), key=lambda one: -one[1])


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    if len(lines) == 2:
        return "None.\n"
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
