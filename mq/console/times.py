"""Times that people type into a form."""

from __future__ import annotations

import datetime as dt
import re
import time

from mq.errors import IllegalRequest

_LATEST_MS = 253_402_300_799_000  # the year 9999
_AGO = re.compile(r"-([0-9]{1,9})([smhd])", re.ASCII)
_AGO_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_ms(text: str) -> int:
    """Milliseconds since 1970, date and time (in UTC unless it has a zone), or -10m ago.
    IllegalRequest.
    """
    if re.fullmatch(r"[0-9]{11,15}", text, re.ASCII):
        return min(int(text), _LATEST_MS)
    if ago := _AGO.fullmatch(text):
        return max(0, time.time_ns() // 1_000_000 - int(ago[1]) * _AGO_MS[ago[2]])
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise IllegalRequest(
            f"{text[:50]!r} is no time: use 2026-07-12 09:53:20, milliseconds, or -10m ago"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return min(max(0, round(moment.timestamp() * 1000)), _LATEST_MS)
