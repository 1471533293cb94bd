"""The figures as bars from zero, readable on light and dark pages.

Batches that were encoded before the clock started are left out: next to them all others vanish.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bench.peers.ours import MqEncoded
from bench.peers.report import FLUSHES, SIZES, Report, shown

# Grey text and lines stand out from white and from black alike; so do both blues and oranges.
_TEXT = "#7d8590"
_OURS = {128: "#e8590c", 1024: "#f4a261"}
_OTHERS = {128: "#3b82c4", 1024: "#8dbbe0"}
_BAR = 0.38


def draw(report: Report, path: Path) -> None:
    """A panel a kind of work and durability, with a pair of bars a system."""
    broker_works = (("batches", "Batches"), ("calls", "One message a call"))
    client_works = (("send", "Python clients: send"), ("receive", "Python clients: receive"))
    panels = [
        (f"{title}, {FLUSHES[flush]}", report.rates([work], flush), work)
        for flush in FLUSHES
        for work, title in broker_works
    ]
    panels += [(title, report.rates([work], "async"), work) for work, title in client_works]
    for _, rates, _ in panels:
        rates.pop(MqEncoded.title, None)
    panels = [panel for panel in panels if panel[1]]
    # The salt and no date: the same figures give the same file.
    with mpl.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "mq", "font.size": 8, "text.color": _TEXT}
    ):
        rows = (len(panels) + 1) // 2
        heights = [
            max(len(rates) for _, rates, _ in panels[row * 2 : row * 2 + 2]) for row in range(rows)
        ]
        figure = Figure(figsize=(9, 0.7 * rows + 0.36 * sum(heights)), layout="constrained")
        axes = figure.subplots(rows, 2, gridspec_kw={"height_ratios": heights}, squeeze=False)
        for at in axes.flat[len(panels) :]:
            at.set_visible(False)
        for at, (title, rates, work) in zip(axes.flat, panels, strict=False):
            _panel(at, title, work, rates)
        figure.suptitle(
            "messages/s, one node; dark bars 128 B, light bars 1 KiB", color=_TEXT, fontsize=9
        )
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, transparent=True, metadata=metadata, dpi=110)


def _panel(
    axes: Axes, title: str, work: str, rates: dict[str, dict[tuple[str, int], float]]
) -> None:
    names = list(rates)
    for half, size in enumerate(SIZES):
        for row, name in enumerate(names):
            rate = rates[name].get((work, size))
            if not rate:
                continue
            colours = _OURS if name.startswith("mq") else _OTHERS
            place = row + (half - 0.5) * _BAR
            axes.barh(place, rate, _BAR, color=colours[size])
            axes.annotate(
                shown(rate), (rate, place), (3, 0), textcoords="offset points", va="center"
            )
    # Room for the number of the longest bar.
    axes.set_xlim(0, axes.get_xlim()[1] * 1.15)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_title(title, color=_TEXT, fontsize=9, loc="left")
    axes.tick_params(colors=_TEXT, which="both", length=2)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(_TEXT)
