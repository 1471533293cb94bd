"""The death of a process in the middle of what it does to files: all that Python asks of the system
from a certain step on fails, also in whatever would clean up.

    for steps in itertools.count():
        with power.lasts(steps) as supply:
            work()
        if not supply.is_out:
            break

Python tells its audit hooks about each step before it is taken. What C libraries do by themselves
is not counted.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_STEPS = frozenset(
    {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "shutil.rmtree"}
)


class PowerOut(BaseException):
    """No handler of errors sees it."""


class Supply:
    def __init__(self, steps: int) -> None:
        self._steps_left = steps
        self._thread = threading.get_ident()
        self.is_out = False

    def take(self) -> None:
        if threading.get_ident() != self._thread:
            return
        self._steps_left -= 1
        if self._steps_left < 0:
            self.is_out = True
            raise PowerOut


_current: list[Supply] = []
_is_hooked = False


def _hook(event: str, _arguments: tuple[Any, ...]) -> None:
    if _current and (event in _STEPS or event.startswith("ctypes.dlsym")):
        _current[-1].take()


@contextmanager
def lasts(steps: int) -> Iterator[Supply]:
    """The block ends when the steps are used up."""
    global _is_hooked  # noqa: PLW0603 - a hook cannot be taken back
    if not _is_hooked:
        sys.addaudithook(_hook)
        _is_hooked = True
    supply = Supply(steps)
    _current.append(supply)
    try:
        yield supply
    except PowerOut:
        pass
    finally:
        _current.pop()
