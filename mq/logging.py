"""Log lines: readable on a terminal, JSON lines elsewhere, always on stderr.

A line is an event and its fields: `log.warning("torn tail cut", file=path, bytes=count)`. Ours and
those of libraries that use the standard `logging` pass through the same handler and look alike.
`configure` is for the process that owns stderr; without it a logger is an ordinary one of the
standard library, so that a program that embeds us decides by itself what becomes of our lines.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO, cast

import structlog

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

# Fields that we set: those of the record, and the marks that structlog leaves for its formatter.
_OURS = frozenset({"timestamp", "level", "logger", "_record", "_from_structlog"})


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger of this name, at import time too: what `configure` sets later holds for it."""
    # Processors of its own instead of structlog's global ones, which belong to the program.
    logger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return cast("structlog.stdlib.BoundLogger", logger)


class RateLimit:
    """For lines that others can cause at will, such as strangers at a port: at most `count` of
    them within any `interval_s`.
    """

    def __init__(
        self, count: int, interval_s: float, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._count = count
        self._interval_s = interval_s
        self._now_s = now_s
        self._admitted_s: deque[float] = deque()
        self._omitted = 0

    def admit(self) -> bool:
        """Whether the next line may be written."""
        now_s = self._now_s()
        while self._admitted_s and now_s - self._admitted_s[0] >= self._interval_s:
            self._admitted_s.popleft()
        if len(self._admitted_s) >= self._count:
            self._omitted += 1
            return False
        self._admitted_s.append(now_s)
        return True

    def omitted(self) -> dict[str, int]:
        """Fields for the line that is written: how many were left out since the last one, if any
        were.
        """
        omitted, self._omitted = self._omitted, 0
        return {"omitted_lines": omitted} if omitted else {}


def configure(level: str, output: str) -> None:
    """Sends every log line of the process from `level` on to stderr; a second call replaces it.

    `output` is console, json, or auto: console if stderr is a terminal.
    """
    terminal = sys.stderr.isatty()
    if output == "console" or (output == "auto" and terminal):
        render = _console(colors=terminal and not os.environ.get("NO_COLOR"))
    else:
        render = _json()
    handler = _Handler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=[_identify, *render]))
    root = logging.getLogger()
    for previous in [each for each in root.handlers if isinstance(each, _Handler)]:
        root.removeHandler(previous)
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(True)  # noqa: FBT003 - the standard library's signature


class _Handler(logging.StreamHandler[TextIO]):
    """Ours, to tell it from those of a test runner or a debugger."""


def _console(*, colors: bool) -> list[Processor]:
    # Not rich's tracebacks: they print local variables, and those hold message bodies.
    return [
        structlog.dev.ConsoleRenderer(
            colors=colors, exception_formatter=structlog.dev.plain_traceback, sort_keys=False
        )
    ]


def _json() -> list[Processor]:
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def _identify(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Time, level and logger come first, from the record, so that foreign lines have them too."""
    record: logging.LogRecord = event["_record"]
    instant = datetime.fromtimestamp(record.created, UTC)
    return {
        "timestamp": instant.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": event.pop("event"),
        **{key: value for key, value in event.items() if key not in _OURS},
    }
