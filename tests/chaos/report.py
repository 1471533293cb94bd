"""The report of a chaos run: one HTML file that needs nothing else, the ledger as JSON, a summary.

The plot has acknowledgements and sightings a second, how long sends took, and the faults as bands.
"""

from __future__ import annotations

import html
import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.chaos import summary
from tests.chaos.checker import WRONG
from tests.chaos.timeline import BUCKET_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from tests.chaos.checker import Ledger
    from tests.chaos.timeline import Fault, Timeline

_WIDTH, _LEFT, _RIGHT = 1160, 64, 16
_LABELS_HEIGHT, _PANEL_HEIGHT, _GAP, _FOOT_HEIGHT = 132, 190, 40, 52
# Distinct next to each other, also for the colour-blind.
_BLUE, _ORANGE, _GREEN, _RED = "#2563a8", "#d97706", "#15803d", "#b91c1c"
_COLOURS = {
    "kill": "#dc2626",
    "freeze": "#2563eb",
    "planned": "#16a34a",
    "rolling": "#16a34a",
    "isolate": "#9333ea",
    "one-way": "#9333ea",
    "lose": "#9333ea",
    "disk": "#b45309",
    "clock": "#0891b2",
    "rot": "#78350f",
}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2937; max-width: 1180px; margin: 2em auto;
  padding: 0 1em; }
