"""Values as people read them, for templates: numbers, sizes, times, bodies, commands.

Everything returned is plain text, which templates escape; the one exception is `sparkline`, which
is made of numbers alone.
"""

from __future__ import annotations

import datetime as dt
import json
import shlex
import time
from collections.abc import Sequence

from markupsafe import Markup

UNKNOWN = "\N{EN DASH}"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_HEX_SHOWN = 4096
_PREVIEW = 240


def number(value: float | None) -> str:
    """With separators; a dash if it is not known."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}"


def counted(value: int, one: str, many: str = "") -> str:
    """With its noun: "1 message", "2,000 messages"."""
    return f"{number(value)} {one if value == 1 else many or one + 's'}"


def rate(value: float | None) -> str:
    """A second; small ones with a digit behind the point."""
    if value is None:
        return UNKNOWN
    if value and value < 10:
        return f"{value:.1f}"
    return f"{value:,.0f}"


def size(count: float | None) -> str:
    if count is None:
        return UNKNOWN
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    if unit == 0:
        return f"{value:,.0f} B"
    return f"{value:.{0 if value >= 100 else 1}f} {_UNITS[unit]}"


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else UNKNOWN


def utc(at_ms: int, precise: bool = False) -> str:  # noqa: FBT001, FBT002 - a filter
    """Scripts turn it into local time, unless the reader wants UTC."""
    if not at_ms:
        return ""
    moment = dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC)
    text = moment.strftime("%Y-%m-%d %H:%M:%S")
    return f"{text}.{at_ms % 1000:03d}" if precise else text


def iso(at_ms: int) -> str:
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC).isoformat(timespec="milliseconds")


def ago(at_ms: int, now_ms: int | None = None) -> str:
    if not at_ms:
        return "never"
    passed = max(0, (now_ms or time.time_ns() // 1_000_000) - at_ms) / 1000
    return f"{duration(passed)} ago"


def duration(seconds: float) -> str:
    for limit, unit, name in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86400:.0f} d"


# Bodies


def text_of(body: bytes) -> str | None:
    """None: it is no text that a page could show."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return None if any(ord(one) < 32 and one not in "\t\r\n" for one in text) else text


def json_of(body: bytes) -> str | None:
    """Indented; None if it is no JSON object or list, or too deep to be read."""
    if body[:1].strip() not in (b"{", b"[") and body.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        return json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def hex_of(body: bytes) -> str:
    """A dump of the start, sixteen bytes a line."""
    shown = body[:_HEX_SHOWN]
    lines = []
    for at in range(0, len(shown), 16):
        row = shown[at : at + 16]
        readable = "".join(chr(one) if 32 <= one < 127 else "." for one in row)
        lines.append(f"{at:08x}  {row.hex(' '):<47}  {readable}")
    if len(body) > _HEX_SHOWN:
        lines.append(f"… {len(body) - _HEX_SHOWN:,} more bytes")
    return "\n".join(lines)


def preview(body: bytes) -> str:
    """The start, on one line; what is no text as \\xNN."""
    text = body[:_PREVIEW].decode(errors="backslashreplace")
    line = "".join(one if one.isprintable() else " " for one in text).strip()
    return f"{line}…" if len(body) > _PREVIEW else line


# Commands


def command(*words: object) -> str:
    """As it can be pasted into a shell."""
    return shlex.join(["mq", *(str(one) for one in words if one is not None)])


# Plots of a few pixels


def sparkline(values: Sequence[float | None], label: str) -> Markup:
    """An SVG with a line; `label` is for those who hear the page."""
    known = [(at, one) for at, one in enumerate(values) if one is not None]
    if len(known) < 2:
        return Markup('<span class="spark empty" aria-hidden="true"></span>')
    top = max(one for _, one in known) or 1.0
    width = max(1, len(values) - 1)
    points = " ".join(f"{100 * at / width:.1f},{22 - 20 * one / top:.1f}" for at, one in known)
    return Markup(
        '<svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" '
        'aria-label="{label}"><polyline points="{points}" /></svg>'
    ).format(label=label, points=points)
