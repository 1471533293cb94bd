"""Figures, and the tables that show them: one of brokers by durability, one of Python clients."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.table import Table

SIZES = {128: "128 B", 1024: "1 KiB"}
# Titles of the columns.
BROKER_WORKS = {"batches": "batches", "calls": "a call each"}
CLIENT_WORKS = {"send": "send", "receive": "receive"}
FLUSHES = {"async": "from the page cache", "sync": "after fsync"}
_WIDTH = 80


@dataclass(frozen=True, slots=True)
class Figure:
    """Messages a second of one system at one kind of work."""

    title: str
    work: str
    size: int
    flush: str
    per_s: float
    # Lowest and highest round.
    spread: tuple[float, float]
    tool: str
    durability: str


@dataclass(slots=True)
class Report:
    figures: list[Figure] = field(default_factory=list)
    # What was not measured, and why.
    skipped: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        document = {"figures": [asdict(one) for one in self.figures], "skipped": self.skipped}
        return json.dumps(document)

    @classmethod
    def merged(cls, paths: Iterable[Path]) -> Self:
        """Reports of several runs; of two figures of the same, the later one counts."""
        found: dict[tuple[str, str, int, str], Figure] = {}
        skipped: dict[str, str] = {}
        for path in paths:
            document = json.loads(path.read_text())
            for fields in document["figures"]:
                one = Figure(**{**fields, "spread": tuple(fields["spread"])})
                found[one.title, one.work, one.size, one.flush] = one
            skipped |= document["skipped"]
        return cls(list(found.values()), skipped)

    def rates(self, works: Iterable[str], flush: str) -> dict[str, dict[tuple[str, int], float]]:
        """Messages a second by title, then by work and size."""
        found: dict[str, dict[tuple[str, int], float]] = {}
        for one in self.figures:
            if one.work in works and one.flush == flush:
                found.setdefault(one.title, {})[one.work, one.size] = one.per_s
        return found

    def show(self) -> None:
        console = Console(width=_WIDTH, highlight=False)
        for flush, meaning in FLUSHES.items():
            self._show(console, f"Brokers, acknowledged {meaning}", BROKER_WORKS, flush)
            self._show_notes(console, flush)
        self._show(console, "Python clients, one process each", CLIENT_WORKS, "async")
        for what, why in self.skipped.items():
            console.print(f"skipped: {what}: {why}", soft_wrap=False)

    def _show(self, console: Console, title: str, works: dict[str, str], flush: str) -> None:
        rates = self.rates(works, flush)
        if not rates:
            return
        columns = [(work, size) for work in works for size in SIZES]
        table = Table(box=None, pad_edge=False)
        table.add_column("messages/s")
        for work, size in columns:
            table.add_column(f"{works[work]}\n{SIZES[size]}", justify="right")
        for name, row in rates.items():
            table.add_row(name, *(shown(row.get(column)) for column in columns))
        console.print(f"\n[bold]{title}[/bold]")
        console.print(table)

    def _show_notes(self, console: Console, flush: str) -> None:
        notes = {
            one.title: one.durability
            for one in self.figures
            if one.flush == flush and one.work in BROKER_WORKS
        }
        for title, durability in notes.items():
            console.print(f"  {title}: {durability}", style="dim")


def shown(per_s: float | None) -> str:
    """Three digits are more than such a figure is good for."""
    if not per_s:
        return "-"
    digits = 3 - len(str(int(per_s)))
    return f"{round(per_s, min(0, digits)):,.0f}"


def middle(rounds: Sequence[float]) -> float:
    """The median; of two, the higher: noise only takes away."""
    return sorted(rounds)[len(rounds) // 2]
