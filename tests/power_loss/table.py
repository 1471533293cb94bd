"""The sums of a power-loss run over all legs: a row for each kind of cut, and a verdict."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.power_loss.leg import Leg

_HEAD = """\
| nodes, flush | power lost by | way | cuts | acknowledged before | lost | oldest loss |
|---|---|---|---|---|---|---|
"""


@dataclass(slots=True)
class Row:
    cuts: int = 0
    acked: int = 0
    # Allowed, with asynchronous flush.
    excused: int = 0
    oldest_s: float = 0.0


class Table:
    def __init__(self) -> None:
        self.broken_legs = 0
        self._rows: dict[tuple[str, str, str], Row] = {}
        self._sums: Counter[str] = Counter()

    def add(self, shape: str, leg: Leg) -> None:
        self.broken_legs += not leg.ledger.is_good()
        self._sums.update(leg.ledger.verdict())
        self._sums.update(commits=leg.commits, rewound=leg.rewound)
        acked = leg.acked_by_round()
        for number, one in enumerate(leg.rounds):
            row = self._rows.setdefault((shape, one.who, one.way.value), Row())
            row.cuts += 1
            row.acked += acked[number]
            row.excused += leg.excused[number]
            row.oldest_s = max(row.oldest_s, leg.oldest_excused_s.get(number, 0.0))

    def verdict(self) -> dict[str, Any]:
        rows = self._rows.values()
        return {
            "cuts": sum(row.cuts for row in rows),
            **self._sums,
            "excused": sum(row.excused for row in rows),
            "oldest_excused_s": round(max((row.oldest_s for row in rows), default=0.0), 3),
        }

    def markdown(self) -> str:
        lines = [
            f"| {shape} | {who} | {way} | {row.cuts:,} | {row.acked:,} | {row.excused:,} | "
            f"{f'{row.oldest_s:.2f} s' if row.excused else '-'} |"
            for (shape, who, way), row in sorted(self._rows.items())
        ]
        return _HEAD + "\n".join(lines) + "\n"
