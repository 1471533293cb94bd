"""The results of a run for people: a table in Markdown, and a line for each fault meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.checker import WRONG
from tests.faults.trial import AFTER, BEFORE, DURING, Figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.faults.trial import Result

_HEADS = (
    *("fault", "node", "before: p50, p99, pause", "during", "after"),
    *("well again", "elections", "acknowledged", "wrong"),
)
_NONE = Figures(0, 0.0, 0.0, 0.0)


def markdown(results: Sequence[Result]) -> str:
    lines = [_row(_HEADS), _row(["---"] * len(_HEADS))]
    lines += [_row(_cells(one)) for one in results]
    notes = [f"- {one.fault}, {one.role}: {note}" for one in results for note in one.notes]
    return "\n".join([*lines, "", *notes]) + "\n"


def line(result: Result) -> str:
    return "; ".join(
        f"{head}: {cell}" for head, cell in zip(_HEADS, _cells(result), strict=True)
    ) + (f"\n{result.details}" if result.details else "")


def _cells(result: Result) -> list[str]:
    wrong = sum(result.verdict[name] for name in WRONG)
    return [
        f"**{result.fault}**: {result.text}",
        result.role,
        *(_figures(result.phases.get(name, _NONE)) for name in (BEFORE, DURING, AFTER)),
        f"{result.well_again_s:.1f} s",
        str(result.elections),
        f"{result.verdict['acked']:,}",
        str(wrong) if wrong or not result.details else "?",
    ]


def _figures(figures: Figures) -> str:
    return f"{_ms(figures.p50_ms)}, {_ms(figures.p99_ms)}, {_ms(figures.pause_ms)}"


def _ms(value: float) -> str:
    return f"{value / 1000:.1f} s" if value >= 1_000 else f"{value:.0f} ms"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