h1 { font-size: 1.5em; margin-bottom: 0; } h2 { font-size: 1.1em; margin-top: 2em; }
.good { color: #15803d; } .bad { color: #b91c1c; }
table { border-collapse: collapse; } td, th { padding: 2px 14px 2px 0; text-align: left; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
tr + tr { border-top: 1px solid #e5e7eb; } pre { white-space: pre-wrap; }
svg { max-width: 100%; height: auto; } svg text { font: 12px sans-serif; fill: #4b5563; }
"""


class Line(NamedTuple):
    """Broken where a bucket has no value."""

    label: str
    colour: str
    values: Mapping[int, float]


class Scale(NamedTuple):
    """From values to heights between 0 and 1, and what stands at the side."""

    height: Callable[[float], float]
    marks: Sequence[float]


def write(
    directory: Path, ledger: Ledger, timeline: Timeline, verdict: Mapping[str, Any], details: str
) -> Path:
    """The page; beside it `ledger.json`, `summary.md` and, if something is wrong, `details.txt`."""
    directory.mkdir(parents=True, exist_ok=True)
    # Of a run before, with the same seed.
    (directory / "details.txt").unlink(missing_ok=True)
    works = {one.topic: _counts(one) for one in ledger.works.values()}
    faults = [_fault_document(one) for one in timeline.faults]
    document = {
        "verdict": verdict,
        "topics": works,
        "faults": faults,
        "rot": {
            kind: {"places": count, "mended": ledger.mended[kind]}
            for kind, count in sorted(ledger.rotted.items())
        },
        "errors": ledger.errors,
        "refusals": ledger.refusals,
    }
    (directory / "ledger.json").write_text(json.dumps(document, indent=2) + "\n")
    if details:
        (directory / "details.txt").write_text(details + "\n")
    (directory / "summary.md").write_text(summary.markdown(ledger, timeline, works))
    page = directory / "report.html"
    page.write_text(_page(ledger, timeline, verdict, details, works), encoding="utf-8")
    return page


def _counts(work: Any) -> dict[str, int]:
    names = ("sent", "acked", "unknown", "seen", *WRONG[:-1])
    counts = {name: len(getattr(work, name)) for name in names}
    counts["repeated"] = len(work.repeated) if work.may_repeat else 0
    return {**counts, "redelivered": work.redelivered}


def _fault_document(fault: Fault) -> dict[str, Any]:
    return {
        "kind": fault.kind,
        "nodes": list(fault.nodes),
        "began_s": round(fault.began_s, 3),
        "ended_s": round(fault.ended_s, 3),
        "pauses_s": {name: round(pause_s, 3) for name, pause_s in fault.pauses_s.items()},
    }


# -- the page --------------------------------------------------------------------------------------


def _page(
    ledger: Ledger,
    timeline: Timeline,
    verdict: Mapping[str, Any],
    details: str,
    works: Mapping[str, Mapping[str, int]],
) -> str:
    is_good = ledger.is_good()
    word = '<span class="good">nothing is wrong</span>'
    if not is_good:
        word = '<span class="bad">promises were broken</span>'
    facts = ", ".join(f"{html.escape(str(k))} {html.escape(str(v))}" for k, v in verdict.items())
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        f"<title>Chaos run {verdict.get('seed', '')}</title><style>{_STYLE}</style>",
        f"<h1>Chaos run: {word}</h1><p>{facts}</p>",
        plot(timeline),
        "<h2>Topics</h2>",
        _table(
            ["topic", *next(iter(works.values()), {})],
            [[topic, *counts.values()] for topic, counts in works.items()],
        ),
        "<h2>Faults</h2>",
        _table(
            ["began", "healed after", "fault", "nodes", "sends paused for"],
            [_fault_row(one) for one in timeline.faults],
        ),
    ]
    if ledger.rotted:
        rows = [[kind, count, ledger.mended[kind]] for kind, count in ledger.rotted.most_common()]
        parts += ["<h2>Rot</h2>", _table(["kind of file", "damaged places", "mended"], rows)]
    if ledger.refusals:
        rows = [[count, why] for why, count in ledger.refusals.most_common()]
        parts += ["<h2>Sends that ended with an error</h2>", _table(["sends", "why"], rows)]
    if details:
        parts.append(f"<h2>What is wrong</h2><pre class='bad'>{html.escape(details)}</pre>")
    return "\n".join(parts) + "</html>\n"


def _fault_row(fault: Fault) -> list[object]:
    pauses = [f"{name}: {pause_s:.2f} s" for name, pause_s in fault.pauses_s.items()]
    return [
        f"{fault.began_s:.1f} s",
        f"{fault.ended_s - fault.began_s:.1f} s",
        fault.kind,
        ", ".join(fault.nodes),
        ", ".join(pauses),
    ]


def _table(heads: Iterable[str], rows: Iterable[Sequence[object]]) -> str:
    def cell(tag: str, value: object) -> str:
        kind = " class='n'" if isinstance(value, int) else ""
        text = f"{value:,}" if isinstance(value, int) else html.escape(str(value))
        return f"<{tag}{kind}>{text}</{tag}>"

    body = ["<tr>" + "".join(cell("th", one) for one in heads) + "</tr>"]
    body += ["<tr>" + "".join(cell("td", one) for one in row) + "</tr>" for row in rows]
    return f"<table>{''.join(body)}</table>"


# -- the plot --------------------------------------------------------------------------------------


def plot(timeline: Timeline) -> str:
    """SVG: two panels over one axis of time, faults behind both."""
    buckets = range(max([*timeline.acked, *timeline.seen, 0]) + 1)
    end_s = max(len(buckets) * BUCKET_S, timeline.now_s if timeline.faults else 0.0)
    rates = [
        Line(name, colour, {at: counts[at] / BUCKET_S for at in buckets})
        for name, colour, counts in (
            ("acknowledged", _BLUE, timeline.acked),
            ("seen", _ORANGE, timeline.seen),
        )
    ]
    found = timeline.latencies_s()
    latencies = [
        Line("median", _GREEN, {at: 1e3 * all_[len(all_) // 2] for at, all_ in found.items()}),
        Line("slowest", _RED, {at: 1e3 * all_[-1] for at, all_ in found.items()}),
    ]
    top = _LABELS_HEIGHT
    second = top + _PANEL_HEIGHT + _GAP
    bottom = second + _PANEL_HEIGHT
    height = bottom + _FOOT_HEIGHT
    size = f"viewBox='0 0 {_WIDTH} {height}' width='{_WIDTH}' height='{height}'"
    parts = [
        f"<svg {size} xmlns='http://www.w3.org/2000/svg' role='img' aria-label='timeline'>",
        *_bands(timeline.faults, end_s, top, bottom),
        *_panel(rates, _linear(rates), end_s, top, "messages a second, peaks cut"),
        *_panel(latencies, _logarithmic(latencies), end_s, second, "milliseconds of a send"),
        *_seconds(end_s, bottom),
        *_phases(timeline, end_s, height),
        "</svg>",
    ]
    return "\n".join(parts)


def _x(at_s: float, end_s: float) -> float:
    return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * at_s / max(end_s, 1e-9), 1)


def _bands(faults: Sequence[Fault], end_s: float, top: int, bottom: int) -> Iterable[str]:
    """Each with its name above the plot, slanted, so that neighbours stay readable."""
    for fault in faults:
        left, right = _x(fault.began_s, end_s), _x(fault.ended_s or end_s, end_s)
        colour = _COLOURS.get(fault.kind.split(" ", maxsplit=1)[0], "#6b7280")
        title = html.escape(f"{fault} ({fault.ended_s - fault.began_s:.1f} s)")
        yield (
            f"<rect x='{left}' y='{top}' width='{max(1.5, right - left):.1f}' "
            f"height='{bottom - top}' fill='{colour}' fill-opacity='0.14'>"
            f"<title>{title}</title></rect>"
        )
        yield (
            f"<text transform='translate({left + 4},{top - 5}) rotate(-52)' "
            f"style='font-size:10px;fill:{colour}'>{html.escape(fault.kind)}</text>"
        )


def _panel(
    lines: Sequence[Line], scale: Scale, end_s: float, top: int, title: str
) -> Iterable[str]:
    def y(value: float) -> float:
        return round(top + _PANEL_HEIGHT * (1 - scale.height(value)), 1)

    for mark in scale.marks:
        yield (
            f"<line x1='{_LEFT}' x2='{_WIDTH - _RIGHT}' y1='{y(mark)}' y2='{y(mark)}' "
            "stroke='#d1d5db' stroke-width='0.6'/>"
        )
        yield f"<text x='{_LEFT - 6}' y='{y(mark) + 4}' text-anchor='end'>{mark:,.10g}</text>"
    for line in lines:
        path, before = "", -2
        for bucket, value in line.values.items():
            step = "L" if bucket == before + 1 else "M"
            path += f"{step}{_x((bucket + 0.5) * BUCKET_S, end_s)} {y(value)}"
            before = bucket
        yield (
            f"<path d='{path}' fill='none' stroke='{line.colour}' stroke-width='1.4' "
            "stroke-linejoin='round' stroke-linecap='round'/>"
        )
    legend = "".join(
        f"<tspan dx='12' style='fill:{line.colour}'>{html.escape(line.label)}</tspan>"
        for line in lines
    )
    yield f"<text x='{_LEFT + 8}' y='{top + 15}'>{html.escape(title)}:{legend}</text>"


def _seconds(end_s: float, y: int) -> Iterable[str]:
    step_s = _nice(end_s / 10)
    at_s = 0.0
    while at_s <= end_s:
        yield f"<text x='{_x(at_s, end_s)}' y='{y + 14}' text-anchor='middle'>{at_s:g} s</text>"
        at_s += step_s


def _phases(timeline: Timeline, end_s: float, height: int) -> Iterable[str]:
    for number, (began_s, name) in enumerate(timeline.phases):
        x = _x(began_s, end_s)
        # The last ones are close to each other.
        y = height - (22 if number % 2 else 6)
        yield (
            f"<line x1='{x}' x2='{x}' y1='{_LABELS_HEIGHT}' y2='{height - 8}' stroke='#6b7280' "
            "stroke-dasharray='3 3' stroke-width='0.8'/>"
        )
        is_last = x > 0.9 * _WIDTH
        place = f"x='{x - 4}' text-anchor='end'" if is_last else f"x='{x + 4}'"
        yield f"<text {place} y='{y}'>{html.escape(name)}</text>"


def _linear(lines: Sequence[Line]) -> Scale:
    """A linear scale of the usual values: peaks behind an outage would make the rest flat."""
    values = sorted(value for line in lines for value in line.values.values() if value)
    usual = values[int(len(values) * 0.95)] if values else 1.0
    limit = _nice(1.5 * usual)
    return Scale(lambda value: min(1.0, value / limit), [limit * step / 4 for step in range(5)])


def _logarithmic(lines: Sequence[Line]) -> Scale:
    """From 1 on: less is drawn as 1."""
    limit = max((value for line in lines for value in line.values.values()), default=10.0)
    powers = max(1, math.ceil(math.log10(max(limit, 10.0))))
    return Scale(
        lambda value: math.log10(max(value, 1.0)) / powers, [10.0**at for at in range(powers + 1)]
    )


def _nice(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, ..."""
    power = 1.0
    while power < value:
        power *= 10
    while power / 10 >= value > 0:
        power /= 10
    return next(power * part / 10 for part in (1, 2, 5, 10) if power * part / 10 >= value)
