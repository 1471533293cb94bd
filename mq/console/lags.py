"""How a lag moves: from the last minutes of a series, what to say of it in a few words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mq.console import formats

# Samples that a trend is made of: about two minutes.
TREND_SAMPLES = 24
_STEADY = 0.02


@dataclass(frozen=True, slots=True)
class Trend:
    """`per_s` is the growth; negative: it is catching up."""

    level: str
    word: str
    per_s: float = 0.0


def trend(lags: Sequence[float | None], period_s: float) -> Trend:
    """Of the newest samples, the last one now."""
    known = [(at, one) for at, one in enumerate(lags[-TREND_SAMPLES:]) if one is not None]
    if not known or not known[-1][1]:
        return Trend("good", "no lag")
    if len(known) < 3:
        return Trend("calm", "not known yet")
    (first_at, first), (last_at, last) = known[0], known[-1]
    per_s = (last - first) / ((last_at - first_at) * period_s)
    if abs(last - first) <= max(1.0, _STEADY * max(first, last)):
        return Trend("warn", "steady", per_s)
    if per_s > 0:
        return Trend("bad", f"growing {formats.rate(per_s)} /s", per_s)
    return Trend("good", f"done in about {formats.duration(last / -per_s)}", per_s)
