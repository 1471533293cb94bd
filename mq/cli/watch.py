"""`--watch`: a command that shows something, again and again until Ctrl-C.

On a terminal each picture replaces the one before, in a screen of its own, and the last one stays
when the command ends. Elsewhere the pictures follow each other. Brokers that are away do not end
the command: it says so above the last picture, and goes on.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any, Self

import click

from mq.cli import output
from mq.cli.options import Duration
from mq.errors import MqError

_EVERY_S = 2.0
_EVERY_MIN_S = 0.1
# The other screen of a terminal and back, its cursor, and the two ways to clear.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"

Command = Callable[..., Any]


def with_watch(command: Command) -> Command:
    """Adds --watch and --every to a command that prints and returns."""

    @click.option("--watch", "-w", "is_watched", is_flag=True, help="Show it again, until Ctrl-C.")
    @click.option(
        "--every",
        "every_s",
        metavar="2s",
        type=Duration(),
        default=_EVERY_S,
        help="How often, with --watch.  [default: 2s]",
    )
    @functools.wraps(command)
    def called(*args: Any, is_watched: bool, every_s: float, **others: Any) -> Any:
        show = functools.partial(command, *args, **others)
        return watch(show, max(every_s, _EVERY_MIN_S)) if is_watched else show()

    return called


def watch(show: Callable[[], object], every_s: float, rounds: int | None = None) -> None:
    """Calls `show` every so often, without an end, or so many times."""
    with Screen(every_s) as screen:
        while True:
            began_s = time.monotonic()
            screen.draw(show)
            if rounds is not None and (rounds := rounds - 1) <= 0:
                return
            time.sleep(max(0.0, began_s + every_s - time.monotonic()))


class Screen:
    """The pictures of one command."""

    def __init__(self, every_s: float) -> None:
        context = click.get_current_context(silent=True)
        name = context.command_path if context else "mq"
        self._title = f"{name}, every {every_s:g} s"
        self._is_terminal = sys.stdout.isatty()
        # Of the terminal: the last picture.
        self._picture = ""

    def __enter__(self) -> Self:
        if self._is_terminal:
            self._write(_ENTER)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal:
            self._write(_LEAVE + self._picture)

    def draw(self, show: Callable[[], object]) -> None:
        """Raises an MqError that will not pass."""
        trouble = ""
        try:
            self._picture = output.captured(functools.partial(_shown, show))
        except MqError as error:
            if not error.retryable:
                raise
            trouble = f"{error.code.value}: {' '.join(str(error).split())}"
        if self._is_terminal:
            self._replace(trouble)
        elif trouble:
            output.note(trouble)
        else:
            self._write(self._picture)

    def _replace(self, trouble: str) -> None:
        size = shutil.get_terminal_size()
        clock = time.strftime("%H:%M:%S", time.gmtime()) + " UTC"
        title = self._title.ljust(max(0, size.columns - len(clock)))[: size.columns] + clock
        head = [f"\x1b[2m{title}\x1b[0m"]
        if trouble:
            head.append(output.printable(trouble)[: size.columns])
        lines = self._picture.rstrip("\n").split("\n")
        room = size.lines - len(head) - 1
        if len(lines) > room:
            hidden = len(lines) - room + 1
            lines = [*lines[: room - 1], f"... {hidden:,} more lines: a taller terminal shows them"]
        text = "".join(f"{line}{_CLEAR_LINE}\n" for line in (*head, *lines))
        self._write(_HOME + text + _CLEAR_REST)

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _shown(show: Callable[[], object]) -> None:
    """A command that shows a part and then fails has said so: the next round may show all."""
    with contextlib.suppress(click.exceptions.Exit):
        show()
