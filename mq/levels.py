"""The longest delay of a message, and the delay levels that users of such brokers know."""

from __future__ import annotations

DELAY_MS_MAX = 40 * 86_400_000
# Levels 1 to 18: 1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h.
LEVELS_MS: tuple[int, ...] = tuple(
    1_000 * seconds for seconds in (1, 5, 10, 30, *range(60, 601, 60), 1_200, 1_800, 3_600, 7_200)
)
