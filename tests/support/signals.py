"""Signals for the processes that tests start.

A background job of a shell, and what runs under `nohup` in one, ignores SIGINT, and a program
inherits what its parent ignores: `mq consume --follow` would not see the SIGINT that a test sends.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_SENT_BY_TESTS = (signal.SIGINT, signal.SIGTERM)


def give_defaults_to_children() -> None:
    """Signals that this process ignores stay without effect on it, but are the default ones for
    programs that it starts: `exec` keeps SIG_IGN, and replaces a handler by SIG_DFL.
    """
    for number in _SENT_BY_TESTS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _ignore)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    pass
