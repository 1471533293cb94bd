"""The results of the tutorial's queries, in figures and in a picture, from the Parquet files.

No Spark and no broker are needed: results are files, and these are small.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
import pyarrow.dataset as ds
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from mq.errors import IllegalRequest

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, distinct also for the colour-blind.
_BLUE, _ORANGE, _GREEN, _GREY = "#0072B2", "#E69F00", "#009E73", "#5F5F5F"
_BIN = "15min"
_PNG_DPI = 110


class Found(NamedTuple):
    """The results of one day, as the names of `shop.Answer`."""

    day: str
    clicks: int
    sessions: int
    sessions_with_cart: int
    sessions_with_checkout: int
    orders: int
    paid: int
    unpaid: int
    revenue_cents: int


class Results(NamedTuple):
    sessions: pd.DataFrame
    sales: pd.DataFrame


def read_results(folder: Path) -> Results:
    """Raises IllegalRequest when there are none."""
    return Results(_read(folder / "sessions"), _read(folder / "sales"))


def _read(folder: Path) -> pd.DataFrame:
    """All batches that are complete: Spark puts a file _SUCCESS beside what it has finished."""
    batches = [mark.parent for mark in sorted(folder.glob("batch=*/_SUCCESS"))]
    files = [str(file) for batch in batches for file in sorted(batch.glob("*.parquet"))]
    if not files:
        raise IllegalRequest(
            f"there are no results in {folder}: run `mq spark etl run` first, or name its folder"
        )
    return ds.dataset(files).to_table().to_pandas()


def days(results: Results) -> list[Found]:
    sessions, sales = results
    session_days, sale_days = sessions.began_at.dt.date, sales.ordered_at.dt.date
    return [
        _found(day, sessions[session_days == day], sales[sale_days == day])
        for day in sorted({*session_days, *sale_days})
    ]


def _found(day: dt.date, sessions: pd.DataFrame, sales: pd.DataFrame) -> Found:
    paid = sales[sales.status == "paid"]
    return Found(
        day.isoformat(),
        clicks=int(sessions.clicks.sum()),
        sessions=len(sessions),
        sessions_with_cart=int(sessions.has_cart.sum()),
        sessions_with_checkout=int(sessions.has_checkout.sum()),
        orders=len(sales),
        paid=len(paid),
        unpaid=len(sales) - len(paid),
        revenue_cents=int(paid.amount_cents.sum()),
    )


# -- the picture -----------------------------------------------------------------------------------


def draw(results: Results, path: Path) -> None:
    """Four plots in one PNG. Replaces the file as a whole."""
    style: dict[Any, Any] = {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
    }
    with mpl.rc_context(style):
        layout = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.15)
        figure = Figure(figsize=(10, 7), layout=layout)
        (revenue, funnel), (lengths, latency) = figure.subplots(2, 2)
        _draw_revenue(revenue, results.sales)
        _draw_funnel(funnel, results)
        _draw_lengths(lengths, results.sessions)
        _draw_latency(latency, results.sales)
        fresh = path.with_name(f".{path.name}.new.png")
        figure.savefig(fresh, dpi=_PNG_DPI)
    fresh.replace(path)


def _draw_revenue(axes: Axes, sales: pd.DataFrame) -> None:
    paid = sales[sales.status == "paid"]
    # By the time of day: several days add up.
    minutes = paid.paid_at.dt.floor(_BIN)
    hours = minutes.dt.hour + minutes.dt.minute / 60
    sums = paid.amount_cents.groupby(hours).sum() / 100
    axes.bar(sums.index, sums.to_numpy(), width=0.23, align="edge", color=_BLUE)
    axes.set_title("Revenue per 15 minutes")
    axes.set_xlabel("time of day (UTC)")
    axes.set_ylabel("EUR")
    first, last = (int(sums.index.min()), int(sums.index.max()) + 1) if len(sums) else (9, 18)
    axes.set_xticks(range(first, last + 1), [f"{hour}:00" for hour in range(first, last + 1)])
    axes.tick_params(axis="x", labelsize=8)


def _draw_funnel(axes: Axes, results: Results) -> None:
    sessions, sales = results
    steps = {
        "sessions": len(sessions),
        "with a cart": int(sessions.has_cart.sum()),
        "with a checkout": int(sessions.has_checkout.sum()),
        "orders booked": len(sales),
        "orders paid": int((sales.status == "paid").sum()),
    }
    bars = axes.barh(list(steps), list(steps.values()), color=_GREEN)
    labels = [f"{count:,}  ({count / max(len(sessions), 1):.0%})" for count in steps.values()]
    axes.bar_label(bars, labels, padding=4)
    axes.invert_yaxis()
    axes.set_title("From a visit to a payment")
    axes.set_xlim(0, max(steps.values(), default=1) * 1.3)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)


def _draw_lengths(axes: Axes, sessions: pd.DataFrame) -> None:
    minutes = (sessions.ended_at - sessions.began_at).dt.total_seconds() / 60
    _histogram(axes, minutes, _BLUE)
    axes.set_title("How long sessions are")
    axes.set_xlabel("minutes from the first click to the last")
    axes.set_ylabel("sessions")


def _draw_latency(axes: Axes, sales: pd.DataFrame) -> None:
    paid = sales[sales.status == "paid"]
    minutes = (paid.paid_at - paid.ordered_at).dt.total_seconds() / 60
    _histogram(axes, minutes, _ORANGE)
    axes.set_title("How long customers take to pay")
    axes.set_xlabel("minutes from the order to the payment")
    axes.set_ylabel("orders")


def _histogram(axes: Axes, minutes: pd.Series, color: str) -> None:
    """With the median and the 95th percentile."""
    if minutes.empty:
        axes.text(0.5, 0.5, "none", ha="center", transform=axes.transAxes)
        return
    edges = np.linspace(0, max(float(minutes.max()), 1.0), 31)
    axes.hist(minutes, bins=edges.tolist(), color=color)
    for share, name, line in ((0.5, "median", "-"), (0.95, "95 %", "--")):
        value = float(minutes.quantile(share))
        axes.axvline(value, color=_GREY, linestyle=line, label=f"{name}: {value:.1f} min")
    axes.legend(frameon=False)
