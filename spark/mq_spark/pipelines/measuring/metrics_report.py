"""Figures for people: a table that fits the terminal, and a plot of them over time.

Rows come as `metrics_figures.SCHEMA` has them; nothing here knows how they were made.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import operator
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rich.console import Console

from mq.cli.output import printable
from mq.cli.tables import Column, print_table, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]

# Of Okabe and Ito: told apart with any kind of colour vision, and in grey.
_BLUE, _ORANGE, _GREEN, _BLACK = "#0072B2", "#E69F00", "#009E73", "#333333"
_GROUP_COLOURS = (_BLUE, _ORANGE, _GREEN, "#CC79A7", "#56B4E9", "#D55E00")
_SERIES_MAX = 6
_PANEL_INCHES = (3.5, 2.0)
_DPI = 110


# -- the table -------------------------------------------------------------------------------------


def print_figures(out: Console, figures: pa.Table) -> None:
    rows = figures.to_pylist()
    print_table(out, _columns(rows))
    notes = []
    if not all(row["is_complete"] for row in rows):
        notes.append("* still open: more messages may come.")
    skewed = sum(row["skewed"] for row in rows)
    if skewed:
        notes.append(
            f"{skewed:,} of the messages were stored before they were born, by the clocks: "
            "latency 0."
        )
    for note in notes:
        out.print(note, style="dim", soft_wrap=True)


def _columns(rows: Sequence[Row]) -> list[Column]:
    def each(name: str, text: Any) -> list[str]:
        return ["-" if row[name] is None else text(row[name]) for row in rows]

    starts = [_moment(row["window_start"]) + ("" if row["is_complete"] else "*") for row in rows]
    is_one_day = len({start[:10] for start in starts}) == 1
    short = [start[11:] if is_one_day else start[5:] for start in starts]
    columns = [
        Column("window", starts, "left", compact=Column("window", short, "left")),
        Column("topic", each("topic", printable), "left", is_flexible=True),
        *_split_columns(rows),
        Column("messages", each("messages", "{:,}".format)),
        Column("per s", each("messages_per_s", _rate)),
        Column("bytes/s", each("bytes_per_s", lambda value: size(round(value))), rank=6),
        Column("size avg", each("size_avg", lambda value: size(round(value))), rank=3),
        Column("size p99", each("size_p99", size), rank=5),
        Column("size max", each("size_max", size), rank=8),
        Column("latency p50", each("latency_p50_ms", latency)),
        Column("latency p95", each("latency_p95_ms", latency), rank=7),
        Column("latency p99", each("latency_p99_ms", latency)),
        Column("latency max", each("latency_max_ms", latency), rank=4),
    ]
    for group in _groups(rows):
        lags = [dict(row["lag"] or ()).get(group) for row in rows]
        cells = ["-" if lag is None else f"{lag:,}" for lag in lags]
        columns.append(Column(f"lag {printable(group)}", cells))
    return columns


def _split_columns(rows: Sequence[Row]) -> list[Column]:
    columns = []
    if any(row["queue_id"] is not None for row in rows):
        queues = [f"{row['broker_set']}/{row['queue_id']}" for row in rows]
        columns.append(Column("queue", [printable(each) for each in queues], "left"))
    if any(row["tag"] is not None for row in rows):
        tags = [printable(row["tag"]) or "-" for row in rows]
        columns.append(Column("tag", tags, "left", is_flexible=True))
    return columns


def _groups(rows: Sequence[Row]) -> list[str]:
    return sorted({group for row in rows for group, _ in row["lag"] or ()})


def _moment(at: dt.datetime) -> str:
    """To the millisecond only where a window has a part of a second."""
    return f"{at:%Y-%m-%d %H:%M:%S}" + (f".{at.microsecond // 1000:03d}" if at.microsecond else "")


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def latency(latency_ms: float) -> str:
    """In the unit that suits."""
    for above_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if latency_ms >= above_ms:
            return f"{latency_ms / above_ms:.3g} {unit}"
    return f"{latency_ms:.0f} ms"


# -- the plot --------------------------------------------------------------------------------------


def plot_figures(figures: pa.Table, path: Path) -> None:
    """A row of panels for each topic (queue, tag): rate, sizes, latency, and lag where it is known.

    The file is written anew in one step. Of many topics the busiest are shown.
    """
    # Here, because it takes a second and only plots need it.
    from matplotlib.figure import Figure

    rows = figures.to_pylist()
    series = _series(rows)
    groups = _groups(rows)
    names = list(series)[:_SERIES_MAX]
    kinds = 4 if groups else 3
    width, height = _PANEL_INCHES
    figure = Figure(
        figsize=(width * kinds, height * max(1, len(names)) + 0.9), layout="constrained"
    )
    panels = figure.subplots(max(1, len(names)), kinds, squeeze=False, sharex=True)
    for at, name in enumerate(names):
        filled = _without_gaps(series[name])
        _plot_series(panels[at], name, filled, groups)
    for panel in panels[-1]:
        _label_times(panel)
    for panel, title in zip(
        panels[0], ("messages per second", "message size", "latency", "lag"), strict=False
    ):
        panel.set_title(title, fontsize=10, loc="left")
    left_out = len(series) - len(names)
    if left_out:
        figure.supxlabel(f"the busiest {len(names)}; {left_out} more are not shown", fontsize=8)
    fresh = path.with_name(f".{path.name}.fresh")
    with warnings.catch_warnings():
        # A name in a script that the font lacks is shown as boxes.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        figure.savefig(fresh, format=path.suffix.lstrip(".").lower(), dpi=_DPI)
    fresh.replace(path)


def _series(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """By what they are of, the busiest first."""
    key = operator.itemgetter("topic", "broker_set", "queue_id", "tag")
    found: dict[str, list[Row]] = {}
    for row in rows:
        topic, broker_set, queue_id, tag = key(row)
        queue = f" {broker_set}/{queue_id}" if queue_id is not None else ""
        told = f" [{tag or 'no tag'}]" if tag is not None else ""
        found.setdefault(printable(f"{topic}{queue}{told}"), []).append(row)
    busiest = sorted(found, key=lambda name: (-sum(r["messages"] for r in found[name]), name))
    return {name: found[name] for name in busiest}


def _without_gaps(rows: Sequence[Row]) -> list[Row]:
    """A window in which nothing came is a rate of 0, and has no sizes and no latency. One row at
    each side of a gap is enough.
    """
    filled: list[Row] = []
    for before, row in itertools.pairwise([None, *rows]):
        if before is not None and row is not None and before["window_end"] < row["window_start"]:
            window = before["window_end"] - before["window_start"]
            filled += [_silence(row, before["window_end"])]
            filled += [_silence(row, row["window_start"] - window)]
        if row is not None:
            filled.append(row)
    return filled


def _silence(like: Row, start: dt.datetime) -> Row:
    zero = {"messages": 0, "messages_per_s": 0.0, "window_start": start, "lag": None}
    return {name: zero.get(name) for name in like} | {"is_complete": True}


def _plot_series(
    panels: Sequence[Axes], name: str, rows: Sequence[Row], groups: Sequence[str]
) -> None:
    times = [row["window_start"] for row in rows]

    def values(column: str) -> list[float]:
        return [math.nan if row[column] is None else float(row[column]) for row in rows]

    def draw(panel: Axes, column: str, label: str, colour: str, style: str = "-") -> None:
        found = values(column)
        mark = "." if sum(not math.isnan(value) for value in found) <= 40 else ""
        panel.plot(times, found, style, color=colour, marker=mark, label=label, linewidth=1.4)

    rate, sizes, latencies = panels[:3]
    rate.set_ylabel(_label(name), fontsize=9)
    draw(rate, "messages_per_s", "", _BLUE)
    draw(sizes, "size_p99", "p99", _ORANGE, "--")
    draw(sizes, "size_avg", "average", _BLUE)
    draw(latencies, "latency_p99_ms", "p99", _ORANGE, "--")
    draw(latencies, "latency_p95_ms", "p95", _GREEN, "-.")
    draw(latencies, "latency_p50_ms", "p50", _BLUE)
    _finish(rate, rows, _rate, "still open")
    _finish(sizes, rows, lambda value: size(round(value)))
    _finish(latencies, rows, latency)
    _mark_powers_of_two(sizes)
    if groups:
        for group, colour in zip(groups, itertools.cycle(_GROUP_COLOURS), strict=False):
            lags = [dict(row["lag"] or ()).get(group, math.nan) for row in rows]
            panels[3].plot(
                times, lags, color=colour, marker=".", label=_label(group), linewidth=1.4
            )
        _finish(panels[3], rows, lambda value: f"{value:,.0f}")


def _finish(panel: Axes, rows: Sequence[Row], text: Any, open_label: str = "") -> None:
    panel.set_ylim(bottom=0)
    panel.grid(visible=True, color="#DDDDDD", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=8)
    panel.yaxis.set_major_formatter(lambda value, _position: text(value) if value >= 0 else "")
    panel.locator_params(axis="y", nbins=4)
    still_open = [row for row in rows if not row["is_complete"]]
    if still_open:
        start, end = still_open[0]["window_start"], still_open[-1]["window_end"]
        panel.axvspan(start, end, color="#EEEEEE", zorder=0, label=open_label)
    if panel.get_legend_handles_labels()[1]:
        panel.legend(fontsize=7, frameon=False, loc="upper left", ncols=4, handlelength=1.6)
        # Room for it above the lines.
        panel.set_ylim(top=panel.get_ylim()[1] * 1.25)


def _mark_powers_of_two(panel: Axes) -> None:
    """1 KiB and 2 KiB, not 1000 B."""
    from matplotlib.ticker import MultipleLocator

    top = max(4.0, panel.get_ylim()[1])
    panel.yaxis.set_major_locator(MultipleLocator(2 ** math.ceil(math.log2(top / 4))))


def _label_times(panel: Axes) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(minticks=2, maxticks=5, tz=dt.UTC)  # type: ignore[no-untyped-call]
    panel.xaxis.set_major_locator(locator)
    concise = ConciseDateFormatter(locator, tz=dt.UTC)  # type: ignore[no-untyped-call]
    panel.xaxis.set_major_formatter(concise)


def _label(name: str, width: int = 24) -> str:
    """As it is: matplotlib takes $ for mathematics, and hides what begins with _."""
    short = name if len(name) <= width else f"{name[: width - 1]}…"
    return short.replace("$", r"\$").replace("_", "\u200b_", 1)
